"""The console's page of excesses, and the pages that point to it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.test import Client
from django.urls import reverse

from billing.models import Account, Excess, Transfer
from billing.verification import find_differences
from config.audit.entries import AuditEntry
from tests.support import factories
from tests.support.console import SUBMIT, listing, messages_of, page
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import press, sign_in_with


@pytest.fixture
def excess(tenant: Tenant) -> Excess:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    generation = factories.make_generation(tenant, model_endpoint=endpoint)
    return factories.make_excess(
        tenant, 9_000_000_000, reference=generation.pk, endpoint_id=endpoint.pk
    )


def text_of(client: Client, url: str) -> str:
    return " ".join(client.get(url).content.decode().split())


def test_pages_show_the_claim_and_what_was_allowed(operator: Client, excess: Excess) -> None:
    with snapshots.unchanged():
        for url in (listing(Excess), page(excess)):
            text = text_of(operator, url)
            for shown in ("$9", "1 + 600,000", "1 + 16", "under review"):
                assert shown in text
        generation = reverse("admin:inference_generation_change", args=[excess.reference])
        assert generation in text_of(operator, page(excess))
        assert "1 + 600,000 claimed" in text_of(operator, generation)


def test_an_endpoint_counts_its_claims_under_review(
    operator: Client, tenant: Tenant, excess: Excess
) -> None:
    factories.make_excess(tenant, reference="gen-2", endpoint_id=excess.endpoint_id)
    link = f"{listing(Excess)}?endpoint_id__exact={excess.endpoint_id}"
    shown = f'href="{link}&amp;status__exact=under_review">2</a>'
    endpoints = reverse("admin:catalog_modelendpoint_changelist")
    detail = reverse("admin:catalog_modelendpoint_change", args=[excess.endpoint_id])
    for url in (endpoints, f"{endpoints}?reviews=yes", detail):
        assert shown in text_of(operator, url)
    assert operator.get(link).context["cl"].result_count == 2
    Excess.objects.all()[0].write_off(by="ann", note="")
    Excess.objects.under_review()[0].write_off(by="ann", note="")
    assert operator.get(f"{endpoints}?reviews=yes").context["cl"].result_count == 0


def test_the_list_shows_the_claims_of_one_tenant_and_endpoint_by_their_amount(
    operator: Client, tenant: Tenant, excess: Excess
) -> None:
    other = factories.make_tenant("Other")
    free = factories.make_excess(tenant, 0, "gen-2", endpoint_id=excess.endpoint_id)
    factories.make_excess(tenant, 0, "gen-3")
    factories.make_excess(other, 0, "gen-4", endpoint_id=excess.endpoint_id)
    where = {
        "organization__id__exact": tenant.organization.pk,
        "endpoint_id__exact": excess.endpoint_id,
    }
    for amount, expected in (("some", excess), ("none", free)):
        shown = operator.get(listing(Excess), {**where, "amount": amount}).context["cl"]
        assert [row.pk for row in shown.result_list] == [expected.pk]


@pytest.mark.parametrize(
    ("verb", "status", "kind", "left"),
    [("charge", "charged", "excess", 991), ("write_off", "written_off", "write_off", 1_000)],
)
def test_an_operator_decides_once_in_a_dialog(
    operator: Client, tenant: Tenant, excess: Excess, verb: str, status: str, kind: str, left: int
) -> None:
    with snapshots.unchanged():
        assert operator.get(page(excess, verb)).status_code == 200

    operator.post(page(excess, verb), {**SUBMIT, "note": "the upstream lies"})
    operator.post(page(excess, verb), {**SUBMIT, "note": "again"})

    excess.refresh_from_db()
    assert (excess.status, excess.note) == (status, "the upstream lies")
    assert excess.decided_by == "operator operator"
    [transfer] = Transfer.objects.filter(reference=excess.reference)
    assert (transfer.kind, transfer.posted_nano, transfer.note) == (
        kind, 9_000_000_000, "the upstream lies",
    )  # fmt: skip
    account = Account.objects.get(organization=tenant.organization, kind="credits")
    assert account.available == left * 10**9
    [entry] = AuditEntry.objects.filter(kind="billing.excess")
    assert (entry.actor, entry.before["status"], entry.after["status"]) == (  # type: ignore[index]
        "operator operator", "under_review", status,
    )  # fmt: skip
    assert find_differences() == []


def test_a_charge_beyond_what_is_available_changes_nothing(
    operator: Client, tenant: Tenant
) -> None:
    dear = factories.make_excess(tenant, 1_001 * 10**9)
    before = snapshots.everything()
    [message] = messages_of(press(operator, dear, "charge", note="x"))
    assert message.startswith("The organization has less available than the excess.")
    after = snapshots.everything()
    assert after == before or set(after) == set(before)
    assert Excess.objects.get().status == "under_review"
    assert not Transfer.objects.filter(kind="excess").exists()


def test_selected_excesses_are_decided_row_by_row(operator: Client, tenant: Tenant) -> None:
    rows = [factories.make_excess(tenant, nano, f"gen-{nano}") for nano in (5, 0, 7)]
    form: dict[str, Any] = {
        "action": "charge_selected",
        ACTION_CHECKBOX_NAME: [str(row.pk) for row in rows],
        "confirmed": "yes",
    }
    operator.post(listing(Excess), form)
    # A claim that costs nothing cannot be charged; the others are.
    found = dict(Excess.objects.values_list("amount_nano", "status"))
    assert found == {5: "charged", 0: "under_review", 7: "charged"}
    operator.post(listing(Excess), {**form, "action": "write_off_selected"})
    assert Excess.objects.under_review().count() == 0
    assert find_differences() == []


def test_who_may_only_view_decides_nothing(viewer: Client, excess: Excess) -> None:
    with snapshots.unchanged():
        for verb in ("charge", "write_off"):
            assert viewer.post(page(excess, verb), {**SUBMIT, "note": "x"}).status_code == 403


def test_finance_decides(db: None, excess: Excess) -> None:
    client = sign_in_with("fin", "view_excess", "change_excess")
    client.post(page(excess, "write_off"), {**SUBMIT, "note": "x"})
    excess.refresh_from_db()
    assert (excess.status, excess.decided_by) == ("written_off", "operator fin")
