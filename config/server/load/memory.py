"""Returns the memory of large bodies to the system as soon as they are gone."""

from __future__ import annotations

import ctypes
from typing import Final

# mallopt(3): the size from which the C library maps a block by itself. A block of its own grows by
# moving its pages, not by a copy, and returns to the system when it is freed. The library raises
# the size up to 32 MiB once such a block was freed, unless it is set; large bodies would then share
# a heap that is torn and never shrinks.
_M_MMAP_THRESHOLD: Final = -3
_BLOCK_BYTES: Final = 1_048_576


def return_large_blocks() -> None:
    """Gives every block above 1 MiB memory of its own; other C libraries than glibc do already."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES)
