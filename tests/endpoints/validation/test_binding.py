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
from config.changes.kinds import ChangeKind
from config.changes.models import ChangeRule
from config.egress.addresses import PinnedHost
from endpoints import rotation, validation, watch
from endpoints.models import PrivateEndpoint, PrivateProvider, Validation
from endpoints.validation import HostIsNew, HostNeedsTwo, HostScope
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.creating import ROUTE
from tests.support.endpoints.validating import failed, held, row_of, validate
from tests.support.factories import Tenant, change
from tests.support.operators.four_eyes import demand, demote, press, sign_in
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

    def make(
        host: str, behaviour: str = "sim-echo", *, path: str = "/v1", port: int = upstream.port
    ) -> PrivateEndpoint:
        base_url = f"https://{host}:{port}{path}"
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
        validate(draft, scope=HostScope.IN_USE)
    assert "No active endpoint sends the secret of acme" in caught.value.message
    assert f"to https://simulator.test:{upstream.port}/v1." in caught.value.message
    assert (upstream.connections, Validation.objects.count()) == (0, 0)

    # A use and names of the owner are not enough.
    assert validate(other).passed
    ByokCredential.objects.update(allowed_hosts=["simulator.test", "127.0.0.1"])
    upstream.clear()
    for refused in (draft, make_draft("127.0.0.1")):
        with pytest.raises(HostIsNew):
            validate(refused, scope=HostScope.IN_USE)
    assert upstream.connections == 0

    other.activate()
    with pytest.raises(HostIsNew):
        validate(make_draft("127.0.0.1"), scope=HostScope.IN_USE)
    assert validate(draft, scope=HostScope.IN_USE).passed

    # Another credential of the organization has no active endpoint there.
    ByokCredential.objects.update(disabled=True)
    factories.make_credential(tenant, provider, "second-credential-0123456789")
    with pytest.raises(HostIsNew):
        validate(draft, scope=HostScope.IN_USE)
    ByokCredential.objects.filter(pk=credential.pk).update(disabled=False)
    other.disable()
    with pytest.raises(HostIsNew):
        validate(draft, scope=HostScope.IN_USE)


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
        validate(draft, scope=HostScope.IN_USE)
    assert caught.value.message == (
        f"No active endpoint calls https://simulator.test:{upstream.port}/v1. The organization "
        "itself, or an operator who may change its credentials, must validate and activate one "
        "first. Nothing was sent."
    )
    assert (upstream.connections, Validation.objects.count()) == (0, 0)
    assert validate(other).passed
    other.activate()
    assert validate(draft, scope=HostScope.IN_USE).passed
    with pytest.raises(HostIsNew):
        validate(make_draft("127.0.0.1"), scope=HostScope.IN_USE)


@pytest.mark.parametrize("is_keyless", [False, True])
def test_a_host_in_use_is_new_at_another_path_or_port(
    provider: Provider,
    make_draft: Callable[..., PrivateEndpoint],
    upstream: Simulator,
    monkeypatch: pytest.MonkeyPatch,
    is_keyless: bool,
) -> None:
    """Tenants of a shared gateway differ by the path, and servers of one machine by the port."""
    change(provider, is_keyless=is_keyless)
    monkeypatch.setattr(upstream, "is_keyless", is_keyless)
    first = make_draft("simulator.test")
    assert validate(first).passed
    first.activate()
    upstream.clear()
    for other in (
        make_draft("simulator.test", path="/v1/MINE/compat"),
        make_draft("simulator.test", port=upstream.port + 1),
    ):
        with snapshots.unchanged(), pytest.raises(HostIsNew) as caught:
            validate(other, scope=HostScope.IN_USE)
        assert f" {other.base_url}. The organization itself" in caught.value.message
    assert upstream.connections == 0
    assert validate(make_draft("simulator.test"), scope=HostScope.IN_USE).passed


