"""Reads for how long another server asks to be left alone; pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

_NUMBER: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?", re.ASCII)
# "Sun, 06 Nov 1994 08:49:37 GMT", and the two older forms of HTTP.
_DATE: Final = re.compile(r"[A-Za-z]{3,9},? [A-Za-z0-9 :-]{16,32}", re.ASCII)


def read_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Returns the seconds of ``Retry-After``, which has a number or a date; ``None`` otherwise.

    ``headers`` finds names in any case. ``now`` is Unix time; the server's own ``Date`` replaces
    it, because a date is one of its clock. A date in the past says nothing. The result may be of
    any length: the caller bounds it.
    """
    text = headers.get("Retry-After", "").strip()
    seconds = read_number(text)
    if seconds is not None or (until := _read_date(text)) is None:
        return seconds
    sent = _read_date(headers.get("Date", "").strip())
    left = until - (now if sent is None else sent)
    return left if left > 0 else None


def read_number(text: str) -> float | None:
    """Returns a number that is not negative, in ASCII and without an exponent, or ``None``."""
    return float(text) if _NUMBER.fullmatch(text.strip()) else None


def _read_date(text: str) -> float | None:
    """Returns the Unix time of an HTTP date; ``None`` for anything else."""
    if not _DATE.fullmatch(text):
        return None
    try:
        date = parsedate_to_datetime(text)
        moment = (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
    return moment if math.isfinite(moment) else None
