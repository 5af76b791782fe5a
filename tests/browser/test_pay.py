"""The payment page in a real browser, with and without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from billing import verification as audit
from billing.models import TopUp
from billing.topups.chains import Chain
from tests.support import factories
from tests.support.browser import MARKS, OVERFLOW, page_of
from tests.support.chains.nodes import Contract, chain_of, deploy, start_eth_tester
from tests.support.chains.payments import ask, look

pytestmark = [*MARKS]


@pytest.fixture
def token() -> Iterator[Contract]:
    with start_eth_tester() as node:
        yield deploy(node)


@pytest.fixture
def top_up(server: str, token: Contract, settings: Any) -> tuple[TopUp, Chain]:
    chain = chain_of(token)
    settings.CHAINS = {chain.chain_id: chain}
    look(chain)
    return ask(factories.make_tenant(), chain, token.payers[0], usd_cents=2_500), chain


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_fits_and_shows_the_payment(
    server: str, top_up: tuple[TopUp, Chain], width: int, scheme: str, tmp_path: Any
) -> None:
    asked, _ = top_up
    with page_of(server, width=width, color_scheme=scheme) as (page, complaints):
        page.goto(f"/pay/{asked.pk}")
        assert page.locator("h1").inner_text() == asked.amount_text
        assert page.locator("#said").inner_text() == "Waiting for the payment"
        assert page.locator("#left").inner_text().startswith(("59:", "01:00:00"))
        assert page.locator("svg.code").bounding_box()["width"] >= 200  # type: ignore[index]
        assert page.get_by_role("link", name="Open in a wallet").last.get_attribute("href") == (
            asked.payment_uri
        )
        page.locator("summary").click()
        assert page.evaluate(OVERFLOW) == 0
        page.screenshot(path=tmp_path / f"pay-{width}-{scheme}.png", full_page=True)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert complaints == []
    assert ground == {"light": "rgb(245, 246, 248)", "dark": "rgb(15, 17, 21)"}[scheme]


def test_a_payment_appears_without_a_reload(
    server: str, top_up: tuple[TopUp, Chain], token: Contract, together: Callable[..., list[Any]]
) -> None:
    asked, chain = top_up

    def pay() -> None:
        token.pay(asked.units)
        look(chain)

    with page_of(server) as (page, complaints):
        page.goto(f"/pay/{asked.pk}")
        # The driver runs an event loop in this thread, so the database is used in another thread.
        together(pay)
        page.wait_for_selector("body[data-status=confirmed]")
        assert page.locator("#said").inner_text() == "Paid and credited"
        assert page.locator("#count").inner_text() == "1"
        assert not page.locator(".pay").is_visible()
        assert not page.locator(".deadline").is_visible()
    assert complaints == []
    assert audit.find_differences() == []


def test_the_page_works_without_scripts(server: str, top_up: tuple[TopUp, Chain]) -> None:
    asked, _ = top_up
    with page_of(server, java_script_enabled=False) as (page, complaints):
        page.goto(f"/pay/{asked.pk}")
        assert page.locator("h1").inner_text() == asked.amount_text
        assert page.locator("svg.code").is_visible()
        assert not page.locator("#countdown").is_visible()
        assert page.get_by_text("Pay before").is_visible()
    assert complaints == []


def test_a_page_whose_payment_is_seen_does_not_ask_for_another(
    server: str, token: Contract, settings: Any
) -> None:
    chain = chain_of(token, confirmations=3)
    settings.CHAINS = {chain.chain_id: chain}
    look(chain)
    asked = ask(factories.make_tenant(), chain, token.payers[0], usd_cents=2_500)
    token.pay(asked.units)
    look(chain)
    with page_of(server) as (page, complaints):
        page.goto(f"/pay/{asked.pk}")
        assert page.locator("#said").inner_text() == "Payment seen, waiting until it is final"
        assert page.locator("#count").is_visible()
        for part in (".hint", ".deadline", ".pay", "footer"):
            assert not page.locator(part).is_visible()
    assert complaints == []


def test_an_expired_page_does_not_ask_for_a_payment(
    server: str, top_up: tuple[TopUp, Chain]
) -> None:
    asked, _ = top_up
    TopUp.objects.update(expires_at=timezone.now() - timedelta(seconds=30))
    with page_of(server) as (page, complaints):
        page.goto(f"/pay/{asked.pk}")
        assert page.locator("#said").inner_text() == "Expired: do not pay any more"
        for part in (".hint", ".deadline", ".pay", "footer"):
            assert not page.locator(part).is_visible()
    assert complaints == []
