"""The caller's own time limit: the call then ends as if the caller had left."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest
import requests
from django.conf import LazySettings

from inference.faces.connection import Patience, read_patience
from tests.support.contract import document
from tests.support.contract.sdks import openai_client
from tests.support.inference.site import CHAT, MESSAGES, Site, events_of
from tests.support.ledger import assert_in_order

# Longer than a busy machine needs to ask the upstream.
LIMIT = "3"
LATE = (
    "The time limit of the request itself is over: X-Request-Timeout, or the timeout of the SDK. "
    "Allow more time."
)


def assert_late(answer: requests.Response) -> None:
    assert (answer.status_code, answer.json()["error"]["message"]) == (408, LATE)
    assert answer.headers["X-Should-Retry"] == "false"
    document.check("POST", CHAT, 408, "application/json", answer.content)
    document.check_headers("POST", CHAT, 408, answer.headers)


def assert_cancelled(site: Site) -> None:
    row = site.settled()
    assert (row.status, row.error_type) == ("cancelled", None)
    assert row.cost_nano is not None
    assert row.cost_nano >= row.prompt_tokens * 1000 > 0
    assert site.upstream.wait_until(lambda: site.dialled()[0].client_closed_at is not None)
    assert_in_order()


@pytest.mark.parametrize(
    "name", ["X-Request-Timeout", "x-stainless-read-timeout", "x-stainless-timeout"]
)
def test_a_plain_call_ends_at_the_callers_limit(site: Site, name: str) -> None:
    site.publish("sim-stall")
    answer = site.post(site.chat_body(), headers={name: LIMIT})
    assert_late(answer)
    assert_cancelled(site)


def test_a_stream_ends_at_the_limit_in_all(site: Site) -> None:
    site.publish("sim-stall")
    answer = site.post(site.chat_body(stream=True), headers={"X-Request-Timeout": LIMIT})
    assert_late(answer)
    assert_cancelled(site)


@pytest.mark.parametrize("behaviour", ["sim-stall", "sim-stall-stream"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_stream_that_has_begun_ends_with_an_error_event(
    site: Site, settings: LazySettings, behaviour: str, path: str
) -> None:
    settings.STREAM_KEEPALIVE_INTERVAL = 0.1
    site.publish(behaviour)
    body = site.chat_body(stream=True, max_tokens=50)
    answer = site.post(body, path=path, headers={"X-Request-Timeout": LIMIT})
    assert answer.status_code == 200
    events = [block for block in answer.text.split("\n\n") if block[:1] != ":"]
    assert LATE in events[-2]
    assert events[-1] == ""
    assert_cancelled(site)


def test_the_silence_that_a_client_bears_is_no_limit_of_a_stream(site: Site) -> None:
    site.publish("sim-slow:1.2,0")
    headers = {"x-stainless-read-timeout": "1"}
    answer = site.post(site.chat_body("one", stream=True), headers=headers)
    assert events_of(answer.text)[-1] == "[DONE]"
    assert site.settled().status == "completed"


def test_an_answer_in_time_knows_no_limit(published: Site) -> None:
    with openai_client(published, timeout=5) as client:
        for _ in range(3):
            answer = client.chat.completions.create(**published.chat_body("one"))
            assert answer.choices[0].message.content == "You said: one"
        raw = client.chat.completions.with_raw_response.create(**published.chat_body("one"))
    sent = {name.lower() for name in raw.http_request.headers}
    assert "x-stainless-read-timeout" in sent


def test_a_client_that_gives_up_is_not_answered_later(site: Site) -> None:
    site.publish("sim-stall")
    began = time.monotonic()
    # Either side may be the first to see that the time is over.
    with openai_client(site, timeout=int(LIMIT)) as client, pytest.raises(openai.APIError):
        client.chat.completions.create(**site.chat_body("one"))
    assert time.monotonic() - began < 15
    assert_cancelled(site)


@pytest.mark.parametrize("text", ["", "0", "0.0", "-1", "soon", "1e3", "5s", "inf", "1" * 10])
@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_that_is_no_number_of_seconds_is_refused(
    published: Site, text: str, stream: bool
) -> None:
    answer = published.post(published.chat_body(stream=stream), headers={"X-Request-Timeout": text})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("X-Request-Timeout: Must be a number")
    published.assert_nothing_happened()


@pytest.mark.parametrize("text", ["", "0", "None", "NOT_GIVEN", "-1", "1e3"])
def test_what_a_client_tells_of_itself_is_never_refused(published: Site, text: str) -> None:
    answer = published.post(published.chat_body(), headers={"x-stainless-read-timeout": text})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("headers", "plain", "streamed"),
    [
        ({}, Patience(), Patience()),
        ({b"x-request-timeout": "2.5"}, Patience(2.5), Patience(2.5)),
        ({b"x-stainless-timeout": "9"}, Patience(9), Patience(None, 9)),
        (
            {b"x-request-timeout": "5", b"x-stainless-read-timeout": "600"},
            Patience(5),
            Patience(5, 600),
        ),
        (
            {b"x-request-timeout": "700", b"x-stainless-read-timeout": "600.0"},
            Patience(600),
            Patience(700, 600),
        ),
        (
            {b"x-stainless-timeout": "9", b"x-stainless-read-timeout": "8"},
            Patience(8),
            Patience(None, 8),
        ),
    ],
)
def test_the_shortest_limit_counts(
    headers: dict[bytes, Any], plain: Patience, streamed: Patience
) -> None:
    assert read_patience(headers.get, is_stream=False) == plain
    assert read_patience(headers.get, is_stream=True) == streamed
