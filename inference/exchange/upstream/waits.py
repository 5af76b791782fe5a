"""Reads how long an upstream asks to wait; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from config.egress.retry_after import read_number, read_retry_after

# A duration of hours, minutes, seconds and milliseconds, or a plain number of seconds.
_DURATION: Final = re.compile(
    r"(?:([0-9]{1,4})h)?(?:([0-9]{1,6})m(?!s))?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)s)?(?:([0-9]{1,9})ms)?"
    r"([0-9]{1,9}(?:\.[0-9]{1,9})?)?",
    re.ASCII,
)
# The headers that say how much is left of a limit, and when it is full again.
_LIMITS: Final = tuple(
    (f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}")
    for kind in ("requests", "tokens")
)
# How long nothing is sent when the upstream does not say.
_UNKNOWN_PAUSE: Final = 5.0


def read_wait(headers: Mapping[str, str], asked: float | None, now: float) -> float | None:
    """Returns the seconds after which the upstream takes another request, if it says so.

    ``retry-after-ms`` is the most exact, then ``Retry-After`` (seconds or a date), then ``asked``,
    which is the wait in the body, then the headers of a limit of which nothing is left. ``now`` is
    Unix time; the upstream's own ``Date`` replaces it, because a date is one of its clock. What is
    neither a number nor a date, or lies in the past, says nothing. The result may be of any length.
    """
    milliseconds = read_number(headers.get("Retry-After-Ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    seconds = read_retry_after(headers, now)
    if seconds is None:
        seconds = asked
    return read_pause(headers) if seconds is None else seconds


def read_pause(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds until the upstream takes another request, if it says that none is left.

    These are the headers of OpenAI, which most providers send; others name no such limit.
    """
    pause: float | None = None
    for remaining, reset in _LIMITS:
        if headers.get(remaining) == "0":
            pause = max(pause or 0.0, _parse_duration(headers.get(reset, "")))
    return pause


def _parse_duration(text: str) -> float:
    """Returns the seconds of a duration such as ``6m0s``, ``20ms`` or ``12.5``; 5 otherwise."""
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        return _UNKNOWN_PAUSE
    hours, minutes, seconds, milliseconds, plain = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000 + plain
