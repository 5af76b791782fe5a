"""Guardrails of whole workspaces whose changes need a second person."""

from __future__ import annotations

import pytest
from django.test import Client

from accounts.models import Guardrail, GuardrailShadow, ShadowNotFound
from config.changes.kinds import ChangeKind
from config.changes.models import ChangeSet
from tests.support import factories
from tests.support.console import change, messages_of, page
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail
from tests.support.operators.four_eyes import WHY, approve, demand, press, proposed, sign_in


@pytest.fixture
def ann(db: None) -> Client:
    factories.make_model("acme/falcon")
    factories.make_model("globex/osprey")
    return sign_in("ann")


@pytest.fixture
def bob(ann: Client) -> Client:
    return sign_in("bob")


@pytest.fixture
def shared(tenant: Tenant) -> Guardrail:
    """The guardrail of a whole workspace."""
    demand(ChangeKind.GUARDRAILS)
    return Guardrail.objects.edit_workspace_default(tenant.workspace, name="Default")


def start(guardrail: Guardrail, model: str) -> GuardrailShadow:
    return GuardrailShadow.objects.start(guardrail, by="test", ignored_models=[model])


def test_enforcing_a_shadow_waits_and_shows_the_limits(
    ann: Client, bob: Client, shared: Guardrail
) -> None:
    start(shared, "acme/*")
    with snapshots.unchanged():
        assert "Reason" in press(ann, shared, "enforce").content.decode()
        assert not ChangeSet.objects.exists()
        press(ann, shared, "enforce", **WHY)

    [row] = proposed().changes
    assert (row["outcome"], row["row"]) == ("update", "Default")
    assert row["changes"] == [["Ignored models", "–", "acme/*", "", ""]]
    made, text = approve(bob)
    shared.refresh_from_db()
    assert (made.status, text) == ("applied", "The limits of the shadow are enforced.")
    assert shared.ignored_models == ["acme/*"]
    assert not GuardrailShadow.objects.exists()


def test_a_new_shadow_closes_what_was_proposed_of_the_old_one(
    ann: Client, bob: Client, shared: Guardrail
) -> None:
    start(shared, "acme/*")
    press(ann, shared, "enforce", **WHY)
    start(shared, "globex/*")
    with snapshots.unchanged():
        made, text = approve(bob)
    assert (made.status, text) == (
        "outdated",
        "Changed since it was proposed: shadow. Nothing was changed. Propose it again.",
    )


def test_a_shadow_that_has_ended_is_not_proposed(ann: Client, shared: Guardrail) -> None:
    assert messages_of(press(ann, shared, "enforce", **WHY)) == [ShadowNotFound.message]
    assert not ChangeSet.objects.exists()


def test_enforcing_the_shadow_of_an_assigned_guardrail_does_not_wait(
    ann: Client, shared: Guardrail
) -> None:
    assert shared.workspace is not None
    assigned = make_guardrail(shared.workspace)
    start(assigned, "acme/*")
    press(ann, assigned, "enforce")
    assigned.refresh_from_db()
    assert assigned.ignored_models == ["acme/*"]


def test_saving_a_shadow_needs_nobody_else_because_it_refuses_nothing(
    ann: Client, shared: Guardrail
) -> None:
    change(ann, shared, {"name": "Default", "ignored_models": ["acme/*"], "_shadow": "1"})
    shared.refresh_from_db()
    assert (shared.ignored_models, ChangeSet.objects.count()) == (None, 0)
    assert GuardrailShadow.objects.get().limits["ignored_models"] == ["acme/*"]


def test_a_shadow_is_not_saved_with_a_name_that_must_wait(ann: Client, shared: Guardrail) -> None:
    sent = {"name": "Another", "ignored_models": ["acme/*"], "_shadow": "1", **WHY}
    with snapshots.unchanged():
        answer = change(ann, shared, sent)
        assert "Save the name and the description first" in answer.content.decode()
        assert not ChangeSet.objects.exists()


@pytest.mark.parametrize("kind", [ChangeKind.GUARDRAILS, ChangeKind.DELETIONS])
def test_deleting_the_guardrail_of_a_workspace_waits(
    ann: Client, bob: Client, tenant: Tenant, kind: ChangeKind
) -> None:
    shared = Guardrail.objects.edit_workspace_default(tenant.workspace, name="Default")
    demand(kind)
    with snapshots.unchanged():
        press(ann, shared, "remove", **WHY)
    assert proposed().kind == kind
    made, text = approve(bob)
    assert (made.status, text) == ("applied", "Default is deleted.")
    assert not Guardrail.objects.exists()


def test_deleting_an_assigned_guardrail_waits_for_its_own_rule_alone(
    ann: Client, shared: Guardrail
) -> None:
    assert shared.workspace is not None
    assigned = make_guardrail(shared.workspace)
    press(ann, assigned, "remove")
    assert not Guardrail.objects.filter(pk=assigned.pk).exists()


def test_a_reader_is_asked_for_no_reason_and_sees_the_limits(
    shared: Guardrail, viewer: Client
) -> None:
    email = {"slug": "email", "action": "block", "label": "[EMAIL]"}
    shared.edit(limit_nano=5 * 10**9, reset_interval="daily", content_filter_builtins=[email])
    text = viewer.get(page(shared)).content.decode()

    assert "Another operator must approve" not in text
    assert "change_reason" not in text
    for shown in ("$5 daily", "[EMAIL]: block", "Zero data retention, Anthropic"):
        assert shown in text
    for hidden in ("Save as a shadow", "Try a text", "Enforce zdr"):
        assert hidden not in text
