"""Tests errors, malformed replies, usage and finish reasons in the non-OpenAI dialects."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.dialects.base import Chunk, InvalidReply, InvalidStream, ProviderFailure, parse_error
from catalog.dialects.shared import replies
from catalog.pricing import Usage
from tests.support.dialects.reading import deltas_of, parse, parser_of, read
from tests.support.inference.dialects import KINDS
from tests.support.inference.transcripts import SECRETS, feed_of
from tests.support.upstreams import clouds


def feed(kind: str, data: bytes) -> list[Chunk]:
    return parser_of(kind).feed(data)


@pytest.mark.parametrize(
    ("kind", "failure", "message", "code"),
    [
        (
            "anthropic",
            {
                "type": "error",
                "error": {"type": "overloaded_error", "message": "Overloaded"},
                "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy",
            },
            "Overloaded",
            "overloaded_error",
        ),
        (
            "gemini",
            {
                "error": {
                    "code": 404,
                    "message": "models/x is not found for API version v1beta.",
                    "status": "NOT_FOUND",
                }
            },
            "models/x is not found for API version v1beta.",
            "NOT_FOUND",
        ),
    ],
)
def test_an_error_raises_provider_failure_in_replies_and_streams(
    kind: str, failure: dict[str, Any], message: str, code: str
) -> None:
    with pytest.raises(ProviderFailure) as plain:
        parse(kind, failure)
    with pytest.raises(ProviderFailure) as streamed:
        feed(kind, feed_of(kind, [failure]))
    as_body = parse_error(json.dumps(failure).encode())
    for found in (plain.value, streamed.value, as_body):
        assert (found.message, found.code) == (message, code)


@pytest.mark.parametrize(
    ("frame", "message", "code"),
    [
        (
            clouds.frame(
                b'{"message":"Too many tokens."}',
                message_type="exception",
                exception_type="throttlingException",
                content_type="application/json",
            ),
            "Too many tokens.",
            "throttlingException",
        ),
        (clouds.frame(b"", message_type="error", error_code="InternalError", error_message="Gone."),
         "Gone.", "InternalError"),
        (clouds.frame(b"", message_type="strange"), None, None),
    ],
)  # fmt: skip
def test_an_exception_in_a_bedrock_stream_raises_provider_failure(
    frame: bytes, message: str | None, code: str | None
) -> None:
    parser = parser_of("bedrock")
    with pytest.raises(ProviderFailure) as error:
        parser.feed(clouds.event_stream(("messageStart", {"role": "assistant"})) + frame)
    assert (error.value.message, error.value.code) == (message, code)
    assert [chunk.has_choices for chunk in parser.pending] == [True]


@pytest.mark.parametrize("kind", KINDS)
def test_clean_masks_the_secret_in_a_failure(kind: str) -> None:
    secret = SECRETS[kind]
    text = f"Key {secret.reveal()} or {clouds.BEDROCK_KEY} is wrong."
    if kind == "bedrock":
        data = clouds.frame(
            json.dumps({"message": text}).encode(), message_type="exception", exception_type=text
        )
    else:
        error = {"type": "error", "error": {"message": text, "type": text, "status": text}}
        data = feed_of(kind, [error])
    with pytest.raises(ProviderFailure) as failure:
        feed(kind, data)
    shown = failure.value.clean(secret)
    login = clouds.BEDROCK_KEY if kind == "bedrock" else secret.reveal()
    for part in (shown.message, shown.code):
        assert part is not None
        assert "********" in part
        assert login not in part


NO_ANSWERS: Final = [
    b"",
    b"null",
    b"[]",
    b"<!doctype html>",
    b"{",
    b"{}",
    b'{"choices":[{"message":{}}]}',
    b'{"type":"message","content":5}',
    b'{"type":"completion"}',
    b'{"type":"message","content":[{"type":"tool_use","input":{"a":"\xff"}}]}',
    b'{"candidates":[]}',
    b'{"candidates":[{"content":{"parts":"x"}}]}',
    b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"a":"\xff"}}}]}}]}',
    b'{"output":{"message":{"content":[{"toolUse":{"input":{"a":"\xff"}}}]}},"stopReason":"x"}',
    b'{"output":{},"stopReason":"end_turn"}',
    b'{"message":{"content":[]}}',
    b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
]


@pytest.mark.parametrize("answer", NO_ANSWERS)
@pytest.mark.parametrize("kind", KINDS)
def test_parse_reply_refuses_a_malformed_answer(kind: str, answer: bytes) -> None:
    with pytest.raises(InvalidReply):
        parse(kind, answer)


@pytest.mark.parametrize("data", [b"oops", b"[]", b'"x"', b'{"a":"\xff"}', b'{"type":5,"error":5}'])
@pytest.mark.parametrize("kind", ["anthropic", "gemini"])
def test_feed_refuses_a_malformed_event(kind: str, data: bytes) -> None:
    with pytest.raises(InvalidStream, match=r"^An event of the stream is malformed\.$"):
        feed(kind, b"data: " + data + b"\n\n")


def test_feed_refuses_a_damaged_message_of_bedrock() -> None:
    good = clouds.event_stream(("messageStart", {"role": "assistant"}))
    damaged = bytearray(good)
    damaged[-6] ^= 1
    parser = parser_of("bedrock")
    with pytest.raises(InvalidStream, match=r"^A message of the stream is damaged\.$"):
        parser.feed(good + bytes(damaged))
    assert len(parser.pending) == 1
    empty = clouds.frame(b"oops", message_type="event", event_type="metadata")
    with pytest.raises(InvalidStream, match=r"^An event of the stream is malformed\.$"):
        feed("bedrock", empty)


@pytest.mark.parametrize("kind", ["anthropic", "bedrock"])
def test_feed_refuses_an_event_above_its_limit(kind: str) -> None:
    """An event of Anthropic's may have the results of a search."""
    if kind == "bedrock":
        delta = {"contentBlockIndex": 0, "delta": {"text": "x" * 21_000_000}}
        data = clouds.event_stream(("contentBlockDelta", delta))[:-1]
    else:
        data = b"data: " + b"x" * 33_600_000
    with pytest.raises(InvalidStream, match=r"^An event of the stream is too large\.$"):
        feed(kind, data)


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        ("anthropic", [{"type": "ping"}, {"type": "news"}, {"type": "content_block_stop"}]),
        ("gemini", [{"modelVersion": "gemini-3.8-flash"}]),
        ("bedrock", [["news", {}], ["contentBlockStop", {"contentBlockIndex": 0}]]),
    ],
)
def test_feed_ignores_an_event_without_content(kind: str, events: list[Any]) -> None:
    assert feed(kind, feed_of(kind, events)) == []


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        ("SOMETHING_NEW", "stop"),
    ],
)
def test_finish_reasons_of_gemini_are_mapped(reason: str, word: str) -> None:
    candidate = {"content": {"parts": [{"text": "a"}]}, "finishReason": reason}
    [choice] = parse("gemini", {"candidates": [candidate]}).fields["choices"]
    assert (choice["finish_reason"], choice["native_finish_reason"]) == (word, reason)
    *_, last, end = read("gemini", feed_of("gemini", [{"candidates": [candidate]}]))
    assert (last.finish_reason, end.is_done) == (word, True)


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("tool_use", "stop"),  # there is no call
        ("refusal", "content_filter"),
        ("something_new", "stop"),
    ],
)
def test_finish_reasons_of_anthropic_are_mapped(reason: str, word: str) -> None:
    reply = parse("anthropic", {"type": "message", "content": [], "stop_reason": reason})
    [choice] = reply.fields["choices"]
    assert (choice["finish_reason"], choice["native_finish_reason"]) == (word, reason)
    assert reply.usage is None


