"""Files and audio that cost more than they should: refused, bounded, and not felt by others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import requests

from inference.models import Generation
from tests.support import factories
from tests.support.attack import Answer, connect, head_of
from tests.support.inference.site import Site

TRANSCRIPTIONS = "/api/v1/audio/transcriptions"
SPEECH = "/api/v1/audio/speech"
PART = b'Content-Disposition: form-data; name="a"\r\n\r\n1'
FILE = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'


def head_of_form(site: Site, size: int, boundary: str = "xx") -> bytes:
    return head_of(
        "POST",
        TRANSCRIPTIONS,
        Authorization=f"Bearer {site.tenant.api_key}",
        Content_Type=f"multipart/form-data; boundary={boundary}",
        Content_Length=size,
    )


def send(site: Site, body: bytes, boundary: str = "xx") -> Answer:
    with connect(site.server) as line:
        line.send(head_of_form(site, len(body), boundary))
        line.send_while_accepted(body)
        return line.receive_answer()


@pytest.mark.parametrize(
    "body",
    [
        b"--xx\r\n" + b"X: y\r\n" * 2_000_000,
        b"--xx\r\nX: " + b"y" * 20_000_000,
        b"--xx" + b" " * 20_000_000,
        b"--xx\r\n" + PART + (b"\r\n--xx\r\n" + PART) * 200_000 + b"\r\n--xx--\r\n",
        b"--xx\r\n" + FILE + b"\r\n--xx-" * 3_000_000 + b"\r\n--xx--\r\n",
        b"--xx\r\n" + FILE + b"x" * 20_000_000,
    ],
    ids=["headers", "value", "padding", "parts", "boundaries", "unended"],
)
def test_an_endless_form_is_refused(
    service: Site, is_served: Callable[[], bool], body: bytes
) -> None:
    answer = send(service, body)
    assert answer.status == 400, answer.body
    service.assert_nothing_happened()
    assert is_served()


def test_a_long_boundary_is_refused(service: Site) -> None:
    boundary = "x" * 10_000
    answer = send(service, f"--{boundary}\r\n".encode() + PART, boundary)
    assert answer.status == 400
    assert "boundary" in answer.error["message"]
    service.assert_nothing_happened()


def test_a_file_that_ends_early_is_forgotten(service: Site, is_served: Callable[[], bool]) -> None:
    with connect(service.server) as line:
        line.send(head_of_form(service, 20_000_000) + b"--xx\r\n" + FILE + b"x" * 1_000_000)
    service.assert_nothing_happened()
    assert is_served()


def test_others_are_served_while_a_provider_speaks_without_end(
    service: Site, is_served: Callable[[], bool]
) -> None:
    voice = factories.make_model("acme/voice", output_modalities=["speech"])
    service.publish("sim-endless", model=voice)
    body = {"model": voice.slug, "input": "one"}
    with service.post(body, path=SPEECH, stream=True) as answer:
        pieces = answer.iter_content(262_144)
        assert next(pieces)
        assert is_served()
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            # The bound of an upstream's answer ends it.
            for _ in pieces:
                pass
    service.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert Generation.objects.get(model=voice.slug).status == "failed"
