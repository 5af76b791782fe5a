"""Tests complete exchanges with the non-OpenAI dialects.

The transcripts follow the documentation of the providers. Each file holds the fields of a caller,
the request to the provider, the answer of the provider and the relayed reply or chunks.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.dialects.base import (
    Call,
    Chunk,
    Dialect,
    InvalidStream,
    Operation,
    ProviderFailure,
    Reply,
)
from config.egress.addresses import EgressPolicy, parse_target
from tests.support.dialects.reading import dialect_of, parser_of, read
from tests.support.inference.dialects import capabilities_of
from tests.support.inference.transcripts import BASES, SECRETS, TRANSCRIPTS, feed_of
from tests.support.upstreams import clouds

PLAIN: Final = sorted(name for name, found in TRANSCRIPTS.items() if "answer" in found)
STREAMED: Final = sorted(name for name, found in TRANSCRIPTS.items() if "events" in found)

LOGINS: Final = {
    "anthropic": {"x-api-key": "sk-ant-0123456789abcdef", "anthropic-version": "2023-06-01"},
    "gemini": {"x-goog-api-key": "AIza0123456789abcdef"},
    "bedrock": {"Authorization": f"Bearer {clouds.BEDROCK_KEY}"},
}

STREAM_TYPES: Final = {
    "anthropic": "text/event-stream",
    "gemini": "text/event-stream",
    "bedrock": "application/vnd.amazon.eventstream",
}


def named(name: str) -> tuple[str, Dialect, dict[str, Any]]:
    kind = name.partition("/")[0]
    return kind, dialect_of(kind), TRANSCRIPTS[name]


def relayed(part: Reply | Chunk) -> dict[str, Any]:
    return {
        "fields": json.loads(msgspec.json.encode(part.fields)),
        "model": part.model,
        "upstream_id": part.upstream_id,
        "finish_reason": part.finish_reason,
        "output_bytes": part.output_bytes,
    }


def assert_counted(part: Reply | Chunk) -> None:
    """Checks that the usage for the caller equals the usage that is charged."""
    if part.usage is None:
        assert "usage" not in part.fields
        return
    told = json.loads(bytes(part.fields["usage"]))
    # Counts that nobody made are absent.
    reasoning = told.pop("completion_tokens_details", {"reasoning_tokens": 0})
    assert reasoning == {"reasoning_tokens": part.usage.reasoning}
    assert told == {
        "prompt_tokens": part.usage.prompt,
        "completion_tokens": part.usage.completion,
        "total_tokens": part.usage.prompt + part.usage.completion,
        "prompt_tokens_details": {
            "cached_tokens": part.usage.cached,
            "cache_write_tokens": part.usage.cache_write,
        },
    }


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_build_makes_the_request_of_the_provider(name: str) -> None:
    kind, dialect, transcript = named(name)
    is_stream = name in STREAMED
    # The gateway passes raw fields, except for the fields that it sets itself.
    body = msgspec.json.encode(transcript["fields"])
    raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for fields in (transcript["fields"], raw):
        call = Call(
            Operation.CHAT,
            BASES[kind],
            transcript["model"],
            SECRETS[kind],
            fields,
            is_stream,
            is_byok=True,
            capabilities=capabilities_of(transcript["model"]),
        )
        request = dialect.build(call)
        assert (request.method, request.url) == ("POST", transcript["request"]["url"])
        assert json.loads(request.body) == transcript["request"]["body"]
        assert request.headers == {
            **LOGINS[kind],
            "Content-Type": "application/json",
            "Accept": STREAM_TYPES[kind] if is_stream else "application/json",
        }
        target = parse_target(request.url, policy=EgressPolicy())
        assert target.host == dialect.host(BASES[kind], SECRETS[kind])


@pytest.mark.parametrize("name", PLAIN)
def test_parse_reply_makes_a_completion(name: str) -> None:
    _, dialect, transcript = named(name)
    reply = dialect.parse_reply(Operation.CHAT, json.dumps(transcript["answer"]).encode())
    assert relayed(reply) == transcript["reply"]
    assert_counted(reply)


@pytest.mark.parametrize("name", STREAMED)
def test_feed_makes_chunks_and_an_end(name: str) -> None:
    kind, dialect, transcript = named(name)
    parser = dialect.stream_parser(Operation.CHAT)
    *chunks, end = [*parser.feed(feed_of(kind, transcript["events"])), *parser.finish()]
    assert [relayed(chunk) for chunk in chunks] == transcript["chunks"]
    assert [chunk.has_choices for chunk in chunks] == [
        bool(chunk.fields["choices"]) for chunk in chunks
    ]
    assert end == Chunk(fields={}, is_done=True)
    for chunk in chunks:
        assert_counted(chunk)
    assert parser.feed(b"data: oops\n\n") == []


@given(name=st.sampled_from(STREAMED), sizes=st.lists(st.integers(1, 400), min_size=1))
def test_chunks_do_not_depend_on_the_sizes_of_reads(name: str, sizes: list[int]) -> None:
    kind, dialect, transcript = named(name)
    stream = feed_of(kind, transcript["events"])
    whole = read(kind, stream)
    parser = dialect.stream_parser(Operation.CHAT)
    chunks: list[Chunk] = []
    at = 0
    for turn in range(len(stream)):
        size = sizes[turn % len(sizes)]
        chunks += parser.feed(stream[at : at + size])
        at += size
    assert chunks + parser.finish() == whole


@given(name=st.sampled_from(STREAMED), data=st.data())
def test_finish_refuses_a_stream_that_was_cut_off(name: str, data: st.DataObject) -> None:
    kind, dialect, transcript = named(name)
    stream = feed_of(kind, transcript["events"])
    last = feed_of(kind, transcript["events"][:-1])
    # The last event is incomplete without the empty line that ends it.
    size = data.draw(st.sampled_from([*range(0, len(last) + 1, 7), len(last), len(stream) - 1]))
    parser = dialect.stream_parser(Operation.CHAT)
    parser.feed(stream[:size])
    refusal = ""
    try:
        parser.finish()
    except InvalidStream as exc:
        refusal = str(exc)
    # An answer that lacks nothing but its end mark is whole.
    is_whole = not refusal and size >= len(last)
    assert is_whole or re.search(r"cut off inside an event|without its end mark", refusal)


@given(kind=st.sampled_from(sorted(SECRETS)), data=st.binary(max_size=200), size=st.integers(1, 50))
def test_parsers_raise_only_their_own_errors_on_random_bytes(
    kind: str, data: bytes, size: int
) -> None:
    parser = parser_of(kind)
    try:
        for at in range(0, len(data), size):
            parser.feed(data[at : at + size])
        parser.finish()
    except (InvalidStream, ProviderFailure):
        pass
