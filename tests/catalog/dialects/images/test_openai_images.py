"""Images in OpenAI's wire format: generations, edits and their streams."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from catalog.dialects import azure, openai
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
from config.credentials import Secret
from config.egress import OutboundRequest
from tests.support.inference.pictures import DATA_URL, ENCODED, PNG, reference
from tests.support.simulator.pictures import parse_form

USAGE = {
    "input_tokens": 250,
    "output_tokens": 4160,
    "total_tokens": 4410,
    "input_tokens_details": {"image_tokens": 200, "text_tokens": 50},
    "output_tokens_details": {"image_tokens": 4160, "text_tokens": 0},
}
ANSWER: dict[str, Any] = {
    "created": 1_780_272_000,
    "background": "opaque",
    "output_format": "png",
    "quality": "high",
    "size": "1024x1024",
    "data": [{"b64_json": ENCODED}],
    "usage": USAGE,
}


def call(listed: set[str] | None = None, *, stream: bool = False, **fields: Any) -> Call:
    fields = {"prompt": "a cat", **fields}
    return Call(
        operation=Operation.IMAGES,
        base_url="https://llm.example.com/v1",
        model="gpt-image-2",
        secret=Secret("secret"),
        fields={name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()},
        stream=stream,
        supported_parameters=None if listed is None else frozenset(listed),
    )


def built(listed: set[str] | None = None, **fields: Any) -> OutboundRequest:
    return openai.build(call(listed, **fields))


def sent(listed: set[str] | None = None, **fields: Any) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(bytes(built(listed, **fields).body))
    assert (members.pop("model"), members.pop("prompt")) == ("gpt-image-2", "a cat")
    return members


def test_a_generation_is_json() -> None:
    request = built(n=2, quality="high", user=None)
    assert (request.method, request.url) == (
        "POST",
        "https://llm.example.com/v1/images/generations",
    )
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["Content-Type"] == "application/json"
    assert sent(n=2, quality="high", user=None) == {"n": 2, "quality": "high"}


def test_an_image_makes_it_an_edit_in_a_form() -> None:
    request = built(
        n=2,
        input_references=[reference()],
        mask=reference(),
        svg={"model": "s", "reasoning": {"effort": "low"}},
    )
    assert request.url == "https://llm.example.com/v1/images/edits"
    assert parse_form(request.headers["Content-Type"], bytes(request.body)) == {
        "prompt": "a cat",
        "n": "2",
        "svg[model]": "s",
        "svg[reasoning][effort]": "low",
        "model": "gpt-image-2",
        "image": [{"type": "image/png", "bytes": len(PNG)}],
        "mask": [{"type": "image/png", "bytes": len(PNG)}],
    }
    assert PNG in bytes(request.body)


def test_several_images_have_the_name_of_a_list() -> None:
    request = built(input_references=[reference(), reference()])
    assert bytes(request.body).count(b'name="image[]"; filename="image.png"') == 2


def test_a_null_or_empty_image_makes_no_edit() -> None:
    assert sent(input_references=[], mask=None) == {}
    assert built(input_references=None).url.endswith("/images/generations")


def test_an_image_by_url_is_refused_by_name() -> None:
    with pytest.raises(Untranslatable, match=r"input_references\[1\]: This provider takes"):
        built(input_references=[reference(), reference("https://pictures.example/cat.png")])


@pytest.mark.parametrize(
    ("fields", "members"),
    [
        ({"aspect_ratio": "3:2"}, {"size": "1536x1024"}),
        ({"resolution": "4K", "aspect_ratio": "16:9"}, {"size": "3840x2160"}),
        ({"size": "2K"}, {"size": "2048x2048"}),
        ({"response_format": "b64_json"}, {}),
        ({"response_format": "url"}, {"response_format": "url"}),
        ({"safety_identifier": "me", "stream": False}, {}),
        ({"style": "vivid", "moderation": "low"}, {"style": "vivid", "moderation": "low"}),
        ({"seed": None}, {}),
        ({"future": {"a": 1}}, {"future": {"a": 1}}),
    ],
)
def test_openrouters_members_become_openais(fields: Any, members: Any) -> None:
    assert sent(**fields) == members


@pytest.mark.parametrize(
    ("listed", "fields", "members"),
    [
        ({"aspect_ratio"}, {"aspect_ratio": "3:2"}, {"aspect_ratio": "3:2"}),
        ({"resolution"}, {"size": "2K"}, {"resolution": "2K"}),
        ({"aspect_ratio"}, {"resolution": "2K"}, {"size": "2048x2048"}),
        ({"seed"}, {"seed": 0}, {"seed": 0}),
        ({"response_format"}, {"response_format": "b64_json"}, {"response_format": "b64_json"}),
        ({"seed"}, {"n": 1, "quality": "auto", "output_compression": 100}, None),
        ({"temperature"}, {"quality": "high"}, {"quality": "high"}),
    ],
)
def test_an_endpoint_that_lists_parameters_of_images_gets_those(
    listed: set[str], fields: Any, members: Any
) -> None:
    assert sent(listed, **fields) == (fields if members is None else members)


@pytest.mark.parametrize(
    ("listed", "fields", "name"),
    [
        (None, {"seed": 5}, "seed"),
        (None, {"seed": 0}, "seed"),
        ({"seed"}, {"quality": "high"}, "quality"),
        ({"seed"}, {"stream": True}, "stream"),
        ({"seed"}, {"output_compression": 99}, "output_compression"),
        ({"seed"}, {"response_format": "url"}, "response_format"),
        ({"seed"}, {"input_references": [reference()]}, "input_references"),
        ({"input_references"}, {"input_references": [reference()], "mask": reference()}, "mask"),
    ],
)
def test_a_member_without_effect_is_refused_by_name(
    listed: set[str] | None, fields: Any, name: str
) -> None:
    with pytest.raises(Untranslatable, match=f"^{name}: this provider has no such option"):
        built(listed, **fields)


def test_azure_has_the_same_paths() -> None:
    secret = Secret(
        json.dumps(
            {
                "api_key": "test-key-0123456789",
                "endpoint_url": "https://a.openai.azure.com",
                "api_version": "2026-01-01",
            }
        )
    )
    edit = msgspec.structs.replace(call(input_references=[reference()]), secret=secret)
    assert azure.build(edit).url == (
        "https://a.openai.azure.com/openai/deployments/gpt-image-2/images/edits?api-version=2026-01-01"
    )


def body(**fields: Any) -> bytes:
    return json.dumps({**ANSWER, **fields}).encode()


def test_an_answer_keeps_its_members_and_counts_its_images() -> None:
    reply = openai.parse_reply(Operation.IMAGES, body(data=[{"b64_json": ENCODED}] * 2, id="i"))
    assert reply.usage == Usage(
        prompt=250,
        completion=4160,
        image_prompt=200,
        image_output=4160,
        output_images=2,
        image_variant="1024x1024/high",
    )
    assert (reply.choices, reply.finish_reason, reply.upstream_id) == (2, "stop", "i")
    fields = json.loads(msgspec.json.encode(reply.fields))
    assert fields["data"] == [{"b64_json": ENCODED, "media_type": "image/png"}] * 2
    assert fields["quality"] == "high"


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (None, Usage(0, 0)),
        ({}, Usage(0, 0)),
        ({"input_tokens": -1, "output_tokens": 5}, Usage(0, 0)),
        ({"input_tokens": 7, "output_tokens": 5}, Usage(7, 5, image_output=5)),
        ({"prompt_tokens": 7, "completion_tokens": 5, "completion_tokens_details": None},
         Usage(7, 5, image_output=5)),
        ({"input_tokens": 7, "output_tokens": 9, "output_tokens_details": {"image_tokens": 4}},
         Usage(7, 9, image_output=4)),
    ],
)  # fmt: skip
def test_an_answer_without_tokens_still_counts_its_images(usage: Any, counted: Usage) -> None:
    answer = body(usage=usage, size=None, quality=None)
    reply = openai.parse_reply(Operation.IMAGES, answer)
    assert reply.usage == msgspec.structs.replace(counted, output_images=1)


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        ({"url": "https://pictures.example/1.png"}, {"url": "https://pictures.example/1.png"}),
        ({"url": DATA_URL}, {"b64_json": ENCODED, "media_type": "image/png"}),
        (
            {"b64_json": ENCODED, "url": None, "revised_prompt": "cats"},
            {"b64_json": ENCODED, "media_type": "image/png", "revised_prompt": "cats"},
        ),
        ({"b64_json": "QUJD"}, {"b64_json": "QUJD"}),
    ],
)
def test_an_image_is_data_or_a_url(item: Any, shown: Any) -> None:
    reply = openai.parse_reply(Operation.IMAGES, body(data=[item]))
    assert json.loads(msgspec.json.encode(reply.fields["data"])) == [shown]


@pytest.mark.parametrize(
    "data",
    [
        None, [], {}, [None], ["AAAA"], [{}], [{"b64_json": None}], [{"b64_json": 1}],
        [{"b64_json": ""}], [{"b64_json": "AA*A"}], [{"url": 5}], [{"url": "ftp://a/b"}],
        [{"url": "data:image/png,AAAA"}], [{"url": "data:image/png;base64,*"}],
        [{"b64_json": ENCODED}, {"b64_json": "A"}],
    ],
)  # fmt: skip
def test_anything_else_is_no_answer(data: Any) -> None:
    with pytest.raises(InvalidReply):
        openai.parse_reply(Operation.IMAGES, body(data=data))


def test_an_error_with_status_200_is_the_providers() -> None:
    with pytest.raises(ProviderFailure, match="blocked"):
        openai.parse_reply(Operation.IMAGES, body(error={"message": "blocked", "code": "x"}))


def event(kind: str, **fields: Any) -> bytes:
    members = {"type": kind, "b64_json": ENCODED, **fields}
    return f"event: {kind}\ndata: {json.dumps(members)}\n\n".encode()


PARTIAL = event("image_generation.partial_image", partial_image_index=0)
COMPLETED = event("image_generation.completed", usage=USAGE, size="1024x1024", quality="high")


def chunks_of(*events: bytes, images: int = 1) -> list[Chunk]:
    parser = openai.stream_parser(Operation.IMAGES, images)
    chunks = [chunk for each in events for chunk in parser.feed(each)]
    return chunks + parser.finish()


def test_a_stream_has_partial_images_and_ends_with_the_last_one() -> None:
    partial, completed, end = chunks_of(PARTIAL, COMPLETED)
    assert partial.fields["type"] == "image_generation.partial_image"
    assert bytes(partial.fields["partial_image_index"]) == b"0"
    assert (partial.usage, partial.finish_reason) == (None, None)
    assert completed.fields["media_type"] == "image/png"
    assert completed.usage == Usage(
        250,
        4160,
        image_prompt=200,
        image_output=4160,
        output_images=1,
        image_variant="1024x1024/high",
    )
    assert (completed.finish_reason, end.is_done) == ("stop", True)


def test_events_of_an_edit_mean_the_same() -> None:
    completed, end = chunks_of(event("image_edit.completed", usage=USAGE))
    assert completed.fields["type"] == "image_generation.completed"
    assert end.is_done


def test_a_stream_may_have_fewer_images_and_other_events() -> None:
    *_, end = chunks_of(event("image_generation.text_chunk"), COMPLETED, images=3)
    assert end.is_done
    *_, end = chunks_of(COMPLETED, b"data: [DONE]\n\n", images=3)
    assert end.is_done


def test_the_usage_counts_the_images_so_far() -> None:
    first, second, _ = chunks_of(COMPLETED, COMPLETED, images=2)
    assert first.usage is not None
    assert second.usage is not None
    assert (first.usage.output_images, second.usage.output_images) == (1, 2)


@pytest.mark.parametrize(
    ("counts", "charged"),
    [
        # Each event counts its own image, and all of them the same prompt.
        ((4160, 4160), 8320),
        ((4160, 4160, 4160), 12_480),
        ((372, 272, 472), 1_116),
        # Each event counts all images so far.
        ((4160, 8320, 12_480), 12_480),
        ((4160, 8120), 8_120),
        # Only one of them counts, or one counts nothing.
        ((None, None, 8320), 8_320),
        ((4160, None), 4_160),
        ((4160, None, 4160), 8_320),
        ((4160, 0, 4160), 8_320),
    ],
)
def test_the_usages_of_several_images_add_up(counts: tuple[int | None, ...], charged: int) -> None:
    usages = [
        None if count is None else {**USAGE, "output_tokens": count, "output_tokens_details": None}
        for count in counts
    ]
    events = [event("image_generation.completed", usage=usage) for usage in usages]
    *_, last, end = chunks_of(*events, images=len(counts))
    assert end.is_done
    assert last.usage == Usage(
        250,
        charged,
        image_prompt=200,
        image_output=charged,
        output_images=len(counts),
    )


@pytest.mark.parametrize(
    "events",
    [
        (),
        (PARTIAL,),
        (b"data: [DONE]\n\n",),
        (b"data: {\n\n",),
        (b"data: []\n\n",),
        (event("image_generation.completed", b64_json="*"),),
        (event("image_generation.completed", b64_json=None),),
        (PARTIAL,) * 4,
    ],
)
def test_a_broken_stream_is_invalid(events: tuple[bytes, ...]) -> None:
    with pytest.raises(InvalidStream):
        chunks_of(*events)


def test_more_images_than_asked_for_are_never_read() -> None:
    # The end mark follows the first image, so nothing after it counts.
    completed, end = chunks_of(COMPLETED + COMPLETED)
    assert (completed.has_choices, end.is_done) == (True, True)


def test_an_error_in_a_stream_is_the_providers() -> None:
    with pytest.raises(ProviderFailure, match="moderation"):
        chunks_of(b'data: {"type":"error","error":{"message":"moderation"}}\n\n')
