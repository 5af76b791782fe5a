"""A worker killed in the middle of a speech or of a chat: what was delivered is charged."""

from __future__ import annotations

import base64
import io
import json
import socket
import wave
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import requests

from billing.models import Account, Transfer
from catalog.pricing import Billable, Price, Rule
from inference.models import Generation, Journal
from tests.support.bulkheads.leases import end_leases, sweep
from tests.support.inference.pictures import reference
from tests.support.inference.prices import read_pricing
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.processes import serve
from tests.support.upstreams.tls import serving, trusted_context

LEASE = "8"
TEXT = "one two three"
# 15 USD for a million characters.
BY_CHARACTER = Price(
    Decimal(0), Decimal(0), rules=(Rule(Billable.CHARACTER, "character", Decimal("0.000015")),)
)

# A token of sound has a rate of its own, and each picture.
OF_CHAT = read_pricing(
    {"prompt": "0.000001", "completion": "0.000002", "audio_output": "0.00001"},
    {"billable": "image", "unit": "image", "price": "0.04"},
)
# A second of 16 bits at 24 kHz.
SECOND = {"audio": {"data": "A" * 64_000}}
PICTURE = {"images": [reference()]}


@pytest.fixture
def speech(site: Site) -> Site:
    site.produce("speech")
    return site


def end_abandoned(site: Site) -> Generation:
    """Ends the lease of the dead worker, and runs the sweeper; returns the generation."""
    end_leases(LEASE, site.eventually)
    sweep(LEASE)
    assert not Transfer.objects.pending().exists()
    assert not Journal.objects.exists()
    assert_in_order()
    row = Generation.objects.get()
    assert (row.status, row.error_type) == ("failed", "abandoned")
    account = Account.objects.get(organization=site.tenant.organization, kind="credits")
    assert (account.posted_debits, account.pending_debits) == (row.cost_nano, 0)
    return row


def make_wave(seconds: int) -> bytes:
    with io.BytesIO() as file:
        with wave.open(file, "wb") as sound:
            sound.setparams((1, 2, 16_000, 0, "NONE", ""))
            sound.writeframes(bytes(2 * 16_000 * seconds))
        return file.getvalue()


def test_the_first_bytes_of_a_speech_make_its_text_due(speech: Site) -> None:
    speech.publish("sim-gated", price=BY_CHARACTER)
    body = {"model": speech.model.slug, "input": TEXT, "response_format": "wav"}
    with (
        serve(HOLD_TIMEOUT=LEASE) as served,
        replace(speech, server=served.address).post(
            body, path="/api/v1/audio/speech", stream=True, timeout=30
        ) as answer,
    ):
        # The second word is not spoken before the worker is dead.
        assert next(answer.iter_content(65_536)).startswith(b"RIFF")
        served.process.kill()
        served.process.wait()
        with suppress(requests.RequestException):
            assert not answer.content
    speech.upstream.release(1)
    row = end_abandoned(speech)
    assert row.units["characters"] == len(TEXT)
    assert (row.is_estimated, row.cost_nano) == (True, 15_000 * len(TEXT))


def test_a_transcription_that_was_not_delivered_is_free(site: Site) -> None:
    site.produce("transcription")
    site.publish("sim-gated", price=BY_CHARACTER)

    def transcribe(address: str) -> None:
        sound = base64.b64encode(make_wave(seconds=3)).decode()
        body = {"model": site.model.slug, "input_audio": {"data": sound, "format": "wav"}}
        served = replace(site, server=address)
        with suppress(requests.RequestException):
            served.post(body, path="/api/v1/audio/transcriptions", timeout=30)

    with serve(HOLD_TIMEOUT=LEASE) as served, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(transcribe, served.address)
        site.eventually(lambda: len(site.dialled()) == 1)
        served.process.kill()
        served.process.wait()
        asking.result()
    site.upstream.release(1)
    # Its length is known, but nobody has its text.
    assert Journal.objects.get().units == {"milliseconds": 3_000}
    row = end_abandoned(site)
    assert (row.units, row.cost_nano) == (None, 0)


@pytest.mark.parametrize(
    ("deltas", "completion", "units", "cost"),
    [
        ([SECOND, SECOND], 40, {"audio_output": 40}, 40 * 10_000),
        ([SECOND, PICTURE], 20, {"audio_output": 20, "output_images": 1}, 20 * 10_000 + 40_000_000),
        ([PICTURE], 0, {"output_images": 1}, 40_000_000),
    ],
)
def test_the_sound_and_the_pictures_of_a_chat_are_due(
    site: Site, deltas: list[dict[str, Any]], completion: int, units: dict[str, int], cost: int
) -> None:
    def begin(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for delta in deltas:
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            data = b"data: %s\n\n" % json.dumps({"id": "a", "choices": [choice]}).encode()
            line.sendall(b"%x\r\n%s\r\n" % (len(data), data))
        # Nothing more comes before the worker is dead.
        return bool(line.recv(1))

    site.produce("text", "audio", "image")
    body = site.chat_body(stream=True, max_tokens=100, modalities=["text", "audio"])
    with serving(begin, trusted_context()) as upstream:
        site.move(f"https://127.0.0.1:{upstream.port}/v1")
        site.publish("m", price=OF_CHAT)
        with (
            serve(HOLD_TIMEOUT=LEASE) as served,
            replace(site, server=served.address).post(body, stream=True, timeout=30),
        ):
            site.eventually(lambda: Journal.objects.filter(units=units).exists())
            served.process.kill()
            served.process.wait()
    row = end_abandoned(site)
    assert (row.completion_tokens, row.units) == (completion, units)
    assert (row.is_estimated, row.cost_nano) == (True, 1_000 * row.prompt_tokens + cost)
