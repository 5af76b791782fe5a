"""Tools that a provider runs travel only where they have a rate, or where the caller pays it."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from catalog.capabilities import UNDESCRIBED, Capabilities, NativeFormat
from catalog.dialects import openai
from catalog.dialects.base import Operation, Reply
from catalog.pricing import Price, Usage
from config.api.errors import InvalidRequest
from inference.admission.estimate import worst_case_nano
from inference.exchange.attempts import build_call
from inference.exchange.tally import Tally
from inference.requests import parsing
from inference.requests.messages import native
from inference.requests.operations.server_tools import leave_out
from inference.routing.candidates import Selection
from inference.routing.routes import Route, RoutingDefaults
from tests.support.database.snapshots import unchanged
from tests.support.inference.prices import read_pricing
from tests.support.inference.routes import route, select
from tests.support.inference.site import Site

PRICED = read_pricing({"web_search": "0.01"})
PLAIN = read_pricing({})
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {}}}
SEARCH = {"type": "web_search"}
ROUTED = {"type": "openrouter:web_search"}
CODE = {"type": "code_interpreter"}
CLAUDE = Capabilities(native_format=NativeFormat.ANTHROPIC)


def parse(**fields: Any) -> parsing.InferenceRequest:
    body = {"model": "a/b", "messages": [{"role": "user", "content": "x"}], **fields}
    return parsing.parse(Operation.CHAT, json.dumps(body).encode())


def served(provider: str, price: Price, **fields: Any) -> Route:
    return replace(route(provider, **fields), price=price)


def listing(*names: str) -> dict[str, Any]:
    """The members of a route whose endpoint lists these parameters."""
    return dict.fromkeys(("supported_parameters", "listed_parameters"), frozenset(names))


def searching(dialect: str, price: Price, provider: str = "a", **fields: Any) -> Route:
    """A route of a format that has a search of its own."""
    capabilities = UNDESCRIBED if dialect == "gemini" else CLAUDE
    return served(provider, price, dialect=dialect, capabilities=capabilities, **fields)


def sent(request: parsing.InferenceRequest, selection: Selection) -> dict[str, Any]:
    """Returns what travels to the first candidate, besides the messages."""
    call = build_call(selection.candidates[0], request, None, None)
    fields = {name: json.loads(bytes(raw)) for name, raw in call.fields.items()}
    del fields["messages"]
    return fields


@pytest.mark.parametrize("is_checked", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [SEARCH, {**FUNCTION, "max_uses": 7.5}]),
        ("tools", [{**SEARCH, "max_uses": 7.5}]),
        ("store", 7.5),
        ("service_tier", {"a": 7.5}),
    ],
)
def test_a_number_out_of_range_hides_nothing_that_costs(
    name: str, value: Any, is_checked: bool
) -> None:
    """A preset of an earlier release may have such a number, and joins a body that was checked."""
    body = {"model": "a/b", "messages": [{"role": "user", "content": "x"}], name: value}
    text = json.dumps(body).replace("7.5", "1e400").encode()
    with pytest.raises(InvalidRequest) as raised:
        parsing.parse(Operation.CHAT, text, is_checked=is_checked)
    assert list(raised.value.metadata["fields"]) == [name]


def test_a_tool_is_left_out_whatever_it_says_beside_its_type() -> None:
    fields: dict[str, Any] = {"tools": msgspec.Raw(b'[{"type": "web_search", "max_uses": 1e400}]')}
    leave_out(fields, frozenset(("web_search",)))
    assert fields == {}


def test_the_next_endpoint_that_has_a_rate_is_used() -> None:
    request = parse(tools=[FUNCTION, SEARCH])
    selection = select(request, served("a", PLAIN), served("b", PRICED))
    assert [each.route.facts.provider_slug for each in selection.candidates] == ["b"]
    assert [each.reasons for each in selection.excluded] == [["no_rate"]]
    assert sent(request, selection) == {"tools": [FUNCTION, SEARCH]}


def test_without_any_rate_the_tool_is_left_out() -> None:
    request = parse(tools=[FUNCTION, SEARCH, CODE], tool_choice="auto")
    selection = select(request, served("a", PLAIN))
    assert selection.candidates[0].find_unpriced(request) == {
        "web_search", "code_interpreter",
    }  # fmt: skip
    assert sent(request, selection) == {"tools": [FUNCTION], "tool_choice": "auto"}
    request = parse(tools=[SEARCH], tool_choice="auto", parallel_tool_calls=True)
    assert sent(request, select(request, served("a", PLAIN))) == {}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tools": [SEARCH], "tool_choice": {"type": "web_search"}}, "web_search"),
        ({"tools": [SEARCH], "tool_choice": "required"}, "web_search"),
        ({"tools": [ROUTED, FUNCTION], "tool_choice": {"type": "web_search"}}, "openrouter:web"),
        ({"tools": [CODE, FUNCTION], "tool_choice": {"type": "code_interpreter"}}, "code_interp"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"web_search_options": {"mode": "off"}}, "web_search_options"),
        ({"search_parameters": {"mode": "on"}}, "search_parameters"),
        ({"enable_search": True}, "enable_search"),
        ({"plugins": [{"id": "moderation", "enabled": False}, {"id": "web"}]}, "plugins[1].id: "),
        ({"model": "a/b:online"}, "model: "),
        ({"models": ["a/b:nitro:online", "c/d"]}, "model: "),
        ({"service_tier": "priority"}, "service_tier: "),
        ({"service_tier": "fast"}, "service_tier: "),
        ({"store": True}, "store: "),
        ({"service_tier": "flex", "store": True}, "service_tier, store: "),
    ],
)
def test_a_demanded_tool_without_a_rate_is_refused_by_name(
    fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        select(parse(**fields), served("a", PLAIN))
    assert raised.value.message.startswith(name)
    assert raised.value.metadata["excluded"][0]["excluded_by"] == ["no_rate"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [SEARCH, FUNCTION], "tool_choice": "required"},
        {"search_parameters": {"mode": "auto"}},
        {"search_parameters": {"mode": "off"}},
        {"web_search_options": None},
        {"web_search_options": ""},
        {"search_parameters": []},
        {"enable_search": False},
        {"enable_search": ""},
        {"service_tier": "auto"},
        {"service_tier": "default"},
        {"service_tier": None},
        {"service_tier": ""},
        {"store": False},
        {"store": None},
        {"plugins": [{"id": "web", "enabled": False}]},
    ],
)
def test_an_offer_without_a_rate_is_not_refused(fields: dict[str, Any]) -> None:
    assert len(select(parse(**fields), served("a", PLAIN)).candidates) == 1


@pytest.mark.parametrize("capabilities", [CLAUDE, UNDESCRIBED])
@pytest.mark.parametrize("is_own", [True, False])
def test_a_format_without_tools_of_the_provider_gets_none(
    capabilities: Capabilities, is_own: bool
) -> None:
    members = {"private": is_own, "dialect": "bedrock", "capabilities": capabilities}
    found = served("own" if is_own else "a", PRICED, **members)
    request = parse(tools=[FUNCTION, {**SEARCH, "search_context_size": "low"}, CODE])
    selection = select(request, found)
    assert sent(request, selection) == {"tools": [FUNCTION]}
    left_out = selection.candidates[0].name_left_out(request)
    assert left_out == ["code_interpreter", "web_search"]
    # One that runs them comes first, and is the only one if they are demanded.
    other = served("b", PRICED)
    offer = parse(tools=[FUNCTION, SEARCH])
    [candidate] = select(offer, found, other).candidates
    assert candidate.route is other
    demand = parse(web_search_options={})
    assert [each.route for each in select(demand, found, other).candidates] == [other]
    with pytest.raises(InvalidRequest, match="web_search_options"):
        select(demand, found)


@pytest.mark.parametrize("dialect", ["anthropic", "azure", "vertex"])
@pytest.mark.parametrize("is_own", [True, False])
def test_a_format_with_a_search_gets_it_without_its_settings(dialect: str, is_own: bool) -> None:
    # The list of an endpoint says nothing of a field that is translated.
    lists = listing("tools", "tool_choice")
    if is_own:
        found = searching(dialect, PLAIN, "own", private=True, **lists)
    else:
        found = searching(dialect, PRICED, **lists)
    search = {**SEARCH, "max_uses": 2}
    request = parse(tools=[FUNCTION, {**search, "search_context_size": "low"}, CODE])
    selection = select(request, found)
    assert sent(request, selection) == {"tools": [FUNCTION, search]}
    left_out = selection.candidates[0].name_left_out(request)
    assert left_out == ["code_interpreter", "search_context_size"]
    call = build_call(selection.candidates[0], request, None, None)
    assert call.most_searches == 2
    demand = parse(web_search_options={"search_context_size": "high"})
    assert sent(demand, select(demand, found)) == {"web_search_options": {}}
    for field in (
        {"search_parameters": {"mode": "on"}},
        {"enable_search": True},
        {"service_tier": "flex"},
        {"store": True},
        {"data_sources": [{"type": "azure_search"}]},
    ):
        with pytest.raises(InvalidRequest, match=next(iter(field))):
            select(parse(**field), found)


def test_a_format_with_a_search_needs_a_rate_for_it() -> None:
    found = searching("anthropic", PLAIN)
    request = parse(tools=[SEARCH])
    selection = select(request, found)
    assert sent(request, selection) == {}
    assert selection.candidates[0].name_left_out(request) == ["web_search"]
    # Nothing is held for a search that nobody makes.
    assert worst_case_nano(request, selection.candidates[0], max_tokens=0) == (
        request.prompt_bound * 10**9
    )
    with pytest.raises(InvalidRequest, match="web_search: no endpoint"):
        select(parse(tools=[SEARCH], tool_choice={"type": "web_search"}), found)


@pytest.mark.parametrize(
    ("dialect", "search", "is_sent"),
    [
        ("anthropic", {"allowed_domains": ["a.example"]}, True),
        ("anthropic", {"excluded_domains": ["a.example"], "user_location": {"city": "Oslo"}}, True),
        ("anthropic", {"parameters": {"max_uses": 3}, "engine": "native"}, True),
        ("anthropic", {"name": "web_search", "max_results": None}, True),
        ("anthropic", {"max_results": 3}, False),
        ("anthropic", {"parameters": {"max_results": 3}}, False),
        ("anthropic", {"parameters": {"search_context_size": "high"}}, False),
        ("anthropic", {"parameters": 5}, False),
        ("anthropic", {"engine": "exa"}, False),
        ("anthropic", {"name": "look"}, False),
        ("anthropic", {"of_next_year": True}, False),
        ("gemini", {}, True),
        ("gemini", {"engine": "auto", "parameters": {"engine": "native"}}, True),
        ("gemini", {"max_uses": 3}, False),
        ("gemini", {"user_location": {"city": "Oslo"}}, False),
    ],
)
def test_a_search_with_an_option_that_a_format_lacks_is_left_out_and_named(
    dialect: str, search: dict[str, Any], is_sent: bool
) -> None:
    found = searching(dialect, PRICED)
    request = parse(tools=[SEARCH | search])
    [candidate] = select(request, found).candidates
    assert candidate.name_left_out(request) == ([] if is_sent else ["web_search"])
    demand = parse(tools=[{"type": "openrouter:web_search", **search}], tool_choice="required")
    if is_sent and dialect == "anthropic":
        assert len(select(demand, found).candidates) == 1
    else:
        with pytest.raises(InvalidRequest, match="openrouter:web_search: no endpoint"):
            select(demand, found)


def test_gemini_searches_alone_and_only_if_it_likes() -> None:
    found = searching("gemini", PRICED)
    request = parse(tools=[FUNCTION, SEARCH])
    [candidate] = select(request, found).candidates
    assert candidate.name_left_out(request) == ["web_search"]
    assert sent(request, select(request, found)) == {"tools": [FUNCTION]}
    with pytest.raises(InvalidRequest, match="web_search: no endpoint"):
        select(parse(tools=[SEARCH], tool_choice={"type": "web_search"}), found)
    online = parse(model="a/b:online")
    assert sent(online, select(online, found)) == {"web_search_options": {}}


def test_openais_chat_searches_by_its_field_alone() -> None:
    """Its list says whether a model of OpenAI's format has the field; no model has the tool."""
    knows = served("a", PRICED, **listing("tools", "web_search_options", "search_context_size"))
    lacks = served("a", PRICED, **listing("tools"))
    size = {**SEARCH, "search_context_size": "low", "user_location": {"city": "Oslo"}}
    request = parse(tools=[FUNCTION, size], tool_choice={"type": "web_search"})
    [candidate] = select(request, knows).candidates
    body = json.loads(openai.build(build_call(candidate, request, None, None)).body or b"")
    assert body["web_search_options"] == {
        "search_context_size": "low",
        "user_location": {"type": "approximate", "approximate": {"city": "Oslo"}},
    }
    assert body["tools"] == [FUNCTION]
    assert "tool_choice" not in body
    alone = parse(tools=[SEARCH], tool_choice="auto", parallel_tool_calls=True)
    # Perplexity's models list the field and no functions.
    bare = served("a", PRICED, **listing("web_search_options"))
    for request, found in ((alone, knows), (alone, bare), (parse(tools=[FUNCTION, SEARCH]), bare)):
        [candidate] = select(request, found).candidates
        body = json.loads(openai.build(build_call(candidate, request, None, None)).body or b"")
        assert {*body} == {"model", "messages", "stream", "web_search_options"}
    bounded = parse(tools=[{**SEARCH, "max_uses": 1}])
    for request, found in ((bounded, knows), (parse(tools=[FUNCTION, SEARCH]), lacks)):
        [candidate] = select(request, found).candidates
        assert candidate.name_left_out(request) == ["web_search"]
        assert "web_search_options" not in sent(request, select(request, found))
    with pytest.raises(InvalidRequest, match="web_search: no endpoint"):
        select(parse(tools=[SEARCH], tool_choice="required"), lacks)


