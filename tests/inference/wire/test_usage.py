"""What providers report, in their own bytes, and what it costs: one row a case."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pytest

from catalog import dialects
from catalog.dialects.base import Operation
from catalog.pricing import Price
from config.credentials import Secret
from inference.exchange.tally import Tally
from inference.requests import parsing
from inference.routing.routes import Candidate
from tests.support.inference.prices import read_pricing
from tests.support.inference.routes import route
from tests.support.upstreams import clouds

# Nano-USD: 1,000 a prompt token, 100 a cached one, 1,250 a written one, 2,000 a completion token,
# 3,000 a token of audio (300 of cached audio), and 40,000,000 a picture.
PRICE: Final = read_pricing(
    {"prompt": "0.000001", "completion": "0.000002", "input_cache_read": "0.0000001",
     "input_cache_write": "0.00000125", "audio": "0.000003", "input_audio_cache": "0.0000003"},
)  # fmt: skip
# 2,000 a token that is written for an hour.
HOURLY: Final = read_pricing(
    {"prompt": "0.000001", "completion": "0.000002", "input_cache_write": "0.00000125",
     "input_cache_write_1h": "0.000002"},
)  # fmt: skip
PICTURED: Final = read_pricing(
    {"prompt": "0.000001", "completion": "0.000002"},
    {"billable": "image", "unit": "image", "price": "0.04"},
)
# 40 bytes of text are estimated as ten tokens; the prompt of the request as 14.
TEXT: Final = "x" * 40


class Row(NamedTuple):
    """An answer as bytes, what is counted of it, and its cost in nano-USD."""

    answer: bytes
    counts: tuple[int, int]
    nano: int
    dialect: str = "openai"
    operation: Operation = Operation.CHAT
    choices: int = 1
    is_estimated: bool = False
    price: Price = PRICE
    more: dict[str, int] = {}

    @property
    def has_sound(self) -> bool:
        return b"audio" in self.answer.lower()


def plain(usage: Any, *, finish: str | None = "stop", content: Any = TEXT, **more: Any) -> bytes:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    counted = {} if usage is ... else {"usage": usage}
    return json.dumps({"choices": [choice], **counted, **more}).encode()


def pictured(count: int) -> bytes:
    message = {"content": "", "images": [PICTURE] * count}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": usage()}).encode()


def several(usage: Any, text: str = "", **more: Any) -> bytes:
    choices = [
        {"index": at, "message": {"content": text, **more}, "finish_reason": "stop"}
        for at in (0, 1)
    ]
    return json.dumps({"choices": choices, "usage": usage}).encode()


def delta(content: str = TEXT, finish: str | None = None, **more: Any) -> dict[str, Any]:
    index = more.pop("index", 0)
    return {"choices": [{"index": index, "delta": {"content": content}, "finish_reason": finish}],
            **more}  # fmt: skip


def stream(*events: Any, end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in events) + end


def usage(prompt: Any = 30, made: Any = 4, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": made, **more}


def alone(*counts: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": usage(*counts, **more)}


def chat(reported: Any, counts: tuple[int, int], nano: int, **more: Any) -> Row:
    return Row(plain(reported), counts, nano, **more)


def claude(reported: Any, counts: tuple[int, int], nano: int, **more: Any) -> Row:
    message = {"type": "message", "id": "m", "content": [{"type": "text", "text": TEXT}],
               "stop_reason": "end_turn", "usage": reported}  # fmt: skip
    return Row(json.dumps(message).encode(), counts, nano, dialect="anthropic", **more)


def turn(first: Any, last: Any, *, stop: str | None = "end_turn") -> bytes:
    start = {"type": "message_start", "message": {"type": "message", "id": "m", "usage": first}}
    text = {"type": "text_delta", "text": TEXT}
    return stream(
        start,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": text},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": last},
        {"type": "message_stop"},
        end=b"",
    )


def gemini(reported: Any) -> dict[str, Any]:
    parts = {"parts": [{"text": TEXT}]}
    return {"candidates": [{"content": parts, "finishReason": "STOP"}], "usageMetadata": reported}


def google(reported: Any, counts: tuple[int, int], nano: int, **more: Any) -> Row:
    answer = json.dumps(gemini(reported)).encode()
    return Row(answer, counts, nano, dialect="gemini", **more)


def converse(reported: Any, counts: tuple[int, int], nano: int, **more: Any) -> Row:
    content = {"message": {"content": [{"text": TEXT}]}}
    answer = {"output": content, "stopReason": "end_turn", "usage": reported}
    return Row(json.dumps(answer).encode(), counts, nano, dialect="bedrock", **more)


def converse_stream(reported: Any) -> bytes:
    return clouds.event_stream(
        ("messageStart", {"role": "assistant"}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": TEXT}}),
        ("messageStop", {"stopReason": "end_turn"}),
        ("metadata", {"usage": reported}),
    )


def embedded(reported: Any, counts: tuple[int, int], nano: int, **more: Any) -> Row:
    answer = json.dumps({"data": [{"embedding": [0.5]}], "usage": reported}).encode()
    return Row(answer, counts, nano, operation=Operation.EMBEDDINGS, **more)


PLAIN: Final = 38_000  # 30 prompt tokens and 4 of the completion
CACHED: Final = 20_000  # the same with 20 of the prompt cached
ESTIMATE: Final = 34_000  # 14 prompt tokens and 10 of the completion
MADE: Final = {"reasoning_tokens": 3}
PICTURE: Final = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
COUNTS: Final = (30, 4)
ESTIMATED: Final = (14, 10)

ROWS: Final = {
    # Plain chats in OpenAI's format.
    "whole numbers": chat(usage(), COUNTS, PLAIN),
    "floats": chat(usage(30.0, 4.0), COUNTS, PLAIN),
    "texts": chat(usage("30", "4"), COUNTS, PLAIN),
    "texts of floats": chat(usage("30.0", "4."), COUNTS, PLAIN),
    "halves": chat(usage(30.5, 4), ESTIMATED, ESTIMATE, is_estimated=True),
    "negative": chat(usage(30, -4), ESTIMATED, ESTIMATE, is_estimated=True),
    "words": chat(usage("many", 4), ESTIMATED, ESTIMATE, is_estimated=True),
    "flags": chat(usage(True, 4), ESTIMATED, ESTIMATE, is_estimated=True),
    "no usage": Row(plain(...), ESTIMATED, ESTIMATE, is_estimated=True),
    "null": chat(None, ESTIMATED, ESTIMATE, is_estimated=True),
    "an empty object": chat({}, ESTIMATED, ESTIMATE, is_estimated=True),
    "zeros": chat(usage(0, 0, total_tokens=0), ESTIMATED, ESTIMATE, is_estimated=True),
    "zeros as text": chat(usage("0", "0"), ESTIMATED, ESTIMATE, is_estimated=True),
    "no finish reason": Row(plain(usage(), finish=None), COUNTS, PLAIN),
    "prompt and total": chat({"prompt_tokens": 30, "total_tokens": 34}, COUNTS, PLAIN),
    "completion and total": chat({"completion_tokens": 4, "total_tokens": 34}, COUNTS, PLAIN),
    "the total alone": chat({"total_tokens": 34}, ESTIMATED, ESTIMATE, is_estimated=True),
    "names of Responses": chat({"input_tokens": 30, "output_tokens": 4}, COUNTS, PLAIN),
    "names of Responses with details": chat(
        {"input_tokens": 30, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 20}},
        COUNTS, CACHED),
    "OpenAI's cached tokens": chat(
        usage(prompt_tokens_details={"cached_tokens": 20}), COUNTS, CACHED),
    "cached tokens as text": chat(
        usage(prompt_tokens_details={"cached_tokens": "20"}), COUNTS, CACHED),
    "null details": chat(
        usage(prompt_tokens_details=None, completion_tokens_details=None), COUNTS, PLAIN),
    "Moonshot's cached tokens": chat(usage(cached_tokens=20), COUNTS, CACHED),
    "DeepSeek's cached tokens": chat(
        usage(prompt_cache_hit_tokens=20, prompt_cache_miss_tokens=10), COUNTS, CACHED),
    "Mistral's cached tokens": chat(usage(num_cached_tokens=20), COUNTS, CACHED),
    "a proxy's cached tokens": chat(usage(cache_read_input_tokens=20), COUNTS, CACHED),
    "cached tokens at two places": chat(
        usage(cached_tokens=20, prompt_tokens_details={"cached_tokens": 20}), COUNTS, CACHED),
    "cached tokens in zeroed details": chat(
        usage(cached_tokens=20, prompt_tokens_details={"cached_tokens": 0}), COUNTS, CACHED),
    "cached tokens by the name of a cache that is read": chat(
        usage(cache_read_tokens=20), COUNTS, CACHED),
    "cached tokens by Anthropic's name in the details": chat(
        usage(prompt_tokens_details={"cache_read_input_tokens": 20}), COUNTS, CACHED),
    "Anthropic's names, where cached tokens are beside the prompt": chat(
        {"input_tokens": 10, "output_tokens": 4, "cache_read_input_tokens": 20}, COUNTS, CACHED),
    "a prompt of zero in a total that has it": chat(usage(0, 4, total_tokens=34), COUNTS, PLAIN),
    "a completion of zero in a total that has it": chat(
        usage(30, 0, total_tokens=34), COUNTS, PLAIN),
    "zeros beside a total": chat(
        usage(0, 0, total_tokens=34), ESTIMATED, ESTIMATE, is_estimated=True),
    "thoughts by another name": chat(
        usage(completion_tokens_details={"thinking_tokens": 3}), COUNTS, PLAIN,
        more={"reasoning": 3}),
    "written tokens": chat(
        usage(prompt_tokens_details={"cache_write_tokens": 20}), COUNTS, 43_000),
    "LiteLLM's written tokens": chat(
        usage(prompt_tokens_details={"cache_creation_tokens": 20}), COUNTS, 43_000),
    "a proxy's written tokens": chat(usage(cache_creation_input_tokens=20), COUNTS, 43_000),
    "LiteLLM's tokens written for an hour": chat(
        usage(prompt_tokens_details={
            "cache_creation_tokens": 20, "cache_creation_token_details":
            {"ephemeral_5m_input_tokens": 8, "ephemeral_1h_input_tokens": 12}}),
        COUNTS, 52_000, price=HOURLY, more={"cache_write": 8, "cache_write_1h": 12}),
    "a proxy's tokens written for an hour": chat(
        usage(cache_creation_input_tokens=20, cache_creation={"ephemeral_1h_input_tokens": 12}),
        COUNTS, 52_000, price=HOURLY, more={"cache_write": 8, "cache_write_1h": 12}),
    "thoughts in the completion": chat(
        usage(completion_tokens_details=MADE), COUNTS, PLAIN, more={"reasoning": 3}),
    "thoughts beside the completion": chat(
        usage(total_tokens=37, completion_tokens_details=MADE), (30, 7), 44_000,
        more={"reasoning": 3}),
    "thoughts in the total alone": chat(
        usage(9, 3, total_tokens=105), (9, 96), 201_000, more={"reasoning": 93}),
    "thoughts in a total as text": chat(
        usage(total_tokens="37", completion_tokens_details=None), (30, 7), 44_000,
        more={"reasoning": 3}),
    "cached tokens beside the prompt in the total": chat(
        usage(total_tokens=54, cached_tokens=20), COUNTS, CACHED, more={"reasoning": 0}),
    "written tokens beside the prompt in the total": chat(
        usage(total_tokens=54, cache_creation_input_tokens=20), COUNTS, 43_000),
    "thoughts beside cached tokens, in the total alone": chat(
        usage(total_tokens=37, prompt_tokens_details={"cached_tokens": 20}), (30, 7), 26_000,
        more={"reasoning": 3}),
    "a total above what a server tells of its thoughts": chat(
        usage(total_tokens=99, completion_tokens_details={"reasoning_tokens": 0}), COUNTS, PLAIN),
    "a total with the results of searches": chat(
        usage(total_tokens=99, num_search_queries=0), COUNTS, PLAIN),
    "a total below its parts": chat(usage(total_tokens=33), COUNTS, PLAIN),
    "a total that is none": chat(usage(total_tokens="many"), COUNTS, PLAIN),
    "Mistral's sound in the total alone": chat(
        usage(4, total_tokens=34, prompt_audio_seconds=2), COUNTS, 90_000, more={"audio": 26}),
    "thoughts at the top": chat(usage(reasoning_tokens=3), COUNTS, PLAIN, more={"reasoning": 3}),
    "audio": chat(usage(prompt_tokens_details={"audio_tokens": 10}), COUNTS, 58_000),
    "cached audio where all is audio": chat(
        usage(prompt_tokens_details={"audio_tokens": 30, "cached_tokens": 20}), COUNTS, 44_000,
        more={"audio": 30, "audio_cached": 20}),
    "cached audio by its own count": chat(
        usage(prompt_tokens_details={"audio_tokens": 10, "cached_tokens": 10,
                                     "cached_tokens_details": {"audio_tokens": 10}}),
        COUNTS, 31_000, more={"audio_cached": 10}),
    "cached audio as far as it must be": chat(
        usage(prompt_tokens_details={"audio_tokens": 20, "cached_tokens": 15}), COUNTS, 55_500,
        more={"audio_cached": 5}),
    "more cached than prompt": chat(
        usage(prompt_tokens_details={"cached_tokens": 99}), COUNTS, 11_000),
    "Groq's own place": Row(plain(..., x_groq={"usage": usage()}), COUNTS, PLAIN),
    "llama.cpp's timings": Row(
        plain(..., timings={"cache_n": 20, "prompt_n": 10, "predicted_n": 4}), COUNTS, CACHED),
    "a picture that has a price": Row(
        pictured(2), COUNTS, PLAIN + 80_000_000, price=PICTURED),
    "a picture without a price": Row(pictured(1), COUNTS, PLAIN),
    # Several choices at once.
    "two choices, all counted": Row(
        several(usage(30, 20), "x" * 40), (30, 20), 70_000, choices=2),
    "two choices, the first counted": Row(
        several(usage(30, 10), "x" * 40), (30, 20), 70_000, choices=2, is_estimated=True),
    # Hindi has ten bytes a token, and the JSON around a call has no tokens.
    "two choices in Hindi": Row(
        several(usage(30, 20), "नमस्ते दुनिया, आप कैसे हैं?"), (30, 20), 70_000, choices=2),
    "two choices of calls": Row(several(usage(30, 20), tool_calls=[
        {"id": "call_" + "0" * 24, "type": "function",
         "function": {"name": "look", "arguments": '{"a": 1}'}}]), (30, 20), 70_000, choices=2),
    # A delta names what it does not have, too.
    "two streamed choices of many short pieces": Row(
        stream(*(delta("a", index=at % 2) for at in range(40)),
               {"choices": [{"index": 0, "delta": {"content": None}, "finish_reason": "stop"}]},
               {"choices": [{"index": 1, "delta": {"refusal": None}, "finish_reason": "stop"}]},
               alone(30, 20)), (30, 20), 70_000, choices=2),
    "two streamed choices in Hindi, one usage": Row(
        stream(delta("नमस्ते दुनिया, आप कैसे हैं?"), delta("नमस्ते दुनिया, आप कैसे हैं?", index=1),
               delta("", "stop"), delta("", "stop", index=1), alone(30, 20)),
        (30, 20), 70_000, choices=2),
    # Streams in OpenAI's format.
    "usage at the end": Row(stream(delta(), delta("", "stop"), alone()), COUNTS, PLAIN),
    "usage beside the reason": Row(
        stream(delta(), delta("", "stop", usage=usage())), COUNTS, PLAIN),
    "usage without choices": Row(
        stream(delta(), delta("", "stop"), {"usage": usage()}), COUNTS, PLAIN),
    "usage after output that has no reason": Row(stream(delta(), alone()), COUNTS, PLAIN),
    "usage beside the last output, without a reason": Row(
        stream(delta(usage=usage())), COUNTS, PLAIN),
    "usage of each event": Row(
        stream(delta(usage=usage(30, 2)), delta("", "stop", usage=usage(30, 4))), COUNTS, PLAIN),
    "usage of each event, then zeros": Row(
        stream(delta(usage=usage()), delta("", "stop", usage=usage(0, 0))), COUNTS, PLAIN),
    "a prompt that the end repeats as zero": Row(
        stream(delta(usage=usage(30, 1)), delta("", "stop"), alone(0, 4)), COUNTS, PLAIN),
    "cached tokens that the end forgets": Row(
        stream(delta(usage=usage(30, 1, cached_tokens=20)), delta("", "stop"), alone()),
        COUNTS, CACHED),
    "zeros at the end": Row(
        stream(delta(), delta("", "stop"), alone(0, 0)), ESTIMATED, ESTIMATE, is_estimated=True),
    "texts at the end": Row(stream(delta(), delta("", "stop"), alone("30", "4")), COUNTS, PLAIN),
    "no usage at all": Row(
        stream(delta(), delta("", "stop")), ESTIMATED, ESTIMATE, is_estimated=True),
    "thoughts in the total alone, streamed": Row(
        stream(delta(), delta("", "stop"), alone(total_tokens=37)), (30, 7), 44_000,
        more={"reasoning": 3}),
    "no end mark": Row(stream(delta(), delta("", "stop"), alone(), end=b""), COUNTS, PLAIN),
    "no usage and no end mark": Row(
        stream(delta(), delta("", "stop"), end=b""), ESTIMATED, ESTIMATE, is_estimated=True),
    "Groq's own place, streamed": Row(
        stream(delta(), delta("", "stop", x_groq={"usage": usage()})), COUNTS, PLAIN),
    "llama.cpp's timings, streamed": Row(
        stream(delta(), delta("", "stop", timings={"prompt_n": 30, "predicted_n": 4})),
        COUNTS, PLAIN),
    "a usage for each choice": Row(
        stream(delta(), delta("", "stop"), alone(), delta(index=1), delta("", "stop", index=1),
               alone(30, 6)), (60, 10), 80_000, choices=2),
    "one usage for both choices": Row(
        stream(delta(), delta(index=1), delta("", "stop"), delta("", "stop", index=1),
               alone(30, 20)), (30, 20), 70_000, choices=2),
    "a streamed picture that has a price": Row(
        stream({"choices": [{"index": 0, "delta": {"images": [PICTURE]}}]},
               delta("", "stop", usage=usage())), COUNTS, PLAIN + 40_000_000, price=PICTURED),
    # Anthropic.
    "anthropic": claude({"input_tokens": 30, "output_tokens": 4}, COUNTS, PLAIN),
    "anthropic: texts": claude({"input_tokens": "30", "output_tokens": 4.0}, COUNTS, PLAIN),
    "anthropic: cached": claude(
        {"input_tokens": 10, "cache_read_input_tokens": 20, "output_tokens": 4}, COUNTS, CACHED),
    "anthropic: zeros": claude(
        {"input_tokens": 0, "output_tokens": 0}, ESTIMATED, ESTIMATE, is_estimated=True),
    "anthropic: streamed": Row(
        turn({"input_tokens": 30, "output_tokens": 1}, {"output_tokens": 4}), COUNTS, PLAIN,
        dialect="anthropic"),
    "anthropic: zeros at the end": Row(
        turn({"input_tokens": 30, "output_tokens": 1}, {"input_tokens": 0, "output_tokens": 4}),
        COUNTS, PLAIN, dialect="anthropic"),
    "anthropic: zeros at the beginning": Row(
        turn({"input_tokens": 0, "output_tokens": 0}, {"input_tokens": 30, "output_tokens": 4}),
        COUNTS, PLAIN, dialect="anthropic"),
    "anthropic: cached at the beginning": Row(
        turn({"input_tokens": 10, "cache_read_input_tokens": 20},
             {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 4}),
        COUNTS, CACHED, dialect="anthropic"),
    # Gemini.
    "gemini": google({"promptTokenCount": 30, "candidatesTokenCount": 4}, COUNTS, PLAIN),
    "gemini: the total": google({"promptTokenCount": 30, "totalTokenCount": 34}, COUNTS, PLAIN),
    "gemini: thoughts and cached": google(
        {"promptTokenCount": 30, "candidatesTokenCount": 1, "thoughtsTokenCount": 3,
         "cachedContentTokenCount": 20}, COUNTS, CACHED, more={"reasoning": 3}),
    "gemini: cached audio": google(
        {"promptTokenCount": 30, "candidatesTokenCount": 4, "cachedContentTokenCount": 20,
         "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 30}]},
        COUNTS, 44_000, more={"audio_cached": 20}),
    "gemini: texts": google(
        {"promptTokenCount": "30", "candidatesTokenCount": 4.0, "promptTokensDetails": None},
        COUNTS, PLAIN),
    "gemini: zeros": google(
        {"promptTokenCount": 0, "candidatesTokenCount": 0}, ESTIMATED, ESTIMATE,
        is_estimated=True),
    "gemini: streamed, after the end": Row(
        stream(gemini(None), {"usageMetadata": {"promptTokenCount": 30,
                                                "candidatesTokenCount": 4}}, end=b""),
        COUNTS, PLAIN, dialect="gemini"),
    "gemini: streamed": Row(
        stream(gemini({"promptTokenCount": 30, "candidatesTokenCount": 4}), end=b""),
        COUNTS, PLAIN, dialect="gemini"),
    "gemini: two candidates, counted as they grow": Row(
        stream(
            {"candidates": [{"content": {"parts": [{"text": TEXT}]}}],
             "usageMetadata": {"promptTokenCount": 30, "candidatesTokenCount": 4}},
            {"candidates": [{"index": 1, "content": {"parts": [{"text": TEXT}]}}],
             "usageMetadata": {"promptTokenCount": 30, "candidatesTokenCount": 8}},
            {"candidates": [{"finishReason": "STOP"}, {"index": 1, "finishReason": "STOP"}],
             "usageMetadata": {"promptTokenCount": 30, "candidatesTokenCount": 20}}, end=b""),
        (30, 20), 70_000, dialect="gemini", choices=2),
    # Bedrock.
    "bedrock": converse({"inputTokens": 30, "outputTokens": 4}, COUNTS, PLAIN),
    "bedrock: cached": converse(
        {"inputTokens": 10, "outputTokens": 4, "cacheReadInputTokens": 20}, COUNTS, CACHED),
    "bedrock: Amazon's own names": converse(
        {"inputTokens": 10, "outputTokens": 4, "cacheReadInputTokenCount": 20,
         "cacheWriteInputTokenCount": 0}, COUNTS, CACHED),
    "bedrock: written for an hour": converse(
        {"inputTokens": 10, "outputTokens": 4, "cacheWriteInputTokens": 20,
         "cacheDetails": [{"ttl": "1h", "inputTokens": 12}, {"ttl": "5m", "inputTokens": 8}]},
        COUNTS, 43_000, more={"cache_write": 8, "cache_write_1h": 12}),
    "bedrock: texts": converse(
        {"inputTokens": "30", "outputTokens": 4.0, "cacheDetails": None}, COUNTS, PLAIN),
    "bedrock: zeros": converse(
        {"inputTokens": 0, "outputTokens": 0}, ESTIMATED, ESTIMATE, is_estimated=True),
    "bedrock: streamed without usage": Row(
        converse_stream(None), ESTIMATED, ESTIMATE, dialect="bedrock", is_estimated=True),
    "bedrock: streamed": Row(
        converse_stream({"inputTokens": 30, "outputTokens": 4}), COUNTS, PLAIN, dialect="bedrock"),
    # Embeddings.
    "embeddings": embedded({"prompt_tokens": 4000, "total_tokens": 4000}, (4000, 0), 4_000_000),
    "embeddings: the total alone": embedded({"total_tokens": 4000}, (4000, 0), 4_000_000),
    "embeddings: a total as text": embedded({"total_tokens": "4000"}, (4000, 0), 4_000_000),
    "embeddings: a float": embedded({"prompt_tokens": 4000.0}, (4000, 0), 4_000_000),
    "embeddings: zeros": embedded(
        {"prompt_tokens": 0, "total_tokens": 0}, (5001, 0), 5_001_000, is_estimated=True),
}  # fmt: skip


SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}


def count_row(row: Row) -> tuple[Tally, Candidate]:
    """Counts an answer as the gateway does, for a request whose prompt has 40 bytes or 20,004."""
    asked: dict[str, Any] = {"model": "a/b"}
    if row.operation is Operation.EMBEDDINGS:
        asked["input"] = "x" * 20_004
    else:
        text = {"type": "text", "text": "x" * 40}
        # Sound that nobody sent is not believed.
        parts = [text, SOUND] if row.has_sound else [text]
        asked["messages"] = [{"role": "user", "content": parts}]
        asked["n"] = row.choices
    endpoint = replace(route("x"), price=row.price)
    candidate = Candidate(endpoint, Secret("a secret"), False, endpoint.endpoint_id)
    request = parsing.parse(row.operation, json.dumps(asked).encode())
    tally = Tally(request, Decimal(0))
    tally.allow(candidate, 1_000)
    dialect = dialects.get(row.dialect)
    assert dialect is not None
    if row.answer[:1] == b"{":
        tally.add(dialect.parse_reply(row.operation, row.answer))
        return tally, candidate
    parser = dialect.stream_parser(row.operation, row.choices)
    for chunk in (*parser.feed(row.answer), *parser.finish()):
        if chunk.repeats:
            tally.add_output(chunk.output_bytes)
        else:
            tally.add(chunk)
    return tally, candidate


@pytest.mark.parametrize("name", list(ROWS))
def test_the_usage_of_an_answer_is_read_in_its_providers_words(name: str) -> None:
    row = ROWS[name]
    tally, candidate = count_row(row)
    count = tally.count()
    assert (count.usage.prompt, count.usage.completion) == row.counts
    assert count.is_estimated is row.is_estimated
    assert {part: getattr(count.usage, part) for part in row.more} == row.more
    assert tally.price(count.usage, candidate).upstream_nano == row.nano
