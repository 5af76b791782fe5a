"""A request that an upstream accepts binds a credential that was never used."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from django.db import transaction

from accounts.models import ByokCredential
from config.credentials import Secret
from inference.admission.copies.organizations import record_first_use
from inference.routing.routes import FirstUse
from tests.support import factories
from tests.support.database.locks import waiting
from tests.support.inference.site import Site

UNUSED = "unused-credential-0123456789"


@pytest.fixture
def unused(site: Site) -> ByokCredential:
    """Returns a credential that validated nothing, for an endpoint outside of its provider."""
    site.own()
    ByokCredential.objects.get().remove()
    site.provider.base_url = "https://api.example.com/v1"
    site.provider.save_fields("base_url")
    return factories.make_credential(site.tenant, site.provider, UNUSED)


def authorizations(site: Site) -> list[str]:
    return [request.headers["authorization"] for request in site.dialled()]


def test_the_first_request_binds_the_credential(site: Site, unused: ByokCredential) -> None:
    assert site.chat().status_code == 200
    unused.refresh_from_db()
    assert unused.bound_domains == ["127.0.0.1"]
    assert site.chat().status_code == 200
    assert authorizations(site) == [f"Bearer {UNUSED}"] * 2


def test_a_bound_credential_is_excluded_elsewhere_with_its_reason(
    site: Site, unused: ByokCredential
) -> None:
    unused.record_use("llm.corp.example", own_hosts=frozenset())
    answer = site.chat()
    assert answer.status_code == 404
    [excluded] = answer.json()["error"]["metadata"]["excluded"]
    assert excluded["excluded_by"] == ["credential_host"]
    site.assert_nothing_happened()


@pytest.mark.parametrize("rule", ["named", "off"])
def test_the_setting_rules_requests_too(
    site: Site, unused: ByokCredential, settings: Any, rule: str
) -> None:
    ByokCredential.objects.update(bound_domains=["llm.corp.example"])
    settings.CREDENTIALS_REQUIRE_HOSTS = rule
    assert site.chat().status_code == {"named": 404, "off": 200}[rule]
    assert authorizations(site) == {"named": [], "off": [f"Bearer {UNUSED}"]}[rule]


def test_a_request_that_loses_the_race_for_the_first_use_is_the_last_one(
    site: Site, unused: ByokCredential
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            unused.lock_present()
            pending = pool.submit(site.chat)
            site.eventually(lambda: waiting() == 1)
            unused.record_use("llm.corp.example", own_hosts=frozenset())
        answer: requests.Response = pending.result()
    assert answer.status_code == 200
    assert authorizations(site) == [f"Bearer {UNUSED}"]
    unused.refresh_from_db()
    assert unused.bound_domains == ["llm.corp.example"]
    assert site.chat().status_code == 404


def test_a_secret_that_the_upstream_refuses_stays_unbound(
    site: Site, unused: ByokCredential
) -> None:
    """Requests may try a key before its owner has created the endpoint that it is for."""
    unused.rotate(Secret("bad-credential-0123456789"))
    assert site.chat().status_code == 502
    assert len(site.dialled()) == 1
    unused.refresh_from_db()
    assert unused.bound_domains is None


def test_the_first_use_of_a_deleted_credential_is_refused(
    site: Site, unused: ByokCredential
) -> None:
    use = FirstUse(unused.pk, "127.0.0.1", frozenset())
    unused.remove()
    assert record_first_use(use) == "The BYOK credential does not exist."
