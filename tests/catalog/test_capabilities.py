"""Tests the capabilities of models: their defaults, their import, and the upgrade."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from catalog import imports
from catalog.capabilities import (
    UNDESCRIBED,
    Capabilities,
    NativeFormat,
    ThinkingControl,
    assume_capabilities,
    complete_capabilities,
)
from catalog.models import LanguageModel
from config.bulk.problems import ImportRefused
from tests.support import factories
from tests.support.database.snapshots import everything

OLD_CLAUDE = Capabilities(NativeFormat.ANTHROPIC, ThinkingControl.BUDGET)
CLAUDE = Capabilities(NativeFormat.ANTHROPIC)


def row(slug: str, **members: Any) -> dict[str, Any]:
    return {
        "id": slug,
        "canonical_slug": slug,
        "name": slug,
        "created": 1_780_272_000,
        "context_length": 1000,
        "architecture": {
            "input_modalities": ["text"],
            "output_modalities": ["text"],
            "modality": "text->text",
        },
        **members,
    }


def load(*models: dict[str, Any]) -> None:
    imports.apply(imports.parse(json.dumps({"models": models}).encode()))


def test_a_new_model_has_the_capabilities_of_the_file_or_of_its_author(db: None) -> None:
    load(
        row("acme/falcon"),
        row("anthropic/claude-next"),
        row("acme/claude", capabilities={"native_format": "anthropic", "thinking": "budget"}),
    )
    found = {model.slug: model.capabilities for model in LanguageModel.objects.all()}
    assert found == {
        "acme/falcon": UNDESCRIBED,
        "anthropic/claude-next": CLAUDE,
        "acme/claude": OLD_CLAUDE,
    }
    assert assume_capabilities("anthropic/claude-next") == CLAUDE.stated


def test_what_an_author_tells_of_a_model_is_in_no_file(db: None) -> None:
    load(row("mistralai/small"))
    assert LanguageModel.objects.get().capabilities == Capabilities(has_short_call_ids=True)
    data, _ = imports.export()
    assert "has_short_call_ids" not in json.loads(data)["models"][0]["capabilities"]
    stated = assume_capabilities("mistralai/small")
    assert complete_capabilities(stated, "mistralai/small").has_short_call_ids is True


def test_a_file_without_capabilities_leaves_them_as_they_are(db: None) -> None:
    load(row("acme/claude", capabilities={"native_format": "anthropic", "thinking": "budget"}))
    load(row("acme/claude"))
    assert LanguageModel.objects.get().capabilities == OLD_CLAUDE
    load(row("acme/claude", capabilities={"native_format": "anthropic"}))
    assert LanguageModel.objects.get().capabilities == CLAUDE
    data, _ = imports.export()
    assert json.loads(data)["models"][0]["capabilities"] == {
        "native_format": "anthropic",
        "thinking": "effort",
        "thinks_between_tools": False,
        "combines_sampling": False,
    }


@pytest.mark.parametrize(
    ("capabilities", "problem"),
    [
        ({"native_format": "claude"}, "Invalid enum value 'claude'"),
        ({"thinking": 1}, "Expected `str`, got `int`"),
        ({"thinks_between_tools": "yes"}, "Expected `bool`, got `str`"),
        ({"speed": "fast"}, "Object contains unknown field `speed`"),
        ({"has_short_call_ids": True}, "Object contains unknown field `has_short_call_ids`"),
        (None, "got `null`"),
    ],
)
def test_an_import_refuses_unknown_capabilities(db: None, capabilities: Any, problem: str) -> None:
    before = everything()
    with pytest.raises(ImportRefused, match=problem) as refused:
        load(row("acme/falcon", capabilities=capabilities))
    assert str(refused.value).startswith("models[0]: ")
    assert everything() == before


def test_the_database_refuses_an_unknown_capability(db: None) -> None:
    model = factories.make_model("acme/falcon")
    for column in ("native_format", "thinking"):
        with pytest.raises(IntegrityError, match="model_capabilities_known"), transaction.atomic():
            LanguageModel.objects.filter(pk=model.pk).update(**{column: "other"})
