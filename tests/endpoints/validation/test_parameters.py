"""A validation learns which parameters a deployment honours, if it is asked to."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import LazySettings

from catalog.models import LanguageModel
from endpoints.history import render_proofs
from endpoints.models import PrivateEndpoint, Validation
from endpoints.validation.parameters import TRIED_NAMES
from endpoints.watch import watch
from tests.support import factories
from tests.support.endpoints.creating import ROUTE
from tests.support.endpoints.validating import validate
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator

# A deployment that takes ``max_tokens`` is not asked for the other name of the bound.
ALL = dict.fromkeys(TRIED_NAMES, "proven")
TRIED_WITHOUT = {
    "tools": ("tools", "tool_choice", "parallel_tool_calls"),
    "logprobs": ("logprobs", "top_logprobs"),
    "reasoning": ("reasoning", "reasoning_effort"),
    "response_format": ("response_format", "structured_outputs"),
    "image": ("image_input",),
}


@pytest.fixture
def seer(db: None) -> LanguageModel:
    return factories.make_model(
        "acme/seer",
        input_modalities=["text", "image"],
        supported_parameters=["temperature", "seed", "tools"],
    )


@pytest.fixture
def draft(make_draft: Callable[..., PrivateEndpoint], seer: LanguageModel) -> PrivateEndpoint:
    return make_draft(seer, upstream_model_id="sim-able", price=factories.make_price("0.001"))


def learn(draft: PrivateEndpoint, behaviour: str, *, wanted: bool | None = True) -> Validation:
    PrivateEndpoint.objects.filter(pk=draft.pk).update(upstream_model_id=behaviour)
    draft.refresh_from_db()
    return validate(draft, probe_parameters=wanted)


def proofs_of(result: Validation) -> dict[str, str]:
    assert result.passed, result.checks
    assert [check["name"] for check in result.checks] == [
        "workspace", "byok_key", "base_url", "completion", "stream", "usage", "model",
    ]  # fmt: skip
    return dict(result.parameters or {})


def test_a_deployment_that_honours_all_parameters_proves_them(
    draft: PrivateEndpoint, upstream: Simulator
) -> None:
    result = learn(draft, "sim-able")
    assert proofs_of(result) == ALL
    assert len(upstream.requests) == 2 + 13
    assert all(request.body["max_tokens"] <= 64 for request in upstream.requests)
    stored = Validation.objects.get(pk=result.pk)
    assert stored.parameters == ALL
    plain = learn(draft, "sim-able", wanted=False)
    assert stored.cost_nano > plain.cost_nano > 0


NAMES = (
    "stop", "tools", "parallel_tool_calls", "structured_outputs", "seed", "response_format",
    "logprobs", "top_logprobs", "reasoning", "image",
)  # fmt: skip


@pytest.mark.parametrize(
    ("behaviour", "verdict", "name"),
    [
        ("sim-able", "no_effect", "max_tokens"),
        *(("sim-able", "no_effect", name) for name in NAMES),
        *(("sim-strict", "refused", name) for name in NAMES),
    ],
)
def test_a_parameter_without_its_effect_is_not_proven(
    draft: PrivateEndpoint, name: str, behaviour: str, verdict: str
) -> None:
    found = proofs_of(learn(draft, f"{behaviour}:{name}"))
    lacking = TRIED_WITHOUT.get(name, (name,))
    # What needs a parameter that was not proven is not tried.
    tried = lacking[:2] if name == "tools" else lacking[:1] if name == "logprobs" else lacking
    assert found == {
        **{key: proof for key, proof in ALL.items() if key not in lacking},
        **dict.fromkeys(tried, verdict),
    }


def test_what_was_proven_is_not_tried_again(draft: PrivateEndpoint, upstream: Simulator) -> None:
    learn(draft, "sim-able:seed")
    upstream.clear()
    again = learn(draft, "sim-able:seed,stop")
    # The seed is tried again with three calls, and the picture, which is no parameter.
    assert len(upstream.requests) == 2 + 3 + 1
    assert proofs_of(again) == {"seed": "no_effect", "image_input": "proven"}
    assert draft.tested_parameters == [
        "max_tokens", "logprobs", "top_logprobs", "response_format", "structured_outputs", "stop",
        "tools", "tool_choice", "parallel_tool_calls", "reasoning", "reasoning_effort",
    ]  # fmt: skip
    upstream.clear()
    last = learn(draft, "sim-able")
    assert last.parameter_checks == [{"parameter": "seed", "supported": True}]
    assert learn(draft, "sim-able").parameter_checks == []


def test_what_is_excluded_is_neither_tried_nor_proven(
    draft: PrivateEndpoint, upstream: Simulator
) -> None:
    draft.edit(settings={"excluded_parameters": ["seed", "stop"]})
    found = proofs_of(learn(draft, "sim-able"))
    assert found == {name: proof for name, proof in ALL.items() if name not in ("seed", "stop")}
    assert not [each for each in upstream.requests if {"seed", "stop"} & each.body.keys()]
    # Another setting can be changed, although one was excluded while it was tried.
    raced = Validation.objects.get(pk=draft.validation_id)
    raced.pk, raced.parameters = uuid.uuid4(), {"seed": "proven", "tools": "proven"}
    draft.record_validation(raced)
    assert "tools" in draft.tested_parameters
    assert "seed" not in draft.tested_parameters
    draft.edit(settings={"quantization": "fp8"})


def test_a_tool_is_tried_with_required_where_its_name_has_no_effect(
    draft: PrivateEndpoint, upstream: Simulator
) -> None:
    found = proofs_of(learn(draft, "sim-able:tool_name"))
    assert found == ALL
    choices = [request.body.get("tool_choice") for request in upstream.requests]
    assert [choice for choice in choices if choice is not None] == [
        {"type": "function", "function": {"name": "report_city"}},
        "required",
    ]


def test_the_newer_name_of_the_bound_is_proven_where_the_older_is_refused(
    draft: PrivateEndpoint, upstream: Simulator
) -> None:
    found = proofs_of(learn(draft, "sim-strict:max_tokens"))
    assert found == {**ALL, "max_tokens": "refused", "max_completion_tokens": "proven"}
    assert [request.body.get("max_tokens") for request in upstream.requests].count(16) == 2
    assert upstream.requests[-1].body["max_completion_tokens"] == 16


def test_an_echo_proves_nothing_but_its_bound(draft: PrivateEndpoint) -> None:
    found = proofs_of(learn(draft, "sim-echo"))
    assert {name for name, proof in found.items() if proof == "proven"} == set()
    assert set(found.values()) == {"no_effect"}
    assert "top_logprobs" not in found
    assert "parallel_tool_calls" not in found


def test_a_model_without_images_is_shown_none(
    draft: PrivateEndpoint, seer: LanguageModel, upstream: Simulator
) -> None:
    seer.input_modalities = ["text"]
    seer.save(update_fields=["input_modalities"])
    draft = PrivateEndpoint.objects.get(pk=draft.pk)
    assert "image_input" not in proofs_of(learn(draft, "sim-able"))


def test_trials_end_at_the_bound_of_tokens(draft: PrivateEndpoint, upstream: Simulator) -> None:
    result = learn(draft, "sim-tokens:16000,500")
    assert len(upstream.requests) == 2 + 1
    assert set(proofs_of(result)) == {"max_tokens"}


def test_trials_and_checks_share_the_spend_limit(
    draft: PrivateEndpoint, upstream: Simulator, settings: LazySettings
) -> None:
    """Each answer costs 1,500 tokens, two of them those of the checks."""
    settings.VALIDATION_PROBES_PARAMETERS = True
    settings.VALIDATION_SPEND_LIMIT = 8.192
    draft.reprice(factories.make_price("0.001", "0.001"))
    assert learn(draft, "sim-tokens:1000,500", wanted=None).parameters is not None
    assert len(upstream.requests) == 2 + 4
    upstream.clear()
    # Trials that are asked for in spite of the limit have their own bound alone.
    settings.VALIDATION_SPEND_LIMIT = 1
    draft.edit(base_url=draft.base_url, upstream_model_id="sim-echo")
    assert learn(draft, "sim-tokens:1000,500", wanted=True).parameters is not None
    assert len(upstream.requests) == 2 + 6


def test_a_busy_deployment_stays_untried(draft: PrivateEndpoint, upstream: Simulator) -> None:
    result = learn(draft, "sim-limited:3")
    assert set(proofs_of(result)) == {"max_tokens"}
    assert result.passed


def test_nothing_is_tried_unless_asked(
    draft: PrivateEndpoint, upstream: Simulator, settings: LazySettings
) -> None:
    assert learn(draft, "sim-able", wanted=None).parameters is None
    assert len(upstream.requests) == 2
    settings.VALIDATION_PROBES_PARAMETERS = True
    assert learn(draft, "sim-able", wanted=False).parameters is None


def test_parameters_are_tried_where_that_costs_no_more_than_the_limit(
    draft: PrivateEndpoint, upstream: Simulator, settings: LazySettings
) -> None:
    settings.VALIDATION_PROBES_PARAMETERS = True
    settings.VALIDATION_SPEND_LIMIT = 0.08192
    draft.reprice(factories.make_price("0.000005", "0.00001001"))
    assert learn(draft, "sim-able", wanted=None).parameters is None
    assert len(upstream.requests) == 2
    draft.reprice(factories.make_price("0.00001", "0.000005"))
    assert learn(draft, "sim-able", wanted=None).parameters == ALL


def test_the_watch_tries_nothing_and_keeps_the_proofs(
    draft: PrivateEndpoint, upstream: Simulator, settings: LazySettings
) -> None:
    settings.VALIDATION_PROBES_PARAMETERS = True
    settings.VALIDATION_SPEND_LIMIT = 100
    learn(draft, "sim-able:seed")
    draft.activate()
    upstream.clear()
    found = watch(draft)
    assert found is not None
    assert (found.passed, found.parameters) == (True, None)
    assert len(upstream.requests) == 2
    draft.refresh_from_db()
    assert draft.validation is not None
    assert draft.validation.parameters == {**ALL, "seed": "no_effect"}


def test_the_interface_tells_what_was_proven(
    draft: PrivateEndpoint, tenant: Tenant, upstream: Simulator
) -> None:
    manager = factories.client(tenant.management_key)
    route = f"{ROUTE}/{draft.pk}"
    assert manager.get(route).json()["data"]["supported_parameters"] == [
        "temperature", "seed", "tools",
    ]  # fmt: skip
    PrivateEndpoint.objects.filter(pk=draft.pk).update(upstream_model_id="sim-able:seed")
    body = {"workspace_id": str(tenant.workspace.pk)}

    def ask(**options: Any) -> Any:
        return manager.post(f"{route}/validate", {**body, **options})

    assert set(ask().json()["data"]) == {"passed", "checks"}
    asked = ask(probe_parameters=True)
    assert asked.status_code == 200, asked.content
    data = asked.json()["data"]
    assert data["proofs"] == {**ALL, "seed": "no_effect"}
    assert {row["parameter"]: row["supported"] for row in data["parameters"]} == {
        name: name != "seed" for name in ALL if name != "image_input"
    }
    data = manager.get(route).json()["data"]
    assert set(data["tested_parameters"]) == set(ALL) - {"seed", "image_input"}
    shown = data["supported_parameters"]
    assert shown[:2] == ["temperature", "tools"]
    assert set(shown) == {"temperature", *ALL} - {"seed", "image_input"}
    for wrong in ("yes", 1, []):
        assert ask(probe_parameters=wrong).status_code == 400
    PrivateEndpoint.objects.get(pk=draft.pk).activate()
    [listed] = manager.get("/api/v1/models/user").json()["data"]
    assert set(listed["supported_parameters"]) == set(shown)


def test_the_console_shows_each_parameter(draft: PrivateEndpoint) -> None:
    shown = render_proofs(learn(draft, "sim-strict:seed,logprobs"))
    for line in ("stop: proven", "seed: refused", "top_logprobs: not tried"):
        assert f"<div>{line}</div>" in shown