@pytest.mark.parametrize("dialect", ["anthropic", "gemini"])
def test_the_hold_covers_the_results_of_searches_in_the_prompt(dialect: str) -> None:
    price = read_pricing({"prompt": "1", "completion": "0", "web_search": "100"})
    request = parse(tools=[SEARCH])
    [candidate] = select(request, searching(dialect, price)).candidates
    tokens = request.prompt_bound + 10 * 16_384
    assert worst_case_nano(request, candidate) == (tokens + 10 * 100) * 10**9
    tally = Tally(request, Decimal(0))
    tally.allow(candidate)
    usage = Usage(tokens, 1, searches=10)
    tally.add(Reply({}, None, usage, "stop", output_bytes=1))
    assert (tally.count().usage, tally.find_claim()) == (usage, None)
    tally = Tally(request, Decimal(0))
    tally.allow(candidate)
    tally.add(Reply({}, None, Usage(tokens + 1, 1, searches=11), "stop", output_bytes=1))
    assert tally.count().usage == usage
    claim = tally.find_claim()
    assert claim is not None
    assert (claim.excess_nano, claim.reason) == (101 * 10**9, "prompt")


@pytest.mark.parametrize(
    ("part", "is_stored"),
    [
        ({"type": "file", "file": {"file_id": "file-1"}}, True),
        ({"type": "image_file", "image_file": {"file_id": "file-1"}}, True),
        ({"type": "file", "file": {"file_id": None, "file_data": "data:,"}}, False),
        ({"type": "file", "file": {"file_id": "", "file_data": "data:,"}}, False),
        ({"type": "text", "text": '"file_id": "file-1"'}, False),
    ],
)
def test_a_file_of_the_providers_account_needs_an_own_one(
    part: dict[str, Any], is_stored: bool
) -> None:
    schema = {"type": "object", "properties": {"file_id": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    request = parse(messages=[{"role": "user", "content": [part]}], tools=[tool])
    assert len(select(request, served("own", PLAIN, private=True)).candidates) == 1
    if is_stored:
        with pytest.raises(InvalidRequest, match=r"^file_id: no endpoint"):
            select(request, served("a", PLAIN))
    else:
        assert len(select(request, served("a", PLAIN)).candidates) == 1


@pytest.mark.parametrize(
    ("mark", "is_long"),
    [
        ('"ttl": "1h"', True),
        (r'"\u0074tl" : "1\u0068"', True),
        (r'"t\u0074\u006C":"\u0031h"', True),
        ('"ttl": "5m"', False),
        (r'"\u0074tl": "5m"', False),
    ],
)
def test_an_escaped_lifetime_needs_a_rate_too(mark: str, is_long: bool) -> None:
    message = (
        f'{{"role": "user", "content": "x", "cache_control": {{"type": "ephemeral", {mark}}}}}'
    )
    body = f'{{"model": "a/b", "messages": [{message}]}}'.encode()
    request = parsing.parse(Operation.CHAT, body)
    assert request.has_long_cache is is_long
    [candidate] = select(request, served("a", PLAIN)).candidates
    made = openai.build(build_call(candidate, request, None, None)).body or b""
    [sent_message] = json.loads(made)["messages"]
    lifetime = {} if is_long else {"ttl": "5m"}
    assert sent_message["cache_control"] == {"type": "ephemeral", **lifetime}
    # Native Messages are judged and changed by the same bytes.
    text = f'{{"model": "a/b", "max_tokens": 1, "messages": [{message}]}}'.encode()
    assert native.parse_message(text).has_long_cache is is_long


def test_an_escaped_file_is_a_file_too() -> None:
    for name in ("file_id", r"\u0066ile_id", r"file\u005Fi\u0064"):
        part = f'{{"type": "file", "file": {{"{name}": "f"}}}}'
        message = f'{{"role": "user", "content": [{part}]}}'
        request = parsing.parse(
            Operation.CHAT, f'{{"model": "a/b", "messages": [{message}]}}'.encode()
        )
        assert request.server_tools.demanded == {"file_id"}


def test_an_own_credential_passes_everything() -> None:
    request = parse(tools=[SEARCH, CODE], tool_choice={"type": "code_interpreter"})
    selection = select(request, served("own", PLAIN, private=True))
    assert sent(request, selection)["tools"] == [SEARCH, CODE]


def test_a_fee_for_each_request_pays_for_a_model_that_always_searches() -> None:
    sonar = read_pricing({"request": "0.006"})
    found = served("a", sonar, **listing("web_search_options"))
    assert len(select(parse(web_search_options={}), found).candidates) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "a/b:online"},
        {"plugins": [{"id": "web"}]},
        {"model": "a/b:floor:online"},
        {"web_search_options": {}},
    ],
)
def test_a_demanded_search_goes_where_it_has_a_rate(fields: dict[str, Any]) -> None:
    request = parse(**fields)
    selection = select(request, served("a", PLAIN), served("b", PRICED))
    assert [each.route.facts.provider_slug for each in selection.candidates] == ["b"]
    assert sent(request, selection) == {"web_search_options": {}}


