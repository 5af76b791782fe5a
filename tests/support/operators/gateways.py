"""``import_gateway``, run in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.database import snapshots
from tests.support.operators import commands

UNKNOWN = (
    "the catalogue does not know the model, and the file lacks a price; add the model and its "
    "price to the catalogue, and import again"
)
# What the reason begins with where drafts of an organization leave a name to the catalogue.
UNTIL = "that its requests go to its own endpoints alone: until one is activated, they go to"


def load(file: str | Path, *options: str, source: str = "litellm") -> dict[str, Any]:
    """Imports a file of another gateway; returns the report."""
    found, err = commands.run_json("import_gateway", "--from", source, str(file), *options)
    assert err == ""
    return found


def load_twice(file: str | Path, *options: str, source: str = "litellm") -> dict[str, Any]:
    """Imports a file, and again, which must change nothing; returns the first report."""
    first = load(file, *options, source=source)
    before = snapshots.everything()
    second = load(file, *options, source=source)
    assert second == first | {"created": first["updated"], "unchanged": first["created"]}
    assert snapshots.everything() == before
    return first


def left_out(report: dict[str, Any]) -> list[tuple[int, str, str]]:
    """Returns the line, the name and the reason of each part of a file that became nothing."""
    return [(each["line"], each["name"], each["reason"]) for each in report["left_out"]]


def lacking(report: dict[str, Any]) -> list[tuple[int, str, str]]:
    """Returns what became nothing, but for the names that the catalogue serves meanwhile."""
    return [each for each in left_out(report) if not each[2].startswith(UNTIL)]


def write_entries(*entries: tuple[str, dict[str, Any]], **settings: Any) -> str:
    """Returns a file of LiteLLM with a name and ``litellm_params`` for each entry, one a line.

    JSON is YAML. The first entry is in line 2.
    """
    listed = [json.dumps({"model_name": name, "litellm_params": each}) for name, each in entries]
    rows = ",\n".join(listed)
    others = "".join(
        f",\n{json.dumps(name)}: {json.dumps(each)}" for name, each in settings.items()
    )
    return f'{{"model_list": [\n{rows}]{others}}}'
