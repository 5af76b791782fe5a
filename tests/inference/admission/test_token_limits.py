"""What bounds the tokens of a request: its text once, its media by size, and what is added."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import msgspec
import pytest

from catalog import dialects
from catalog.abilities import MediaBound, TokenBound, read_abilities
from catalog.dialects.base import Operation, Reply, Untranslatable
from catalog.pricing import Price, Usage
from catalog.tokens import Medium, find_family, find_limits
from inference.admission.estimate import (
    affordable_tokens,
    describe_bound,
    find_bounds,
    worst_case_nano,
)
from inference.exchange.attempts import build_call
from inference.exchange.tally import Tally
from inference.requests.messages.native import parse_message
from inference.requests.parsing import InferenceRequest, parse
from inference.requests.responses.request import parse_response
from inference.routing.routes import Candidate
from tests.support.bodies.samples import make_wav
from tests.support.inference.prices import read_pricing
from tests.support.inference.routes import candidate as candidate_at

PRICE: Final = Price(Decimal("0.000001"), Decimal("0.000002"))
UNSTATED: Final = TokenBound()
BESIDE: Final = TokenBound(thoughts_beside=True, longest_thought=2_000)
THAI: Final = "สวัสดีครับ วันนี้อากาศดีมาก ไปเที่ยวทะเลกันเถอะ " * 20


def candidate(bound: TokenBound = UNSTATED, price: Price = PRICE, **fields: Any) -> Candidate:
    return candidate_at(price, limits=find_limits(bound), **fields)


def chat(content: Any = "hi", **fields: Any) -> InferenceRequest:
    body = {"model": "a/b", "messages": [{"role": "user", "content": content}], **fields}
    return parse(Operation.CHAT, json.dumps(body).encode())


def inline(data: bytes, kind: str, **more: str) -> dict[str, Any]:
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url, **more}}


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\x06\0\0\0"


def test_a_text_counts_once_in_every_form() -> None:
    """Escaped or not, in a part or not, in three interfaces: the same text within one percent."""
    text = THAI + 'Say "no".\n\tif x:\n\t\treturn\\n\n' * 20
    size = len(text.encode())
    messages = [{"role": "user", "content": text}]
    parts = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    counts = []
    for is_ascii in (True, False):
        for body in (messages, parts):
            whole = {"model": "a/b", "messages": body}
            counts.append(parse(Operation.CHAT, json.dumps(whole, ensure_ascii=is_ascii).encode()))
        counts.append(
            parse_message(json.dumps({**whole, "max_tokens": 9}, ensure_ascii=is_ascii).encode())
        )
        asked = {"model": "a/b", "input": text}
        counts.append(parse_response(json.dumps(asked, ensure_ascii=is_ascii).encode())[0])
    # What stands around the text: the role, the type of a part, and what another face writes.
    assert [each.prompt_bound - size for each in counts] == [33, 61, 67, 30] * 2


def test_tools_and_schemas_are_estimated_alike_in_every_form() -> None:
    """A description counts as its characters, however the caller's JSON spells them."""
    tool = {"type": "function", "function": {"name": "look", "description": THAI}}
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"title": THAI}}}
    family = find_family("GPT", "openai/gpt-5")
    counts = []
    for more in ({"tools": [tool]}, {"response_format": schema}):
        body = {"model": "a/b", "messages": [{"role": "user", "content": "hi"}], **more}
        for is_ascii in (True, False):
            text = parse(Operation.CHAT, json.dumps(body, ensure_ascii=is_ascii).encode()).text
            assert text.scripts == {"Thai": len(THAI.encode()) - THAI.count(" ")}
            counts.append(family.estimate(text))
    # The forms differ in the spaces between their members.
    assert counts == [446, 451, 451, 458]


def test_escapes_in_other_fields_are_no_text() -> None:
    plain = chat(response_format={"type": "text", "note": "a"})
    lines = chat(response_format={"type": "text", "note": "\n"})
    assert lines.prompt_bound == plain.prompt_bound + 1


def test_an_escape_at_a_cut_takes_nothing_from_the_bound() -> None:
    text = "\\" * 400_000 + "u0041" * 3
    # Six bytes more for each of the six cuts.
    assert chat(text).prompt_bound == len(text) + len('[{"role": "user", "content": ""}]') + 36


