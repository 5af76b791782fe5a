"""The pages of an organization (money, grants) and of a key (policy, budgets, preview)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.models import ApiKey, BudgetInterval
from billing import grants, reviews
from billing import verification as audit
from billing.models import Account, GrantRequest, Transfer
from config.api.errors import InvalidTransition
from config.credentials import Secret
from tests.support import factories
from tests.support.console import SUBMIT, listing, messages_of, page
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail
from tests.support.operators.four_eyes import press, sign_in_with

SENT_BEFORE = "This grant was sent before. Nothing was changed."


def url(tenant: Tenant, verb: str = "change") -> str:
    return page(tenant.organization, verb)


def key_url(name: str = "inference") -> str:
    return page(ApiKey.objects.get(name=name))


def preview(operator: Client, **query: str) -> Any:
    """Returns the preview on the page of the inference key."""
    return operator.get(key_url(), query).context["preview"]


def balance(tenant: Tenant) -> int:
    return Account.objects.get(organization=tenant.organization, kind="credits").balance


def test_the_page_shows_the_balance_and_spend_of_an_organization(
    operator: Client, tenant: Tenant
) -> None:
    factories.make_generation(tenant, cost_nano=1_500_000_000)

    cards = operator.get(url(tenant)).context["overview"]["cards"]

    assert [(card.title, card.value) for card in cards[:4]] == [
        ("Balance", "$998.5"),
        ("Available", "$998.5"),
        ("Held", "$0"),
        ("Spent", "$1.5"),
    ]


def test_spend_excludes_written_off_amounts(operator: Client) -> None:
    poor = factories.make_tenant("Poor", credits_usd=1)
    generation = factories.make_generation(poor, cost_nano=1_000_000_000)
    excess = factories.make_excess(poor, 250_000_000, reference=generation.pk)
    reviews.write_off(excess, by="ann")

    cards = operator.get(url(poor)).context["overview"]["cards"]

    assert (cards[0].title, cards[0].value) == ("Balance", "$0")
    assert (cards[3].title, cards[3].value) == ("Spent", "$1")
    assert cards[3].note == "$0.25 more was written off"


def test_the_page_hides_money_without_permission(tenant: Tenant) -> None:
    client = sign_in_with("support", "view_organization", "view_apikey")

    assert client.get(url(tenant)).context["overview"]["cards"] == []


def test_credits_are_granted_in_a_dialog(operator: Client, tenant: Tenant) -> None:
    with snapshots.unchanged():
        assert operator.get(url(tenant, "grant")).status_code == 200

    form = {"amount": "0.000000001", "note": " for the\npilot "}
    response = press(operator, tenant.organization, "grant", **form)

    assert messages_of(response) == ["$0.000000001 granted to Acme."]
    assert balance(tenant) == 1_000 * 10**9 + 1
    transfer = Transfer.objects.latest("id")
    assert (transfer.kind, transfer.posted_nano, transfer.actor, transfer.note) == (
        "grant", 1, "operator operator", "for the pilot",
    )  # fmt: skip
    assert audit.find_differences() == []


def dialog_of(operator: Client, tenant: Tenant) -> dict[str, str]:
    """Returns what an open dialog of a grant sends, with an amount."""
    form = operator.get(url(tenant, "grant")).context["form"]
    return {"amount": "1", "token": str(form["token"].value())}


def test_a_dialog_that_is_sent_twice_grants_once(operator: Client, tenant: Tenant) -> None:
    form = dialog_of(operator, tenant)
    said = [messages_of(press(operator, tenant.organization, "grant", **form)) for _ in range(2)]
    assert said == [["$1 granted to Acme."], [SENT_BEFORE]]
    assert balance(tenant) == 1_001 * 10**9
    press(operator, tenant.organization, "grant", **dialog_of(operator, tenant))
    assert balance(tenant) == 1_002 * 10**9
    assert audit.find_differences() == []


def test_a_dialog_that_is_sent_twice_asks_for_one_approval(
    settings: Any, operator: Client, tenant: Tenant
) -> None:
    settings.GRANT_APPROVAL_NANO = 1
    form = dialog_of(operator, tenant)
    said = [messages_of(press(operator, tenant.organization, "grant", **form)) for _ in range(2)]
    assert said[1] == [SENT_BEFORE]
    assert GrantRequest.objects.get().amount_nano == 10**9


@pytest.mark.parametrize(
    "form",
    [
        {},
        *({"amount": text} for text in ("0", "-1", "1e400", "nan", "0.0000000001", "1000000001")),
        {"amount": "1", "note": "a\x00b"},
        {"amount": "1", "note": "x" * 1_001},
    ],
)
def test_an_invalid_grant_changes_nothing(
    operator: Client, tenant: Tenant, form: dict[str, str]
) -> None:
    with snapshots.unchanged():
        assert operator.post(url(tenant, "grant"), {**SUBMIT, **form}).status_code == 200


def test_a_viewer_cannot_grant_credits(viewer: Client, tenant: Tenant) -> None:
    with snapshots.unchanged():
        assert viewer.post(url(tenant, "grant"), {**SUBMIT, "amount": "1"}).status_code == 403
    assert viewer.get(url(tenant)).status_code == 200


def test_a_key_page_shows_policy_and_budgets(operator: Client, tenant: Tenant) -> None:
    tenant.organization.edit(requires_zdr=True)
    key = ApiKey.objects.get(name="inference")
    guardrail = make_guardrail(
        tenant.workspace, allowed_providers=["acme"], limit_nano=5 * 10**9, reset_interval="daily"
    )
    guardrail.assign_keys([key], by="test")
    tenant.workspace.set_budget(BudgetInterval.MONTHLY, limit_nano=50 * 10**9)
    factories.make_generation(tenant, cost_nano=1_500_000_000)
    with snapshots.unchanged():
        found = preview(operator)

        assert "acme" in found["policy"]
        assert "anthropic, google, openai, other, xai" in found["policy"]
        assert found["budgets"].index("api key") < found["budgets"].index("workspace")
        for shown in ("$1.5", "$5", "$50"):
            assert f">{shown}<" in found["budgets"]
    assert "candidates" not in found


@pytest.mark.django_db(transaction=True)
def test_a_key_page_previews_the_candidates_of_a_request(operator: Client, tenant: Tenant) -> None:
    model = factories.make_model("acme/falcon")
    alpha, beta = factories.make_provider("alpha"), factories.make_provider("beta")
    for provider in (alpha, beta):
        factories.make_endpoint(model, provider)
    alpha.set_credential(Secret("alpha-credential-0123456789"))
    with snapshots.unchanged():
        found = preview(operator, model="acme/falcon")

    assert "Alpha" in found["candidates"]
    assert "Beta" in found["excluded"]
    assert "no_credential" in found["excluded"]
    assert found["budget"] == ""


@pytest.mark.django_db(transaction=True)
def test_a_key_page_shows_why_a_request_would_be_refused(operator: Client, tenant: Tenant) -> None:
    assert "no/such" in preview(operator, model="no/such")["refusal"]


@pytest.mark.parametrize(
    "operation",
    ["chat/completions", "messages", "responses", "completions", "embeddings", "rerank", "images",
     "audio/speech", "audio/transcriptions"],
)  # fmt: skip
def test_a_key_page_previews_every_operation(
    operator: Client, tenant: Tenant, operation: str
) -> None:
    outputs = ["text", "embeddings", "rerank", "image", "speech", "transcription"]
    provider = factories.make_provider("acme")
    model = factories.make_model("acme/falcon", output_modalities=outputs)
    factories.make_endpoint(model, provider)
    found = preview(operator, model="falcon", operation=operation)
    assert "refusal" not in found
    assert found["meaning"] == "'falcon' stands for acme/falcon (another spelling)."
    # Nobody has a credential for the provider; nothing else is amiss.
    assert "no_credential" in found["excluded"]
    assert "operation_not_supported" not in found["excluded"]


def test_a_management_key_has_no_preview(operator: Client, tenant: Tenant) -> None:
    assert "preview" not in operator.get(key_url("management")).context


def test_pages_make_as_many_queries_for_10_keys_as_for_1(operator: Client, tenant: Tenant) -> None:
    counts = []
    for added in (1, 9):
        for number in range(added):
            ApiKey.objects.create_key(workspace=tenant.workspace, name=f"{added}-{number}")
        for path in (url(tenant), key_url()):
            operator.get(path)
            with CaptureQueriesContext(connection) as queries:
                operator.get(path)
            counts.append(len(queries))

    assert counts[:2] == counts[2:]


@pytest.fixture
def asked(settings: Any, operator: Client, tenant: Tenant) -> GrantRequest:
    """Returns an operator's request for a grant above the approval limit."""
    settings.GRANT_APPROVAL_NANO = 100 * 10**9
    form = {"amount": "100.000000001", "note": "a pilot"}
    response = press(operator, tenant.organization, "grant", **form)
    assert messages_of(response) == [
        "$100.000000001 for Acme waits for the approval of another operator."
    ]
    return GrantRequest.objects.get()