@pytest.mark.parametrize(
    ("kind", "usage", "expected"),
    [
        ("anthropic", {"input_tokens": 1, "output_tokens": 2}, Usage(1, 2)),
        ("anthropic", {"input_tokens": 1}, None),
        ("anthropic", {"output_tokens": 1}, None),
        ("anthropic", {"input_tokens": "1", "output_tokens": 2}, Usage(1, 2)),
        ("anthropic", {"input_tokens": -1, "output_tokens": 2}, None),
        (
            "anthropic",
            {
                "input_tokens": 1,
                "cache_read_input_tokens": 20,
                "cache_creation_input_tokens": 300,
                "output_tokens": 2,
                "output_tokens_details": {"thinking_tokens": 1},
            },
            Usage(321, 2, cached=20, cache_write=300, reasoning=1),
        ),
        ("gemini", {"promptTokenCount": 3}, Usage(3, 0)),
        ("gemini", {"candidatesTokenCount": 3}, None),
        (
            "gemini",
            {
                "promptTokenCount": 3,
                "candidatesTokenCount": 1300,
                "candidatesTokensDetails": [
                    {"modality": "TEXT", "tokenCount": 10},
                    {"modality": "IMAGE", "tokenCount": 1290},
                ],
            },
            Usage(3, 1300, image_output=1290),
        ),
        (
            "gemini",
            {"promptTokenCount": 3, "candidatesTokensDetails": [{"modality": "IMAGE"}]},
            Usage(3, 0),
        ),
        ("gemini", {"promptTokenCount": 3, "candidatesTokenCount": True}, None),
        ("bedrock", {"inputTokens": 3, "outputTokens": 4}, Usage(3, 4)),
        ("bedrock", {"inputTokens": 3}, None),
        ("bedrock", {"inputTokens": 10**18, "outputTokens": 4}, Usage(10**15, 4)),
    ],
)
def test_usage_is_read_only_when_it_is_valid(
    kind: str, usage: dict[str, Any], expected: Usage | None
) -> None:
    answer = {
        "anthropic": {"type": "message", "content": [], "usage": usage},
        "gemini": {"candidates": [{"finishReason": "STOP"}], "usageMetadata": usage},
        "bedrock": {
            "output": {"message": {"content": []}},
            "stopReason": "end_turn",
            "usage": usage,
        },
    }[kind]
    reply = parse(kind, answer)
    assert reply.usage == expected
    assert ("usage" in reply.fields) == (expected is not None)


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        ({"input_tokens": 7, "output_tokens": 1}, Usage(7, 0)),
        ({"input_tokens": 0, "cache_read_input_tokens": 7}, Usage(7, 0, cached=7)),
        ({"input_tokens": 0, "output_tokens": 0}, None),
    ],
)
def test_a_first_usage_without_prompt_tokens_is_ignored(
    begun: dict[str, Any], expected: Usage | None
) -> None:
    start = {"type": "message_start", "message": {"type": "message", "usage": begun}}
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"input_tokens": 9, "output_tokens": 2},
    }
    first, last = feed("anthropic", feed_of("anthropic", [start, end]))
    assert first.usage == expected
    cached = begun.get("cache_read_input_tokens", 0)
    assert last.usage == Usage(9 + cached, 2, cached=cached)