@pytest.mark.parametrize(
    ("data", "kind", "units"),
    [
        (png(64, 64), "image/png", 1),
        (png(2048, 768), "image/png", 8),
        (b"GIF89a" + struct.pack("<HH", 513, 512), "image/gif", 2),
        (
            b"\xff\xd8\xff\xe0\0\x10" + bytes(14) + b"\xff\xc0\0\x11\x08"
            + struct.pack(">HH", 600, 1025) + bytes(12),
            "image/jpeg",
            6,
        ),
        (b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\x03\0\xff\x01\0", "image/webp", 2),
        (
            b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", 1023 | 511 << 14),
            "image/webp",
            2,
        ),
        (
            b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 1024, 512),
            "image/webp",
            2,
        ),
        (png(0, 5), "image/png", None),
        (b"\xff\xd8\xff", "image/jpeg", None),
        (b"BM not known", "image/bmp", None),
    ],
)  # fmt: skip
def test_a_picture_counts_its_tiles(data: bytes, kind: str, units: int | None) -> None:
    assert chat([inline(data, kind)]).media == (Medium("image", units),)


def test_other_media_count_seconds_and_pages() -> None:
    wav = base64.b64encode(make_wav()).decode()
    sound = {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}}
    pdf = b"%PDF-1.4 /Count 3 /Count 12 "
    url = f"data:application/pdf;base64,{base64.b64encode(pdf).decode()}"
    paper = {"type": "file", "file": {"filename": "a.pdf", "file_data": url}}
    header = b"\0\0\0\x6cmvhd\0\0\0\0" + bytes(8) + struct.pack(">II", 1000, 60_500)
    film = {
        "type": "video_url",
        "video_url": {"url": f"data:video/mp4;base64,{base64.b64encode(header).decode()}"},
    }
    link = {"type": "image_url", "image_url": {"url": "https://a.example/b.png", "detail": "low"}}
    assert chat([sound, paper, film, link]).media == (
        Medium("audio", 1),
        Medium("file", 12),
        Medium("video", 61),
        Medium("image", None, True),
    )


def test_no_film_is_longer_than_a_year() -> None:
    header = b"\0\0\0\x6cmvhd\1\0\0\0" + bytes(16) + struct.pack(">IQ", 1, 2**64 - 1)
    url = f"data:video/mp4;base64,{base64.b64encode(header).decode()}"
    [film] = chat([{"type": "video_url", "video_url": {"url": url}}]).media
    assert film == Medium("video", 365 * 86_400)


@pytest.mark.parametrize(
    ("media", "medium", "tokens"),
    [
        (MediaBound(), Medium("image"), 48_169),
        (MediaBound(), Medium("image", 8), 48_169),
        (MediaBound(), Medium("image", 1, True), 11_334),
        (MediaBound(image_tile=170), Medium("image", 1), 340),
        (MediaBound(image_tile=170), Medium("image"), 1_530),
        (MediaBound(image=1_600), Medium("image", 1), 1_600),
        (MediaBound(image_tile=170, image_low=85), Medium("image", 8, True), 85),
        (MediaBound(audio_second=10), Medium("audio", 0), 10),
        (MediaBound(audio_second=10), Medium("audio", 7), 70),
        (MediaBound(audio_second=25, audio_least=375), Medium("audio", 2), 375),
        (MediaBound(audio_second=25, audio_least=375), Medium("audio", 31), 775),
        (MediaBound(), Medium("audio", 1), 375),
        (MediaBound(video=9), Medium("video"), 9),
        (MediaBound(page=300), Medium("file", 4), 1_200),
        (MediaBound(file=8), Medium("file"), 8),
    ],
)
def test_a_medium_is_bounded_by_its_endpoint(
    media: MediaBound, medium: Medium, tokens: int
) -> None:
    assert find_limits(TokenBound(media=media)).media.bound(medium) == tokens


