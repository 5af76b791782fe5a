"""Hosts whose clocks are wrong: processes under libfaketime, which leaves monotonic time alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest


@cache
def find_library() -> Path | None:
    """Returns the library of Debian's package faketime, if it is installed."""
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


needs_faketime = pytest.mark.skipif(
    find_library() is None, reason="Debian's package faketime is not installed"
)


def shifted(hours: int) -> dict[str, str]:
    """Returns the environment of a process whose clock is ahead by these hours."""
    return {
        "LD_PRELOAD": str(find_library()),
        "FAKETIME": f"{hours:+d}h",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DISABLE_SHM": "1",
    }