def test_drafts_that_gemini_makes_while_it_thinks_are_no_pictures() -> None:
    def drawn(data: str) -> dict[str, Any]:
        return {"inlineData": {"mimeType": "image/png", "data": data}}

    parts = [{**drawn("AAAA"), "thought": True}, {"text": "Here."}, drawn("BBBB")]
    answer = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,BBBB"}}
    reply, chunks = parse("gemini", answer), read("gemini", feed_of("gemini", [answer]))
    assert reply.fields["choices"][0]["message"]["images"] == [picture]
    assert [each for one in deltas_of(chunks) for each in one.get("images", ())] == [picture]
    assert (reply.pictures, sum(chunk.pictures for chunk in chunks)) == (1, 1)
    assert parse("gemini", [answer]).pictures == 1


def test_sound_that_gemini_makes_is_told_as_sound() -> None:
    def event(*parts: dict[str, Any], **members: Any) -> dict[str, Any]:
        return {"responseId": "r", "candidates": [{"content": {"parts": parts}, **members}]}

    def spoken(data: str) -> dict[str, Any]:
        return {"inlineData": {"mimeType": "audio/L16;codec=pcm;rate=24000", "data": data}}

    counts = {
        "promptTokenCount": 9,
        "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 7}],
        "candidatesTokenCount": 25,
        "candidatesTokensDetails": [{"modality": "AUDIO", "tokenCount": 25}],
    }
    one, two = spoken("AQ=="), spoken("AgM=")
    whole = {**event(one, two, finishReason="STOP"), "usageMetadata": counts}
    events = [event(one), {**event(two, finishReason="STOP"), "usageMetadata": counts}]
    for reply in (parse("gemini", whole), parse("gemini", events)):
        message = reply.fields["choices"][0]["message"]
        assert message["audio"] == {"id": "audio_r_0", "data": "AQID"}
        assert "images" not in message
        assert (reply.pictures, reply.sound > 0) == (0, True)
        usage = json.loads(bytes(reply.fields["usage"]))
        assert usage["completion_tokens_details"] == {"audio_tokens": 25}
        assert usage["prompt_tokens_details"]["audio_tokens"] == 7
    deltas = deltas_of(chunks := read("gemini", feed_of("gemini", events)))
    assert [each["audio"] for each in deltas if "audio" in each] == [
        {"id": "audio_r_0", "data": data} for data in ("AQ==", "AgM=")
    ]
    assert (sum(each.sound for each in chunks), sum(each.pictures for each in chunks)) == (2, 0)


