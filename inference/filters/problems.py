"""The errors by which content filters refuse a request."""

from __future__ import annotations

from config.api.errors import Forbidden, PayloadTooLarge, RequestTimeout, Unavailable
from inference.filters.definitions import Filters, Finding


class ContentBlocked(Forbidden):
    """A filter blocks the request; the error never quotes the matched text."""

    error_type = "content_policy_violation"

    def __init__(self, finding: Finding, message: str) -> None:
        metadata = {"guardrail_id": str(finding.guardrail_id), "label": finding.label}
        super().__init__(message, metadata=metadata)
        self.finding = finding


class TooSlow(RequestTimeout):
    message = "The content filters could not read the request in time. Send a shorter one."


class TooLong(PayloadTooLarge):
    message = (
        "With the labels of its content filters, the request is longer than a request may be. "
        "Send a shorter one."
    )


class Unscreened(Unavailable):
    """Screening the request takes too long for the event loop; screen it in a thread and retry."""

    def __init__(self, filters: Filters) -> None:
        super().__init__()
        self.filters = filters
