"""JSON that was cut: what is left of it is valid, and the beginning of what was there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.texts.shortening import close_json, cut_text, decode_cut

VALUE: Any = [
    {"role": "user", "content": 'a "quoted" \\ text\n 🐱 ü', "n": [1, -2.5e3, True, None, {}]},
    {"role": "tool", "content": [{"type": "text", "text": "two"}, []], "deep": {"a": {"b": "c"}}},
]


def is_beginning(part: Any, whole: Any) -> bool:
    """Returns whether a value has nothing that the whole one does not have at the same place."""
    match part, whole:
        case dict(), dict():
            return all(name in whole and is_beginning(part[name], whole[name]) for name in part)
        case list(), list():
            return len(part) <= len(whole) and all(map(is_beginning, part, whole))
        case str(), str():
            return whole.startswith(part)
    return bool(part == whole)


@pytest.mark.parametrize("is_ascii", [False, True])
@pytest.mark.parametrize("indent", [None, 2])
def test_every_cut_of_a_value_becomes_valid(is_ascii: bool, indent: int | None) -> None:
    data = json.dumps(VALUE, ensure_ascii=is_ascii, indent=indent).encode()
    for size in range(1, len(data)):
        closed = json.loads(close_json(data[:size]))
        assert is_beginning(closed, VALUE), (size, closed)
    assert decode_cut(data, is_cut=False) == VALUE


@pytest.mark.parametrize(
    ("cut", "left"), [(b'"ab', "ab"), (b"12", None), (b"", None), (b"[1, 23", [1])]
)
def test_a_value_without_brackets_is_cut_too(cut: bytes, left: Any) -> None:
    assert decode_cut(cut, is_cut=True) == left


def test_a_text_is_cut_between_characters() -> None:
    assert cut_text("aüb", 2) == "a"
    assert cut_text("aüb", 3) == "aü"
    assert cut_text("aüb", 4) == "aüb"
    assert cut_text("🐱", 0) == ""
