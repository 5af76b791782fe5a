"""The first passed validation binds a credential to the domain of its host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from accounts.models import ApiKey, ByokCredential
from catalog.models import LanguageModel, Provider
from config.apps import Role
from config.egress.addresses import PinnedHost
from endpoints import rotation, validation, watch
from endpoints.models import PrivateEndpoint, Validation
from endpoints.validation import HostIsNew
from tests.support import factories
from tests.support.endpoints.creating import ROUTE
from tests.support.endpoints.validating import failed, held, row_of, validate
from tests.support.factories import Tenant, change
from tests.support.operators.four_eyes import press, sign_in
from tests.support.simulator.server import Simulator

pytestmark = pytest.mark.django_db

ELSEWHERE = failed(
    "base_url",
    "invalid_base_url",
    "The credential is bound by its first use to simulator.test; 127.0.0.1 is elsewhere. To allow "
    "it, send the secret as `key` together with `allowed_hosts`: PATCH /byok/{id}.",
)


@pytest.fixture(autouse=True)
def _pinned_name(settings: Any) -> None:
    """Resolves the certificate's second name to the simulator, as ``UPSTREAM_HOSTS`` does."""
    hosts = {"simulator.test": PinnedHost("127.0.0.1")}
    settings.EGRESS_POLICY = replace(settings.EGRESS_POLICY, hosts=hosts)


@pytest.fixture
def make_draft(
    make_draft: Callable[..., PrivateEndpoint], model: LanguageModel, upstream: Simulator
) -> Callable[..., PrivateEndpoint]:
    """Makes a draft at a name of the simulator."""

    def make(host: str, behaviour: str = "sim-echo") -> PrivateEndpoint:
        base_url = f"https://{host}:{upstream.port}/v1"
        return make_draft(model, base_url=base_url, upstream_model_id=behaviour)

    return make


def test_a_passed_validation_binds_the_credential(
    credential: ByokCredential, make_draft: Callable[..., PrivateEndpoint], upstream: Simulator
) -> None:
    first = validate(make_draft("simulator.test"))
    assert (first.outcome, first.host) == ("passed", "simulator.test")
    credential.refresh_from_db()
    assert credential.bound_domains == ["simulator.test"]
    upstream.clear()
    second = validate(make_draft("127.0.0.1"))
    assert (second.outcome, second.checks[-1], second.host) == ("failed", ELSEWHERE, "")
    assert upstream.connections == 0
    assert validate(make_draft("simulator.test")).passed


def test_a_failed_validation_binds_nothing(
    credential: ByokCredential, make_draft: Callable[..., PrivateEndpoint]
) -> None:
    result = validate(make_draft("127.0.0.1", "sim-500"))
    assert (result.outcome, result.host) == ("failed", "127.0.0.1")
    credential.refresh_from_db()
    assert credential.bound_domains is None
    assert validate(make_draft("simulator.test")).passed


def test_of_two_concurrent_first_validations_one_binds_and_the_other_fails(
    credential: ByokCredential, make_draft: Callable[..., PrivateEndpoint]
) -> None:
    drafts = [make_draft("simulator.test"), make_draft("127.0.0.1")]
    workspace = drafts[0].organization.workspaces.get()
    found = [validation.examine(draft, workspace_id=workspace.pk) for draft in drafts]
    assert [each.outcome for each in found] == ["passed", "passed"]
    for draft, each in zip(drafts, found, strict=True):
        draft.record_validation(each)
    stored = [Validation.objects.get(pk=each.pk) for each in found]
    assert [each.outcome for each in stored] == ["passed", "failed"]
    assert [check for check in stored[1].checks if not check["passed"]] == [ELSEWHERE]
    assert drafts[1].validation == stored[1]
    credential.refresh_from_db()
    assert credential.bound_domains == ["simulator.test"]


def test_a_second_credential_validates_at_a_second_domain(
    tenant: Tenant,
    provider: Provider,
    credential: ByokCredential,
    make_draft: Callable[..., PrivateEndpoint],
) -> None:
    validate(make_draft("simulator.test"))
    second = factories.make_credential(tenant, provider, "second-credential-0123456789")
    result = validate(make_draft("127.0.0.1"))
    assert (result.outcome, result.credential) == ("passed", second)


def test_the_providers_own_host_is_always_allowed(
    provider: Provider, credential: ByokCredential, make_draft: Callable[..., PrivateEndpoint]
) -> None:
    validate(make_draft("simulator.test"))
    provider.base_url = "https://127.0.0.1/v1"
    provider.save_fields("base_url")
    assert validate(make_draft("127.0.0.1")).passed


