"""A thief points endpoints at a listener and waits for a stored secret that never comes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from django.contrib.auth.models import Group, User

from accounts.models import ByokCredential
from config.apps import Role
from config.console.sign_in.roles import update_roles
from config.local.certificates import ensure_certificates
from endpoints.models import PrivateEndpoint, Validation
from tests.support.attack import Browser
from tests.support.bulkheads.counters import read_counter
from tests.support.console import SUBMIT, page
from tests.support.database import snapshots
from tests.support.inference.site import Site
from tests.support.processes import serve
from tests.support.simulator.server import Simulator

SECRET = "canary-credential-0123456789"
DECOY = "decoy-credential-0123456789"
OWNED, SIBLING, LISTENER = "llm.corp.example", "api.corp.example", "llm.listener.example"
BOUND = (
    "The credential is bound by its first use to llm.corp.example; llm.listener.example is "
    "elsewhere. To allow it, send the secret as `key` together with `allowed_hosts`: "
    "PATCH /byok/{id}."
)


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, Simulator]]:
    """The tenant's own deployment and the thief's listener, each at names of its own."""
    certificates = ensure_certificates(
        Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls", names=(OWNED, SIBLING, LISTENER)
    )
    with (
        Simulator(certificates).run_in_thread() as owned,
        Simulator(certificates).run_in_thread() as listener,
    ):
        yield {OWNED: owned, SIBLING: owned, LISTENER: listener}


@pytest.fixture(scope="module")
def _address(
    django_db_setup: None, django_db_blocker: Any, hosts: dict[str, Simulator]
) -> Iterator[str]:
    pinned = ",".join(f"{name}=127.0.0.1:{host.port}" for name, host in hosts.items())
    with django_db_blocker.unblock(), serve("--workers", "2", UPSTREAM_HOSTS=pinned) as served:
        yield served.address


@dataclass
class Thief:
    """Whoever holds the tenant's management key."""

    site: Site
    listener: Simulator

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        return requests.request(
            method,
            f"{self.site.server}/api/v1/{path}",
            json=body,
            headers={"Authorization": f"Bearer {self.site.tenant.management_key}", **headers},
            timeout=60,
        )

    def store(self, key: str = SECRET, **fields: Any) -> str:
        stored = self.call("POST", "byok", {"provider": "acme", "key": key, **fields})
        assert stored.status_code == 201, stored.text
        return str(stored.json()["data"]["id"])

    def create(self, host: str, *, activate: bool = True, **headers: str) -> Any:
        body = {
            "model_permaslug": self.site.model.canonical_slug,
            "provider_slug": "acme",
            "upstream_model_id": "sim-echo",
            "base_url": f"https://{host}/v1",
        }
        if activate:
            body["activate"] = self.workspace
        return self.call("POST", "private-endpoints", body, **headers)

    def validate(self, endpoint_id: str) -> Any:
        return self.call("POST", f"private-endpoints/{endpoint_id}/validate", self.workspace)

    @property
    def workspace(self) -> dict[str, Any]:
        return {"workspace_id": str(self.site.tenant.workspace.pk)}

    def assert_nothing_heard(self) -> None:
        assert (self.listener.connections, self.listener.requests) == (0, [])


@pytest.fixture
def thief(site: Site, _address: str, hosts: dict[str, Simulator]) -> Thief:
    for host in hosts.values():
        host.clear()
    site.server = _address
    site.publish()
    return Thief(site, hosts[LISTENER])


def bound(thief: Thief) -> str:
    """Stores the secret, uses it by the published flow, and returns the credential's id."""
    credential_id = thief.store()
    created = thief.create(OWNED)
    assert (created.status_code, created.json()["data"]["status"]) == (201, "active"), created.text
    return credential_id


def test_a_used_secret_stays_where_it_was_used(
    thief: Thief, hosts: dict[str, Simulator], is_served: Callable[[], bool]
) -> None:
    bound(thief)
    assert {each.headers["authorization"] for each in hosts[OWNED].requests} == {f"Bearer {SECRET}"}
    # A neighbour on shared hosting has a sibling of the host.
    assert thief.create(SIBLING).status_code == 422
    refused = {"passed": False, "reason": "invalid_base_url", "upstream_message": BOUND}
    labels = {"reason": "credential_host"}
    metric = "causeway_validation_refusals_total"
    before = read_counter(thief.site.server, metric, **labels)

    created = thief.create(LISTENER)
    assert created.status_code == 422
    assert created.json()["data"]["endpoint"]["status"] == "draft"
    draft_id = created.json()["data"]["endpoint"]["id"]
    validated = thief.validate(draft_id)
    assert validated.json()["data"]["checks"][-1] == {"name": "base_url", **refused}
    moved = thief.create(OWNED, activate=False).json()["data"]["id"]
    assert thief.validate(moved).json()["data"]["passed"] is True
    body = {"upstream_model_id": "sim-echo", "base_url": f"https://{LISTENER}/v1"}
    assert thief.call("PATCH", f"private-endpoints/{moved}", body).status_code == 200
    assert thief.call("POST", f"private-endpoints/{moved}/activate").status_code == 409
    assert thief.validate(moved).json()["data"]["checks"][-1] == {"name": "base_url", **refused}

    thief.assert_nothing_heard()
    assert read_counter(thief.site.server, metric, **labels) == before + 3
    assert is_served()


