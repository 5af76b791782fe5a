"""The reference says what each member of a request means, in two groups of sections."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from django.test import Client

from config.local.bootstrap import PROJECT

GOLDEN: Final = json.loads((PROJECT / "tests" / "contract" / "openapi.json").read_text())
# A sentence that repeats the name says nothing.
WORTHLESS: Final = re.compile(r"(?:the|a|an|its)? ?([a-z ]+)\.?", re.IGNORECASE)


def list_members(
    schema: dict[str, Any], place: str, above: frozenset[str] = frozenset()
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the members of a body, and theirs, by where they stand."""
    if target := schema.get("$ref"):
        name = target.rpartition("/")[2]
        if name not in above:
            yield from list_members(GOLDEN["components"]["schemas"][name], name, above | {name})
        return
    parts = [each for kind in ("allOf", "anyOf", "oneOf") for each in schema.get(kind, ())]
    parts += [schema[kind] for kind in ("items", "additionalProperties") if schema.get(kind)]
    for part in parts:
        if isinstance(part, dict):
            yield from list_members(part, place, above)
    for name, member in schema.get("properties", {}).items():
        yield f"{place}.{name}", member
        yield from list_members(member, f"{place}.{name}", above)


def list_request_members() -> dict[str, dict[str, Any]]:
    """Returns the members of all bodies, and the parameters, by where they stand."""
    return {
        f"{path}.{parameter['name']}": parameter
        for path, operations in GOLDEN["paths"].items()
        for operation in operations.values()
        for parameter in operation.get("parameters", ())
    } | {
        place: member
        for path, operations in GOLDEN["paths"].items()
        for operation in operations.values()
        for body in operation.get("requestBody", {}).get("content", {}).values()
        for place, member in list_members(body["schema"], path)
    }


def test_every_member_of_a_request_has_a_description() -> None:
    members = list_request_members()
    assert {
        "ChatRequest.messages",
        "PriceLine.price",
        "/keys/{hash}.hash",
    } - members.keys() == set()
    bare = [place for place, member in members.items() if not member.get("description")]
    assert bare == []


def test_no_description_only_repeats_the_name() -> None:
    worthless = []
    for place, member in list_request_members().items():
        name = place.rpartition(".")[2].replace("_", " ")
        said = WORTHLESS.fullmatch(member["description"].strip())
        if said is not None and said[1].strip().lower() == name:
            worthless.append(place)
    assert worthless == []


def test_the_sections_are_two_groups_in_the_order_of_the_page(client: Client, db: None) -> None:
    calls, manage = GOLDEN["x-tagGroups"]
    assert (calls["name"], manage["name"]) == ("Call models", "Manage")
    listed = [tag["name"] for tag in GOLDEN["tags"]]
    assert listed == [*calls["tags"], *manage["tags"]]
    used = {
        tag
        for operations in GOLDEN["paths"].values()
        for operation in operations.values()
        for tag in operation["tags"]
    }
    assert used == set(listed)
    # The style sheet puts the name of a group above its first section.
    styles = (PROJECT / "config" / "static" / "causeway" / "reference.css").read_text()
    heads = re.findall(r'\[data-tag="([^"]+)"\]\)::before \{ content: "([^"]+)"', styles)
    assert heads == [(group["tags"][0], group["name"]) for group in (calls, manage)]


def test_the_page_leads_to_the_guides_and_runs_only_scripts_of_files(
    client: Client, db: None
) -> None:
    answer = client.get("/docs")

    text = answer.content.decode()
    assert '<a href="/docs/guide">Guides</a>' in text
    assert '<a href="/docs" aria-current="page">Reference</a>' in text
    assert "script-src 'self';" in answer["Content-Security-Policy"] + ";"
    scripts = re.findall(r"<script([^>]*)>([^<]*)</script>", text)
    assert len(scripts) == 4
    assert all("src=" in attributes and not body.strip() for attributes, body in scripts)
