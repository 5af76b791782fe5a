"""``GET /private-endpoints/{id}/history``: what happened to an endpoint, when, and who did it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from accounts.models import ByokCredential
from catalog.models import LanguageModel
from config.clocks.clock import clock
from endpoints.models import PrivateEndpoint, Validation
from endpoints.watch import watch
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.creating import ROUTE
from tests.support.factories import Tenant


@pytest.fixture
def endpoint_id(management: APIClient, activating: dict[str, Any]) -> str:
    """Returns the id of an endpoint that a request has created and activated."""
    answer = management.post(ROUTE, activating | {"declared_zdr": True})
    assert answer.status_code == 201, answer.content
    created: str = answer.json()["data"]["id"]
    return created


def read(client: APIClient, endpoint_id: str, query: str = "") -> Any:
    answer = client.get(f"{ROUTE}/{endpoint_id}/history{query}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def changes_of(history: Any) -> list[Any]:
    return [entry["changes"] for entry in history["data"] if entry["kind"] == "changed"]


def test_the_history_says_what_happened_and_who_did_it(
    management: APIClient, tenant: Tenant, endpoint_id: str
) -> None:
    path = f"{ROUTE}/{endpoint_id}"
    pricing = {"prompt": "0.5", "completion": "0.25"}
    settings = {"context_length": 4096, "reasoning": {"supported": False}, "fallback": "none"}
    assert management.patch(path, {"settings": settings}).status_code == 200
    assert management.patch(path, {"pricing": pricing, "timeouts": {"total": 9}}).status_code == 200
    assert management.post(f"{path}/disable").status_code == 200
    history = read(management, endpoint_id)
    kinds = [entry["kind"] for entry in history["data"]]
    assert history["total_count"] == len(kinds)
    assert sorted(set(kinds)) == ["attested", "changed", "created", "validated"]
    [by] = {entry["by"] for entry in history["data"]}
    assert by == f"key {tenant.management_key[:9]}…{tenant.management_key[-3:]}"
    changed = {change["field"]: change for each in changes_of(history) for change in each}
    assert changed["settings.context_length"] == {
        "field": "settings.context_length", "was": 131072, "is": 4096, "difference": -126976,
    }  # fmt: skip
    assert changed["settings.reasoning.supported"]["is"] is False
    fallback = changed["settings.fallback"]
    assert (fallback["was"], fallback["is"]) == (None, "none")
    assert changed["pricing"]["is"]["prompt"] == "0.5"
    assert changed["timeouts.total"]["is"] == 9
    assert changes_of(history)[0] == [{"field": "status", "was": "active", "is": "disabled"}]
    [validated] = [entry for entry in history["data"] if entry["kind"] == "validated"]
    assert validated["validation"]["passed"] is True
    assert validated["changes"] == []
    [attested] = [entry for entry in history["data"] if entry["kind"] == "attested"]
    assert attested["attestation"] == {"declared_zdr": True, "declared_region": None}
    times = [entry["at"] for entry in history["data"]]
    assert times == sorted(times, reverse=True)


def test_drift_is_told_with_its_size_and_stays_after_recovery(
    management: APIClient, endpoint_id: str
) -> None:
    endpoint = PrivateEndpoint.objects.get(pk=endpoint_id)
    assert endpoint.validation is not None
    evidence = endpoint.validation.evidence
    tokens = evidence["prompt_tokens"]
    baseline = Validation.objects.filter(pk=endpoint.validation_id)
    baseline.update(evidence={**evidence, "prompt_tokens": tokens + 5})
    assert watch(PrivateEndpoint.objects.get(pk=endpoint_id)) is not None
    baseline.update(evidence=evidence)
    assert watch(PrivateEndpoint.objects.get(pk=endpoint_id)) is not None
    history = read(management, endpoint_id)
    watched = [entry for entry in history["data"] if entry["kind"] == "watched"]
    assert [(entry["drift"], entry["by"]) for entry in watched] == [
        (False, "drift watch"),
        (True, "drift watch"),
    ]
    assert watched[1]["changes"] == [
        {"field": "prompt_tokens", "was": tokens + 5, "is": tokens, "difference": -5}
    ]
    drifted = [
        (change["was"] is None, change["is"] is None)
        for each in changes_of(history)
        for change in each
        if change["field"] == "drifted_at"
    ]
    assert drifted == [(False, True), (True, False)]


def test_the_history_is_read_page_by_page(management: APIClient, endpoint_id: str) -> None:
    whole = read(management, endpoint_id)
    pages = [read(management, endpoint_id, f"?limit=1&offset={place}")["data"] for place in
             range(whole["total_count"] + 1)]  # fmt: skip
    assert pages == [[entry] for entry in whole["data"]] + [[]]
    for query, field in (("?limit=0", "limit"), ("?limit=101", "limit"), ("?offset=-1", "offset")):
        refused = management.get(f"{ROUTE}/{endpoint_id}/history{query}")
        assert refused.status_code == 400
        assert list(refused.json()["error"]["metadata"]["fields"]) == [field]


def test_a_page_costs_the_same_statements_however_long_it_is(
    management: APIClient, endpoint_id: str
) -> None:
    counts = []
    for times in (1, 5):
        for _ in range(times):
            management.patch(f"{ROUTE}/{endpoint_id}", {"settings": {"context_length": times}})
            management.patch(f"{ROUTE}/{endpoint_id}", {"settings": {"context_length": None}})
        with CaptureQueriesContext(connection) as queries:
            read(management, endpoint_id)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_strangers_inference_keys_and_deleted_endpoints_show_no_history(
    management: APIClient, inference: APIClient, endpoint_id: str
) -> None:
    stranger = factories.client(factories.make_tenant("Stranger").management_key)
    with snapshots.unchanged():
        path = f"{ROUTE}/{endpoint_id}/history"
        assert stranger.get(path).status_code == 404
        assert inference.get(path).status_code == 403
        assert management.get(f"{ROUTE}/x/history").status_code == 404
        assert management.post(path, {}).status_code == 405
    assert management.delete(f"{ROUTE}/{endpoint_id}").status_code == 200
    assert management.get(path).status_code == 404


def test_rows_of_earlier_releases_have_nobody(
    management: APIClient,
    make_draft: Callable[..., PrivateEndpoint],
    model: LanguageModel,
    credential: ByokCredential,
) -> None:
    endpoint = make_draft(model)
    validation = factories.make_validation(endpoint, credential)
    Validation.objects.filter(pk=validation.pk).update(created_at=clock.now() - timedelta(days=1))
    history = read(management, str(endpoint.pk))
    assert [(entry["kind"], entry["by"]) for entry in history["data"]] == [("validated", None)]
