"""The ``openai`` and ``openrouter`` SDKs speak and transcribe."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openrouter import OpenRouter

from catalog.models import LanguageModel
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator

WAV = (
    b"RIFF" + struct.pack("<I", 48_036) + b"WAVEfmt "
    + struct.pack("<IHHIIHH", 16, 1, 1, 24_000, 48_000, 2, 16)
    + b"data" + struct.pack("<I", 48_000) + bytes(48_000)
)  # fmt: skip


@pytest.fixture
def serve_audio(tenant: Tenant, simulator: Simulator) -> Callable[..., str]:
    """Returns a function that publishes a model that speaks and transcribes."""

    def put(behaviour: str = "sim-echo", **fields: Any) -> str:
        provider = factories.make_provider("acme", name="Acme AI", base_url=simulator.base_url)
        model: LanguageModel = factories.make_model(
            "acme/parrot",
            input_modalities=["text", "audio"],
            output_modalities=["speech", "transcription"],
        )
        factories.make_endpoint(model, provider, upstream_model_id=behaviour, **fields)
        factories.make_credential(tenant, provider)
        return model.slug

    return put


def test_the_openai_sdk_speaks(
    client: openai.OpenAI, serve_audio: Callable[..., str], tmp_path: Path
) -> None:
    answer = client.audio.speech.create(
        model=serve_audio(), input="one two", voice="alloy", response_format="mp3"
    )
    assert answer.response.headers["content-type"] == "audio/mpeg"
    assert answer.content.startswith(b"ID3")
    with client.audio.speech.with_streaming_response.create(
        model="acme/parrot", input="one two three", voice="alloy", response_format="wav"
    ) as stream:
        stream.stream_to_file(tmp_path / "speech.wav")
    assert (tmp_path / "speech.wav").stat().st_size == 44 + 3 * 19_200


def test_the_openai_sdk_transcribes(client: openai.OpenAI, serve_audio: Callable[..., str]) -> None:
    answer = client.audio.transcriptions.create(
        model=serve_audio(price=factories.make_price("0", "0")),
        file=("speech.wav", io.BytesIO(WAV)),
        language="en",
        temperature=0,
    )
    assert answer.text == "You said 1 seconds."
    assert answer.usage is not None
    assert (answer.usage.type, answer.usage.seconds) == ("duration", 1)
    verbose = client.audio.transcriptions.create(
        model="acme/parrot", file=("speech.wav", WAV), response_format="verbose_json",
        timestamp_granularities=["segment", "word"],
    )  # fmt: skip
    assert (verbose.duration, verbose.language) == (1, "english")
    assert verbose.segments is not None
    assert verbose.segments[0].text == "You said 1 seconds."


def test_the_openai_sdk_reads_tokens(
    client: openai.OpenAI, serve_audio: Callable[..., str]
) -> None:
    answer = client.audio.transcriptions.create(
        model=serve_audio("sim-tokens:40,7"), file=("speech.wav", WAV)
    )
    assert answer.usage is not None
    assert answer.usage.type == "tokens"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (40, 7)


@pytest.mark.parametrize("behaviour", ["sim-status:429", "sim-html"])
def test_the_openai_sdk_raises_errors(
    client: openai.OpenAI, serve_audio: Callable[..., str], behaviour: str
) -> None:
    model = serve_audio(behaviour)
    with pytest.raises(openai.APIStatusError):
        client.audio.speech.create(model=model, input="one", voice="alloy")
    with pytest.raises(openai.APIStatusError):
        client.audio.transcriptions.create(model=model, file=("speech.wav", WAV))
    with pytest.raises(openai.BadRequestError, match="stream_format"):
        client.audio.speech.create(model=model, input="one", voice="alloy", stream_format="sse")
    with pytest.raises(openai.BadRequestError, match="response_format"):
        client.audio.transcriptions.create(
            model=model, file=("speech.wav", WAV), response_format="srt"
        )


def test_a_generation_tells_what_was_spoken(
    client: openai.OpenAI, caller: OpenRouter, serve_audio: Callable[..., str]
) -> None:
    model = serve_audio()
    spoken = client.audio.speech.with_raw_response.create(
        model=model, input="one two", voice="alloy", response_format="wav"
    )
    heard = client.audio.transcriptions.with_raw_response.create(
        model=model, file=("speech.wav", WAV)
    )
    for answer, kind in ((spoken, "tts"), (heard, "stt")):
        found = caller.generations.get_generation(id=answer.headers["x-generation-id"])
        assert (found.data.api_type, found.data.model) == (kind, model)
