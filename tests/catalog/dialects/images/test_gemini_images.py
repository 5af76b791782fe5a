"""Images in the format of Google's Gemini API."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from catalog.dialects import gemini
from catalog.dialects.base import (
    Call,
    Chunk,
    InvalidReply,
    InvalidStream,
    Operation,
    ProviderFailure,
    Untranslatable,
)
from catalog.pricing import Usage
from catalog.pricing.sizes import find_tiers
from config.credentials import Secret
from tests.support.inference.pictures import ENCODED, reference

IMAGE = {"inlineData": {"mimeType": "image/png", "data": ENCODED}}
COUNTS = {
    "promptTokenCount": 12,
    "candidatesTokenCount": 1310,
    "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1290}],
}


def answer(*parts: Any, reason: str | None = "STOP", **members: Any) -> dict[str, Any]:
    candidate = {"content": {"parts": list(parts)}, "finishReason": reason}
    return {"candidates": [candidate], "modelVersion": "gemini-image", "responseId": "r", **members}


def call(*, stream: bool = False, **fields: Any) -> Call:
    fields = {"prompt": "a cat", **fields}
    return Call(
        operation=Operation.IMAGES,
        base_url="https://g.example/v1beta",
        model="gemini-image",
        secret=Secret("secret"),
        fields={name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()},
        stream=stream,
    )


def sent(**fields: Any) -> Any:
    return json.loads(bytes(gemini.build(call(**fields)).body))


def test_a_request_asks_for_an_image_alone() -> None:
    request = gemini.build(call())
    assert request.url == "https://g.example/v1beta/models/gemini-image:generateContent"
    assert json.loads(bytes(request.body)) == {
        "contents": [{"role": "user", "parts": [{"text": "a cat"}]}],
        "generationConfig": {"responseModalities": ["IMAGE"]},
    }
    assert gemini.build(call(stream=True)).url.endswith(":streamGenerateContent?alt=sse")


def test_images_stand_before_the_text() -> None:
    url = "https://pictures.example/cat.png"
    body = sent(input_references=[reference(), reference(url)])
    assert body["contents"][0]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": ENCODED}},
        {"fileData": {"fileUri": url}},
        {"text": "a cat"},
    ]


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ({"aspect_ratio": "16:9"}, {"imageConfig": {"aspectRatio": "16:9"}}),
        (
            {"resolution": "4K", "aspect_ratio": "3:2"},
            {"imageConfig": {"aspectRatio": "3:2", "imageSize": "4K"}},
        ),
        ({"size": "2K"}, {"imageConfig": {"imageSize": "2K"}}),
        ({"resolution": "1K"}, {}),
        ({"size": "1024x1024"}, {"imageConfig": {"aspectRatio": "1:1"}}),
        ({"size": "4096x4096"}, {"imageConfig": {"aspectRatio": "1:1", "imageSize": "4K"}}),
        ({"seed": 0}, {"seed": 0}),
        ({"n": 1, "quality": "auto", "background": "auto", "size": "auto"}, {}),
        ({"response_format": "b64_json", "moderation": "auto", "partial_images": 0}, {}),
        ({"quality": None, "input_references": []}, {}),
    ],
)
def test_members_about_the_size_are_translated(fields: Any, config: Any) -> None:
    assert sent(**fields)["generationConfig"] == {"responseModalities": ["IMAGE"], **config}


@pytest.mark.parametrize("size", ["512x512", "1024x1024", "2048x2048", "4096x4096"])
def test_a_size_in_pixels_is_sent_as_the_tier_that_is_charged(size: str) -> None:
    config = sent(size=size)["generationConfig"]["imageConfig"]
    assert find_tiers(size) == {config.get("imageSize", "1K")}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"n": 2}, "n"),
        ({"size": "1536x1024"}, "size"),
        ({"size": "768"}, "size"),
        ({"resolution": "1.5K"}, "resolution"),
        ({"aspect_ratio": "2:1"}, "aspect_ratio"),
        ({"quality": "high"}, "quality"),
        ({"background": "transparent"}, "background"),
        ({"output_format": "png"}, "output_format"),
        ({"output_compression": 50}, "output_compression"),
        ({"partial_images": 1}, "partial_images"),
        ({"response_format": "url"}, "response_format"),
        ({"input_references": [reference()], "mask": reference()}, "mask"),
        ({"input_references": [reference()], "input_fidelity": "low"}, "input_fidelity"),
    ],
)
def test_a_member_without_effect_is_refused_by_name(fields: Any, name: str) -> None:
    with pytest.raises(Untranslatable, match=f"^{name}: Gemini"):
        sent(**fields)


def parsed(body: Any) -> Any:
    return gemini.parse_reply(Operation.IMAGES, json.dumps(body).encode())


def test_an_answer_has_the_image_and_its_tokens() -> None:
    thought = {**IMAGE, "thought": True}
    reply = parsed(answer(thought, {"text": "Here."}, IMAGE, usageMetadata=COUNTS))
    assert json.loads(msgspec.json.encode(reply.fields)) == {
        "data": [{"b64_json": ENCODED, "media_type": "image/png"}]
    }
    assert reply.usage == Usage(12, 1310, image_output=1290, output_images=1)
    assert (reply.model, reply.upstream_id, reply.choices) == ("gemini-image", "r", 1)


@pytest.mark.parametrize(
    ("made", "usage"),
    [
        ({"candidatesTokenCount": 1290}, Usage(12, 1290, image_output=1290, output_images=1)),
        ({"totalTokenCount": 1302}, Usage(12, 1290, image_output=1290, output_images=1)),
        (
            {"candidatesTokenCount": 1290, "thoughtsTokenCount": 200},
            Usage(12, 1490, reasoning=200, image_output=1290, output_images=1),
        ),
        (
            {**COUNTS, "candidatesTokensDetails": [{"modality": "TEXT", "tokenCount": 20}]},
            Usage(12, 1310, output_images=1),
        ),
        ({"promptTokenCount": None}, Usage(0, 0, output_images=1)),
    ],
)
def test_without_details_all_but_the_thoughts_is_image(made: dict[str, Any], usage: Usage) -> None:
    counts = {"promptTokenCount": 12, **made}
    assert parsed(answer(IMAGE, usageMetadata=counts)).usage == usage
    completed, _ = chunks_of(answer(IMAGE, usageMetadata=counts))
    assert completed.usage == usage


def test_an_answer_without_counts_counts_its_image() -> None:
    assert parsed(answer(IMAGE)).usage == Usage(0, 0, output_images=1)


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        answer(),
        answer({"text": "I cannot."}),
        answer({"inlineData": {"mimeType": "image/png", "data": "*"}}),
        answer({"inlineData": {"mimeType": "image/png", "data": 5}}),
    ],
)
def test_an_answer_without_an_image_is_invalid(body: Any) -> None:
    with pytest.raises(InvalidReply):
        parsed(body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (answer(reason="IMAGE_SAFETY"), "The provider made no image: IMAGE_SAFETY."),
        (answer(reason="NO_IMAGE"), "The provider made no image: NO_IMAGE."),
        ({"promptFeedback": {"blockReason": "OTHER"}}, "The provider made no image: OTHER."),
        ({"error": {"code": 400, "message": "Bad."}}, "Bad."),
    ],
)
def test_a_refusal_is_the_providers(body: Any, message: str) -> None:
    with pytest.raises(ProviderFailure) as failure:
        parsed(body)
    assert str(failure.value) == message


def chunks_of(*answers: Any) -> list[Chunk]:
    parser = gemini.stream_parser(Operation.IMAGES, 1)
    feed = [f"data: {json.dumps(each)}\r\n\r\n".encode() for each in answers]
    return [chunk for each in feed for chunk in parser.feed(each)] + parser.finish()


def test_a_stream_has_one_image_with_the_last_usage() -> None:
    text = answer({"text": "Here."}, reason=None)
    picture = answer(IMAGE, reason=None)
    last = answer(reason="STOP", usageMetadata=COUNTS)
    completed, end = chunks_of(text, picture, last)
    assert completed.fields["type"] == "image_generation.completed"
    assert completed.usage == Usage(12, 1310, image_output=1290, output_images=1)
    assert (completed.model, end.is_done) == ("gemini-image", True)


@pytest.mark.parametrize(
    "answers",
    [
        (),
        (answer({"text": "No."}),),
        (answer(IMAGE, reason=None),),
        (answer(IMAGE), answer(IMAGE)),
        ([],),
    ],
)
def test_a_broken_stream_is_invalid(answers: Any) -> None:
    with pytest.raises(InvalidStream):
        chunks_of(*answers)


def test_a_refusal_in_a_stream_is_the_providers() -> None:
    with pytest.raises(ProviderFailure, match="IMAGE_SAFETY"):
        chunks_of(answer(reason="IMAGE_SAFETY"))
