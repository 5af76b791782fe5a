"""Streams that end cleanly without their end mark: whole ones are complete, others are not."""

from __future__ import annotations

import logging

import pytest

from catalog import dialects
from catalog.dialects.base import InvalidStream, Operation, StreamParser
from inference.models import Generation
from inference.taps import figures
from tests.support.inference.site import (
    ASKED,
    CHAT,
    MESSAGES,
    RESPONSES,
    Site,
    content_of,
    events_of,
)
from tests.support.ledger import assert_in_order
from tests.support.upstreams.recorded import EVENTS as RECORDED
from tests.support.upstreams.speaking import Upstream
from tests.support.upstreams.standing import listening, make_maker, standing_in
from tests.support.upstreams.tls import sending

TEXT_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
OTHER_END = b'data: {"choices":[{"index":1,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
BOTH = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
)
CALL = (
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","type":"function",'
    b'"function":{"name":"f","arguments":"{}"}}]}}]}\n\n'
)
START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"type":"message",'
    b'"id":"msg_1","model":"m",'
    b'"usage":{"input_tokens":3,"output_tokens":1}}}\n\n'
)
BLOCK = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"hi"}}\n\n'
)
STOP = (
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"output_tokens":1}}\n\n'
)
UNCOUNTED = (
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n'
)
UNREASONED = (
    b'event: message_delta\ndata: {"type":"message_delta","delta":{},"usage":{"output_tokens":1}}'
    b"\n\n"
)


def parser_of(dialect: str, choices: int) -> StreamParser:
    found = dialects.get(dialect)
    assert found is not None
    return found.stream_parser(Operation.CHAT, choices)


@pytest.mark.parametrize(
    ("dialect", "choices", "stream"),
    [
        ("openai", 1, TEXT_EVENT * 3 + END + USAGE),
        ("openai", 1, TEXT_EVENT + BOTH),
        ("openai", 1, USAGE + TEXT_EVENT + END),
        ("openai", 1, CALL + END + USAGE),
        ("openai", 2, TEXT_EVENT + END + OTHER_END + USAGE),
        ("openai", 2, TEXT_EVENT + BOTH),
        ("openai", 1, TEXT_EVENT + END),
        ("anthropic", 1, START + BLOCK + STOP),
        ("anthropic", 1, START + BLOCK + UNCOUNTED),
        ("anthropic", 1, START + BLOCK + STOP + b"event: m"),
    ],
)
def test_a_whole_stream_has_an_end_that_is_marked_as_missing(
    dialect: str, choices: int, stream: bytes
) -> None:
    for size in (1, 7, len(stream)):
        parser = parser_of(dialect, choices)
        for start in range(0, len(stream), size):
            parser.feed(stream[start : start + size])
        [end] = parser.finish()
        assert (end.is_done, end.is_unmarked, end.fields) == (True, True, {})
        assert parser.finish() == []


@pytest.mark.parametrize(
    ("dialect", "choices", "stream"),
    [
        ("openai", 1, b""),
        ("openai", 1, TEXT_EVENT),
        ("openai", 1, TEXT_EVENT + USAGE),
        ("openai", 2, TEXT_EVENT + END + USAGE),
        ("openai", 2, TEXT_EVENT + END + END + USAGE),
        ("openai", 1, TEXT_EVENT + END + USAGE + b"data: {"),
        ("anthropic", 1, START + BLOCK),
        ("anthropic", 1, START + BLOCK + UNREASONED),
    ],
)
def test_a_stream_that_was_cut_off_is_no_whole_one(
    dialect: str, choices: int, stream: bytes
) -> None:
    parser = parser_of(dialect, choices)
    parser.feed(stream)
    with pytest.raises(InvalidStream):
        parser.finish()


def count_of(provider: str) -> float:
    return figures._UNMARKED.labels(provider)._value.get()


@pytest.mark.parametrize("path", ASKED)
def test_a_whole_stream_is_delivered_as_complete_and_noted(
    site: Site, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    endpoint = site.publish("sim-no-done")
    before = count_of("acme")
    with caplog.at_level(logging.WARNING, logger="inference.exchange.attempts"):
        for number in range(1, 3):
            answer = site.ask(path, stream=True)
            assert answer.status_code == 200
            assert "error" not in answer.text.replace('"error":null', "")
            assert ("message_stop" if path == MESSAGES else "[DONE]") in answer.text
            site.eventually(lambda number=number: count_of("acme") == before + number)
    lines = [line for line in caplog.messages if str(endpoint.pk) in line]
    assert len(lines) == 1
    assert "without an end mark" in lines[0]
    if path == CHAT:
        assert content_of(events_of(answer.text)) == "You said: one two"
    site.eventually(are_complete)
    assert_in_order()


def are_complete() -> bool:
    return set(Generation.objects.values_list("status", "is_estimated")) == {("completed", False)}


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
WHOLE = TEXT_EVENT + END + USAGE


def chunked(data: bytes) -> bytes:
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize(
    ("pieces", "is_whole"),
    [
        (HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(WHOLE), WHOLE), True),
        (chunked(WHOLE) + b"0\r\n\r\n", True),
        (HEAD + b"\r\n" + WHOLE, True),
        # The length, or the last chunk, says that more was to come.
        (HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(WHOLE) + 1, WHOLE), False),
        (chunked(WHOLE), False),
        (chunked(TEXT_EVENT + END) + b"0\r\n\r\n", True),
        (chunked(TEXT_EVENT + USAGE) + b"0\r\n\r\n", False),
    ],
)
def test_only_a_connection_that_ended_cleanly_makes_a_stream_whole(
    site: Site, pieces: bytes, is_whole: bool
) -> None:
    site.publish("any")
    with standing_in(site.provider, sending(pieces)):
        answer = site.chat("one two", stream=True)
    events = events_of(answer.text)
    assert content_of(events) == "hi"
    row = site.settled()
    if is_whole:
        assert events[-1] == "[DONE]"
        assert (row.status, row.error_type, row.attempts[0]["status"]) == ("completed", None, 200)
    else:
        assert events[-1]["error"]["code"] == 502
        assert (row.status, row.error_type) == ("failed", "provider_unavailable")
    assert_in_order()


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("missing", ["message_stop", "message_delta"])
def test_messages_of_a_provider_need_their_end_but_not_its_mark(
    site: Site, path: str, missing: str
) -> None:
    events = [event for event in RECORDED if event["type"] not in ("message_stop", missing)]
    with listening(Upstream("anthropic", events=events)) as made:
        site.publish("claude-sonnet-4-5", provider=make_maker(made))
        answer = site.ask(path, stream=True)
    row = site.settled()
    assert row.status == ("completed" if missing == "message_stop" else "failed")
    assert ("end mark" in answer.text) == (missing == "message_delta")
    if path == MESSAGES:
        assert ("message_stop" in answer.text) == (missing == "message_stop")
    assert_in_order()
