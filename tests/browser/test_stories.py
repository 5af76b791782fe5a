"""What operators do all day, each story walked by the role that may do it, on every screen.

The stories of usage, keys, customers, search and imports are in ``test_stories_by_role``, the story
of guardrails in ``test_guardrails``. ``CAUSEWAY_SCREENSHOTS=DIR`` takes a picture of each stop.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import NamedTuple

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.utils import timezone

from accounts.models import ApiKey, Organization
from catalog.models import Provider
from config.apps import Role
from config.changes.kinds import ChangeKind
from config.changes.models import ChangeSet
from config.console.sign_in import roles
from endusers.models import EndUser
from inference.models import Generation
from tests.support import factories
from tests.support.browser import MARKS, press, submit_dialog
from tests.support.console import listing
from tests.support.console import page as change_page
from tests.support.operators.four_eyes import demand
from tests.support.operators.walks import Walk, make_operator, take_walk

pytestmark = [*MARKS]


class Scene(NamedTuple):
    """A customer with a day of traffic."""

    tenant: factories.Tenant
    key: ApiKey
    generation: Generation


Story = Callable[[Walk, Scene], None]


@pytest.fixture
def scene(server: str) -> Scene:
    # The first page shows sums of the last minute, which may be those of the story before.
    cache.clear()
    roles.update_roles()
    globex = factories.make_tenant("Globex")
    factories.make_tenant("Initech")
    public = factories.make_endpoint(
        factories.make_model("acme/falcon", name="Falcon"),
        factories.make_provider("acme-ai", name="Acme AI"),
    )
    now = timezone.now()
    for number in range(8):
        generation = factories.make_generation(
            globex,
            model_endpoint=public,
            created_at=now - timedelta(minutes=5 * number),
            status="failed" if number == 3 else "completed",
            cost_nano=0 if number == 3 else 2_000_000 * (number + 1),
            end_user="customer-1",
            latency_ms=120,
        )
    EndUser.objects.register(organization_id=globex.organization.pk, user="customer-1")
    EndUser.objects.register(organization_id=globex.organization.pk, user="customer-2")
    return Scene(
        globex, ApiKey.objects.get(name="inference", workspace=globex.workspace), generation
    )


def walk(
    server: str, scene: Scene, role: Role | None, story: Story, *, by: User | None = None
) -> None:
    """Walks a story as a new operator with a role, or as a superuser, or as ``by``."""
    operator = make_operator(role) if by is None else by
    assert take_walk(server, operator, lambda path: story(path, scene)) == []


def test_dialog_says_what_a_suspension_stops(server: str, scene: Scene) -> None:
    def story(walk: Walk, scene: Scene) -> None:
        walk.page.goto(change_page(scene.tenant.organization))
        walk.page.get_by_role("link", name="Suspend").click()
        told = walk.page.locator("#dialog [aria-label=Consequences]")
        assert "8 requests" in told.inner_text()
        walk.look("suspend")
        walk.page.fill("#dialog [name=reason]", "The invoice is not paid.")
        with walk.page.expect_navigation():
            walk.page.locator("#dialog button[type=submit]").click()
        walk.look("suspended")

    walk(server, scene, Role.ADMINISTRATOR, story)
    assert Organization.objects.get(pk=scene.tenant.organization.pk).is_suspended


def test_what_waits_for_finance_is_one_click_away(server: str, scene: Scene) -> None:
    factories.make_excess(scene.tenant, reference=scene.generation.pk)

    def story(walk: Walk, scene: Scene) -> None:
        walk.page.goto("/admin/")
        walk.look("waiting")
        walk.page.locator("#waiting a").first.click()
        walk.page.wait_for_url("**/billing/excess/**")
        assert walk.page.locator("#result_list tbody").count() == 1
        walk.page.locator("#result_list tbody a").first.click()
        walk.page.wait_for_url("**/change/**")
        submit_dialog(walk.page, "Write off", note="A fault of the provider.")
        assert "written off" in walk.said()
        walk.look("excess-decided")

    walk(server, scene, Role.FINANCE, story)


def test_refusals_and_errors_are_plain_words(server: str, scene: Scene) -> None:
    def story(walk: Walk, scene: Scene) -> None:
        walk.page.goto(listing(User))
        assert "Your roles: Support." in walk.page.locator("main").inner_text()
        walk.look("refused")
        walk.page.goto("/admin/nothing/")
        walk.look("missing")
        walk.page.goto(listing(EndUser, "add"))
        walk.page.locator("[name=_save]").click()
        walk.page.locator(".cw-errors").wait_for()
        walk.look("form-errors")
        walk.page.goto(listing(EndUser))
        walk.page.locator("#action-toggle").check()
        walk.page.select_option("select[name=action]", label="Mark as inactive")
        press(walk.page, "Run")
        walk.look("bulk-question")
        with walk.page.expect_navigation():
            walk.page.locator("button[type=submit].bg-red-600").click()
        assert "2 done" in walk.said()
        walk.look("bulk-result")

    walk(server, scene, Role.SUPPORT, story)
    assert not EndUser.objects.filter(is_active=True).exists()


def test_price_waits_for_a_second_person(server: str, scene: Scene) -> None:
    demand(ChangeKind.PRICES, ChangeKind.CREDENTIALS)
    endpoint = scene.generation.model_endpoint
    assert endpoint is not None

    def propose(walk: Walk, scene: Scene) -> None:
        walk.page.goto(change_page(endpoint))
        note = walk.page.get_by_role("note").inner_text()
        assert note.startswith("Another operator (Administrator or Finance) must approve changes")
        walk.look("propose-price")
        walk.page.fill("#id_prompt", "9")
        walk.page.fill("#id_change_reason", "The provider has a new price list.")
        press(walk.page, "Save or propose")
        assert "Nothing was changed" in walk.said()
        buttons = walk.page.locator("#main, header").get_by_role("link")
        assert buttons.filter(has_text="Withdraw").count() == 1
        assert buttons.filter(has_text="Approve").count() == 0
        walk.look("change-set-proposed")

    def look_on(walk: Walk, scene: Scene) -> None:
        walk.page.goto(listing(ChangeSet))
        walk.look("change-sets")
        walk.page.get_by_role("link", name="#").first.click()
        walk.page.wait_for_url("**/change/**")
        links = walk.page.get_by_role("link")
        assert links.filter(has_text="Approve").count() == 0
        walk.page.goto(change_page(endpoint))
        assert walk.page.get_by_role("note").count() == 0
        assert walk.page.get_by_role("button", name="propose").count() == 0

    def approve(walk: Walk, scene: Scene) -> None:
        walk.page.goto(listing(Provider, "add"))
        assert walk.page.get_by_role("button", name="Propose").count() == 1
        walk.look("propose-provider")
        walk.page.goto("/admin/")
        walk.page.locator("#waiting a").filter(has_text="Change sets").click()
        walk.page.wait_for_url("**/config/changeset/**")
        walk.page.locator("#result_list tbody a").first.click()
        walk.page.wait_for_url("**/change/**")
        assert "+" in walk.page.locator(".cw-plan").inner_text()
        walk.look("change-set-waits")
        submit_dialog(walk.page, "Approve")
        walk.look("change-set-applied")

    # An account that is younger than the proposal could not approve it.
    roles_of = {"ann": Role.FINANCE, "eve": Role.READ_ONLY, "bob": Role.ADMINISTRATOR}
    ann, eve, bob = (make_operator(role, name) for name, role in roles_of.items())
    walk(server, scene, Role.FINANCE, propose, by=ann)
    walk(server, scene, Role.READ_ONLY, look_on, by=eve)
    endpoint.refresh_from_db()
    before = endpoint.price.prompt
    walk(server, scene, Role.ADMINISTRATOR, approve, by=bob)
    endpoint.refresh_from_db()
    assert (before == endpoint.price.prompt, endpoint.price.prompt) == (False, Decimal("0.000009"))
