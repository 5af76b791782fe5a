"""What an endpoint is able to do: in catalogue files, in lists, and as workers read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rest_framework.test import APIClient

from catalog import imports
from catalog.abilities import (
    UNSET_SETTINGS,
    UNSTATED,
    EndpointSettings,
    change,
    dump,
    read_abilities,
    read_settings,
    show,
)
from catalog.models import ModelEndpoint
from config.bulk.problems import ImportRefused
from inference.admission.copies.whole import read_catalog_on_orm
from tests.support import factories

STATED: dict[str, Any] = {
    "max_prompt_tokens": 1_000,
    "excluded_parameters": ["seed"],
    "reasoning": {"switch": "thinking.type", "must_return": True},
    "bound": {"message": 61, "media": {"image_tile": 5_667}},
}


def load(**members: Any) -> dict[str, int]:
    """Imports the only endpoint again, with other members."""
    data, _ = imports.export()
    catalogue = json.loads(data)
    catalogue["endpoints"][0] |= members
    report = imports.apply(imports.parse(json.dumps(catalogue).encode()))
    return {"updated": report.updated["endpoints"], "unchanged": report.unchanged["endpoints"]}


@pytest.fixture
def endpoint(db: None) -> ModelEndpoint:
    return factories.make_endpoint(
        factories.make_model("acme/falcon"), factories.make_provider("acme")
    )


def test_a_file_states_abilities_and_an_export_repeats_them(endpoint: ModelEndpoint) -> None:
    assert load(abilities=STATED) == {"updated": 1, "unchanged": 0}
    endpoint.refresh_from_db()
    assert endpoint.abilities == STATED
    assert load() == {"updated": 0, "unchanged": 1}
    data, _ = imports.export()
    [row] = json.loads(data)["endpoints"]
    assert row["abilities"] == STATED


def test_a_file_without_the_member_keeps_them_and_null_clears_them(endpoint: ModelEndpoint) -> None:
    load(abilities=STATED)
    data = json.loads(imports.export()[0])
    del data["endpoints"][0]["abilities"]
    imports.apply(imports.parse(json.dumps(data).encode()))
    endpoint.refresh_from_db()
    assert endpoint.abilities == STATED
    assert load(abilities=None) == {"updated": 1, "unchanged": 0}
    endpoint.refresh_from_db()
    assert endpoint.abilities == {}


@pytest.mark.parametrize(
    ("abilities", "text"),
    [
        ({"colour": 1}, "unknown field `colour`"),
        ({"context_length": 5}, "unknown field `context_length`"),
        ({"reasoning": {"switch": "on"}}, "$.abilities.reasoning.switch"),
        ({"completions": {"chat": False, "text": False}}, "abilities.completions: "),
        ({"max_prompt_tokens": 9}, "abilities.max_prompt_tokens: Must be at most 8"),
    ],
)
def test_a_file_with_wrong_abilities_is_refused(
    endpoint: ModelEndpoint, abilities: dict[str, Any], text: str
) -> None:
    with pytest.raises(ImportRefused) as caught:
        load(abilities=abilities, context_length=8)
    [problem] = caught.value.problems
    assert text in problem
    assert problem.startswith("endpoints[0]: ")


def test_workers_know_what_is_stated(endpoint: ModelEndpoint) -> None:
    [[route]] = read_catalog_on_orm().routes.values()
    assert route.abilities is UNSTATED
    load(abilities=STATED)
    [[route]] = read_catalog_on_orm().routes.values()
    assert dump(route.abilities) == STATED


def test_lists_show_what_is_stated(endpoint: ModelEndpoint, management: APIClient) -> None:
    path = "/api/v1/models/acme/falcon/endpoints"
    [before] = management.get(path).json()["data"]["endpoints"]
    assert "abilities" not in before
    assert before["max_prompt_tokens"] is None
    stated = STATED | {"tool_choice": {"required": True}}
    load(abilities=stated)
    [after] = management.get(path).json()["data"]["endpoints"]
    assert after["abilities"] == stated
    assert after["max_prompt_tokens"] == 1_000
    assert after["supports_tool_choice"] == {
        "auto": False, "function": False, "none": False, "required": True,
    }  # fmt: skip


def test_a_row_of_a_later_release_keeps_what_this_one_knows() -> None:
    stated = {"roles": {"developer": False}, "telepathy": True, "reasoning": {"switch": "mind"}}
    assert dump(read_abilities(stated)) == {"roles": {"developer": False}}
    assert dump(read_abilities(json.dumps(stated))) == {"roles": {"developer": False}}
    settings = read_settings(stated | {"context_length": 5})
    assert dump(settings) == {"roles": {"developer": False}, "context_length": 5}


def test_nothing_is_stated_by_default_and_everything_is_shown() -> None:
    assert dump(UNSET_SETTINGS) == {}
    assert read_abilities({}) is UNSTATED
    assert read_abilities("{}") is UNSTATED
    assert set(show(UNSET_SETTINGS)) == set(EndpointSettings.__struct_fields__)
    empty = change(UNSET_SETTINGS, {}, {"reasoning": {}, "bound": {"media": {}}})
    assert dump(empty) == {}
