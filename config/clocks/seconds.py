"""Writes Unix seconds as texts whose order is that of time; pure.

Texts are compared from their first digit on, so all of them have as many digits as the seconds from
2001 to 2286. What lies before 1970 has the first of them, and what lies after 2286 the last.
"""

from __future__ import annotations

from typing import Final

_DIGITS: Final = 10
_LAST: Final = 10**_DIGITS - 1


def write_seconds(seconds: float) -> str:
    """Returns Unix seconds in ten digits: ``0946684800``."""
    return f"{min(max(int(seconds), 0), _LAST):0{_DIGITS}}"
