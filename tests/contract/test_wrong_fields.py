"""Every field of every body of the control plane refuses what its schema does not allow.

The document says which values are wrong: by their type, their length, their range or their form.
What a field refuses for another reason is tested with its resource. A query parameter refuses
these values too, and no other. A list refuses each field of its rows that is no parameter of it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator, FormatChecker
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
# Texts that a query parameter may get, beside the words and the ends that its schema names.
TEXTS: Final = (
    "", " ", "a\nb", "\x00", "é", "a,", "a, b", "x" * 4097, "-1", "1.5", "true", "text",
    "00000000-0000-0000-0000-000000000000",
)  # fmt: skip
# Of the days that the report of activity has, the document says the form alone.
DAYS: Final = ("/activity", "date")
# What a field holds beside another one: the type of a destination says what its configuration is,
# and the lines of a price are read with its rates.
DEPENDENT: Final = {"config", "lines"}
# The tags of the catalogue, whose lists are no rows of an organization.
CATALOGUE: Final = {"models", "embeddings", "images", "providers"}
# Every list ignores these where it has no pages.
PAGES: Final = {"offset", "limit"}
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
    return _resolve(found)


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


def _list_queries() -> dict[str, dict[str, tuple[list[str], list[str]]]]:
    """Returns by path and name of a parameter which texts its schema allows, and which not.

    Where a parameter of another path has this name and schema, only the last of each.
    """
    queries: dict[str, dict[str, tuple[list[str], list[str]]]] = {}
    known = set()
    for path, operations in GOLDEN["paths"].items():
        for each in operations.get("get", {}).get("parameters", ()):
            if each["in"] != "query" or (path, each["name"]) == DAYS:
                continue
            allowed, wrong = _judge(each["schema"])
            form = (each["name"], json.dumps(each["schema"]))
            start = -1 if form in known else 0
            known.add(form)
            queries.setdefault(path, {})[each["name"]] = (allowed[start:], wrong[-1:])
    return queries


def _judge(schema: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Returns which texts a schema of a query parameter allows, and which it does not."""
    ends = [str(schema[end]) for end in ("minimum", "maximum") if end in schema]
    judge = Draft202012Validator(schema, format_checker=FormatChecker())
    allowed, wrong = [], []
    for text in (*TEXTS, *schema.get("enum", ()), *ends):
        value = text
        if schema["type"] != "string":
            with contextlib.suppress(ValueError):
                value = json.loads(text)
        (allowed if judge.is_valid(value) else wrong).append(text)
    return allowed, wrong


def _resolve(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = GOLDEN["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _list_unfiltered() -> dict[str, set[str]]:
    """Returns by path the fields of a list's rows that are no parameters of the list."""
    found = {}
    for path, operations in GOLDEN["paths"].items():
        operation = operations.get("get", {})
        if not operation or CATALOGUE.intersection(operation["tags"]):
            continue
        answer = operation["responses"]["200"]["content"].get("application/json", {"schema": {}})
        rows = _resolve(answer["schema"]).get("properties", {}).get("data", {})
        if rows.get("type") == "array":
            parameters = operation.get("parameters", ())
            known = PAGES | {each["name"] for each in parameters if each["in"] == "query"}
            found[path] = _resolve(rows["items"])["properties"].keys() - known
    return found


UNFILTERED: Final = _list_unfiltered()


def _find_address(path: str, world: dict[str, Any]) -> str:
    """Returns the address of a path with a row of the tenant in it."""
    path = path.replace("{author}/{slug}", "author/model-1b").replace("{version}", "1")
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


def test_a_query_parameter_refuses_what_its_schema_does_not_allow_and_nothing_else(
    management: APIClient, world: dict[str, Any]
) -> None:
    differing = []
    for path, parameters in _list_queries().items():
        address = f"/api/v1/{_find_address(path, world)}"
        for texts in zip_longest(*(allowed for allowed, _ in parameters.values())):
            pairs = zip(parameters, texts, strict=True)
            sent = {name: text for name, text in pairs if text is not None}
            answer = management.get(address, sent)
            if answer.status_code not in (200, 404):
                differing.append((path, sent, answer.content))
        for name, (_, wrong) in parameters.items():
            for text in wrong:
                answer = management.get(address, {name: text})
                if answer.status_code != 400 or name not in refused(answer)[1]:
                    differing.append((path, name, text, answer.content))
    assert differing == []


@pytest.mark.parametrize("path", UNFILTERED)
def test_a_list_refuses_a_field_of_its_rows_by_which_it_cannot_be_filtered(
    management: APIClient, path: str
) -> None:
    # Before any row of the path is looked for.
    address = "/api/v1" + re.sub(r"\{\w+\}", "x", path)
    for name in sorted(UNFILTERED[path]):
        assert refused(management.get(address, {name: "x"})) == (400, {name})
