"""The scripts of the console and their security policy in a real browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.urls import reverse
from playwright.sync_api import Page

from accounts.models import ApiKey
from billing.models import Transfer
from catalog.models import ModelEndpoint
from config.apps import Role
from config.console.sign_in import roles
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.browser import MARKS, OVERFLOW, browse, choose, submit_dialog
from tests.support.console import page as page_path
from tests.support.console import urls
from tests.support.simulator.server import Simulator
from tests.support.suite.tiers import draw_examples
from tests.support.upstreams.listing import answer_models
from tests.support.upstreams.tls import serving

pytestmark = [*MARKS, pytest.mark.usefixtures("superuser")]

# By how many pixels a list is wider than its place, in which it would scroll sideways.
BEYOND = """() => {
    const list = document.querySelector('#result_list');
    return list ? list.scrollWidth - list.parentElement.clientWidth : 0;
}"""


def test_private_endpoint_is_validated_and_activated_in_dialogs(
    server: str, simulator: Simulator
) -> None:
    tenant, provider = factories.make_tenant(), factories.make_provider()
    factories.make_credential(tenant, provider)
    endpoint = factories.make_draft(
        tenant, factories.make_model(), provider, base_url=simulator.base_url
    )
    path = reverse("admin:endpoints_privateendpoint_change", args=[endpoint.pk])
    seen: list[str] = []

    def visit(page: Page) -> None:
        page.goto(path)
        submit_dialog(page, "Validate")
        seen.append(page.locator("#main").inner_text())
        submit_dialog(page, "Activate")
        seen.append(page.locator("#main").inner_text())

    assert browse(server, visit) == []
    assert "The validation passed." in seen[0]
    assert "The endpoint is active." in seen[1]
    endpoint.refresh_from_db()
    assert endpoint.status == PrivateEndpoint.Status.ACTIVE


def test_a_double_click_sends_a_dialog_once(server: str) -> None:
    tenant = factories.make_tenant()
    path = page_path(tenant.organization, "grant")
    sent: list[str] = []

    def visit(page: Page) -> None:
        page.on("request", lambda made: sent.extend([made.url] * (made.method == "POST")))
        page.goto(page_path(tenant.organization))
        page.get_by_role("link", name="Grant credits").first.click()
        page.locator("#dialog [name=amount]").fill("5")
        with page.expect_navigation():
            page.locator("#dialog button[type=submit]").dblclick()

    assert browse(server, visit) == []
    assert sent == [f"{server}{path}"]
    assert Transfer.objects.filter(kind=Transfer.Kind.GRANT, amount_nano=5 * 10**9).count() == 1


@pytest.mark.parametrize("width", [1440, 1280, 1024, 390])
def test_many_actions_leave_room_for_the_title(
    server: str, simulator: Simulator, width: int
) -> None:
    tenant, model, provider = (
        factories.make_tenant(),
        factories.make_model(),
        factories.make_provider(),
    )
    endpoint = factories.make_active(tenant, model, provider, base_url=simulator.base_url)
    found: list[Any] = []

    def visit(page: Page) -> None:
        page.goto(page_path(endpoint))
        menu = page.get_by_role("button", name="Actions", exact=True)
        found.append(menu.is_visible())
        title = page.locator("#header-inner .truncate").last
        found.append((page.evaluate(OVERFLOW), title.evaluate("each => each.clientWidth > 40")))
        if found[0]:
            menu.click()
        submit_dialog(page, "Pool", weight="5")

    assert browse(server, visit, width=width) == []
    assert found == [width < 1280, (0, True)]
    endpoint.refresh_from_db()
    assert endpoint.settings["routing"]["weight"] == 5


@pytest.mark.parametrize("width", [1440, 390])
def test_what_a_test_of_a_server_says_is_in_sight(server: str, width: int) -> None:
    seen: list[bool] = []

    def visit(page: Page) -> None:
        page.goto(reverse("admin:catalog_provider_connect"))
        page.fill("#id_target", "nobody")
        page.get_by_role("button", name="Test").click()
        said = page.get_by_role("alert").filter(has_text="There is no provider")
        said.wait_for()
        page.wait_for_function(
            "each => Math.floor(each.getBoundingClientRect().bottom) <= innerHeight",
            arg=said.element_handle(),
        )
        seen.append(said.is_visible())

    assert browse(server, visit, width=width) == []
    assert seen == [True]


def test_a_server_with_more_models_than_a_form_has_fields_is_connected(server: str) -> None:
    listed = [{"id": f"model-{number}", "object": "model"} for number in range(1_010)]

    def visit(page: Page) -> None:
        page.goto(reverse("admin:catalog_provider_connect"))
        page.fill("#id_target", f"http://127.0.0.1:{upstream.port}/v1")
        page.check("#id_allows")
        page.get_by_role("button", name="Test", exact=True).click()
        page.get_by_role("button", name="Connect", exact=True).click(timeout=60_000)
        page.wait_for_url("**/change/", timeout=60_000)

    with serving(answer_models(listed)) as upstream:
        assert browse(server, visit) == []
    assert ModelEndpoint.objects.count() == 1_010


@pytest.mark.parametrize("width", [1440, 390])
def test_key_is_created_and_fits_its_page(server: str, width: int) -> None:
    factories.make_tenant()
    seen: list[str] = []
    overflow: list[int] = []

    def visit(page: Page) -> None:
        page.goto(reverse("admin:accounts_apikey_add"))
        choose(page, "workspace", "Acme / Default")
        page.fill("#id_name", "CI")
        page.locator("[name=_save]").click()
        seen.append(page.locator("#api-key").inner_text())
        page.get_by_text("OpenAI SDK", exact=True).click()
        seen.append(page.locator("details[open] pre").last.inner_text())
        overflow.append(page.evaluate(OVERFLOW))

    assert browse(server, visit, width=width) == []
    assert re.fullmatch(r"sk-cw-[0-9A-Za-z]{49}", seen[0])
    assert f'api_key="{seen[0]}"' in seen[1]
    assert overflow == [0]
    assert factories.client(seen[0]).get("/api/v1/key").status_code == 200
    assert ApiKey.objects.filter(name="CI").count() == 1


@pytest.mark.parametrize("width", [1024, 390])
def test_pages_of_operators_and_roles_fit_a_small_window(server: str, width: int) -> None:
    roles.update_roles()
    rows = (User.objects.get(), Group.objects.get(name=Role.SUPPORT))
    overflow: list[int] = []

    def visit(page: Page) -> None:
        for row in rows:
            page.goto(page_path(row))
            # Scripts make two lists of each choice of many.
            page.locator(".selector-chosen").first.wait_for()
            overflow.append(page.evaluate(OVERFLOW))

    assert browse(server, visit, width=width) == []
    assert overflow == [0, 0]


def test_no_list_scrolls_sideways_in_a_small_window(server: str, world: dict[str, Any]) -> None:
    lists = [path for name, path in urls(world) if name.endswith("_changelist")]
    beyond: dict[str, int] = {}

    def visit(page: Page) -> None:
        for path in draw_examples(lists):
            page.goto(path)
            beyond[path] = page.evaluate(BEYOND)

    assert browse(server, visit, width=1024) == []
    assert len(lists) > 30
    assert {path: pixels for path, pixels in beyond.items() if pixels > 0} == {}
