"""How long an upstream asks to wait, in all the forms that providers use."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accounts.policy import RegionNotAllowed
from catalog.dialects.base import parse_error
from config.api.errors import (
    Conflict,
    Forbidden,
    GatewayError,
    InvalidTransition,
    PaymentRequired,
    TooManyRequests,
    Unavailable,
    UpstreamOverloaded,
    UpstreamRateLimited,
)
from config.egress.client import Headers
from inference.admission.budgets import LimitSpent
from inference.exchange.failures import read_wait
from inference.routing.health import AttemptOutcome, HealthState, HealthTable
from tests.support import factories
from tests.support.inference.health import ONE, failures_of, is_paused
from tests.support.inference.site import Site

NOW = 1_784_000_000.0
# NOW, half a minute later, and half a minute earlier.
DATE, LATER, EARLIER = (
    "Tue, 14 Jul 2026 03:33:20 GMT", "Tue, 14 Jul 2026 03:33:50 GMT",
    "Tue, 14 Jul 2026 03:32:50 GMT",
)  # fmt: skip


def wait_of(asked: float | None = None, **headers: str) -> float | None:
    fields = {name.replace("_", "-"): text for name, text in headers.items()}
    return read_wait(Headers(fields), asked, NOW)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7), (" 7 ", 7), ("0", 0), ("1.5", 1.5), ("0.25", 0.25), ("1000000000", 1e9),
        (LATER, 30), (EARLIER, None), (DATE, None),
        ("Tuesday, 14-Jul-26 03:33:50 GMT", 30), ("Tue Jul 14 03:33:50 2026", 30),
        ("", None), ("soon", None), ("-1", None), ("nan", None), ("inf", None), ("1e9", None),
        ("٣", None), ("7, 9", None), ("9" * 16, None), ("Tue, 99 Jul 2026 03:33:50 GMT", None),
    ],
)  # fmt: skip
def test_retry_after_is_a_number_or_a_date(text: str, seconds: float | None) -> None:
    assert wait_of(retry_after=text) == seconds


def test_a_date_is_one_of_the_upstreams_clock() -> None:
    assert wait_of(retry_after=LATER, date=EARLIER) == 60
    assert wait_of(retry_after=LATER, date="yesterday") == 30


def test_the_most_exact_wait_counts() -> None:
    exhausted = {"x_ratelimit_remaining_requests": "0", "x_ratelimit_reset_requests": "9s"}
    assert wait_of(13.0, retry_after_ms="1500", retry_after="2", **exhausted) == 1.5
    assert wait_of(13.0, retry_after_ms="soon", retry_after="2", **exhausted) == 2
    assert wait_of(13.0, retry_after=EARLIER, **exhausted) == 13
    assert wait_of(**exhausted) == 9
    assert wait_of() is None


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [("13s", 13), ("13.5s", 13.5), ("0s", 0), ("13", None), ("-1s", None), ("1e9s", None)]
    + [(other, None) for other in (13, None, [], {"seconds": 13}, True)],
)
def test_the_retry_info_of_google_is_read(delay: Any, seconds: float | None) -> None:
    details = [
        {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "RATE_LIMIT_EXCEEDED"},
        "not an object",
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
    ]
    error = {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": details}
    for body in ({"error": error}, [{"error": error}]):
        failure = parse_error(json.dumps(body).encode())
        assert failure.retry_after == seconds
        assert (failure.message, failure.code) == ("m", "RESOURCE_EXHAUSTED")
        assert failure.names == {"429", "resource_exhausted", "rate_limit_exceeded"}


@pytest.mark.parametrize("kind", [UpstreamRateLimited, UpstreamOverloaded])
@pytest.mark.parametrize(
    ("wait", "told"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.1, "2"), (60.0, "60"), (1e9, "60")]
)
def test_a_caller_is_told_whole_seconds_up_to_a_minute(kind: Any, wait: float, told: str) -> None:
    assert kind(retry_after=wait).headers == {"Retry-After": told}
    assert kind().headers == {}


@pytest.mark.parametrize("outcome", [AttemptOutcome.RATE_LIMITED, AttemptOutcome.FAILURE])
@pytest.mark.parametrize(("wait", "seconds"), [(7.5, 7.5), (60.0, 60), (61.0, 60), (1e9, 60)])
def test_a_wait_pauses_for_a_minute_at_most(
    outcome: AttemptOutcome, wait: float, seconds: float
) -> None:
    table = HealthTable()
    table.record(ONE, outcome, now=NOW, retry_after=wait)
    assert table.health(ONE, NOW + seconds - 0.01).state is HealthState.RATE_LIMITED
    assert table.health(ONE, NOW + seconds + 0.26).state is HealthState.HEALTHY


@pytest.mark.parametrize("wait", [float("nan"), float("inf"), -1.0, -1e300])
def test_no_wait_breaks_the_health(wait: float) -> None:
    table = HealthTable()
    table.record(ONE, AttemptOutcome.RATE_LIMITED, now=NOW, retry_after=wait)
    table.pause(ONE, wait, now=NOW)
    assert table.health(ONE, NOW + 61).state is HealthState.HEALTHY


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("429,retry-after=7", "7"),
        ("429,retry-after=7.25", "8"),
        ("429,retry-after=99999999", "60"),
        ("429,retry-after-ms=1500", "2"),
        ("503,retry-after-ms=20000", "20"),
        ("529,retry-after=3", "3"),
        ("429,retry-after=soon", None),
        ("500,retry-after=7", None),
    ],
)
def test_the_wait_of_an_upstream_is_passed_on_and_pauses_its_endpoint(
    site: Site, header: str, told: str | None
) -> None:
    endpoint = site.publish(f"sim-wait:{header}")
    assert site.chat().headers.get("Retry-After") == told
    site.eventually(lambda: failures_of(endpoint.pk) is not None)
    assert is_paused(endpoint.pk) is not header.startswith("500")


@pytest.mark.parametrize("error", [PaymentRequired, LimitSpent, Conflict, InvalidTransition])
def test_an_error_that_no_repetition_cures_says_so(error: type[GatewayError]) -> None:
    assert error().headers == {"x-should-retry": "false"}


@pytest.mark.parametrize("error", [Forbidden, RegionNotAllowed, TooManyRequests, Unavailable])
def test_another_error_leaves_the_decision_to_the_client(error: type[GatewayError]) -> None:
    assert "x-should-retry" not in error().headers


def test_a_request_that_cannot_be_paid_is_not_repeated(site: Site) -> None:
    site.publish(price=factories.make_price("1000", "1000"))
    answer = site.chat(max_tokens=1000)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (402, "false")
    assert "Retry-After" not in answer.headers
    site.assert_nothing_happened()
