"""A change set shows two different long values as two different texts."""

from __future__ import annotations

import hashlib
from typing import Any

from django import forms

from config.changes.pages import describe_field
from config.changes.proposals import Difference


class LongValuesForm(forms.Form):
    text = forms.CharField(required=False)
    names = forms.JSONField(required=False)


def describe(name: str, before: Any, after: Any) -> Difference:
    """Returns the difference that a form shows for a field with this initial value."""
    form = LongValuesForm({}, initial={name: before})
    assert form.is_valid()
    form.cleaned_data[name] = after
    return describe_field(form, name)


def test_a_cut_text_tells_its_length_and_a_digest() -> None:
    one, other = "x" * 2_000, "x" * 2_001
    cut = hashlib.sha256(other.encode()).hexdigest()[:16]
    assert describe("text", one, other) == Difference(
        "Text", one, f"{one}… (2,001 characters, SHA-256 {cut}…)"
    )


def test_of_a_long_list_the_entries_that_change_are_shown() -> None:
    names = [f"acme/{number:036}" for number in range(60)]
    kept = names[:-1]
    label = "Names: removed → added"
    assert describe("names", names, kept) == Difference(label, names[-1], "–")
    assert describe("names", kept, [*kept[1:], "new"]) == Difference(label, names[0], "new")


def test_of_a_long_object_the_members_that_change_are_shown() -> None:
    members = {f"acme/{number:036}": 1 for number in range(60)}
    last = [*members][-1]
    assert describe("names", members, {**members, last: [1, 2]}) == Difference(
        "Names: removed → added", f'"{last}": 1', f'"{last}": [1, 2]'
    )


def test_another_order_of_a_long_list_is_seen() -> None:
    names = [f"acme/{number:036}" for number in range(60)]
    shown = describe("names", names, [*names[:-2], names[-1], names[-2]])
    assert shown.label == "Names"
    assert shown.before[:2_000] == shown.after[:2_000]
    assert shown.before != shown.after


def test_a_short_list_is_shown_whole() -> None:
    assert describe("names", ["one", "two"], []) == Difference("Names", "one, two", "–")
