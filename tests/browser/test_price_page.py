"""An operator edits a price in a real browser: adds a row, corrects it, previews and saves."""

from __future__ import annotations

import os

import pytest
from playwright.sync_api import Page

from catalog.models import ModelEndpoint
from tests.support import factories
from tests.support.browser import CUT_OFF, MARKS, OVERFLOW, browse, press
from tests.support.inference.prices import read_pricing

pytestmark = [*MARKS, pytest.mark.usefixtures("superuser")]


@pytest.mark.parametrize("width", [1440, 390])
def test_a_price_is_edited_row_by_row(server: str, width: int) -> None:
    price = read_pricing(
        {
            "prompt": "0.000001",
            "completion": "0.000002",
            "overrides": [{"min_prompt_tokens": 200_000, "prompt": "0.000002"}],
        }
    )
    endpoint = factories.make_endpoint(
        factories.make_model("acme/falcon-with-a-rather-long-name"),
        factories.make_provider("acme"),
        price=price,
    )
    seen: list[tuple[int, list[str]]] = []

    def look(page: Page, name: str) -> None:
        for theme in ("light", "dark"):
            page.evaluate(f"document.documentElement.className = '{theme}'")
            seen.append((page.evaluate(OVERFLOW), page.evaluate(CUT_OFF)))
            if folder := os.environ.get("PICTURES"):
                page.screenshot(path=f"{folder}/{name}-{width}-{theme}.png", full_page=True)
        page.evaluate("document.documentElement.className = 'light'")

    def visit(page: Page) -> None:
        page.goto(f"/admin/catalog/modelendpoint/{endpoint.pk}/price/")
        press(page, "Add a row")
        page.select_option("#id_rules-1-billable", "image")
        page.fill("#id_rules-1-variant", "1024x1024/high")
        page.fill("#id_rules-1-price", "0.167")
        page.fill("#id_rates-prompt", "12")
        press(page, "Preview the change")
        page.get_by_text("Must be 'image'.").wait_for()
        look(page, "price-error")
        page.select_option("#id_rules-1-unit", "image")
        press(page, "Preview the change")
        page.get_by_text("+1,100 %").wait_for()
        look(page, "price-preview")
        press(page, "Save the new price")
        page.get_by_text("The new price is saved.").wait_for()

    assert browse(server, visit, width=width) == []
    assert seen == [(0, [])] * 4
    stored = ModelEndpoint.objects.get().price
    assert stored.price.text("prompt") == "0.000012"
    assert len(stored.price.rules) == 2
