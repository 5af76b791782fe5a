"""Every field of every body of the control plane refuses what its schema does not allow.

The document says which values are wrong: by their type, their length, their range or their form.
What a field refuses for another reason is tested with its resource.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator
from rest_framework.test import APIClient

from tests.support.contract import document
from tests.support.database import snapshots
from tests.support.governance import refused, send

GOLDEN: Final = json.loads(document.GOLDEN.read_text())
# A value for each JSON type, and texts, numbers and lists beyond what fields allow.
POOL: Final = [
    "null", "true", "5", "-1", "1.5", "1e400", '""', '"A b\\n"', '"\\u0000"',
    json.dumps("x" * 4097), "[]", "[1]", "[null]", '{"no_such_member": 1}',
    json.dumps(["x"] * 1001),
]  # fmt: skip
# Rows by the first part of a path, and the column that names them in it.
ROWS: Final = {
    "aliases": ("catalog.modelalias", "pk"),
    "byok": ("accounts.byokcredential", "pk"),
    "end-users": ("endusers.enduser", "user"),
    "external-users": ("endusers.enduser", "user"),
    "guardrails": ("accounts.guardrail", "pk"),
    "keys": ("accounts.apikey", "digest"),
    "observability": ("accounts.broadcastdestination", "pk"),
    "presets": ("accounts.preset", "slug"),
    "private-endpoints": ("endpoints.privateendpoint", "pk"),
    "webhooks": ("accounts.subscription", "pk"),
    "workspaces": ("accounts.workspace", "pk"),
}
# What a field holds beside another one: the type of a destination says what its configuration is,
# and the lines of a price are read with its rates.
DEPENDENT: Final = {"config", "lines"}
# Bodies of the data plane; `test_openapi_requests` compares their parser with the document.
INFERENCE: Final = (
    "/audio/", "/chat/", "/completions", "/embeddings", "/images", "/messages", "/rerank",
    "/responses", "/routing/", "/presets/{slug}/",
)  # fmt: skip


def _list_bodies() -> Iterator[tuple[str, str]]:
    for path, operations in GOLDEN["paths"].items():
        for method, operation in operations.items():
            if "requestBody" in operation and not path.startswith(INFERENCE):
                yield method.upper(), path


def _schema_of(method: str, path: str) -> dict[str, Any]:
    body = GOLDEN["paths"][path][method.lower()]["requestBody"]["content"]
    found: dict[str, Any] = body["application/json"]["schema"]
    while "$ref" in found:
        found = GOLDEN["components"]["schemas"][found["$ref"].rpartition("/")[2]]
    return found


def _list_wrong(schema: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Yields for each value of the pool the fields of a schema that do not allow it, with it."""
    judges = {
        name: Draft202012Validator({**field, "components": GOLDEN["components"]})
        for name, field in schema["properties"].items()
        if name not in DEPENDENT
    }
    for text in POOL:
        value = json.loads(text)
        yield {name: text for name, judge in judges.items() if not judge.is_valid(value)}
    for limit in ("maxLength", "minimum", "maximum", "maxItems"):
        beyond = {name: _go_beyond(field, limit) for name, field in schema["properties"].items()}
        yield {name: text for name, text in beyond.items() if text is not None}
    yield {"no_such_field": "true"}


def _go_beyond(field: dict[str, Any], limit: str) -> str | None:
    """Returns the first value beyond a limit of a field; ``None`` if it has no such limit."""
    found = next((each for each in (field, *field.get("anyOf", ())) if limit in each), None)
    if found is None:
        return None
    end = found[limit]
    match limit:
        case "maxLength":
            return json.dumps("x" * (end + 1))
        case "maxItems":
            return json.dumps(["x"] * (end + 1))
        case _:
            return str(end - 1 if limit == "minimum" else end + 1)


def _find_address(path: str, world: dict[str, Any]) -> str:
    """Returns the address of a path with a row of the tenant in it."""
    label, column = ROWS.get(path.split("/")[1], ("accounts.workspace", "pk"))
    name = str(getattr(world[label], column))
    return re.sub(r"\{\w+\}", name, path.strip("/").replace("{interval}", "monthly"))


@pytest.mark.parametrize("resource", sorted({path.split("/")[1] for _, path in _list_bodies()}))
def test_a_field_refuses_by_name_what_its_schema_does_not_allow(
    management: APIClient, world: dict[str, Any], resource: str
) -> None:
    before = snapshots.everything()
    wrong = []
    for method, path in _list_bodies():
        if path.split("/")[1] != resource:
            continue
        schema, address = _schema_of(method, path), _find_address(path, world)
        required = set(schema.get("required", ()))
        for fields in filter(None, _list_wrong(schema)):
            body = ", ".join(f'"{name}": {text}' for name, text in fields.items())
            status, named = refused(send(management, method, address, f"{{{body}}}"))
            if status != 400 or not fields.keys() <= named <= fields.keys() | required:
                wrong.append((method, path, status, fields.keys() ^ named - required, body[:200]))
    assert wrong == []
    assert snapshots.everything() == before
