"""Validation of deployments that speak or transcribe."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from config.local.certificates import ensure_certificates
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.endpoints.validating import failed, passed, validate
from tests.support.simulator.server import Simulator
from tests.support.upstreams.tls import Script, answering, serving


@pytest.fixture
def make_draft(make_draft: Callable[..., PrivateEndpoint]) -> Callable[..., PrivateEndpoint]:
    """Makes a draft of a model with an output and a behaviour."""

    def make(output: str, behaviour: str = "sim-echo") -> PrivateEndpoint:
        model = factories.make_model(f"acme/{output}", output_modalities=[output])
        return make_draft(model, upstream_model_id=behaviour)

    return make


@pytest.mark.parametrize("output", ["speech", "transcription"])
def test_a_deployment_is_asked_for_what_its_model_does(
    make_draft: Any, upstream: Simulator, output: str
) -> None:
    result = validate(make_draft(output))
    names = ["workspace", "byok_key", "base_url", output, "usage", "model"]
    assert result.checks[:-1] == passed(names[:-1])
    assert result.checks[-1] == {
        "name": "model", "passed": True, "notes": ["The name of the model is not reported."],
    }  # fmt: skip
    paths = {"speech": "/v1/audio/speech", "transcription": "/v1/audio/transcriptions"}
    assert [request.path for request in upstream.requests] == [paths[output]] * 2


def test_speech_is_asked_for_in_two_containers(make_draft: Any, upstream: Simulator) -> None:
    assert validate(make_draft("speech")).passed
    assert [request.body["response_format"] for request in upstream.requests] == ["mp3", "wav"]


@pytest.mark.parametrize(
    ("voices", "voice"),
    [(None, "alloy"), ([], "alloy"), (["ash", "alloy"], "alloy"), (["af_bella", "x"], "af_bella")],
)
def test_speech_is_asked_for_in_a_voice_of_the_model(
    make_draft: Any, upstream: Simulator, voices: list[str] | None, voice: str
) -> None:
    draft = make_draft("speech")
    draft.model.supported_voices = voices
    draft.model.save_fields("supported_voices")
    assert validate(draft).passed
    assert [request.body["voice"] for request in upstream.requests] == [voice] * 2


def make_speaker(voices: tuple[str, ...], containers: tuple[str, ...], status: str) -> Script:
    """Returns a server that knows these voices (`""` is none) and containers, or has a status."""

    def script(line: socket.socket, head: bytes, body: bytes) -> bool:
        asked = json.loads(body)
        is_known = asked.get("voice", "") in voices and asked.get("response_format") in containers
        sound = b"ID3" + bytes(400) if is_known else b'{"detail":"Unknown."}'
        line.sendall(
            b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
            % (
                b"200 OK" if is_known else status.encode(),
                b"audio/mpeg" if is_known else b"application/json",
                len(sound),
                sound,
            )
        )
        return True

    return script


@pytest.mark.parametrize(
    ("voices", "containers", "status", "calls", "notes"),
    [
        (("alloy",), ("wav",), "400 Bad Request", ["mp3", "wav", "mp3", "wav"], []),
        (("alloy",), ("opus", "wav"), "422 Unprocessable", ["mp3", "wav", "mp3", "wav"], []),
        (("",), ("mp3", "wav"), "500 Internal Server Error", ["mp3", "mp3", "wav"], ["alloy"]),
        (("",), ("wav",), "400 Bad Request",
         ["mp3", "wav", "opus", "flac", "aac", "mp3", "wav", "mp3", "wav"], ["alloy"]),
        ((), (), "400 Bad Request", ["mp3", "wav", "opus", "flac", "aac"] * 2, None),
        ((), (), "401 Unauthorized", ["mp3"], None),
        ((), (), "500 Internal Server Error", ["mp3", "mp3"], None),
    ],
)  # fmt: skip
def test_speech_is_tried_without_a_voice_and_in_each_container(
    make_draft: Any,
    voices: tuple[str, ...],
    containers: tuple[str, ...],
    status: str,
    calls: list[str],
    notes: list[str] | None,
) -> None:
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    with serving(make_speaker(voices, containers, status), certificates.server_context()) as server:
        draft = make_draft("speech")
        draft.base_url = f"https://127.0.0.1:{server.port}/v1"
        draft.save_fields("base_url")
        result = validate(draft)
        asked = [json.loads(body)["response_format"] for _, body in server.requests]
    assert asked == calls
    assert result.passed is (notes is not None)
    if notes is None:
        assert result.checks[-1]["upstream_status"] == int(status[:3])
    else:
        [check] = [each for each in result.checks if each["name"] == "speech"]
        assert [note.split()[2] for note in check.get("notes", [])] == notes


def test_a_second_of_sound_is_sent(make_draft: Any, upstream: Simulator) -> None:
    assert validate(make_draft("transcription")).passed
    sizes = [request.body["file"]["size"] for request in upstream.requests]
    assert sizes == [44 + 32_000, 44 + 16_000]


def test_a_transcription_without_usage_passes(make_draft: Any) -> None:
    # The length of the file is known, so it can be billed.
    assert validate(make_draft("transcription", "sim-no-usage")).passed


@pytest.mark.parametrize(
    ("output", "behaviour", "reason"),
    [
        *(
            ("speech", f"sim-{fault}", "invalid_response")
            for fault in (
                *("html", "html-audio", "wrong-shape", "empty-stream", "error-200"),
                *("reset-stream", "close-stream", "endless"),
            )
        ),
        ("speech", "sim-status:500", "upstream_error"),
        ("speech", "sim-redirect", "upstream_error"),
        *(
            ("transcription", f"sim-{fault}", "invalid_response")
            for fault in ("html", "wrong-shape", "error-200")
        ),
        ("transcription", "sim-status:429", "upstream_error"),
        ("transcription", "sim-connect-reset", "upstream_error"),
    ],
)
def test_a_deployment_that_fails_is_named(
    make_draft: Any, output: str, behaviour: str, reason: str
) -> None:
    result = validate(make_draft(output, behaviour))
    assert not result.passed
    assert (result.checks[-1]["name"], result.checks[-1]["reason"]) == (output, reason)
    assert result.cost_nano == 0


def test_the_events_of_a_chat_are_no_transcription(make_draft: Any) -> None:
    chunk = b'{"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}'
    script = answering(b"data: %b\n\ndata: [DONE]\n\n" % chunk)
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    with serving(script, certificates.server_context()) as server:
        draft = make_draft("transcription")
        draft.edit(base_url=f"https://127.0.0.1:{server.port}/v1")
        result = validate(draft)
    assert not result.passed
    assert result.checks[-1] == failed(
        "transcription", "invalid_response", "The answer is not a JSON object."
    )
