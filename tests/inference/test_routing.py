"""From a request to its candidates: a pure function, so most is shown without a service."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import pytest

from accounts.models import ApiKey
from accounts.policy import Policy
from catalog.dialects.base import Operation
from catalog.pricing import Price
from catalog.visibility import EndpointFacts
from config.secrets import Secret
from inference import schemas
from inference.routing import (
    Credential,
    ModelNotFound,
    NoEndpoint,
    OrganizationSnapshot,
    Plan,
    Route,
    Snapshot,
    plan,
)
from tests import factories
from tests.inference.conftest import Site

WORKSPACE = uuid.UUID(int=1)
KEY = "digest-of-the-key"


def route(
    provider: str,
    price: str = "1",
    *,
    private: bool = False,
    zdr: bool = False,
    trains: bool = False,
    **fields: Any,
) -> Route:
    defaults: dict[str, Any] = {
        "endpoint_id": uuid.uuid4(),
        "is_private": private,
        "model_slug": "a/b",
        "model_permaslug": "a/b-1",
        "facts": EndpointFacts(provider, f"{provider.title()} Inc", zdr, trains),
        "dialect": "openai",
        "base_url": f"https://{provider}.example/v1",
        "host": f"{provider}.example",
        "upstream_model_id": "m",
        "price_id": 1,
        "price": Price(Decimal(price), Decimal(price)),
        "secret": None if private else Secret(f"operator-{provider}"),
    }
    return Route(**{**defaults, **fields})


def credential(provider: str, name: str = "own", **fields: Any) -> Credential:
    defaults: dict[str, Any] = {
        "provider_slug": provider,
        "workspace_id": None,
        "secret": Secret(f"{name}-{provider}"),
        "is_fallback": False,
        "is_required": False,
        "is_byok_only": False,
        "allowed_models": None,
        "allowed_key_digests": None,
        "allowed_hosts": None,
    }
    return Credential(**{**defaults, **fields})


def planned(
    public: list[Route] | None = None,
    private: list[Route] | None = None,
    credentials: list[Credential] | None = None,
    policy: Policy | None = None,
    models: list[str] | None = None,
    **preferences: Any,
) -> Plan:
    request = schemas.InferenceRequest(
        operation=Operation.CHAT,
        models=tuple(models or ["a/b"]),
        stream=False,
        user=None,
        preferences=schemas.ProviderPreferences(**preferences),
        fields={},
    )
    names: dict[str, list[Route]] = {}
    for each in public or []:
        names.setdefault(each.model_slug, []).append(each)
    own: dict[str, list[Route]] = {}
    for each in private or []:
        own.setdefault(each.model_slug, []).append(each)
    return plan(
        request,
        snapshot=Snapshot(
            version=1,
            routes={name: tuple(routes) for name, routes in names.items()},
            slugs={"a/b": "a/b", "c/d": "c/d"},
        ),
        own=OrganizationSnapshot(
            version=1,
            catalog_version=1,
            routes={name: tuple(routes) for name, routes in own.items()},
            credentials=tuple(credentials or []),
        ),
        workspace_id=WORKSPACE,
        key_digest=KEY,
        policy=policy or Policy(),
    )


def used(found: Plan) -> list[str]:
    """The secrets of the candidates, in order: they name the provider and the payer."""
    return [candidate.secret.reveal() for candidate in found.candidates]


def refused(**case: Any) -> list[dict[str, Any]]:
    with pytest.raises(NoEndpoint) as error:
        planned(**case)
    excluded: list[dict[str, Any]] = error.value.metadata["excluded"]
    return excluded


def test_private_endpoints_come_first_then_the_cheapest() -> None:
    found = planned(
        public=[route("dear", "3"), route("cheap", "1"), route("fair", "2")],
        private=[route("own", "9", private=True)],
        credentials=[credential("own")],
    )
    assert used(found) == ["own-own", "operator-cheap", "operator-fair", "operator-dear"]
    assert [candidate.is_byok for candidate in found.candidates] == [True, False, False, False]


def test_of_two_private_endpoints_the_cheaper_comes_first() -> None:
    found = planned(
        private=[route("x", "2", private=True), route("y", "1", private=True)],
        credentials=[credential("x"), credential("y")],
    )
    assert used(found) == ["own-y", "own-x"]


def test_equal_prices_keep_one_order() -> None:
    first = route("x", endpoint_id=uuid.UUID(int=5))
    second = route("y", endpoint_id=uuid.UUID(int=6))
    expected = ["operator-x", "operator-y"]
    assert used(planned([first, second])) == used(planned([second, first])) == expected


def test_prices_compare_exactly() -> None:
    tiny = "0.000000000000000000000000000001"
    found = planned([route("x", "0.1"), route("y", tiny), route("z", "0")])
    assert used(found) == ["operator-z", "operator-y", "operator-x"]


@pytest.mark.parametrize(
    ("preferences", "expected"),
    [
        ({"order": ["c"]}, ["c", "a", "b"]),
        ({"order": ["c", "b"]}, ["c", "b", "a"]),
        ({"order": ["B INC", "nobody"]}, ["b", "a", "c"]),
        ({"order": []}, ["a", "b", "c"]),
        ({"only": ["b", "c"]}, ["b", "c"]),
        ({"only": ["C Inc"]}, ["c"]),
        ({"ignore": ["a"]}, ["b", "c"]),
        ({"ignore": ["A inc", "C"]}, ["b"]),
        ({"only": ["a", "b"], "ignore": ["a"]}, ["b"]),
        ({"only": None, "ignore": None, "order": None}, ["a", "b", "c"]),
        ({"zdr": True}, ["b"]),
        ({"zdr": False}, ["a", "b", "c"]),
        ({"data_collection": "deny"}, ["a", "b"]),
        ({"data_collection": "allow"}, ["a", "b", "c"]),
        ({"allow_fallbacks": False}, ["a"]),
        ({"allow_fallbacks": True}, ["a", "b", "c"]),
        ({"allow_fallbacks": False, "order": ["c"]}, ["c"]),
        ({"allow_fallbacks": False, "ignore": ["a"]}, ["b"]),
    ],
)
def test_the_request_narrows_and_orders(preferences: dict[str, Any], expected: list[str]) -> None:
    routes = [route("a", "1"), route("b", "2", zdr=True), route("c", "3", trains=True)]
    assert used(planned(routes, **preferences)) == [f"operator-{name}" for name in expected]


def test_order_goes_before_private() -> None:
    found = planned(
        [route("pub")], [route("own", private=True)], [credential("own")], order=["pub"]
    )
    assert used(found) == ["operator-pub", "own-own"]


def test_a_request_cannot_loosen_the_policy() -> None:
    policy = Policy.of(only=["a", "b"], ignore=["a"], zdr=True)
    routes = [route("a", zdr=True), route("b"), route("b2", zdr=True), route("b", zdr=True)]
    found = planned(routes, policy=policy, only=["b", "b2"], zdr=False, data_collection="allow")
    assert used(found) == ["operator-b"]
    assert found.candidates[0].route.facts.zdr


def test_every_exclusion_is_explained() -> None:
    assert refused(
        public=[route("a", "1", trains=True), route("b", "2", zdr=True, dialect=None)],
        private=[route("c", private=True, zdr=True)],
        only=["b", "c"],
        ignore=["a"],
        zdr=True,
        data_collection="deny",
    ) == [
        {"provider": "C Inc", "private": True, "excluded_by": ["no_credential"]},
        {
            "provider": "A Inc",
            "private": False,
            "excluded_by": ["provider_not_allowed", "provider_ignored", "zdr", "data_collection"],
        },
        {"provider": "B Inc", "private": False, "excluded_by": ["dialect_not_supported"]},
    ]


def test_an_excluded_endpoint_is_explained_beside_those_that_serve() -> None:
    found = planned([route("a"), route("b")], ignore=["b"])
    assert used(found) == ["operator-a"]
    assert [each.body() for each in found.excluded] == [
        {"provider": "B Inc", "private": False, "excluded_by": ["provider_ignored"]}
    ]


def test_an_unknown_model_is_told_from_one_without_endpoints() -> None:
    with pytest.raises(ModelNotFound) as unknown:
        planned(models=["x/y", "z"])
    assert unknown.value.message == "There is no model 'x/y'."
    with pytest.raises(NoEndpoint) as empty:
        planned()
    assert empty.value.message == "No endpoint of 'a/b' may serve this request."
    assert empty.value.metadata == {"excluded": []}


def test_models_are_tried_in_the_order_of_the_request() -> None:
    first, second = route("x", "9"), route("y", "1", model_slug="c/d", model_permaslug="c/d-1")
    assert used(planned([first, second], models=["a/b", "c/d"])) == ["operator-x", "operator-y"]
    assert used(planned([first, second], models=["nobody", "c/d"])) == ["operator-y"]
    found = planned([first, second], models=["a/b", "c/d"], allow_fallbacks=False)
    assert used(found) == ["operator-x"]


def test_an_own_credential_comes_before_the_operators() -> None:
    assert used(planned([route("x")], credentials=[credential("x")])) == ["own-x", "operator-x"]


def test_a_fallback_credential_comes_after_the_operators() -> None:
    credentials = [credential("x", "last", is_fallback=True), credential("x", "first")]
    found = planned([route("x")], credentials=credentials)
    assert used(found) == ["first-x", "operator-x", "last-x"]
    assert [candidate.is_byok for candidate in found.candidates] == [True, False, True]


def test_credentials_are_tried_in_their_order() -> None:
    credentials = [credential("x", "one"), credential("x", "two"), credential("y", "other")]
    found = planned(private=[route("x", private=True)], credentials=credentials)
    assert used(found) == ["one-x", "two-x"]


@pytest.mark.parametrize("flag", ["is_required", "is_byok_only"])
def test_a_required_credential_shuts_out_the_operators(flag: str) -> None:
    found = planned([route("x"), route("y", "2")], credentials=[credential("x", **{flag: True})])
    assert used(found) == ["own-x", "operator-y"]


@pytest.mark.parametrize("flag", ["is_required", "is_byok_only"])
def test_a_required_credential_that_cannot_be_opened_still_shuts_out_the_operators(
    flag: str,
) -> None:
    credentials = [credential("x", secret=None, **{flag: True})]
    assert refused(public=[route("x")], credentials=credentials) == [
        {"provider": "X Inc", "private": False, "excluded_by": ["byok_required"]}
    ]


def test_a_credential_required_for_other_models_shuts_out_nothing() -> None:
    credentials = [credential("x", is_required=True, allowed_models=frozenset(("c/d",)))]
    assert used(planned([route("x")], credentials=credentials)) == ["operator-x"]


def test_a_byok_only_credential_shuts_out_the_operators_from_every_model() -> None:
    credentials = [credential("x", is_byok_only=True, allowed_models=frozenset(("c/d",)))]
    assert refused(public=[route("x")], credentials=credentials) == [
        {"provider": "X Inc", "private": False, "excluded_by": ["byok_required"]}
    ]


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
def test_a_credential_serves_only_whom_and_what_it_names(
    fields: dict[str, Any], is_used: bool
) -> None:
    case: dict[str, Any] = {
        "private": [route("x", private=True)],
        "credentials": [credential("x", **fields)],
    }
    if is_used:
        assert used(planned(**case)) == ["own-x"]
    else:
        assert refused(**case) == [
            {"provider": "X Inc", "private": True, "excluded_by": ["no_credential"]}
        ]


def test_the_operators_credential_never_opens_a_private_endpoint() -> None:
    private = route("x", private=True, secret=Secret("operator-x"))
    assert refused(private=[private]) == [
        {"provider": "X Inc", "private": True, "excluded_by": ["no_credential"]}
    ]


def test_a_public_endpoint_without_any_credential_is_explained() -> None:
    assert refused(public=[route("x", secret=None)]) == [
        {"provider": "X Inc", "private": False, "excluded_by": ["no_credential"]}
    ]


def test_a_foreign_private_endpoint_does_not_exist(site: Site) -> None:
    site.own()
    stranger = factories.make_tenant("Stranger")
    factories.make_credential(stranger, site.provider)
    answer = site.post(site.chat_body(), key=stranger.api_key)
    assert answer.status_code == 404
    assert answer.json() == {
        "error": {
            "code": 404,
            "message": "No endpoint of 'acme/falcon' may serve this request.",
            "metadata": {"error_type": "no_endpoint", "excluded": []},
        }
    }
    site.assert_nothing_happened()


def test_a_refusal_of_the_running_service_explains_itself(site: Site) -> None:
    site.publish()
    answer = site.chat(provider={"ignore": ["Acme AI"], "zdr": True})
    assert answer.status_code == 404
    assert answer.json()["error"]["metadata"] == {
        "error_type": "no_endpoint",
        "excluded": [
            {"provider": "Acme AI", "private": False, "excluded_by": ["provider_ignored", "zdr"]}
        ],
    }
    site.assert_nothing_happened()


def test_an_unknown_model_is_not_found(site: Site) -> None:
    answer = site.chat(model="no/body")
    assert answer.status_code == 404
    assert answer.json()["error"] == {
        "code": 404,
        "message": "There is no model 'no/body'.",
        "metadata": {"error_type": "model_not_found"},
    }
    site.assert_nothing_happened()


def test_a_credential_for_certain_users_serves_no_key(site: Site) -> None:
    factories.make_credential(site.tenant, site.provider, allowed_user_ids=["user-1"])
    site.publish()
    assert site.chat().json()["usage"]["is_byok"] is False
    assert site.settled().is_byok is False


def test_a_credential_for_certain_keys_serves_those(site: Site) -> None:
    key = ApiKey.objects.get(name="inference", organization=site.tenant.organization)
    _, other = ApiKey.objects.issue(workspace=site.tenant.workspace, name="other")
    factories.make_credential(site.tenant, site.provider, allowed_api_key_hashes=[key.digest])
    site.publish()
    assert site.chat().json()["usage"]["is_byok"] is True
    answer = site.post(site.chat_body(), key=other.reveal())
    assert answer.json()["usage"]["is_byok"] is False


@pytest.mark.parametrize(
    ("limit", "price", "admitted"),
    [
        ({"prompt": "2"}, "0.000002", True),
        ({"prompt": "1.999999"}, "0.000002", False),
        ({"prompt": 2}, "0.000002", True),
        ({"prompt": 1.5}, "0.000002", False),
        ({"completion": "1"}, "0.000002", False),
        ({"request": "0"}, "0.000002", True),
        ({}, "0.000002", True),
    ],
)
def test_an_endpoint_dearer_than_the_request_allows_is_excluded(
    limit: dict[str, Any], price: str, admitted: bool
) -> None:
    endpoint = route("dear", price)
    if admitted:
        assert len(planned([endpoint], max_price=schemas.MaxPrice(**limit)).candidates) == 1
        return
    with pytest.raises(NoEndpoint) as caught:
        planned([endpoint], max_price=schemas.MaxPrice(**limit))
    assert caught.value.metadata["excluded"] == [
        {"provider": "Dear Inc", "private": False, "excluded_by": ["max_price"]}
    ]


def test_only_the_wanted_quantizations_are_admitted() -> None:
    endpoints = [
        route("one", quantization="fp8"),
        route("two", quantization="int4"),
        route("three"),
    ]
    found = planned(endpoints, quantizations=["fp8", "unknown"])
    assert {each.route.facts.provider_slug for each in found.candidates} == {"one", "three"}
    assert [each.reasons for each in found.excluded] == [["quantizations"]]


def test_required_parameters_exclude_who_does_not_know_them() -> None:
    request = schemas.parse(
        Operation.CHAT,
        b'{"model": "a/b", "messages": [{"role": "user", "content": "x"}], "temperature": 1,'
        b' "logit_bias": {}, "x_unknown": 1, "provider": {"require_parameters": true}}',
    )
    assert request.parameters == {"temperature", "logit_bias"}
    knowing = route("one", supported_parameters=frozenset(("temperature", "logit_bias")))
    ignorant = route("two", supported_parameters=frozenset(("temperature",)))
    silent = route("three")
    found = plan(
        request,
        snapshot=Snapshot(1, {"a/b": (knowing, ignorant, silent)}, {"a/b": "a/b"}),
        own=OrganizationSnapshot(1, 1, {}, ()),
        workspace_id=WORKSPACE,
        key_digest=KEY,
        policy=Policy(),
    )
    assert {each.route.facts.provider_slug for each in found.candidates} == {"one", "three"}
    assert [each.reasons for each in found.excluded] == [["require_parameters"]]
