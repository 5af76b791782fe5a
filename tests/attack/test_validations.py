"""One tenant validates twenty endpoints at once against a silent upstream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import requests

from endpoints.models import PrivateEndpoint, Validation, ValidationSlot
from tests.support import factories
from tests.support.bulkheads.counters import read_counter
from tests.support.factories import Tenant
from tests.support.inference.site import Site

ROUTE = "/api/v1/private-endpoints"
METRIC = "causeway_validation_refusals_total"


def post(site: Site, tenant: Tenant, path: str, body: Any, **headers: str) -> requests.Response:
    return requests.post(
        f"{site.server}{path}",
        json=body,
        headers={"Authorization": f"Bearer {tenant.management_key}", **headers},
        timeout=90,
    )


def test_two_validations_run_and_eighteen_are_refused(
    service: Site, neighbour: Tenant, is_served: Callable[[], bool]
) -> None:
    site, tenant = service, service.tenant
    factories.make_credential(tenant, site.provider)
    factories.make_credential(neighbour, site.provider)
    place = {"base_url": site.upstream.base_url, "upstream_model_id": "sim-held"}
    drafts = [factories.make_draft(tenant, site.model, site.provider, **place) for _ in range(10)]
    workspace = {"workspace_id": str(tenant.workspace.pk)}
    create = {
        **place,
        "model_permaslug": site.model.canonical_slug,
        "provider_slug": site.provider.slug,
        "activate": workspace,
    }
    before = read_counter(site.server, METRIC, reason="slots")

    with ThreadPoolExecutor(20) as pool:
        calls = [
            pool.submit(post, site, tenant, f"{ROUTE}/{draft.pk}/validate", workspace)
            for draft in drafts
        ] + [
            pool.submit(post, site, tenant, ROUTE, create, **{"Idempotency-Key": f"key-{number}"})
            for number in range(10)
        ]
        answers = as_completed(calls)
        refused = [next(answers).result() for _ in range(18)]
        assert Counter(answer.status_code for answer in refused) == {429: 18}
        for answer in refused:
            assert 1 <= int(answer.headers["Retry-After"]) <= 60
            assert answer.json()["error"]["metadata"]["limit"] == 2
        assert site.upstream.wait_until(lambda: len(site.upstream.requests) == 2)

        # The neighbour validates and is served while both slots of the tenant are taken.
        own = factories.make_draft(
            neighbour, site.model, site.provider, base_url=site.upstream.base_url
        )
        body = {"workspace_id": str(neighbour.workspace.pk)}
        validated = post(site, neighbour, f"{ROUTE}/{own.pk}/validate", body)
        assert validated.json()["data"]["passed"] is True
        assert is_served()

        site.upstream.release(100)
        allowed = [answer.result() for answer in answers]
    assert {answer.status_code for answer in allowed} <= {200, 201}
    assert Validation.objects.exclude(endpoint=own).count() == 2
    created = sum(answer.status_code == 201 for answer in allowed)
    assert PrivateEndpoint.objects.for_organization(tenant.organization.pk).count() == 10 + created
    assert not ValidationSlot.objects.exists()
    assert read_counter(site.server, METRIC, reason="slots") == before + 18

    # The refusals consumed no idempotency key.
    [unused, *_] = {f"key-{number}" for number in range(10)} - set(
        PrivateEndpoint.objects.exclude(idempotency_key=None).values_list(
            "idempotency_key", flat=True
        )
    )
    again = post(site, tenant, ROUTE, create, **{"Idempotency-Key": unused})
    assert (again.status_code, again.json()["data"]["status"]) == (201, "active")
