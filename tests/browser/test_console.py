"""The console in a real browser: what no test client sees, scripts and their policy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Page, sync_playwright

from accounts.models import ApiKey
from config.simulator import Simulator
from endpoints.models import PrivateEndpoint
from tests import factories

CHROMIUM = Path("/usr/bin/chromium")
PASSWORD = "a long enough password"

pytestmark = [
    pytest.mark.slow,
    # WhiteNoise hands its files to an asynchronous server by a synchronous iterator.
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous:Warning"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium"),
]


def browse(server: str, visit: Callable[[Page], None], *, width: int = 1440) -> list[str]:
    """Logs in, makes the visit, and returns what the browser complained of or fetched elsewhere.

    The database cannot be used inside: the driver runs an event loop in this thread.
    """
    complaints: list[str] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                "--disable-component-update", "--disable-sync", "--no-first-run",
            ],
        )  # fmt: skip
        page = browser.new_page(base_url=server, viewport={"width": width, "height": 900})

        def complain(text: str, *, when: bool = True) -> None:
            if when:
                complaints.append(text)

        page.on("console", lambda said: complain(said.text, when=said.type in ("error", "warning")))
        page.on("pageerror", lambda error: complain(str(error)))
        page.on(
            "request",
            lambda request: complain(request.url, when=not request.url.startswith(server)),
        )
        page.goto("/admin/login/?next=/admin/")
        page.fill("#id_username", "operator")
        page.fill("#id_password", PASSWORD)
        page.click("button[type=submit]")
        page.wait_for_url("**/admin/")
        visit(page)
        browser.close()
    return complaints


def submit_dialog(page: Page, title: str) -> None:
    page.get_by_role("link", name=title, exact=False).first.click()
    with page.expect_navigation():
        page.locator("#dialog button[type=submit]").click()


def test_private_endpoint_is_validated_and_activated_in_dialogs(
    server: str, simulator: Simulator
) -> None:
    User.objects.create_superuser("operator", password=PASSWORD)
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


@pytest.mark.parametrize("width", [1440, 390])
def test_key_is_created_and_fits_its_page(server: str, width: int) -> None:
    User.objects.create_superuser("operator", password=PASSWORD)
    factories.make_tenant()
    seen: list[str] = []
    overflow: list[int] = []

    def visit(page: Page) -> None:
        page.goto(reverse("admin:accounts_apikey_add"))
        page.locator("[aria-labelledby=select2-id_workspace-container]").click()
        page.get_by_role("option", name="Acme / Default").click()
        page.fill("#id_name", "CI")
        page.locator("[name=_save]").click()
        seen.append(page.locator("#api-key").inner_text())
        overflow.append(page.evaluate("document.documentElement.scrollWidth - innerWidth"))

    assert browse(server, visit, width=width) == []
    assert re.fullmatch(r"sk-cw-[0-9A-Za-z]{49}", seen[0])
    assert overflow == [0]
    assert factories.client(seen[0]).get("/api/v1/key").status_code == 200
    assert ApiKey.objects.filter(name="CI").count() == 1
