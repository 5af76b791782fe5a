"""Objects that are alive while Python's cyclic garbage collector does not run."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Collects once, and then not until the end."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def find_objects(*kinds: type, but: Collection[object] = ()) -> list[object]:
    """Returns the objects of these classes that are alive, without some that are known."""
    known = {id(each) for each in but}
    # Asking a lazy object for its class would evaluate it.
    return [each for each in gc.get_objects() if type(each) in kinds and id(each) not in known]
