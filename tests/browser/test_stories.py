"""What operators do all day, each story walked by the role that may do it, on every screen.

Guardrails have a walk of their own in ``test_guardrails``. ``CAUSEWAY_SCREENSHOTS=DIR`` takes a
picture of each stop, at each width and in both colours.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import pytest
from django.contrib.auth.models import Group, User
from django.core.cache import cache
from django.utils import timezone
from playwright.sync_api import Page

from accounts.models import ApiKey, Member, Organization
from catalog import imports
from catalog.models import LanguageModel, Provider
from config.apps import Role
from config.changes.kinds import Kind
from config.changes.models import ChangeSet
from config.console.sign_in import roles
from endusers.models import EndUser
from inference.models import Generation
from tests.support import factories
from tests.support.browser import (
    CUT_OFF,
    MARKS,
    OVERFLOW,
    PASSWORD,
    choose,
    log_in,
    page_of,
    press,
    set_theme,
    submit_dialog,
)
from tests.support.console import listing
from tests.support.console import page as change_page
from tests.support.operators.four_eyes import demand

pytestmark = [*MARKS]

PICTURES: Final = os.environ.get("CAUSEWAY_SCREENSHOTS", "")
# A refusal that a story asks for is no complaint of the browser.
ASKED_FOR: Final = re.compile("status of 40[34]")
WIDTHS: Final = (1440, 1024, 390)
THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")


class Walk:
    """One operator's way through the console, which is looked at on every screen at each stop."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[Any] = []

    def look(self, stop: str) -> None:
        """Notes what does not fit at this stop."""
        for width, theme in itertools.product(WIDTHS, THEMES):
            self.page.set_viewport_size({"width": width, "height": 900})
            set_theme(self.page, theme)
            beyond, cut = self.page.evaluate(OVERFLOW), self.page.evaluate(CUT_OFF)
            if beyond > 0 or cut:
                self.faults.append((stop, width, theme, beyond, cut))
            if PICTURES:
                name = Path(PICTURES) / f"{stop}-{width}-{theme}.png"
                self.page.screenshot(path=name, full_page=True)
        self.page.set_viewport_size({"width": WIDTHS[0], "height": 900})
        set_theme(self.page, "light")

    def said(self) -> str:
        """Returns the message that the last action displayed."""
        return self.page.locator("#main li > div.rounded-default").first.inner_text()


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


def make_operator(role: Role | None, name: str = "operator") -> User:
    """Returns a new operator with a role, or a superuser."""
    operator = User.objects.create_user(
        name, password=PASSWORD, is_staff=True, is_superuser=role is None
    )
    if role is not None:
        operator.groups.add(Group.objects.get(name=role))
    return operator


def walk(
    server: str, scene: Scene, role: Role | None, story: Story, *, by: User | None = None
) -> None:
    """Walks a story as a new operator with a role, or as a superuser, or as ``by``."""
    operator = make_operator(role) if by is None else by
    with page_of(server) as (page, complaints):
        log_in(page, name=operator.get_username())
        path = Walk(page)
        story(path, scene)
    assert [each for each in complaints if not ASKED_FOR.search(each)] == []
    assert path.faults == []


def test_who_spends_is_seen_at_once_and_stopped(server: str, scene: Scene) -> None:
    def story(walk: Walk, scene: Scene) -> None:
        walk.page.goto("/admin/")
        walk.look("home")
        walk.page.get_by_role("link", name="Globex").first.click()
        walk.page.locator("#usage").get_by_role("link", name="7 days").click()
        walk.look("organization")
        walk.page.get_by_text("As a table").first.click()
        assert walk.page.locator("#usage details[open] tbody tr").count() == 7
        walk.page.locator("#usage").get_by_role("link", name="inference").first.click()
        walk.look("key")
        submit_dialog(walk.page, "Pause")
        assert walk.said() == "The key is paused."
        walk.look("key-paused")

    walk(server, scene, Role.ADMINISTRATOR, story)
    scene.key.refresh_from_db()
    assert scene.key.disabled


