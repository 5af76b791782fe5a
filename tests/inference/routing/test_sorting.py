"""The order of candidates: sorts, sessions, variants and preferences."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.policy import Policy
from catalog.aliases.names import VARIANTS, ModelNotFound
from catalog.dialects.base import Operation
from catalog.pricing import Billable, Price, Rule
from catalog.visibility import exclusions
from inference.requests import parsing, schemas
from inference.requests.parsing import InferenceRequest
from inference.routing.candidates import select_candidates
from inference.routing.health import UNKNOWN, Health, HealthState
from inference.routing.routes import Route, RoutingDefaults
from tests.support.inference.routes import (
    PREFERENCES,
    SHARES,
    measured,
    planned,
    route,
    routes_of,
    select,
    split,
    subjects,
    used,
)
from tests.support.inference.site import Site


def test_requests_of_a_session_go_to_one_provider(site: Site) -> None:
    for number in range(4):
        provider = site.another_provider(f"p{number}")
        site.publish(provider=provider)
    names = {site.chat(session_id="talk").json()["provider"] for _ in range(5)}
    assert len(names) == 1


def numbered(**prices: str) -> list[Route]:
    """Returns routes with these prices, whose endpoints have the ids 1, 2 and so on."""
    return [
        route(name, price, endpoint_id=uuid.UUID(int=number))
        for number, (name, price) in enumerate(prices.items(), 1)
    ]


STANDINGS = st.sampled_from(
    [
        Health(),
        Health(HealthState.DEGRADED, 0.3),
        Health(HealthState.OPEN, 1.0),
        Health(HealthState.RATE_LIMITED),
        Health(HealthState.HALF_OPEN),
        measured(100.0, 50.0),
        measured(900.0, 5.0),
    ]
)

DOWN = (HealthState.OPEN, HealthState.RATE_LIMITED)


@given(routes_of(), PREFERENCES, st.lists(STANDINGS, min_size=6, max_size=6), st.integers())
def test_select_candidates_excludes_and_orders_by_its_rules(
    routes: list[Route], preferences: dict[str, Any], states: list[Health], seed: int
) -> None:
    """Policies explain every exclusion; all other endpoints are candidates in ranked order."""
    found_as = {one: states[each.endpoint_id.int - 1] for each in routes for one in subjects(each)}

    def health(subject: uuid.UUID) -> Health:
        return found_as.get(subject, UNKNOWN)

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
def test_a_request_cannot_loosen_the_policy_for_any_routes(
    routes: list[Route], seed: int, session: str
) -> None:
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
    """Returns the first provider of each of 4,000 draws."""
    return [
        planned(routes, **case, options={"seed": seed}).candidates[0].route.facts.provider_slug
        for seed in range(4000)
    ]


def test_a_draw_weights_endpoints_by_the_inverse_square_of_the_price() -> None:
    routes = numbered(a="1", b="2", c="3")
    # 4,000 draws at odds of 36 : 9 : 4; the seeds determine the exact counts.
    assert Counter(firsts(routes)) == {"a": 2947, "b": 706, "c": 347}


FREE = Price(Decimal(0), Decimal(0))
PICTURE: dict[str, Any] = {"prompt": "x"}
SMALL = {**PICTURE, "size": "1024x1024", "quality": "low"}


def by_piece(billable: Billable, **prices: str) -> Price:
    """Returns a price without tokens; the keys are variants, ``any`` is none."""
    rules = [
        Rule(billable, billable, Decimal(price), "" if variant == "any" else variant)
        for variant, price in prices.items()
    ]
    return replace(FREE, rules=tuple(rules))


def asked(operation: Operation, body: dict[str, Any], **preferences: Any) -> InferenceRequest:
    whole = {"model": "a/b", "provider": preferences, **body}
    return parsing.parse(operation, json.dumps(whole).encode())


def priced(**prices: Price) -> list[Route]:
    """Returns routes with these prices, whose endpoints have the ids 1, 2 and so on."""
    return [
        replace(route(name, endpoint_id=uuid.UUID(int=number)), price=price)
        for number, (name, price) in enumerate(prices.items(), 1)
    ]


def slugs(request: InferenceRequest, *routes: Route, **context: Any) -> str:
    """Returns the providers of a request's candidates, in order."""
    found = select(request, *routes, **context)
    return "".join(each.route.facts.provider_slug for each in found.candidates)


DEAR, CHEAP = (by_piece(Billable.IMAGE, any=price) for price in ("0.24", "0.04"))
# The dearest picture of this list costs more than that of ``DEAR``, the smallest less.
LISTED = by_piece(Billable.IMAGE, **{"1024x1024/low": "0.01", "2048x2048/high": "0.3"})


