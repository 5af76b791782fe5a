"""Small answers to large requests: what they are completed with leaves the loop, and is counted."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.support import factories
from tests.support.attack import connect, post_of
from tests.support.bodies.lines import dial, post_bytes
from tests.support.bulkheads.counters import read_counter
from tests.support.bulkheads.serving import serve_in_thread
from tests.support.inference.road import START, STOP, RecordedApplication
from tests.support.inference.site import Site

EMBEDDINGS: Final = "/api/v1/embeddings"
RERANK: Final = "/api/v1/rerank"
LARGE: Final = 100_000
PICTURE: Final = "https://img.example/a.png"


def record_functions(site: Site, path: str, fields: dict[str, Any]) -> dict[str, list[str]]:
    """Returns the functions that a request runs on the loop of its worker, by file."""
    application, key = RecordedApplication(), site.tenant.api_key
    asked = json.dumps({"model": site.model.slug, **fields}).encode()
    with serve_in_thread(application) as address, connect(address) as line:
        for route, body in ((START, b""), (path, asked), (STOP, b"")):
            line.send(post_of(route, key, body))
            assert line.receive_answer().status == 200
    site.wait_for_settlement()
    return application.read_road(1).functions


@pytest.mark.parametrize(
    ("path", "name"), [(EMBEDDINGS, "embeddings"), (RERANK, "rerank")], ids=["embeddings", "rerank"]
)
@pytest.mark.parametrize("size", [1, LARGE])
def test_an_answer_to_a_large_request_is_completed_in_a_thread(
    site: Site, path: str, name: str, size: int
) -> None:
    site.produce(name)
    site.publish(price=factories.make_price("0", "0"))
    text = "x" * size
    asked: dict[str, dict[str, Any]] = {
        EMBEDDINGS: {"input": [text]},
        RERANK: {"query": "x", "documents": [text]},
    }
    functions = record_functions(site, path, asked[path])
    assert (f"inference/requests/operations/{name}.py" in functions) is (size == 1)


@pytest.mark.parametrize("repeated", [True, False])
def test_documents_that_an_answer_repeats_are_rendered_in_a_thread(
    site: Site, *, repeated: bool
) -> None:
    site.produce("rerank")
    site.publish(price=factories.make_price("0", "0"))
    fields = {"query": "x", "documents": ["x" * LARGE], "return_documents": repeated}
    rendered = record_functions(site, RERANK, fields)["inference/exchange/rendering.py"]
    assert ("Renderer.render_reply" in rendered) is not repeated


def test_documents_that_an_answer_repeats_are_counted_until_they_are_read(site: Site) -> None:
    site.produce("rerank")
    site.publish(price=factories.make_price("0", "0"))
    documents = ["x" * 1_000_000] * 8
    body = {"model": site.model.slug, "query": "x", "documents": documents}
    held = len(json.dumps(body)) + sum(len(json.dumps(each)) for each in documents)
    with dial(site, post_bytes(site, body, path=RERANK), receive_buffer=4_096):
        site.eventually(lambda: read_counter(site.server, "causeway_buffered_bytes") == held)
    site.eventually(lambda: read_counter(site.server, "causeway_buffered_bytes") == 0)


def test_documents_are_repeated_as_they_were_sent(site: Site) -> None:
    site.produce("rerank")
    site.publish()
    documents = (
        rb'["\u00fc \"x\" \/", {"text": "\n", "image": null}, {"text" : null, "image": "%b"}]'
    )
    body = b'{"model": "%b", "query": "none", "documents": %b}'
    asked = body % (site.model.slug.encode(), documents % PICTURE.encode())
    answer = site.post(None, path=RERANK, data=asked)
    assert [each["document"] for each in answer.json()["results"]] == [
        {"text": 'ü "x" /'},
        {"text": "\n"},
        {"image": PICTURE},
    ]