@pytest.mark.parametrize("hosts_before", [None, [OWNED]])
def test_more_hosts_need_the_secret(thief: Thief, hosts_before: list[str] | None) -> None:
    credential_id = thief.store(allowed_hosts=hosts_before)
    assert thief.create(OWNED).status_code == 201
    draft_id = thief.create(LISTENER).json()["data"]["endpoint"]["id"]
    before = snapshots.everything()
    for widened in ([LISTENER], [OWNED, LISTENER], *([None] if hosts_before else [])):
        refused = thief.call("PATCH", f"byok/{credential_id}", {"allowed_hosts": widened})
        error = refused.json()["error"]
        assert (refused.status_code, error["metadata"]["error_type"]) == (422, "secret_required")
        assert list(error["metadata"]["fields"]) == ["allowed_hosts"]
    assert snapshots.everything() == before
    thief.assert_nothing_heard()

    widened = {"allowed_hosts": [OWNED, LISTENER], "key": SECRET}
    assert thief.call("PATCH", f"byok/{credential_id}", widened).status_code == 200
    assert thief.validate(draft_id).json()["data"]["passed"] is True


def test_requests_take_no_used_secret_to_an_endpoint_of_a_decoy(
    thief: Thief, is_served: Callable[[], bool]
) -> None:
    """The thief validates the listener with a key of its own and then lets requests go there."""
    # The provider's own host is public, also where the thief's credential pays.
    thief.site.allow_fallback()
    used = bound(thief)
    endpoint = PrivateEndpoint.objects.get()
    thief.call("POST", f"private-endpoints/{endpoint.pk}/disable")
    decoy = thief.store(DECOY)
    assert thief.create(LISTENER).status_code == 201
    assert thief.call("DELETE", f"byok/{decoy}").status_code == 200
    # A rotation opens nothing: the new secret is bound as the old one was.
    for change in ({}, {"key": f"{SECRET}-new"}):
        assert thief.call("PATCH", f"byok/{used}", change).status_code == 200
        answer = thief.site.chat()
        assert (answer.status_code, answer.json()["usage"]["is_byok"]) == (200, True)
    assert len(thief.site.dialled()) == 2
    explained = thief.site.post(thief.site.chat_body(), path="/api/v1/routing/explain").json()
    assert [each["excluded_by"] for each in explained["data"]["excluded"]] == [["credential_host"]]
    heard = {request.headers["authorization"] for request in thief.listener.requests}
    assert heard == {f"Bearer {DECOY}"}
    assert is_served()


def test_a_secret_that_served_requests_is_used(thief: Thief) -> None:
    """Requests at the provider's own host bind the secret too, although nothing was validated."""
    thief.store()
    answer = thief.site.chat()
    assert (answer.status_code, answer.json()["usage"]["is_byok"]) == (200, True), answer.text
    assert ByokCredential.objects.get().bound_domains == ["127.0.0.1"]
    assert thief.create(LISTENER).status_code == 422
    thief.assert_nothing_heard()


def test_support_points_no_secret_at_a_new_host(
    thief: Thief, is_served: Callable[[], bool]
) -> None:
    """The operator may read every tenant's page, and presses Validate on it."""
    update_roles()
    user = User.objects.create_user("support", is_staff=True)
    user.groups.add(Group.objects.get(name=Role.SUPPORT))
    support = Browser(thief.site.server, user)
    workspace = str(thief.site.tenant.workspace.pk)
    thief.store()
    draft = PrivateEndpoint.objects.get(
        pk=thief.create(LISTENER, activate=False).json()["data"]["id"]
    )
    shown = support.post(page(draft, "validate"), **SUBMIT, workspace=workspace)
    assert f"to https://{LISTENER}/v1. The organization itself, or an operator who" in shown
    assert not Validation.objects.exists()
    thief.assert_nothing_heard()

    assert thief.create(OWNED).status_code == 201
    shown = support.post(page(draft, "validate"), **SUBMIT, workspace=workspace)
    assert "The credential is bound by its first use to" in shown
    own = PrivateEndpoint.objects.get(pk=thief.create(OWNED, activate=False).json()["data"]["id"])
    moved = {**SUBMIT, "upstream_model_id": "sim-echo", "base_url": f"https://{LISTENER}/v1"}
    shown = support.post(page(own, "edit"), **moved, declared_region="", declared_zdr="")
    assert "Only operators who may change credentials may change the base URL" in shown
    own.refresh_from_db()
    assert own.base_url == f"https://{OWNED}/v1"
    shown = support.post(page(own, "validate"), **SUBMIT, workspace=workspace)
    assert "The validation passed." in shown
    thief.assert_nothing_heard()
    assert is_served()


def test_of_concurrent_first_uses_one_host_receives_the_secret_from_then_on(
    thief: Thief, together: Callable[..., list[Any]]
) -> None:
    thief.store()
    drafts = [thief.create(host, activate=False).json()["data"]["id"] for host in (OWNED, LISTENER)]
    results = together(*[lambda each=each: thief.validate(each).json()["data"] for each in drafts])
    assert sorted(result["passed"] for result in results) == [False, True]
    [host] = ByokCredential.objects.get().bound_domains or ()
    assert host == (OWNED if results[0]["passed"] else LISTENER)
    assert [thief.validate(each).json()["data"]["passed"] for each in drafts] == [
        result["passed"] for result in results
    ]
