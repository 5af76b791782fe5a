"""Transcriptions through the gateway: a file in two forms, billed by tokens or by its length."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import pytest
import requests

from inference.models import Generation
from tests.support import factories
from tests.support.bodies.lines import dial
from tests.support.bodies.samples import make_wav
from tests.support.database.snapshots import unchanged
from tests.support.inference.prices import cost_details
from tests.support.inference.site import Site, error_of
from tests.support.ledger import assert_in_order

ROUTE = "/api/v1/audio/transcriptions"
SECOND = make_wav(1, rate=24_000)


def publish(site: Site, behaviour: str = "sim-echo", **fields: Any) -> None:
    """Serves the site's model, which only transcribes."""
    site.model.output_modalities = ["transcription"]
    site.model.save_fields("output_modalities")
    site.publish(behaviour, **fields)


def send_form(
    site: Site, data: Any = (), file: Any = ("private name.wav", SECOND), **options: Any
) -> requests.Response:
    fields = {"model": site.model.slug, **dict(data)}
    return site.post(None, path=ROUTE, data=fields, files={"file": file}, **options)


def send_json(site: Site, data: bytes | str = SECOND, **fields: Any) -> requests.Response:
    text = data if isinstance(data, str) else base64.b64encode(data).decode()
    audio = {"data": text, "format": "wav"}
    body = {"model": site.model.slug, "input_audio": audio, **fields}
    return site.post(body, path=ROUTE)


@pytest.mark.parametrize("send", [send_form, send_json])
def test_a_recording_becomes_text(site: Site, send: Any) -> None:
    publish(site, price=factories.make_price("0", "0"))
    answer = send(site)
    assert answer.status_code == 200
    row = site.settled()
    assert answer.json() == {
        "id": row.pk,
        "model": site.model.slug,
        "provider": "Acme AI",
        "text": "You said 1 seconds.",
        "usage": {
            "type": "duration",
            "seconds": 1.0,
            "cost": 0.0,
            "is_byok": False,
            "cost_details": cost_details(0, 0, 0),
        },
    }
    [sent] = site.dialled()
    # The name of the caller's file goes nowhere.
    assert sent.body == {
        "model": "sim-echo",
        "file": {"name": "audio.wav", "type": "audio/wav", "size": len(SECOND)},
    }
    assert (row.operation, row.status) == ("audio/transcriptions", "completed")
    assert row.streamed is False
    assert (row.prompt_tokens, row.completion_tokens, row.is_estimated) == (0, 0, False)
    assert answer.headers["X-Generation-Id"] == row.pk
    assert_in_order()


def test_tokens_are_billed(site: Site) -> None:
    publish(site, "sim-tokens:40,7", price=factories.make_price("0.001", "0.002"))
    usage = send_form(site).json()["usage"]
    assert usage.pop("cost_details")
    assert usage == {
        "type": "tokens",
        "input_tokens": 40,
        "output_tokens": 7,
        "total_tokens": 47,
        "input_token_details": {"audio_tokens": 40, "text_tokens": 0},
        "cost": 0.054,
        "is_byok": False,
    }
    row = site.settled()
    assert (row.prompt_tokens, row.completion_tokens, row.cost_nano) == (40, 7, 54_000_000)
    assert_in_order()


def test_the_fields_of_a_form_reach_the_provider(site: Site) -> None:
    publish(site)
    data = {
        "language": "de", "prompt": "Zürich", "temperature": "0.5", "response_format":
        "verbose_json", "timestamp_granularities[]": ["word", "segment"], "include[]": "logprobs",
        "chunking_strategy[type]": "server_vad", "user": "someone", "trace": "{}",
        "provider": '{"only": ["acme"]}', "stream": "false", "diarize": "false",
    }  # fmt: skip
    answer = send_form(site, data)
    assert answer.status_code == 200
    assert answer.json()["duration"] == 1
    [sent] = site.dialled()
    assert {name: value for name, value in sent.body.items() if name != "file"} == {
        "model": "sim-echo",
        "language": "de",
        "prompt": "Zürich",
        "temperature": "0.5",
        "response_format": "verbose_json",
        "timestamp_granularities[]": ["word", "segment"],
        "include[]": ["logprobs"],
        "chunking_strategy[type]": "server_vad",
    }
    assert site.settled().end_user == "someone"


@pytest.mark.parametrize(
    ("behaviour", "is_estimated"),
    [
        ("sim-no-usage", True), ("sim-usage-negative", True), ("sim-usage-string", True),
        ("sim-echo", False),
    ],
)  # fmt: skip
def test_a_length_that_is_not_reported_is_read_from_the_file(
    site: Site, behaviour: str, is_estimated: bool
) -> None:
    publish(site, behaviour, price=factories.make_price("0", "0"))
    assert send_form(site).json()["usage"]["seconds"] == 1
    assert site.settled().is_estimated == is_estimated


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        ("sim-status:429", 429), ("sim-status:400", 400), ("sim-status:500", 502),
        ("sim-error-200", 503), ("sim-html", 502), ("sim-wrong-shape", 502),
        ("sim-connect-reset", 502),
    ],
)  # fmt: skip
def test_a_provider_that_fails_costs_nothing(site: Site, behaviour: str, status: int) -> None:
    publish(site, behaviour, price=factories.make_price("0.001", "0.002"))
    assert send_form(site).status_code == status
    row = site.settled()
    assert (row.status, row.cost_nano) == ("failed", 0)
    assert_in_order()


