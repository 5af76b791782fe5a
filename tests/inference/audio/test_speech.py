"""Speech through the gateway: bytes as they come, billed by the characters of the text."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from inference.models import Generation
from tests.support import factories
from tests.support.database.snapshots import unchanged
from tests.support.inference.site import Site, error_of
from tests.support.ledger import assert_in_order
from tests.support.simulator.audio import SAMPLES

ROUTE = "/api/v1/audio/speech"
WORD = SAMPLES * 2 * 2 // 5


def publish(site: Site, behaviour: str = "sim-echo", **fields: Any) -> None:
    """Serves the site's model, which only speaks."""
    site.model.output_modalities = ["speech"]
    site.model.save_fields("output_modalities")
    site.publish(behaviour, **fields)


def speak(site: Site, **fields: Any) -> requests.Response:
    """Asks for two words."""
    return site.post({"model": site.model.slug, "input": "one two", **fields}, path=ROUTE)


def test_speech_is_answered_with_its_bytes(site: Site) -> None:
    publish(site, price=factories.make_price("0", "0"))
    fields = {"voice": "alloy", "response_format": "mp3", "speed": 1, "instructions": "Softly."}
    answer = speak(site, user="someone", session_id="one", **fields)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "audio/mpeg"
    assert answer.content.startswith(b"ID3")
    assert len(answer.content) == 10 + 2 * WORD
    [sent] = site.dialled()
    assert sent.body == {"model": "sim-echo", "input": "one two", **fields}
    row = site.settled()
    assert answer.headers["X-Generation-Id"] == row.pk
    assert (row.operation, row.status, row.streamed) == ("audio/speech", "completed", True)
    assert (row.end_user, row.session_id, row.finish_reason) == ("someone", "one", "stop")
    assert_in_order()


def test_a_bound_that_speech_does_not_have_is_not_sent(site: Site) -> None:
    publish(site, supported_parameters=["voice"])
    assert speak(site, voice="alloy", max_tokens=100).status_code == 200
    [sent] = site.dialled()
    assert sent.body["voice"] == "alloy"
    assert "max_tokens" not in sent.body


@pytest.mark.parametrize(
    ("asked", "sent", "content_type"),
    [
        ({}, "pcm", "audio/pcm;rate=24000;channels=1"),
        ({"response_format": None}, "pcm", "audio/pcm;rate=24000;channels=1"),
        ({"response_format": "wav"}, "wav", "audio/wav"),
        ({"response_format": "opus"}, "opus", "audio/ogg"),
        ({"response_format": "flac"}, "flac", "audio/flac"),
        ({"response_format": "aac"}, "aac", "audio/aac"),
    ],
)
def test_the_format_is_the_one_that_was_asked_for(
    site: Site, asked: dict[str, Any], sent: str, content_type: str
) -> None:
    publish(site)
    assert speak(site, **asked).headers["Content-Type"] == content_type
    assert site.dialled()[0].body["response_format"] == sent


@pytest.mark.parametrize("empty", ["[ ]", "{ }"])
def test_an_empty_format_is_that_of_the_interface(site: Site, empty: str) -> None:
    publish(site)
    body = f'{{"model": "{site.model.slug}", "input": "one two", "response_format": {empty}}}'
    answer = site.post(None, path=ROUTE, data=body)
    assert answer.headers["Content-Type"] == "audio/pcm;rate=24000;channels=1"
    assert site.dialled()[0].body["response_format"] == "pcm"
    assert site.settled().status == "completed"


def test_a_price_by_token_asks_for_the_count(site: Site) -> None:
    publish(site, price=factories.make_price("0.001", "0.002"))
    answer = speak(site, response_format="wav")
    # The caller receives audio, although the provider sends events.
    assert answer.headers["Content-Type"] == "audio/wav"
    assert len(answer.content) == 44 + 2 * WORD
    assert site.dialled()[0].body["stream_format"] == "sse"
    row = site.settled()
    assert (row.prompt_tokens, row.completion_tokens, row.is_estimated) == (2, 16, False)
    assert row.cost_nano == 2 * 1_000_000 + 16 * 2_000_000
    assert_in_order()


def test_a_provider_without_counts_is_estimated_by_time(site: Site) -> None:
    publish(site, "sim-no-events", price=factories.make_price("0.001", "0.002"))
    assert speak(site, response_format="wav").status_code == 200
    row = site.settled()
    # Two words take 800 ms, at 20 tokens a second.
    assert (row.prompt_tokens, row.completion_tokens, row.is_estimated) == (2, 16, True)
    assert_in_order()


def test_the_first_bytes_come_before_the_last_ones_exist(site: Site) -> None:
    publish(site, "sim-gated")
    body = {"model": site.model.slug, "input": "one two", "response_format": "wav"}
    with site.post(body, path=ROUTE, stream=True) as answer:
        pieces = answer.iter_content(65_536)
        assert next(pieces).startswith(b"RIFF")
        # A second tenant is served meanwhile.
        other = factories.make_tenant("other")
        model = factories.make_model("acme/writer")
        site.publish("sim-chunks", model=model)
        body = site.chat_body(model=model.slug, stream=True)
        assert site.post(body, key=other.api_key).text.endswith("data: [DONE]\n\n")
        site.upstream.release(1)
        assert sum(map(len, pieces)) > 0
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())


