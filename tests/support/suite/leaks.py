"""pytest plugin: lists what modules leave open, and where it was opened.

Python complains of an open connection or file when it deletes the object, which may happen during
a later test, so no test fails for it. Garbage is collected at the end of each module; then the
summary of warnings names the module, and where a connection of psycopg was opened.
"""

from __future__ import annotations

import gc
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from tests.support.suite.tiers import path_of

_DEPTH: Final = 12
# With Python's own thresholds a twentieth of the time of a page is the collector's.
_THRESHOLDS: Final = (10_000, 20, 20)
_initialize: Final = psycopg.BaseConnection.__init__


def _remember(connection: psycopg.BaseConnection[Any], *args: Any, **options: Any) -> None:
    frames = traceback.walk_stack(sys._getframe(1))
    stack = traceback.StackSummary.extract(frames, limit=_DEPTH, lookup_lines=False)
    connection._opened_at = " < ".join(  # type: ignore[attr-defined]
        f"{each.filename.rpartition('/')[2]}:{each.lineno} {each.name}" for each in stack
    )
    _initialize(connection, *args, **options)


def _complain(connection: psycopg.BaseConnection[Any]) -> None:
    is_open = hasattr(connection, "pgconn") and not connection.closed
    # The pool closes its own.
    if is_open and not hasattr(connection, "_pool"):
        where = connection._opened_at  # type: ignore[attr-defined]
        warnings.warn(f"A connection was left open: {where}", ResourceWarning, stacklevel=2)


psycopg.BaseConnection.__init__ = _remember  # type: ignore[method-assign]
psycopg.BaseConnection.__del__ = _complain  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keeps the collector away, which would take a fifth of the time for objects that stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart() -> None:
    """Spares the collector what the controlling process has loaded, which collects nothing."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spares the collector the million objects of the modules and the tests, which stay."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collects when the last test of a module has ended, and then spares what has stayed.

    A test may have thawed what was spared: then a collection would take a second, and so would
    that after each later module.
    """
    if nextitem is None or path_of(nextitem.nodeid) != path_of(item.nodeid):
        gc.collect()
        gc.freeze()