@pytest.fixture
def second(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("second"))
    return client


def test_a_grant_up_to_the_limit_needs_no_approval(
    settings: Any, operator: Client, tenant: Tenant
) -> None:
    settings.GRANT_APPROVAL_NANO = 100 * 10**9
    operator.post(url(tenant, "grant"), {**SUBMIT, "amount": "100"})
    assert balance(tenant) == 1_100 * 10**9
    assert not GrantRequest.objects.exists()


def test_a_grant_above_the_limit_is_approved_by_another_operator(
    operator: Client, second: Client, tenant: Tenant, asked: GrantRequest
) -> None:
    assert balance(tenant) == 1_000 * 10**9
    with snapshots.unchanged():
        own = press(operator, asked, "approve")
        assert messages_of(own) == [
            "Another operator than the one who asked for the grant must approve it."
        ]
        assert second.get(page(asked, "approve")).status_code == 200

    response = press(second, asked, "approve")

    assert messages_of(response) == ["$100.000000001 granted to Acme."]
    assert response.context["actions_detail"] == []
    assert balance(tenant) == 1_100 * 10**9 + 1
    asked.refresh_from_db()
    assert (asked.status, asked.requested_by, asked.decided_by) == (
        "approved", "operator operator", "operator second",
    )  # fmt: skip
    transfer = Transfer.objects.latest("id")
    assert (transfer.actor, transfer.note) == (
        "operator second", "Requested by operator operator. a pilot",
    )  # fmt: skip
    assert audit.find_differences() == []

    with snapshots.unchanged():
        for verb in ("approve", "decline"):
            again = press(second, asked, verb)
            assert messages_of(again) == [
                "The grant request is approved; this needs it to be requested."
            ]


