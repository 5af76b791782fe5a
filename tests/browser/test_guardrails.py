"""The form of a guardrail in a real browser: its pickers, its editor and the box to try a text."""

from __future__ import annotations

import os

import pytest
from django.urls import reverse
from playwright.sync_api import Page

from accounts.models import Guardrail, GuardrailShadow, KeyAssignment
from config.credentials import Secret
from tests.support import factories
from tests.support.browser import CUT_OFF, MARKS, OVERFLOW, browse, press
from tests.support.governance import make_guardrail, make_key

pytestmark = [*MARKS, pytest.mark.usefixtures("superuser")]


def pick(page: Page, field: str, text: str, name: str) -> None:
    """Searches in a picker of several values, and takes what has this name."""
    box = page.locator(f"#id_{field} + .select2 .select2-search__field")
    box.click()
    box.press_sequentially(text)
    page.get_by_role("option", name=name, exact=True).click()


@pytest.mark.parametrize("width", [1440, 390])
def test_guardrail_is_filled_in_tried_and_assigned(server: str, width: int) -> None:
    tenant = factories.make_tenant()
    provider = factories.make_provider("acme")
    provider.set_credential(Secret("operator-credential-0123456789"))
    endpoint = factories.make_endpoint(factories.make_model("acme/falcon"), provider)
    factories.make_provider("globex", name="Globex Cloud")
    guardrail = make_guardrail(tenant.workspace)
    key = make_key(tenant, "robot")
    factories.make_generation(tenant, api_key=key, model_endpoint=endpoint)
    seen: list[str] = []
    misplaced: list[int | list[str]] = []

    def look(page: Page, name: str) -> None:
        for theme in ("light", "dark"):
            page.evaluate(f"document.documentElement.className = '{theme}'")
            misplaced.extend((page.evaluate(OVERFLOW), page.evaluate(CUT_OFF)))
            if folder := os.environ.get("PICTURES"):
                path = f"{folder}/guardrail-{name}-{width}-{theme}.png"
                page.screenshot(path=path, full_page=name != "dialog")
        page.evaluate("document.documentElement.className = 'light'")

    def visit(page: Page) -> None:
        page.goto(reverse("admin:accounts_guardrail_change", args=[guardrail.pk]))
        pick(page, "allowed_models", "acme", "acme/* (all models of acme)")
        pick(page, "ignored_providers", "globex", "globex (Globex Cloud)")
        page.locator("[name=enforce_zdr_google][value=true]").check()
        page.fill("#id_limit", "25")
        page.select_option("#id_reset_interval", "daily")
        page.get_by_label("What happens to Email addresses").select_option("redact")
        page.get_by_label("Pattern 1", exact=True).fill("x-[0-9]+")
        page.get_by_role("button", name="Add a pattern").click()
        page.get_by_label("Pattern 2", exact=True).fill("secret")
        page.fill("#trial_text", "joe@example.com x-17")
        page.get_by_role("button", name="Try the filters above").click()
        page.locator("#trial_result pre").wait_for()
        seen.append(page.locator("#trial_result pre").inner_text())
        look(page, "form")
        press(page, "Save and continue editing")
        pick(page, "ignored_models", "acme", "acme/* (all models of acme)")
        page.get_by_role("button", name="Backtest", exact=True).click()
        page.get_by_text("this would have refused 1 of 1 requests").wait_for()
        look(page, "backtest")
        press(page, "Save as a shadow")
        page.goto(reverse("admin:accounts_guardrail_change", args=[guardrail.pk]))
        page.get_by_text("No request has been counted yet.").wait_for()
        look(page, "shadow")
        if width < 1000:
            return
        page.locator("[hx-get$='/assign-keys/']").first.click()
        # The dialog takes the focus when it is shown, away from a field that was clicked before.
        page.locator("#dialog :focus").wait_for(state="attached")
        page.locator("#dialog .select2-search__field").click()
        page.locator("#dialog .select2-search__field").press_sequentially("robot")
        page.get_by_role("option", name="robot").click()
        look(page, "dialog")
        with page.expect_navigation():
            page.locator("#dialog button[type=submit]").click()
        seen.append(page.locator("#main").inner_text())

    assert browse(server, visit, width=width) == []
    assert seen[0] == "[EMAIL] [REDACTED]"
    assert misplaced == [0, []] * (8 if width == 1440 else 6)
    guardrail = Guardrail.objects.get()
    assert GuardrailShadow.objects.get().limits["ignored_models"] == ["acme/*"]
    assert (guardrail.allowed_models, guardrail.ignored_providers) == (["acme/*"], ["globex"])
    assert (guardrail.enforce_zdr_google, guardrail.enforce_zdr_xai) == (True, None)
    assert (guardrail.limit_nano, guardrail.reset_interval) == (25_000_000_000, "daily")
    assert [row["pattern"] for row in guardrail.content_filters or ()] == ["x-[0-9]+", "secret"]
    if width == 1440:
        assert "Keys that were assigned: 1." in seen[1]
        assert KeyAssignment.objects.get().api_key_id == key.pk
