"""Every page of the console, as somebody uses it without a mouse or without seeing the screen."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import URLPattern, reverse
from playwright.sync_api import Page, expect

from accounts.models import Organization
from config import urls as routes
from tests.support import factories
from tests.support.browser import MARKS, browse, find_faults, is_file, log_in, open_search, page_of
from tests.support.console import listing, page_paths
from tests.support.console import page as change_page

pytestmark = [*MARKS, pytest.mark.usefixtures("superuser")]

# The tests of the parts run beside each other.
PARTS = 4
# The reference of the API is Swagger's page; the status of a payment and the metrics are data.
FOREIGN = {"docs", "metrics", "pay/<uuid:pk>/status"}
# A script of unfold draws a dialog over a page.
OPEN_DIALOG = """async path => {
    await htmx.ajax('GET', path, {target: '#modal-content', select: '#dialog'});
    Alpine.$data(document.documentElement).openModal = true;
    await new Promise(resolve => setTimeout(resolve, 50));
}"""
CLOSE_DIALOG = "Alpine.$data(document.documentElement).openModal = false"
FOCUSED = """() => {
    const focused = document.activeElement;
    return (focused.getAttribute('aria-label') || focused.innerText || focused.id).trim();
}"""


def public_paths(world: dict[str, Any]) -> list[str]:
    """Returns the addresses of the pages that need no session."""
    found = []
    for pattern in routes.urlpatterns:
        if isinstance(pattern, URLPattern) and str(pattern.pattern) not in FOREIGN:
            place = str(pattern.pattern).replace("<uuid:pk>", str(world["billing.topup"].pk))
            place = place.replace("<path:name>", "settings")
            found.append(f"/{place}")
    unknown = ["/admin/nothing/", "/nothing", "/pay/00000000-0000-0000-0000-000000000000"]
    return [*found, "/admin/login/?next=/admin/", *unknown]


@pytest.mark.parametrize("part", range(PARTS))
def test_no_page_has_a_serious_fault(server: str, world: dict[str, Any], part: int) -> None:
    strange = public_paths(world)[part::PARTS]
    paths = page_paths(world)[part::PARTS]
    dialogs, seen = [], []
    faults: dict[str, list[str]] = {}

    def look(path: str, page: Page, **options: Any) -> None:
        if found := find_faults(page, **options):
            faults[path] = found

    with page_of(server) as (page, _):
        for path in strange:
            page.goto(path)
            look(path, page)
        log_in(page)
        look("/admin/ with its sidebar", page)
        for path in paths:
            if path.endswith("/export/") and is_file(page, path):
                continue
            answer = page.goto(path)
            if answer is None or "<html" not in answer.text():
                dialogs.append(path)
                continue
            seen.append(path)
            look(path, page, but="#nav-sidebar")
            if path.endswith("/add/"):
                with page.expect_navigation():
                    page.locator("[name=_save]").click()
                look(f"{path} with errors", page, but="#nav-sidebar")
        page.goto("/admin/")
        for path in dialogs:
            page.evaluate(OPEN_DIALOG, path)
            look(path, page, inside="#modal-content")
            page.evaluate(CLOSE_DIALOG)

    assert faults == {}
    # Every part has pages without a session, pages of the console, and dialogs.
    assert min(len(strange), len(seen), len(dialogs)) > 0


def test_keyboard_skips_the_navigation_and_finds_a_page(server: str) -> None:
    seen: list[str] = []

    def note(page: Page) -> None:
        seen.append(page.evaluate(FOCUSED))

    def visit(page: Page) -> None:
        page.goto("/admin/")
        page.keyboard.press("Tab")
        note(page)
        page.keyboard.press("Enter")
        page.locator("main:focus").wait_for()
        open_search(page)
        for _ in range(2):
            # Nothing else can be focused in the dialog.
            page.keyboard.press("Tab")
            note(page)
        # An answer for the first letters would take the focus from its own results.
        with page.expect_response(lambda answer: "s=audit" in answer.url):
            page.keyboard.type("audit")
        page.locator("#command-results a").wait_for()
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.getAttribute('href')"))
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Enter")
        page.wait_for_url("**/admin/config/auditentry/")
        open_search(page)
        page.keyboard.press("Escape")
        page.locator("[role=dialog][aria-label='Find anything']").wait_for(state="hidden")

    assert browse(server, visit) == []
    assert seen == [
        "Skip to the content", "Find anything", "Find anything",
        reverse("admin:config_auditentry_changelist"),
    ]  # fmt: skip


def test_dialog_takes_the_focus_keeps_it_and_gives_it_back(server: str) -> None:
    organization = factories.make_tenant().organization
    seen: list[str] = []

    def visit(page: Page) -> None:
        page.goto(change_page(organization))
        page.get_by_role("link", name="Grant credits").focus()
        page.keyboard.press("Enter")
        page.locator("[name=amount]:focus").wait_for()
        for _ in range(5):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.name || " + f"({FOCUSED})()"))
        page.keyboard.press("Escape")
        page.locator("a:focus", has_text="Grant credits").wait_for()
        page.keyboard.press("Enter")
        page.locator("[name=amount]:focus").wait_for()
        page.keyboard.type("0")
        page.keyboard.press("Enter")
        page.locator("[name=amount][aria-invalid=true]:focus").wait_for()

    assert browse(server, visit) == []
    assert seen == ["note", "Cancel", "Grant the credits", "Close", "amount"]


def test_errors_of_a_form_lead_to_their_fields(server: str) -> None:

    def visit(page: Page) -> None:
        page.goto(listing(Organization, "add"))
        open_search(page)
        page.keyboard.press("Escape")
        page.locator("[role=dialog][aria-label='Find anything']").wait_for(state="hidden")
        page.locator("[name=_save]").click()
        page.locator(".cw-errors:focus").wait_for()
        page.locator(".cw-errors a").first.click()
        page.locator("#id_name:focus").wait_for()
        described = page.locator("#id_name").get_attribute("aria-describedby") or ""
        expect(page.locator(f"#{described.split()[-1]}")).to_have_text("This field is required.")

    assert browse(server, visit) == []
