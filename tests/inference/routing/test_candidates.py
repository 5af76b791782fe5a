"""The candidates of a request and the reasons for excluding other endpoints."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from accounts.policy import Policy
from catalog.aliases.names import ModelNotFound
from catalog.dialects.base import Operation
from catalog.visibility import EndpointFacts
from config.api.errors import Forbidden, InvalidRequest
from inference.requests import parsing, schemas
from inference.routing.candidates import select_candidates
from inference.routing.needs import NoEndpoint
from inference.routing.routes import Route, RoutingDefaults
from tests.support.inference.routes import (
    PREFERENCES,
    credential,
    excluded,
    planned,
    reasons,
    refused,
    route,
    routes_of,
    select,
    split,
    used,
)
from tests.support.inference.site import Site


def test_private_endpoints_come_first_then_the_cheapest() -> None:
    found = planned(
        public=[route("dear", "3"), route("cheap", "1"), route("fair", "2")],
        private=[route("own", "9", private=True)],
        credentials=[credential("own")],
    )
    assert used(found) == ["own-own", "operator-cheap", "operator-fair", "operator-dear"]
    assert [candidate.is_byok for candidate in found.candidates] == [True, False, False, False]


def test_the_cheaper_of_two_private_endpoints_comes_first() -> None:
    found = planned(
        private=[route("x", "2", private=True), route("y", "1", private=True)],
        credentials=[credential("x"), credential("y")],
    )
    assert used(found) == ["own-y", "own-x"]


def test_endpoints_with_equal_prices_have_a_fixed_order() -> None:
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
def test_preferences_of_a_request_exclude_and_order_endpoints(
    preferences: dict[str, Any], expected: list[str]
) -> None:
    routes = [route("a", "1"), route("b", "2", zdr=True), route("c", "3", trains=True)]
    assert used(planned(routes, **preferences)) == [f"operator-{name}" for name in expected]


@pytest.mark.parametrize(
    ("order", "expected", "left"),
    [
        (["c", "b"], "c", {"a": ["order"], "b": ["allow_fallbacks"]}),
        (["nobody", "B INC"], "b", {"a": ["order"], "c": ["order"]}),
        ([], "a", {"b": ["allow_fallbacks"], "c": ["allow_fallbacks"]}),
        (None, "a", {"b": ["allow_fallbacks"], "c": ["allow_fallbacks"]}),
    ],
)
def test_without_fallbacks_only_the_first_endpoint_of_the_order_is_left(
    order: list[str] | None, expected: str, left: dict[str, list[str]]
) -> None:
    routes = [route("a", "1"), route("b", "2"), route("c", "3")]
    found = planned(routes, order=order, allow_fallbacks=False)
    assert used(found) == [f"operator-{expected}"]
    assert reasons(found) == left


def test_without_fallbacks_only_named_providers_receive_the_prompt() -> None:
    assert refused(
        public=[route("a")],
        private=[route("own", private=True)],
        credentials=[credential("own")],
        order=["azure"],
        allow_fallbacks=False,
    ) == [excluded("Own", "order", private=True), excluded("A", "order")]


def test_without_fallbacks_only_one_credential_is_tried() -> None:
    found = planned([route("x")], credentials=[credential("x")], allow_fallbacks=False)
    assert (used(found), found.excluded) == (["own-x"], [])


@pytest.mark.parametrize("flag", ["is_required", "is_byok_only"])
def test_a_required_credential_prevents_fallback_to_credits_within_the_model(flag: str) -> None:
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
    # ``only`` excludes the private endpoint, so the operator's credential may serve.
    found = planned(**case, credentials=[credential("x", **{flag: True})], only=["y"])
    assert used(found) == ["operator-y"]
    elsewhere = credential("x", allowed_models=frozenset(("c/d",)), **{flag: True})
    found = planned(**case, credentials=[credential("x", "free"), elsewhere])
    assert "operator-y" in used(found)


def test_order_outranks_private_endpoints() -> None:
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
def test_providers_are_listed_by_slug_or_name(allowed: list[str], only: list[str]) -> None:
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
        excluded("C", "no_credential", private=True),
        excluded("A", "provider_not_allowed", "provider_ignored", "zdr", "data_collection"),
        excluded("B", "dialect_not_supported"),
    ]


def test_an_excluded_endpoint_is_explained_even_if_others_serve() -> None:
    found = planned([route("a"), route("b")], ignore=["b"])
    assert used(found) == ["operator-a"]
    assert [each.body() for each in found.excluded] == [excluded("B", "provider_ignored")]


def test_an_unknown_model_and_a_model_without_endpoints_have_different_errors() -> None:
    with pytest.raises(ModelNotFound) as unknown:
        planned(models=["x/y", "z"])
    assert unknown.value.message == "There is no model 'x/y'."
    with pytest.raises(NoEndpoint) as empty:
        planned()
    assert empty.value.message == "No endpoints found for 'a/b' that may serve this request."
    assert empty.value.metadata == {"excluded": []}


def test_the_error_of_a_model_without_a_candidate_names_the_reasons() -> None:
    with pytest.raises(NoEndpoint) as refused:
        planned(public=[route("x", secret=None)])
    assert refused.value.message == (
        "No endpoints found for 'a/b' that may serve this request. Reasons: no_credential."
    )


def test_models_are_tried_in_the_order_of_the_request() -> None:
    first, second = route("x", "9"), route("y", "1", model_slug="c/d", model_permaslug="c/d-1")
    assert used(planned([first, second], models=["a/b", "c/d"])) == ["operator-x", "operator-y"]
    assert used(planned([first, second], models=["nobody", "c/d"])) == ["operator-y"]
    found = planned([first, second], models=["a/b", "c/d"], allow_fallbacks=False)
    assert used(found) == ["operator-x"]


def test_an_unknown_model_is_answered_with_404(site: Site) -> None:
    answer = site.chat(model="no/body")
    assert answer.status_code == 404
    assert answer.json()["error"] == {
        "code": 404,
        "message": "There is no model 'no/body'.",
        "metadata": {"error_type": "model_not_found"},
    }
    site.assert_nothing_happened()


def test_options_go_only_to_their_provider() -> None:
    mine = {"verbosity": msgspec.Raw(b'"low"')}
    found = planned([route("a"), route("b")], options={}, order=["a", "b"])
    assert [each.options for each in found.candidates] == [None, None]
    preferences = schemas.ProviderPreferences(options={"a": mine, "nobody": {}}, order=["a"])
    request = parsing.parse(
        Operation.CHAT, b'{"model":"a/b","messages":[{"role":"user","content":"x"}]}'
    )
    found = select(replace(request, preferences=preferences), route("a"), route("b"))
    assert [each.options for each in found.candidates] == [mine, None]


def test_a_disabled_tool_is_forbidden() -> None:
    disabled = frozenset(("openrouter:bash", "openrouter:web_fetch"))
    with pytest.raises(Forbidden) as error:
        planned([route("x")], tools=disabled, options={"disabled_tools": disabled})
    assert error.value.message == "The workspace has disabled the tool 'openrouter:bash'."
    assert error.value.metadata == {"disabled_tool": "openrouter:bash"}
    others = frozenset(("openrouter:datetime",))
    assert used(planned([route("x")], tools=others, options={"disabled_tools": disabled}))


def test_the_default_model_of_the_workspace_fills_a_missing_model() -> None:
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
def test_explain_and_routing_agree(
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
