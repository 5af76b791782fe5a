"""Fits the limit of connections to the number of files that the process may open."""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

# Files of the process that are no connections of callers or upstreams: database, log, libraries,
# and refused connections that are still read.
_RESERVE: Final = 512
# A limit below this would refuse ordinary use, and so would a process with so few files.
_FEWEST: Final = 64
# The kernel refuses "unlimited" on some systems; no worker needs more.
_MOST: Final = 1 << 20


def raise_open_files() -> None:
    """Raises the soft limit of open files to the hard limit; processes started later inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else hard
    if soft not in (wanted, resource.RLIM_INFINITY):
        # A system may allow less than it says; the soft limit then stays.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def fitting_connections(limit: int) -> int:
    """Returns how many of ``limit`` connections the process can open.

    Each connection of a caller may need one to an upstream. At the limit of open files, the process
    could open neither; a limit below it closes strangers instead.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limit
    return min(limit, max(_FEWEST, (soft - _RESERVE) // 2))


def needed_files(limit: int) -> int:
    """Returns the number of files that a process with ``limit`` connections may have to open."""
    return 2 * limit + _RESERVE
