"""The admin pages of generations: search, list, cost and refund."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts.models import ApiKey
from billing import verification as audit
from billing.models import Transfer
from endusers.models import EndUser
from inference.models import Generation
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant

SUBMIT = {"_form_submitted": "True"}
LIST = "admin:inference_generation_changelist"


def url(generation: Generation, verb: str = "change") -> str:
    return reverse(f"admin:inference_generation_{verb}", args=[generation.pk])


def said(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def found(client: Client, **query: str) -> list[str]:
    rows = client.get(reverse(LIST), query).context["cl"].result_list
    return [row.pk for row in rows]


def test_a_generation_is_found_by_id_key_user_organization_or_time(
    operator: Client, tenant: Tenant
) -> None:
    other = factories.make_tenant("Globex")
    theirs = factories.make_generation(other)
    one = factories.make_generation(
        tenant,
        id="gen-1769868305-00000000000000000001",
        created_at=datetime(2026, 1, 31, 14, 5, 5, tzinfo=UTC),
        end_user="customer 1",
    )
    key = one.api_key
    known = EndUser.objects.register(organization_id=tenant.organization.pk, user="customer 1")

    for term in (
        one.pk, "gen-17698683", key.label, key.digest, str(key.pk), "customer 1", str(known.pk),
        str(tenant.organization.pk), "acme", "Acme", "2026-01-31", "2026-01-31 14",
        "2026-01-31 14:05", " 2026-01-31 14:05:05 ",
    ):  # fmt: skip
        assert (term, found(operator, q=term)) == (term, [one.pk])
    for term in ("gen-2", "2026-01-31 14:06", "2026-01-31 14:05:04", "customer", "0" * 64):
        assert (term, found(operator, q=term)) == (term, [])
    assert found(operator, since="hour") == [theirs.pk]
    assert found(operator, organization__id__exact=str(other.organization.pk)) == [theirs.pk]
    assert found(operator) == [theirs.pk, one.pk]


def test_a_day_far_away_finds_no_generation_of_another_one(
    operator: Client, tenant: Tenant
) -> None:
    """The seconds of that day begin with the digits of a day of this century."""
    second = 2_534_022_500
    made = factories.make_generation(
        tenant,
        id=f"gen-{second}-00000000000000000001",
        created_at=datetime.fromtimestamp(second, UTC),
    )
    for term in ("9999-12-31", "9999-12-31 23", "0001-01-01", "2000-01-01 00:00"):
        assert (term, found(operator, q=term)) == (term, [])
    assert found(operator, q=f"{made.created_at:%Y-%m-%d}") == [made.pk]


def test_generations_of_one_organization_are_listed_newest_first(
    operator: Client, tenant: Tenant
) -> None:
    made = [factories.make_generation(tenant).pk for _ in range(3)]
    in_order = list(
        Generation.objects.filter(pk__in=made)
        .order_by("-created_at", "-id")
        .values_list("pk", flat=True)
    )
    organization = str(tenant.organization.pk)

    assert found(operator, organization__id__exact=organization) == in_order
    assert found(operator, q=organization) == in_order


def test_the_page_itemizes_the_cost(operator: Client, tenant: Tenant) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    price = factories.make_price("0.000001", "0.000002", cache_read="0.0000001", request="0.001")
    endpoint = factories.make_endpoint(model, provider, price=price)
    nano = 600 * 1_000 + 400 * 100 + 50 * 2_000 + 1_000_000
    generation = factories.make_generation(
        tenant,
        model_endpoint=endpoint,
        prompt_tokens=1_000,
        cached_tokens=400,
        completion_tokens=50,
        reasoning_tokens=20,
        cost_nano=nano,
        upstream_cost_nano=nano,
        session_id="session-7",
        trace='{"trace_id":"trace-7"}',
        http_referer="https://app.example.com",
        region="europe",
        attempts=[
            {
                "provider": "Acme AI", "endpoint_id": str(endpoint.pk), "is_byok": True,
                "latency_ms": 12, "status": 429, "error_type": "rate_limit_exceeded",
            },
            {
                "provider": "Beta", "endpoint_id": str(endpoint.pk), "is_byok": False,
                "latency_ms": 345, "status": 200,
            },
        ],
    )  # fmt: skip
    with snapshots.unchanged():
        text = " ".join(operator.get(url(generation)).content.decode().split())

    for row in (
        ("Prompt", "600", "$0.000001", "$0.0006"),
        ("Prompt, read from cache", "400", "$0.0000001", "$0.00004"),
        ("Completion", "30", "$0.000002", "$0.00006"),
        ("Reasoning", "20", "$0.000002", "$0.00004"),
        ("Request", "1", "$0.001", "$0.001"),
        ("1", "Acme AI", "BYOK", "429", "rate_limit_exceeded", "12 ms"),
        ("2", "Beta", "credits", "200", "served", "345 ms"),
        ("usage", "posted", "$0.00174", "$0.00174", "", ""),
    ):
        assert cells(row) in text
    for shown in ("session-7", "trace-7", "https://app.example.com", "europe"):
        assert shown in text
    assert "Waived" not in text
    assert "Images" not in text


def cells(row: tuple[str, ...]) -> str:
    return " ".join(f"<td>{text}</td>" for text in row)


def test_the_page_names_the_credential_that_paid_and_the_requested_model(
    operator: Client, tenant: Tenant
) -> None:
    provider = factories.make_provider("acme-ai", name="Acme AI")
    kept, gone = (factories.make_credential(tenant, provider, f"0123456789-{n}abc") for n in "12")
    attempt = {
        "provider": "Acme AI", "endpoint_id": "e", "is_byok": True, "latency_ms": 5, "status": 503,
    }  # fmt: skip
    attempts = [
        {**attempt, "credential_id": str(gone.pk), "requested": "house-<best>"},
        {**attempt, "credential_id": str(kept.pk)},
        {**attempt, "credential_id": str(tenant.organization.pk)},
        attempt,
    ]
    generation = factories.make_generation(tenant, is_byok=True, attempts=attempts)
    gone.remove()

    with CaptureQueriesContext(connection) as captured:
        text = " ".join(operator.get(url(generation)).content.decode().split())

    assert "house-&lt;best&gt;" in text
    for number, credential in enumerate((gone, kept), 1):
        address = reverse("admin:accounts_byokcredential_change", args=[credential.pk])
        link = f'BYOK: <a class="text-link" href="{address}">{credential.label}</a>'
        assert cells((str(number), "Acme AI", link)) in text
    for number in (3, 4):
        assert cells((str(number), "Acme AI", "BYOK")) in text
    assert len(captured) <= 15


def test_the_uncharged_cost_of_a_failure_is_shown_as_waived(
    operator: Client, tenant: Tenant
) -> None:
    failed = factories.make_generation(
        tenant, status="failed", prompt_tokens=1_000, completion_tokens=0
    )

    text = operator.get(url(failed)).content.decode()

    assert "Waived" in text
    assert "-$0.001" in text
    assert "No credits moved." in text


def test_a_generation_is_refunded_once_in_a_dialog(operator: Client, tenant: Tenant) -> None:
    generation = factories.make_generation(tenant, cost_nano=1_500_000_000)
    with snapshots.unchanged():
        page = operator.get(url(generation))
        texts = ["Read input and output", "Delete input and output"]
        assert [action["title"] for action in page.context["actions_detail"]] == ["Refund", *texts]
        assert operator.get(url(generation, "refund")).status_code == 200

    form = {**SUBMIT, "note": "broken  answer"}
    response = operator.post(url(generation, "refund"), form, follow=True)

    assert said(response) == ["$1.5 refunded."]
    assert [action["title"] for action in response.context["actions_detail"]] == texts
    transfer = Transfer.objects.get(kind="refund")
    assert (transfer.posted_nano, transfer.actor, transfer.note, transfer.reference) == (
        1_500_000_000, "operator operator", "broken answer", generation.pk,
    )  # fmt: skip
    assert audit.find_differences() == []

    with snapshots.unchanged():
        again = operator.post(url(generation, "refund"), form, follow=True)
    assert said(again) == [
        "There is nothing to refund: the generation cost no credits, or it was already refunded."
    ]


@pytest.mark.parametrize("note", ["", " ", "a\x00b", "x" * 1_001])
def test_a_refund_without_a_reason_is_refused(operator: Client, tenant: Tenant, note: str) -> None:
    generation = factories.make_generation(tenant, cost_nano=1_500_000_000)
    with snapshots.unchanged():
        operator.post(url(generation, "refund"), {**SUBMIT, "note": note})


def test_a_viewer_cannot_refund(viewer: Client, tenant: Tenant) -> None:
    generation = factories.make_generation(tenant, cost_nano=1_500_000_000)
    with snapshots.unchanged():
        assert viewer.get(url(generation)).context["actions_detail"] == []
        response = viewer.post(url(generation, "refund"), {**SUBMIT, "note": "x"})
    assert response.status_code == 403


def test_the_list_and_the_page_make_a_fixed_number_of_queries(
    operator: Client, tenant: Tenant
) -> None:
    key = ApiKey.objects.get(name="inference")
    generation = factories.make_generation(tenant, cost_nano=1_000)
    counts = []
    for path, query in (
        (reverse(LIST), {}),
        (reverse(LIST), {"q": key.label}),
        (reverse(LIST), {"q": "acme"}),
        (url(generation), {}),
    ):
        operator.get(path, query)
        with CaptureQueriesContext(connection) as queries:
            operator.get(path, query)
        counts.append(len(queries))
    assert counts == [9, 10, 10, 7]


def test_an_empty_list_explains_what_to_do(operator: Client) -> None:
    assert (
        "Send a request to /api/v1/chat/completions with an API key."
        in operator.get(reverse(LIST)).content.decode()
    )
    narrowed = operator.get(reverse(LIST), {"q": "gen-0"}).content.decode()
    assert "No rows match" in narrowed
    assert "the label, hash or ID of a key" in narrowed