def test_an_endpoint_that_does_not_list_the_field_is_not_asked_to_search() -> None:
    parameters = frozenset(("temperature",))
    for name in ("a", "own"):
        found = served(name, PRICED, supported_parameters=parameters, private=name == "own")
        with pytest.raises(InvalidRequest):
            select(parse(model="a/b:online"), found)


def test_a_default_model_that_searches_must_be_named() -> None:
    with pytest.raises(InvalidRequest, match="model: Name 'a/b:online' in the request"):
        select(
            parse(model=None),
            served("a", PRICED),
            defaults=RoutingDefaults(text_model="a/b:online"),
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("service_tier", "flex"),
        ("store", True),
        ("data_sources", [{"type": "azure_search", "parameters": {}}]),
        ("dataSources", [{"type": "AzureCosmosDB"}]),
    ],
)
def test_a_field_at_the_operators_expense_goes_where_it_is_listed(name: str, value: Any) -> None:
    request = parse(**{name: value})
    lists = frozenset((name,))
    selection = select(request, served("a", PLAIN), served("b", PLAIN, supported_parameters=lists))
    assert [each.route.facts.provider_slug for each in selection.candidates] == ["b"]
    assert sent(request, selection) == {name: value}
    own = select(request, served("own", PLAIN, private=True))
    assert sent(request, own) == {name: value}


