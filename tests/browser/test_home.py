"""The home page of the console and the login with a second factor in a real browser."""

from __future__ import annotations

import re
from base64 import b32decode
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.utils import timezone
from django_otp.oath import totp as code_at
from django_otp.plugins.otp_totp.models import TOTPDevice
from playwright.sync_api import Page, expect

from inference.ids import new_generation_id
from tests.support import factories
from tests.support.browser import MARKS, OVERFLOW, PASSWORD, browse, open_search

pytestmark = [*MARKS, pytest.mark.usefixtures("superuser")]


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_home_fits_the_window_and_draws_its_charts(server: str, width: int) -> None:
    cache.clear()
    tenant = factories.make_tenant("A rather long name of an organization that is a customer")
    now = timezone.now()
    for hours in range(6):
        made = now - timedelta(hours=hours)
        number = new_generation_id().rsplit("-", 1)[1]
        factories.make_generation(
            tenant,
            id=f"gen-{int(made.timestamp())}-{number}",
            created_at=made,
            cost_nano=1_000_000 * (hours + 1),
            latency_ms=100,
            end_user="customer-42" * 8,
            status="failed" if hours == 3 else "completed",
        )
    seen: list[tuple[int, int]] = []
    ranges: list[str] = []

    def look(page: Page) -> None:
        bars = page.locator("svg.cw-chart rect")
        overflow = page.evaluate(OVERFLOW)
        seen.append((bars.count() // 10, overflow))

    def visit(page: Page) -> None:
        page.goto("/admin/")
        look(page)
        page.evaluate("document.documentElement.classList.add('dark')")
        look(page)
        page.get_by_role("link", name="30d").click()
        page.wait_for_url("**/admin/?range=30d")
        look(page)
        ranges.append(page.locator("[aria-label=Range] [aria-current]").inner_text())

    assert browse(server, visit, width=width) == []
    assert seen == [(7, 0), (7, 0), (9, 0)]
    assert ranges == ["30d"]


def test_palette_finds_a_page(server: str) -> None:
    seen: list[str] = []

    def visit(page: Page) -> None:
        page.goto("/admin/")
        open_search(page)
        page.locator("#search-input-command").press_sequentially("audit")
        found = page.locator("#command-results a")
        found.wait_for()
        seen.append(found.inner_text())
        found.click()
        page.wait_for_url("**/admin/config/auditentry/")

    assert browse(server, visit) == []
    assert "Audit" in seen[0]


def test_second_factor_is_set_up_and_required(server: str) -> None:
    seen: list[str] = []
    codes: list[str] = []

    def visit(page: Page) -> None:
        page.goto("/admin/two-factor/")
        key = page.locator("code").inner_text().replace(" ", "")
        device = TOTPDevice(key=_hex(key))
        page.fill("#id_otp_token", f"{code_at(device.bin_key):06d}")
        page.click("button[type=submit]")
        expect(page.locator("#backup-codes li")).to_have_count(10)
        codes.extend(page.locator("#backup-codes li").all_inner_texts())
        page.context.clear_cookies()
        page.goto("/admin/login/?next=/admin/")
        page.fill("#id_username", "operator")
        page.fill("#id_password", PASSWORD)
        page.click("button[type=submit]")
        seen.append(page.locator("[role=alert]").inner_text())
        page.fill("#id_password", PASSWORD)
        page.fill("#id_otp_token", codes[0])
        page.click("button[type=submit]")
        page.wait_for_url("**/admin/")

    assert browse(server, visit) == []
    assert len(codes) == 10
    assert re.fullmatch("[a-z2-7]{8}", codes[0])
    assert seen == ["Enter the code that your authenticator app shows, or a backup code."]


def _hex(key: str) -> str:
    return b32decode(key).hex()
