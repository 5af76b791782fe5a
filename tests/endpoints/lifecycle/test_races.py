"""Races between real threads and real requests, with exact results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import requests
from django.db import connections, transaction

from config.api.errors import InvalidTransition
from endpoints.models import PrivateEndpoint, Validation
from endusers.models import EndUser
from tests.support import factories
from tests.support.database.locks import waiting
from tests.support.endpoints.creating import KEY, body_of
from tests.support.endpoints.validating import held, validate
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator
from tests.support.suite.tiers import count_examples


def draft_body() -> dict[str, Any]:
    return body_of(factories.make_model(), factories.make_provider())


def poster(
    server: str, route: str, tenant: Tenant, body: dict[str, Any], **headers: str
) -> Callable[[], tuple[int, Any]]:
    """Returns a call that posts the body and returns the status and the answer."""

    def post() -> tuple[int, Any]:
        response = requests.post(
            f"{server}/api/v1/{route}",
            json=body,
            headers={"Authorization": f"Bearer {tenant.management_key}", **headers},
            timeout=30,
        )
        return response.status_code, response.json()

    return post


def test_one_idempotency_key_makes_one_endpoint(
    server: str, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    post = poster(server, "private-endpoints", tenant, draft_body(), **KEY)
    answers = together(*[post] * 50)
    stored = PrivateEndpoint.objects.get()
    assert Counter(status for status, _ in answers) == {201: 50}
    assert {body["data"]["id"] for _, body in answers} == {str(stored.pk)}


def test_two_bodies_under_one_idempotency_key_make_one_endpoint(
    server: str, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    body = draft_body()
    bodies = [body, body | {"upstream_model_id": "sim-other"}]
    calls = [poster(server, "private-endpoints", tenant, one, **KEY) for one in bodies * 12]
    answers = together(*calls)
    stored = PrivateEndpoint.objects.get()
    assert Counter(status for status, _ in answers) == {201: 12, 422: 12}
    winner = [one["upstream_model_id"] for one in bodies].index(stored.upstream_model_id)
    assert {status for status, _ in answers[winner::2]} == {201}
    assert {body["data"]["id"] for status, body in answers if status == 201} == {str(stored.pk)}


def test_the_limit_holds_under_concurrent_creates(
    server: str, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant(endpoint_limit=10)
    answers = together(*[poster(server, "private-endpoints", tenant, draft_body())] * 64)
    assert Counter(status for status, _ in answers) == {201: 10, 422: 54}
    assert PrivateEndpoint.objects.count() == 10
    assert {
        body["error"]["metadata"]["error_type"] for status, body in answers if status == 422
    } == {"endpoint_limit_reached"}


def test_one_end_user_is_registered_once(server: str, together: Callable[..., list[Any]]) -> None:
    tenant = factories.make_tenant()
    answers = together(*[poster(server, "end-users", tenant, {"user": "customer-1"})] * 50)
    assert Counter(status for status, _ in answers) == {201: 1, 409: 49}
    assert EndUser.objects.get().user == "customer-1"


def test_activate_that_races_an_edit_never_activates_the_edited_content(
    transactional_db: None, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant(endpoint_limit=200)
    provider, model = factories.make_provider(), factories.make_model()
    credential = factories.make_credential(tenant, provider)

    def attempt(transition: Callable[[], None]) -> Callable[[], bool]:
        def call() -> bool:
            try:
                transition()
            except InvalidTransition:
                return False
            return True

        return call

    for _ in range(count_examples(200)):
        made = factories.make_draft(tenant, model, provider)
        factories.make_validation(made, credential)
        activating = PrivateEndpoint.objects.get(pk=made.pk)
        editing = PrivateEndpoint.objects.get(pk=made.pk)
        activated, edited = together(
            attempt(activating.activate),
            attempt(partial(editing.edit, upstream_model_id="sim-other")),
        )
        stored = PrivateEndpoint.objects.get(pk=made.pk)
        assert activated != edited
        if activated:
            assert (stored.status, stored.upstream_model_id) == ("active", "sim-echo")
            assert stored.validation is not None
            assert stored.validation.configuration == stored.configuration
        else:
            assert (stored.status, stored.upstream_model_id) == ("draft", "sim-other")
            assert stored.validation is None


def test_a_validation_does_not_cover_an_edit_made_during_it(
    transactional_db: None, simulator: Simulator
) -> None:
    tenant = factories.make_tenant()
    provider, model = factories.make_provider(), factories.make_model()
    factories.make_credential(tenant, provider)
    endpoint = factories.make_draft(
        tenant, model, provider, base_url=simulator.base_url, upstream_model_id="sim-held"
    )
    simulator.clear()
    with held(simulator, lambda: validate(PrivateEndpoint.objects.get()).passed) as pending:
        endpoint.edit(upstream_model_id="sim-other")
    assert pending.result() is True
    stored = PrivateEndpoint.objects.get()
    assert (stored.validation, stored.upstream_model_id) == (None, "sim-other")


@pytest.mark.parametrize("record", ["record_validation", "record_revalidation", "record_watch"])
def test_a_validation_is_recorded_with_the_credential_locked_before_the_endpoint(
    transactional_db: None, eventually: Callable[[Callable[[], bool]], None], record: str
) -> None:
    """A rotation locks them in this order too; in another one the two would end in a deadlock."""
    tenant = factories.make_tenant()
    provider, model = factories.make_provider(), factories.make_model()
    credential = factories.make_credential(tenant, provider)
    endpoint = factories.make_draft(tenant, model, provider)
    factories.make_validation(endpoint, credential)
    if record == "record_watch":
        endpoint.activate()
    found = Validation(
        endpoint=endpoint,
        workspace=tenant.workspace,
        credential=credential,
        credential_version=credential.version,
        host="llm.example.com",
        configuration=endpoint.configuration,
        outcome=Validation.Outcome.PASSED,
        checks=[],
    )

    def store() -> None:
        try:
            getattr(PrivateEndpoint.objects.get(), record)(found)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            credential.lock_present()
            pending = pool.submit(store)
            eventually(lambda: waiting() == 1)
            # The other thread waits for the credential, and holds no lock of the endpoint.
            assert PrivateEndpoint.objects.select_for_update(nowait=True).get() == endpoint
        pending.result(60)
    assert Validation.objects.filter(pk=found.pk, outcome="passed").exists()
    credential.refresh_from_db()
    assert credential.bound_domains == [endpoint.base_url.split("/")[2]]
