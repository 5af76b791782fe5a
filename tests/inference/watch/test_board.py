"""The health of providers and endpoints, and errors by provider and type."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog.models import CredentialRefusal, ModelEndpoint
from config.api.errors import (
    ContentRefused,
    ContextTooShort,
    PayloadTooLarge,
    UpstreamRefused,
)
from config.apps import Role
from config.clocks.clock import clock
from endpoints.models import PrivateEndpoint
from inference.models import EndpointHealth, Generation, HourlyFailure
from inference.reports.hours import HOUR, hour_of, roll_up_hours, sum_hours_again
from inference.reports.usage.sums import PERIODS
from inference.routing.health import BUCKET_SECONDS, subject_of
from inference.watch import attempts, board, errors
from inference.watch.board import Level, Row, build_board
from inference.watch.errors import build_report
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import sign_in

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def public(db: None) -> ModelEndpoint:
    return factories.make_endpoint(factories.make_model(), factories.make_provider())


def attempt(endpoint: Any, error_type: str | None = None, **fields: Any) -> dict[str, Any]:
    """Returns an attempt as the gateway stores it."""
    record = {
        "provider": endpoint.provider.name, "endpoint_id": str(endpoint.pk), "is_byok": False,
        "latency_ms": 10, "status": 200,
    }  # fmt: skip
    if error_type is not None:
        record |= {"status": 502, "error_type": error_type}
    return record | fields


def make(tenant: Tenant, endpoint: Any, *tried: dict[str, Any], **fields: Any) -> Generation:
    is_private = isinstance(endpoint, PrivateEndpoint)
    served = {"private_endpoint" if is_private else "model_endpoint": endpoint}
    return factories.make_generation(
        tenant,
        provider_name=endpoint.provider.name,
        attempts=list(tried) or [attempt(endpoint)],
        **served,
        **fields,
    )


def fail(tenant: Tenant, endpoint: Any, error_type: str, **fields: Any) -> Generation:
    return make(
        tenant, endpoint, attempt(endpoint, error_type), status="failed", error_type=error_type,
        **fields,
    )  # fmt: skip


def store_health(subject: Any, *, failures: int = 0, retry_in: float = 0.0) -> None:
    """Stores what a worker has seen, in the table by which workers exchange it."""
    number = int(clock.time() // BUCKET_SECONDS)
    EndpointHealth.objects.create(
        endpoint_id=subject, slot=number % 12, bucket=number, successes=0, failures=failures,
        latencies=[], speeds=[], retry_at=clock.time() + retry_in if retry_in else 0.0,
    )  # fmt: skip


def rows(found: Any) -> dict[str, Row]:
    return {row.name: row for row in found}


def test_attempts_of_the_last_hour_are_counted(tenant: Tenant, public: ModelEndpoint) -> None:
    for number in range(1, 21):
        make(tenant, public, latency_ms=number * 10)
    fail(tenant, public, "provider_unavailable", created_at=timezone.now() - 30 * HOUR / 60)
    last = fail(tenant, public, "upstream_timeout")
    fail(tenant, public, "provider_unavailable", created_at=timezone.now() - 2 * HOUR)
    found = build_board()

    [provider], [endpoint] = found.providers, found.endpoints
    for row in (provider, endpoint):
        traffic = row.traffic
        assert (traffic.attempts, traffic.failed, traffic.p50, traffic.p95) == (22, 2, 100, 190)
        assert (traffic.last_error, traffic.failed_at) == ("upstream_timeout", last.created_at)
        assert row.level is Level.POOR
    assert provider.subject == public.provider
    assert endpoint.subject == public
    assert not found.is_cut


def test_a_fallback_shows_the_endpoint_that_failed(tenant: Tenant, public: ModelEndpoint) -> None:
    other = factories.make_endpoint(public.model, factories.make_provider())
    for _ in range(5):
        make(tenant, other, attempt(public, "provider_unavailable"), attempt(other))
    endpoints = {row.subject.pk: row for row in build_board().endpoints}

    assert endpoints[public.pk].level is Level.BAD
    assert endpoints[public.pk].traffic.failed == 5
    assert endpoints[other.pk].level is Level.GOOD


def test_what_a_caller_caused_is_no_failure(tenant: Tenant, public: ModelEndpoint) -> None:
    for kind in (UpstreamRefused, ContextTooShort, ContentRefused, PayloadTooLarge):
        fail(tenant, public, kind.error_type)
    for _ in range(9):
        fail(tenant, public, "rate_limit_exceeded")
        refused = attempt(public, "provider_unavailable", is_byok=True, status=401)
        make(tenant, public, refused, attempt(public))
    [endpoint] = build_board().endpoints

    assert endpoint.traffic.attempts == 31
    assert (endpoint.traffic.failed, endpoint.traffic.limited) == (0, 9)
    assert endpoint.level is Level.GOOD


def test_a_server_that_a_tenants_credential_names_fails_alone(tenant: Tenant) -> None:
    cloud = factories.make_provider(dialect="azure", base_url=None)
    endpoint = factories.make_endpoint(factories.make_model(), cloud)
    failed = attempt(endpoint, "provider_unavailable", is_byok=True)
    for _ in range(9):
        make(tenant, endpoint, failed, status="failed", latency_ms=9_000, is_byok=True)
    assert [*build_board().endpoints, *build_board().providers] == []
    make(tenant, endpoint, latency_ms=20)
    [shown], [provider] = build_board().endpoints, build_board().providers
    for row in (shown, provider):
        assert (row.traffic.attempts, row.traffic.failed, row.traffic.p95) == (1, 0, 20)


def test_an_answer_that_broke_off_failed(tenant: Tenant, public: ModelEndpoint) -> None:
    """Its attempt began well, so that only the generation has the error."""
    for _ in range(5):
        begun = attempt(public, kind="reset")
        make(tenant, public, begun, status="failed", error_type="upstream_error")
    [endpoint] = build_board().endpoints

    assert (endpoint.traffic.failed, endpoint.traffic.last_error) == (5, "upstream_error")


def test_pauses_of_routing_are_shown(tenant: Tenant, public: ModelEndpoint) -> None:
    make(tenant, public)
    [endpoint] = build_board().endpoints
    assert endpoint.states == []
    store_health(public.pk, failures=9)
    [endpoint] = build_board().endpoints
    assert endpoint.states == [(Level.BAD, "not called: it fails too often")]

    EndpointHealth.objects.all().delete()
    store_health(public.pk, retry_in=30)
    [endpoint] = build_board().endpoints
    assert endpoint.states == [(Level.POOR, "paused: its rate limit is reached")]


def test_a_private_endpoint_shows_the_health_of_its_credentials(tenant: Tenant) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    endpoint = factories.make_draft(tenant, model, provider)
    credential = factories.make_credential(tenant, provider)
    make(tenant, endpoint)
    store_health(subject_of(endpoint.pk, credential.pk), failures=9)
    [row] = build_board().endpoints

    assert row.owner == "Acme"
    assert (Level.BAD, "not called: it fails too often") in row.states


def test_drifted_endpoints_and_refused_credentials_are_shown_without_traffic(
    tenant: Tenant,
) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    endpoint = factories.make_draft(tenant, model, provider)
    factories.make_draft(tenant, model, provider, upstream_model_id="quiet")
    PrivateEndpoint.objects.filter(pk=endpoint.pk).update(drifted_at=timezone.now())
    now = timezone.now()
    CredentialRefusal.objects.create(provider=provider, reason="401", since=now, seen_at=now)
    found = build_board()

    [row] = found.endpoints
    assert row.level is Level.BAD
    assert row.states[0][1].startswith("drifted since ")
    [refusing] = found.providers
    assert refusing.level is Level.BAD
    assert refusing.states[0][1].startswith("refuses the operator's credential since ")


def test_the_worst_comes_first(tenant: Tenant) -> None:
    names = ("good", "poor", "bad")
    for number, name in enumerate(names):
        endpoint = factories.make_endpoint(
            factories.make_model(f"acme/{name}"), factories.make_provider(name)
        )
        for _ in range(10):
            make(tenant, endpoint)
        for _ in range(number * 2 if number < 2 else 10):
            fail(tenant, endpoint, "provider_unavailable")

    assert [row.name for row in build_board().endpoints] == ["acme/bad", "acme/poor", "acme/good"]


def test_the_board_reads_few_rows_and_says_so(
    tenant: Tenant, public: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "MOST_ROWS", 3)
    now = timezone.now()
    made = [make(tenant, public, created_at=now - timedelta(minutes=age)) for age in range(5)]
    with CaptureQueriesContext(connection) as queries:
        found = build_board()

    assert found.is_cut
    assert found.begin == made[2].created_at
    assert found.endpoints[0].traffic.attempts == 3
    assert len(queries) <= 6


def test_the_page_links_to_what_it_counts(operator: Client, tenant: Tenant) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    endpoint = factories.make_draft(tenant, model, provider)
    public = factories.make_endpoint(model, provider)
    for _ in range(6):
        fail(tenant, endpoint, "provider_unavailable")
        make(tenant, public)
    page = operator.get("/admin/inference/generation/health/")

    assert page.status_code == 200
    shown = [*page.context["providers"], *page.context["endpoints"]]
    assert [each["row"].traffic.attempts for each in shown] == [12, 6, 6]
    for each in shown:
        listed = operator.get(each["generations"])
        assert listed.status_code == 200
        assert int(listed.context["cl"].count_text) == each["row"].traffic.attempts
        assert operator.get(each["url"]).context["original"] == each["row"].subject
    assert shown[1]["word"] == "bad"
    dialog, title = shown[1]["action"]
    assert title == "Validate"
    assert operator.get(dialog).status_code == 200
    assert f'hx-get="{dialog}"' in page.text


def test_who_may_not_act_sees_no_action(tenant: Tenant) -> None:
    endpoint = factories.make_draft(tenant, factories.make_model(), factories.make_provider())
    fail(tenant, endpoint, "provider_unavailable")
    client = sign_in("reader", Role.READ_ONLY)

    [each] = client.get("/admin/inference/generation/health/").context["endpoints"]
    assert each["action"] is None


@pytest.mark.parametrize("page", ["health", "errors", "live", "live/rows"])
def test_an_operator_without_the_permission_is_refused(db: None, page: str) -> None:
    client = Client()
    client.force_login(User.objects.create_user("nobody", is_staff=True))

    assert client.get(f"/admin/inference/generation/{page}/").status_code == 403


def counted(report: errors.ErrorReport) -> list[tuple[str, str, int, int]]:
    return [(row.provider, row.error_type, row.attempts, row.requests) for row in report.rows]


def make_errors(tenant: Tenant, public: ModelEndpoint) -> list[tuple[str, str, int, int]]:
    """Makes errors of many hours; returns what a report of all of them counts."""
    name = public.provider.name
    other = factories.make_endpoint(public.model, factories.make_provider("other"))
    now = timezone.now()
    for hours in (0, 1, 5, 9):
        at = {"created_at": now - hours * HOUR}
        fail(tenant, public, "provider_unavailable", **at)
        make(tenant, other, attempt(public, "provider_unavailable"), attempt(other), **at)
        make(tenant, public, **at)
    fail(tenant, other, "rate_limit_exceeded", created_at=now - 5 * HOUR)
    never = make(tenant, other, status="failed", created_at=now - 5 * HOUR, error_type="timeout")
    Generation.objects.filter(pk=never.pk).update(attempts=[])
    return [
        (name, "provider_unavailable", 8, 4),
        (other.provider.name, "rate_limit_exceeded", 1, 1),
        (other.provider.name, "timeout", 0, 1),
    ]


def test_errors_are_the_same_from_summed_hours(tenant: Tenant, public: ModelEndpoint) -> None:
    expected = make_errors(tenant, public)
    before = build_report(PERIODS["24h"])
    assert counted(before) == expected

    assert roll_up_hours() > 0
    after = build_report(PERIODS["24h"])
    assert HourlyFailure.objects.exists()
    assert counted(after) == expected
    assert after.chart == before.chart
    assert [row.last_at for row in after.rows] == [row.last_at for row in before.rows]
    sum_hours_again(hour_of(timezone.now() - 9 * HOUR), hour_of(timezone.now()))
    assert counted(build_report(PERIODS["7d"])) == expected


def test_errors_say_which_requests_they_do_not_count(
    tenant: Tenant, public: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "MOST_ROWS", 2)
    now = timezone.now()
    made = [
        fail(tenant, public, "provider_unavailable", created_at=now - timedelta(minutes=age))
        for age in range(4)
    ]
    report = build_report(PERIODS["24h"])

    assert report.cut_at == made[1].created_at
    assert [row.attempts for row in report.rows] == [2]
    assert attempts.MOST_ROWS == 20_000


@pytest.mark.parametrize("period", PERIODS)
def test_the_page_of_errors_links_to_the_requests(
    operator: Client, tenant: Tenant, public: ModelEndpoint, period: str
) -> None:
    make_errors(tenant, public)
    page = operator.get("/admin/inference/generation/errors/", {"period": period})

    assert page.status_code == 200
    assert len(page.context["rows"]) == 3
    for row, _, url in page.context["rows"]:
        listed = operator.get(url)
        assert listed.status_code == 200
        assert int(listed.context["cl"].count_text) == row.requests


def test_pages_without_traffic_say_so(operator: Client) -> None:
    assert (
        "No request was sent to a provider"
        in operator.get("/admin/inference/generation/health/").text
    )
    assert "No errors in this period." in operator.get("/admin/inference/generation/errors/").text
