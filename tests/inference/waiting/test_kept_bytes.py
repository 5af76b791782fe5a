"""What a stream keeps in memory counts in its organization's budget, beyond which it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.models import Generation
from tests.support import factories
from tests.support.bodies.lines import dial, post_bytes
from tests.support.bulkheads.counters import read_counter
from tests.support.inference.endings import read_until
from tests.support.inference.responses import events_of
from tests.support.inference.site import CHAT, MESSAGES, RESPONSES, Site, error_of
from tests.support.ledger import assert_in_order
from tests.support.upstreams.standing import standing_in
from tests.support.upstreams.tls import answering

FACES = [CHAT, MESSAGES, RESPONSES]
FULL = "The organization's requests hold too many bytes at once"
FAILED = Generation.Status.FAILED


def held(site: Site) -> float:
    return read_counter(site.server, "causeway_buffered_bytes")


@pytest.mark.parametrize("missing", [1, 0], ids=["unfinished", "whole"])
@pytest.mark.parametrize("path", FACES)
def test_a_first_event_beyond_the_budget_is_refused(
    site: Site, settings: Any, path: str, missing: int
) -> None:
    settings.ORGANIZATION_BUFFERED_BYTES = 200_000
    site.publish(f"sim-hanging:300000,{missing}")
    refused = site.ask(path, stream=True)
    assert FULL in error_of(refused, 429)["message"]
    assert refused.headers["Retry-After"] == "1"
    row = site.settled()
    assert (row.status, row.error_type, row.cost_nano) == (FAILED, "rate_limit_exceeded", 0)
    assert_in_order()
    site.eventually(lambda: held(site) == 0)


@pytest.mark.parametrize("path", FACES)
def test_a_later_event_beyond_the_budget_ends_the_stream_in_an_error(
    site: Site, settings: Any, path: str
) -> None:
    settings.ORGANIZATION_BUFFERED_BYTES = 200_000
    site.publish("sim-big-event:300000")
    answer = site.ask(path, stream=True)
    assert answer.status_code == 200, answer.text
    assert FULL in answer.text
    row = site.settled()
    assert (row.status, row.error_type) == (FAILED, "rate_limit_exceeded")
    assert_in_order()
    site.eventually(lambda: held(site) == 0)


def test_an_output_that_responses_may_not_keep_ends_its_stream_alone(
    site: Site, settings: Any
) -> None:
    settings.ORGANIZATION_BUFFERED_BYTES = 40_000
    site.publish("sim-chunks:14000")
    answer = site.ask(RESPONSES, stream=True)
    *_, last = events_of(answer.content)
    assert last["type"] == "response.failed"
    assert FULL in last["response"]["error"]["message"]
    assert site.settled().status == FAILED
    site.eventually(lambda: held(site) == 0)
    assert site.ask(CHAT, stream=True).text.endswith("data: [DONE]\n\n")
    site.eventually(lambda: held(site) == 0)


def test_the_next_candidate_holds_nothing_of_the_one_that_failed(site: Site) -> None:
    site.publish("sim-choices:10000")
    dear = factories.make_price("0.1", "0.1")
    site.publish("sim-gated", provider=site.another_provider("second"), price=dear)
    with dial(site, post_bytes(site, site.chat_body(stream=True))) as line:
        read_until(line, b'"role"')
        assert len(site.dialled()) == 2
        assert held(site) < 1_000
        site.upstream.release(100)
        read_until(line, b"[DONE]")
    site.eventually(lambda: held(site) == 0)


def test_an_answer_without_events_is_held_while_its_caller_reads_it(site: Site) -> None:
    size = 8_000_000
    message = {"role": "assistant", "content": "x" * size}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    site.publish()
    body = json.dumps({"choices": choices}).encode()
    kind = "Content-Type: application/json"
    asked = post_bytes(site, site.chat_body(stream=True))
    with (
        standing_in(site.provider, answering(body, headers=(kind,))),
        dial(site, asked, receive_buffer=4_096),
    ):
        site.eventually(lambda: 0.99 * size < held(site) <= size)
    site.eventually(lambda: held(site) == 0)
