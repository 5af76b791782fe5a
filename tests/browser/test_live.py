"""The pages that watch the traffic, in a real browser."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.utils import timezone
from playwright.sync_api import Page, expect

from billing.models import GrantRequest
from config.clocks.leases import Lease
from endpoints.models import PrivateEndpoint
from inference.models import Generation
from tests.support import factories
from tests.support.browser import CUT_OFF, MARKS, OVERFLOW, PASSWORD, browse
from tests.support.factories import Tenant
from tests.support.operators.walks import ask_database as write

pytestmark = [*MARKS]

LIVE = "/admin/inference/generation/live/"
NAME = "A rather long name of an organization that is a customer"


@pytest.fixture
def customer(server: str) -> Tenant:
    cache.clear()
    User.objects.create_superuser("operator", password=PASSWORD)
    return factories.make_tenant(NAME)


def test_requests_appear_and_end_while_an_operator_watches(server: str, customer: Tenant) -> None:
    old = factories.make_generation(customer, model="acme/old")

    def visit(page: Page) -> None:
        page.goto(f"{LIVE}?model__exact=acme/old")
        expect(page.locator("tr[data-id]")).to_have_count(1)
        page.goto(LIVE)
        rows = page.locator("#live tbody tr")
        expect(rows).to_have_count(1)
        expect(page.locator("[data-status]")).to_have_text("Live: new requests appear at the top.")

        made = write(lambda: factories.make_generation(customer, status="pending"))
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("pending")
        assert rows.first.get_attribute("data-id") == made.pk
        rename = Generation.objects.filter(pk=made.pk)
        write(lambda: rename.update(status="failed", error_type="upstream_error"))
        expect(rows.first).to_contain_text("upstream_error")

        page.get_by_role("button", name="Pause").click()
        expect(page.locator("[data-status]")).to_have_text("Paused: nothing is asked.")
        with page.expect_request(lambda request: "live/rows" in request.url):
            write(lambda: factories.make_generation(customer))
            page.get_by_role("button", name="Resume").click()
        expect(rows).to_have_count(3)
        assert rows.last.get_attribute("data-id") == old.pk
        page.get_by_role("link", name="List with these filters").click()
        page.wait_for_url("**/admin/inference/generation/?")

    assert browse(server, visit) == []


def make_day(customer: Tenant) -> None:
    """Makes what the pages of a bad day show."""
    model, provider = factories.make_model("acme/falcon-9-instruct"), factories.make_provider()
    public = factories.make_endpoint(model, provider)
    private = factories.make_draft(customer, model, provider)
    now = timezone.now()
    PrivateEndpoint.objects.filter(pk=private.pk).update(drifted_at=now)
    for number in range(24):
        endpoint = private if number % 3 == 0 else public
        kind = "private_endpoint" if endpoint is private else "model_endpoint"
        is_bad = number % 4 == 0
        record = {
            "provider": provider.name, "endpoint_id": str(endpoint.pk), "is_byok": False,
            "latency_ms": 10, "status": 502 if is_bad else 200,
        } | ({"error_type": "provider_unavailable"} if is_bad else {})  # fmt: skip
        factories.make_generation(
            customer,
            created_at=now - timedelta(seconds=90 * number),
            provider_name=provider.name,
            status="failed" if is_bad else "completed",
            error_type="provider_unavailable" if is_bad else None,
            attempts=[record],
            latency_ms=100 + number,
            cost_nano=1_234_500,
            prompt_tokens=1_200,
            completion_tokens=345,
            **{kind: endpoint},
        )
    for _ in range(22):
        GrantRequest.objects.create(
            organization=customer.organization, amount_nano=1, requested_by="operator ann"
        )
    Lease.objects.create(
        name="roll_up_hours", until=now, every_seconds=300, succeeded_at=now - timedelta(hours=3)
    )


@pytest.mark.parametrize("width", [1440, 390])
def test_the_pages_fit_the_window_in_both_themes(server: str, customer: Tenant, width: int) -> None:
    make_day(customer)
    folder = os.environ.get("SCREENSHOTS")
    seen: dict[str, Any] = {}

    def look(page: Page, name: str) -> None:
        for theme in ("light", "dark"):
            page.evaluate(
                "is => document.documentElement.classList.toggle('dark', is)", theme == "dark"
            )
            seen[f"{name} {theme}"] = (page.evaluate(OVERFLOW), page.evaluate(CUT_OFF))
            if folder:
                path = Path(folder) / f"{name}-{width}-{theme}.png"
                page.screenshot(path=path, full_page=True)

    def visit(page: Page) -> None:
        page.goto("/admin/")
        expect(page.get_by_text("Grants to approve")).to_be_visible()
        look(page, "home")
        page.goto("/admin/inference/generation/health/")
        expect(page.get_by_text("drifted since").first).to_be_visible()
        look(page, "health")
        page.locator("#board .cw-button").first.click()
        expect(page.locator("#dialog h2")).to_have_text("Validate")
        page.goto("/admin/inference/generation/errors/")
        expect(page.get_by_role("cell", name="provider_unavailable")).to_be_visible()
        look(page, "errors")
        page.goto(LIVE)
        expect(page.locator("tr[data-id]").first).to_be_visible()
        look(page, "live")

    assert browse(server, visit, width=width) == []
    assert seen == {
        f"{name} {theme}": (0, [])
        for name in ("home", "health", "errors", "live")
        for theme in ("light", "dark")
    }


@pytest.mark.parametrize("width", [1440, 390])
def test_an_operator_saves_a_view_and_opens_it(server: str, customer: Tenant, width: int) -> None:
    factories.make_generation(customer, status="failed")
    factories.make_generation(customer)
    folder = os.environ.get("SCREENSHOTS")

    def visit(page: Page) -> None:
        page.goto("/admin/inference/generation/?status__exact=failed")
        page.get_by_text("Save these filters").click()
        page.locator("#view-name").fill("Failed requests")
        if folder:
            page.screenshot(path=Path(folder) / f"views-{width}-light.png", full_page=True)
        with page.expect_navigation():
            page.get_by_role("button", name="Save", exact=True).click()
        tab = page.get_by_role("link", name="Failed requests")
        expect(tab).to_have_attribute("aria-current", "page")
        page.get_by_text("Change this view").click()
        with page.expect_navigation():
            page.get_by_role("button", name="Make default").click()
        page.evaluate("document.documentElement.classList.add('dark')")
        page.get_by_text("Change this view").click()
        if folder:
            page.screenshot(path=Path(folder) / f"views-{width}-dark.png", full_page=True)
        assert page.evaluate(OVERFLOW) == 0

        page.goto("/admin/")
        page.goto("/admin/inference/generation/", referer=f"{server}/admin/")
        expect(page.get_by_role("link", name="Failed requests (default)")).to_have_attribute(
            "aria-current", "page"
        )
        expect(page.locator("#result_list tbody tr")).to_have_count(1)
        page.get_by_role("link", name="All", exact=True).click()
        expect(page.locator("#result_list tbody tr")).to_have_count(2)

    assert browse(server, visit, width=width) == []