def test_new_key_is_shown_once_with_its_snippets(server: str, scene: Scene) -> None:
    def story(walk: Walk, scene: Scene) -> None:
        walk.page.goto(listing(ApiKey, "add"))
        choose(walk.page, "workspace", "Globex / Default")
        walk.page.fill("#id_name", "CI")
        walk.look("key-add")
        press(walk.page, "Save")
        walk.look("key-issued")
        assert walk.page.get_by_text("Claude Code", exact=True).count() == 1
        walk.page.get_by_role("link", name="I have copied the key").click()
        walk.page.wait_for_url("**/change/")
        submit_dialog(walk.page, "Limit spending", limit="12.50")
        assert "12.5" in walk.page.locator("#main").inner_text()

    walk(server, scene, None, story)
    assert ApiKey.objects.get(name="CI").limit_nano == 12_500_000_000


def test_customer_is_led_by_its_tabs(server: str, scene: Scene) -> None:
    page_of_globex = change_page(scene.tenant.organization)

    def story(walk: Walk, scene: Scene) -> None:
        walk.page.goto(page_of_globex)
        tabs = walk.page.locator("nav.cw-tabs a")
        assert tabs.first.inner_text() == "Overview"
        tabs.get_by_text("Members", exact=True).click()
        walk.look("members")
        walk.page.locator("a.addlink").click()
        assert "Globex" in walk.page.locator("#id_organization + .select2-container").inner_text()
        walk.page.fill("#id_email", "ann@globex.example")
        press(walk.page, "Save")
        assert "Globex" in walk.page.locator("nav.cw-tabs").inner_text()
        walk.look("member-added")

    walk(server, scene, Role.SUPPORT, story)
    assert Member.objects.get(email="ann@globex.example").organization == scene.tenant.organization


def test_anything_is_found_by_what_a_customer_names(server: str, scene: Scene) -> None:
    def story(walk: Walk, scene: Scene) -> None:
        walk.page.keyboard.press("Control+k")
        walk.page.locator("#search-input-command").fill(scene.generation.pk)
        walk.page.locator("#search-input-command").press("End")
        walk.page.locator("#command-results a").wait_for()
        walk.look("found")
        walk.page.keyboard.press("Enter")
        walk.page.wait_for_url("**/change/")
        walk.look("generation")
        walk.page.goto(f"{listing(Generation)}?status__exact=failed")
        assert walk.page.locator("#result_list tbody").count() == 1
        walk.page.get_by_role("button", name="Filters").click()
        walk.look("filters")
        walk.page.keyboard.press("Escape")
        with walk.page.expect_download() as file:
            walk.page.get_by_role("link", name="Export as CSV").click()
        assert Path(file.value.path()).read_text().count("\n") == 2

    walk(server, scene, Role.READ_ONLY, story)


def test_price_file_shows_its_risky_change_before_it_counts(
    server: str, scene: Scene, tmp_path: Path
) -> None:
    file = json.loads(imports.export()[0])
    [listed] = [each for each in file["endpoints"] if each["model"].startswith("acme/falcon")]
    listed["pricing"]["prompt"] = "0.00001"
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps(file))

    def story(walk: Walk, scene: Scene) -> None:
        walk.page.goto(listing(LanguageModel))
        walk.page.get_by_role("link", name="Import file").click()
        walk.page.set_input_files("#id_file", prices)
        press(walk.page, "Preview the import")
        text = walk.page.locator(".cw-plan").inner_text()
        assert "+900 %" in text
        walk.look("import-plan")

    walk(server, scene, Role.ADMINISTRATOR, story)


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
    demand(Kind.PRICES, Kind.CREDENTIALS)
    endpoint = scene.generation.model_endpoint
    assert endpoint is not None

    def propose(walk: Walk, scene: Scene) -> None:
        walk.page.goto(change_page(endpoint))
        note = walk.page.get_by_role("note").inner_text()
        assert note.startswith("Another operator (Administrator or Finance) must approve changes")
        walk.look("propose-price")
        walk.page.fill("#id_prompt", "0.000009")
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


@pytest.mark.parametrize(
    ("role", "may"),
    [(Role.READ_ONLY, False), (Role.SUPPORT, False), (Role.FINANCE, True)],
)
def test_roles_see_only_what_they_may_do(server: str, scene: Scene, role: Role, may: bool) -> None:
    def story(walk: Walk, scene: Scene) -> None:
        walk.page.goto(change_page(scene.tenant.organization))
        assert (walk.page.get_by_role("link", name="Grant credits").count() > 0) == may
        walk.page.goto("/admin/")
        assert walk.page.locator("#nav-sidebar-apps").get_by_text("Users", exact=True).count() == 0

    walk(server, scene, role, story)
