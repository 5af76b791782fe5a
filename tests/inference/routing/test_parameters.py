"""Requirements of a request on its endpoints: prices, quantizations and parameters."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from accounts.models import Guardrail
from catalog.abilities import read_abilities
from catalog.dialects.base import Operation
from catalog.pricing import Billable, Price, Rule
from config.server.load.large_work import LARGE_BYTES
from endpoints.models import IMAGE_INPUT, Validation
from inference.requests import parsing, schemas
from inference.routing.candidates import select_candidates
from tests.support.inference.pictures import reference
from tests.support.inference.routes import (
    candidate,
    excluded,
    planned,
    reasons,
    refused,
    route,
    select,
)
from tests.support.inference.site import Site

SHOWN = [{"role": "user", "content": [reference()]}]
TOOLS = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
JSON = {"response_format": {"type": "json_object"}}


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
def test_an_endpoint_above_max_price_is_excluded(
    limit: dict[str, Any], price: str, admitted: bool
) -> None:
    endpoint = route("dear", price)
    if admitted:
        assert len(planned([endpoint], max_price=schemas.MaxPrice(**limit)).candidates) == 1
        return
    expected = [excluded("Dear", "max_price")]
    assert refused(public=[endpoint], max_price=schemas.MaxPrice(**limit)) == expected


@pytest.mark.parametrize(
    ("limit", "body", "admitted"),
    [
        ("0.3", {}, True),
        ("0.29", {}, False),
        ("0.29", {"quality": "high"}, False),
        ("0.29", {"size": "1024x1024", "quality": "low"}, True),
        ("0.01", {"size": "1024x1024", "quality": "low"}, True),
        ("0.009", {"size": "1024x1024", "quality": "low"}, False),
    ],
)
def test_max_price_limits_the_images_of_an_answer(
    limit: str, body: dict[str, Any], admitted: bool
) -> None:
    rates = {"1024x1024/low": Decimal("0.01"), "2048x2048/high": Decimal("0.3")}
    rules = [Rule(Billable.IMAGE, "image", rate, name) for name, rate in rates.items()]
    endpoint = candidate(Price(Decimal(0), Decimal(0), rules=tuple(rules))).route
    provider = {"max_price": {"image": limit}}
    whole = {"model": "a/b", "prompt": "x", "provider": provider, **body}
    request = parsing.parse(Operation.IMAGES, json.dumps(whole).encode())
    found = select(request, endpoint, by=select_candidates)
    assert [each.reasons for each in found.excluded] == ([] if admitted else [["max_price"]])


WRITES = {"messages": [{"role": "user", "content": "x"}]}
DRAWS = {"text", "image"}


@pytest.mark.parametrize(
    ("operation", "body", "outputs", "dearest"),
    [
        # Thoughts cost more than text here. A model that only writes draws nothing.
        (Operation.CHAT, WRITES, {"text"}, 20),
        (Operation.CHAT, WRITES, {"text", "audio"}, 20),
        (Operation.CHAT, {**WRITES, "modalities": ["text"]}, DRAWS, 20),
        (Operation.CHAT, {**WRITES, "modalities": ["image", "text"]}, DRAWS, 120),
        (Operation.CHAT, {**WRITES, "modalities": ["image"]}, set(), 120),
        (Operation.CHAT, WRITES, DRAWS, 120),
        (Operation.CHAT, {**WRITES, "modalities": ["text", "audio"]}, {"text", "audio"}, 64),
        (Operation.IMAGES, {"prompt": "x"}, set(), 120),
        (Operation.SPEECH, {"input": "x", "voice": "v"}, {"speech"}, 64),
    ],
)
def test_max_price_limits_the_tokens_of_all_that_an_answer_may_have(
    operation: Operation, body: dict[str, Any], outputs: set[str], dearest: int
) -> None:
    rules = (
        Rule(Billable.REASONING, "token", Decimal("0.00002")),
        Rule(Billable.COMPLETION, "token", Decimal("0.000064"), "audio"),
    )
    price = Price(Decimal(0), Decimal("0.000012"), image_output=Decimal("0.00012"), rules=rules)
    endpoint = candidate(price, outputs=frozenset(outputs)).route
    found = []
    for limit in (dearest, dearest - 1):
        whole = {"model": "a/b", "provider": {"max_price": {"completion": limit}}, **body}
        request = parsing.parse(operation, json.dumps(whole).encode())
        found.append(reasons(select(request, endpoint, by=select_candidates)))
    assert found == [{}, {"x": ["max_price"]}]


def test_only_requested_quantizations_are_candidates() -> None:
    coarse = route("two", quantization="int4")
    endpoints = [route("one", quantization="fp8"), coarse, route("three")]
    found = planned(endpoints, quantizations=["fp8", "unknown"])
    assert {each.route.facts.provider_slug for each in found.candidates} == {"one", "three"}
    assert [each.reasons for each in found.excluded] == [["quantizations"]]


def test_require_parameters_excludes_endpoints_that_do_not_list_them() -> None:
    request = parsing.parse(
        Operation.CHAT,
        b'{"model": "a/b", "messages": [{"role": "user", "content": "x"}], "temperature": 1,'
        b' "logit_bias": {}, "x_unknown": 1, "provider": {"require_parameters": true}}',
    )
    assert request.parameters == {"temperature", "logit_bias"}
    knowing = route("one", supported_parameters=frozenset(("temperature", "logit_bias")))
    ignorant = route("two", supported_parameters=frozenset(("temperature",)))
    silent = route("three")
    found = select(request, knowing, ignorant, silent)
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
def test_require_parameters_compares_parameters_by_meaning(
    asked: str, listed: tuple[str, ...] | None, serves: bool
) -> None:
    body = f'{{"model": "a/b", "messages": [{{"role": "user", "content": "x"}}], {asked}}}'
    known = None if listed is None else frozenset(listed)
    request = replace(
        parsing.parse(Operation.CHAT, body.encode()),
        preferences=schemas.ProviderPreferences(require_parameters=True),
    )
    found = select(request, route("x", supported_parameters=known), by=select_candidates)
    assert bool(found.candidates) is serves
    assert reasons(found) == ({} if serves else {"x": ["require_parameters"]})


def test_response_format_of_a_text_completion_is_an_ordinary_parameter() -> None:
    body = b'{"model": "a/b", "prompt": "x", "response_format": 7, "min_p": null}'
    assert parsing.parse(Operation.TEXT, body).needed_parameters == {"response_format"}


def test_a_private_endpoint_is_judged_by_what_was_proven(site: Site) -> None:
    site.model.supported_parameters = ["temperature", "seed"]
    site.model.save(update_fields=["supported_parameters"])
    endpoint = site.own()
    wanted = {"provider": {"require_parameters": True}}
    # Nothing was tried, so the list of the model counts.
    assert site.chat(seed=1, **wanted).status_code == 200
    assert site.chat(stop=["x"], **wanted).status_code == 404
    proofs = {"seed": "no_effect", "stop": "proven", "image_input": "proven"}
    Validation.objects.filter(pk=endpoint.validation_id).update(parameters=proofs)
    # A validation belongs to a draft; whatever replaces it moves the version, as this does.
    endpoint.save(update_fields=["updated_at"])
    answer = site.chat(seed=1, **wanted)
    assert answer.status_code == 404
    [left_out] = answer.json()["error"]["metadata"]["excluded"]
    assert left_out["excluded_by"] == ["require_parameters"]
    assert site.chat(stop=["x"], temperature=1, max_tokens=5).status_code == 200
    assert site.chat(stop=["x"], temperature=1, **wanted).status_code == 200
    # Without the requirement everything is sent.
    assert site.chat(seed=1).status_code == 200
    assert site.dialled()[-1].body["seed"] == 1


@pytest.mark.parametrize(
    ("fields", "asked", "admitted"),
    [
        ({"disproved_parameters": frozenset(("seed",))}, {"seed": 1}, False),
        ({"disproved_parameters": frozenset(("seed",))}, {"seed": None, "stop": ["x"]}, True),
        ({"disproved_parameters": frozenset(("max_tokens",))}, {"max_tokens": 5}, True),
        ({"disproved_parameters": frozenset((IMAGE_INPUT,))}, {"messages": SHOWN}, False),
        ({"disproved_parameters": frozenset((IMAGE_INPUT,))}, {"seed": 1}, True),
        ({"disproved_parameters": frozenset(("seed",))}, {"messages": SHOWN}, True),
        ({"offered_parameters": frozenset(("seed",))}, {"seed": 1}, True),
        ({"offered_parameters": frozenset(("seed",))}, {"stop": ["x"]}, False),
        ({"offered_parameters": frozenset(("max_completion_tokens",))}, {"max_tokens": 5}, True),
    ],
)
def test_required_parameters_of_a_private_endpoint(
    fields: dict[str, Any], asked: dict[str, Any], admitted: bool
) -> None:
    own = route("own", private=True, **fields)
    body = {
        "model": "a/b",
        "messages": [{"role": "user", "content": "x"}],
        "provider": {"require_parameters": True},
        **asked,
    }
    request = parsing.parse(Operation.CHAT, json.dumps(body).encode())
    found = select(request, own, by=select_candidates)
    assert bool(found.candidates) is admitted
    assert [each.reasons for each in found.excluded] == (
        [] if admitted else [["require_parameters"]]
    )


@pytest.mark.parametrize(
    ("asked", "first", "second", "serve"),
    [
        (TOOLS, ["seed"], ["tools"], {"second"}),
        (TOOLS, ["tools"], ["seed"], {"first"}),
        (TOOLS, ["seed"], None, {"second"}),
        # What none lists is left out.
        (TOOLS, ["seed"], ["stop"], {"first", "second"}),
        ({"tools": []}, ["seed"], ["tools"], {"first", "second"}),
        ({**TOOLS, "tool_choice": "required"}, ["tools"], ["seed"], {"first"}),
        ({**TOOLS, "tool_choice": "none"}, ["tools"], ["tools", "tool_choice"], {"second"}),
        (
            {**TOOLS, "tool_choice": "auto"}, ["tools"], ["tools", "tool_choice"],
            {"first", "second"},
        ),
        ({**TOOLS, **JSON}, ["tools"], ["response_format"], {"first"}),
        (JSON, ["seed"], ["response_format"], {"second"}),
        (
            {"response_format": {"type": "text"}}, ["seed"], ["response_format"],
            {"first", "second"},
        ),
        ({"seed": 7}, ["seed"], ["stop"], {"first", "second"}),
    ],
)  # fmt: skip
def test_the_form_of_an_answer_goes_to_endpoints_that_list_it(
    asked: dict[str, Any], first: list[str], second: list[str] | None, serve: set[str]
) -> None:
    body = {"model": "a/b", "messages": [{"role": "user", "content": "x"}], **asked}
    lists = {"first": first, "second": second}
    found = select(
        parsing.parse(Operation.CHAT, json.dumps(body).encode()),
        *(
            route(name, supported_parameters=None if names is None else frozenset(names))
            for name, names in lists.items()
        ),
    )
    assert {each.route.facts.provider_slug for each in found.candidates} == serve
    assert reasons(found) == {name: ["supported_parameters"] for name in lists.keys() - serve}


@pytest.mark.parametrize("is_private", [True, False])
@pytest.mark.parametrize("listed", [None, frozenset(("seed", "temperature"))])
def test_what_a_format_lacks_is_never_supported(
    listed: frozenset[str] | None, is_private: bool
) -> None:
    found = route("own", dialect="bedrock", private=is_private, supported_parameters=listed)
    for asked, why in (({"seed": 7}, {"own": ["require_parameters"]}), ({"temperature": 1}, {})):
        body = {"model": "a/b", "messages": [{"role": "user", "content": "x"}], **asked}
        body["provider"] = {"require_parameters": True}
        request = parsing.parse(Operation.CHAT, json.dumps(body).encode())
        assert reasons(select(request, found, by=select_candidates)) == why


@pytest.mark.parametrize(
    ("listed", "stated", "asked", "serves"),
    [
        ({"reasoning"}, {}, '"reasoning": {"enabled": false}', False),
        ({"reasoning"}, {}, '"reasoning": {"effort": "high"}', False),
        ({"reasoning"}, {}, '"reasoning": {"exclude": true}', True),
        ({"reasoning", "reasoning_effort"}, {}, '"reasoning": {"effort": "high"}', True),
        ({"reasoning"}, {"switch": "thinking.type"}, '"reasoning": {"enabled": false}', True),
        ({"reasoning"}, {"switch": "none"}, '"reasoning": {"enabled": true}', True),
        ({"reasoning"}, {"switch": "none"}, '"reasoning": {"effort": "low"}', False),
    ],
)
def test_thinking_that_an_endpoint_is_not_told_of_counts_as_a_parameter(
    listed: set[str], stated: dict[str, str], asked: str, serves: bool
) -> None:
    text = (
        '{"model": "a/b", "messages": [{"role": "user", "content": "x"}], %s,'
        ' "provider": {"require_parameters": true}}'
    )
    request = parsing.parse(Operation.CHAT, (text % asked).encode())
    endpoint = route(
        "one",
        supported_parameters=frozenset(listed | {"reasoning_effort"}),
        listed_parameters=frozenset(listed),
        abilities=read_abilities({"reasoning": stated} if stated else {}),
    )
    assert endpoint.drops_thinking(request) is not serves


def test_thinking_that_is_not_sent_is_named(site: Site) -> None:
    site.publish("sim-echo", supported_parameters=["reasoning", "max_tokens"])
    wish = {"reasoning": {"effort": "high"}}
    answer = site.chat(**wish)
    assert answer.status_code == 200
    assert answer.headers["X-Left-Out"] == "reasoning"
    assert site.dialled()[0].body.keys().isdisjoint(wish)
    assert "X-Left-Out" not in site.chat(reasoning={"exclude": True}).headers
    assert site.chat(**wish, provider={"require_parameters": True}).status_code == 404
    assert len(site.dialled()) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("behaviour", ["sim-echo", "sim-status-500"])
@pytest.mark.parametrize("words", [1, LARGE_BYTES])
@pytest.mark.parametrize("is_redacted", [False, True])
def test_what_is_not_sent_is_named_after_the_request_is_freed(
    site: Site, stream: bool, behaviour: str, words: int, is_redacted: bool
) -> None:
    if is_redacted:
        filters = [{"slug": "email", "action": "redact", "label": "[EMAIL]"}]
        Guardrail.objects.edit_workspace_default(
            site.tenant.workspace, content_filter_builtins=filters
        )
    site.publish(behaviour, supported_parameters=["reasoning", "max_tokens"])
    text = f"a@example.com {'x ' * words}"
    body = site.chat_body(text, stream=stream, reasoning={"effort": "high"})
    answer = site.post(body, headers={"X-OpenRouter-Metadata": "enabled"})
    assert answer.headers["X-Left-Out"] == "reasoning"
    assert '"name":"left-out"' in answer.text
