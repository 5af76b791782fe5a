"""Settings and parameters of private endpoints: copied, changed in part, checked and routed by."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from catalog.models import LanguageModel, Provider
from endpoints.models import PrivateEndpoint, Validation
from inference.admission.copies.organizations import load_organization
from inference.admission.copies.whole import read_catalog_on_orm
from inference.routing.routes import Route
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.creating import ROUTE, assert_refused, post
from tests.support.factories import Tenant

SENT = {
    "completions": {"chat": True, "text": False},
    "context_length": 8_192,
    "max_prompt_tokens": 8_000,
    "max_completion_tokens": 1_024,
    "excluded_parameters": ["logit_bias"],
    "inputs": {"image_urls": False, "base64_images": True},
    "quantization": "fp8",
    "reasoning": {"supported": True, "switch": "enable_thinking", "efforts": ["low", "high"]},
    "tool_choice": {"function": False},
    "roles": {"developer": False, "later_system": False},
    "string_content": True,
    "bound": {"thoughts_beside": True, "tokens_per_byte": 1.15, "media": {"image": 85}},
    "estimate": {"Thai": 1.5, "Latin, with marks": 0.8},
    "reported_model": "/models/falcon.gguf",
    "routing": {"priority": 1, "weight": 5, "max_in_flight": 8},
    "fallback": "none",
}


def shown(management: APIClient, endpoint_id: object) -> dict[str, Any]:
    data: dict[str, Any] = management.get(f"{ROUTE}/{endpoint_id}").json()["data"]
    return data


def patch(management: APIClient, endpoint: PrivateEndpoint, **body: Any) -> Any:
    return management.patch(f"{ROUTE}/{endpoint.pk}", body)


def route_of(tenant: Tenant) -> Route:
    """Returns the route of the tenant's only active endpoint, as workers see it."""
    own = load_organization(tenant.organization.pk).resolve(read_catalog_on_orm())
    [[route]] = own.routes.values()
    return route


def test_a_new_endpoint_copies_the_public_endpoint_of_its_provider(
    management: APIClient, model: LanguageModel, provider: Provider, request_body: dict[str, Any]
) -> None:
    cheap = factories.make_price("0.000001", "0.000002")
    factories.make_endpoint(
        model,
        provider,
        price=cheap,
        context_length=65_536,
        max_completion_tokens=4_096,
        quantization="fp8",
        abilities={"roles": {"developer": False}, "max_prompt_tokens": 60_000},
    )
    factories.make_endpoint(
        model, provider, price=factories.make_price("1", "1"), region="us", context_length=4_096
    )
    factories.make_endpoint(model, factories.make_provider(), context_length=2_048)
    data = shown(management, post(management, request_body).json()["data"]["id"])
    settings = data["settings"]
    assert (settings["context_length"], settings["max_completion_tokens"]) == (65_536, 4_096)
    assert (settings["quantization"], settings["max_prompt_tokens"]) == ("fp8", 60_000)
    assert settings["roles"] == {"developer": False, "later_system": None}
    assert data["max_completion_tokens"] == 4_096


def test_a_new_endpoint_copies_its_model_where_the_provider_has_no_public_one(
    management: APIClient, model: LanguageModel, request_body: dict[str, Any]
) -> None:
    factories.make_endpoint(model, factories.make_provider(), context_length=2_048)
    post(management, request_body)
    assert PrivateEndpoint.objects.get().settings == {"context_length": 131_072}


def test_settings_of_a_create_change_the_copied_ones(
    management: APIClient, model: LanguageModel, provider: Provider, request_body: dict[str, Any]
) -> None:
    factories.make_endpoint(
        model, provider, max_completion_tokens=4_096, abilities={"roles": {"developer": False}}
    )
    given = {"max_completion_tokens": None, "roles": {"later_system": True}}
    created = post(management, request_body | {"settings": given})
    assert created.status_code == 201
    assert "max_completion_tokens" not in created.json()["data"]
    assert PrivateEndpoint.objects.get().settings == {
        "context_length": 131_072,
        "roles": {"developer": False, "later_system": True},
    }


def test_a_patch_changes_every_setting_of_an_active_endpoint(
    management: APIClient, active: PrivateEndpoint
) -> None:
    response = patch(management, active, settings=SENT)
    assert response.status_code == 200, response.content
    settings = response.json()["data"]["settings"]
    assert response.json()["data"] == shown(management, active.pk)
    for name, value in SENT.items():
        if isinstance(value, dict):
            assert {key: settings[name][key] for key in value if key != "media"} == {
                key: one for key, one in value.items() if key != "media"
            }
        else:
            assert settings[name] == value
    assert settings["bound"]["media"]["image"] == 85
    assert active.status == "active"