@pytest.mark.parametrize("name", ["service_tier", "store", "data_sources"])
def test_the_options_of_a_provider_change_no_price(name: str) -> None:
    with pytest.raises(InvalidRequest):
        parse(provider={"options": {"acme": {name: "priority"}}})


USER = {"type": "approximate", "approximate": {"city": "Oslo"}}


@pytest.mark.parametrize(
    ("fields", "names", "kept"),
    [
        (
            {"web_search_options": {"search_context_size": "high", "user_location": USER}},
            {"search_context_size"},
            {"web_search_options": {"user_location": USER}},
        ),
        (
            {"web_search_options": {"search_context_size": "low", "search_type": "pro"}},
            {"search_context_size", "search_type"},
            {"web_search_options": {}},
        ),
        (
            {"tools": [{**SEARCH, "search_context_size": "high", "max_uses": 1}, FUNCTION]},
            {"search_context_size"},
            {"tools": [{**SEARCH, "max_uses": 1}, FUNCTION]},
        ),
        ({"prompt_cache_options": {"mode": "explicit", "ttl": "12h"}},
         {"prompt_cache_options"}, {}),
        ({"prompt_cache_options": {"ttl": 43_200}}, {"prompt_cache_options"}, {}),
        ({"prompt_cache_retention": "24h", "seed": 1}, {"prompt_cache_retention"}, {"seed": 1}),
    ],
)  # fmt: skip
def test_a_setting_that_changes_the_price_is_not_sent_at_the_operators_cost(
    fields: dict[str, Any], names: set[str], kept: dict[str, Any]
) -> None:
    request = parse(**fields)
    selection = select(request, served("a", PRICED))
    assert sent(request, selection) == kept
    assert selection.candidates[0].name_left_out(request) == sorted(names)
    lists = frozenset((*names, "web_search_options", "tools", "seed"))
    for found in (
        served("a", PRICED, supported_parameters=lists),
        served("own", PRICED, private=True),
    ):
        selection = select(request, found)
        assert sent(request, selection) == fields
        assert selection.candidates[0].name_left_out(request) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"web_search_options": {"search_context_size": None}},
        {"prompt_cache_options": {"mode": "explicit"}},
        {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
        {"prompt_cache_options": None},
        {"prompt_cache_retention": "in_memory"},
        {"prompt_cache_retention": None},
    ],
)
def test_a_setting_that_is_usual_is_sent(fields: dict[str, Any]) -> None:
    request = parse(**fields)
    selection = select(request, served("a", PRICED))
    assert sent(request, selection) == fields
    assert selection.candidates[0].name_left_out(request) == []


