"""Tests ``GET /models/user``: the models that the caller may use."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from datetime import date
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from catalog.lists.listing import CatalogueCache
from catalog.models import LanguageModel, ModelEndpoint
from tests.support import catalogue, factories
from tests.support.catalogue import USER_ROUTE as ROUTE
from tests.support.endpoints.creating import assert_refused
from tests.support.factories import Tenant

ids = partial(catalogue.ids, route=ROUTE)


def make_models(count: int) -> list[str]:
    """Creates ``count`` models with a public endpoint each; returns the slugs, newest first."""
    first = factories.make_endpoint(
        factories.make_model("acme/model-0000b", created=2_000_000_000), factories.make_provider()
    )
    models = [first.model]
    for number in range(1, count):
        model = copy(first.model)
        model.pk, model.slug = uuid4(), f"acme/model-{number:04}b"
        model.canonical_slug = f"{model.slug}-2026-01-01"
        model.created = 2_000_000_000 - number
        models.append(model)
    LanguageModel.objects.bulk_create(models[1:])
    ModelEndpoint.objects.bulk_create(
        ModelEndpoint(model=model, provider=first.provider, price=first.price)
        for model in models[1:]
    )
    return [model.slug for model in models]


def test_model_has_the_fields_of_the_interface(management: APIClient) -> None:
    model = factories.make_model(
        "acme/falcon",
        name="Acme: Falcon",
        created=1_780_272_000,
        description="Fast.",
        context_length=131_072,
        input_modalities=["text", "image"],
        modality="text+image->text",
        tokenizer="GPT",
        instruct_type="chatml",
        supported_parameters=["temperature", "tools"],
    )
    factories.make_endpoint(
        model,
        factories.make_provider(),
        price=factories.make_price("0.0000005", "0.0000015", image="0.001", request="0.02"),
        context_length=65_536,
        max_completion_tokens=4096,
        is_moderated=True,
    )
    response = management.get(ROUTE)
    assert response.status_code == 200
    assert response.json() == {
        "data": [
            {
                "id": "acme/falcon",
                "canonical_slug": "acme/falcon-2026-01-01",
                "name": "Acme: Falcon",
                "created": 1_780_272_000,
                "description": "Fast.",
                "context_length": 131_072,
                "architecture": {
                    "input_modalities": ["text", "image"],
                    "output_modalities": ["text"],
                    "modality": "text+image->text",
                    "tokenizer": "GPT",
                    "instruct_type": "chatml",
                },
                "pricing": {
                    "prompt": "0.0000005",
                    "completion": "0.0000015",
                    "image": "0.001",
                    "request": "0.02",
                },
                "top_provider": {
                    "context_length": 65_536,
                    "is_moderated": True,
                    "max_completion_tokens": 4096,
                },
                "supported_parameters": ["temperature", "tools"],
                "links": {"details": "/api/v1/models/acme/falcon-2026-01-01/endpoints"},
                "default_parameters": None,
                "expiration_date": None,
                "knowledge_cutoff": None,
                "per_request_limits": None,
                "supported_voices": None,
            }
        ],
        "links": {"next": None},
        "total_count": 1,
    }


def test_nullable_fields_are_shown_when_they_are_set(management: APIClient) -> None:
    model = factories.make_model(
        default_parameters={"temperature": 0.7},
        per_request_limits={"prompt_tokens": 1000, "completion_tokens": 500},
        supported_voices=["alloy"],
        expiration_date=date(2027, 1, 31),
        knowledge_cutoff=date(2025, 6, 1),
    )
    factories.make_endpoint(
        model,
        factories.make_provider(),
        price=factories.make_price(
            cache_read="0.0000001", cache_write="0.000002", image_output="0.00003"
        ),
    )
    (row,) = management.get(ROUTE).json()["data"]
    assert row["default_parameters"] == {"temperature": 0.7}
    assert row["per_request_limits"] == {"prompt_tokens": 1000, "completion_tokens": 500}
    assert row["supported_voices"] == ["alloy"]
    assert (row["expiration_date"], row["knowledge_cutoff"]) == ("2027-01-31", "2025-06-01")
    assert row["pricing"]["input_cache_read"] == "0.0000001"
    assert row["pricing"]["input_cache_write"] == "0.000002"
    assert row["pricing"]["image_token"] == "0.00003"


def test_the_cheapest_endpoint_gives_the_price(management: APIClient) -> None:
    model = factories.make_model()
    for prompt in ("0.000003", "0.000001", "0.000002"):
        price = factories.make_price(prompt, "0")
        factories.make_endpoint(model, factories.make_provider(), price=price)
    (row,) = management.get(ROUTE).json()["data"]
    assert row["pricing"]["prompt"] == "0.000001"


def test_list_is_complete_without_paging_and_pages_have_500_models(management: APIClient) -> None:
    slugs = make_models(501)
    whole = management.get(ROUTE).json()
    assert [row["id"] for row in whole["data"]] == slugs
    assert (whole["links"], whole["total_count"]) == ({"next": None}, 501)
    page = management.get(f"{ROUTE}?offset=0").json()
    assert [row["id"] for row in page["data"]] == slugs[:500]
    assert page["links"]["next"] == f"http://testserver{ROUTE}?offset=500&limit=500"


@pytest.mark.parametrize(
    ("query", "first", "last", "following"),
    [
        ("limit=1", 0, 1, "limit=1&offset=1"),
        ("limit=6", 0, 6, "limit=6&offset=6"),
        ("limit=7", 0, 7, None),
        ("limit=8", 0, 7, None),
        ("limit=1000", 0, 7, None),
        ("offset=0", 0, 7, None),
        ("offset=1", 1, 7, None),
        ("offset=6&limit=1", 6, 7, None),
        ("offset=5&limit=1", 5, 6, "offset=6&limit=1"),
        ("offset=7", 7, 7, None),
        ("offset=999999999999999999&limit=1000", 7, 7, None),
        ("limit=2&output_modalities=all", 0, 2, "limit=2&output_modalities=all&offset=2"),
    ],
)
def test_page_has_the_requested_models_and_the_next_link(
    management: APIClient, query: str, first: int, last: int, following: str | None
) -> None:
    slugs = make_models(7)
    answer = management.get(f"{ROUTE}?{query}").json()
    assert [row["id"] for row in answer["data"]] == slugs[first:last]
    assert answer["total_count"] == 7
    assert answer["links"]["next"] == (
        None if following is None else f"http://testserver{ROUTE}?{following}"
    )


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *(
            (f"limit={value}", "limit")
            for value in (
                *("0", "1001", "-1", "1.5", "1e2", "", "x", "%201", "1%0a", "%D9%A3", "+1"),
                *("0x1", "1_0", "1" * 19, "true", "null"),
            )
        ),
        *(
            (f"offset={value}", "offset")
            for value in ("-1", "1.5", "x", "1%20", "%EF%BC%91", "1" * 19)
        ),
        *(
            (f"output_modalities={value}", "output_modalities")
            for value in ("", "x", "Text", "text,", ",text", "text, ,image", "text%00", "file")
        ),
    ],
)
def test_malformed_query_returns_400(management: APIClient, query: str, field: str) -> None:
    error = assert_refused(management.get(f"{ROUTE}?{query}"), 400, "invalid_request")
    assert set(error["metadata"]["fields"]) == {field}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["both", "text"]),
        ("?output_modalities=text", ["both", "text"]),
        ("?output_modalities=image", ["both", "image"]),
        ("?output_modalities=text,image", ["both", "image", "text"]),
        ("?output_modalities=%20text%20,%20image", ["both", "image", "text"]),
        ("?output_modalities=embeddings", ["embeddings"]),
        ("?output_modalities=audio,video,rerank,speech,transcription", []),
        ("?output_modalities=all", ["both", "embeddings", "image", "text"]),
        ("?output_modalities=video,all", ["both", "embeddings", "image", "text"]),
        ("?unknown=1", ["both", "text"]),
    ],
)
def test_output_modalities_selects_models(
    management: APIClient, query: str, expected: list[str]
) -> None:
    provider = factories.make_provider()
    for slug, modalities in {
        "text": ["text"],
        "image": ["image"],
        "both": ["text", "image"],
        "embeddings": ["embeddings"],
    }.items():
        model = factories.make_model(slug, output_modalities=modalities)
        factories.make_endpoint(model, provider)
    assert ids(management, query) == expected


def test_a_model_without_endpoints_is_not_listed(management: APIClient) -> None:
    factories.make_model()
    assert ids(management) == []


@pytest.mark.parametrize("gone", ["model", "provider", "endpoint"])
def test_unlisted_rows_are_not_shown(management: APIClient, gone: str) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    assert len(ids(management)) == 1
    row = {"model": endpoint.model, "provider": endpoint.provider, "endpoint": endpoint}[gone]
    factories.change(row, is_listed=False)
    assert ids(management) == []


def test_a_private_model_is_listed_only_to_its_own_organization(
    management: APIClient, private: Any
) -> None:
    (row,) = management.get(ROUTE).json()["data"]
    assert row["id"] == "acme/own"
    assert row["pricing"] == {"prompt": "0.5", "completion": "0.25", "image": "0", "request": "0"}
    assert row["top_provider"] == {
        "context_length": 8192,
        "is_moderated": False,
        "max_completion_tokens": None,
    }
    other = factories.client(factories.make_tenant("Other").management_key)
    assert ids(other) == []


def test_a_model_is_not_listed_while_its_private_endpoint_is_disabled_or_removed(
    management: APIClient, private: Any
) -> None:
    assert ids(management) == ["acme/own"]
    private.disable()
    assert ids(management) == []
    private.enable()
    assert ids(management) == ["acme/own"]
    private.remove()
    assert ids(management) == []


def test_a_model_with_only_a_draft_is_not_listed(management: APIClient, tenant: Tenant) -> None:
    factories.make_draft(tenant, factories.make_model(), factories.make_provider())
    assert ids(management) == []


def test_a_public_price_takes_precedence_over_a_private_price(
    management: APIClient, private: Any
) -> None:
    factories.make_endpoint(private.model, factories.make_provider())
    (row,) = management.get(ROUTE).json()["data"]
    assert row["pricing"]["prompt"] == "0.000001"


@pytest.mark.django_db(transaction=True)
def test_list_runs_a_constant_number_of_queries(management: APIClient) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert management.get(f"{ROUTE}?limit=100").status_code == 200
        return len(captured)

    # 6 queries read the key with its organization, its guardrails, the version, the own models, the
    # private endpoints and the aliases. After a change, 5 more read the version again, the
    # providers, the models, the endpoints and the operator's aliases.
    make_models(1)
    assert (queries(), queries()) == (11, 6)
    for _ in range(10):
        factories.make_endpoint(factories.make_model(), factories.make_provider())
    assert (queries(), queries()) == (11, 6)


def test_list_refuses_an_inference_key(inference: APIClient) -> None:
    response = inference.get(ROUTE)
    assert response.status_code == 403
    assert response.json()["error"]["metadata"] == {"error_type": "permission_denied"}


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_change_is_not_visible(management: APIClient) -> None:
    make_models(1)
    with pytest.raises(RuntimeError, match="undone"), transaction.atomic():
        factories.make_endpoint(factories.make_model("acme/undone"), factories.make_provider())
        # A read in the transaction sees its writes and does not cache them.
        assert ids(management) == ["acme/model-0000b", "acme/undone"]
        raise RuntimeError("undone")
    assert ids(management) == ["acme/model-0000b"]


@pytest.mark.django_db(transaction=True)
def test_concurrent_threads_load_a_change_once(together: Callable[..., list[Any]]) -> None:
    make_models(3)
    cache = CatalogueCache()
    copies = together(*[cache.load] * 4)
    assert [len(copy.models) for copy in copies] == [3, 3, 3, 3]
    assert {id(copy) for copy in copies} == {id(cache.load())}
