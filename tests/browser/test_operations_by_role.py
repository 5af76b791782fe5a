"""The stories of guardrails, consequences, traffic and plain words, each walked as every role.

A role does what it may. Everything else of a story is refused in plain English and changes nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.utils import timezone
from playwright.sync_api import expect

from accounts.models import ApiKey, Guardrail, Organization
from billing.models import Excess, GrantRequest
from config.apps import Role
from config.console.sign_in import roles
from config.credentials import Secret
from endpoints.models import PrivateEndpoint
from endusers.models import EndUser
from tests.support import factories
from tests.support.browser import MARKS, press, submit_dialog
from tests.support.catalogue import make_proposal
from tests.support.console import fingerprint, listing
from tests.support.console import page as page_path
from tests.support.governance import make_guardrail
from tests.support.operators.walks import (
    ADMINISTRATORS,
    CUSTOMER_CARE,
    EVERYBODY,
    MONEY,
    SUPERUSER,
    Walk,
    ask_database,
    assert_refused,
    make_operator,
    take_walk,
)

pytestmark = [*MARKS]

TRAFFIC = "/admin/inference/generation"
FOR_MONEY = {"Price proposals", "Grants to approve", "Excesses in review"}


class Scene(NamedTuple):
    """A customer with a guardrail, a day of traffic, and what waits for operators."""

    organization: Organization
    key: ApiKey
    guardrail: Guardrail
    drifted: PrivateEndpoint
    excess: Excess
    request: GrantRequest


@pytest.fixture
def scene(server: str) -> Scene:
    # The first page shows sums of the last minute, which may be those of the test before.
    cache.clear()
    roles.update_roles()
    globex = factories.make_tenant("Globex")
    model = factories.make_model("acme/falcon", name="Falcon")
    provider = factories.make_provider("acme-ai", name="Acme AI")
    provider.set_credential(Secret("operator-credential-0123456789"))
    public = factories.make_endpoint(model, provider)
    drifted = factories.make_draft(globex, model, provider)
    now = timezone.now()
    PrivateEndpoint.objects.filter(pk=drifted.pk).update(drifted_at=now)
    key = ApiKey.objects.get(name="inference", workspace=globex.workspace)
    for number in range(8):
        generation = factories.make_generation(
            globex,
            model_endpoint=public,
            api_key=key,
            created_at=now - timedelta(minutes=number),
            status="failed" if number == 3 else "completed",
            error_type="provider_unavailable" if number == 3 else None,
            cost_nano=0 if number == 3 else 2_000_000,
        )
    for name in ("customer-1", "customer-2"):
        EndUser.objects.register(organization_id=globex.organization.pk, user=name)
    make_proposal(public)
    return Scene(
        globex.organization,
        key,
        make_guardrail(globex.workspace),
        drifted,
        factories.make_excess(globex, reference=generation.pk),
        GrantRequest.objects.create(
            organization=globex.organization, amount_nano=10**9, requested_by="operator ann"
        ),
    )


def read_facts(walk: Walk) -> list[str]:
    """Returns the values by which the open dialog names its object."""
    found: list[str] = walk.page.locator("#dialog dl dd").all_inner_texts()
    return found


def limit_models(walk: Walk, scene: Scene, role: str) -> None:
    """Tries a limit on the past, counts it as a shadow, enforces it, and does not delete it."""
    page, guardrail = walk.page, scene.guardrail
    page.goto(page_path(guardrail))
    walk.look("guardrail")
    if role not in CUSTOMER_CARE:
        assert page.get_by_role("button", name="Backtest", exact=True).count() == 0
        assert page.get_by_role("button", name="Save as a shadow").count() == 0
        assert walk.find_links("Enforce the shadow", "Withdraw the shadow", "Delete") == []
        verbs = ("assign_keys", "assign_members", "enforce", "withdraw", "remove")
        assert_refused(walk, role, *(page_path(guardrail, verb) for verb in verbs))
        return
    box = page.locator("#id_ignored_models + .select2 .select2-search__field")
    box.click()
    box.press_sequentially("acme")
    page.get_by_role("option", name="acme/* (all models of acme)", exact=True).click()
    page.get_by_role("button", name="Backtest", exact=True).click()
    page.get_by_text("this would have refused 8 of 8 requests").first.wait_for()
    walk.look("backtest")
    press(page, "Save as a shadow")
    page.goto(page_path(guardrail))
    page.get_by_text("No request has been counted yet.").wait_for()
    submit_dialog(page, "Enforce the shadow")
    assert walk.said() == "The limits of the shadow are enforced."
    before = ask_database(fingerprint)
    page.get_by_role("link", name="Delete", exact=True).first.click()
    expect(page.locator("#dialog [aria-label=Consequences] li")).to_have_text(
        [
            "It limits 0 keys, by assignment or by their creators.",
            "They had no requests in the last hour.",
        ]
    )
    assert read_facts(walk) == ["Strict", "Globex"]
    walk.look("delete-guardrail")
    page.locator("#dialog button", has_text="Cancel").click()
    expect(page.locator("#dialog")).to_be_hidden()
    assert ask_database(fingerprint) == before


def suspend(walk: Walk, scene: Scene, role: str) -> None:
    """Reads what a suspension and a pause would stop; confirms only the first."""
    page, organization = walk.page, scene.organization
    page.goto(page_path(organization))
    if role not in ADMINISTRATORS:
        assert walk.find_links("Suspend", "Delete stored texts") == []
        verbs = ("suspend", "resume", "delete_texts")
        assert_refused(walk, role, *(page_path(organization, verb) for verb in verbs))
    else:
        page.get_by_role("link", name="Suspend", exact=True).first.click()
        expect(page.locator("#dialog [aria-label=Consequences] li").first).to_contain_text(
            "8 requests in the last hour"
        )
        assert read_facts(walk) == ["Globex"]
        walk.look("suspend")
        page.fill("#dialog [name=reason]", "The invoice is not paid.")
        with page.expect_navigation():
            page.locator("#dialog button[type=submit]").click()
        assert walk.said() == "Globex is suspended."
        walk.look("suspended")
        submit_dialog(page, "Resume")
        assert walk.said() == "Globex is served again."
    page.goto(page_path(scene.key))
    if role not in CUSTOMER_CARE:
        assert walk.find_links("Pause", "Revoke") == []
        assert_refused(walk, role, page_path(scene.key, "pause"), page_path(scene.key, "revoke"))
        return
    before = ask_database(fingerprint)
    page.get_by_role("link", name="Revoke", exact=True).first.click()
    expect(page.locator("#dialog [aria-label=Consequences] li").last).to_have_text(
        "Such requests will get 401."
    )
    assert read_facts(walk) == [str(scene.key), "Globex"]
    walk.look("revoke")
    page.keyboard.press("Escape")
    expect(page.locator("#dialog")).to_be_hidden()
    assert ask_database(fingerprint) == before


def watch(walk: Walk, scene: Scene, role: str) -> None:
    """Watches the traffic, and does what waits for the role."""
    page = walk.page
    page.goto(f"{TRAFFIC}/live/")
    expect(page.locator("#live tbody tr")).to_have_count(8)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("[data-status]")).to_have_text("Paused: nothing is asked.")
    walk.look("live")
    page.goto(f"{TRAFFIC}/health/")
    expect(page.get_by_text("drifted since").first).to_be_visible()
    assert (page.locator("#board .cw-button").count() > 0) == (role in CUSTOMER_CARE)
    walk.look("health")
    page.goto(f"{TRAFFIC}/errors/")
    walk.look("errors")
    page.goto("/admin/")
    waiting = set(FOR_MONEY if role in MONEY else ())
    waiting.update(("Drifted endpoints",) if role in CUSTOMER_CARE else ())
    assert set(page.locator("#waiting .cw-rank .cw-name").all_inner_texts()) == waiting
    walk.look("waiting")
    decisions = page_path(scene.request, "decline"), page_path(scene.excess, "write_off")
    if role not in MONEY:
        assert_refused(walk, role, *decisions)
        return
    page.locator("#waiting a", has_text="Grants to approve").click()
    page.wait_for_url("**/billing/grantrequest/**")
    page.locator("#result_list tbody a").first.click()
    page.wait_for_url("**/change/**")
    page.get_by_role("link", name="Decline", exact=True).first.click()
    page.locator("#dialog dl").wait_for()
    assert read_facts(walk) == ["grant to Globex", "Globex", "$1"]
    walk.look("decline")
    with page.expect_navigation():
        page.locator("#dialog button[type=submit]").click()
    assert walk.said() == "The grant is declined."


def read_refusals(walk: Walk, scene: Scene, role: str) -> None:
    """Reads the pages that say what is wrong, and acts on several rows at once."""
    page = walk.page
    page.goto("/")
    walk.look("landing")
    page.goto("/admin/nothing/")
    assert page.title().startswith("There is no such page")
    walk.look("missing")
    if role not in ADMINISTRATORS:
        assert_refused(walk, role, listing(User), listing(User, "add"))
        walk.look("refused")
    page.goto(listing(EndUser))
    walk.look("end-users")
    if role not in CUSTOMER_CARE:
        assert page.locator("#action-toggle").count() == 0
        assert_refused(walk, role, listing(EndUser, "add"))
        return
    page.locator("#action-toggle").check()
    page.select_option("select[name=action]", label="Mark as inactive")
    press(page, "Run")
    assert page.get_by_text("customer-1 of Globex").count() == 1
    walk.look("bulk-question")
    with page.expect_navigation():
        page.locator("button[type=submit].bg-red-600").click()
    assert "2 done" in walk.said()
    page.goto(listing(EndUser, "add"))
    press(page, "Save")
    expect(page.locator(".cw-errors a").first).to_be_visible()
    assert page.get_by_text("This field is required.").count() > 0
    walk.look("form-errors")


@pytest.mark.parametrize("role", EVERYBODY)
def test_operations_of_a_day(server: str, scene: Scene, role: str) -> None:
    def story(walk: Walk) -> None:
        for part in (limit_models, suspend, watch, read_refusals):
            part(walk, scene, role)

    operator = make_operator(None if role == SUPERUSER else Role(role))
    assert take_walk(server, operator, story, name=role.lower()) == []
    scene.guardrail.refresh_from_db()
    scene.request.refresh_from_db()
    scene.key.refresh_from_db()
    left: Any = (
        scene.guardrail.ignored_models,
        scene.request.status,
        scene.key.deleted_at,
        EndUser.objects.filter(is_active=True).count(),
    )
    assert left == (
        ["acme/*"] if role in CUSTOMER_CARE else None,
        "declined" if role in MONEY else "requested",
        None,
        0 if role in CUSTOMER_CARE else 2,
    )
