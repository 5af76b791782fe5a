"""Tests the script that makes the prices of the bundled catalogue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalog import imports
from tests.support.operators import commands

BUNDLE = Path(imports.__file__).with_name("data") / "catalogue.json"


def price_list(**rows: dict[str, Any]) -> str:
    return json.dumps({name.replace("_", "-"): row for name, row in rows.items()})


def rebuild(path: Path, text: str) -> tuple[dict[str, Any], str]:
    source, made = path / "prices.json", path / "catalogue.json"
    source.write_text(text)
    named = ("--as-of", "2026-11-20", "--output", str(made))
    _, errors = commands.run("rebuild_bundle", str(source), *named)
    bundle: dict[str, Any] = json.loads(made.read_text())
    return bundle, errors


def test_the_bundle_gets_the_prices_of_a_list_and_keeps_its_facts(tmp_path: Path) -> None:
    before = BUNDLE.read_bytes()
    row = {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 0.000007}
    bundle, left_out = rebuild(tmp_path, price_list(**{"gpt-4.1": row}))
    assert bundle["about"]["as_of"] == "2026-11-20"
    assert bundle["about"]["source"] == "litellm"
    [provider] = bundle["providers"]
    [model] = bundle["models"]
    [endpoint] = bundle["endpoints"]
    assert (model["id"], provider["slug"]) == ("openai/gpt-4.1", "openai")
    assert endpoint["pricing"] == {
        "prompt": "0.000007", "completion": "0", "image": "0", "request": "0",
    }  # fmt: skip
    present = json.loads(before)
    [stored] = [one for one in present["models"] if one["id"] == "openai/gpt-4.1"]
    assert model == stored
    assert "openai/gpt-4.1-2025-04-14 azure gpt-4.1: the list has no price" in left_out
    assert "anthropic: no endpoint is left" in left_out
    assert BUNDLE.read_bytes() == before


_OTHER = {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 0.5}


@pytest.mark.parametrize(
    ("text", "day", "code"),
    [
        ("{}", "2026-11-20", 1),
        ("", "2026-11-20", 1),
        (price_list(elsewhere=_OTHER), "2026-11-20", 1),
        ("{}", "today", 2),
    ],
)
def test_a_list_that_is_none_writes_nothing(tmp_path: Path, text: str, day: str, code: int) -> None:
    source = tmp_path / "prices.json"
    source.write_text(text)
    made = tmp_path / "catalogue.json"
    named = ("--as-of", day, "--output", str(made))
    assert commands.refuse("rebuild_bundle", str(source), *named)[0] == code
    assert not made.exists()
