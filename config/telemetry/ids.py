"""Random texts for ids: unpredictable, and taken from the system in blocks."""

from __future__ import annotations

import os
from collections import deque
from typing import Final

# One call of the system costs some microseconds, whether it returns ten bytes or a thousand.
_BLOCK_BYTES: Final = 4_096


class RandomIds:
    """Makes random texts of one length; thread-safe.

    A process that is forked forgets the block of its parent, so that both never make the same id.
    """

    def __init__(self, size: int) -> None:
        """Stores the number of random bytes of each text, which has two characters for each."""
        self._size = size
        self._ids: deque[str] = deque()
        os.register_at_fork(after_in_child=self._ids.clear)

    def make(self) -> str:
        """Returns a text that nobody can guess."""
        try:
            return self._ids.popleft()
        except IndexError:
            block = os.urandom(_BLOCK_BYTES // self._size * self._size).hex()
            step = 2 * self._size
            first, *others = (block[at : at + step] for at in range(0, len(block), step))
            self._ids.extend(others)
            return first