def test_the_operator_who_requested_a_grant_may_decline_it(
    operator: Client, tenant: Tenant, asked: GrantRequest
) -> None:
    response = press(operator, asked, "decline")
    assert messages_of(response) == ["The grant is declined."]
    asked.refresh_from_db()
    assert (asked.status, asked.decided_by) == ("declined", "operator operator")
    assert balance(tenant) == 1_000 * 10**9


@pytest.mark.parametrize("verb", ["approve", "decline"])
def test_a_viewer_cannot_approve_or_decline_a_grant(
    viewer: Client, asked: GrantRequest, verb: str
) -> None:
    with snapshots.unchanged():
        assert viewer.post(page(asked, verb), SUBMIT).status_code == 403
    assert viewer.get(page(asked)).context["actions_detail"] == []


@pytest.mark.django_db(transaction=True)
def test_concurrent_approvals_grant_once(settings: Any, together: Callable[..., list[Any]]) -> None:
    tenant = factories.make_tenant()
    settings.GRANT_APPROVAL_NANO = 1
    for name in ("bob", "cid"):
        User.objects.create_superuser(name)
    grants.grant_or_request(tenant.organization.pk, 5, by="operator ann", note="")

    def approve(by: str) -> str:
        try:
            grants.approve(GrantRequest.objects.get(), by=by)
        except InvalidTransition:
            return "refused"
        return "granted"

    done = together(partial(approve, "operator bob"), partial(approve, "operator cid"))

    assert sorted(done) == ["granted", "refused"]
    assert balance(tenant) == 1_000 * 10**9 + 5


def test_the_list_of_grants_names_the_approval_setting(operator: Client) -> None:
    assert "GRANT_APPROVAL_LIMIT" in operator.get(listing(GrantRequest)).content.decode()