def test_an_operator_alone_validates_only_where_others_have_named_the_host(
    provider: Provider,
    credential: ByokCredential,
    make_draft: Callable[..., PrivateEndpoint],
    upstream: Simulator,
) -> None:
    draft = make_draft("simulator.test")

    def validate_alone(endpoint: PrivateEndpoint) -> bool:
        return validate(endpoint, scope=HostScope.NAMED).passed

    def assert_refused(endpoint: PrivateEndpoint) -> None:
        upstream.clear()
        with snapshots.unchanged(), pytest.raises(HostNeedsTwo) as caught:
            validate_alone(endpoint)
        assert caught.value.error_type == "second_person_needed"
        assert caught.value.message == (
            "Provider credentials: two people must name simulator.test before a validation calls "
            "it. Name it in the base URL of the provider, or in the allowed hosts of "
            f"{credential}; or let a key of the organization's own validate the endpoint. Nothing "
            "was sent."
        )
        assert upstream.connections == 0

    assert_refused(draft)
    # The owner, an earlier use or the provider names it.
    ByokCredential.objects.update(allowed_hosts=["simulator.test"])
    assert validate_alone(draft)
    ByokCredential.objects.update(allowed_hosts=None, bound_domains=["simulator.test"])
    assert validate_alone(draft)
    ByokCredential.objects.update(bound_domains=None)
    change(provider, base_url="https://simulator.test/v1")
    assert validate_alone(make_draft("simulator.test"))
    change(provider, base_url=None)
    # An active endpoint uses it.
    ByokCredential.objects.update(bound_domains=None)
    assert validate(draft).passed
    draft.activate()
    ByokCredential.objects.update(bound_domains=None)
    # Two people have named the host, and not its paths.
    tried = validate(make_draft("simulator.test", path="/v1/other"), scope=HostScope.NAMED)
    assert (tried.outcome, tried.host) == ("failed", "simulator.test")
    ByokCredential.objects.update(bound_domains=None)
    other = make_draft("simulator.test")
    assert validate_alone(other)
    draft.disable()
    ByokCredential.objects.update(bound_domains=None)
    assert_refused(other)


def test_an_operator_alone_sends_calls_without_a_key_where_the_provider_points(
    tenant: Tenant, model: LanguageModel, upstream: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "is_keyless", True)
    base_url = f"https://simulator.test:{upstream.port}/v1"
    rack: Any = PrivateProvider.objects.create_provider(
        organization_id=tenant.organization.pk, name="Rack", base_url=base_url, is_keyless=True
    )
    own = factories.make_draft(tenant, model, rack, base_url=base_url)
    with snapshots.unchanged(), pytest.raises(HostNeedsTwo) as caught:
        validate(own, scope=HostScope.NAMED)
    assert "Name it in the base URL of the provider; or let a key" in caught.value.message
    assert upstream.connections == 0
    inherited = factories.make_draft(tenant, model, rack, base_url=None)
    assert validate(inherited, scope=HostScope.NAMED).passed


@pytest.mark.parametrize("caller", ["key", "operator"])
def test_who_is_alone_names_no_host_where_credentials_need_two_people(
    tenant: Tenant,
    credential: ByokCredential,
    management: APIClient,
    make_draft: Callable[..., PrivateEndpoint],
    upstream: Simulator,
    caller: str,
) -> None:
    draft, workspace = make_draft("simulator.test"), str(tenant.workspace.pk)
    ann = sign_in("ann")

    def ask() -> str:
        if caller == "operator":
            return str(press(ann, draft, "validate", workspace=workspace).content.decode())
        body = {"workspace_id": workspace}
        return str(management.post(f"{ROUTE}/{draft.pk}/validate", body).content.decode())

    ApiKey.objects.filter(name="management").update(issued_by_operator=True)
    demand(ChangeKind.CREDENTIALS)
    assert "two people must name simulator.test" in ask()
    assert (upstream.connections, Validation.objects.count()) == (0, 0)
    ApiKey.objects.filter(name="management").update(issued_by_operator=False)
    if caller == "operator":
        ChangeRule.objects.update(is_required=False)
    assert "two people" not in ask()
    assert Validation.objects.get().outcome == "passed"


@pytest.mark.parametrize("caller", ["key", "operator", "demoted operator"])
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
        match caller:
            case "key":
                ApiKey.objects.get(name="management").revoke()
            case "operator":
                User.objects.filter(username="ann").update(is_active=False)
            case _:
                # Support validates, but binds no credential to a host.
                demote("ann")
    if caller == "key":
        assert pending.result().status_code == 401
    assert upstream.total_requests == 2
    assert (row_of(draft), Validation.objects.count()) == (before, 0)
    assert ByokCredential.objects.get().bound_domains is None
