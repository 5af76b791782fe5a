"""Tests how native finish reasons are mapped to the words of the interface."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from catalog.dialects.openai.members import normalize_finish_reasons


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("content_filter", "content_filter"),
        ("error", "error"),
        ("MAX_TOKENS", "length"),
        ("model_length", "length"),
        ("model_context_window_exceeded", "length"),
        ("sensitive", "content_filter"),
        ("content_filter: RECITATION", "content_filter"),
        ("eos", "stop"),
        ("something new", "stop"),
    ],
)
def test_a_native_reason_is_mapped_and_kept(native: str, reason: str) -> None:
    raw = msgspec.Raw(msgspec.json.encode([{"index": 0, "finish_reason": native}]))
    choice = {"index": 0, "finish_reason": reason, "native_finish_reason": native}
    choices, *reasons = normalize_finish_reasons(raw)
    assert msgspec.json.decode(msgspec.json.encode(choices)) == [choice]
    assert reasons == [reason, native]


def test_an_existing_native_reason_is_kept() -> None:
    choice = {"finish_reason": "stop", "native_finish_reason": "end_turn"}
    assert normalize_finish_reasons([choice]) == ([choice], "stop", "end_turn")


def test_the_last_reason_of_the_choices_is_returned() -> None:
    choices: list[Any] = [{"finish_reason": "stop"}, {"finish_reason": "length"}, {}]
    assert normalize_finish_reasons(choices)[1:] == ("length", "length")


@pytest.mark.parametrize("raw", [b"null", b"{}", b"[1]", b"[", b'"stop"'])
def test_choices_that_are_not_a_list_of_objects_are_unchanged(raw: bytes) -> None:
    choices = msgspec.Raw(raw)
    assert normalize_finish_reasons(choices) == (choices, None, None)
