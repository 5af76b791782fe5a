"""Shadows of guardrails: they count what enforcement would refuse, and refuse nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import Client

from accounts.models import ApiKey, Guardrail, GuardrailShadow, KeyAssignment, ShadowNotFound
from catalog.dialects.base import Operation
from config.api.errors import InvalidRequest
from config.clocks.clock import clock
from config.secrets import digest_api_key
from inference.admission import decide
from inference.admission.admit import AdmissionStore
from inference.admission.decide import Admission, AdmissionRequest
from inference.filters import screening
from inference.models import ShadowCount
from inference.requests import parsing
from inference.routing.health import HealthTable
from inference.shadows.results import clear_shadows, read_result
from tests.support import factories
from tests.support.console import SUBMIT, change, fingerprint, listing, messages_of, page
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_key
from tests.support.inference.site import Site
from tests.support.operators.four_eyes import sign_in_with

NANO = 1_000_000_000
EMAIL = {"slug": "email", "action": "block", "label": "[EMAIL]"}


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets filters of shadows read everything, also when another process has the core meanwhile."""
    monkeypatch.setattr(decide, "_SHADOW_SECONDS", 60.0)


def default_of(tenant: Tenant) -> Guardrail:
    return Guardrail.objects.edit_workspace_default(tenant.workspace, name="Default")


def start(guardrail: Guardrail, **limits: Any) -> GuardrailShadow:
    return GuardrailShadow.objects.start(guardrail, by="test", **limits)


def counted(site: Site, shadow: GuardrailShadow, total: int) -> dict[str, int]:
    """Waits until the shadow has counted so many requests; returns its refusals by reason."""
    site.eventually(lambda: read_result(shadow.pk).total == total)
    return read_result(shadow.pk).reasons


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"ignored_models": ["acme/*"]}, "model_ignored"),
        ({"allowed_providers": ["globex"]}, "provider_not_allowed"),
        ({"enforce_zdr_other": True}, "zdr"),
        ({"allowed_data_regions": ["us"]}, "region_not_allowed"),
        ({"limit_nano": 0, "reset_interval": "daily"}, "budget"),
        ({"content_filter_builtins": [EMAIL]}, "content_filter"),
    ],
)
def test_shadow_counts_what_it_would_refuse(
    published: Site, limits: dict[str, Any], reason: str
) -> None:
    shadow = start(default_of(published.tenant), **limits)
    content = "to joe@example.com"
    assert [published.chat(content).status_code for _ in range(3)] == [200] * 3

    assert counted(published, shadow, 3) == {reason: 3}
    assert read_result(shadow.pk).keys == {ApiKey.objects.get(name="inference").pk: 3}
    [explained] = published.explain(content)["shadows"]
    assert explained == {"guardrail_id": str(shadow.guardrail_id), "would_refuse": reason}

    shadow.enforce()
    assert published.chat(content).status_code in (402, 403, 404)


def test_shadow_that_refuses_nothing_counts_too(published: Site) -> None:
    other = factories.make_tenant("Other")
    foreign = start(default_of(other), ignored_models=["acme/*"])
    shadow = start(default_of(published.tenant), ignored_models=["globex/*"])
    assert published.chat().status_code == 200

    assert counted(published, shadow, 1) == {}
    [row] = ShadowCount.objects.all()
    assert (row.shadow_id, row.reason, row.requests) == (shadow.pk, "", 1)
    assert read_result(foreign.pk).total == 0


def test_budget_of_a_shadow_is_spent_by_what_is_served(site: Site) -> None:
    """Two requests of 6 nano-dollars pass a budget of 7; the third would be refused."""
    site.publish(price=factories.make_price("0.000000001", "0.000000001"))
    guardrail = default_of(site.tenant)
    body = {"max_tokens": 2}
    assert site.chat(**body).status_code == 200
    cost = site.settled().cost_nano
    shadow = start(guardrail, limit_nano=cost + 1_000, reset_interval="daily")
    assert site.chat(**body).status_code == 200
    assert counted(site, shadow, 1) == {}
    site.wait_for_settlement()
    shadow.withdraw()
    shadow = start(guardrail, limit_nano=2 * cost, reset_interval="daily")
    assert site.chat(**body).status_code == 200
    assert counted(site, shadow, 1) == {"budget": 1}


def test_shadow_judges_only_what_is_admitted(published: Site) -> None:
    guardrail = default_of(published.tenant)
    guardrail.edit(ignored_providers=["acme"])
    shadow = start(guardrail, ignored_providers=None, ignored_models=["acme/*"])
    assert published.chat().status_code == 404
    guardrail.edit(ignored_providers=None)
    assert published.chat().status_code == 200

    assert counted(published, shadow, 1) == {"model_ignored": 1}