def test_a_patch_changes_only_what_it_names_and_null_takes_it_away(
    management: APIClient, active: PrivateEndpoint
) -> None:
    patch(management, active, settings=SENT)
    before = shown(management, active.pk)["settings"]
    given = {"reasoning": {"switch": None}, "context_length": None, "quantization": None}
    response = patch(management, active, settings=given)
    assert response.status_code == 200, response.content
    after = response.json()["data"]["settings"]
    assert after == before | {
        "reasoning": before["reasoning"] | {"switch": None},
        "context_length": None,
        "quantization": "unknown",
    }
    assert patch(management, active, settings={"reasoning": None}).status_code == 200
    assert shown(management, active.pk)["settings"]["reasoning"]["efforts"] is None


def test_an_empty_patch_changes_nothing(management: APIClient, active: PrivateEndpoint) -> None:
    with snapshots.unchanged():
        for body in ({}, {"settings": {}}, {"settings": None}):
            assert patch(management, active, **body).status_code == 200


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"completions": {"chat": False, "text": False}}, "settings.completions"),
        ({"max_prompt_tokens": 131_073}, "settings.max_prompt_tokens"),
        ({"context_length": 100, "max_prompt_tokens": 101}, "settings.max_prompt_tokens"),
        ({"context_length": None, "max_prompt_tokens": 131_073}, "settings.max_prompt_tokens"),
        ({"excluded_parameters": ["seed"]}, "settings.excluded_parameters"),
    ],
)
def test_settings_that_fit_nothing_are_refused_by_name(
    management: APIClient, active: PrivateEndpoint, settings: dict[str, Any], field: str
) -> None:
    PrivateEndpoint.objects.filter(pk=active.pk).update(tested_parameters=["seed"])
    with snapshots.unchanged():
        response = patch(management, active, settings=settings, declared_parameters=["stop"])
        error = assert_refused(response, 400, "settings_invalid")
        assert list(error["metadata"]["fields"]) == [field]
        assert error["message"].startswith(f"settings_invalid: {field}: ")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"context_length": 0}, "settings.context_length"),
        ({"context_length": "5"}, "settings.context_length"),
        ({"quantization": "int3"}, "settings.quantization"),
        ({"reasoning": {"switch": "on"}}, "settings.reasoning.switch"),
        ({"reasoning": {"efforts": ["huge"]}}, "settings.reasoning.efforts.0"),
        ({"excluded_parameters": ["colour"]}, "settings.excluded_parameters.0"),
        ({"tool_choice": {"auto": "yes"}}, "settings.tool_choice.auto"),
        ({"bound": {"tokens_per_byte": "1"}}, "settings.bound.tokens_per_byte"),
        ({"bound": {"media": {"film": 1}}}, "settings.bound.media.film"),
        ({"estimate": {"Thay": 1.5}}, "settings.estimate.Thay"),
        ({"estimate": {"Thai": 0}}, "settings.estimate.Thai"),
        ({"estimate": {"Thai": "2"}}, "settings.estimate.Thai"),
        ({"estimate": {"Thai": 10**400}}, "settings.estimate.Thai"),
        ({"estimate": ["Thai"]}, "settings.estimate"),
        ({"colour": None}, "settings.colour"),
        ({"reported_model": ""}, "settings.reported_model"),
        ({"reported_model": "a\nb"}, "settings.reported_model"),
    ],
)
def test_settings_of_a_wrong_shape_are_refused_by_name(
    management: APIClient, active: PrivateEndpoint, settings: dict[str, Any], field: str
) -> None:
    with snapshots.unchanged():
        error = assert_refused(patch(management, active, settings=settings), 400, "invalid_request")
        assert list(error["metadata"]["fields"]) == [field]


@pytest.mark.parametrize(
    "change",
    [{"upstream_model_id": "other"}, {"base_url": "https://other.example.com/v1"},
     {"declared_zdr": True}, {"declared_region": "us"}],
)  # fmt: skip
def test_an_upstream_field_of_an_active_endpoint_refuses_the_whole_patch(
    management: APIClient, active: PrivateEndpoint, change: dict[str, Any]
) -> None:
    with snapshots.unchanged():
        more = {
            "settings": {"context_length": 4_096},
            "declared_parameters": ["seed"],
            "pricing": {"prompt": "1", "completion": "1"},
        }
        assert_refused(patch(management, active, **more, **change), 409, "already_active")


