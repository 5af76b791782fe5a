"""The credentials of candidates and the order in which they are tried."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from accounts.models import ApiKey
from accounts.policy import Policy
from catalog.visibility import EndpointFacts
from config.credentials import Secret
from inference.admission.copies.organizations import load_organization
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.governance import make_member
from tests.support.inference.routes import (
    KEY,
    WORKSPACE,
    credential,
    excluded,
    planned,
    refused,
    route,
    used,
)
from tests.support.inference.site import Site


def test_an_own_credential_comes_before_the_operators_credential() -> None:
    assert used(planned([route("x")], credentials=[credential("x")])) == ["own-x", "operator-x"]


def test_a_fallback_credential_comes_after_the_operators_credential() -> None:
    credentials = [credential("x", "last", is_fallback=True), credential("x", "first")]
    found = planned([route("x")], credentials=credentials)
    assert used(found) == ["first-x", "operator-x", "last-x"]
    assert [candidate.is_byok for candidate in found.candidates] == [True, False, True]


def test_credentials_are_tried_in_their_order() -> None:
    credentials = [credential("x", "one"), credential("x", "two"), credential("y", "other")]
    found = planned(private=[route("x", private=True)], credentials=credentials)
    assert used(found) == ["one-x", "two-x"]


@pytest.mark.parametrize("flag", ["is_required", "is_byok_only"])
def test_a_required_credential_excludes_the_operators_credential(flag: str) -> None:
    found = planned([route("x"), route("y", "2")], credentials=[credential("x", **{flag: True})])
    assert used(found) == ["own-x", "operator-y"]


@pytest.mark.parametrize("flag", ["is_required", "is_byok_only"])
def test_a_required_credential_that_cannot_be_decrypted_excludes_the_operators(
    flag: str,
) -> None:
    credentials = [credential("x", secret=None, **{flag: True})]
    expected = [excluded("X", "byok_required")]
    assert refused(public=[route("x")], credentials=credentials) == expected


def test_a_credential_required_for_other_models_excludes_nothing() -> None:
    credentials = [credential("x", is_required=True, allowed_models=frozenset(("c/d",)))]
    assert used(planned([route("x")], credentials=credentials)) == ["operator-x"]


def test_a_byok_only_credential_excludes_the_operators_for_every_model() -> None:
    credentials = [credential("x", is_byok_only=True, allowed_models=frozenset(("c/d",)))]
    expected = [excluded("X", "byok_required")]
    assert refused(public=[route("x")], credentials=credentials) == expected


@pytest.mark.parametrize(
    ("fields", "is_used"),
    [
        ({"allowed_models": frozenset(("a/b",))}, True),
        ({"allowed_models": frozenset(("a/b-1",))}, True),
        ({"allowed_models": frozenset(("a",))}, False),
        ({"allowed_models": frozenset()}, False),
        ({"allowed_key_digests": frozenset((KEY,))}, True),
        ({"allowed_key_digests": frozenset(("another",))}, False),
        ({"allowed_key_digests": frozenset()}, False),
        ({"allowed_hosts": frozenset(("x.example",))}, True),
        ({"allowed_hosts": frozenset(("example",))}, False),
        ({"allowed_hosts": frozenset()}, False),
        ({"workspace_id": WORKSPACE}, True),
        ({"workspace_id": uuid.UUID(int=2)}, False),
        ({"secret": None}, False),
        ({"provider_slug": "y"}, False),
    ],
)
def test_a_credential_serves_only_its_allowed_models_keys_hosts_and_workspace(
    fields: dict[str, Any], is_used: bool
) -> None:
    case: dict[str, Any] = {
        "private": [route("x", private=True)],
        "credentials": [credential("x", **fields)],
    }
    if is_used:
        assert used(planned(**case)) == ["own-x"]
    else:
        reason = "credential_host" if "allowed_hosts" in fields else "no_credential"
        assert refused(**case) == [excluded("X", reason, private=True)]


def test_the_operators_credential_never_opens_a_private_endpoint() -> None:
    private = route("x", private=True, secret=Secret("operator-x"))
    assert refused(private=[private]) == [excluded("X", "no_credential", private=True)]


def test_a_public_endpoint_without_any_credential_is_explained() -> None:
    assert refused(public=[route("x", secret=None)]) == [excluded("X", "no_credential")]


def test_a_private_endpoint_of_another_organization_is_hidden(site: Site) -> None:
    site.own()
    stranger = factories.make_tenant("Stranger")
    factories.make_credential(stranger, site.provider)
    answer = site.post(site.chat_body(), key=stranger.api_key)
    assert answer.status_code == 404
    assert answer.json() == {
        "error": {
            "code": 404,
            "message": "No endpoints found for 'acme/falcon' that may serve this request.",
            "metadata": {"error_type": "no_endpoint", "excluded": []},
        }
    }
    site.assert_nothing_happened()


def test_a_refused_request_explains_the_exclusions(site: Site) -> None:
    site.publish()
    answer = site.chat(provider={"ignore": ["Acme AI"], "zdr": True})
    assert answer.status_code == 404
    assert answer.json()["error"]["metadata"] == {
        "error_type": "no_endpoint",
        "excluded": [
            {
                "provider": "Acme AI",
                "private": False,
                "model": "acme/falcon",
                "excluded_by": ["provider_ignored", "zdr"],
            }
        ],
    }
    site.assert_nothing_happened()


def test_a_credential_with_allowed_users_does_not_serve_keys_of_others(site: Site) -> None:
    factories.make_credential(site.tenant, site.provider, allowed_user_ids=["user-1"])
    site.publish()
    assert site.chat().json()["usage"]["is_byok"] is False
    assert site.settled().is_byok is False


def test_members_that_are_stored_in_capitals_may_use_a_credential(tenant: Tenant) -> None:
    member, provider = make_member(tenant.organization), factories.make_provider()
    for members in (None, [], [str(member.pk).upper(), "user-1"]):
        factories.make_credential(tenant, provider, allowed_user_ids=members)
    copies = load_organization(tenant.organization.pk).credentials
    may_use = [each.may_be_used_by(tenant.workspace.pk, KEY, member.pk) for each in copies]
    assert may_use == [True, False, True]


def test_a_credential_with_allowed_keys_serves_only_those(site: Site) -> None:
    key = ApiKey.objects.get(name="inference", organization=site.tenant.organization)
    _, other = ApiKey.objects.create_key(workspace=site.tenant.workspace, name="other")
    factories.make_credential(site.tenant, site.provider, allowed_api_key_hashes=[key.digest])
    site.publish()
    assert site.chat().json()["usage"]["is_byok"] is True
    answer = site.post(site.chat_body(), key=other.reveal())
    assert answer.json()["usage"]["is_byok"] is False


@pytest.mark.parametrize(
    ("declared", "endpoint", "private", "admitted"),
    [
        (None, True, False, True),
        (None, False, False, False),
        (True, False, False, True),
        (True, True, False, True),
        (False, True, False, False),
        (False, False, False, False),
        (None, True, True, True),
        (None, False, True, False),
        (True, False, True, False),
        (False, True, True, False),
    ],
)
def test_the_zdr_declaration_of_a_credential_is_respected(
    declared: bool | None, endpoint: bool, private: bool, admitted: bool
) -> None:
    served = route("x", private=private, zdr=endpoint, secret=None)
    case: dict[str, Any] = {
        "private" if private else "public": [served],
        "credentials": [credential("x", declared_zdr=declared)],
    }
    assert used(planned(**case)) == ["own-x"]
    if admitted:
        assert used(planned(**case, zdr=True)) == ["own-x"]
    else:
        assert [each["excluded_by"] for each in refused(**case, zdr=True)] == [["zdr"]]


@pytest.mark.parametrize(
    ("declared", "endpoint", "private", "admitted"),
    [
        (None, "europe", False, True),
        (None, "global", False, False),
        ("global", "europe", False, True),
        ("global", None, False, False),
        ("europe", "global", False, True),
        ("europe", None, False, True),
        ("us", "global", False, False),
        ("europe", "us", False, False),
        ("us", "europe", False, True),
        ("europe", "global", True, False),
        ("europe", None, True, False),
        ("us", "europe", True, True),
    ],
)
def test_an_unplaced_public_endpoint_takes_the_region_of_the_credential(
    declared: str | None, endpoint: str | None, private: bool, admitted: bool
) -> None:
    facts = EndpointFacts("x", "X Inc", False, False, region=endpoint)
    served = route("x", private=private, facts=facts, secret=None)
    case: dict[str, Any] = {
        "private" if private else "public": [served],
        "credentials": [credential("x", declared_region=declared)],
        "policy": Policy.of(served_in="europe"),
    }
    if admitted:
        assert used(planned(**case)) == ["own-x"]
    else:
        assert [each["excluded_by"] for each in refused(**case)] == [["region"]]


def test_policies_apply_to_each_credential_separately() -> None:
    credentials = [
        credential("x", "keeps", declared_zdr=False),
        credential("x", "forgets", declared_zdr=True),
        credential("x", "last", declared_zdr=True, is_fallback=True),
    ]
    found = planned([route("x")], credentials=credentials, zdr=True)
    assert used(found) == ["forgets-x", "last-x"]
    assert found.excluded == []
    assert used(planned([route("x")], credentials=credentials)) == [
        "keeps-x", "forgets-x", "operator-x", "last-x",
    ]  # fmt: skip


def test_a_required_credential_that_a_policy_refuses_excludes_the_operators() -> None:
    credentials = [credential("x", is_required=True, declared_zdr=False)]
    expected = [excluded("X", "zdr", "byok_required")]
    assert refused(public=[route("x", zdr=True)], credentials=credentials, zdr=True) == expected


@pytest.mark.parametrize(
    ("members", "member", "is_used"),
    [
        (None, None, True),
        (None, uuid.UUID(int=7), True),
        (frozenset((str(uuid.UUID(int=7)),)), uuid.UUID(int=7), True),
        (frozenset((str(uuid.UUID(int=7)),)), uuid.UUID(int=8), False),
        (frozenset((str(uuid.UUID(int=7)),)), None, False),
        (frozenset(), uuid.UUID(int=7), False),
        (frozenset(("None",)), None, False),
    ],
)
def test_a_credential_serves_only_keys_of_its_allowed_members(
    members: frozenset[str] | None, member: uuid.UUID | None, is_used: bool
) -> None:
    found = planned(
        [route("x")],
        credentials=[credential("x", allowed_members=members)],
        options={"member_id": member},
    )
    assert used(found) == (["own-x", "operator-x"] if is_used else ["operator-x"])
