"""Replaces Django's English formats, which write ``Nov. 21, 2026, 8:11 p.m.``."""

from typing import Final

DATE_FORMAT: Final = "Y-m-d"
TIME_FORMAT: Final = "H:i:s"
DATETIME_FORMAT: Final = "Y-m-d H:i:s"
SHORT_DATE_FORMAT: Final = "Y-m-d"
SHORT_DATETIME_FORMAT: Final = "Y-m-d H:i:s"