def test_a_search_that_is_left_out_has_no_settings() -> None:
    request = parse(tools=[{**SEARCH, "search_context_size": "high"}])
    [candidate] = select(request, served("a", PLAIN)).candidates
    assert candidate.name_left_out(request) == ["web_search"]


@pytest.mark.parametrize("value", [1, "true", [1], {"mode": 1}])
@pytest.mark.parametrize("name", ["enable_search", "search_parameters", "web_search_options"])
def test_a_search_of_another_shape_needs_a_rate_too(name: str, value: Any) -> None:
    request = parse(**{name: value})
    assert request.allowed.searches == 10
    with pytest.raises(InvalidRequest, match=name):
        select(request, served("a", PLAIN))


@pytest.mark.parametrize(
    ("fields", "searches"),
    [
        ({}, 0),
        ({"tools": [FUNCTION]}, 0),
        ({"tools": [SEARCH]}, 10),
        ({"tools": [SEARCH], "n": 2}, 20),
        ({"tools": [SEARCH | {"max_uses": 3}]}, 3),
        ({"tools": [SEARCH | {"max_uses": 0}]}, 10),
        ({"tools": [SEARCH | {"max_uses": 1_000}]}, 1_000),
        ({"tools": [SEARCH | {"max_uses": 1_001}]}, 1_000),
        ({"tools": [SEARCH | {"max_uses": "1001"}]}, 1_000),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, 0),
        ({"web_search_options": {}}, 10),
        ({"model": "a/b:online"}, 10),
        ({"plugins": [{"id": "web"}], "n": 2}, 20),
    ],
)
def test_the_hold_covers_the_searches_that_a_request_allows(
    fields: dict[str, Any], searches: int
) -> None:
    request = parse(max_tokens=1, **fields)
    assert request.allowed.searches == searches
    price = read_pricing({"prompt": "0", "completion": "0", "web_search": "0.01"})
    found = served("a", price)
    [candidate] = select(request, found).candidates
    assert worst_case_nano(request, candidate) == searches * 10_000_000


