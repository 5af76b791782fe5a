"""The one loop that waits: for what another process or thread does, where no event tells it."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object], what: str = "it did not happen", *, seconds: float = 50
) -> None:
    """Returns once the condition is true; fails with a text if that takes longer."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
