"""Speech whose container says its length, and samples whose server says their rate."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Final

import pytest
import requests

from catalog.pricing import Price, Rule
from config.credentials import Secret
from inference.models import Generation
from tests.support import factories
from tests.support.inference.repeats import cache_status, keep_answers
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.upstreams.tls import answering, serving, trusted_context

SECOND: Final = Price(
    Decimal(0), Decimal(0), rules=(Rule(billable="second", unit="second", price=Decimal("0.001")),)
)
TOKEN: Final = Price(Decimal(0), Decimal("0.001"))
FRAME: Final = bytes((0xFF, 0xFB, 0xE0, 0)) + bytes(1_040)  # 320 kbit/s
OGG: Final = (
    b"OggS" + bytes(24) + b"OpusHead\1\1" + struct.pack("<H", 312) + bytes(9_000)
    + b"OggS\0\4" + struct.pack("<q", 2 * 48_000 + 312) + bytes(40)
)  # fmt: skip


@contextmanager
def speaking(site: Site, sound: bytes, head: str, price: Price = SECOND) -> Iterator[None]:
    """Publishes the model at a server that answers with these bytes and lines of a head."""
    with serving(answering(sound, headers=(head,)), trusted_context()) as server:
        provider = factories.make_provider("voice", base_url=f"https://127.0.0.1:{server.port}/v1")
        provider.set_credential(Secret("operator-credential-0123456789"))
        site.model.output_modalities = ["speech"]
        site.model.save_fields("output_modalities")
        site.publish("m", provider=provider, price=price)
        yield


def speak(site: Site, asked: str, **headers: str) -> requests.Response:
    body = {"model": site.model.slug, "input": "one two", "response_format": asked}
    return site.post(body, path="/api/v1/audio/speech", headers=headers)


@pytest.mark.parametrize(
    ("sound", "head", "asked", "told", "length", "is_estimated"),
    [
        # 100 frames of 1,152 samples, whatever their bitrate is.
        (FRAME * 100, "Content-Type: audio/mpeg", "mp3", "audio/mpeg", 2_613, False),
        (OGG, "Content-Type: audio/ogg", "opus", "audio/ogg", 2_000, False),
        (bytes(44_100), "Content-Type: audio/pcm\r\nX-Sample-Rate: 22050", "pcm",
         "audio/pcm;rate=22050;channels=1", 1_000, False),
        (bytes(64_000), "Content-Type: audio/pcm;rate=16000;channels=2", "pcm",
         "audio/pcm;rate=16000;channels=2", 1_000, False),
        # A server that knows samples alone.
        (bytes(32_000), "Content-Type: audio/L16;rate=16000", "wav",
         "audio/pcm;rate=16000;channels=1", 1_000, False),
        # Without a length and without a rate, as many bytes as are common.
        (bytes(48_000), "Content-Type: application/octet-stream", "pcm",
         "audio/pcm;rate=24000;channels=1", 1_000, True),
        (b"\x1aE\xdf\xa3" + bytes(15_996), "Content-Type: audio/webm", "opus", "audio/webm",
         2_000, True),
        (b"ID3\x04\0\0\0\0\0\0" + FRAME * 2 + bytes(29_902), "Content-Type: audio/mpeg", "mp3",
         "audio/mpeg", 2_000, True),
    ],
)  # fmt: skip
def test_speech_by_the_second_costs_the_length_of_its_sound(
    site: Site, sound: bytes, head: str, asked: str, told: str, length: int, is_estimated: bool
) -> None:
    with speaking(site, sound, head):
        answer = speak(site, asked)
    assert (answer.status_code, answer.content) == (200, sound)
    assert answer.headers["Content-Type"] == told
    row = site.settled()
    assert (row.cost_nano, row.is_estimated) == (length * 1_000, is_estimated)
    assert row.units["milliseconds"] == length
    assert_in_order()


def test_cached_samples_have_the_rate_of_their_server(site: Site) -> None:
    keep_answers(site.tenant)
    with speaking(site, bytes(64_000), "Content-Type: audio/pcm;rate=16000;channels=2"):
        answers = [speak(site, "pcm", **{"X-OpenRouter-Cache": "true"}) for _ in range(2)]
    assert [cache_status(answer) for answer in answers] == ["MISS", "HIT"]
    kinds = [answer.headers["Content-Type"] for answer in answers]
    assert kinds == ["audio/pcm;rate=16000;channels=2"] * 2
    assert answers[1].content == bytes(64_000)


def test_a_known_length_counts_tokens_only_as_an_estimate(site: Site) -> None:
    with speaking(site, FRAME * 100, "Content-Type: audio/mpeg", TOKEN):
        assert speak(site, "mp3").status_code == 200
    row = site.settled()
    # 20 tokens a second.
    assert (row.completion_tokens, row.is_estimated) == (53, True)
    assert_in_order()


@pytest.mark.parametrize("asked", ["mp3", "wav", "opus", "flac", "aac"])
def test_bytes_in_no_container_are_refused(site: Site, asked: str) -> None:
    with speaking(site, bytes(48_000), "Content-Type: application/octet-stream"):
        answer = speak(site, asked)
    assert answer.status_code == 502
    assert "not audio in a known container" in answer.json()["error"]["message"]
    row = site.settled()
    assert (row.status, row.cost_nano) == (Generation.Status.FAILED, 0)
    assert_in_order()
