"""Tests latency, throughput and uptime in the public lists."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from catalog.lists import traffic
from catalog.models import ModelEndpoint
from config.api.errors import ContentRefused, ContextTooShort, PayloadTooLarge
from inference.models import DailyUsage, EndpointHour
from inference.reports.hours import hour_of, roll_up_hours, sum_hours_again
from inference.reports.rollups import roll_up_usage
from tests.support import factories
from tests.support.catalogue import ROUTE, publish, spend
from tests.support.factories import Tenant


def _measured(client: APIClient) -> dict[str, Any]:
    (row,) = client.get(f"{ROUTE}/acme/falcon/endpoints").json()["data"]["endpoints"]
    return {name: value for name, value in row.items() if "_last_" in name}


def test_latency_and_throughput_are_percentiles_of_the_last_half_hour(
    inference: APIClient, anonymous: APIClient, tenant: Tenant, falcon: ModelEndpoint
) -> None:
    for number in range(5):
        spend(tenant, falcon, latency_ms=100 * (number + 1), duration_ms=1000)
    # None of these count: a reply without a stream has no first token, a failure has no speed,
    # and 31 minutes ago is too old.
    spend(tenant, falcon, latency_ms=1, streamed=False, completion_tokens=0)
    spend(tenant, falcon, latency_ms=1, duration_ms=1, status="failed")
    long_ago = timezone.now() - timedelta(minutes=31)
    spend(tenant, falcon, latency_ms=1, duration_ms=1, created_at=long_ago)
    expected = {
        "latency_last_30m": {"p50": 300, "p75": 400, "p90": 460, "p99": 496},
        "throughput_last_30m": {"p50": 50, "p75": 50, "p90": 50, "p99": 50},
        "uptime_last_5m": None,
        "uptime_last_30m": None,
        "uptime_last_1d": None,
    }
    assert _measured(inference) == expected
    assert _measured(anonymous) == dict.fromkeys(expected)


def test_figures_of_an_endpoint_exclude_earlier_attempts_at_other_endpoints(
    inference: APIClient, tenant: Tenant, falcon: ModelEndpoint
) -> None:
    attempts = [
        {"endpoint_id": str(publish("acme/hawk").pk), "latency_ms": 5000, "status": 502},
        {"endpoint_id": str(falcon.pk), "latency_ms": 200, "status": 200},
    ]
    spend(tenant, falcon, latency_ms=5200, duration_ms=6000, attempts=attempts)
    measured = _measured(inference)
    assert set(measured["latency_last_30m"].values()) == {200}
    assert set(measured["throughput_last_30m"].values()) == {50}


@pytest.fixture
def minute_of() -> Callable[[int], datetime]:
    """Returns second 30 of the minute that began so many minutes before that of the test's begin.

    A test may last beyond the end of its minute.
    """
    begin = timezone.now().replace(second=30, microsecond=0)
    return lambda ago: begin - timedelta(minutes=ago)


def test_uptime_is_the_share_of_busy_minutes_without_many_failures(
    inference: APIClient,
    tenant: Tenant,
    falcon: ModelEndpoint,
    minute_of: Callable[[int], datetime],
) -> None:
    failure = {"status": 502, "error_type": "provider_unavailable"}

    def minute(ago: int, *, good: int, bad: int, **fields: Any) -> None:
        for _ in range(good):
            spend(tenant, falcon, created_at=minute_of(ago))
        for _ in range(bad):
            at = {"created_at": minute_of(ago), "status": "failed", "attempt": failure}
            spend(tenant, falcon, **{**at, **fields})

    minute(2, good=8, bad=2)
    minute(3, good=7, bad=3)
    minute(10, good=10, bad=0)
    # A stream that ends early after its first token counts as a failure.
    minute(20, good=7, bad=3, attempt={})
    # These do not count: too few attempts, refused requests, rate limits, own credentials.
    minute(4, good=0, bad=9)
    minute(11, good=0, bad=10, attempt={"status": 400, "error_type": "invalid_request"})
    for ago, kind in ((14, ContextTooShort), (15, ContentRefused), (16, PayloadTooLarge)):
        minute(ago, good=0, bad=10, attempt={"status": 400, "error_type": kind.error_type})
    minute(12, good=0, bad=10, attempt={"status": 429, "error_type": "rate_limit_exceeded"})
    minute(13, good=0, bad=10, attempt={**failure, "status": 401, "is_byok": True})
    # The first is within the last day, the second is older.
    minute(600, good=10, bad=0)
    minute(1500, good=0, bad=10)
    measured = _measured(inference)
    assert measured["uptime_last_5m"] == 50
    assert measured["uptime_last_30m"] == 50
    assert measured["uptime_last_1d"] == 60


def test_uptime_and_popularity_are_the_same_from_sums_of_hours(
    inference: APIClient,
    tenant: Tenant,
    falcon: ModelEndpoint,
    minute_of: Callable[[int], datetime],
) -> None:
    failure = {"status": 502, "error_type": "provider_unavailable"}
    for ago, bad in ((2, 0), (300, 0), (301, 9), (700, 1), (1000, 4)):
        for number in range(10):
            is_bad = {"status": "failed", "attempt": failure} if number < bad else {}
            spend(tenant, falcon, created_at=minute_of(ago), prompt_tokens=ago, **is_bad)
    before = _measured(inference), traffic.tokens_last_week()
    assert before[0]["uptime_last_1d"] == 60

    cache.clear()
    assert roll_up_hours() > 0
    assert EndpointHour.objects.count() >= 3
    assert (_measured(inference), traffic.tokens_last_week()) == before

    # The sums are what is read.
    cache.clear()
    EndpointHour.objects.update(minutes_up=0, tokens=0)
    assert _measured(inference)["uptime_last_1d"] == 20
    assert sum(traffic.tokens_last_week().values()) < sum(before[1].values())


def test_a_server_that_a_tenants_credential_names_says_nothing_of_the_endpoint(
    tenant: Tenant, minute_of: Callable[[int], datetime]
) -> None:
    cloud = factories.make_provider(dialect="azure", base_url=None)
    endpoint = publish("acme/hawk", endpoint_provider=cloud)
    failure = {"status": 502, "error_type": "provider_unavailable", "is_byok": True}
    # These are read one by one, summed by hours, and summed by days.
    for ago in (2, 300, 3_000):
        at = {"created_at": minute_of(ago), "is_byok": True, "upstream_cost_nano": 5}
        spend(tenant, endpoint, attempt={"is_byok": True}, **at)
        for _ in range(10):
            spend(tenant, endpoint, status="failed", attempt=failure, **at)

    def read() -> tuple[Any, Any]:
        cache.clear()
        return traffic.figures(), traffic.tokens_last_week()

    assert read() == ({}, {})
    assert roll_up_hours() > 0
    assert roll_up_usage() > 0
    assert (EndpointHour.objects.exists(), DailyUsage.objects.exists()) == (False, True)
    assert read() == ({}, {})
    # The operator's own account counts, and so does a host that the catalogue names.
    other = publish("acme/wren")
    for served, is_byok in ((endpoint, False), (other, True)):
        spend(tenant, served, is_byok=is_byok, attempt={"is_byok": is_byok})
    figures, tokens = read()
    assert figures.keys() == {endpoint.pk, other.pk}
    assert tokens == {endpoint.model_id: 150, other.model_id: 150}


def test_sums_of_hours_are_kept_for_two_days_and_made_again(
    tenant: Tenant, falcon: ModelEndpoint
) -> None:
    now = timezone.now()
    for hours in (3, 30, 60):
        spend(tenant, falcon, created_at=now - timedelta(hours=hours), prompt_tokens=hours)
    roll_up_hours()
    sums = list(EndpointHour.objects.order_by("hour").values_list("hour", "tokens"))
    assert [hour for hour, _ in sums] == [
        hour_of(now - timedelta(hours=hours)) for hours in (30, 3)
    ]

    sum_hours_again(hour_of(now - timedelta(hours=31)), now)
    assert not EndpointHour.objects.filter(hour__gte=now - timedelta(hours=31)).exists()
    roll_up_hours()
    assert list(EndpointHour.objects.order_by("hour").values_list("hour", "tokens")) == sums


def test_figures_are_cached_for_a_minute(
    inference: APIClient, tenant: Tenant, falcon: ModelEndpoint
) -> None:
    assert _measured(inference)["latency_last_30m"] is None
    spend(tenant, falcon)
    with CaptureQueriesContext(connection) as captured:
        assert _measured(inference)["latency_last_30m"] is None
    assert [query for query in captured if "inference_generation" in query["sql"]] == []
