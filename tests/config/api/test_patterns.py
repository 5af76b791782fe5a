"""The patterns of the OpenAPI document match the texts that fields accept, and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rest_framework.exceptions import ValidationError

from accounts.serializers.workspaces import CreateWorkspaceSerializer
from config.api.fields import STORABLE, StringField, TrackingField
from config.api.text import INVISIBLE
from endpoints.serializers import RateField
from tests.support.contract import document

SLUG: Final = CreateWorkspaceSerializer().fields["slug"]
FIELDS: Final[dict[str, Any]] = {
    "text": StringField(min_length=1),
    "blank": StringField(allow_blank=True),
    "space": StringField(min_length=1, allow_space=True),
    "tracking": TrackingField(),
    "rate": RateField(),
    "slug": SLUG,
}
# No client can send half of a pair of surrogates as UTF-8.
CHARACTERS: Final = st.characters(codec="utf-8")
ODD: Final = [each for each in map(chr, range(0x10000)) if INVISIBLE.fullmatch(each)]
ALPHABET: Final = st.sampled_from(["a", "b", *"-.0 \t\n\r\x00\x1c\x1f\x7f\x85\U0001f600", *ODD])
TEXTS: Final = st.text(ALPHABET | CHARACTERS, min_size=1, max_size=5)


def matches(pattern: str, text: str) -> bool:
    """Returns whether a text matches; in ECMAScript the end of a text is its very end."""
    return re.search(pattern.replace("$", r"\Z"), text) is not None


@pytest.mark.parametrize("name", FIELDS)
@given(text=TEXTS)
@example(text="1" * 7)
@example(text="1." + "0" * 31)
@example(text="0.5")
@example(text="a-b")
@example(text="a--b")
def test_a_pattern_matches_what_its_field_accepts(name: str, text: str) -> None:
    field = FIELDS[name]
    try:
        field.run_validation(text)
        is_accepted = True
    except ValidationError:
        is_accepted = False
    assert matches(field.pattern, text) is is_accepted


@pytest.mark.parametrize("text", ["a\nb", "a\x00b", "", "\U0001f600", "\x85"])
def test_a_comment_may_have_anything_but_nul(text: str) -> None:
    assert matches(STORABLE, text) is ("\x00" not in text)


def list_patterns(node: Any) -> Iterator[str]:
    inner = node.values() if isinstance(node, dict) else node
    if isinstance(node, dict) and isinstance(node.get("pattern"), str):
        yield node["pattern"]
    for each in inner:
        if isinstance(each, dict | list):
            yield from list_patterns(each)


def test_patterns_are_in_the_document_and_every_generator_can_read_them() -> None:
    golden = json.loads(document.GOLDEN.read_text())
    patterns = set(list_patterns(golden))
    assert {each.pattern for each in FIELDS.values()} <= patterns
    for each in patterns:
        assert (each[0], each[-1]) == ("^", "$")
        assert re.search(r"\(\?<|\\[pPAZz]", each) is None
    keys = [
        parameter["schema"]
        for item in golden["paths"].values()
        for operation in item.values()
        for parameter in operation.get("parameters", ())
        if parameter["name"] == "Idempotency-Key"
    ]
    assert {each["pattern"] for each in keys} == {"^[ -~]+$"}
