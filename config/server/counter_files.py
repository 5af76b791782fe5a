"""The file in which a worker counts; imported before the first metric is made.

``prometheus_client`` maps a file whose room on the disk is not reserved yet. A store into a map
without room ends the process.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import struct
from typing import Any, Final

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

logger = logging.getLogger(__name__)

_FIRST_SIZE: Final = 1 << 16
# The length of a key, its padding, a value and its time take no more bytes than this.
_BESIDE_KEY: Final = 28
# The processes that have said that their figures are missing.
_told: Final[set[int]] = set()


class CounterFile(MmapedDict):
    """The figures of one kind of a worker, in a file whose room is reserved before it is mapped.

    Where there is no room, the figures stay in the memory of the worker, and the sums have those of
    before: nothing else of the worker needs a disk.
    """

    def __init__(self, filename: str) -> None:
        try:
            with open(filename, "ab", buffering=0) as file:
                _reserve(file.fileno(), _FIRST_SIZE)
            super().__init__(filename)  # type: ignore[no-untyped-call]
        except OSError as exc:
            _tell(filename, exc)
            self._fname, self._positions = filename, {}
            self._f: Any = None
            # An empty dict: its size, and padding.
            self._m: Any = struct.pack("ii", 8, 0)
            self._used = 8
            self._grow(_FIRST_SIZE)

    def _init_value(self, key: str) -> None:
        while self._used + len(key.encode()) + _BESIDE_KEY > self._capacity:
            self._grow(2 * self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]

    def _grow(self, size: int) -> None:
        if self._f is not None:
            try:
                _reserve(self._f.fileno(), size)
            except OSError as exc:
                _tell(self._fname, exc)
                self._f.close()
                self._f = None
        if self._f is not None:
            self._m = mmap.mmap(self._f.fileno(), size)
        else:
            former, self._m = self._m, mmap.mmap(-1, size)
            self._m[: len(former)] = former[:]
        self._capacity = size


def _reserve(descriptor: int, size: int) -> None:
    """Writes zeros to the end of a file until it has this size; raises ``OSError``."""
    missing = size - os.fstat(descriptor).st_size
    if missing > 0 and os.write(descriptor, bytes(missing)) < missing:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _tell(filename: str, problem: OSError) -> None:
    if os.getpid() not in _told:
        _told.add(os.getpid())
        logger.error(
            "figures of this worker are missing in the metrics, because %s cannot be written: %s; "
            "make room there, then send SIGHUP to serve",
            os.path.dirname(filename),
            problem.strerror,
        )


# The library makes its files by this name.
vars(values)["MmapedDict"] = CounterFile
