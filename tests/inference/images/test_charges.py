"""What images cost: by tokens, by the image in sizes and qualities, and what a hold bounds."""

from __future__ import annotations

import json
import socket
import threading
from decimal import Decimal
from typing import Any, Final

import pytest

from catalog.dialects.base import Operation
from catalog.pricing import Price
from catalog.pricing.rules import Billable, Rule
from config.credentials import Secret
from inference.requests import parsing
from tests.support import factories
from tests.support.bodies.lines import dial, post_bytes
from tests.support.inference.endings import notice, read_until
from tests.support.inference.pictures import ENCODED, ROUTER, reference
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.upstreams.standing import standing_in
from tests.support.upstreams.tls import answering, serving, trusted_context


def ask(site: Site, **fields: Any) -> Any:
    return site.post({"model": site.model.slug, "prompt": "a cat", **fields}, path=ROUTER)


def by_image(**rates: str) -> Price:
    """Returns a price by the image; the names of variants have ``_`` for ``/``."""
    return Price(
        Decimal(0),
        Decimal(0),
        rules=tuple(
            Rule(Billable.IMAGE, "image", Decimal(rate), variant=name.strip("_").replace("_", "/"))
            for name, rate in rates.items()
        ),
    )


SIZES = {"_1024x1024_low": "0.01", "_1024x1024_high": "0.2", "_1536x1024_high": "0.3"}


@pytest.mark.parametrize(
    ("rates", "fields", "cost"),
    [
        ({"_": "0.04"}, {}, 40_000_000),
        ({"_": "0.04"}, {"n": 3}, 120_000_000),
        (SIZES, {"size": "1024x1024", "quality": "low"}, 10_000_000),
        (SIZES, {"size": "1024x1024", "quality": "high", "n": 2}, 400_000_000),
        (SIZES, {"size": "1536x1024", "quality": "high"}, 300_000_000),
        # The answer states the size that the provider chose.
        (SIZES, {"quality": "high"}, 200_000_000),
        # A tier is sent as pixels, which the answer states; a list may have either.
        (SIZES, {"resolution": "1K", "quality": "high"}, 200_000_000),
        ({"_1K_high": "0.1", "_4K_high": "0.5"}, {"size": "1K", "quality": "high"}, 100_000_000),
        # A size in pixels is of a tier, and of the dearer one where it may be of two.
        ({"_": "0.04", "_2K": "0.1", "_4K": "0.5"}, {"size": "4096x4096"}, 500_000_000),
        ({"_": "0.04", "_2K": "0.1", "_4K": "0.5"}, {"size": "3840x2160"}, 500_000_000),
        (
            {"_1K_high": "0.1", "_4K_high": "0.5"},
            {"size": "4096x4096", "quality": "high"},
            500_000_000,
        ),
        # A list that tells only one of both apart.
        ({"_low": "0.01", "_high": "0.2"}, {"quality": "high"}, 200_000_000),
        ({"_1024x1024": "0.02", "_1536x1024": "0.03"}, {"size": "1536x1024"}, 30_000_000),
    ],
)
def test_images_are_billed_by_size_and_quality(
    site: Site, rates: dict[str, str], fields: dict[str, Any], cost: int
) -> None:
    site.publish("sim-picture-no-usage", price=by_image(**rates))
    assert ask(site, **fields).status_code == 200
    row = site.settled()
    assert (row.cost_nano, row.is_estimated) == (cost, False)
    assert row.units["output_images"] == fields.get("n", 1)
    assert_in_order()


def test_a_size_that_no_database_stores_is_billed_at_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    image = {"data": [{"b64_json": ENCODED}], "size": "1024x1024\0", "quality": "\x1fhigh"}
    script = answering(json.dumps(image).encode(), headers=("Content-Type: application/json",))
    with serving(script, trusted_context()) as server:
        site.publish(
            provider=factories.make_provider(
                "odd", base_url=f"https://127.0.0.1:{server.port}/v1", secret=Secret("operator-123")
            ),
            price=by_image(**SIZES),
        )
        assert ask(site).status_code == 200
    row = site.settled()
    assert (row.status, row.cost_nano) == ("completed", 200_000_000)
    assert row.units == {"output_images": 1, "image_variant": "1024x1024/high"}
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []
    assert_in_order()


