"""The folder in which the workers of one service count; imports nothing that reads it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "causeway-metrics-"
_LOCK: Final = "in-use"


def make_folder() -> str:
    """Makes the folder of this service, and removes those of services that were killed.

    As long as a process of a service lives, it holds the lock of its folder. A folder without a
    lock is another program's.
    """
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)
    # It gets its name when it is locked, so that no other service takes it for one of the dead.
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    descriptor = os.open(made / _LOCK, os.O_WRONLY | os.O_CREAT, 0o600)
    # It stays open: its lock ends with the last process of the service.
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return str(made.rename(made.with_name(made.name.removeprefix("."))))
