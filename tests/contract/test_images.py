"""Images with the public SDKs: OpenAI's generations and edits, and OpenRouter's images."""

from __future__ import annotations

import base64
from typing import Any

import openai
import pytest
from openrouter import OpenRouter, components

from tests.support.contract.clients import Serve, pieces_of
from tests.support.inference.pictures import PNG, reference
from tests.support.simulator.pictures import make_png

ENCODED = base64.b64encode(make_png(1024, 1024)).decode()


@pytest.fixture
def model(serve: Serve) -> str:
    """The name of a model that makes images."""
    return serve("sim-echo", "image")


def test_openai_generates(client: openai.OpenAI, model: str) -> None:
    answer = client.images.generate(
        model=model, prompt="a black cat", size="1024x1024", quality="low", n=2
    )
    assert answer.created == 1_780_272_000
    assert [image.b64_json for image in answer.data or ()] == [ENCODED] * 2
    assert (answer.quality, answer.size, answer.output_format) == ("low", "1024x1024", "png")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (3, 544)
    assert answer.usage.output_tokens_details is not None
    assert answer.usage.output_tokens_details.image_tokens == 544


def test_openai_edits_with_files(client: openai.OpenAI, model: str) -> None:
    answer = client.images.edit(
        model=model,
        prompt="a black cat",
        image=[("a.png", PNG), ("b.png", PNG)],
        mask=("m.png", PNG),
        quality="low",
    )
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.image_tokens == 400


def test_openai_streams_partial_images(client: openai.OpenAI, model: str) -> None:
    wanted: Any = {"model": model, "prompt": "a cat", "quality": "low", "partial_images": 2}
    events: list[Any] = pieces_of(client.images.generate(**wanted, stream=True))
    assert [event.type for event in events] == [
        "image_generation.partial_image",
        "image_generation.partial_image",
        "image_generation.completed",
    ]
    assert [event.partial_image_index for event in events[:2]] == [0, 1]
    assert events[-1].b64_json == ENCODED
    assert events[-1].created_at == 1_780_272_000
    assert events[-1].usage.output_tokens == 472


def test_openai_streams_an_edit(client: openai.OpenAI, model: str) -> None:
    events = pieces_of(client.images.edit(model=model, prompt="a cat", image=PNG, stream=True))
    assert [event.type for event in events] == ["image_edit.completed"]


def test_openai_reads_a_refusal(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError, match="output_compression: Needs"):
        client.images.generate(model=model, prompt="a cat", output_compression=50)


def test_openrouter_generates_from_an_image(caller: OpenRouter, model: str) -> None:
    answer = caller.images.generate(
        model=model,
        prompt="a black cat",
        aspect_ratio="1:1",
        quality="low",
        input_references=[components.ContentPartImage.model_validate(reference())],
    )
    assert isinstance(answer, components.ImageGenerationResponse)
    [image] = answer.data
    assert (image.b64_json, image.media_type) == (ENCODED, "image/png")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (203, 272)
    assert answer.usage.is_byok is True


def test_openrouter_streams(caller: OpenRouter, model: str) -> None:
    with caller.images.generate(model=model, prompt="a cat", quality="low", stream=True) as stream:
        [event] = list(stream)
    assert isinstance(event, components.ImageGenCompletedEvent)
    assert event.b64_json == ENCODED
    assert event.usage is not None
    assert event.usage.completion_tokens == 272


def test_openrouter_finds_the_generation(
    caller: OpenRouter, client: openai.OpenAI, model: str
) -> None:
    answer = client.images.generate(model=model, prompt="a cat")
    generation_id = (answer.model_extra or {})["id"]
    found = caller.generations.get_generation(id=generation_id).data
    assert (found.id, found.api_type) == (generation_id, "image")