def test_what_a_provider_adds_is_held() -> None:
    """The prompt, each message, each tool and each byte count as the endpoint states."""
    tools = [{"type": "function", "function": {"name": name}} for name in "abc"]
    request = chat(tools=tools, max_tokens=10)
    plain = find_bounds(request, candidate())
    assert plain.prompt == request.prompt_bound
    stated = TokenBound(prompt=683, message=61, tool=71, tokens_per_byte=1.5)
    bounds = find_bounds(request, candidate(stated))
    assert bounds.prompt == -(-request.prompt_bound * 3 // 2) + 683 + 61 + 3 * 71
    assert worst_case_nano(request, candidate(stated)) == 1_000 * bounds.prompt + 20_000


def test_a_description_names_every_part_of_a_hold() -> None:
    """The parts are those of the bounds: the text, what the provider adds, media and thoughts."""
    tools = [{"type": "function", "function": {"name": name}} for name in "abc"]
    media = MediaBound(image_tile=170)
    stated = TokenBound(True, 2_000, prompt=683, message=61, tool=71, media=media)
    request = chat([inline(png(64, 64), "image/png")], tools=tools, max_tokens=16, n=2)
    served = candidate(stated)
    found = describe_bound(request, served)
    assert found == {
        "tokenizer": "unknown",
        "text": request.prompt_bound,
        "added": 683 + 61 + 3 * 71,
        "media": 340,
        "results": 0,
        "choices": 2,
        "answer": 16,
        "thought": 2_000,
        "units": {"images": 1} if find_bounds(request, served).pieces.images else {},
    }
    prompt = found["text"] + found["added"] + found["media"]
    assert prompt == find_bounds(request, served).prompt
    held = 1_000 * prompt + 2_000 * found["choices"] * (found["answer"] + found["thought"])
    assert held == worst_case_nano(request, served)


@pytest.mark.parametrize(
    ("fields", "thought"),
    [
        ({}, 2_000),
        ({"thinking_budget": 300}, 300),
        ({"reasoning": {"max_tokens": 1_500}}, 1_500),
        ({"reasoning": {"effort": "low"}}, 2_000),
        # Below zero nothing is stated, and no thought is longer than any answer.
        *(({"thinking_budget": number}, 2_000) for number in (-1, -1_400, -(10**30), True, "all")),
        ({"thinking_budget": -1, "reasoning": {"max_tokens": 1_500}}, 1_500),
        ({"thinking_budget": 300, "reasoning": {"max_tokens": 1.5}}, 300),
        ({"thinking_budget": 300.0}, 300),
        *(({"thinking_budget": number}, 100_000_000) for number in (10**9, 10**30)),
    ],
)
def test_a_thought_beside_the_limit_is_held_and_believed(
    fields: dict[str, Any], thought: int
) -> None:
    """An amount that pays for less output still pays for the thought."""
    request = chat(max_tokens=16, n=2, **fields)
    beside = candidate(BESIDE)
    within = worst_case_nano(request, candidate())
    assert worst_case_nano(request, beside) == within + 2 * 2_000 * thought
    assert affordable_tokens(request, beside, within + 2 * 2_000 * thought - 1) == 15
    assert affordable_tokens(request, beside, within) == 0
    tally = Tally(request, Decimal(0))
    tally.allow(beside)
    usage = Usage(3, 2 * (16 + thought), reasoning=2 * thought)
    tally.add(Reply({}, None, usage, "stop", output_bytes=1))
    assert tally.count().usage == usage
    assert tally.find_claim() is None


NUMBER: Final = {"reasoning": {"max_tokens": 300}}
PLAIN: Final = {"thinking_budget": 300}
HIGH: Final = {"reasoning": {"effort": "high"}}
RAISED: Final = {"messages": [{"role": "system", "content": "x", "configuration_update": HIGH}]}
LISTS: Final = frozenset(("max_tokens", "reasoning"))


def sent(request: InferenceRequest, served: Candidate) -> dict[str, Any]:
    """Returns the body that the candidate gets."""
    dialect = dialects.get(served.route.dialect or "")
    assert dialect is not None
    built = dialect.build(build_call(served, request, None, None))
    body: dict[str, Any] = json.loads(built.body or b"")
    return body


@pytest.mark.parametrize(
    ("switch", "fields", "budget"),
    [
        *((switch, NUMBER, None) for switch in ("reasoning_effort", "thinking.type", "none")),
        ("enable_thinking", {"reasoning": {"max_tokens": 1}}, None),
        # A field that no switch writes passes as it is.
        *((switch, PLAIN, 300) for switch in ("enable_thinking", "thinking_budget", "none")),
        ("enable_thinking", {**PLAIN, "reasoning": {"max_tokens": 1}}, 300),
        ("thinking_budget", NUMBER, 300),
        ("thinking_budget", {"reasoning": {"enabled": False}}, 0),
        # The switch takes the place of the caller's own field, if it says a number.
        ("thinking_budget", {"thinking_budget": 1, **HIGH}, 16_384),
        ("thinking_budget", {"thinking_budget": 1, "reasoning_effort": "low"}, 4_096),
        # The last update of the messages counts.
        ("thinking_budget", {"reasoning_effort": "low", **RAISED}, 16_384),
        ("thinking_budget", {**NUMBER, **RAISED}, 16_384),
        ("thinking_budget", {"thinking_budget": 1, "reasoning": {"effort": "max"}}, 1),
        ("thinking_budget", {"reasoning": {"effort": "max"}}, None),
        # Some servers take this for a thought of any length.
        ("thinking_budget", {"thinking_budget": 1, "reasoning": {"max_tokens": -1}}, -1),
    ],
)
def test_a_thought_is_bounded_by_the_number_that_is_sent(
    switch: str, fields: dict[str, Any], budget: int | None
) -> None:
    abilities = read_abilities({"reasoning": {"switch": switch}})
    request, served = chat(max_tokens=16, **fields), candidate(BESIDE, abilities=abilities)
    body = sent(request, served)
    assert body.get("thinking_budget") == budget
    assert "reasoning" not in body
    assert find_bounds(request, served).thought == (2_000 if budget in (None, -1) else budget)


@pytest.mark.parametrize("reasoning", [{"enabled": False}, {"max_tokens": "300"}])
def test_a_number_beside_a_wish_that_is_refused_bounds_nothing(reasoning: dict[str, Any]) -> None:
    served = candidate(BESIDE, abilities=read_abilities({"reasoning": {"switch": "none"}}))
    request = chat(**PLAIN, reasoning=reasoning)
    with pytest.raises(Untranslatable):
        sent(request, served)
    assert find_bounds(request, served).thought == 2_000


@pytest.mark.parametrize(
    ("fields", "route", "thought"),
    [
        # An endpoint with a list gets an effort in the place of a number.
        (NUMBER, {"supported_parameters": LISTS, "listed_parameters": LISTS}, 2_000),
        (PLAIN, {"supported_parameters": LISTS, "listed_parameters": LISTS}, 300),
        (NUMBER, {"supported_parameters": frozenset(("max_tokens",))}, 2_000),
        (NUMBER, {"supported_parameters": LISTS}, 300),
        # Other formats count thoughts towards the bound of an answer.
        (NUMBER, {"dialect": "gemini"}, 2_000),
        (PLAIN, {"dialect": "gemini"}, 2_000),
    ],
)
def test_a_number_that_an_endpoint_does_not_get_bounds_no_thought(
    fields: dict[str, Any], route: dict[str, Any], thought: int
) -> None:
    assert find_bounds(chat(**fields), candidate(BESIDE, **route)).thought == thought


@pytest.mark.parametrize("options", [{"thinking_budget": 9_000}, HIGH, {"reasoning_effort": "low"}])
def test_the_options_of_a_provider_may_replace_the_number(options: dict[str, Any]) -> None:
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in options.items()}
    request, served = chat(**PLAIN, **NUMBER), candidate(BESIDE)
    assert find_bounds(request, served).thought == 300
    assert find_bounds(request, replace(served, options={"seed": raw})).thought == 300
    assert find_bounds(request, replace(served, options=raw)).thought == 2_000


