"""Answers of embeddings are checked before they are billed, and come as they were asked for."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from inference.models import Generation
from tests.support import factories
from tests.support.contract.sdks import openai_client
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.upstreams.standing import standing_in
from tests.support.upstreams.tls import answering

ROUTE = "/api/v1/embeddings"
ONE, TWO = [0.5, -0.25, 2.0], [1.0, 0.0, -4.0]
Answer = Callable[[list[Any] | bytes], None]


def packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def item(vector: Any, index: int | None = None, **members: Any) -> dict[str, Any]:
    place = {} if index is None else {"index": index}
    return {"object": "embedding", "embedding": vector, **place, **members}


@pytest.fixture
def answer(site: Site) -> Iterator[Answer]:
    """Returns a function that publishes the model behind a server with these vectors."""
    with ExitStack() as stack:

        def run(data: list[Any] | bytes) -> None:
            body = data if isinstance(data, bytes) else json.dumps(
                {"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 4}}
            ).encode()  # fmt: skip
            script = answering(body, headers=("Content-Type: application/json",))
            stack.enter_context(standing_in(site.provider, script))
            site.publish("m", price=factories.make_price("0.001", "0.002"))

        yield run


def ask(site: Site, **fields: Any) -> Any:
    body = {"model": site.model.slug, "input": ["one", "two"], **fields}
    return site.post(body, path=ROUTE)


@pytest.mark.parametrize("wanted", [None, "float", "base64"])
@pytest.mark.parametrize(
    "data",
    [
        [item(ONE, 0), item(TWO, 1)],
        [item(TWO, 1), item(ONE, 0)],
        [item(ONE), item(TWO)],
        [item(packed(ONE), 0), item(packed(TWO), 1)],
        [item(packed(TWO), 1, encoding_format="base64"), item(ONE, 0)],
        [item([1, 0, -4], 1), item(ONE, 0)],
        [{"embedding": ONE, "index": 0}, {"embedding": TWO, "index": 1}],
        [item(ONE, 0), item(TWO, 1, object=None)],
        [item(packed(ONE), 0, object="vector"), item(packed(TWO), 1)],
    ],
)
def test_vectors_have_the_order_and_the_form_that_were_asked_for(
    site: Site, answer: Answer, data: list[Any], wanted: str | None
) -> None:
    answer(data)
    found = ask(site, **({} if wanted is None else {"encoding_format": wanted}))
    assert found.status_code == 200
    items = found.json()["data"]
    assert [(each["object"], each["index"]) for each in items] == [
        ("embedding", 0),
        ("embedding", 1),
    ]
    is_packed = wanted == "base64"
    assert [each["embedding"] for each in items] == (
        [packed(ONE), packed(TWO)] if is_packed else [ONE, TWO]
    )
    assert site.settled().cost_nano == 4_000_000
    assert_in_order()


BROKEN = [
    pytest.param([item(ONE, 0)], id="one is missing"),
    pytest.param([item(ONE)], id="one without an index is missing"),
    pytest.param([item(ONE, 0), item(TWO, 1), item(TWO, 2)], id="one too many"),
    pytest.param([item(ONE), item(TWO), item(TWO)], id="one without an index too many"),
    pytest.param([item(ONE, 0), item(TWO, 0)], id="one index twice"),
    pytest.param([item(ONE, 1), item(TWO, 2)], id="an index beyond"),
    pytest.param([item(ONE, 0), item(TWO)], id="an index is missing"),
    pytest.param([item(ONE, 0), item([1.0], 1)], id="two lengths"),
    pytest.param([item([], 0), item([], 1)], id="empty"),
    pytest.param([item("", 0), item("", 1)], id="empty in Base64"),
    pytest.param([item(ONE, 0), item([1.0, None, 2.0], 1)], id="null"),
    pytest.param([item(ONE, 0), item([[1.0], [2.0], [3.0]], 1)], id="nested"),
    pytest.param([item(ONE, 0), item(["1", "2", "3"], 1)], id="texts"),
    pytest.param([item(ONE, 0), item("no base64!", 1)], id="no Base64"),
    pytest.param([item(ONE, 0), item("AAAA", 1)], id="three bytes"),
    pytest.param([item(ONE, 0), item(packed([1.0, float("nan"), 0.0]), 1)], id="NaN"),
    pytest.param([item(ONE, 0), item(packed([1.0, float("inf"), 0.0]), 1)], id="infinity"),
    pytest.param(b'{"data":[{"embedding":[NaN,1,1],"index":0},{"embedding":[1,1,1],"index":1}],'
                 b'"usage":{"prompt_tokens":4}}', id="NaN in JSON"),
    pytest.param(b'{"data":[{"embedding":[1e999,1,1],"index":0},{"embedding":[1,1,1],"index":1}],'
                 b'"usage":{"prompt_tokens":4}}', id="too large"),
]  # fmt: skip


@pytest.mark.parametrize("data", BROKEN)
def test_wrong_vectors_are_free_and_the_next_candidate_answers(
    site: Site, answer: Answer, data: list[Any]
) -> None:
    answer(data)
    found = ask(site)
    assert found.status_code == 502
    assert found.json()["error"]["metadata"]["error_type"] == "provider_unavailable"
    row = site.settled()
    assert (row.status, row.cost_nano) == ("failed", 0)
    site.publish(provider=site.another_provider("other"))
    found = ask(site, provider={"order": ["acme", "other"]})
    assert found.status_code == 200
    site.eventually(lambda: Generation.objects.filter(status="completed").exists())
    row = Generation.objects.get(status="completed")
    assert [one["status"] for one in row.attempts] == [502, 200]
    assert_in_order()


def test_a_number_beyond_32_bits_is_not_packed(site: Site, answer: Answer) -> None:
    answer([item([1e300, 0.0, 0.0], 0), item(TWO, 1)])
    assert ask(site).status_code == 200
    assert ask(site, encoding_format="base64").status_code == 502


@pytest.mark.parametrize(("dimensions", "status"), [(3, 200), (2, 502), (4, 502)])
def test_dimensions_without_an_effect_are_refused(
    site: Site, answer: Answer, dimensions: int, status: int
) -> None:
    answer([item(ONE, 0), item(TWO, 1)])
    found = ask(site, dimensions=dimensions)
    assert found.status_code == status
    if status != 200:
        assert found.json()["error"]["message"] == (
            "The upstream provider's answer cannot be used: Its vectors have 3 dimensions; "
            f"{dimensions} were asked for."
        )
    assert (site.settled().cost_nano == 0) == (status != 200)


@pytest.mark.parametrize(
    ("asked", "vectors"),
    [
        ({"output_dtype": "ubinary", "dimensions": 16}, [[7, 255], [0, 1]]),
        ({"output_dtype": "int8", "encoding_format": "base64"}, ["/wA=", "gH8="]),
        ({"output_dtype": "int8", "encoding_format": "base64"}, ["AACAfw==", "AADA/w=="]),
        ({"embedding_type": "binary", "dimensions": 16}, [[-128, 127], [0, 1]]),
    ],
)
def test_quantized_vectors_pass_in_the_order_of_the_inputs(
    site: Site, answer: Answer, asked: dict[str, Any], vectors: list[Any]
) -> None:
    answer([item(vectors[1], 1), item(vectors[0], 0)])
    found = ask(site, **asked)
    assert found.status_code == 200
    assert found.json()["data"] == [item(vectors[0], 0), item(vectors[1], 1)]
    assert site.settled().cost_nano == 4_000_000


@pytest.mark.parametrize(
    "vectors",
    [[[], [1, 2]], [[], []], ["", ""], [[1, 2], [1]], ["/wA=", "gH8AAA=="], [[1, 2], [1, None]]],
)
def test_quantized_vectors_without_one_length_are_free(
    site: Site, answer: Answer, vectors: list[Any]
) -> None:
    answer([item(vector, place) for place, vector in enumerate(vectors)])
    assert ask(site, output_dtype="int8").status_code == 502
    row = site.settled()
    assert (row.status, row.cost_nano) == ("failed", 0)


@pytest.mark.parametrize(
    ("options", "vectors", "found"),
    [
        ({"output_dtype": "int8"}, ["/wA=", "gH8="], ["/wA=", "gH8="]),
        ({"output_dtype": "int8"}, ["AACAfw==", "AADA/w=="], ["AACAfw==", "AADA/w=="]),
        ({"encoding_format": "ubinary"}, [[7, 255], [0, 1]], [[7, 255], [0, 1]]),
        ({"encoding_format": "base64"}, [ONE, TWO], [packed(ONE), packed(TWO)]),
        ({"dimensions": 3}, [ONE, TWO], [ONE, TWO]),
        ({"dimensions": "three"}, [ONE, TWO], [ONE, TWO]),
    ],
)
def test_the_options_of_a_provider_ask_for_a_form_too(
    site: Site, answer: Answer, options: dict[str, Any], vectors: list[Any], found: list[Any]
) -> None:
    answer([item(vector, place) for place, vector in enumerate(vectors)])
    got = ask(site, provider={"options": {"acme": options}})
    assert [each["embedding"] for each in got.json()["data"]] == found
    assert site.settled().cost_nano == 4_000_000


def test_dimensions_of_a_providers_options_without_an_effect_are_refused(
    site: Site, answer: Answer
) -> None:
    answer([item(ONE, 0), item(TWO, 1)])
    assert ask(site, provider={"options": {"acme": {"dimensions": 2}}}).status_code == 502
    assert site.settled().cost_nano == 0


@pytest.mark.parametrize("asked", [{"output_dtype": "float"}, {"embedding_type": "base64"}])
def test_floats_that_are_named_are_checked(
    site: Site, answer: Answer, asked: dict[str, Any]
) -> None:
    answer([item(packed(ONE), 0), item(packed(TWO), 1)])
    assert [each["embedding"] for each in ask(site, **asked).json()["data"]] == [ONE, TWO]
    assert ask(site, **asked, dimensions=2).status_code == 502
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert [each.cost_nano for each in Generation.objects.order_by("created_at")] == [4_000_000, 0]


def test_an_input_in_tokens_is_one(site: Site, answer: Answer) -> None:
    answer([item(ONE, 0)])
    assert ask(site, input=[1, 2, 3]).status_code == 200
    assert ask(site, input="one").status_code == 200
    assert ask(site, input=[[1, 2], [3]]).status_code == 502


def test_the_sdk_gets_numbers_whatever_the_server_sends(site: Site, answer: Answer) -> None:
    """It asks for Base64 unasked; a server that ignores that sends numbers."""
    answer([item(ONE, 0), item(TWO, 1)])
    asked: Any = {"model": site.model.slug, "input": ["one", "two"]}
    with openai_client(site, base_url=f"{site.server}/v1") as client:
        for form in ({}, {"encoding_format": "float"}):
            found = client.embeddings.create(**asked, **form)
            assert [each.embedding for each in found.data] == [ONE, TWO]
