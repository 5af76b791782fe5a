"""Validation of deployments that make images: one image, the cheapest that the provider has."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from endpoints.models import PrivateEndpoint, Validation
from tests.support import factories
from tests.support.endpoints.validating import validate
from tests.support.inference.pictures import ENCODED, PNG
from tests.support.simulator.server import Simulator
from tests.support.upstreams import tls

NO_DATA = "The answer has no data of an image, or of none that is known."
CHECKS = ["workspace", "byok_key", "base_url", "images", "usage", "model"]


@pytest.fixture
def draft(make_draft: Callable[..., PrivateEndpoint]) -> PrivateEndpoint:
    painter = factories.make_model("acme/painter", output_modalities=["image"])
    return make_draft(painter, price=factories.make_price("0.001", "0.00001"))


def test_a_deployment_that_makes_images_passes(draft: PrivateEndpoint, upstream: Simulator) -> None:
    result = validate(draft)
    notes = {"model": {"notes": ["The name of the model is not reported."]}}
    assert result.checks == [
        {"name": name, "passed": True, **notes.get(name, {})} for name in CHECKS
    ]
    assert result.evidence["media_type"] == "image/png"
    [request] = upstream.requests
    assert request.path == "/v1/images/generations"
    assert request.body == {
        "prompt": "A black square.",
        "size": "1024x1024",
        "quality": "low",
        "model": draft.upstream_model_id,
    }
    # Three words and the tokens of a cheap image.
    assert result.cost_nano == 3 * 1_000_000 + 272 * 10_000


def respond(status: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


GOOD = respond("200 OK", {"created": 1, "data": [{"b64_json": ENCODED}]})
REFUSED = respond("400 Bad Request", {"error": {"message": "Unknown parameter: quality"}})


@pytest.fixture
def answer_with(
    draft: PrivateEndpoint, settings: Any, tmp_path: Path
) -> Callable[..., tuple[Validation, list[Any]]]:
    """Validates the draft against a server that gives these answers in turn."""
    authority = tls.Authority(tmp_path)
    settings.EGRESS_POLICY = replace(settings.EGRESS_POLICY, ca_bundle=authority.bundle)

    def run(*answers: bytes) -> tuple[Validation, list[Any]]:
        left = list(answers)

        def script(line: socket.socket, head: bytes, body: bytes) -> bool:
            line.sendall(left.pop(0))
            return True

        with tls.serving(script, authority.server_context("127.0.0.1")) as server:
            base_url = f"https://127.0.0.1:{server.port}/v1"
            draft.edit(upstream_model_id="painter", base_url=base_url)
            return validate(draft), [json.loads(body) for _, body in server.requests]

    return run


def test_an_image_of_usual_size_passes_and_one_beyond_the_bound_does_not(answer_with: Any) -> None:
    # A PNG may be followed by anything.
    for size, outcome in ((3_000_000, "passed"), (13_000_000, "failed")):
        data = base64.b64encode(PNG.ljust(size, b"\0")).decode()
        result, _ = answer_with(respond("200 OK", {"data": [{"b64_json": data}]}))
        assert result.outcome == outcome
    assert result.checks[-1]["reason"] == "invalid_response"


def test_a_provider_without_qualities_is_asked_again_without(answer_with: Any) -> None:
    result, sent = answer_with(REFUSED, GOOD)
    assert result.outcome == "passed"
    assert [body.keys() for body in sent] == [
        {"prompt", "size", "quality", "model"},
        {"prompt", "model"},
    ]


@pytest.mark.parametrize(
    ("answers", "reason", "text"),
    [
        ((REFUSED, REFUSED), "upstream_error", "Unknown parameter: quality"),
        *(
            ((respond("200 OK", {"data": data}),), "invalid_response", text)
            for data, text in (
                ([], "The answer has no images."),
                ([{"b64_json": ENCODED}] * 2, "The answer has 2 images instead of 1."),
                ([{"b64_json": "QUJD"}], NO_DATA),
                ([{"url": "https://pictures.example/1.png"}], NO_DATA),
            )
        ),
    ],
)
def test_a_deployment_that_makes_no_image_fails(
    answer_with: Any, answers: tuple[bytes, ...], reason: str, text: str
) -> None:
    result, _ = answer_with(*answers)
    [check] = [check for check in result.checks if not check["passed"]]
    assert (check["name"], check["reason"]) == ("images", reason)
    assert check["upstream_message"] == text
