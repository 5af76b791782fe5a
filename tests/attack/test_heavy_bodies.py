"""Bodies that cost more to parse than to send: refused, counted, and not felt by a neighbour."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import requests

from endusers.models import EndUser
from inference.models import Generation
from tests.support.attack import Answer, attack, connect, head_of
from tests.support.bulkheads.counters import read_counter
from tests.support.inference.site import CHAT, TEXT, Site

BYTES = 20 * 1024 * 1024 - 1024
MESSAGE = b'{"role":"user","content":"a"}'
HEAD = b'{"model":"%s","max_tokens":16,"messages":[' + MESSAGE + b"]"
MESSAGES = "/api/v1/messages"
RESPONSES = "/api/v1/responses"
EMBEDDINGS = "/api/v1/embeddings"


def fill(head: bytes, item: bytes, tail: bytes) -> bytes:
    """Returns a body of about 20 MiB that repeats an item."""
    count = (BYTES - len(head) - len(tail)) // (len(item) + 1)
    return head + b",".join([item] * count) + tail


def send(site: Site, body: bytes, path: str = CHAT, key: str | None = None) -> Answer:
    kind = {"Content_Type": "application/json", "Content_Length": len(body)}
    with connect(site.server) as line:
        login = f"Bearer {key or site.tenant.api_key}"
        line.send(head_of("POST", path, Authorization=login, **kind))
        line.send_while_accepted(body)
        return line.receive_answer()


def assert_refused(site: Site, body: bytes, message: str, path: str = CHAT) -> None:
    """Asserts that a body is refused with 400, counted, and neither charged nor sent."""
    refused = read_counter(site.server, "causeway_refusals_total", status="400")
    answer = send(site, body, path)
    assert answer.status == 400, answer.body
    assert message in answer.error["message"]
    site.assert_nothing_happened()
    assert read_counter(site.server, "causeway_refusals_total", status="400") > refused


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (b"[]", "100,000 objects and lists"),
        (b"{}", "100,000 objects and lists"),
        (b'{"a":1}', "100,000 objects and lists"),
        (b"1", "500,000 values"),
        (b'""', "500,000 values"),
    ],
)
def test_many_small_values_are_refused_before_they_are_decoded(
    service: Site, is_served: Callable[[], bool], item: bytes, message: str
) -> None:
    head = HEAD % service.model.slug.encode() + b',"x":['
    assert_refused(service, fill(head, item, b"]}"), message)
    assert is_served()


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (b"[]", "20,000 objects and lists"),
        (b"{}", "20,000 objects and lists"),
        (b"1", "200,000 values"),
        (b"1.5", "200,000 values"),
    ],
)
def test_a_body_for_the_management_routes_is_refused_before_it_is_decoded(
    service: Site, is_served: Callable[[], bool], item: bytes, message: str
) -> None:
    body, key = fill(b'{"user":[', item, b"]}"), service.tenant.management_key
    [answer] = attack([lambda: send(service, body, "/api/v1/end-users", key)], is_served)
    assert answer.status == 400
    assert message in answer.error["message"]
    assert not EndUser.objects.exists()


def test_half_a_million_messages_are_refused(service: Site, is_served: Callable[[], bool]) -> None:
    for path in (CHAT, MESSAGES):
        body = fill(b'{"model":"a","max_tokens":1,"messages":[', MESSAGE, b"]}")
        assert_refused(service, body, "100,000 objects and lists", path)
    body = b'{"model":"a","messages":[' + b",".join([MESSAGE] * 10_001) + b"]}"
    assert_refused(service, body, "messages: Expected array of length <= 10000.")
    assert is_served()


@pytest.mark.parametrize("bracket", [b"[", b'{"a":'])
@pytest.mark.parametrize("path", [CHAT, TEXT, EMBEDDINGS, MESSAGES, RESPONSES])
def test_a_body_of_opening_brackets_is_refused(
    service: Site, is_served: Callable[[], bool], bracket: bytes, path: str
) -> None:
    body = b'{"x":' + bracket * (BYTES // len(bracket))
    assert_refused(service, body, "200 levels of nesting", path)
    assert is_served()


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize(
    "members",
    [
        b'"temperature":1,"temperature":0',
        b'"x":{"a":{"b":[{"temperature":1,"temp\\u0065rature":0}]}}',
        b'"provider":{"options":{"acme":{"temperature":1,"temperature":0}}}',
        b'"tools":[{"function":{"parameters":{"temperature":1,"temperature":0}}}]',
    ],
)
@pytest.mark.parametrize("padding", [0, 1_000_000])
def test_a_duplicate_key_is_refused_by_name_at_any_depth_and_size(
    service: Site, path: str, members: bytes, padding: int
) -> None:
    body = HEAD % service.model.slug.encode() + b"," + members + b" " * padding + b"}"
    assert_refused(service, body, "temperature: An object of the body names this key twice", path)


def test_a_large_body_within_the_limits_is_served(
    service: Site, is_served: Callable[[], bool]
) -> None:
    text = ('é\U0001f600\\n"' * 1000 + "x" * 20_000) * 40
    answer = service.chat(text, tools=[{"type": "function", "function": {"name": "f"}}] * 500)
    assert answer.status_code == 200, answer.text
    [request] = service.dialled()
    assert request.body["messages"] == [{"role": "user", "content": text}]
    assert service.settled().status == Generation.Status.COMPLETED
    assert is_served()


def test_a_neighbour_is_served_while_large_bodies_are_parsed(
    service: Site, is_served: Callable[[], bool]
) -> None:
    body = fill(b'{"model":"a","messages":[' + MESSAGE + b'],"x":[', b'"' + b"a" * 90 + b'"', b"]}")
    answers = attack([lambda: send(service, body)] * 4, is_served)
    # No model is called "a"; the key's share of the buffers refuses bodies that come together.
    assert {answer.status for answer in answers} <= {404, 429}
    assert 404 in {answer.status for answer in answers}


def test_counting_the_tokens_of_a_heavy_body_is_bounded_too(service: Site) -> None:
    body = fill(b'{"model":"a","messages":[', b'{"role":"user","content":[]}', b"]}")
    assert_refused(service, body, "objects and lists", "/api/v1/messages/count_tokens")
    small = {"model": "a", "messages": [{"role": "user", "content": "one"}]}
    answer: requests.Response = service.post(small, path="/api/v1/messages/count_tokens")
    assert answer.json()["input_tokens"] > 0