def test_the_next_provider_gets_the_whole_file(site: Site) -> None:
    publish(site, "sim-status:500", provider=site.another_provider("bad"))
    site.publish()
    preferences = {"provider": '{"order": ["bad", "acme"]}'}
    assert send_form(site, preferences).json()["text"] == "You said 1 seconds."
    assert [sent.body["file"]["size"] for sent in site.dialled()] == [len(SECOND)] * 2


# Names for audio that was not sent, by which a provider would take another recording.
OTHER_AUDIO: Final = ("url", "file_url", "audio_url", "file_id")
WRONG_FORMS: list[tuple[dict[str, Any], Any, str]] = [
    ({"model": ""}, ("a.wav", SECOND), "model"),
    ({}, None, "file"),
    ({}, ("a.wav", b""), "file"),
    ({}, ("a.exe", b"MZ"), "file"),
    ({"temperature": "warm"}, ("a.wav", SECOND), "temperature"),
    ({"temperature": "1.01"}, ("a.wav", SECOND), "temperature"),
    ({"temperature": "-0.01"}, ("a.wav", SECOND), "temperature"),
    ({"response_format": "srt"}, ("a.wav", SECOND), "response_format"),
    ({"timestamp_granularities[]": "hour"}, ("a.wav", SECOND), "timestamp_granularities[0]"),
    ({"diarize": "yes"}, ("a.wav", SECOND), "diarize"),
    ({"diarize": "true"}, ("a.wav", SECOND), "diarize"),
    ({"stream": "true"}, ("a.wav", SECOND), "stream"),
    ({"source_url": "https://example.com/a.wav"}, ("a.wav", SECOND), "source_url"),
    ({"source_url": "https://example.com/a.wav"}, None, "source_url"),
    *(({name: "other"}, ("a.wav", SECOND), name) for name in OTHER_AUDIO),
    ({"url": "https://example.com/a.wav"}, None, "url"),
    ({"provider": "{"}, ("a.wav", SECOND), "provider"),
    ({"model": ["a", "b"]}, ("a.wav", SECOND), "model"),
    ({"models": "a/b"}, ("a.wav", SECOND), "models"),
]


@pytest.mark.parametrize(("data", "file", "field"), WRONG_FORMS)
def test_a_wrong_field_of_a_form_is_named(
    site: Site, data: dict[str, Any], file: Any, field: str
) -> None:
    publish(site)
    with unchanged():
        if file is None:
            body, content_type = requests.models.RequestEncodingMixin._encode_files(
                {"x": ("", b"", "")}, {"model": site.model.slug, **data}
            )
            body = body.replace(b'; filename=""', b"")
            headers = {"Content-Type": content_type}
            answer = site.post(None, path=ROUTE, data=body, headers=headers)
        else:
            answer = send_form(site, data, file)
        assert answer.status_code == 400, answer.text
        assert field in answer.json()["error"]["metadata"]["fields"]
    assert site.dialled() == []


FORM: Final[dict[str, Any]] = {"files": {"n": (None, "1")}}


@pytest.mark.parametrize(
    ("path", "sent", "names"),
    [
        (ROUTE, {"json": {}}, ["model", "input_audio"]),
        (ROUTE, {"json": {"model": "a", "input_audio": {}}},
         ["input_audio.data", "input_audio.format"]),
        (ROUTE, FORM, ["model", "file"]),
        ("/api/v1/images/edits", FORM, ["model", "prompt", "image"]),
    ],
)  # fmt: skip
def test_all_missing_parts_are_named_at_once(
    site: Site, path: str, sent: dict[str, Any], names: list[str]
) -> None:
    headers = {"Authorization": f"Bearer {site.tenant.api_key}"}
    answer = requests.post(f"{site.server}{path}", headers=headers, timeout=60, **sent)
    error = answer.json()["error"]
    assert (answer.status_code, list(error["metadata"]["fields"])) == (400, names)
    assert error["message"] == f"{', '.join(names)}: These fields are required."


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input_audio": None}, "input_audio"),
        ({"input_audio": {}}, "input_audio.data"),
        ({"input_audio": {"data": "UklG"}}, "input_audio.format"),
        ({"input_audio": {"data": "UklG", "format": "exe"}}, "input_audio.format"),
        ({"input_audio": {"data": "", "format": "wav"}}, "input_audio.data"),
        ({"input_audio": {"data": "U*lG", "format": "wav"}}, "input_audio.data"),
        ({"input_audio": {"data": "UklGR", "format": "wav"}}, "input_audio.data"),
        ({"input_audio": {"data": 1, "format": "wav"}}, "input_audio.data"),
        ({"input_audio": {"data": 123456, "format": "wav"}}, "input_audio.data"),
        ({"input_audio": {"url": "https://example.com/a.wav"}}, "input_audio.url"),
        ({"source_url": "https://example.com/a.wav"}, "source_url"),
        *(({name: "other"}, name) for name in OTHER_AUDIO),
        ({"file_id": ["other"]}, "file_id"),
        ({"url": "https://example.com/a.wav", "input_audio": None}, "url"),
        ({"file": "UklG"}, "file"),
        ({"keyterms": ["a"] * 1_001}, "keyterms"),
        ({"keyterms": "a"}, "keyterms"),
        ({"language": "x" * 65}, "language"),
        ({"stream": True}, "stream"),
        ({"models": ["a/b", "c/d"]}, "models"),
    ],
)
def test_a_wrong_field_of_json_is_named(site: Site, fields: dict[str, Any], field: str) -> None:
    publish(site)
    with unchanged():
        assert field in error_of(send_json(site, **fields), 400)["metadata"]["fields"]