def test_a_file_of_gemini_that_is_no_picture_is_left_out() -> None:
    film = {"inlineData": {"mimeType": "video/mp4", "data": "AAAA"}}
    parts = [film, {"text": "Here."}]
    reply = parse("gemini", {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})
    assert reply.fields["choices"][0]["message"] == {"role": "assistant", "content": "Here."}
    assert reply.notes == {replies.FILES_LEFT_OUT}


def test_gemini_stream_ends_when_all_candidates_have_ended() -> None:
    def candidate(index: int, finish: str | None) -> dict[str, Any]:
        made = {"index": index, "content": {"parts": [{"text": "a"}]}}
        return made if finish is None else {**made, "finishReason": finish}

    events = [
        {"candidates": [candidate(0, None), candidate(1, None)]},
        {"candidates": [candidate(0, "STOP")]},
        {"candidates": [candidate(1, "MAX_TOKENS")]},
    ]
    chunks = read("gemini", feed_of("gemini", events), choices=2)
    assert [chunk.is_done for chunk in chunks] == [False, False, False, False, True]
    choices = [chunk.fields["choices"][0] for chunk in chunks[:-1]]
    assert [(choice["index"], choice["finish_reason"]) for choice in choices] == [
        (0, None),
        (1, None),
        (0, "stop"),
        (1, "length"),
    ]
    assert [choice["delta"].get("role") for choice in choices] == ["assistant"] * 2 + [None] * 2


def test_gemini_candidates_may_arrive_one_after_another() -> None:
    def event(index: int, written: int, **members: Any) -> dict[str, Any]:
        candidate = {"index": index, "content": {"parts": [{"text": "a"}]}, **members}
        usage = {"promptTokenCount": 3, "candidatesTokenCount": written}
        return {"candidates": [candidate], "usageMetadata": usage}

    parser = parser_of("gemini", 3)
    one = [event(0, 1), event(0, 2, finishReason="STOP")]
    chunks = parser.feed(feed_of("gemini", one))
    # Usage after a finish would count as final, but only the last usage is final.
    assert [chunk.usage for chunk in chunks] == [None, Usage(3, 1)]
    assert parser.feed(feed_of("gemini", [event(1, 4, finishReason="STOP")])) == []
    # The third candidate never arrives.
    *lasts, last, end = parser.finish()
    assert [chunk.fields["choices"][0]["index"] for chunk in lasts] == [0, 1]
    assert (last.usage, end.is_done) == (Usage(3, 4), True)
    assert parser.finish() == []


def test_gemini_stream_with_an_unfinished_candidate_is_cut_off() -> None:
    parser = parser_of("gemini", 2)
    cut = {"index": 1, "content": {"parts": [{"text": "a"}]}}
    parser.feed(feed_of("gemini", [{"candidates": [{"index": 0, "finishReason": "STOP"}, cut]}]))
    with pytest.raises(InvalidStream, match=r"^The stream ended without its end mark\.$"):
        parser.finish()


NAMES: Final = [
    "type", "content", "text", "index", "delta", "usage", "error", "message", "candidates", "parts",
    "functionCall", "finishReason", "usageMetadata", "output", "stopReason", "toolUse", "input",
]  # fmt: skip

WORDS: Final = ["message", "error", "message_start", "message_delta", "content_block_delta", "text"]


@given(
    st.sampled_from(KINDS),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
        ),
        max_leaves=12,
    ),
)
def test_parsers_raise_only_their_own_errors_on_random_json(kind: str, value: Any) -> None:
    data = json.dumps(value).encode()
    framed = (
        clouds.frame(data, message_type="event", event_type="contentBlockDelta")
        if kind == "bedrock"
        else b"data: " + data + b"\n\n"
    )
    with contextlib.suppress(InvalidReply, ProviderFailure):
        parse(kind, data)
    with contextlib.suppress(InvalidStream, ProviderFailure):
        feed(kind, framed)
