"""Streams of images: partial images, the last event with the cost, and every bad ending."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from catalog.dialects.base import Operation
from catalog.dialects.openai import parse_reply
from catalog.dialects.shared.images.replies import split_reply
from inference.exchange.rendering import encode_event
from tests.support import factories
from tests.support.inference.pictures import EDITS, ENCODED, GENERATIONS, PNG, ROUTER
from tests.support.inference.repeats import cache_status, keep_answers
from tests.support.inference.site import Site, events_of
from tests.support.ledger import assert_in_order
from tests.support.upstreams.standing import standing_in
from tests.support.upstreams.tls import answering


def stream(site: Site, path: str = ROUTER, **fields: Any) -> requests.Response:
    body = {"model": site.model.slug, "prompt": "a cat", "stream": True, **fields}
    return site.post(body, path=path, stream=True)


@pytest.mark.parametrize("path", [ROUTER, GENERATIONS])
def test_a_stream_has_partial_images_and_the_cost_with_the_last(site: Site, path: str) -> None:
    site.publish(price=factories.make_price("0.001", "0.00001"))
    answer = stream(site, path, partial_images=2, quality="low")
    assert answer.status_code == 200
    first, second, last, end = events_of(answer.text)
    assert [first["type"], second["type"]] == ["image_generation.partial_image"] * 2
    assert [first["partial_image_index"], second["partial_image_index"]] == [0, 1]
    assert last["type"] == "image_generation.completed"
    assert end == "[DONE]"
    row = site.settled()
    for event in (first, second, last):
        assert event["id"] == row.pk
        assert event["media_type"] == "image/png"
        assert event["created"] == event["created_at"]
        assert event["size"] == "1024x1024"
        assert event.keys().isdisjoint(("object", "choices"))
    assert "usage" not in first
    assert (last["usage"]["output_tokens"], last["usage"]["completion_tokens"]) == (472, 472)
    assert last["usage"]["cost"] == 0.00672
    assert (row.status, row.cost_nano, row.completion_tokens) == ("completed", 6_720_000, 472)
    assert_in_order()


def test_several_images_have_an_event_each_and_one_usage(site: Site) -> None:
    site.publish()
    *images, end = events_of(stream(site, n=3, quality="low").text)
    assert [each["type"] for each in images] == ["image_generation.completed"] * 3
    assert ["usage" in each for each in images] == [False, False, True]
    assert images[-1]["usage"]["completion_tokens"] == 816
    assert end == "[DONE]"
    assert site.settled().completion_tokens == 816


def test_the_events_of_an_edit_have_their_own_types(site: Site) -> None:
    site.publish()
    fields = {"model": site.model.slug, "prompt": "a cat", "stream": "true", "partial_images": "1"}
    files = [("image", ("a.png", PNG, "image/png"))]
    answer = site.post(None, path=EDITS, data=fields, files=files)
    types = [event["type"] for event in events_of(answer.text)[:-1]]
    assert types == ["image_edit.partial_image", "image_edit.completed"]


def test_a_reader_of_lines_gets_the_text_of_an_event_of_several_pieces(site: Site) -> None:
    site.publish("sim-picture-separators:300000")
    text = stream(site).text
    assert "\u2028" not in text
    completed, _ = events_of(text)
    assert completed["revised_prompt"] == "\u2028" * 300_000


@pytest.mark.parametrize("path", [ROUTER, GENERATIONS])
def test_a_large_event_of_the_cache_is_one_event(site: Site, path: str) -> None:
    site.publish("sim-picture-large:600000", price=factories.make_price("0.001", "0.00001"))
    keep_answers(site.tenant)
    body = {"model": site.model.slug, "prompt": "a cat", "stream": True}
    answers = [site.post(body, path=path, headers={"X-OpenRouter-Cache": "true"}) for _ in range(2)]
    assert [cache_status(answer) for answer in answers] == ["MISS", "HIT"]
    (first, _), (again, end) = [events_of(answer.text) for answer in answers]
    assert len(again["b64_json"]) == 600_000
    assert (again.pop("id"), end) == (answers[1].headers["X-Generation-Id"], "[DONE]")
    assert again.pop("usage")["cost"] == 0 < first.pop("usage")["cost"]
    del first["id"]
    assert again == first


def read_to_the_end(site: Site, answer: requests.Response) -> list[Any]:
    """Returns the events of a stream whose upstream goes on after the first one."""
    text = ""
    for piece in answer.iter_content(None):
        if not text:
            site.upstream.release()
        text += piece.decode()
    return events_of(text)


@pytest.mark.parametrize("path", [ROUTER, GENERATIONS])
def test_a_failure_after_a_partial_image_is_the_last_event(site: Site, path: str) -> None:
    site.publish("sim-picture-stream-error")
    answer = stream(site, path, partial_images=1)
    assert answer.status_code == 200
    partial, failed = read_to_the_end(site, answer)
    assert partial["type"] == "image_generation.partial_image"
    assert failed["type"] == "error"
    assert failed["error"]["message"]
    # Clients of OpenRouter read a code that is text.
    assert failed["error"]["code"] == "503"
    assert site.settled().status == "failed"
    assert_in_order()


def test_a_stream_that_is_cut_off_before_its_image_fails(site: Site) -> None:
    site.publish("sim-picture-stream-cut")
    _, failed = read_to_the_end(site, stream(site, partial_images=1))
    assert failed["type"] == "error"
    assert site.settled().status == "failed"


def test_a_stream_that_fails_before_its_first_event_has_a_status(site: Site) -> None:
    site.publish("sim-picture-stream-cut")
    site.upstream.release()
    assert stream(site).status_code == 502
    assert site.settled().cost_nano == 0


def test_an_image_beyond_those_asked_for_is_not_sent(site: Site) -> None:
    site.publish("sim-picture-stream-more")
    image, end = events_of(stream(site, quality="low").text)
    assert (image["type"], end) == ("image_generation.completed", "[DONE]")
    assert site.settled().completion_tokens == 272


def test_a_refusal_of_a_stream_has_a_status(site: Site) -> None:
    site.publish("sim-status:400")
    assert stream(site).status_code == 400


def test_a_large_event_is_one_event(site: Site) -> None:
    site.publish()
    answer = stream(site, size="4096x4096", quality="low")
    image, end = events_of(answer.text)
    assert json.dumps(image)
    assert end == "[DONE]"


def test_a_provider_that_does_not_stream_still_answers(site: Site) -> None:
    site.publish("sim-picture-unstreamed")
    first, second, end = events_of(stream(site, n=2, quality="low").text)
    assert (first["type"], second["type"]) == ("image_generation.completed",) * 2
    assert "usage" not in first
    assert second["usage"]["completion_tokens"] == 544
    assert second["size"] == "1024x1024"
    assert end == "[DONE]"
    assert site.settled().completion_tokens == 544


@pytest.mark.parametrize(
    ("members", "of_image"),
    [
        ({"error": None, "created_at": None}, {}),
        *(({}, {"error": error}) for error in ({}, [], 7, {"code": 1})),
    ],
)
@pytest.mark.parametrize("path", [ROUTER, GENERATIONS])
def test_an_image_that_came_whole_has_not_failed(
    site: Site, path: str, members: dict[str, Any], of_image: dict[str, Any]
) -> None:
    usage = {"input_tokens": 2, "output_tokens": 272}
    data = [{"b64_json": ENCODED, **of_image}]
    body = json.dumps({"created": 1, **members, "data": data, "usage": usage}).encode()
    script = answering(body, headers=("Content-Type: application/json",))
    with standing_in(site.provider, script):
        site.publish("m", price=factories.make_price("0.001", "0.00001"))
        answer = stream(site, path)
    assert answer.status_code == 200, answer.text
    image, end = events_of(answer.text)
    assert (image["type"], end) == ("image_generation.completed", "[DONE]")
    assert (image["b64_json"], image["created"], "error" in image) == (ENCODED, 1, False)
    assert image["usage"]["cost"] == 0.00472
    assert site.settled().cost_nano == 4_720_000


def test_the_line_ends_of_a_whole_answer_end_no_event() -> None:
    image = b'{"b64_json": "iVBORw0KGgo=", "meta": {\r\n "a":\r1}}'
    body = b'{"created": 1, "extra": {\r\n "b":\r2}, "data": [%b]}' % image
    first, *_ = split_reply(parse_reply(Operation.IMAGES, body))
    [event, _] = encode_event(first.fields).splitlines()
    found = json.loads(event.removeprefix(b"data: "))
    assert (found["extra"], found["meta"]) == ({"b": 2}, {"a": 1})
    assert found["b64_json"] == "iVBORw0KGgo="