def test_a_name_for_other_audio_without_a_value_is_not_sent(site: Site) -> None:
    publish(site)
    unset: dict[str, Any] = {
        "url": "",
        "file_url": None,
        "audio_url": [],
        "file_id": {},
        "source_url": "",
    }
    assert send_json(site, **unset).status_code == 200
    [sent] = site.dialled()
    assert sorted(sent.body) == ["file", "model"]


@pytest.mark.parametrize(
    "text",
    [
        # PHP escapes each slash; silence has none.
        base64.b64encode(SECOND[:-9] + b"\xff" * 9).decode().replace("/", "\\/"),
        "data:audio/wav;base64," + base64.b64encode(SECOND).decode(),
        "data:audio\\/wav;base64," + base64.b64encode(SECOND).decode(),
    ],
    ids=["escaped", "data-url", "escaped-data-url"],
)
def test_other_spellings_of_base64_are_read(site: Site, text: str) -> None:
    publish(site)
    body = json.dumps({"model": site.model.slug, "input_audio": {"data": "@", "format": "wav"}})
    answer = site.post(None, path=ROUTE, data=body.replace("@", text))
    assert answer.json()["text"] == "You said 1 seconds."


def test_a_parameter_that_only_some_endpoints_know_is_never_lost(site: Site) -> None:
    publish(site, supported_parameters=[])
    error = error_of(send_json(site, keyterms=["Zürich"]), 400)
    assert error["message"].startswith("keyterms: ")
    assert site.dialled() == []
    other = site.another_provider("other")
    site.publish(provider=other, supported_parameters=["keyterms", "diarize"])
    fields = {"keyterms": ["Zürich"], "diarize": True, "response_format": "verbose_json"}
    assert send_json(site, **fields).status_code == 200
    [sent] = site.dialled()
    assert (sent.body["keyterms[]"], sent.body["diarize"]) == (["Zürich"], "true")


@pytest.mark.parametrize("excess", [-1, 0, 1])
@pytest.mark.parametrize("send", [send_form, send_json])
def test_a_file_has_at_most_its_limit(site: Site, settings: Any, send: Any, excess: int) -> None:
    settings.MAX_FILE_BYTES = 100_000
    settings.MAX_REQUEST_BYTES = 1_000
    publish(site)
    data = SECOND[:-2] + bytes(100_000 - len(SECOND) + 2 + excess)
    answer = send(site, file=("a.wav", data)) if send is send_form else send(site, data)
    if excess > 0:
        assert answer.status_code == 413
        assert "100,001 bytes" in answer.json()["error"]["message"]
        site.assert_nothing_happened()
    else:
        assert answer.status_code == 200, answer.text
        assert site.dialled()[0].body["file"]["size"] == len(data)


def test_a_body_that_cannot_be_a_file_is_not_read(site: Site, settings: Any) -> None:
    settings.MAX_FILE_BYTES = 100_000
    settings.MAX_REQUEST_BYTES = 1_000
    publish(site)
    head = (
        f"POST {ROUTE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n"
        f"Authorization: Bearer {site.tenant.api_key}\r\n\r\n"
    )
    with dial(site, head.encode()) as line:
        assert line.recv(65_536).startswith(b"HTTP/1.1 413 ")
    site.assert_nothing_happened()


def test_a_file_counts_for_its_organization_while_it_is_in_memory(
    site: Site, settings: Any
) -> None:
    settings.ORGANIZATION_BUFFERED_BYTES = len(SECOND)
    publish(site)
    error = error_of(send_form(site), 429)
    assert error["message"].startswith("The organization's requests hold too many")
    site.assert_nothing_happened()


def test_a_caller_who_leaves_pays_for_the_recording(site: Site) -> None:
    publish(site, "sim-gated", price=factories.make_price("0.001", "0"))
    with pytest.raises(requests.exceptions.ReadTimeout):
        send_form(site, timeout=(5, 2))
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert site.settled().status == "cancelled"
    assert_in_order()
