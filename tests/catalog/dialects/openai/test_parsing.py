"""Replies and streams of the OpenAI dialect."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.dialects import openai
from catalog.dialects.base import (
    Chunk,
    InvalidReply,
    InvalidStream,
    Operation,
    ProviderFailure,
    parse_error,
)
from catalog.dialects.openai.repair import CALLS_REPAIRED, TEXT_MOVED
from catalog.dialects.wholes import RenamingParser, join_stream, split_reply
from catalog.pricing import Usage
from config.credentials import Secret

SECRET = Secret("credential-0123456789")


def reply(**changes: Any) -> bytes:
    body: dict[str, Any] = {
        "id": "up-1",
        "model": "deployed",
        "choices": [{"index": 0, "message": {"content": "Hé"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 5},
    }
    return json.dumps({**body, **changes}).encode()


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(text: str, finish: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return event(choices=[choice], **fields)


DONE = b"data: [DONE]\n\n"


def test_parse_reply_reads_model_id_finish_reason_and_usage() -> None:
    read = openai.parse_reply(Operation.CHAT, reply())
    assert (read.model, read.upstream_id, read.finish_reason) == ("deployed", "up-1", "stop")
    assert read.usage == Usage(prompt=3, completion=5)
    assert read.output_bytes == 3
    assert {name: json.loads(bytes(raw)) for name, raw in read.fields.items()} == json.loads(
        reply()
    )


def test_parse_reply_reads_a_text_completion() -> None:
    body = reply(choices=[{"text": "one", "finish_reason": "length"}])
    read = openai.parse_reply(Operation.TEXT, body)
    assert (read.finish_reason, read.output_bytes) == ("length", 3)


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ({"content": "ü"}, 2),
        ({"content": None}, 0),
        ({"content": "a", "reasoning": "bc", "refusal": "g"}, 4),
        ({"content": "a", "reasoning": "", "reasoning_content": "def", "refusal": "g"}, 5),
        ({"content": "a", "reasoning": "def", "reasoning_content": "def"}, 4),
        ({"content": None, "tool_calls": None}, 0),
        ({"tool_calls": [{"function": {"name": "look", "arguments": '{"a": 12}'}}]}, 4 + 9),
        ({"tool_calls": [{"type": "custom", "custom": {"name": "sh", "input": "ü"}}]}, 2 + 2),
        ({"tool_calls": [{"id": "c", "name": "look", "arguments": {"a": 1}}]}, 4 + 7),
        ({"tool_calls": {"id": "c"}}, 10),
        ({"function_call": {"name": "look", "arguments": '{"a": 12}'}}, 4 + 9),
        ({"function_call": None}, 0),
        ({"function_call": "look"}, 4),
        ({"content": [{"type": "text"}]}, 17),
    ],
)
def test_parse_reply_counts_all_output_of_the_model(message: dict[str, Any], size: int) -> None:
    body = reply(choices=[{"message": message, "finish_reason": "stop"}])
    assert openai.parse_reply(Operation.CHAT, body).output_bytes == size


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"<!doctype html>",
        b"{",
        b"{}",
        b'{"status":"ok"}',
        b'{"choices":null}',
        b'{"choices":[]}',
        b'{"choices":{}}',
        b'{"choices":[1]}',
        b'{"choices":[{}]}',
        b'{"choices":[{"message":null}]}',
        b'{"choices":[{"message":"text"}]}',
        b'{"choices":[{"text":"x"}]}',
        b'{"choices":[{"message":{},"finish_reason":5}]}',
        b'{"choices":[{"message":{"tool_calls":[{"type":1e999}]}}]}',
        b'{"choices":[{"message":{"content":[1e999]}}]}',
        b'{"choices":[{"message":{"content":"\xff"}}]}',
        b'{"choices":[{"message":{}}],"x":"\xff"}',
        b'{"choices":[{"message":{}}],"x":"\xff","y":NaN}',
        b'{"choices":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"choices":[{"message":{}}],"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"choices":[{"message":{}}],"y":NaN,"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"NaN",
    ],
)
def test_parse_reply_refuses_a_body_that_is_not_a_completion(body: bytes) -> None:
    with pytest.raises(InvalidReply):
        openai.parse_reply(Operation.CHAT, body)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (rb"\ud800", "\ufffd"),
        (rb"\uDC00\ud83d", "\ufffd\ufffd"),
        (rb"\ud83d\ude00", "\U0001f600"),
        (rb"\\ud83d", r"\ud83d"),
        (rb"\\\ud83dx", "\\\ufffdx"),
    ],
)
def test_parse_reply_replaces_a_lone_surrogate(said: bytes, read: str) -> None:
    body = b'{"choices":[{"message":{"content":"%b"}}],"y":NaN}' % said
    reply = openai.parse_reply(Operation.CHAT, body)
    [choice] = json.loads(msgspec.json.encode(reply.fields["choices"]))
    assert choice["message"]["content"] == read


def test_parse_reply_refuses_a_chat_message_as_text_completion() -> None:
    with pytest.raises(InvalidReply, match=r"^A choice of the answer has no content\.$"):
        openai.parse_reply(Operation.TEXT, reply())


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({"prompt_tokens": 100_000_000, "completion_tokens": 1}, Usage(100_000_000, 1)),
        # A claim beyond all measure is taken over as far as sums of it stay in range.
        ({"prompt_tokens": 10**9, "completion_tokens": 10**18}, Usage(10**9, 10**15)),
        ({"prompt_tokens": 10**40, "completion_tokens": 1}, Usage(10**15, 1)),
        ({"prompt_tokens": -1, "completion_tokens": 1}, None),
        ({"prompt_tokens": 1, "completion_tokens": -1}, None),
        ({"prompt_tokens": "5", "completion_tokens": 5}, Usage(5, 5)),
        ({"prompt_tokens": 1.5, "completion_tokens": 5}, None),
        ({"prompt_tokens": True, "completion_tokens": 5}, None),
        ({"prompt_tokens": None, "completion_tokens": 5}, None),
        ({"prompt_tokens": 5}, None),
        ({"prompt_tokens": float("nan"), "completion_tokens": 5}, None),
        ({}, None),
        (None, None),
        ([], None),
        ("5", None),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            Usage(9, 8, cached=4, cache_write=3, reasoning=2),
        ),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 8,
                "prompt_tokens_details": {
                    "cached_content_tokens": 1,
                    "cache_read_tokens": 2,
                    "cached_tokens": 4,
                    "cache_write_tokens": 0,
                    "cache_creation_tokens": 3,
                },
            },
            Usage(9, 8, cached=4, cache_write=3),
        ),
        ({"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135,
          "completion_tokens_details": {"reasoning_tokens": 94}}, Usage(32, 103, reasoning=94)),
        ({"prompt_tokens": 32, "completion_tokens": 103, "total_tokens": 135,
          "completion_tokens_details": {"reasoning_tokens": 94}}, Usage(32, 103, reasoning=94)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 8,
                "completion_tokens_details": {"reasoning_tokens": 2, "image_tokens": 5},
            },
            Usage(9, 8, reasoning=2, image_output=5),
        ),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": None, "cache_write_tokens": -3},
                "completion_tokens_details": None,
            },
            Usage(9, 8),
        ),
    ],
)  # fmt: skip
def test_usage_is_read_only_when_it_is_valid(usage: Any, expected: Usage | None) -> None:
    assert openai.parse_reply(Operation.CHAT, reply(usage=usage)).usage == expected
    parser = openai.stream_parser(Operation.CHAT)
    [chunk] = parser.feed(event(choices=[], usage=usage))
    assert chunk.usage == expected


def test_missing_usage_is_read_as_none() -> None:
    body = b'{"choices":[{"message":{"content":"x"}}]}'
    assert openai.parse_reply(Operation.CHAT, body).usage is None


def test_parse_reply_replaces_nan_and_infinity_by_null() -> None:
    body = reply(usage={"prompt_tokens": float("nan")}, timings=float("-inf"))
    read = openai.parse_reply(Operation.CHAT, body)
    assert bytes(read.fields["timings"]) == b"null"


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        ({"message": "No.", "code": "c", "type": "t"}, "No.", "c"),
        ({"message": "No.", "code": 429}, "No.", "429"),
        ({"message": "No.", "code": None, "type": "t"}, "No.", "t"),
        ({"message": {"deep": 1}}, None, None),
        ("No.", "No.", None),
        (5, None, None),
        ([], None, None),
        ({}, None, None),
    ],
)
def test_an_error_inside_a_200_raises_provider_failure(error: Any, message: Any, code: Any) -> None:
    with pytest.raises(ProviderFailure) as plain:
        openai.parse_reply(Operation.CHAT, json.dumps({"error": error}).encode())
    with pytest.raises(ProviderFailure) as streamed:
        openai.stream_parser(Operation.CHAT).feed(event(error=error))
    for failure in (plain.value, streamed.value):
        assert (failure.message, failure.code) == (message, code)


def test_parse_reply_ignores_a_null_error() -> None:
    assert openai.parse_reply(Operation.CHAT, reply(error=None)).model == "deployed"


def test_parse_reply_refuses_a_deeply_nested_error() -> None:
    with pytest.raises(InvalidReply):
        openai.parse_reply(
            Operation.CHAT, b'{"error":' + b"[" * 5000 + b"]" * 5000 + b',"choices":[]}'
        )


@pytest.mark.parametrize("position", [0, 100, 500, 505, 511, 512, 4090, 100_000])
def test_clean_masks_the_secret_at_any_position(position: int) -> None:
    text = "a" * position + SECRET.reveal() + "b" * 50
    failure = parse_error(json.dumps({"error": {"message": text, "code": text}}).encode())
    shown = failure.clean(SECRET)
    expected = ("a" * position + "********" + "b" * 50)[:512]
    assert (shown.message, shown.code) == (expected, expected[:64])


def test_clean_returns_one_line_without_control_characters() -> None:
    failure = parse_error(b'{"error":{"message":"\\u0000a\\r\\nb\\u001b[31m\\u2028c\\ud800 "}}')
    assert failure.clean(SECRET).message == "a b [31m c"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<p>Bad</p>", b"[]", b"{a", b"\xff", b"[" * 100_000, b"1" * 5000, b"5", b"true",
        b'{"error":{"message":' + b"[" * 600 + b"]" * 600 + b"}}",
    ],
)  # fmt: skip
def test_parse_error_returns_no_message_for_a_body_that_is_not_an_object(body: bytes) -> None:
    failure = parse_error(body)
    assert (failure.message, failure.code) == (None, None)


def test_feed_yields_the_chunks_and_the_end_of_a_stream() -> None:
    parser = openai.stream_parser(Operation.CHAT)
    chunks = parser.feed(delta("Hé", id="up-1", model="deployed") + delta("", "stop"))
    assert [(c.upstream_id, c.model, c.finish_reason, c.output_bytes) for c in chunks] == [
        ("up-1", "deployed", None, 3),
        (None, None, "stop", 0),
    ]
    assert [chunk.has_choices for chunk in chunks] == [True, True]
    assert parser.feed(DONE) == [Chunk(fields={}, is_done=True)]
    parser.finish()


def test_feed_ignores_data_after_the_end() -> None:
    parser = openai.stream_parser(Operation.CHAT)
    assert [chunk.is_done for chunk in parser.feed(DONE + b"data: oops\n\n")] == [True]
    assert parser.feed(b"data: oops\n\n") == []
    parser.finish()


@pytest.mark.parametrize(
    "bad",
    [
        b"data: oops\n\n",
        b"data: [1,2]\n\n",
        b'data: {"choices":5}\n\n',
        b'data: {"choices":[{"delta":"x"}]}\n\n',
        b'data: {"choices":[{"delta":{"tool_calls":[{"type":1e999}]}}]}\n\n',
        b'data: {"choices":[],"x":"\xff"}\n\n',
        b'data: {"choices":' + b"[" * 5000 + b"]" * 5000 + b"}\n\n",
    ],
)
def test_chunks_before_a_malformed_event_are_pending(bad: bytes) -> None:
    parser = openai.stream_parser(Operation.CHAT)
    with pytest.raises(InvalidStream):
        parser.feed(delta("one") + delta("two") + bad + delta("three"))
    assert [chunk.output_bytes for chunk in parser.pending] == [3, 3]


def test_a_part_of_an_odd_type_is_left_out() -> None:
    parts = [{"type": {}, "text": "a"}, {"type": ["text"]}, {"type": "text", "text": "b"}]
    choice = {"message": {"content": parts}, "finish_reason": "stop"}
    found = openai.parse_reply(Operation.CHAT, reply(choices=[choice])).fields["choices"]
    assert found[0]["message"]["content"] == "b"


def test_a_length_out_of_range_is_read_as_a_long_one() -> None:
    body = json.dumps({"text": "a", "duration": 10**400}).encode()
    usage = openai.parse_reply(Operation.TRANSCRIPTION, body).usage
    assert usage is not None
    assert usage.milliseconds > 10**8


MISTRAL: Final = {
    "prompt_audio_seconds": 203, "prompt_tokens": 4, "completion_tokens": 635,
    "total_tokens": 3264,
}  # fmt: skip


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (MISTRAL, Usage(2629, 635, audio=2625, milliseconds=203_000)),
        (
            {**MISTRAL, "prompt_tokens_details": {"audio_tokens": 2000}},
            Usage(2629, 635, audio=2000, milliseconds=203_000),
        ),
        ({**MISTRAL, "total_tokens": 639}, Usage(4, 635, milliseconds=203_000)),
        ({"prompt_tokens": 8, "completion_tokens": 4}, Usage(8, 4, milliseconds=5000)),
        ({"prompt_audio_seconds": 2}, Usage(0, 0, milliseconds=2000)),
        ({"completion_tokens": 4}, Usage(0, 0, milliseconds=5000)),
        (
            {"input_tokens": 8, "output_tokens": 4, "seconds": 3, "total_tokens": 99},
            Usage(8, 4, milliseconds=3000),
        ),
    ],
)
def test_the_usage_of_a_transcription_may_have_the_names_of_chat(
    usage: dict[str, Any], expected: Usage
) -> None:
    body = json.dumps({"text": "a", "usage": usage, "duration": 5}).encode()
    assert openai.parse_reply(Operation.TRANSCRIPTION, body).usage == expected


def test_a_call_of_a_response_whose_id_is_no_text_gets_one() -> None:
    item = {"type": "function_call", "call_id": ["a"], "name": "look", "arguments": "{}"}
    parser = openai.native.stream_parser(Operation.CHAT)
    chunks = parser.feed(event(type="response.output_item.added", output_index=0, item=item))
    [told] = [chunk.data for chunk in chunks if chunk.data]
    assert json.loads(told.partition(b"data: ")[2])["item"]["call_id"].startswith("call_")


def test_a_call_behind_the_finish_reason_keeps_its_arguments() -> None:
    parser = openai.stream_parser(Operation.CHAT)
    told = []
    for number, reason in enumerate(("tool_calls", None)):
        function = {"name": "look", "arguments": "{}"}
        call = {"index": number, "id": str(number), "type": "function", "function": function}
        choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": reason}
        [chunk] = parser.feed(event(choices=[choice]))
        told += chunk.fields["choices"][0]["delta"]["tool_calls"]
    assert [each["function"]["arguments"] for each in told] == ["{}", "{}"]


def test_chunks_before_a_reported_error_are_pending() -> None:
    parser = openai.stream_parser(Operation.CHAT)
    with pytest.raises(ProviderFailure):
        parser.feed(delta("one") + event(error={"message": "No."}))
    assert [chunk.output_bytes for chunk in parser.pending] == [3]


def test_feed_refuses_an_event_above_its_limit() -> None:
    parser = openai.stream_parser(Operation.CHAT)
    with pytest.raises(InvalidStream, match=r"^An event of the stream is too large\.$"):
        parser.feed(delta("x" * 33_554_432))


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        (b"", "The stream ended without its end mark."),
        (b"data: {", "The stream was cut off inside an event."),
        (b"data: {}\n", "The stream ended without its end mark."),
    ],
)
def test_finish_reports_how_a_stream_was_cut_off(rest: bytes, text: str) -> None:
    parser = openai.stream_parser(Operation.CHAT)
    parser.feed(delta("one") + rest)
    with pytest.raises(InvalidStream) as error:
        parser.finish()
    assert str(error.value) == text


@given(
    texts=st.lists(st.text(max_size=5), max_size=6),
    size=st.integers(1, 40),
    end=st.sampled_from([b"\n", b"\r", b"\r\n"]),
)
def test_chunks_do_not_depend_on_the_sizes_of_reads(
    texts: list[str], size: int, end: bytes
) -> None:
    stream = b"".join(map(delta, texts)) + event(choices=[], usage={"prompt_tokens": 1}) + DONE
    stream = stream.replace(b"\n", end)
    parser = openai.stream_parser(Operation.CHAT)
    chunks = [
        chunk for at in range(0, len(stream), size) for chunk in parser.feed(stream[at : at + size])
    ]
    parser.finish()
    assert [chunk.output_bytes for chunk in chunks] == [
        *(len(text.encode()) for text in texts),
        0,
        0,
    ]
    assert chunks[-1].is_done


@given(data=st.binary(max_size=200), size=st.integers(1, 50))
def test_parser_raises_only_its_own_errors_on_random_bytes(data: bytes, size: int) -> None:
    parser = openai.stream_parser(Operation.CHAT)
    try:
        for at in range(0, len(data), size):
            parser.feed(data[at : at + size])
        parser.finish()
    except (InvalidStream, ProviderFailure):
        pass


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["choices", "message", "delta", "usage", "error", "content", "prompt_tokens"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_parser_raises_only_its_own_errors_on_random_json(value: Any) -> None:
    body = json.dumps(value).encode()
    for read in (
        lambda: openai.parse_reply(Operation.CHAT, body),
        lambda: openai.stream_parser(Operation.CHAT).feed(b"data: " + body + b"\n\n"),
    ):
        with contextlib.suppress(InvalidReply, InvalidStream, ProviderFailure):
            read()


def ended(*messages: dict[str, Any]) -> bytes:
    """Returns an event that ends each choice with its whole message."""
    choices = [
        {"index": at, "finish_reason": "stop", "message": {"role": "assistant", **each}}
        for at, each in enumerate(messages)
    ]
    usage = {"prompt_tokens": 3, "completion_tokens": 5}
    return event(object="chat.completion", choices=choices, usage=usage)


def pieces(*deltas: dict[str, Any], index: int = 0) -> list[bytes]:
    return [event(choices=[{"index": index, "delta": each}]) for each in deltas]


PICTURE: Final = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
CALL: Final = {"id": "a", "function": {"name": "look", "arguments": '{"a":1}'}}
ROLE: Final = {"role": "assistant", "content": ""}
LETTERS: Final = [{"content": letter} for letter in "Hello"]
PARTS: Final = [{"content": [{"type": "text", "text": letter}]} for letter in "Hello"]
HELLO: Final = {"content": "Hello"}
THOUGHT: Final = {"content": "Hello", "reasoning_content": "Hmm"}
THINKING: Final = [{"reasoning_content": letter} for letter in "Hmm"]
SHOWN: Final = {"content": "Hello", "images": [PICTURE]}


@pytest.mark.parametrize(
    ("deltas", "message", "whole", "size"),
    [
        ([ROLE, *LETTERS], HELLO, HELLO, 5),
        ([*LETTERS, {"content": "!\n"}], {"content": "Hello!\n"}, {"content": "Hello!\n"}, 7),
        # A list counts as its JSON.
        (PARTS, HELLO, HELLO, 5 * len('[{"type":"text","text":"H"}]')),
        ([{"role": "", **each} for each in LETTERS], {"role": "", **HELLO}, HELLO, 5),
        ([*THINKING, *LETTERS], THOUGHT, THOUGHT, 8),
        ([*LETTERS, {"images": [PICTURE]}], SHOWN, SHOWN, 5),
        ([], THOUGHT, THOUGHT, 8),
        ([ROLE], HELLO, HELLO, 5),
        ([{"role": ""}, {"role": "", "content": None}], HELLO, HELLO, 5),
    ],
)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_whole_message_counts_only_where_no_delta_had_output(
    deltas: list[dict[str, Any]],
    message: dict[str, Any],
    whole: dict[str, Any],
    size: int,
    at_once: bool,
) -> None:
    events = [*pieces(*deltas), ended(message), DONE]
    parser = openai.stream_parser(Operation.CHAT)
    chunks = [
        chunk for data in ([b"".join(events)] if at_once else events) for chunk in parser.feed(data)
    ]
    assert sum(chunk.output_bytes for chunk in chunks) == size
    assert sum(chunk.pictures for chunk in chunks) == len(whole.get("images", ()))
    assert Usage(3, 5) in [chunk.usage for chunk in chunks]
    [choice] = join_stream(openai.stream_parser(Operation.CHAT), b"".join(events), None).fields[
        "choices"
    ]
    assert {name: choice["message"].get(name) for name in whole} == whole
    assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "stop")


def test_a_whole_message_keeps_the_calls_that_no_delta_had() -> None:
    for deltas in ([], [{"tool_calls": [{"index": 0, **CALL}]}]):
        events = [*pieces(*LETTERS, *deltas), ended({**HELLO, "tool_calls": [CALL]}), DONE]
        read = join_stream(openai.stream_parser(Operation.CHAT), b"".join(events), None)
        message = read.fields["choices"][0]["message"]
        assert message["content"] == "Hello"
        assert message["tool_calls"] == [{**CALL, "type": "function"}]


@pytest.mark.parametrize("repeats_id", [False, True])
@pytest.mark.parametrize(
    ("functions", "notes"),
    [
        (({"name": "look_up", "arguments": ""}, {"arguments": '{"a":1}'}), set()),
        (
            ({"name": "", "arguments": ""}, {"name": "look_up", "arguments": '{"a":1}'}),
            {CALLS_REPAIRED},
        ),
        (({"arguments": '{"a":'}, {"name": "look_up", "arguments": "1}"}), {CALLS_REPAIRED}),
        (
            ({"arguments": '{"a":'}, {"name": "look_up"}, {"arguments": "1}"}),
            {CALLS_REPAIRED},
        ),
    ],
)
def test_a_call_begins_with_its_name(
    functions: tuple[dict[str, str], ...], notes: set[str], repeats_id: bool
) -> None:
    """Nobody waits for a name behind its call."""
    deltas = [
        {"tool_calls": [{"index": 0, "function": each, **({"id": "a"} if has_id else {})}]}
        for each, has_id in zip(functions, (True, repeats_id, repeats_id), strict=False)
    ]
    parser = RenamingParser(openai.stream_parser(Operation.CHAT), {"look_up": "look.up"})
    choices = [chunk.fields["choices"][0] for chunk in parser.feed(b"".join(pieces(*deltas)))]
    first, *rest = [call for each in choices for call in each["delta"].get("tool_calls", ())]
    assert (first["id"], first["function"]["name"]) == ("a", "look.up")
    assert [each["function"].keys() for each in rest] == [{"arguments"}] * len(rest)
    assert "".join(each["function"]["arguments"] for each in (first, *rest)) == '{"a":1}'
    assert parser.notes == notes


def test_a_call_in_the_older_member_counts_and_is_no_text() -> None:
    named = {**ROLE, "function_call": {"name": "look", "arguments": ""}}
    written = [{"function_call": {"arguments": "x" * 40}}] * 100
    events = [*pieces(named, *written), ended(HELLO), DONE]
    chunks = openai.stream_parser(Operation.CHAT).feed(b"".join(events))
    assert sum(chunk.output_bytes for chunk in chunks) == len("look") + 4_000 + len("Hello")


def test_a_whole_message_of_another_choice_is_its_output() -> None:
    first, second = pieces(*LETTERS), pieces(ROLE, index=1)
    both = event(choices=[{"index": 0, "delta": HELLO}, {"index": 1, "delta": ROLE}])
    for events in ([*first, *second], [both]):
        data = b"".join([*events, ended(HELLO, {"content": "Ja"}), DONE])
        read = join_stream(openai.stream_parser(Operation.CHAT, choices=2), data, None)
        texts = [choice["message"]["content"] for choice in read.fields["choices"]]
        assert (texts, read.output_bytes) == (["Hello", "Ja"], 7)


@pytest.mark.parametrize(
    ("operation", "given", "whole", "size"),
    [
        (
            Operation.TEXT,
            [{"delta": ROLE}, {"delta": {"content": None, "reasoning": "Hm"}}]
            + [{"delta": {"content": "Hel"}}, {"text": "l"}, {"delta": {"content": "o"}}],
            {"text": "Hello", "reasoning": "Hm"},
            7,
        ),
        (Operation.TEXT, [{"text": None}], HELLO, 5),
        (Operation.TEXT, [{"delta": each} for each in PARTS[:4]] + [{"text": "o"}], HELLO, None),
        (Operation.CHAT, [{"text": "Hel"}, {"delta": {"content": "l"}}, {"text": "o"}], HELLO, 5),
    ],
)
def test_a_streamed_text_in_the_words_of_the_other_kind_of_completions_is_read(
    operation: Operation, given: list[dict[str, Any]], whole: dict[str, Any], size: int | None
) -> None:
    events = [event(choices=[{"index": 0, **each}]) for each in given]
    data = b"".join([*events, ended(HELLO), DONE])
    read = join_stream(openai.stream_parser(operation), data, None)
    [choice] = read.fields["choices"]
    if operation is Operation.TEXT:
        assert "delta" not in choice
        assert "message" not in choice
        choice["message"] = {"content": choice["text"], **choice}
    assert {name: choice["message"][name] for name in whole} == whole
    assert choice["finish_reason"] == "stop"
    assert size in (None, read.output_bytes)
    assert TEXT_MOVED in read.notes


def test_a_role_is_never_empty() -> None:
    message = {"role": "", "content": "Hi"}
    read = openai.parse_reply(Operation.CHAT, reply(choices=[{"index": 0, "message": message}]))
    [choice] = json.loads(msgspec.json.encode(read.fields["choices"]))
    assert choice["message"] == {"role": "assistant", "content": "Hi"}
    parser = openai.stream_parser(Operation.CHAT)
    blank = [{"role": "", **each} for each in LETTERS]
    chunks = parser.feed(b"".join(pieces(*LETTERS, *blank)))
    assert all(b'"role"' not in msgspec.json.encode(chunk.fields) for chunk in chunks)
    assert sum(chunk.output_bytes for chunk in chunks) == 10


SOUND: Final = {"data": "A" * 1_600, "transcript": "ja"}


def test_a_split_answer_counts_what_the_whole_one_does() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    messages = [{"content": "two words", "images": [picture]}, {"content": "one", "audio": SOUND}]
    choices = [{"index": at, "message": each} for at, each in enumerate(messages)]
    read = openai.parse_reply(Operation.CHAT, reply(choices=choices))
    counts = (read.output_bytes, read.characters, read.pictures, read.sound)
    assert counts == (16, 13, 1, 2)
    chunks = split_reply(read, None)
    assert counts == (
        sum(chunk.output_bytes for chunk in chunks),
        sum(chunk.characters for chunk in chunks),
        sum(chunk.pictures for chunk in chunks),
        sum(chunk.sound for chunk in chunks),
    )


def test_a_joined_stream_counts_what_its_events_do() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    deltas = [{"content": "two words", "images": [picture]}, {"content": "one", "audio": SOUND}]
    events = [
        event(choices=[{"index": at, "delta": each, "finish_reason": "stop"}])
        for at, each in enumerate(deltas)
    ]
    parser = openai.stream_parser(Operation.CHAT, choices=2)
    read = join_stream(parser, b"".join(events) + DONE, None)
    counts = (read.output_bytes, read.characters, read.pictures, read.sound)
    assert counts == (16, 13, 1, 2)


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"timings": {"prompt_n": 3, "predicted_n": 5}},
        {"x_groq": {"usage": {"prompt_tokens": 3, "completion_tokens": 5}}},
    ],
)
def test_a_usage_at_another_place_is_split_and_joined(elsewhere: dict[str, Any]) -> None:
    body = {**json.loads(reply()), **elsewhere}
    del body["usage"]
    read = openai.parse_reply(Operation.CHAT, json.dumps(body).encode())
    [told] = [chunk for chunk in split_reply(read, None) if chunk.usage is not None]
    data = b"".join([delta("H"), delta("\u00e9", "stop", **elsewhere), DONE])
    joined = join_stream(openai.stream_parser(Operation.CHAT), data, None)
    assert told.usage == joined.usage == Usage(prompt=3, completion=5)
    for fields in (told.fields, joined.fields):
        assert json.loads(bytes(fields["usage"]))["completion_tokens"] == 5


@pytest.mark.parametrize(
    ("audio", "sizes"),
    [
        ({"id": "a", "transcript": "ja"}, (2, 0)),
        ({"data": "A" * 64_000}, (80, 80)),  # a second of 16 bits at 24 kHz
        ({"data": "AAAA"}, (1, 1)),
        ({"data": "", "transcript": None}, (0, 0)),
        ({"data": None}, (0, 0)),
        ({"data": 7, "transcript": "ja"}, (2, 0)),
        ({}, (0, 0)),
        (None, (0, 0)),
        ("AAAA", (0, 0)),
        ([{"data": "AAAA"}], (0, 0)),
    ],
)
def test_sound_counts_as_what_it_takes_to_say_it(audio: Any, sizes: tuple[int, int]) -> None:
    pieces = [event(choices=[{"index": 0, "delta": {"audio": audio}}])] * 3
    chunks = openai.stream_parser(Operation.CHAT).feed(b"".join(pieces))
    assert [(each.output_bytes, each.sound) for each in chunks] == [sizes] * 3
    assert [len(each.repeats) for each in chunks] == [0, 1, 1]
    message = {"content": "", "audio": audio}
    read = openai.parse_reply(Operation.CHAT, reply(choices=[{"index": 0, "message": message}]))
    assert (read.output_bytes, read.sound) == sizes


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "reasoning_text", "thinking"])
def test_the_thoughts_of_a_joined_stream_are_whole_by_each_name(name: str) -> None:
    pieces = [event(choices=[{"index": 0, "delta": {name: text}}]) for text in ("Hm", ", so")]
    end = event(choices=[{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}])
    read = join_stream(openai.stream_parser(Operation.CHAT), b"".join([*pieces, end, DONE]), None)
    message = read.fields["choices"][0]["message"]
    assert (message[name], message["reasoning"], message["content"]) == ("Hm, so", "Hm, so", "Hi")


def test_the_lists_of_a_joined_stream_may_begin_as_null() -> None:
    """The tokens of a refusal are null while the model writes a content."""
    tokens, detail = [{"token": "Hi"}], {"type": "reasoning.text", "text": "Hm"}
    choices: list[dict[str, Any]] = [
        {"delta": {"content": "Hi"}, "logprobs": {"content": tokens, "refusal": None}},
        {"delta": {"reasoning_details": detail}, "logprobs": {"content": None, "refusal": tokens}},
        {"delta": {"reasoning_details": [detail]}, "logprobs": {"refusal": tokens},
         "finish_reason": "stop"},
    ]  # fmt: skip
    events = b"".join(event(choices=[{"index": 0, **each}]) for each in choices)
    read = join_stream(openai.stream_parser(Operation.CHAT), events + DONE, None)
    [choice] = read.fields["choices"]
    assert choice["logprobs"] == {"content": tokens, "refusal": tokens * 2}
    assert choice["message"]["reasoning_details"] == [detail]


def test_a_completion_of_text_may_have_deltas_too() -> None:
    choices = [{"delta": {}}, {"delta": {}, "text": "H"}, {"text": "i", "finish_reason": "stop"}]
    events = [event(choices=[{"index": 0, **each}]) for each in choices]
    chunks = openai.stream_parser(Operation.TEXT).feed(b"".join([*events, DONE]))
    assert sum(chunk.output_bytes for chunk in chunks) == 2
    read = openai.parse_reply(Operation.TEXT, reply(choices=choices[1:2]))
    assert sum(chunk.output_bytes for chunk in split_reply(read, None)) == 1


def test_the_sound_of_a_joined_stream_is_whole() -> None:
    said = [
        {"id": "a", "transcript": "Hi"},
        {"data": "AQ=="},
        {"data": "AgM=", "transcript": " you"},
        {"expires_at": 9},
    ]
    pieces = [event(choices=[{"index": 0, "delta": {"audio": each}}]) for each in said]
    end = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
    read = join_stream(openai.stream_parser(Operation.CHAT), b"".join([*pieces, end, DONE]), None)
    whole = {"id": "a", "transcript": "Hi you", "data": "AQID", "expires_at": 9}
    assert read.fields["choices"][0]["message"]["audio"] == whole