def test_a_stream_is_billed_by_the_size_that_the_request_names(site: Site) -> None:
    site.publish(
        "sim-picture-no-usage", price=by_image(_1K_high="0.1", _4K_high="0.5", _4K_low="0.4")
    )
    assert ask(site, stream=True, size="1K", quality="high").status_code == 200
    assert site.settled().cost_nano == 100_000_000


@pytest.mark.parametrize(
    ("fields", "variant"),
    [
        ({}, ""),
        ({"size": "auto", "quality": "auto"}, ""),
        ({"size": "auto", "resolution": "2K"}, "2K"),
        ({"size": None, "resolution": "4K", "quality": "high"}, "4K/high"),
        ({"size": "1024x1024", "resolution": "1K", "quality": "low"}, "1024x1024/low"),
    ],
)
def test_a_bill_has_the_words_of_the_request(fields: dict[str, Any], variant: str) -> None:
    body = json.dumps({"model": "a/b", "prompt": "x", **fields}).encode()
    assert parsing.parse(Operation.IMAGES, body).least.image_variant == variant


def test_a_hold_bounds_the_dearest_image_that_may_come(site: Site) -> None:
    site.publish(price=by_image(_1024x1024_low="0.01", _1024x1024_high="5000"))
    # The balance covers the image that is named, and not one that the provider may choose.
    assert ask(site, quality="low", size="1024x1024").status_code == 200
    assert ask(site).status_code == 402


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 32_768),
        ({"size": "auto"}, 32_768),
        ({"size": "1024x1024"}, 24_576),
        ({"size": "1024x1025"}, 32_768),
        ({"size": "1024x1024", "n": 3}, 73_728),
        ({"resolution": "2K"}, 49_152),
        ({"size": "4K"}, 139_264),
        ({"resolution": "512"}, 24_576),
    ],
)
def test_a_hold_bounds_the_tokens_by_the_size(
    site: Site, fields: dict[str, Any], tokens: int
) -> None:
    site.publish(price=factories.make_price("0", "0.000001"))
    assert ask(site, **fields).status_code == 200
    assert site.settled().hold_nano == tokens * 1_000


def test_fewer_images_cost_less(site: Site) -> None:
    site.publish("sim-picture-fewer", price=by_image(_="0.04"))
    assert ask(site, n=5).status_code == 200
    assert site.settled().cost_nano == 40_000_000


def test_images_of_the_prompt_are_billed_too(site: Site) -> None:
    site.publish("sim-picture-no-usage", price=by_image(_="0.04", _input="0.003"))
    assert ask(site, input_references=[reference()] * 2).status_code == 200
    assert site.settled().cost_nano == 46_000_000


def test_tokens_that_a_provider_does_not_count_are_estimated(site: Site) -> None:
    site.publish("sim-picture-no-usage", price=factories.make_price("0.001", "0.00001"))
    answer = ask(site, n=2)
    row = site.settled()
    assert (row.completion_tokens, row.is_estimated) == (2_580, True)
    assert row.prompt_tokens == 2
    assert answer.json()["usage"]["completion_tokens"] == 2_580
    assert row.cost_nano == 2 * 1_000_000 + 2_580 * 10_000
    assert_in_order()


def test_each_image_of_the_prompt_counts_in_its_estimate(site: Site) -> None:
    site.publish("sim-picture-no-usage", price=factories.make_price("0.000001", "0"))
    assert ask(site, input_references=[reference()] * 3).status_code == 200
    row = site.settled()
    assert (row.prompt_tokens, row.cost_nano, row.is_estimated) == (3_074, 3_074_000, True)
    assert_in_order()