AUDIO: Final = read_pricing(
    {
        "prompt": "0.000001", "completion": "0.000002",
        "audio": "0.00004", "audio_output": "0.00008",
    }
)  # fmt: skip


def test_sound_has_its_rate_only_where_there_is_sound() -> None:
    text, spoken = chat(max_tokens=10), chat(max_tokens=10, modalities=["text", "audio"])
    served = candidate(TokenBound(media=MediaBound(audio_second=10)), AUDIO)
    assert worst_case_nano(text, served) == worst_case_nano(text, candidate())
    bound = spoken.prompt_bound
    assert worst_case_nano(spoken, served) == 40_000 * bound + 800_000
    data = base64.b64encode(make_wav()).decode()
    heard = chat([{"type": "input_audio", "input_audio": {"data": data}}], max_tokens=10)
    assert worst_case_nano(heard, served) == 1_000 * heard.prompt_bound + 40_000 * 10 + 20_000


def test_sound_that_nobody_asked_for_is_a_claim() -> None:
    request, served = chat(max_tokens=10), candidate(price=AUDIO)
    tally = Tally(request, Decimal(0))
    tally.allow(served)
    tally.add(Reply({}, None, Usage(5, 9, audio=5, audio_output=9), "stop", output_bytes=1))
    assert tally.count().usage == Usage(5, 9)
    claim = tally.find_claim()
    assert claim is not None
    assert (claim.reason, claim.excess_nano) == ("units", 5 * 39_000 + 9 * 78_000)


def test_media_end_at_the_context_and_reach_no_further_tier() -> None:
    tiered = read_pricing(
        {
            "prompt": "0.000001", "completion": "0",
            "overrides": [{"min_prompt_tokens": 200_000, "prompt": "0.000002"}],
        }
    )  # fmt: skip
    link = {"type": "file", "file": {"file_id": "", "file_data": "https://a.example/b.pdf"}}
    request = chat([link, link], max_tokens=1)
    served = candidate(price=tiered, context_length=128_000)
    assert worst_case_nano(request, served) == 1_000 * (128_000 + request.prompt_bound)