def test_declared_parameters_are_replaced_by_patch_and_put(
    management: APIClient, active: PrivateEndpoint
) -> None:
    response = patch(management, active, declared_parameters=["stop", "seed", "stop"])
    assert response.json()["data"]["declared_parameters"] == ["seed", "stop"]
    replaced = management.put(
        f"{ROUTE}/{active.pk}/parameters", {"declared_parameters": ["tools", "tool_choice"]}
    )
    assert replaced.status_code == 200
    assert replaced.json()["data"] == shown(management, active.pk)
    assert replaced.json()["data"]["declared_parameters"] == ["tools", "tool_choice"]
    assert replaced.json()["data"]["supported_parameters"] == ["tool_choice", "tools"]


@pytest.mark.parametrize("body", [{}, {"declared_parameters": None}, {"parameters": ["seed"]}])
def test_put_parameters_needs_them(
    management: APIClient, active: PrivateEndpoint, body: dict[str, Any]
) -> None:
    before = snapshots.everything()
    assert_refused(management.put(f"{ROUTE}/{active.pk}/parameters", body), 400, "invalid_request")
    assert snapshots.everything() == before


def test_a_choice_of_tools_needs_tools(
    management: APIClient, active: PrivateEndpoint, request_body: dict[str, Any]
) -> None:
    with snapshots.unchanged():
        alone = {"declared_parameters": ["tool_choice"]}
        for response in (
            patch(management, active, **alone, settings={"string_content": True}),
            management.put(f"{ROUTE}/{active.pk}/parameters", alone),
            post(management, request_body | alone),
        ):
            assert_refused(response, 400, "parameters_invalid")
    PrivateEndpoint.objects.filter(pk=active.pk).update(tested_parameters=["tools"])
    assert patch(management, active, **alone).status_code == 200


def test_supported_is_listed_tested_and_declared_less_disproved_and_excluded(
    management: APIClient, active: PrivateEndpoint, model: LanguageModel, tenant: Tenant
) -> None:
    model.supported_parameters = ["temperature", "top_p", "stop", "seed"]
    model.save_fields("supported_parameters")
    Validation.objects.filter(endpoint=active).update(
        parameters={"stop": "no_effect", "logprobs": "proven", "verbosity": "refused"}
    )
    PrivateEndpoint.objects.filter(pk=active.pk).update(tested_parameters=["tools"])
    patch(
        management,
        active,
        declared_parameters=["tool_choice", "verbosity", "min_p"],
        settings={"excluded_parameters": ["top_p", "min_p"]},
    )
    supported = shown(management, active.pk)["supported_parameters"]
    assert supported == ["temperature", "seed", "logprobs", "tool_choice", "tools"]
    assert route_of(tenant).offered_parameters == frozenset(supported)


def test_a_changed_upstream_clears_what_was_tested(
    management: APIClient, tenant: Tenant, model: LanguageModel, provider: Provider
) -> None:
    draft = factories.make_draft(tenant, model, provider, declared_parameters=["stop"])
    PrivateEndpoint.objects.filter(pk=draft.pk).update(tested_parameters=["seed"])
    assert patch(management, draft, declared_zdr=True).status_code == 200
    assert shown(management, draft.pk)["tested_parameters"] == ["seed"]
    assert patch(management, draft, upstream_model_id="other").status_code == 200
    data = shown(management, draft.pk)
    assert (data["tested_parameters"], data["declared_parameters"]) == ([], ["stop"])


def test_workers_route_by_the_settings(
    management: APIClient, active: PrivateEndpoint, tenant: Tenant
) -> None:
    before = route_of(tenant)
    assert (before.context_length, before.max_completion_tokens) == (131_072, None)
    assert {str(each) for each in before.operations} == {"chat/completions", "completions"}
    assert patch(management, active, settings=SENT).status_code == 200
    route = route_of(tenant)
    assert (route.context_length, route.max_completion_tokens) == (8_192, 1_024)
    assert (route.quantization, route.abilities.max_prompt_tokens) == ("fp8", 8_000)
    assert {str(each) for each in route.operations} == {"chat/completions"}
    assert route.abilities.reasoning.switch == "enable_thinking"
    assert route.abilities.bound.tokens_per_byte == 1.15
    assert route.abilities.roles.developer is False
