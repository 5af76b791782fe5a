"""From a request to its candidates: a pure function, so most is shown without a service."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.models import ApiKey
from accounts.policy import Policy
from catalog.dialects.base import Operation
from catalog.names import VARIANTS, ModelNotFound
from catalog.pricing import Price
from catalog.visibility import EndpointFacts, exclusions
from config.api.errors import Forbidden, InvalidRequest
from config.credentials import Secret
from inference.requests import schemas
from inference.routing.candidates import (
    NoEndpoint,
    RoutingContext,
    Selection,
    require_candidates,
    select_candidates,
)
from inference.routing.health import Health, HealthState, subject_of
from inference.routing.routes import (
    CatalogSnapshot,
    Credential,
    OrganizationSnapshot,
    Route,
    RoutingDefaults,
)
from tests.inference.conftest import Site
from tests.support import factories

WORKSPACE = uuid.UUID(int=1)
KEY = "digest-of-the-key"
SHARES = ("p50", "p75", "p90", "p99")


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
        "credential_id": uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.{provider}"),
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
    session: str | None = None,
    tools: frozenset[str] = frozenset(),
    options: dict[str, Any] | None = None,
    by: Callable[..., Selection] = require_candidates,
    **preferences: Any,
) -> Selection:
    """The selection of a request; ``options`` are members of the context."""
    request = schemas.InferenceRequest(
        operation=Operation.CHAT,
        models=("a/b",) if models is None else tuple(models),
        stream=False,
        user=None,
        preferences=schemas.ProviderPreferences(**preferences),
        fields={},
        session_id=session,
        tools=tools,
    )
    names: dict[str, list[Route]] = {}
    for each in public or []:
        names.setdefault(each.model_slug, []).append(each)
    own: dict[str, list[Route]] = {}
    for each in private or []:
        own.setdefault(each.model_slug, []).append(each)
    return by(
        request,
        RoutingContext(
            snapshot=CatalogSnapshot(
                version=1,
                routes={name: tuple(routes) for name, routes in names.items()},
                slugs={"a/b": "a/b", "a/b-1": "a/b", "c/d": "c/d", "e/f:free": "e/f:free"},
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
            **(options or {}),
        ),
    )


def used(found: Selection) -> list[str]:
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


def reasons(found: Selection) -> dict[str, list[str]]:
    """Why each provider is left out."""
    return {each.route.facts.provider_slug: each.reasons for each in found.excluded}


@pytest.mark.parametrize(
    ("order", "expected", "left"),
    [
        (["c", "b"], "c", {"a": ["order"], "b": ["allow_fallbacks"]}),
        (["nobody", "B INC"], "b", {"a": ["order"], "c": ["order"]}),
        ([], "a", {"b": ["allow_fallbacks"], "c": ["allow_fallbacks"]}),
        (None, "a", {"b": ["allow_fallbacks"], "c": ["allow_fallbacks"]}),
    ],
)
def test_without_fallbacks_the_first_that_is_named_is_left(
    order: list[str] | None, expected: str, left: dict[str, list[str]]
) -> None:
    routes = [route("a", "1"), route("b", "2"), route("c", "3")]
    found = planned(routes, order=order, allow_fallbacks=False)
    assert used(found) == [f"operator-{expected}"]
    assert reasons(found) == left


def test_without_fallbacks_nobody_but_the_named_gets_the_prompt() -> None:
    assert refused(
        public=[route("a")],
        private=[route("own", private=True)],
        credentials=[credential("own")],
        order=["azure"],
        allow_fallbacks=False,
    ) == [
        {"provider": "Own Inc", "private": True, "model": "a/b", "excluded_by": ["order"]},
        {"provider": "A Inc", "private": False, "model": "a/b", "excluded_by": ["order"]},
    ]


def test_another_credential_of_the_endpoint_that_is_left_is_a_fallback_too() -> None:
    found = planned([route("x")], credentials=[credential("x")], allow_fallbacks=False)
    assert (used(found), found.excluded) == (["own-x"], [])


@pytest.mark.parametrize("flag", ["is_required", "is_byok_only"])
def test_a_private_endpoint_of_a_required_credential_gives_way_to_no_credits(flag: str) -> None:
    case: dict[str, Any] = {
        "public": [
            route("x", "1"),
            route("y", "2"),
            route("z", model_slug="c/d", model_permaslug="c/d"),
        ],
        "private": [route("x", private=True)],
        "models": ["a/b", "c/d"],
    }
    theirs = credential("y", is_fallback=True)
    found = planned(**case, credentials=[credential("x", **{flag: True}), theirs])
    assert used(found) == ["own-x", "own-x", "own-y", "operator-z"]
    assert found.excluded == []
    found = planned(**case, credentials=[credential("x", **{flag: True})])
    assert used(found) == ["own-x", "own-x", "operator-z"]
    assert reasons(found) == {"y": ["byok_required"]}
    # Where the private endpoint may not serve, this is no fallback from it.
    found = planned(**case, credentials=[credential("x", **{flag: True})], only=["y"])
    assert used(found) == ["operator-y"]
    elsewhere = credential("x", allowed_models=frozenset(("c/d",)), **{flag: True})
    found = planned(**case, credentials=[credential("x", "free"), elsewhere])
    assert "operator-y" in used(found)


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


@pytest.mark.parametrize("allowed", [["amazon-bedrock"], ["Amazon Bedrock"]])
@pytest.mark.parametrize("only", [["amazon-bedrock"], ["AMAZON Bedrock", "other"]])
def test_lists_by_slug_and_by_name_mean_the_same_provider(
    allowed: list[str], only: list[str]
) -> None:
    facts = EndpointFacts("amazon-bedrock", "Amazon Bedrock", False, False)
    served = route("amazon-bedrock", facts=facts)
    found = planned([served, route("other")], policy=Policy.of(only=allowed), only=only)
    assert used(found) == ["operator-amazon-bedrock"]
    assert reasons(found) == {"other": ["provider_not_allowed"]}
    for ignored in (allowed, only):
        assert [each["excluded_by"] for each in refused(public=[served], ignore=ignored)] == [
            ["provider_ignored"]
        ]


def test_every_exclusion_is_explained() -> None:
    assert refused(
        public=[route("a", "1", trains=True), route("b", "2", zdr=True, dialect=None)],
        private=[route("c", private=True, zdr=True)],
        only=["b", "c"],
        ignore=["a"],
        zdr=True,
        data_collection="deny",
    ) == [
        {
            "provider": "C Inc",
            "private": True,
            "model": "a/b",
            "excluded_by": ["no_credential"],
        },
        {
            "provider": "A Inc",
            "private": False,
            "model": "a/b",
            "excluded_by": ["provider_not_allowed", "provider_ignored", "zdr", "data_collection"],
        },
        {
            "provider": "B Inc",
            "private": False,
            "model": "a/b",
            "excluded_by": ["dialect_not_supported"],
        },
    ]


def test_an_excluded_endpoint_is_explained_beside_those_that_serve() -> None:
    found = planned([route("a"), route("b")], ignore=["b"])
    assert used(found) == ["operator-a"]
    assert [each.body() for each in found.excluded] == [
        {"provider": "B Inc", "private": False, "model": "a/b", "excluded_by": ["provider_ignored"]}
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
        {"provider": "X Inc", "private": False, "model": "a/b", "excluded_by": ["byok_required"]}
    ]


def test_a_credential_required_for_other_models_shuts_out_nothing() -> None:
    credentials = [credential("x", is_required=True, allowed_models=frozenset(("c/d",)))]
    assert used(planned([route("x")], credentials=credentials)) == ["operator-x"]


def test_a_byok_only_credential_shuts_out_the_operators_from_every_model() -> None:
    credentials = [credential("x", is_byok_only=True, allowed_models=frozenset(("c/d",)))]
    assert refused(public=[route("x")], credentials=credentials) == [
        {"provider": "X Inc", "private": False, "model": "a/b", "excluded_by": ["byok_required"]}
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
            {"provider": "X Inc", "private": True, "model": "a/b", "excluded_by": ["no_credential"]}
        ]


def test_the_operators_credential_never_opens_a_private_endpoint() -> None:
    private = route("x", private=True, secret=Secret("operator-x"))
    assert refused(private=[private]) == [
        {"provider": "X Inc", "private": True, "model": "a/b", "excluded_by": ["no_credential"]}
    ]


def test_a_public_endpoint_without_any_credential_is_explained() -> None:
    assert refused(public=[route("x", secret=None)]) == [
        {"provider": "X Inc", "private": False, "model": "a/b", "excluded_by": ["no_credential"]}
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
            {
                "provider": "Acme AI",
                "private": False,
                "model": "acme/falcon",
                "excluded_by": ["provider_ignored", "zdr"],
            }
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
    _, other = ApiKey.objects.create_key(workspace=site.tenant.workspace, name="other")
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
        {"provider": "Dear Inc", "private": False, "model": "a/b", "excluded_by": ["max_price"]}
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
    found = require_candidates(
        request,
        RoutingContext(
            snapshot=CatalogSnapshot(1, {"a/b": (knowing, ignorant, silent)}, {"a/b": "a/b"}),
            own=OrganizationSnapshot(1, 1, {}, ()),
            workspace_id=WORKSPACE,
            key_digest=KEY,
            policy=Policy(),
        ),
    )
    assert {each.route.facts.provider_slug for each in found.candidates} == {"one", "three"}
    assert [each.reasons for each in found.excluded] == [["require_parameters"]]


@pytest.mark.parametrize(
    ("asked", "listed", "serves"),
    [
        ('"max_tokens": 9', ("max_completion_tokens",), True),
        ('"max_completion_tokens": 9', ("max_tokens",), True),
        ('"max_tokens": 9', ("temperature",), False),
        ('"top_k": null', ("max_tokens",), True),
        ('"top_k": 5', ("max_tokens",), False),
        ('"reasoning_effort": "low"', ("include_reasoning",), False),
        ('"response_format": {"type": "json_object"}', ("response_format",), True),
        ('"response_format": {"type": "json_schema"}', ("response_format",), False),
        ('"response_format": {"type": "json_schema"}', ("structured_outputs",), False),
        (
            '"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}',
            ("response_format", "structured_outputs"),
            True,
        ),
        ('"response_format": {}', ("response_format",), True),
        ('"response_format": null', ("max_tokens",), True),
        ('"response_format": {"type": "json_schema"}', None, True),
    ],
)
def test_parameters_are_required_by_what_they_mean(
    asked: str, listed: tuple[str, ...] | None, serves: bool
) -> None:
    body = f'{{"model": "a/b", "messages": [{{"role": "user", "content": "x"}}], {asked}}}'
    known = None if listed is None else frozenset(listed)
    found = select_candidates(
        replace(
            schemas.parse(Operation.CHAT, body.encode()),
            preferences=schemas.ProviderPreferences(require_parameters=True),
        ),
        RoutingContext(
            snapshot=CatalogSnapshot(
                1, {"a/b": (route("x", supported_parameters=known),)}, {"a/b": "a/b"}
            ),
            own=OrganizationSnapshot(1, 1, {}, ()),
            workspace_id=WORKSPACE,
            key_digest=KEY,
            policy=Policy(),
        ),
    )
    assert bool(found.candidates) is serves
    assert reasons(found) == ({} if serves else {"x": ["require_parameters"]})


def test_a_format_of_plain_completions_is_a_parameter_like_any_other() -> None:
    body = b'{"model": "a/b", "prompt": "x", "response_format": 7, "min_p": null}'
    assert schemas.parse(Operation.TEXT, body).needed_parameters == {"response_format"}


def test_a_session_can_be_seen_to_stay_though_the_service_keeps_no_table(site: Site) -> None:
    for number in range(4):
        provider = site.another_provider(f"p{number}")
        site.publish(provider=provider)
    names = {site.chat(session_id="talk").json()["provider"] for _ in range(5)}
    assert len(names) == 1


PRICES = st.sampled_from(["0", "0.000001", "0.000002", "0.00001"])
STANDINGS = st.sampled_from(
    [
        Health(),
        Health(HealthState.DEGRADED, 0.3),
        Health(HealthState.OPEN, 1.0),
        Health(HealthState.RATE_LIMITED),
        Health(HealthState.HALF_OPEN),
        Health(latency=dict.fromkeys(SHARES, 100.0), throughput=dict.fromkeys(SHARES, 50.0)),
        Health(latency=dict.fromkeys(SHARES, 900.0), throughput=dict.fromkeys(SHARES, 5.0)),
    ]
)
DOWN = (HealthState.OPEN, HealthState.RATE_LIMITED)


@st.composite
def routes_of(draw: st.DrawFn) -> list[Route]:
    count = draw(st.integers(1, 6))
    return [
        route(
            draw(st.sampled_from("pqrs")),
            draw(PRICES),
            endpoint_id=uuid.UUID(int=number + 1),
            private=draw(st.booleans()),
            zdr=draw(st.booleans()),
            trains=draw(st.booleans()),
        )
        for number in range(count)
    ]


def subjects(of: Route) -> list[uuid.UUID]:
    """Under what the outcomes at a route may be kept: the operator's, and its own credential's."""
    own = credential(of.facts.provider_slug)
    return [of.endpoint_id, subject_of(of.endpoint_id, own.credential_id)]


def split(routes: list[Route]) -> dict[str, Any]:
    return {
        "public": [each for each in routes if not each.is_private],
        "private": [each for each in routes if each.is_private],
        "credentials": [credential(name) for name in "pqr"],
    }


PREFERENCES = st.fixed_dictionaries(
    {},
    optional={
        "only": st.lists(st.sampled_from("pqrst"), max_size=3),
        "ignore": st.lists(st.sampled_from("pqrst"), max_size=3),
        "order": st.lists(st.sampled_from("pqrst"), max_size=3),
        "zdr": st.booleans(),
        "data_collection": st.sampled_from(["allow", "deny"]),
        "sort": st.sampled_from(["price", "throughput", "latency", "exacto"]),
        "preferred_max_latency": st.sampled_from([0.5, schemas.Percentiles(p90=0.5)]),
    },
)


@given(routes_of(), PREFERENCES, st.lists(STANDINGS, min_size=6, max_size=6), st.integers())
def test_the_order_keeps_its_promises(
    routes: list[Route], preferences: dict[str, Any], states: list[Health], seed: int
) -> None:
    """What is excluded agrees with the policies; the rest is complete, and in a lawful order."""
    found_as = {one: states[each.endpoint_id.int - 1] for each in routes for one in subjects(each)}

    def health(subject: uuid.UUID) -> Health:
        return found_as[subject]

    options = {"health_of": health, "seed": seed}
    found = planned(**split(routes), **preferences, options=options, by=select_candidates)
    tried = list(dict.fromkeys(each.route.endpoint_id for each in found.candidates))
    has_measure = "preferred_max_latency" in preferences
    left_out = [each.route.endpoint_id for each in found.excluded]
    assert sorted([*tried, *left_out]) == sorted(each.endpoint_id for each in routes)
    asked = Policy.of(
        only=preferences.get("only"),
        ignore=preferences.get("ignore"),
        zdr=preferences.get("zdr", False),
        no_training=preferences.get("data_collection") == "deny",
    )
    for each in found.candidates:
        assert exclusions(each.route.facts, asked) == ()
    for left in found.excluded:
        own = [str(reason) for reason in exclusions(left.route.facts, asked)]
        assert left.reasons[: len(own)] == own
        assert left.reasons[len(own) :] in ([], ["no_credential"])
        assert left.reasons
    if preferences.get("order"):
        places = [
            preferences["order"].index(each.route.facts.provider_slug)
            for each in found.candidates
            if each.route.facts.provider_slug in preferences["order"]
        ]
        assert places == sorted(places)
        return
    ranks = []
    for each in found.candidates:
        state = health(each.route.endpoint_id)
        is_slow = state.latency is not None and state.latency["p50"] > 500
        is_late = has_measure and (is_slow or state.state in DOWN)
        ranks.append((is_late, state.state in DOWN, not each.route.is_private))
    assert ranks == sorted(ranks)


@given(routes_of(), st.integers(), st.text(max_size=8))
def test_a_request_only_tightens(routes: list[Route], seed: int, session: str) -> None:
    policy = Policy.of(ignore=["p"], zdr=True)
    loose: list[dict[str, Any]] = [{}, {"zdr": False, "data_collection": "allow", "ignore": []}]
    for preferences in loose:
        found = planned(
            **split(routes),
            **preferences,
            policy=policy,
            session=session,
            options={"seed": seed},
            by=select_candidates,
        )
        assert all(exclusions(each.route.facts, policy) == () for each in found.candidates)


def firsts(routes: list[Route], **case: Any) -> list[str]:
    """Whom each of 4,000 draws puts first."""
    return [
        planned(routes, **case, options={"seed": seed}).candidates[0].route.facts.provider_slug
        for seed in range(4000)
    ]


def test_a_draw_favours_the_cheap_by_the_square_of_the_price() -> None:
    routes = [
        route("a", "1", endpoint_id=uuid.UUID(int=1)),
        route("b", "2", endpoint_id=uuid.UUID(int=2)),
        route("c", "3", endpoint_id=uuid.UUID(int=3)),
    ]
    # Of 4,000 draws at odds of 36 : 9 : 4; the numbers are those of these seeds.
    assert Counter(firsts(routes)) == {"a": 2947, "b": 706, "c": 347}


def test_what_is_free_comes_first_in_a_draw() -> None:
    assert Counter(firsts([route("a", "0.000001"), route("b", "0")])) == {"b": 4000}


def test_a_draw_is_the_same_for_the_same_seed_and_any_order_of_the_routes() -> None:
    routes = [route(name) for name in "abcdef"]
    for seed in (0, 1, -1, 2**64, 2**70 + 5):
        expected = used(planned(routes, options={"seed": seed}))
        assert used(planned(routes[::-1], options={"seed": seed})) == expected


def test_a_session_stays_whatever_the_seed_and_moves_only_when_it_must() -> None:
    routes = [route(name, endpoint_id=uuid.UUID(int=ord(name))) for name in "abcdef"]
    down: set[uuid.UUID] = set()

    def health(endpoint_id: uuid.UUID) -> Health:
        return Health(HealthState.OPEN if endpoint_id in down else HealthState.HEALTHY)

    def first(session: str, seed: int = 0, of: list[Route] = routes) -> uuid.UUID:
        options = {"seed": seed, "health_of": health}
        return planned(of, session=session, options=options).candidates[0].route.endpoint_id

    homes = {f"s{number}": first(f"s{number}") for number in range(200)}
    assert Counter(homes.values()).keys() == {each.endpoint_id for each in routes}
    assert all(first(name, seed) == home for name, home in homes.items() for seed in (1, 99))
    gone = routes[2].endpoint_id
    down.add(gone)
    for name, home in homes.items():
        assert (first(name) == home) is (home != gone)
    down.clear()
    assert all(first(name) == home for name, home in homes.items())
    fewer = [each for each in routes if each.endpoint_id != gone]
    assert all(first(name, of=fewer) == home for name, home in homes.items() if home != gone)


@pytest.mark.parametrize(
    ("case", "is_session"),
    [
        ({}, True),
        ({"sort": "price"}, False),
        ({"models": ["a/b:floor"]}, False),
    ],
)
def test_a_session_stays_unless_the_request_itself_sorts(
    case: dict[str, Any], is_session: bool
) -> None:
    routes = [route(name, price) for name, price in (("a", "1"), ("b", "1.01"), ("c", "1.02"))]
    options = {"defaults": RoutingDefaults(provider_sort="price")}
    firsts = {
        used(planned(routes, session=f"s{number}", options=options, **case))[0]
        for number in range(50)
    }
    assert len(firsts) == (3 if is_session else 1)
    assert used(planned(routes, options=options, **case))[0] == "operator-a"


def test_sessions_of_two_organizations_are_two() -> None:
    routes = [route(name, endpoint_id=uuid.UUID(int=ord(name))) for name in "abcdefgh"]
    orders = {
        tuple(used(planned(routes, session="s", options={"organization_id": uuid.UUID(int=owner)})))
        for owner in range(20)
    }
    assert len(orders) == 20


@pytest.mark.parametrize(
    ("preferences", "expected"),
    [
        ({"sort": "price"}, "cab"),
        ({"sort": "latency"}, "bac"),
        ({"sort": "throughput"}, "abc"),
        ({"sort": "exacto"}, "bac"),
        ({"sort": schemas.Sorting(by="latency")}, "bac"),
        ({"sort": schemas.Sorting(by="latency", partition="model")}, "bac"),
        ({"sort": schemas.Sorting(partition="none")}, "cab"),
        ({"sort": "latency", "order": ["c"]}, "cab"),
        ({"sort": "latency", "order": ["c", "a"]}, "cab"),
        ({"preferred_max_latency": 0.25}, "cba"),
        ({"preferred_max_latency": 0.3}, "cab"),
        ({"preferred_max_latency": schemas.Percentiles(p50=1, p99=0.25)}, "cba"),
        ({"preferred_max_latency": schemas.Percentiles()}, "cab"),
        ({"preferred_min_throughput": 40}, "cab"),
        ({"preferred_min_throughput": 40.5}, "cab"),
        ({"preferred_min_throughput": 41}, "cab"),
        ({"preferred_min_throughput": 51}, "cab"),
        ({"preferred_max_latency": 0.25, "order": ["a"]}, "acb"),
    ],
)
def test_measures_sort_and_deprioritize(preferences: dict[str, Any], expected: str) -> None:
    """Of ``c``, which is the cheapest, nothing is known."""
    states = {
        1: Health(
            HealthState.HEALTHY, 0.05, dict.fromkeys(SHARES, 300.0), dict.fromkeys(SHARES, 50.0)
        ),
        2: Health(
            HealthState.HEALTHY, 0.0, dict.fromkeys(SHARES, 200.0), dict.fromkeys(SHARES, 40.0)
        ),
        3: Health(HealthState.HEALTHY, 0.09),
    }
    routes = [
        route("a", "2", endpoint_id=uuid.UUID(int=1)),
        route("b", "3", endpoint_id=uuid.UUID(int=2)),
        route("c", "1", endpoint_id=uuid.UUID(int=3)),
    ]
    found = planned(
        routes,
        **preferences,
        options={"health_of": lambda endpoint: states[endpoint.int]},
    )
    assert [each.route.facts.provider_slug for each in found.candidates] == list(expected)


def test_a_suffix_sorts_unless_the_request_does_and_before_the_workspace_does() -> None:
    slow = Health(latency=dict.fromkeys(SHARES, 300.0), throughput=dict.fromkeys(SHARES, 10.0))
    fast = Health(latency=dict.fromkeys(SHARES, 100.0), throughput=dict.fromkeys(SHARES, 90.0))
    routes = [
        route("dear", "9", endpoint_id=uuid.UUID(int=1)),
        route("cheap", "1", endpoint_id=uuid.UUID(int=2)),
    ]

    def first(name: str, sort: str | None = None, default: str | None = None) -> str:
        found = planned(
            routes,
            models=[name],
            sort=sort,
            options={
                "seed": 1,
                "defaults": RoutingDefaults(provider_sort=default),
                "health_of": lambda endpoint: fast if endpoint.int == 1 else slow,
            },
        )
        return found.candidates[0].route.facts.provider_slug

    assert first("a/b:nitro") == "dear"
    assert first("a/b:floor") == "cheap"
    assert first("a/b:exacto") == "dear"
    assert first("a/b:nitro", sort="price") == "cheap"
    assert first("a/b:floor", default="latency") == "cheap"
    assert first("a/b", default="latency") == "dear"
    assert first("a/b", sort="price", default="latency") == "cheap"


@pytest.mark.parametrize("variant", sorted(VARIANTS - {"free"}))
def test_a_variant_names_the_same_model(variant: str) -> None:
    found = planned([route("x")], models=[f"a/b:{variant}"])
    assert used(found) == ["operator-x"]
    assert (found.requested, found.model) == (f"a/b:{variant}", "a/b")


@pytest.mark.parametrize("name", ["a/b:", "a/b:unknown", "a/b:free:nitro", "x/y:free", ":free"])
def test_what_is_no_variant_is_another_model(name: str) -> None:
    with pytest.raises(ModelNotFound):
        planned([route("x")], models=[name])


def test_free_asks_for_free_endpoints_alone() -> None:
    routes = [route("x", "1"), route("y", "0")]
    found = planned(routes, models=["a/b:free"])
    assert used(found) == ["operator-y"]
    assert [each.reasons for each in found.excluded] == [["not_free"]]
    assert used(planned(routes, models=["a/b:free", "a/b"])) == ["operator-y", "operator-x"]
    assert used(planned(routes, models=["a/b", "a/b-1"])) == ["operator-y", "operator-x"]


def test_a_model_whose_own_name_ends_like_a_variant_comes_first() -> None:
    own = route("x", "1", model_slug="e/f:free", model_permaslug="e/f:free")
    assert used(planned([own], models=["e/f:free"])) == ["operator-x"]


def test_partition_none_sorts_all_models_together() -> None:
    routes = [
        route("x", "5"),
        route("y", "3", model_slug="c/d", model_permaslug="c/d-1"),
        route("z", "1"),
    ]
    models = ["a/b", "c/d"]
    by_model = schemas.Sorting(by="price", partition="model")
    assert used(planned(routes, models=models, sort=by_model)) == [
        "operator-z", "operator-x", "operator-y",
    ]  # fmt: skip
    together = schemas.Sorting(by="price", partition="none")
    assert used(planned(routes, models=models, sort=together)) == [
        "operator-z", "operator-y", "operator-x",
    ]  # fmt: skip
    assert used(planned(routes, models=models, sort=together, order=["x"])) == [
        "operator-x", "operator-z", "operator-y",
    ]  # fmt: skip


def test_a_preferred_measure_moves_on_to_the_next_model() -> None:
    routes = [route("x"), route("y", model_slug="c/d", model_permaslug="c/d-1")]
    slow = Health(latency=dict.fromkeys(SHARES, 900.0))
    found = planned(
        routes,
        models=["a/b", "c/d"],
        preferred_max_latency=0.5,
        options={
            "health_of": lambda endpoint: slow if endpoint == routes[0].endpoint_id else Health()
        },
    )
    assert used(found) == ["operator-y", "operator-x"]


@pytest.mark.parametrize(
    "preferred", [{"preferred_max_latency": 0.5}, {"preferred_min_throughput": 50}]
)
def test_what_is_down_meets_no_preferred_measure(preferred: dict[str, float]) -> None:
    dead, slow = route("a", "1"), route("b", "2")
    states = {
        dead.endpoint_id: Health(HealthState.OPEN, 1.0),
        slow.endpoint_id: Health(
            latency=dict.fromkeys(SHARES, 900.0), throughput=dict.fromkeys(SHARES, 5.0)
        ),
    }
    found = planned([dead, slow], **preferred, options={"health_of": states.__getitem__})
    assert used(found) == ["operator-b", "operator-a"]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (HealthState.HEALTHY, "ab"),
        (HealthState.HALF_OPEN, "ab"),
        (HealthState.DEGRADED, "ba"),
        (HealthState.OPEN, "ba"),
        (HealthState.RATE_LIMITED, "ba"),
    ],
)
def test_the_unhealthy_come_last(state: HealthState, expected: str) -> None:
    routes = [route("a", "1"), route("b", "2")]
    ill = {"health_of": lambda end: Health(state) if end == routes[0].endpoint_id else Health()}
    found = planned(routes, options=ill)
    assert used(found) == [f"operator-{name}" for name in expected]
    assert used(planned(routes, order=["a"], options=ill)) == ["operator-a", "operator-b"]


def test_a_probe_waits_for_a_request_that_may_fall_back() -> None:
    routes = [route("a", "1"), route("b", "2")]
    half_open = {
        "health_of": lambda end: Health(
            HealthState.HALF_OPEN if end == routes[0].endpoint_id else HealthState.HEALTHY
        )
    }
    assert used(planned(routes, allow_fallbacks=False, options=half_open)) == ["operator-b"]


def test_a_private_endpoint_that_is_down_comes_last() -> None:
    private = route("own", private=True)
    found = planned(
        [route("pub")],
        [private],
        [credential("own")],
        options={
            "health_of": lambda subject: Health(
                HealthState.OPEN if subject in subjects(private) else HealthState.DEGRADED
            )
        },
    )
    assert used(found) == ["operator-pub", "own-own"]


@pytest.mark.parametrize(
    "state", [HealthState.OPEN, HealthState.RATE_LIMITED, HealthState.HALF_OPEN]
)
@pytest.mark.parametrize("preferred", [{}, {"preferred_max_latency": 1}])
def test_a_private_endpoint_that_nothing_may_replace_is_tried_however_it_does(
    state: HealthState, preferred: dict[str, Any]
) -> None:
    private = route("own", private=True)
    found = planned(
        [route("pub")],
        [private],
        [credential("own")],
        allow_fallbacks=False,
        **preferred,
        options=ailing(*subjects(private), state=state),
    )
    assert used(found) == ["own-own"]


def test_of_two_credentials_the_one_that_is_well_goes_first_where_nothing_follows() -> None:
    served = route("x", "1")
    ill, well = credential("x"), credential("x", "other")
    found = planned(
        [served, route("q", "9")],
        credentials=[ill, well],
        allow_fallbacks=False,
        options=ailing(
            subject_of(served.endpoint_id, ill.credential_id),
            served.endpoint_id,
            state=HealthState.HALF_OPEN,
        ),
    )
    [first] = found.candidates
    assert first.subject == subject_of(served.endpoint_id, well.credential_id)


def test_a_cloud_of_ones_own_is_measured_apart() -> None:
    cloud = replace(route("x"), base_url=None)
    found = planned([cloud, route("y")], credentials=[credential("x"), credential("y")])
    apart = [each for each in found.candidates if each.measured_subject != each.route.endpoint_id]
    assert [(each.route, each.measured_subject == each.subject) for each in apart] == [
        (cloud, True)
    ]


def ailing(*ill: uuid.UUID, state: HealthState = HealthState.OPEN) -> dict[str, Any]:
    """Options of a router for which these subjects are ill."""
    return {"health_of": lambda subject: Health(state if subject in ill else HealthState.HEALTHY)}


@pytest.mark.parametrize("state", [HealthState.OPEN, HealthState.RATE_LIMITED])
def test_health_is_that_of_the_credential_that_comes_first(state: HealthState) -> None:
    served, other = route("x", "9"), route("y", "1")
    operators, own = subjects(served)
    routes, credentials = [served, other], [credential("x")]
    ill = ailing(operators, other.endpoint_id, state=state)
    assert used(planned(routes, credentials=credentials, options=ill)) == [
        "own-x", "operator-x", "operator-y",
    ]  # fmt: skip
    assert used(planned(routes, options=ill)) == ["operator-y", "operator-x"]
    ill = ailing(own, state=state)
    assert used(planned(routes[::-1], credentials=credentials, options=ill)) == [
        "operator-y", "own-x", "operator-x",
    ]  # fmt: skip
    assert used(planned([served], credentials=credentials, options=ill)) == ["own-x", "operator-x"]


def test_of_own_credentials_the_one_that_is_down_comes_after_the_others() -> None:
    served = route("x")
    names = ("one", "two", "three", "four")
    credentials = [credential("x", name, is_fallback=name in ("three", "four")) for name in names]
    ill = [
        subject_of(served.endpoint_id, each.credential_id)
        for each in credentials
        if each.secret and each.secret.reveal() in ("one-x", "three-x")
    ]
    found = planned([served], credentials=credentials, options=ailing(*ill))
    assert used(found) == ["two-x", "one-x", "operator-x", "four-x", "three-x"]


def test_measures_are_the_endpoints_whoever_pays() -> None:
    slow, fast = route("x", "1"), route("y", "2")
    times = {slow.endpoint_id: 900.0, fast.endpoint_id: 100.0}

    def health(subject: uuid.UUID) -> Health:
        return Health(latency=dict.fromkeys(SHARES, times[subject]) if subject in times else None)

    found = planned(
        [slow, fast],
        credentials=[credential("x"), credential("y")],
        sort="latency",
        options={"health_of": health},
    )
    assert used(found)[0] == "own-y"


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
def test_a_credential_says_whether_it_serves_zdr_requests(
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
def test_a_credential_says_where_a_public_endpoint_serves_it(
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


def test_each_credential_is_judged_for_itself() -> None:
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


def test_a_required_credential_that_a_policy_refuses_still_shuts_out_the_operators() -> None:
    credentials = [credential("x", is_required=True, declared_zdr=False)]
    assert refused(public=[route("x", zdr=True)], credentials=credentials, zdr=True) == [
        {
            "provider": "X Inc",
            "private": False,
            "model": "a/b",
            "excluded_by": ["zdr", "byok_required"],
        }
    ]


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
def test_a_credential_serves_the_keys_of_the_members_that_it_names(
    members: frozenset[str] | None, member: uuid.UUID | None, is_used: bool
) -> None:
    found = planned(
        [route("x")],
        credentials=[credential("x", allowed_members=members)],
        options={"member_id": member},
    )
    assert used(found) == (["own-x", "operator-x"] if is_used else ["operator-x"])


def test_options_go_to_their_provider_alone() -> None:
    mine = {"verbosity": msgspec.Raw(b'"low"')}
    found = planned([route("a"), route("b")], options={}, order=["a", "b"])
    assert [each.options for each in found.candidates] == [None, None]
    preferences = schemas.ProviderPreferences(options={"a": mine, "nobody": {}}, order=["a"])
    request = schemas.parse(
        Operation.CHAT, b'{"model":"a/b","messages":[{"role":"user","content":"x"}]}'
    )
    found = require_candidates(
        replace(request, preferences=preferences),
        RoutingContext(
            snapshot=CatalogSnapshot(1, {"a/b": (route("a"), route("b"))}, {"a/b": "a/b"}),
            own=OrganizationSnapshot(1, 1, {}, ()),
            workspace_id=WORKSPACE,
            key_digest=KEY,
            policy=Policy(),
        ),
    )
    assert [each.options for each in found.candidates] == [mine, None]


def test_a_disabled_tool_is_forbidden() -> None:
    disabled = frozenset(("openrouter:bash", "openrouter:web_fetch"))
    with pytest.raises(Forbidden) as error:
        planned([route("x")], tools=disabled, options={"disabled_tools": disabled})
    assert error.value.message == "The workspace has disabled the tool 'openrouter:bash'."
    assert error.value.metadata == {"disabled_tool": "openrouter:bash"}
    others = frozenset(("openrouter:datetime",))
    assert used(planned([route("x")], tools=others, options={"disabled_tools": disabled}))


def test_a_workspace_names_the_model_where_the_request_does_not() -> None:
    defaults = {"defaults": RoutingDefaults(text_model="a/b:floor")}
    found = planned([route("x")], models=[], options=defaults)
    assert (found.requested, used(found)) == ("a/b:floor", ["operator-x"])
    with pytest.raises(InvalidRequest) as error:
        planned([route("x")], models=[])
    assert error.value.message == "model: This field is required."
    assert error.value.metadata == {"fields": {"model": "This field is required."}}
    with pytest.raises(ModelNotFound):
        planned([route("x")], models=["no/body"], options=defaults)


@given(routes_of(), PREFERENCES, st.integers(), st.booleans())
def test_explaining_agrees_with_routing(
    routes: list[Route], preferences: dict[str, Any], seed: int, fallbacks: bool
) -> None:
    case: dict[str, Any] = {
        **split(routes),
        **preferences,
        "allow_fallbacks": fallbacks,
        "options": {"seed": seed},
    }
    explained = planned(**case, by=select_candidates)
    if explained.candidates:
        assert planned(**case) == explained
    else:
        assert refused(**case) == [each.body() for each in explained.excluded]