@pytest.mark.django_db(transaction=True)
def test_a_tool_without_a_rate_is_named_in_a_header_and_the_metadata(site: Site) -> None:
    site.publish()
    answer = site.post(
        site.chat_body("x", tools=[SEARCH, FUNCTION]),
        headers={"X-OpenRouter-Metadata": "enabled"},
    )
    assert answer.status_code == 200, answer.content
    assert answer.headers["x-left-out"] == "web_search"
    stages = answer.json()["openrouter_metadata"]["pipeline"]
    assert [stage["data"] for stage in stages if stage["name"] == "left-out"] == [
        {"left_out": ["web_search"]}
    ]
    site.settled()
    with unchanged():
        refused = site.chat("x", tools=[SEARCH], tool_choice={"type": "web_search"})
    assert refused.status_code == 400
    assert "web_search" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "name",
    [
        "enable_search", "search_parameters", "web_search_options", "prompt_cache_options",
        "prompt_cache_retention",
    ],
)  # fmt: skip
def test_options_of_a_provider_start_no_search_and_lengthen_no_cache(name: str) -> None:
    with pytest.raises(InvalidRequest) as excinfo:
        parse(provider={"options": {"acme": {name: {}}}})
    assert excinfo.value.message == f"provider.options.acme.{name}: Set it in the body itself."
