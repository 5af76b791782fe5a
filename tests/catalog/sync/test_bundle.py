"""Tests the script that makes the prices of the bundled catalogue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalog import imports
from tests.bench.bundle import main

BUNDLE = Path(imports.__file__).with_name("data") / "catalogue.json"


def price_list(**rows: dict[str, Any]) -> str:
    return json.dumps({name.replace("_", "-"): row for name, row in rows.items()})


def test_the_bundle_gets_the_prices_of_a_list_and_keeps_its_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = BUNDLE.read_bytes()
    row = {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 0.000007}
    source, made = tmp_path / "prices.json", tmp_path / "catalogue.json"
    source.write_text(price_list(**{"gpt-4.1": row}))
    main([str(source), "--as-of", "2026-11-20", "--output", str(made)])
    imports.parse(made.read_bytes())
    bundle, left_out = json.loads(made.read_text()), capsys.readouterr().out
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
    ("text", "day"),
    [
        ("{}", "2026-11-20"),
        ("", "2026-11-20"),
        (price_list(elsewhere=_OTHER), "2026-11-20"),
        ("{}", "today"),
    ],
)
def test_a_list_that_is_none_writes_nothing(tmp_path: Path, text: str, day: str) -> None:
    source = tmp_path / "prices.json"
    source.write_text(text)
    made = tmp_path / "catalogue.json"
    with pytest.raises(SystemExit):
        main([str(source), "--as-of", day, "--output", str(made)])
    assert not made.exists()
