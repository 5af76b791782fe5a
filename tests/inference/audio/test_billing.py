"""What audio costs: characters, seconds and tokens, held before and charged after."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
import requests

from catalog.pricing import Price, Rule
from tests.support.bodies.samples import make_wav
from tests.support.inference.site import Site, error_of
from tests.support.ledger import assert_in_order

SPEECH = "/api/v1/audio/speech"
TRANSCRIPTIONS = "/api/v1/audio/transcriptions"


def priced(billable: str, unit: str, price: str) -> Price:
    """Returns a price with one rule and free tokens."""
    rule = Rule(billable=billable, unit=unit, price=Decimal(price))
    return Price(prompt=Decimal(0), completion=Decimal(0), rules=(rule,))


# whisper-1 asks 0.0001 USD a second.
BY_SECOND = priced("second", "second", "0.0001")


def wav(seconds: float) -> bytes:
    return make_wav(seconds, rate=24_000)


def publish(site: Site, price: Price, behaviour: str = "sim-echo") -> None:
    site.model.output_modalities = ["speech", "transcription"]
    site.model.save_fields("output_modalities")
    site.publish(behaviour, price=price)


def transcribe(site: Site, data: bytes, name: str = "a.wav") -> requests.Response:
    fields = {"model": site.model.slug}
    return site.post(None, path=TRANSCRIPTIONS, data=fields, files={"file": (name, data)})


@pytest.mark.parametrize(
    ("text", "count"), [("one two", 7), ("Zürich 😀", 8), ("x" * 4_096, 4_096)]
)
def test_speech_costs_the_characters_of_its_text(site: Site, text: str, count: int) -> None:
    # tts-1 asks 15 USD for a million characters.
    publish(site, priced("character", "character", "0.000015"))
    body = {"model": site.model.slug, "input": text, "response_format": "mp3"}
    assert site.post(body, path=SPEECH).status_code == 200
    row = site.settled()
    assert row.hold_nano == row.cost_nano == row.upstream_cost_nano == count * 15_000
    assert row.units["characters"] == count
    assert "stream_format" not in site.dialled()[0].body
    assert_in_order()


def test_speech_that_is_not_affordable_is_not_spoken(site: Site) -> None:
    publish(site, priced("character", "character", "1000"))
    error = error_of(site.post({"model": site.model.slug, "input": "one two"}, path=SPEECH), 402)
    assert "max_tokens" not in error["message"]
    site.assert_nothing_happened()


@pytest.mark.parametrize(
    ("seconds", "cost", "hold"),
    [
        (1, 100_000, 100_000),
        # A provider may bill whole seconds.
        (2.5, 250_000, 300_000),
        (0.001, 100, 100_000),
        (0.0, 0, 0),
    ],
)
def test_a_transcription_costs_its_seconds(
    site: Site, seconds: float, cost: int, hold: int
) -> None:
    publish(site, BY_SECOND)
    answer = transcribe(site, wav(seconds))
    assert answer.status_code == 200
    row = site.settled()
    assert (row.hold_nano, row.cost_nano) == (hold, cost)
    assert answer.json()["usage"]["seconds"] == seconds
    assert answer.json()["usage"]["cost"] == cost / 10**9
    assert_in_order()


def test_a_length_that_no_header_tells_is_held_at_the_lowest_rate(site: Site) -> None:
    publish(site, BY_SECOND)
    # 16,000 bytes of MP3 are at most 16 seconds; the simulator counts samples of two bytes.
    assert transcribe(site, b"ID3" + bytes(15_997), "a.mp3").status_code == 200
    row = site.settled()
    assert row.hold_nano == 1_600_000
    assert row.cost_nano == 33_200
    assert_in_order()


def test_a_provider_that_lies_about_the_length_is_believed_up_to_the_hold(site: Site) -> None:
    publish(site, BY_SECOND, "sim-usage-huge")
    assert transcribe(site, wav(2)).json()["usage"]["seconds"] == 2
    row = site.settled()
    assert row.hold_nano == row.cost_nano == 200_000
    assert_in_order()


def test_a_length_that_is_not_reported_is_charged_from_the_file(site: Site) -> None:
    publish(site, BY_SECOND, "sim-no-usage")
    assert transcribe(site, wav(2)).status_code == 200
    row = site.settled()
    assert (row.cost_nano, row.is_estimated) == (200_000, True)


def test_tokens_of_audio_that_are_not_reported_are_estimated_from_the_file(site: Site) -> None:
    rule = Rule(billable="prompt", unit="token", variant="audio", price=Decimal("0.00001"))
    publish(site, Price(Decimal("0.000001"), Decimal(0), rules=(rule,)), "sim-no-usage")
    assert transcribe(site, wav(2)).status_code == 200
    row = site.settled()
    assert (row.prompt_tokens, row.cost_nano, row.is_estimated) == (20, 200_000, True)


@pytest.mark.parametrize("prompt", ["0.000001", "0"])
def test_tokens_are_estimated_where_the_provider_reports_only_a_length(
    site: Site, prompt: str
) -> None:
    rule = Rule(billable="prompt", unit="token", variant="audio", price=Decimal("0.00001"))
    publish(site, Price(Decimal(prompt), Decimal(0), rules=(rule,)))
    usage = transcribe(site, wav(2)).json()["usage"]
    assert (usage["type"], usage["input_tokens"], usage["seconds"]) == ("tokens", 20, 2)
    row = site.settled()
    assert (row.prompt_tokens, row.cost_nano, row.is_estimated) == (20, 200_000, True)
    assert row.units["milliseconds"] == 2_000
    assert_in_order()


def test_a_rate_for_seconds_needs_no_tokens(site: Site) -> None:
    rule = Rule(billable="second", unit="second", price=Decimal("0.0001"))
    publish(site, Price(Decimal("0.000001"), Decimal(0), rules=(rule,)))
    assert transcribe(site, wav(2)).json()["usage"]["type"] == "duration"
    row = site.settled()
    assert (row.prompt_tokens, row.cost_nano, row.is_estimated) == (0, 200_000, False)
    assert_in_order()


def test_tokens_of_audio_have_their_own_rate(site: Site) -> None:
    rule = Rule(billable="prompt", unit="token", variant="audio", price=Decimal("0.00001"))
    price: Any = Price(prompt=Decimal("0.000001"), completion=Decimal("0.00002"), rules=(rule,))
    publish(site, price, "sim-tokens:40,7")
    assert transcribe(site, wav(1)).status_code == 200
    row = site.settled()
    assert row.cost_nano == 40 * 10_000 + 7 * 20_000
    assert row.units["audio"] == 40
    assert row.hold_nano >= row.cost_nano
    assert_in_order()


@pytest.mark.parametrize("rate", ["0.000012", "0"])
def test_events_count_the_tokens_of_speech(site: Site, rate: str) -> None:
    rule = Rule(billable="completion", unit="token", variant="audio", price=Decimal("0.000012"))
    price: Any = Price(prompt=Decimal("0.0000006"), completion=Decimal(rate), rules=(rule,))
    publish(site, price)
    body = {"model": site.model.slug, "input": "one two", "response_format": "wav"}
    assert site.post(body, path=SPEECH).status_code == 200
    row = site.settled()
    assert row.cost_nano == 2 * 600 + 16 * 12_000
    assert (row.units["audio_output"], row.units["characters"]) == (16, 7)
    assert_in_order()


def test_seconds_are_billed_even_if_the_provider_counts_tokens(site: Site) -> None:
    publish(site, BY_SECOND, "sim-tokens:40,7")
    answer = transcribe(site, wav(2))
    row = site.settled()
    assert (row.cost_nano, row.is_estimated) == (200_000, True)
    assert (row.prompt_tokens, row.completion_tokens) == (40, 7)
    assert answer.json()["usage"]["seconds"] == 2
    assert answer.json()["usage"]["cost"] == 0.0002
    assert_in_order()
