"""An upstream lies about its usage: what it can take, and what the neighbour notices."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import requests

from billing.models import Account, Excess, Transfer
from catalog.pricing import MOST_NANO
from inference.models import Generation
from tests.support import factories
from tests.support.bulkheads.counters import read_counter
from tests.support.inference.site import Site, events_of
from tests.support.ledger import assert_in_order
from tests.support.simulator.behaviours import BEHAVIOURS, ScriptedReply
from tests.support.simulator.protocol import Request, Script, chunked_response, to_sse

CREDITS = 1_000 * 10**9
MAX_TOKENS = 16

# Usages as upstreams may send them, with the believed completion and the reason of the claim.
CLAIMS: list[tuple[dict[str, Any], tuple[int, int], str | None]] = [
    ({"prompt_tokens": 2, "completion_tokens": 600_000}, (2, MAX_TOKENS), "completion"),
    ({"prompt_tokens": 600_000, "completion_tokens": 4}, (-1, 4), "prompt"),
    ({"prompt_tokens": 10**9, "completion_tokens": 10**9}, (-1, MAX_TOKENS), "both"),
    ({"prompt_tokens": 10**18, "completion_tokens": 10**18}, (-1, MAX_TOKENS), "both"),
    ({"prompt_tokens": 10**30, "completion_tokens": 4}, (-1, 4), "prompt"),
    (
        # Some servers count reasoning beside the completion, which only the total shows.
        {
            "prompt_tokens": 2,
            "completion_tokens": 4,
            "total_tokens": 10**9 + 6,
            "completion_tokens_details": {"reasoning_tokens": 10**9},
        },
        (2, MAX_TOKENS),
        "completion",
    ),
    (
        # Parts of a count change its price, but are never more than the count.
        {
            "prompt_tokens": 2,
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 10**18, "cache_write_tokens": 10**18},
            "completion_tokens_details": {"image_tokens": 10**18},
        },
        (2, 4),
        None,
    ),
    (
        # Thoughts above the completion are counted beside it, within the bound.
        {
            "prompt_tokens": 2,
            "completion_tokens": 4,
            "completion_tokens_details": {"reasoning_tokens": 10**18},
        },
        (2, MAX_TOKENS),
        "completion",
    ),
]


def claim(monkeypatch: pytest.MonkeyPatch, usage: dict[str, Any]) -> str:
    """Returns the name of a behaviour that answers well and reports this usage."""

    def script(request: Request) -> Script:
        reply = ScriptedReply.to(request)
        reply.usage = usage
        if request.stream:
            return (chunked_response(to_sse(reply.events(True))),)
        body = json.dumps(reply.plain()).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        return (head.encode() + b"\r\n\r\n" + body,)

    monkeypatch.setitem(BEHAVIOURS, "sim-claim", ("claims what a test needs", script))
    return "sim-claim"


@pytest.fixture
def liar(service: Site) -> Site:
    """The service with an endpoint of its own that lies; the neighbour uses another one."""
    return replace(service, model=factories.make_model("liar/model"))


def read_generation(site: Site, generation_id: str) -> dict[str, Any]:
    answer = requests.get(
        f"{site.server}/api/v1/generation",
        params={"id": generation_id},
        headers={"Authorization": f"Bearer {site.tenant.api_key}"},
        timeout=60,
    )
    data: dict[str, Any] = answer.json()["data"]
    return data


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("usage", "believed", "reason"), CLAIMS)
def test_a_false_usage_takes_at_most_what_was_allowed(
    liar: Site,
    is_served: Callable[[], bool],
    monkeypatch: pytest.MonkeyPatch,
    usage: dict[str, Any],
    believed: tuple[int, int],
    reason: str | None,
    stream: bool,
) -> None:
    price = factories.make_price("0.000015", "0.000015", cache_write="0.00003")
    liar.publish(claim(monkeypatch, usage), price=price)
    claims = {
        name: read_counter(liar.server, "causeway_usage_claims_total", reason=name)
        for name in ("prompt", "completion", "both")
    }

    answer = liar.chat(stream=stream, max_tokens=MAX_TOKENS)

    assert answer.status_code == 200
    shown = events_of(answer.text)[-2]["usage"] if stream else answer.json()["usage"]
    row = liar.settled()
    bound = row.hold_nano // 30_000 - MAX_TOKENS // 2
    prompt, completion = bound if believed[0] < 0 else believed[0], believed[1]
    # Nothing but the hold was ever at stake, and everything shows the same figures.
    assert 0 < row.cost_nano <= row.hold_nano
    assert (row.prompt_tokens, row.completion_tokens) == (prompt, completion)
    assert (shown["prompt_tokens"], shown["completion_tokens"]) == (prompt, completion)
    assert shown["cost"] == row.cost_nano / 10**9
    assert str(10**9) not in json.dumps(shown)
    found = read_generation(liar, row.pk)
    assert (found["tokens_prompt"], found["tokens_completion"]) == (prompt, completion)
    assert found["total_cost"] == row.cost_nano / 10**9
    [transfer] = Transfer.objects.filter(reference=row.pk)
    assert transfer.posted_nano == row.cost_nano
    account = Account.objects.get(organization=row.organization, kind="credits")
    assert account.available == CREDITS - row.cost_nano
    # The rest waits for an operator, and the endpoint is flagged.
    reviews = Excess.objects.under_review().filter(endpoint_id=row.model_endpoint_id)
    assert reviews.count() == (reason is not None)
    for name, count in claims.items():
        now = read_counter(liar.server, "causeway_usage_claims_total", reason=name)
        assert now - count == (name == reason)
    assert is_served()
    assert_in_order()


@pytest.mark.parametrize("stream", [False, True])
def test_a_false_usage_of_an_own_credential_raises_no_fee_and_no_limit(
    liar: Site, is_served: Callable[[], bool], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    liar.own(
        claim(monkeypatch, {"prompt_tokens": 2, "completion_tokens": 600_000}),
        price=factories.make_price("0.000015", "0.000015"),
    )
    key = liar.tenant.organization.api_keys.get(is_management=False)
    key.edit(limit_nano=10**9, include_byok_in_limit=True)

    assert liar.chat(stream=stream, max_tokens=MAX_TOKENS).status_code == 200

    row = liar.settled()
    assert (row.is_byok, row.cost_nano) == (True, 0)
    assert row.upstream_cost_nano == 15_000 * (2 + MAX_TOKENS)
    excess = Excess.objects.get(reference=row.pk)
    assert (excess.amount_nano, excess.endpoint_id) == (0, row.private_endpoint_id)
    assert excess.upstream_nano == 15_000 * (600_000 - MAX_TOKENS)
    # The key's limit of one dollar is not spent by a claim of nine.
    assert liar.chat(stream=stream, max_tokens=MAX_TOKENS).status_code == 200
    assert is_served()
    assert_in_order()


def test_a_liar_never_stops_the_settlements_of_its_neighbour(
    liar: Site, is_served: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = {"prompt_tokens": 10**18, "completion_tokens": 10**18}
    liar.publish(claim(monkeypatch, usage), price=factories.make_price("1", "1"))
    for _ in range(3):
        answer = liar.chat(max_tokens=1, messages=[{"role": "user", "content": "a"}])
        assert answer.status_code == 200, answer.text
        assert is_served()
    liar.eventually(lambda: not Transfer.objects.pending().exists())
    charged = dict(Generation.objects.values_list("id", "cost_nano"))
    found = Excess.objects.values_list("reference", "amount_nano")
    # Of each claim, which ends at a million dollars, the rest is charged.
    assert [amount + charged[reference] for reference, amount in found] == [MOST_NANO] * 3
    assert_in_order()
