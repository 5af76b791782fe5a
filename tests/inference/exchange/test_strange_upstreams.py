"""Unexpected answers of upstreams neither break the relayed answer nor distort its charge."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
import requests

from config.credentials import Secret
from inference.models import Generation
from tests.support import factories
from tests.support.bodies.lines import dial, post_bytes
from tests.support.bodies.samples import make_wav
from tests.support.inference.site import (
    CHAT,
    MESSAGES,
    OPERATOR_SECRET,
    RESPONSES,
    Site,
    content_of,
    error_of,
    events_of,
)
from tests.support.ledger import assert_in_order
from tests.support.upstreams.tls import Script, answering, sending, serving, trusted_context

Serve = Callable[[Script], None]

COUNTS = {"prompt_tokens": 10, "completion_tokens": 20}
USAGE = {"id": "a", "choices": [], "usage": COUNTS}
# 10 prompt tokens at 1,000 nano-USD and 20 completion tokens at 2,000.
COST = 50_000


def event(delta: dict[str, Any], reason: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, **fields}
    return {"id": "a", "model": "m", "choices": [choice], "usage": None}


def streamed(*events: dict[str, Any] | bytes, pause: float = 0) -> Script:
    """Returns a script that streams these events, one chunk per event."""
    written = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in events]

    def script(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for one in (*written, b"[DONE]"):
            data = b"data: " + one + b"\n\n"
            line.sendall(b"%x\r\n%s\r\n" % (len(data), data))
            time.sleep(pause)
        line.sendall(b"0\r\n\r\n")
        return True

    return script


def whole(usage: dict[str, Any], **fields: Any) -> Script:
    """Returns a script that answers every request with one choice and this usage."""
    message = {"role": "assistant", "content": "Hi"}
    choice = {"index": 0, "message": message, "finish_reason": "stop", **fields}
    return in_json(json.dumps({"id": "a", "choices": [choice], "usage": usage}).encode())


def in_json(body: bytes) -> Script:
    return answering(body, headers=("Content-Type: application/json",))


@pytest.fixture
def upstream(site: Site) -> Iterator[Callable[[Script], None]]:
    """Returns a function that serves a script and publishes the model behind it."""

    def stand_in(script: Script) -> None:
        server = servers.enter_context(serving(script, trusted_context()))
        site.move(f"https://127.0.0.1:{server.port}/v1")
        site.publish("m")

    with ExitStack() as servers:
        yield stand_in


def deltas_of(answer: requests.Response) -> list[dict[str, Any]]:
    events = [one for one in events_of(answer.text) if isinstance(one, dict)]
    return [choice["delta"] for one in events for choice in one["choices"]]


def test_a_native_finish_reason_that_is_no_string_settles_with_its_batch(
    site: Site, upstream: Serve
) -> None:
    good = streamed(event({"content": "Hi"}), event({}, "stop"), USAGE)
    bad = streamed(event({"content": "Hi"}), event({}, "stop", native_finish_reason=5), USAGE)

    upstream(lambda line, head, body: (bad if b"odd" in body else good)(line, head, body))
    with ThreadPoolExecutor(12) as pool:
        asked = ["odd" if number % 4 == 1 else "even" for number in range(24)]
        answers = list(pool.map(lambda content: site.chat(content, stream=True), asked))
    assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    settled = Generation.objects.values_list("status", "cost_nano", "native_finish_reason")
    assert Counter(settled) == {("completed", COST, "stop"): 24}
    assert_in_order()


@pytest.mark.parametrize("reason", [5, {"x": 1}, None, ["stop"]])
def test_a_native_finish_reason_that_is_no_string_is_replaced(
    site: Site, upstream: Serve, reason: Any
) -> None:
    upstream(whole(COUNTS, native_finish_reason=reason))
    [choice] = site.chat().json()["choices"]
    assert (choice["finish_reason"], choice["native_finish_reason"]) == ("stop", "stop")
    row = site.settled()
    assert (row.status, row.cost_nano, row.native_finish_reason) == ("completed", COST, "stop")


def test_a_first_event_without_choices_does_not_shape_later_events(
    site: Site, upstream: Serve
) -> None:
    first = {"id": "a", "model": "m", "choices": [], "usage": None}
    texts = [event({"content": text}) for text in ("Hi", " there", " you")]
    upstream(streamed(first, *texts, event({}, "stop"), USAGE, pause=0.02))
    events = events_of(site.chat(stream=True).text)
    assert content_of(events) == "Hi there you"
    assert events[-2]["usage"]["completion_tokens"] == 20
    assert events[0]["choices"] == []
    assert site.settled().cost_nano == COST


def test_a_surrogate_pair_split_across_events_does_not_end_the_stream(
    site: Site, upstream: Serve
) -> None:
    halves = [
        b'{"id":"a","choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}',
        b'{"id":"a","choices":[{"index":0,"delta":{"content":"\\uDE00 \\ud83d\\ude00"}}]}',
        b'{"id":"a","choices":[{"index":0,"delta":{"content":"\\\\ud83d"}}]}',
    ]
    upstream(streamed(event({"content": "Hi "}), *halves, event({}, "stop"), USAGE, pause=0.02))
    events = events_of(site.chat(stream=True).text)
    assert content_of(events) == ("Hi \ufffd\ufffd \N{GRINNING FACE}\\ud83d")
    assert site.settled().status == "completed"


@pytest.mark.parametrize("details", [[], "none", 7, {"cached_tokens": "many"}])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
def test_malformed_usage_details_keep_the_token_counts(
    site: Site, upstream: Serve, details: Any, path: str, stream: bool
) -> None:
    names = ("prompt_tokens_details", "completion_tokens_details")
    usage = {**COUNTS, **dict.fromkeys(names, details)}
    script = streamed(event({"content": "Hi"}), event({}, "stop"), {**USAGE, "usage": usage})
    upstream(script if stream else whole(usage))
    assert site.ask(path, stream=stream).status_code == 200
    row = site.settled()
    assert (row.status, row.cost_nano, row.is_estimated) == ("completed", COST, False)
    assert row.cached_tokens == 0


def test_usage_details_that_are_no_object_are_left_out(site: Site, upstream: Serve) -> None:
    unread = {
        "prompt_tokens_details": [],
        "completion_tokens_details": "",
        "server_tool_use_details": 0,
    }
    upstream(whole({**COUNTS, **unread}))
    usage = site.chat().json()["usage"]
    assert usage.keys() == {*COUNTS, "total_tokens", "cost", "is_byok", "cost_details"}


@pytest.mark.parametrize("stream", [False, True])
def test_cached_tokens_and_stop_sequences_by_other_names_are_told(
    site: Site, upstream: Serve, stream: bool
) -> None:
    usage = {**COUNTS, "cached_tokens": 2, "cache_creation_input_tokens": 4}
    end = event({}, "stop", matched_stop="END")
    script = streamed(event({"content": "Hi"}), end, {**USAGE, "usage": usage})
    upstream(script if stream else whole(usage, matched_stop="END"))
    answer = site.ask(MESSAGES, stop_sequences=["X", "END"], stream=stream)
    if stream:
        *_, last, _ = answer.text.strip().split("\n\n")
        ended = json.loads(last.partition("data: ")[2])
        counted, sequence = ended["usage"], ended["delta"]["stop_sequence"]
    else:
        counted, sequence = answer.json()["usage"], answer.json()["stop_sequence"]
    assert sequence == "END"
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert [counted[name] for name in names] == [4, 2, 4]


@pytest.mark.parametrize("depth", [400, 700])
def test_a_deeply_nested_usage_member_is_dropped(site: Site, upstream: Serve, depth: int) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = {"a": deep}
    upstream(whole({**COUNTS, "x": deep}))
    answer = site.chat()
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 20
    assert ("x" in answer.json()["usage"]) == (depth == 400)
    assert site.settled().cost_nano == COST


def test_reasoning_tokens_counted_separately_are_charged(site: Site, upstream: Serve) -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 11}}
    counts = {"prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 30}
    upstream(whole({**counts, **details}))
    usage = site.chat().json()["usage"]
    assert {name: usage[name] for name in (*counts, *details)} == {
        **counts, "completion_tokens": 20, **details
    }  # fmt: skip
    row = site.settled()
    assert (row.completion_tokens, row.reasoning_tokens, row.cost_nano) == (20, 11, COST)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_that_ends_in_an_error_becomes_a_messages_error(
    site: Site, upstream: Serve, is_streamed: bool
) -> None:
    plain = whole(COUNTS, finish_reason="error")
    stream = streamed(event({"content": "Hi"}), event({}, "error"), USAGE)
    upstream(stream if is_streamed else plain)
    body = {**site.chat_body(), "max_tokens": 50, "stream": is_streamed}
    answer = site.post(body, path="/api/v1/messages")
    assert answer.status_code == (200 if is_streamed else 502)
    text = answer.text
    if is_streamed:
        kind, _, text = text.rpartition("event: ")[2].partition("\ndata: ")
        assert kind == "error"
    error = json.loads(text)["error"]
    assert (error["type"], error["details"]["provider_code"]) == ("api_error", "error")
    row = site.settled()
    # Without a stream the caller receives no part of the answer, so nothing is charged.
    assert (row.status, row.cost_nano) == (("completed", COST) if is_streamed else ("failed", 0))
    assert_in_order()


def counted(completion: int, one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "usage": {"prompt_tokens": 10, "completion_tokens": completion}}


def piece(index: int, text: str, reason: str | None = None) -> dict[str, Any]:
    return event({"content": text}, reason, index=index)


@pytest.mark.parametrize(
    "events",
    [
        # Each usage covers the whole answer so far; the choices come one after the other.
        [
            counted(1, piece(0, "Hi")),
            counted(4, piece(0, "", "stop")),
            counted(5, piece(1, "Hello")),
            counted(20, piece(1, "", "stop")),
        ],
        # Each usage covers its own choice, and the last usage covers all choices.
        [
            counted(4, piece(0, "Hi", "stop")),
            counted(3, piece(1, "Hello")),
            counted(16, piece(1, "", "stop")),
            counted(20, {"id": "a", "choices": []}),
        ],
        # Only the first choice has a usage at its end.
        [
            counted(4, piece(0, "Hi", "stop")),
            piece(1, "Hello"),
            piece(1, " you"),
            piece(1, "", "stop"),
            counted(20, {"id": "a", "choices": []}),
        ],
        # One final usage for each choice, as llama.cpp's server reports them; none counts later.
        [
            piece(0, "Hi", "stop"),
            {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 8}},
            {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 12}},
            counted(40, {"id": "a", "choices": []}),
        ],
    ],
)
def test_the_usage_of_the_whole_answer_is_charged(
    site: Site, upstream: Serve, events: list[dict[str, Any]]
) -> None:
    upstream(streamed(*events, pause=0.01))
    received = events_of(site.chat(stream=True, n=2).text)
    assert received[-2]["usage"]["completion_tokens"] == 20
    row = site.settled()
    assert (row.completion_tokens, row.is_estimated, row.cost_nano) == (20, False, COST)


def test_output_after_the_last_usage_is_estimated(site: Site, upstream: Serve) -> None:
    events = [counted(4, piece(0, "Hi", "stop")), piece(1, "x" * 78), piece(1, "", "stop")]
    upstream(streamed(*events))
    received = events_of(site.chat(stream=True, n=2).text)
    assert received[-2]["usage"]["completion_tokens"] == 20
    row = site.settled()
    assert (row.completion_tokens, row.is_estimated, row.cost_nano) == (20, True, COST)


def test_sound_of_a_stream_that_breaks_off_is_charged(site: Site, upstream: Serve) -> None:
    # Two seconds of 16 bits at 24 kHz, and ten tokens of words.
    said = {"id": "s", "transcript": "x" * 40}
    second = event({"audio": {"data": "A" * 64_000}})
    events = [json.dumps(one).encode() for one in (event({"audio": said}), second, second)]
    blocks = [b"data: %s\n\n" % one for one in events]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
    upstream(sending(head + b"\r\n\r\n", *(b"%x\r\n%s\r\n" % (len(one), one) for one in blocks)))
    site.produce("text", "audio")
    answer = site.chat(stream=True, max_tokens=100, modalities=["text", "audio"])
    pieces = [delta["audio"] for delta in deltas_of(answer) if "audio" in delta]
    assert pieces == [said, *[{"data": "A" * 64_000}] * 2]
    row = site.settled()
    assert (row.status, row.completion_tokens, row.is_estimated) == ("failed", 50, True)
    assert row.units == {"audio_output": 40}
    assert row.cost_nano == row.prompt_tokens * 1_000 + 50 * 2_000


def test_streamed_reasoning_content_is_also_named_reasoning(site: Site, upstream: Serve) -> None:
    thoughts = [event({"reasoning_content": text}) for text in ("Let", ' "me"', " think")]
    upstream(streamed(*thoughts, event({"content": "Hi"}), event({}, "stop"), USAGE))
    answer = site.chat(stream=True)
    deltas = deltas_of(answer)
    for name in ("reasoning", "reasoning_content"):
        assert [delta[name] for delta in deltas[:3]] == ["Let", ' "me"', " think"]
    assert "reasoning" not in deltas[3]
    assert content_of(events_of(answer.text)) == "Hi"


def test_plain_reasoning_content_is_also_named_reasoning(site: Site, upstream: Serve) -> None:
    message = {"role": "assistant", "content": "Hi", "reasoning_content": "Let me \\ think"}
    upstream(whole(COUNTS, message=message))
    [choice] = site.chat().json()["choices"]
    text = "Let me \\ think"
    detail = {"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}
    assert choice["message"] == {**message, "reasoning": text, "reasoning_details": [detail]}


HIDING = [{"reasoning": {"exclude": True, "effort": "high"}}, {"include_reasoning": False}]
DETAILS = [
    {"type": "reasoning.text", "text": "Hm.", "index": 0},
    {"type": "reasoning.summary", "summary": "Hm.", "index": 1},
    {"type": "reasoning.text", "signature": "c2ln", "index": 2},
    {"type": "reasoning.encrypted", "data": "c2VjcmV0", "index": 3},
    5,
]


@pytest.mark.parametrize("asked", HIDING)
def test_excluded_reasoning_is_removed_from_a_stream(
    site: Site, upstream: Serve, asked: dict[str, Any]
) -> None:
    names = ("reasoning_content", "reasoning_text", "thinking")
    thoughts = [event({name: "Let me think"}) for name in names]
    details = event({"reasoning_details": DETAILS, "reasoning": "Hm."})
    upstream(streamed(*thoughts, details, event({"content": "Hi"}), event({}, "stop"), USAGE))
    deltas = deltas_of(site.chat(stream=True, **asked))
    assert deltas == [{}, {}, {}, {"reasoning_details": DETAILS[2:4]}, {"content": "Hi"}, {}]
    assert site.settled().cost_nano == COST


@pytest.mark.parametrize("asked", HIDING)
@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "reasoning_text", "thinking"])
def test_excluded_reasoning_is_removed_from_a_plain_answer(
    site: Site, upstream: Serve, asked: dict[str, Any], name: str
) -> None:
    said = {"role": "assistant", "content": "Hi"}
    message = {**said, name: "Hm.", "reasoning_details": DETAILS[:2]}
    upstream(whole(COUNTS, message=message))
    [choice] = site.chat(**asked).json()["choices"]
    assert choice["message"] == said
    assert site.settled().cost_nano == COST


def test_excluded_reasoning_keeps_signatures_and_encrypted_data(
    site: Site, upstream: Serve
) -> None:
    signed = {"type": "reasoning.text", "signature": "c2ln", "format": "f", "index": 0}
    sealed = {"type": "reasoning.encrypted", "data": "c2VjcmV0", "index": 1}
    details = [{**signed, "text": "Hm."}, {**sealed, "summary": "Hm."}]
    message = {"role": "assistant", "content": "Hi", "reasoning_details": details}
    upstream(whole(COUNTS, message=message))
    [choice] = site.chat(**HIDING[0]).json()["choices"]
    assert choice["message"]["reasoning_details"] == [signed, sealed]


THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
SAID = {"type": "text", "text": "Hi"}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("content", "relayed"), [([THINKING, SAID, 5], "Hi5"), ([THINKING], ""), ([], "")]
)
def test_excluded_reasoning_removes_thinking_parts_of_the_content(
    site: Site, upstream: Serve, content: list[Any], relayed: Any, stream: bool
) -> None:
    if stream:
        said = event({"content": content})
        upstream(streamed(said, said, event({"content": "Hi"}, "stop"), USAGE))
        deltas = deltas_of(site.chat(stream=True, **HIDING[0]))
        assert [delta["content"] for delta in deltas[:3]] == [relayed, relayed, "Hi"]
    else:
        message = {"role": "assistant", "content": content}
        upstream(whole(COUNTS, message=message))
        [choice] = site.chat(**HIDING[0]).json()["choices"]
        assert choice["message"]["content"] == relayed


# A number that no decoder takes, where one that decodes all of an answer meets it first.
SAID_WORDS = "the words of the answer"
BEYOND = (
    '{"id":"a","choices":[{"index":0,"%s":{"role":"assistant","content":"'
    + SAID_WORDS
    + '"},"finish_reason":"stop","x":1e999%s}]}'
)
BAD_EVENT = (BEYOND % ("delta", "")).encode()
BAD_ANSWER = (BEYOND % ("message", "")).encode()
BAD_CALL = (
    b'{"type":"message","role":"assistant","stop_reason":"tool_use","content":[{"type":"tool_use",'
    b'"id":"a","name":"f","input":{"x":1e999}}]}'
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
# A name that is too long for the server, so that the names in its answer are restored.
ODD: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "look_up" * 10}}]}
UNREAD = "The upstream provider's answer is not valid: It could not be read."


class Unreadable(NamedTuple):
    script: Script
    stream: bool
    path: str = CHAT
    dialect: str = "openai"


UNREADABLE = {
    "an answer": Unreadable(in_json(BAD_ANSWER), stream=False),
    "events to a plain request": Unreadable(streamed(BAD_EVENT), stream=False),
    "an event": Unreadable(streamed(BAD_EVENT), stream=True),
    "a large event": Unreadable(
        streamed((BEYOND % ("delta", ',"y":"' + "y" * 100_000 + '"')).encode()), stream=True
    ),
    "an event without its end": Unreadable(
        answering(b"data: " + BAD_EVENT, headers=("Content-Type: text/event-stream",)), stream=True
    ),
    "JSON to a streamed request": Unreadable(in_json(BAD_ANSWER), stream=True),
    "JSON that cannot be split": Unreadable(
        in_json(BAD_CALL), stream=True, path=MESSAGES, dialect="anthropic"
    ),
}


@pytest.mark.parametrize("name", list(UNREADABLE))
def test_an_answer_that_cannot_be_read_is_a_failed_attempt(
    site: Site, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    row = UNREADABLE[name]
    asked: dict[str, Any] = {"stream": row.stream, **(ODD if row.path == CHAT else {})}
    with serving(row.script, trusted_context()) as server:
        faulty = factories.make_provider(
            "faulty",
            dialect=row.dialect,
            base_url=f"https://127.0.0.1:{server.port}/v1",
            secret=Secret(OPERATOR_SECRET),
        )
        site.publish("m", provider=faulty)
        assert error_of(site.ask(row.path, **asked), 502)["message"] == UNREAD
        generation = site.settled()
        assert (generation.status, generation.cost_nano) == ("failed", 0)
        site.publish()
        order = {"provider": {"order": ["faulty", "acme"]}}
        assert site.ask(row.path, **asked, **order).status_code == 200
    site.wait_for_settlement()
    served = Generation.objects.get(status="completed")
    assert [each.get("kind") for each in served.attempts] == ["protocol", None]
    logged = [each for each in caplog.records if each.name == "inference.exchange.failures"]
    assert [each.levelname for each in logged] == ["ERROR"] * 2
    for each in logged:
        assert "(ValidationError)" in each.getMessage()
        assert 'File "' in each.getMessage()
    for text in (SAID_WORDS, "out of range"):
        assert text not in caplog.text
    assert_in_order()


THOUGHTS = b'{"id":"a","choices":[{"index":0,"delta":{"reasoning_details":[1e999]}}]}'


@pytest.mark.parametrize(("asked", "bad"), [(ODD, BAD_EVENT), (HIDING[0], THOUGHTS)])
def test_a_stream_that_cannot_be_read_further_ends_in_an_error(
    site: Site, upstream: Serve, asked: dict[str, Any], bad: bytes
) -> None:
    has_read = threading.Event()

    def script(line: socket.socket, head: bytes, body: bytes) -> bool:
        good = json.dumps(event({"content": "Hi"})).encode()
        line.sendall(STREAM_HEAD + b"data: %b\n\n" % good)
        has_read.wait(60)
        line.sendall(b"data: %b\n\n" % bad)
        return False

    upstream(script)
    with site.post(site.chat_body(stream=True, **asked), stream=True) as answer:
        assert answer.status_code == 200, answer.text
        pieces = answer.iter_content(None)
        received = next(pieces)
        has_read.set()
        received += b"".join(pieces)
    *events, last = events_of(received.decode())
    assert content_of(events) == "Hi"
    assert (last["error"]["code"], last["error"]["message"]) == (502, UNREAD)
    row = site.settled()
    assert (row.status, row.is_estimated, row.attempts[0]["kind"]) == ("failed", True, "protocol")
    assert_in_order()


def test_a_whole_answer_that_cannot_be_rendered_is_free(site: Site, upstream: Serve) -> None:
    message = b'{"role":"assistant","content":"Hi","reasoning_details":[1e999]}'
    upstream(in_json(b'{"id":"a","choices":[{"index":0,"message":%b}]}' % message))
    assert error_of(site.chat(**HIDING[0]), 502)["message"] == UNREAD
    row = site.settled()
    assert (row.status, row.cost_nano) == ("failed", 0)
    assert_in_order()


def test_a_caller_that_stops_reading_is_disconnected_at_the_deadline(
    site: Site, upstream: Serve, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.HOLD_TIMEOUT = 3
    is_closed = threading.Event()
    text = json.dumps(event({"content": "x" * 4000})).encode()

    def endless(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        try:
            while True:
                line.sendall(b"data: " + text + b"\n\n")
        except OSError:
            is_closed.set()
        return False

    upstream(endless)
    asked = post_bytes(site, site.chat_body(stream=True))
    with dial(site, asked, receive_buffer=4096) as caller:
        assert caller.recv(12) == b"HTTP/1.1 200"
        assert is_closed.wait(60)
        row = site.settled()
        assert (row.status, row.is_estimated) == ("cancelled", True)
        assert row.cost_nano > 0
        # The connection closes without the final chunk of the answer.
        last = b""
        while data := caller.recv(65536):
            last = data
        assert not last.endswith(b"0\r\n\r\n")
    # A busy machine may log that a statement was slow.
    others = ("config.database.", "config.server.batching.")
    assert not [each for each in caplog.records if not each.name.startswith(others)]
    assert_in_order()


def test_a_second_choice_after_a_usage_is_charged(site: Site, upstream: Serve) -> None:
    """The first choice ends with a usage, and the second choice continues after it.

    The error comes when the caller has read: together with the answer, it would be a failed attempt
    that delivers nothing.
    """
    has_read = threading.Event()
    ended = counted(3, event({}, "stop"))
    second = [
        {"id": "a", "model": "m", "choices": [{"index": 1, "delta": {"content": text}}]}
        for text in ("", *["x" * 100] * 8)
    ]
    begun = [event({"content": "Hi"}), ended, *second]

    def script(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        line.sendall(b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in begun))
        has_read.wait(60)
        line.sendall(b"data: no JSON\n\n")
        return False

    upstream(script)
    with site.post(site.chat_body(n=2, stream=True), stream=True) as answer:
        assert answer.status_code == 200, answer.text
        pieces = answer.iter_content(None)
        received = next(pieces)
        has_read.set()
        received += b"".join(pieces)
    assert b"x" * 100 in received
    row = site.settled()
    assert (row.status, row.is_estimated, row.prompt_tokens) == ("failed", True, 10)
    assert row.completion_tokens is not None
    assert row.completion_tokens >= 200


SOUND = {"data": base64.b64encode(make_wav(1)).decode(), "format": "wav"}


@pytest.mark.parametrize(
    ("output", "path", "asked"),
    [
        ("embeddings", "embeddings", {"input": "one"}),
        ("rerank", "rerank", {"query": "one", "documents": ["two"]}),
        ("transcription", "audio/transcriptions", {"input_audio": SOUND}),
        ("image", "images", {"prompt": "one"}),
    ],
)
def test_the_events_of_a_chat_answer_nothing_else(
    site: Site, upstream: Serve, output: str, path: str, asked: dict[str, Any]
) -> None:
    site.produce(output)
    upstream(streamed(event({"content": "Hi"}), event({}, "stop"), USAGE))
    site.publish(provider=site.another_provider("other"))
    body, path = {"model": site.model.slug, **asked}, f"/api/v1/{path}"
    refused = site.post({**body, "provider": {"only": ["acme"]}}, path=path)
    assert error_of(refused, 502)["message"] == (
        "The upstream provider's answer is not valid: The answer is not a JSON object."
    )
    answer = site.post({**body, "provider": {"order": ["acme", "other"]}}, path=path)
    assert answer.status_code == 200, answer.text
    site.wait_for_settlement()
    failed, served = Generation.objects.order_by("created_at")
    assert (failed.status, failed.cost_nano) == ("failed", 0)
    assert (served.status, [one["status"] for one in served.attempts]) == ("completed", [502, 200])
    assert_in_order()
