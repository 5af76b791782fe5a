"""Tests the capabilities of models: their defaults, their import, and the upgrade."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, transaction

from catalog import imports
from catalog.capabilities import (
    UNDESCRIBED,
    Capabilities,
    NativeFormat,
    ThinkingControl,
    assume_capabilities,
)
from catalog.models import LanguageModel
from config.bulk.problems import ImportRefused
from tests.support import factories
from tests.support.database.snapshots import everything

migration = import_module("catalog.migrations.0005_describe_models")

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
    assert assume_capabilities("anthropic/claude-next") == CLAUDE


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


# The rules that the dialects applied to the name at the provider.
@pytest.mark.parametrize(
    ("slug", "upstream", "expected"),
    [
        ("a/one", "claude-opus-4-8", CLAUDE),
        ("a/one", "claude-opus-4-6-20260205", CLAUDE),
        ("a/one", "claude-sonnet-5", CLAUDE),
        ("a/one", "claude-haiku-4-5-20251001", OLD_CLAUDE),
        ("a/one", "us.anthropic.claude-haiku-4-5-20251001-v1:0", OLD_CLAUDE),
        ("a/one", "claude-haiku-4-5@20251001", OLD_CLAUDE),
        ("a/one", "claude-sonnet-4-20250514", OLD_CLAUDE),
        ("a/one", "claude-opus-4-1-20250805", OLD_CLAUDE),
        (
            "a/one",
            "claude-3-7-sonnet-20250219",
            Capabilities(NativeFormat.ANTHROPIC, ThinkingControl.BUDGET, combines_sampling=True),
        ),
        (
            "a/one",
            "claude-sonnet-5-5",
            Capabilities(NativeFormat.ANTHROPIC, thinks_between_tools=True),
        ),
        ("a/one", "claude-sonnet-5-50", CLAUDE),
        ("a/one", "gemini-2.5-flash", Capabilities(thinking=ThinkingControl.BUDGET)),
        ("a/one", "google/gemini-2.5-pro", Capabilities(thinking=ThinkingControl.BUDGET)),
        ("a/one", "gemini-3.8-flash", UNDESCRIBED),
        ("a/one", "gpt-4o", UNDESCRIBED),
        ("anthropic/claude-haiku-4.5", "deployment", OLD_CLAUDE),
        ("anthropic/claude-opus-4.8", "deployment", CLAUDE),
    ],
)
def test_the_upgrade_describes_stored_models_as_the_dialects_did(
    db: None, slug: str, upstream: str, expected: Capabilities
) -> None:
    model = factories.make_model(slug)
    factories.make_endpoint(model, factories.make_provider(), upstream_model_id=upstream)
    migration.describe_models(apps, connection.schema_editor())
    described = LanguageModel.objects.get()
    assert described.capabilities == expected
    assert described.updated_at == model.updated_at