@pytest.mark.parametrize(
    ("rule", "hosts", "outcome"),
    [
        ("named", None, "failed"),
        ("named", ["127.0.0.1"], "passed"),
        ("off", None, "passed"),
        ("off", ["simulator.test"], "failed"),
    ],
)
def test_the_setting_changes_the_rule(
    settings: Any,
    credential: ByokCredential,
    make_draft: Callable[..., PrivateEndpoint],
    rule: str,
    hosts: list[str] | None,
    outcome: str,
) -> None:
    validate(make_draft("simulator.test"))
    settings.CREDENTIALS_REQUIRE_HOSTS = rule
    ByokCredential.objects.update(allowed_hosts=hosts)
    assert validate(make_draft("127.0.0.1")).outcome == outcome


def test_the_watch_and_a_rotation_obey_the_binding(
    credential: ByokCredential, make_draft: Callable[..., PrivateEndpoint], upstream: Simulator
) -> None:
    endpoint = make_draft("127.0.0.1")
    validate(endpoint)
    endpoint.activate()
    ByokCredential.objects.update(bound_domains=["simulator.test"])
    upstream.clear()
    watched = watch.watch(endpoint)
    assert watched is not None
    assert watched.checks[-1] == ELSEWHERE
    with pytest.raises(rotation.RotationRefused):
        rotation.rotate(credential, credential.reveal(), revalidate=True)
    assert upstream.connections == 0


def test_an_operator_who_may_not_bind_validates_where_an_active_endpoint_points(
    tenant: Tenant,
    provider: Provider,
    credential: ByokCredential,
    make_draft: Callable[..., PrivateEndpoint],
    upstream: Simulator,
) -> None:
    draft, other = make_draft("simulator.test"), make_draft("simulator.test")
    with pytest.raises(HostIsNew) as caught:
        validate(draft, may_bind=False)
    assert "No active endpoint sends the secret of acme" in caught.value.message
    assert "to simulator.test." in caught.value.message
    assert (upstream.connections, Validation.objects.count()) == (0, 0)

    # A use and names of the owner are not enough.
    assert validate(other).passed
    ByokCredential.objects.update(allowed_hosts=["simulator.test", "127.0.0.1"])
    upstream.clear()
    for refused in (draft, make_draft("127.0.0.1")):
        with pytest.raises(HostIsNew):
            validate(refused, may_bind=False)
    assert upstream.connections == 0

    other.activate()
    with pytest.raises(HostIsNew):
        validate(make_draft("127.0.0.1"), may_bind=False)
    assert validate(draft, may_bind=False).passed

    # Another credential of the organization has no active endpoint there.
    ByokCredential.objects.update(disabled=True)
    factories.make_credential(tenant, provider, "second-credential-0123456789")
    with pytest.raises(HostIsNew):
        validate(draft, may_bind=False)
    ByokCredential.objects.filter(pk=credential.pk).update(disabled=False)
    other.disable()
    with pytest.raises(HostIsNew):
        validate(draft, may_bind=False)


def test_an_operator_who_may_not_bind_sends_no_calls_without_a_key_to_a_new_host(
    provider: Provider,
    make_draft: Callable[..., PrivateEndpoint],
    upstream: Simulator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that gets the prompts of a tenant is guarded as one that gets a secret."""
    change(provider, is_keyless=True)
    monkeypatch.setattr(upstream, "is_keyless", True)
    draft, other = make_draft("simulator.test"), make_draft("simulator.test")
    with pytest.raises(HostIsNew) as caught:
        validate(draft, may_bind=False)
    assert caught.value.message == (
        "No active endpoint calls simulator.test. The organization itself, or an operator who may "
        "change its credentials, must validate and activate one first. Nothing was sent."
    )
    assert (upstream.connections, Validation.objects.count()) == (0, 0)
    assert validate(other).passed
    other.activate()
    assert validate(draft, may_bind=False).passed
    with pytest.raises(HostIsNew):
        validate(make_draft("127.0.0.1"), may_bind=False)


@pytest.mark.parametrize("caller", ["key", "operator"])
def test_a_validation_whose_caller_may_not_ask_any_more_stores_and_binds_nothing(
    transactional_db: None,
    tenant: Tenant,
    management: APIClient,
    make_draft: Callable[..., PrivateEndpoint],
    upstream: Simulator,
    caller: str,
) -> None:
    draft = make_draft("simulator.test", "sim-held")
    before, workspace = row_of(draft), str(tenant.workspace.pk)
    if caller == "key":
        body = {"workspace_id": workspace}
        ask = partial(management.post, f"{ROUTE}/{draft.pk}/validate", body)
    else:
        client = sign_in("ann", Role.ADMINISTRATOR)
        ask = partial(press, client, draft, "validate", workspace=workspace)
    with held(upstream, ask) as pending:
        ApiKey.objects.get(name="management").revoke()
        User.objects.filter(username="ann").update(is_active=False)
    if caller == "key":
        assert pending.result().status_code == 401
    assert upstream.total_requests == 2
    assert (row_of(draft), Validation.objects.count()) == (before, 0)
    assert ByokCredential.objects.get().bound_domains is None