def test_content_filters_of_shadows_share_the_time_of_a_batch(
    published: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One prompt takes all of it here: the others are not read, and are admitted all the same."""
    shadow = start(default_of(published.tenant), content_filter_builtins=[EMAIL])
    body = published.chat_body("to joe@example.com")
    request = parsing.parse(Operation.CHAT, json.dumps(body).encode())
    entry = AdmissionRequest(digest_api_key(published.tenant.api_key), request, "r")
    # Each look at the clock is a second later.
    seconds = itertools.count(1_000_000_000)
    clock_of_seconds = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr(screening, "time", clock_of_seconds)

    async def run() -> list[Any]:
        admissions = AdmissionStore(HealthTable())
        found = [*await admissions.admit([entry] * 3), *await admissions.admit([entry])]
        await admissions.close()
        await sync_to_async(connections.close_all)()
        return found

    assert [type(each) for each in asyncio.run(run())] == [Admission] * 4
    result = read_result(shadow.pk)
    assert (result.reasons, result.unread, result.total) == ({"content_filter": 2}, 2, 4)


def draw(choice: random.Random) -> dict[str, Any]:
    limits = {
        "ignored_models": choice.choice((None, ["acme/*"], ["globex/*"])),
        "allowed_providers": choice.choice((None, ["acme"], ["globex"])),
        "enforce_zdr_other": choice.choice((None, True)),
        "content_filter_builtins": choice.choice((None, [EMAIL])),
        "limit_nano": choice.choice((None, 0, NANO)),
    }
    limits["reset_interval"] = None if limits["limit_nano"] is None else "daily"
    return limits


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("seed", range(3))
def test_counts_equal_what_enforcement_refuses(site: Site, seed: int) -> None:
    choice = random.Random(seed)
    second = site.another_provider("globex")
    models = [site.model, factories.make_model("globex/osprey")]
    for model in models:
        for provider in (site.provider, second):
            factories.make_endpoint(model, provider, zdr=choice.random() < 0.5)
    bodies = [
        site.chat_body(text, model=model.slug) for model in models for text in ("one", "a@b.io")
    ]
    guardrail = default_of(site.tenant)
    for _ in range(4):
        limits = draw(choice)
        if not any(limits.values()):
            continue
        shadow = start(guardrail, **limits)
        assert [site.post(body).status_code for body in bodies] == [200] * 4
        refused = sum(counted(site, shadow, 4).values())
        shadow.enforce()
        statuses = [site.post(body).status_code for body in bodies]
        assert sum(status != 200 for status in statuses) == refused, limits
        guardrail.edit(**dict.fromkeys(limits))


def test_transitions_of_a_shadow_take_effect_in_every_worker(
    service: Site, together: Callable[..., list[Any]]
) -> None:
    guardrail = default_of(service.tenant)

    def statuses() -> set[int]:
        return set(together(*[lambda: service.chat().status_code] * 12))

    assert statuses() == {200}
    shadow = start(guardrail, ignored_models=["acme/*"])
    assert statuses() == {200}
    assert counted(service, shadow, 12) == {"model_ignored": 12}
    shadow.enforce()
    assert statuses() == {404}
    Guardrail.objects.get(pk=guardrail.pk).edit(ignored_models=None)
    assert statuses() == {200}
    assert not GuardrailShadow.objects.exists()


def test_ended_shadow_is_refused_and_changes_nothing(tenant: Tenant) -> None:
    guardrail = default_of(tenant)
    shadow = start(guardrail, ignored_models=["acme/*"])
    replaced = GuardrailShadow.objects.get(pk=shadow.pk)
    start(guardrail, ignored_models=["globex/*"])
    with snapshots.unchanged():
        for verb in (replaced.enforce, replaced.withdraw):
            with pytest.raises(ShadowNotFound):
                verb()
        with pytest.raises(InvalidRequest, match="Must go together with"):
            start(guardrail, limit_nano=1)
        with pytest.raises(InvalidRequest, match="Change a limit first"):
            start(guardrail, ignored_models=None)


def test_api_shows_what_is_enforced(tenant: Tenant) -> None:
    guardrail = make_guardrail(tenant.workspace, ignored_models=["acme/*"])
    client = factories.client(tenant.management_key)
    before = client.get(f"/api/v1/guardrails/{guardrail.pk}").json()
    start(guardrail, ignored_models=None, limit_nano=1, reset_interval="daily")

    assert client.get(f"/api/v1/guardrails/{guardrail.pk}").json() == before
    assert [row["id"] for row in client.get("/api/v1/guardrails").json()["data"]] == [
        str(guardrail.pk)
    ]
    assert client.delete(f"/api/v1/guardrails/{guardrail.pk}").status_code == 200
    assert not GuardrailShadow.objects.exists()


def test_old_counts_and_those_of_ended_shadows_are_deleted(tenant: Tenant) -> None:
    shadow = start(default_of(tenant), ignored_models=["acme/*"])
    key, now = make_key(tenant), clock.now().replace(minute=0, second=0, microsecond=0)
    for shadow_id, hour in (
        (shadow.pk, now),
        (shadow.pk, now - timedelta(days=366)),
        (tenant.workspace.pk, now),
    ):
        ShadowCount.objects.create(
            shadow_id=shadow_id, api_key_id=key.pk, hour=hour, reason="", requests=1
        )

    assert clear_shadows() == 2
    [row] = ShadowCount.objects.all()
    assert (row.shadow_id, row.hour) == (shadow.pk, now)
    assert clear_shadows() == 0


def test_operator_saves_enforces_and_withdraws_a_shadow(operator: Client, tenant: Tenant) -> None:
    guardrail = make_guardrail(tenant.workspace)
    guardrail.assign_keys([make_key(tenant)], by="test")
    factories.make_model("acme/falcon")
    form = {"name": "Strict", "ignored_models": ["acme/*"], "_shadow": "1"}
    change(operator, guardrail, form)
    guardrail.refresh_from_db()
    shadow = GuardrailShadow.objects.get()
    assert (guardrail.ignored_models, shadow.limits["ignored_models"]) == (None, ["acme/*"])
    assert shadow.started_by == "operator operator"
    ShadowCount.objects.create(
        shadow_id=shadow.pk, api_key_id=KeyAssignment.objects.get().api_key_id,
        hour=clock.now(), reason="model_ignored", requests=3,
    )  # fmt: skip
    text = operator.get(page(guardrail)).content.decode()
    assert "3 of 3 requests would have been refused." in text
    assert "Its model is ignored" in text
    assert "since " in operator.get(listing(Guardrail)).content.decode()
    asked = operator.get(page(guardrail, "enforce")).content.decode()
    assert "3 of 3 requests would have been refused." in asked
    assert GuardrailShadow.objects.count() == 1

    shown = operator.post(page(guardrail, "enforce"), SUBMIT, follow=True)
    assert messages_of(shown) == ["The limits of the shadow are enforced."]
    guardrail.refresh_from_db()
    assert guardrail.ignored_models == ["acme/*"]
    shown = operator.post(page(guardrail, "withdraw"), SUBMIT, follow=True)
    assert messages_of(shown) == [ShadowNotFound.message]
    change(operator, guardrail, {**form, "ignored_models": []})
    shown = operator.post(page(guardrail, "withdraw"), SUBMIT, follow=True)
    assert messages_of(shown)[-1] == "The shadow is withdrawn."
    guardrail.refresh_from_db()
    assert guardrail.ignored_models == ["acme/*"]


def test_operator_starts_a_new_guardrail_as_a_shadow(operator: Client, tenant: Tenant) -> None:
    factories.make_model("acme/falcon")
    form = {
        "name": "New", "workspace": str(tenant.workspace.pk), "allowed_models": ["acme/*"],
        "_shadow": "1",
    }  # fmt: skip
    operator.post(listing(Guardrail, "add"), form)
    shadow = GuardrailShadow.objects.get()

    assert (shadow.guardrail.allowed_models, shadow.proposal.allowed_models) == (None, ["acme/*"])
    before = fingerprint()
    shown = operator.post(listing(Guardrail, "add"), {**form, "allowed_models": []})
    assert "Change a limit first" in shown.content.decode()
    assert fingerprint() == before


@pytest.mark.parametrize("sees", [False, True])
def test_what_a_shadow_counts_is_for_those_who_see_requests(tenant: Tenant, sees: bool) -> None:
    guardrail = make_guardrail(tenant.workspace)
    start(guardrail, ignored_models=["acme/*"])
    client = sign_in_with("ann", "view_guardrail", *(["view_generation"] if sees else []))
    shown = client.get(page(guardrail)).content.decode()
    assert "acme/*" in shown
    assert ("No request has been counted yet." in shown) is sees


@pytest.mark.parametrize("verb", ["enforce", "withdraw"])
def test_shadow_is_ended_by_editors_alone(viewer: Client, tenant: Tenant, verb: str) -> None:
    guardrail = make_guardrail(tenant.workspace)
    start(guardrail, ignored_models=["acme/*"])
    before = fingerprint()

    assert viewer.post(page(guardrail, verb), SUBMIT).status_code == 403
    assert fingerprint() == before
