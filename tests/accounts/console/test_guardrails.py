"""Guardrails on the console."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.test import Client, RequestFactory

from accounts.models import Guardrail, GuardrailShadow, KeyAssignment, MemberAssignment
from accounts.policy import Family
from endpoints.models import PrivateProvider
from tests.support import factories
from tests.support.console import SUBMIT, change, fingerprint, listing, messages_of, page
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_key, make_member
from tests.support.operators.four_eyes import sign_in_with


def _guardrail_form(**fields: Any) -> dict[str, Any]:
    unknown = {
        field.name: "unknown"
        for field in Guardrail._meta.concrete_fields
        if field.name.startswith(("enforce_", "allow_safety_", "enable_"))
    }
    return {"name": "Strict", "limit": "", "reset_interval": "", **unknown, **fields}


def _pattern(pattern: str, **fields: str) -> dict[str, str]:
    """Returns the first row of the editor of patterns."""
    row = {"pattern": pattern, "action": "redact", **fields}
    rows = {f"content_filters-0-{name}": value for name, value in row.items()}
    return {"content_filters-total": "2", **rows}


def test_add_guardrail_and_change_it(operator: Client, tenant: Tenant) -> None:
    factories.make_model("acme/falcon")
    form = _guardrail_form(
        workspace=str(tenant.workspace.pk),
        allowed_models=["acme/falcon"],
        allowed_data_regions=["us", "europe"],
        enforce_zdr_google="true",
        limit="0.000000001",
        reset_interval="daily",
    )
    operator.post(listing(Guardrail, "add"), form)
    guardrail = Guardrail.objects.get()
    assert (guardrail.organization, guardrail.workspace, guardrail.name) == (
        tenant.organization, tenant.workspace, "Strict",
    )  # fmt: skip
    assert guardrail.allowed_models == ["acme/falcon-2026-01-01"]
    assert (guardrail.allowed_data_regions, guardrail.limit_nano) == (["us", "europe"], 1)
    assert (guardrail.enforce_zdr_google, guardrail.enforce_zdr_xai) == (True, None)

    change(operator, guardrail, _guardrail_form(name="Loose"))
    guardrail.refresh_from_db()
    assert (guardrail.name, guardrail.allowed_models, guardrail.limit_nano) == ("Loose", None, None)
    assert (guardrail.reset_interval, guardrail.enforce_zdr_google) == (None, None)


def test_change_guardrail_keeps_names_that_have_left(operator: Client, tenant: Tenant) -> None:
    factories.make_model("acme/falcon")
    names = {"allowed_models": ["gone/model", "gone/*"], "ignored_providers": ["gone"]}
    guardrail = make_guardrail(tenant.workspace, **names)
    more = {**names, "allowed_models": [*names["allowed_models"], "acme/falcon"]}
    change(operator, guardrail, _guardrail_form(name="Loose", **more))
    guardrail.refresh_from_db()
    assert guardrail.name == "Loose"
    assert guardrail.allowed_models == ["gone/model", "gone/*", "acme/falcon-2026-01-01"]
    assert guardrail.ignored_providers == ["gone"]


def test_a_guardrail_names_nothing_of_another_organization(
    operator: Client, tenant: Tenant
) -> None:
    globex = factories.make_tenant("Globex").organization
    for organization, author in ((tenant.organization, "acme"), (globex, "globex")):
        factories.make_model(
            f"{author}/support", canonical_slug=f"{author}/support", organization=organization
        )
        PrivateProvider.objects.create_provider(
            organization_id=organization.pk, name=f"{author} rack"
        )
    own = {"allowed_models": ["acme/support"], "ignored_providers": ["acme-rack"]}
    form = _guardrail_form(workspace=str(tenant.workspace.pk), **own)
    assert operator.post(listing(Guardrail, "add"), form).status_code == 302
    guardrail = Guardrail.objects.get()
    assert (guardrail.allowed_models, guardrail.ignored_providers) == tuple(own.values())
    foreign = {"allowed_models": ["globex/support"], "ignored_providers": ["globex-rack"]}
    before = fingerprint()
    for answer in (
        operator.post(listing(Guardrail, "add"), {**form, **foreign}),
        change(operator, guardrail, _guardrail_form(**foreign)),
    ):
        assert set(answer.context["adminform"].form.errors) == set(foreign)
    assert fingerprint() == before


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"allowed_models": "acme/none"}, "allowed_models"),
        ({"ignored_providers": "acme"}, "ignored_providers"),
        ({"allowed_data_regions": "asia"}, "allowed_data_regions"),
        ({"limit": "-1"}, "limit"),
        ({"limit": "0.0000000001"}, "limit"),
        ({"name": ""}, "name"),
        ({"workspace": ""}, "workspace"),
        ({"limit": "1"}, "reset_interval"),
        ({"reset_interval": "daily"}, "limit"),
        ({"allowed_models": "acme/*"}, "allowed_models"),
        ({"content_filter_builtins-email-action": "hide"}, "content_filter_builtins"),
        (_pattern("("), "content_filters"),
        (_pattern("x", action="hide"), "content_filters"),
        (_pattern("x", block_unreadable="on"), "content_filters"),
        (_pattern("", label="x"), "content_filters"),
    ],
)
def test_add_guardrail_refuses_invalid_fields(
    operator: Client, tenant: Tenant, fields: dict[str, str], field: str
) -> None:
    before = fingerprint()
    form = _guardrail_form(**{"workspace": str(tenant.workspace.pk), **fields})
    response = operator.post(listing(Guardrail, "add"), form)

    assert set(response.context["adminform"].form.errors) == {field}
    assert fingerprint() == before


def test_enforce_zdr_of_a_guardrail_takes_effect(operator: Client, tenant: Tenant) -> None:
    form = _guardrail_form(enforce_zdr="true", enforce_zdr_xai="false")
    operator.post(listing(Guardrail, "add"), {**form, "workspace": str(tenant.workspace.pk)})
    guardrail = Guardrail.objects.get()
    assert guardrail.policy.zdr == set(Family) - {Family.XAI}

    for fields, expected in (({}, set()), ({"enforce_zdr": "true"}, set(Family))):
        change(operator, guardrail, _guardrail_form(**fields))
        guardrail.refresh_from_db()
        assert guardrail.policy.zdr == expected


@pytest.mark.parametrize("switch", ["unknown", "false"])
def test_families_set_to_yes_override_the_deprecated_switch(
    operator: Client, tenant: Tenant, switch: str
) -> None:
    guardrail = make_guardrail(tenant.workspace, enforce_zdr=True)
    assert guardrail.policy.zdr == set(Family)
    shown = {f"enforce_zdr_{family}": "true" for family in Family}

    change(operator, guardrail, _guardrail_form(enforce_zdr=switch, **shown))
    guardrail.refresh_from_db()
    assert not guardrail.enforce_zdr
    assert guardrail.policy.zdr == set(Family)

    shown["enforce_zdr_xai"] = "unknown"
    change(operator, guardrail, _guardrail_form(enforce_zdr=switch, **shown))
    guardrail.refresh_from_db()
    assert guardrail.policy.zdr == set(Family) - {Family.XAI}


def test_families_set_to_no_override_the_deprecated_switch(
    operator: Client, tenant: Tenant
) -> None:
    guardrail = make_guardrail(
        tenant.workspace, enforce_zdr=False, enforce_zdr_google=None, enforce_zdr_other=None
    )
    shown = {f"enforce_zdr_{family}": "false" for family in ("anthropic", "openai", "xai")}

    change(operator, guardrail, _guardrail_form(enforce_zdr="true", **shown))
    guardrail.refresh_from_db()
    assert guardrail.policy.zdr == {Family.GOOGLE, Family.OTHER}
    assert guardrail.enforce_zdr_xai is False


def test_guardrail_is_assigned_and_unassigned(operator: Client, tenant: Tenant) -> None:
    guardrail = make_guardrail(tenant.workspace)
    key, member = make_key(tenant, "governed"), make_member(tenant.organization)
    for verb, said in (("assign", "assigned"), ("unassign", "removed")):
        keys = {**SUBMIT, "verb": verb, "keys": [str(key.pk)]}
        shown = operator.post(page(guardrail, "assign_keys"), keys, follow=True)
        assert messages_of(shown) == [f"Keys that were {said}: 1."]
        members = {**SUBMIT, "verb": verb, "members": [str(member.pk)]}
        shown = operator.post(page(guardrail, "assign_members"), members, follow=True)
        assert messages_of(shown) == [f"Members that were {said}: 1."]
        text = shown.content.decode()
        assert ("governed" in text, member.email in text) == (verb == "assign",) * 2
        assigned = (*KeyAssignment.objects.all(), *MemberAssignment.objects.all())
        expected = ["operator operator"] * 2 if verb == "assign" else []
        assert [row.assigned_by for row in assigned] == expected


def test_guardrail_cannot_be_assigned_to_foreign_keys_and_members(
    operator: Client, tenant: Tenant
) -> None:
    guardrail, other = make_guardrail(tenant.workspace), factories.make_tenant("Other")
    mine, foreign = make_key(tenant), make_key(other, "foreign robot")
    stranger = make_member(other.organization)
    before = fingerprint()
    form = {**SUBMIT, "verb": "assign", "keys": [str(mine.pk), str(foreign.pk)]}
    shown = operator.post(page(guardrail, "assign_keys"), form)
    form = {**SUBMIT, "verb": "assign", "members": [str(stranger.pk)]}
    refused = operator.post(page(guardrail, "assign_members"), form)

    assert "Choose keys of this organization" in shown.content.decode()
    assert "Choose members of this organization" in refused.content.decode()
    # A refusal tells nothing about the rows of others.
    assert foreign.name not in shown.content.decode()
    assert stranger.email not in refused.content.decode()
    assert fingerprint() == before
    assert not KeyAssignment.objects.exists()
    assert not MemberAssignment.objects.exists()


def test_guardrail_is_deleted_with_its_assignments(operator: Client, tenant: Tenant) -> None:
    guardrail = make_guardrail(tenant.workspace)
    guardrail.assign_keys([make_key(tenant)], by="test")
    shown = operator.post(page(guardrail, "remove"), SUBMIT, follow=True)

    assert messages_of(shown) == ["Strict is deleted."]
    assert not Guardrail.objects.exists()
    assert not KeyAssignment.objects.exists()


@pytest.mark.parametrize("verb", ["assign_keys", "assign_members", "remove"])
def test_guardrail_action_is_refused_without_permission(
    viewer: Client, tenant: Tenant, verb: str
) -> None:
    guardrail = make_guardrail(tenant.workspace)
    before = Guardrail.objects.values().get()
    form = {**SUBMIT, "verb": "assign", "keys": [str(make_key(tenant).pk)], "members": "x"}

    assert viewer.post(page(guardrail, verb), form).status_code == 403
    assert Guardrail.objects.values().get() == before
    assert not KeyAssignment.objects.exists()


def test_form_is_backtested_against_its_own_guardrail(tenant: Tenant) -> None:
    """Two operators open the pages of two organizations at the same time."""
    mine = make_guardrail(tenant.workspace)
    other = make_guardrail(factories.make_tenant("Other").workspace)
    console = site._registry[Guardrail]
    request = RequestFactory().get("/")
    request.user = User(is_superuser=True, is_active=True)
    made = {row.pk: console.get_form(request, row, change=True) for row in (mine, other)}
    new = console.get_form(request)

    for row in (mine, other):
        rendered = str(made[row.pk](instance=row)["backtest"])
        assert f"/{row.pk}/backtest/" in rendered
    assert '"/admin/accounts/guardrail/backtest/"' in str(new()["backtest"])


@pytest.mark.parametrize("sees", [False, True])
def test_a_backtest_is_for_those_who_see_requests(tenant: Tenant, sees: bool) -> None:
    guardrail = make_guardrail(tenant.workspace)
    names = ("view_guardrail", "add_guardrail", "change_guardrail")
    client = sign_in_with("ann", *names, *(["view_generation"] if sees else []))
    for shown, asked in (
        (page(guardrail), page(guardrail, "backtest")),
        (listing(Guardrail, "add"), listing(Guardrail, "backtest_new")),
    ):
        assert ("backtest_result" in client.get(shown).content.decode()) is sees
        answer = client.post(asked, _guardrail_form())
        assert answer.status_code == (200 if sees else 403)


def test_a_guardrail_without_a_shadow_offers_none_to_enforce(
    operator: Client, tenant: Tenant
) -> None:
    guardrail = make_guardrail(tenant.workspace)

    def offered() -> list[str]:
        text = operator.get(page(guardrail)).content.decode()
        return [name for name in ("enforce", "withdraw", "remove") if page(guardrail, name) in text]

    assert offered() == ["remove"]
    GuardrailShadow.objects.start(guardrail, by="operator", ignored_models=["acme/*"])
    assert offered() == ["enforce", "withdraw", "remove"]
