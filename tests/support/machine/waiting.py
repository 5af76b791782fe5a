"""The one loop that waits: for what another process or thread does, where no event tells it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# A look costs a query or a page of metrics, so the longer it takes, the fewer follow.
_SHORTEST: Final = 0.01
_LONGEST: Final = 0.2
_SHARE: Final = 0.2


def wait_until(
    condition: Callable[[], object], what: str = "it did not happen", *, seconds: float = 50
) -> None:
    """Returns once the condition is true; fails with a text if that takes longer."""
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        assert waited < seconds, what
        time.sleep(min(max(waited * _SHARE, _SHORTEST), _LONGEST))
