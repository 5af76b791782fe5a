"""Replaces Django's English formats, which write ``Nov. 21, 2026, 8:11 p.m.``.

A time has its zone, as :mod:`config.clocks.writing` writes it: ``2026-11-21 20:11:00 UTC``.
"""

from typing import Final

DATE_FORMAT: Final = "Y-m-d"
TIME_FORMAT: Final = "H:i:s"
DATETIME_FORMAT: Final = "Y-m-d H:i:s T"
SHORT_DATE_FORMAT: Final = "Y-m-d"
SHORT_DATETIME_FORMAT: Final = "Y-m-d H:i:s T"