@pytest.mark.parametrize(
    ("operation", "body", "prices", "expected"),
    [
        (Operation.IMAGES, PICTURE, {"a": DEAR, "b": CHEAP, "c": FREE}, "cba"),
        (Operation.IMAGES, PICTURE, {"a": LISTED, "b": DEAR}, "ba"),
        (Operation.IMAGES, SMALL, {"a": CHEAP, "b": LISTED}, "ba"),
        (Operation.IMAGES, {**PICTURE, "n": 10},
         {"a": replace(CHEAP, request=Decimal("0.1")), "b": DEAR}, "ab"),
        (Operation.RERANK, {"query": "q", "documents": ["d"]},
         {"a": by_piece(Billable.SEARCH, any="0.002"),
          "b": replace(FREE, request=Decimal("0.001"))}, "ba"),
        (Operation.SPEECH, {"input": "x" * 100, "voice": "v"},
         {"a": by_piece(Billable.CHARACTER, any="0.00003"),
          "b": by_piece(Billable.CHARACTER, any="0.000015")}, "ba"),
        (Operation.EMBEDDINGS, {"input": "x"},
         {"a": Price(Decimal("0.00002"), Decimal(0)), "b": Price(Decimal("0.00001"), Decimal(0))},
         "ba"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_sorted_by_the_most_that_it_can_cost(
    operation: Operation, body: dict[str, Any], prices: dict[str, Price], expected: str
) -> None:
    routes = priced(**prices)
    assert slugs(asked(operation, body, sort="price"), *routes) == expected
    assert slugs(asked(operation, {**body, "model": "a/b:floor"}), *routes) == expected


def test_a_draw_weights_pictures_by_their_price() -> None:
    request, routes = asked(Operation.IMAGES, PICTURE), priced(a=DEAR, b=CHEAP)
    firsts = [slugs(request, *routes, seed=seed)[0] for seed in range(4000)]
    # The odds are 1 : 36.
    assert Counter(firsts) == {"b": 3878, "a": 122}


def test_free_endpoints_come_first_in_a_draw() -> None:
    assert Counter(firsts([route("a", "0.000001"), route("b", "0")])) == {"b": 4000}


def test_a_draw_depends_on_the_seed_and_not_on_the_order_of_the_routes() -> None:
    routes = [route(name) for name in "abcdef"]
    for seed in (0, 1, -1, 2**64, 2**70 + 5):
        expected = used(planned(routes, options={"seed": seed}))
        assert used(planned(routes[::-1], options={"seed": seed})) == expected


def test_a_session_moves_only_if_its_endpoint_is_unavailable() -> None:
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
def test_a_session_is_ignored_if_the_request_sorts(case: dict[str, Any], is_session: bool) -> None:
    routes = [route(name, price) for name, price in (("a", "1"), ("b", "1.01"), ("c", "1.02"))]
    options = {"defaults": RoutingDefaults(provider_sort="price")}
    firsts = {
        used(planned(routes, session=f"s{number}", options=options, **case))[0]
        for number in range(50)
    }
    assert len(firsts) == (3 if is_session else 1)
    assert used(planned(routes, options=options, **case))[0] == "operator-a"


def test_equal_session_ids_of_two_organizations_are_independent() -> None:
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
def test_measures_sort_endpoints_and_move_slow_ones_back(
    preferences: dict[str, Any], expected: str
) -> None:
    """``c`` is the cheapest endpoint and has no measures."""
    states = {
        1: measured(300.0, 50.0, 0.05),
        2: measured(200.0, 40.0),
        3: Health(HealthState.HEALTHY, 0.09),
    }
    options = {"health_of": lambda endpoint: states[endpoint.int]}
    found = planned(numbered(a="2", b="3", c="1"), **preferences, options=options)
    assert [each.route.facts.provider_slug for each in found.candidates] == list(expected)


def test_a_suffix_outranks_the_workspace_and_yields_to_the_request() -> None:
    slow, fast = measured(300.0, 10.0), measured(100.0, 90.0)
    routes = numbered(dear="9", cheap="1")

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


@pytest.mark.parametrize("variant", [*sorted(VARIANTS - {"free", "online"}), "nitro:floor"])
def test_a_variant_names_the_same_model(variant: str) -> None:
    found = planned([route("x")], models=[f"a/b:{variant}"])
    assert used(found) == ["operator-x"]
    assert (found.requested, found.model) == (f"a/b:{variant}", "a/b")


@pytest.mark.parametrize(
    "name",
    [
        "a/b:", "a/b:unknown", "x/y:free", ":free", "a/b:thinking", "a/b:extended", "a/b:beta",
        "a/b:batch", "a/b:thinking:nitro", "a/b:nitro:thinking", "a/b::nitro", "a/b:NITRO",
    ],
)  # fmt: skip
def test_an_unknown_suffix_is_part_of_the_model_name(name: str) -> None:
    with pytest.raises(ModelNotFound):
        planned([route("x")], models=[name])


def test_the_free_variant_excludes_priced_endpoints() -> None:
    routes = [route("x", "1"), route("y", "0")]
    found = planned(routes, models=["a/b:free"])
    assert used(found) == ["operator-y"]
    assert [each.reasons for each in found.excluded] == [["not_free"]]
    assert used(planned(routes, models=["a/b:free", "a/b"])) == ["operator-y", "operator-x"]
    assert used(planned(routes, models=["a/b", "a/b-1"])) == ["operator-y", "operator-x"]


def test_variants_stack() -> None:
    routes = [route("x", "1"), route("y", "0"), route("z", "0")]
    health = {"health_of": lambda endpoint: Health(throughput=dict.fromkeys(SHARES, 5.0))}
    for name in ("a/b:free:nitro", "a/b:nitro:free"):
        found = planned(routes, models=[name], options=health)
        assert sorted(used(found)) == ["operator-y", "operator-z"]
        assert (found.requested, found.model) == (name, "a/b")


def test_a_model_whose_slug_ends_like_a_variant_is_found_by_its_slug() -> None:
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


def test_an_endpoint_that_misses_a_preference_comes_after_the_next_model() -> None:
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