@pytest.mark.parametrize(
    ("behaviour", "status", "message"),
    [
        ("sim-status:429", 429, "refused the request for its rate"),
        ("sim-status:400", 400, "The request is not valid."),
        ("sim-status:500", 502, "The server had an error."),
        ("sim-error-200", 503, "The upstream provider is overloaded."),
        ("sim-html", 502, "not audio"),
        ("sim-html-audio", 502, "not audio"),
        ("sim-wrong-shape", 502, "not audio"),
        ("sim-empty-stream", 502, "no audio"),
        ("sim-connect-reset", 502, ""),
        ("sim-redirect", 502, ""),
    ],
)
def test_an_error_before_the_first_byte_has_its_status(
    site: Site, behaviour: str, status: int, message: str
) -> None:
    publish(site, behaviour, price=factories.make_price("0.001", "0.002"))
    answer = speak(site)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/json")
    assert message in answer.json()["error"]["message"]
    row = site.settled()
    assert (row.status, row.cost_nano) == ("failed", 0)
    assert_in_order()


def test_the_next_provider_answers_for_one_that_sends_no_audio(site: Site) -> None:
    publish(site, "sim-html-audio", provider=site.another_provider("bad"))
    site.publish()
    answer = speak(site, provider={"order": ["bad", "acme"]}, response_format="mp3")
    assert answer.content.startswith(b"ID3")
    assert [each["status"] for each in site.settled().attempts] == [502, 200]


@pytest.mark.parametrize(
    ("behaviour", "error_type"),
    [
        ("sim-reset-stream", "provider_unavailable"),
        ("sim-close-stream", "provider_unavailable"),
        ("sim-error-stream", "provider_overloaded"),
    ],
)
def test_audio_that_is_cut_off_breaks_the_connection(
    site: Site, behaviour: str, error_type: str
) -> None:
    publish(site, behaviour, price=factories.make_price("0.001", "0"))
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        speak(site)
    row = site.settled()
    assert (row.status, row.error_type) == ("failed", error_type)
    # What was delivered was spoken, so the text is paid for.
    assert row.cost_nano == 2_000_000
    assert_in_order()


def test_audio_without_end_is_cut_off(site: Site) -> None:
    publish(site, "sim-endless")
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        speak(site)
    assert site.settled().status == "failed"


def test_a_caller_who_leaves_pays_for_the_text(site: Site) -> None:
    publish(site, "sim-gated", price=factories.make_price("0.001", "0"))
    body = {"model": site.model.slug, "input": "one two"}
    with site.post(body, path=ROUTE, stream=True) as answer:
        assert next(answer.iter_content(1_000))
    row = site.settled()
    assert (row.status, row.cost_nano) == ("cancelled", 2_000_000)
    assert_in_order()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"input": ""}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"text": "one"}]}, "input"),
        ({"input": "x" * 1_000_001}, "input"),
        ({"model": ""}, "model"),
        ({"voice": "x" * 256}, "voice"),
        ({"response_format": "midi"}, "response_format"),
        ({"speed": 0.24}, "speed"),
        ({"speed": 4.01}, "speed"),
        ({"speed": "fast"}, "speed"),
        ({"instructions": 1}, "instructions"),
        ({"stream_format": "sse"}, "stream_format"),
        ({"stream_format": "json"}, "stream_format"),
        ({"input_references": [{"type": "text", "text": "a"}]}, "input_references"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_held(
    site: Site, change: dict[str, Any], field: str
) -> None:
    publish(site)
    with unchanged():
        assert field in error_of(speak(site, **change), 400)["metadata"]["fields"]
    assert site.dialled() == []


@pytest.mark.parametrize(
    "change",
    [
        {"input": "x" * 100_000}, {"speed": 0.25}, {"speed": 4}, {"speed": None}, {"voice": None},
        {"voice": {"id": "v"}}, {"voice": "x" * 255}, {"stream_format": "audio"},
        {"stream_format": None}, {"input_references": []}, {"input_references": None},
        {"stream": True}, {"stream": False}, {"instructions": None}, {"unknown": 1},
    ],
)  # fmt: skip
def test_a_field_at_its_bound_is_accepted(site: Site, change: dict[str, Any]) -> None:
    publish(site, price=factories.make_price("0.00000001", "0"))
    assert speak(site, **change).status_code == 200
    [sent] = site.dialled()
    assert not {"stream", "stream_format", "input_references"} & sent.body.keys()
    assert None not in sent.body.values()


def test_a_model_that_speaks_serves_nothing_else(site: Site) -> None:
    publish(site)
    assert site.chat().status_code == 404
    site.model.output_modalities = ["text"]
    site.model.save_fields("output_modalities")
    error = error_of(speak(site), 404)
    [excluded] = error["metadata"]["excluded"]
    assert excluded["excluded_by"] == ["operation_not_supported"]
