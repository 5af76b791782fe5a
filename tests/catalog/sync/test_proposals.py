"""Tests how proposals are filed, decided, and refused when the catalogue has moved."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from catalog.models import CatalogProposal, LanguageModel, ModelEndpoint, Provider
from catalog.sync import proposals
from catalog.sync.proposals import CatalogMoved
from catalog.sync.run import sync_list
from config.api.errors import InvalidTransition
from config.audit.entries import AuditEntry
from config.events.outbox import Event
from tests.support import factories
from tests.support.catalogue import make_proposal
from tests.support.console import SUBMIT, listing, messages_of, page
from tests.support.database import snapshots
from tests.support.database.locks import beside, waiting
from tests.support.machine.waiting import wait_until

DAY = date(2026, 11, 12)
_LOCKS = re.compile(" FOR (?:NO KEY )?UPDATE")


@pytest.fixture
def endpoint(db: None) -> ModelEndpoint:
    return make_endpoint()


def make_endpoint() -> ModelEndpoint:
    return factories.make_endpoint(
        factories.make_model("openai/gpt-x"),
        factories.make_provider("openai", name="OpenAI"),
        upstream_model_id="gpt-x",
        source="litellm",
        as_of=date(2026, 11, 1),
        zdr=True,
    )


def sync(**prices: float) -> None:
    """Syncs with a list of models of OpenAI, with these prices of a prompt token."""
    document = {
        name.replace("_", "-"): {
            "litellm_provider": "openai",
            "mode": "chat",
            "input_cost_per_token": price,
            "output_cost_per_token": 0.000002,
        }
        for name, price in prices.items()
    }
    data = msgspec.json.encode(document)
    sync_list("litellm", data, as_of=DAY, by="test", action="test", applies=True)


def statuses() -> list[tuple[str, str]]:
    rows = CatalogProposal.objects.order_by("created_at")
    return list(rows.values_list("reason", "status"))


def test_an_equal_proposal_stays_and_another_replaces_it(endpoint: ModelEndpoint) -> None:
    sync(gpt_x=0.000002)
    [first] = CatalogProposal.objects.all()
    sync(gpt_x=0.000002)
    assert list(CatalogProposal.objects.all()) == [first]
    assert [event.data for event in Event.objects.filter(kind="catalog.proposed")] == [
        {
            "source": "litellm",
            "count": 1,
            "risky": int(bool(first.risk)),
            "subjects": [first.subject],
        }
    ]
    sync(gpt_x=0.000003)
    assert statuses() == [("rise", "withdrawn"), ("rise", "waiting")]
    sync(gpt_x=0.000001)
    assert statuses() == [("rise", "withdrawn"), ("rise", "withdrawn")]


def test_a_refused_change_is_not_proposed_again(endpoint: ModelEndpoint) -> None:
    sync(gpt_x=0.000002)
    CatalogProposal.objects.get().refuse(by="operator ann")
    sync(gpt_x=0.000002)
    assert statuses() == [("rise", "refused")]
    sync(gpt_x=0.0000021)
    assert statuses() == [("rise", "refused"), ("rise", "waiting")]


def test_an_approval_applies_exactly_what_it_shows(endpoint: ModelEndpoint) -> None:
    sync(gpt_x=0.000002)
    proposal = CatalogProposal.objects.get()
    assert proposal.changes == [
        {"column": "pricing.prompt", "old": "0.000001", "new": "0.000002", "percent": "100"}
    ]
    proposals.approve(proposal, by="operator ann")
    found = ModelEndpoint.objects.get()
    assert (found.price.prompt, found.price.completion) == (Decimal("2e-6"), Decimal("2e-6"))
    assert (found.zdr, found.source, found.as_of) == (True, "litellm", DAY)
    assert (proposal.status, proposal.decided_by) == ("approved", "operator ann")
    sync(gpt_x=0.000002)
    assert statuses() == [("rise", "approved")]


def test_an_approved_end_delists_the_endpoint_and_no_sync_brings_it_back(
    endpoint: ModelEndpoint,
) -> None:
    sync(other=0.000001)
    proposals.approve(CatalogProposal.objects.get(), by="operator ann")
    assert not ModelEndpoint.objects.get(pk=endpoint.pk).is_listed
    sync(gpt_x=0.000001, other=0.000001)
    assert not ModelEndpoint.objects.get(pk=endpoint.pk).is_listed


def test_an_approved_new_row_is_added(endpoint: ModelEndpoint) -> None:
    sync(gpt_x=0.000001, dear=0.01)
    proposals.approve(CatalogProposal.objects.get(), by="operator ann")
    made = ModelEndpoint.objects.get(model__slug="openai/dear")
    assert (made.price.prompt, made.source, made.as_of) == (Decimal("0.01"), "litellm", DAY)


@pytest.mark.parametrize(
    "move",
    [
        lambda found: ModelEndpoint.objects.update(zdr=False),
        lambda found: ModelEndpoint.objects.update(is_listed=False),
        lambda found: ModelEndpoint.objects.filter(pk=found.pk).delete(),
        lambda found: sync(gpt_x=0.0000011),
    ],
)
def test_an_approval_is_refused_when_the_catalogue_has_moved(
    endpoint: ModelEndpoint, move: Callable[[ModelEndpoint], Any]
) -> None:
    proposal = make_proposal(endpoint, source="by hand")
    move(endpoint)
    before = snapshots.everything()
    with pytest.raises(CatalogMoved, match="Nothing was applied"):
        proposals.approve(proposal, by="operator ann")
    assert snapshots.everything() == before


def test_a_new_row_that_exists_by_now_is_not_added(endpoint: ModelEndpoint) -> None:
    sync(gpt_x=0.000001, dear=0.01)
    factories.make_model("openai/dear", canonical_slug="somebody/else")
    before = snapshots.everything()
    with pytest.raises(CatalogMoved):
        proposals.approve(CatalogProposal.objects.get(), by="operator ann")
    assert snapshots.everything() == before


def test_an_approval_leaves_a_present_provider_as_it_is(db: None) -> None:
    document = {
        "data": [
            {
                "id": f"acme/{name}",
                "created": 1_780_272_000,
                "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
                "pricing": {"prompt": "0.0000005", "completion": "0.0000015"},
            }
            for name in ("falcon", "eagle", "owl")
        ]
    }
    data = msgspec.json.encode(document)
    sync_list("openrouter", data, as_of=DAY, by="test", action="test", applies=False)
    first, second, third = CatalogProposal.objects.order_by("subject")
    proposals.approve(first, by="operator ann")
    Provider.objects.update(base_url="https://eu.example/v1", retains_prompts=False)
    before = snapshots.everything()["catalog.Provider"]
    proposals.approve(second, by="operator ann")
    assert ModelEndpoint.objects.count() == 2
    assert snapshots.everything()["catalog.Provider"] == before
    Provider.objects.update(is_listed=False)
    with pytest.raises(CatalogMoved):
        proposals.approve(third, by="operator ann")
    assert not Provider.objects.get().is_listed


def test_a_decided_proposal_stays_decided(endpoint: ModelEndpoint) -> None:
    proposal = make_proposal(endpoint)
    proposal.refuse(by="operator ann")
    before = snapshots.everything()
    for decide in (proposals.approve, CatalogProposal.refuse):
        with pytest.raises(InvalidTransition, match="is refused; this needs it to be waiting"):
            decide(proposal, by="operator bob")
    assert snapshots.everything() == before


@pytest.mark.django_db(transaction=True)
def test_concurrent_decisions_decide_once(together: Callable[..., list[Any]]) -> None:
    make_proposal(make_endpoint())

    def decide(how: Callable[..., None]) -> str:
        try:
            how(CatalogProposal.objects.get(), by="operator ann")
        except InvalidTransition:
            return "late"
        return "done"

    done = together(
        partial(decide, proposals.approve),
        partial(decide, proposals.approve),
        partial(decide, CatalogProposal.refuse),
    )
    assert sorted(done) == ["done", "late", "late"]
    proposal = CatalogProposal.objects.get()
    doubled = ModelEndpoint.objects.get().price.completion == Decimal("4e-6")
    assert doubled == (proposal.status == "approved")


@pytest.mark.django_db(transaction=True)
def test_a_sync_compares_the_price_that_it_has_waited_for() -> None:
    endpoint = make_endpoint()
    with ExitStack() as threads, transaction.atomic():
        endpoint.reprice(factories.make_price("0.000003"))
        threads.enter_context(beside(partial(sync, gpt_x=0.000002)))
        wait_until(waiting, "the sync does not wait")
    proposal = CatalogProposal.objects.get()
    # The price is an operator's by now, so a person decides.
    assert (proposal.endpoint_id, proposal.reason) == (endpoint.pk, "change")
    assert proposal.changes[0]["old"] == "0.000003"


def test_a_sync_and_an_approval_lock_in_one_order(endpoint: ModelEndpoint) -> None:
    sync(gpt_x=0.000002)
    proposal = CatalogProposal.objects.get()

    def locked(change: Callable[[], None]) -> list[str]:
        with CaptureQueriesContext(connection) as found:
            change()
        asked = [query["sql"] for query in found if _LOCKS.search(query["sql"])]
        tables = (text.partition(' FROM "')[2].partition('"')[0] for text in asked)
        return [*dict.fromkeys(tables)]

    order = ["catalog_catalogproposal", "catalog_provider", "catalog_modelendpoint"]
    assert locked(partial(sync, gpt_x=0.000002))[:3] == order
    assert locked(partial(proposals.approve, proposal, by="operator ann"))[:3] == order


def url(verb: str) -> str:
    name = f"admin:catalog_catalogproposal_{verb}"
    return reverse(name, args=[CatalogProposal.objects.get().pk])


def test_the_console_shows_and_approves_a_proposal(
    operator: Client, endpoint: ModelEndpoint
) -> None:
    sync(gpt_x=0.000002)
    proposal = CatalogProposal.objects.get()
    shown = operator.get(page(proposal)).content.decode()
    for text in ("Prompt", "$1 per million", "$2 per million", "+100 %"):
        assert f">{text}<" in shown
    listed = operator.get(listing(CatalogProposal)).content.decode()
    assert "Prompt: $1 per million → $2 per million (+100 %)" in listed
    before = snapshots.everything()
    assert operator.get(url("approve")).status_code == 200
    assert snapshots.everything() == before
    response = operator.post(url("approve"), SUBMIT, follow=True)
    assert messages_of(response) == ["The changes are applied."]
    assert ModelEndpoint.objects.get().price.prompt == Decimal("2e-6")
    kinds = set(AuditEntry.objects.filter(actor="operator operator").values_list("kind", flat=True))
    assert {"catalog.catalogproposal", "catalog.modelendpoint", "catalog.priceversion"} <= kinds
    again = operator.post(url("refuse"), SUBMIT, follow=True)
    assert messages_of(again) == [
        "The catalogue proposal is approved; this needs it to be waiting."
    ]


def test_risky_proposals_come_first_and_say_why(operator: Client, endpoint: ModelEndpoint) -> None:
    model, provider = endpoint.model, endpoint.provider
    for name in ("dearer", "cheaper", "free", "gone"):
        factories.make_endpoint(
            model, provider, upstream_model_id=name, source="litellm", as_of=DAY
        )
    sync(gpt_x=0.000002, dearer=0.00001, cheaper=0.0000001, free=0)
    risks = {one.subject.split()[2]: one.risk for one in CatalogProposal.objects.all()}
    assert risks == {
        "gpt-x": "",
        "dearer": "10 times the price or more",
        "cheaper": "a tenth of the price or less",
        "free": "becomes free",
        "gone": "vanishes",
    }
    CatalogProposal.objects.get(risk="vanishes").refuse(by="test")
    shown = list(operator.get(listing(CatalogProposal)).context["cl"].result_list)
    assert [bool(one.risk) for one in shown] == [True, True, True, False, True]
    assert [one.status for one in shown] == [*["waiting"] * 4, "refused"]
    found = operator.get(listing(CatalogProposal), {"risk__exact": "becomes free"})
    assert [one.subject.split()[2] for one in found.context["cl"].result_list] == ["free"]


def test_the_console_says_that_the_catalogue_has_moved(
    operator: Client, endpoint: ModelEndpoint
) -> None:
    make_proposal(endpoint)
    ModelEndpoint.objects.update(zdr=False)
    before = snapshots.everything()
    response = operator.post(url("approve"), SUBMIT, follow=True)
    assert messages_of(response) == [CatalogMoved.message]
    assert snapshots.everything() == before


def test_finance_decides_prices_and_not_which_endpoints_there_are(
    endpoint: ModelEndpoint, finance: Client
) -> None:
    sync(other=0.000001)
    before = snapshots.everything()
    for verb in ("approve", "refuse"):
        response = finance.post(url(verb), SUBMIT, follow=True)
        assert messages_of(response) == ["Your role may decide about prices only."]
    assert snapshots.everything() == before
    CatalogProposal.objects.all().delete()
    make_proposal(endpoint)
    row = CatalogProposal.objects.get()
    # What a list states beside its rates is of the price, too.
    for column in ("uncharged", "most_units_of search"):
        row.changes.append({"column": column, "old": None, "new": "9", "percent": None})
    row.save()
    response = finance.post(url("refuse"), SUBMIT, follow=True)
    assert messages_of(response) == ["The proposal is refused. Nothing was changed."]
    assert LanguageModel.objects.count() == 2