@pytest.mark.parametrize(
    ("fields", "images"),
    [
        ({}, 0),
        ({"input_references": []}, 0),
        ({"input_references": [reference()]}, 1),
        ({"input_references": [reference()] * 16, "mask": reference()}, 17),
        ({"input_references": [reference()] * 2, "markup": reference(), "mask": None}, 3),
    ],
)
def test_an_image_of_the_prompt_counts_1024_tokens(fields: dict[str, Any], images: int) -> None:
    body = json.dumps({"model": "a/b", "prompt": "x", **fields}).encode()
    assert parsing.parse(Operation.IMAGES, body).text.tokens == images * 1_024


THIRD: Final = b'"partial_image_index":2'
BY_IMAGE: Final = by_image(_="0.04")
BY_TOKEN: Final = factories.make_price("0", "0.00001")
HEAD: Final = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
EVENT: Final = (
    'data: {"type": "image_generation.%s", "partial_image_index": %d, "b64_json": "%s"}\n\n'
)


def leave(site: Site, seen: bytes, **fields: Any) -> None:
    """Asks for a stream of images, and leaves when it has come so far."""
    body = {"model": site.model.slug, "prompt": "a cat", "stream": True, **fields}
    with dial(site, post_bytes(site, body, path=ROUTER)) as line:
        read_until(line, seen)
    notice(site)


@pytest.mark.parametrize(
    ("price", "fields", "seen", "counted", "cost"),
    [
        (BY_IMAGE, {"partial_images": 3}, THIRD, (1, 300 + 1_290), 40_000_000),
        (BY_TOKEN, {"partial_images": 3}, THIRD, (1, 300 + 1_290), 15_900_000),
        # A finished image is sent with what follows it: the preview of the second one.
        (BY_IMAGE, {"partial_images": 1, "n": 2}, b".completed", (2, 200 + 2 * 1_290), 80_000_000),
    ],
)
def test_a_caller_who_leaves_with_a_preview_pays_for_its_image(
    site: Site,
    price: Price,
    fields: dict[str, Any],
    seen: bytes,
    counted: tuple[int, int],
    cost: int,
) -> None:
    site.publish("sim-picture-stream-cut", price=price)
    leave(site, seen, **fields)
    row = site.settled()
    assert (row.status, row.is_estimated, row.cost_nano) == ("cancelled", True, cost)
    assert (row.units["output_images"], row.completion_tokens) == counted
    assert_in_order()


@pytest.mark.parametrize("behaviour", ["sim-picture-stream-cut", "sim-picture-stream-error"])
@pytest.mark.parametrize("stays", [False, True])
def test_a_preview_of_an_image_that_fails_is_no_image(
    site: Site, monkeypatch: pytest.MonkeyPatch, behaviour: str, *, stays: bool
) -> None:
    monkeypatch.setattr("inference.exchange.gateway._LATE_SECONDS", 60.0)
    site.publish(behaviour, price=BY_IMAGE)
    if stays:
        site.upstream.release()
        ask(site, stream=True, partial_images=3)
    else:
        leave(site, THIRD, partial_images=3)
        site.upstream.release()
    row = site.settled()
    assert (row.status, row.cost_nano) == ("failed" if stays else "cancelled", 0)
    assert_in_order()


def test_a_long_image_that_comes_late_is_paid(site: Site) -> None:
    has_left = threading.Event()
    events = EVENT % ("partial_image", 0, ENCODED), EVENT % ("completed", 0, "A" * 2_000_000)

    def paint(line: socket.socket, head: bytes, received: bytes) -> bool:
        line.sendall((HEAD % sum(map(len, events)) + events[0]).encode())
        assert has_left.wait(60)
        line.sendall(events[1].encode())
        return False

    with standing_in(site.provider, paint):
        site.publish("m", price=BY_IMAGE)
        leave(site, b'"partial_image_index":0', partial_images=1)
        has_left.set()
        row = site.settled()
    assert (row.status, row.is_estimated, row.cost_nano) == ("cancelled", True, 40_000_000)
    assert_in_order()
