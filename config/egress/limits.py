"""The five limits of time of a call to an upstream, by name; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

# The most seconds that a column holds: a day.
MOST_SECONDS: Final = 86_400
# The setting that has the operator's limit, which no endpoint exceeds.
SETTING_OF: Final[Mapping[str, str]] = {
    "connect": "UPSTREAM_CONNECT_TIMEOUT",
    "headers": "UPSTREAM_HEADERS_TIMEOUT",
    "first_event": "UPSTREAM_FIRST_EVENT_TIMEOUT",
    "idle": "UPSTREAM_IDLE_TIMEOUT",
    "total": "HOLD_TIMEOUT",
}


class TimeLimits(NamedTuple):
    """The limits that an endpoint has of its own, in seconds; ``None`` for those of the operator.

    ``connect`` is for the name, the connection and TLS. ``headers`` is for the headers of a stream,
    and ``first_event`` for its first event, both counted from the beginning of the call. ``idle``
    bounds the silence after that event, and ``total`` the whole call. A plain answer is bounded by
    ``connect`` and ``total`` alone.
    """

    connect: int | None = None
    headers: int | None = None
    first_event: int | None = None
    idle: int | None = None
    total: int | None = None

    def stated(self) -> dict[str, int]:
        """Returns the limits that differ from the operator's, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


NO_OWN_LIMITS: Final = TimeLimits()


def tighten(limit: float, own: int | None) -> float:
    """Returns the operator's limit, or an endpoint's own one if that is shorter."""
    return limit if own is None or own > limit else own
