"""Raw JSON that is measured and written without decoding it whole."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from catalog.dialects.shared import raw
from catalog.dialects.shared.raw import encode_pieces, is_empty, is_unset, measure_value

texts = st.text(st.sampled_from('aé€\U0001f600"\\\n\x00')) | st.text()


@given(texts, st.booleans(), st.integers(12, 40))
@example("\U0001f600" * 30, True, 13)
@example('\\"' * 40, False, 12)
def test_a_long_text_measures_as_a_short_one_wherever_pieces_end(
    text: str, is_ascii: bool, size: int
) -> None:
    value = msgspec.Raw(json.dumps(text, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw, "LONG_BYTES", 0)
        patch.setattr(raw, "_PIECE_BYTES", size)
        assert measure_value(value) == len(text.encode())


@pytest.mark.parametrize("text", [rb'"\ud83d"', rb'"%s\ud83d"' % (b"a" * 99), rb'"\udc00"'])
def test_half_of_a_pair_of_surrogates_is_refused(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw, "LONG_BYTES", 0)
    with pytest.raises(msgspec.DecodeError):
        measure_value(msgspec.Raw(text))


@pytest.mark.parametrize(
    ("text", "size"),
    [(b"", 0), (b"null", 0), (b'""', 0), (b'"a"', 1), (b"[1, 2]", 5), (b"5", 1), (b"1e999", 5)],
)
def test_other_values_measure_as_their_json(text: bytes, size: int) -> None:
    assert measure_value(msgspec.Raw(text)) == size


@pytest.mark.parametrize(
    "text",
    [
        "null", "false", "true", '""', '" "', "[]", "[ ]", "[\n]", "[[]]", "{}", "{ }", "{\t\r\n}",
        '{"a": null}', "0", "-0", "0.0", "-0.0e5", "0E+5", "1", "0.01", "1e999",
    ],
)  # fmt: skip
def test_a_value_is_empty_however_it_is_written(text: str) -> None:
    value = json.loads(text)
    assert is_empty(msgspec.Raw(text.encode())) is not bool(value)
    assert is_unset(msgspec.Raw(text.encode())) is (value in (None, "", [], {}) or value is False)


long = msgspec.Raw(b'"%s"' % (b"x" * 70_000))


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"a": 1, "b": [None, True, 1.5, "é"], "c": {"d": []}},
        {"a": long, "b": [long, {"c": long, "d": msgspec.Raw(b"[1]")}], "e": 1},
    ],
)
def test_pieces_are_the_json_of_the_value(value: Any) -> None:
    pieces = encode_pieces(value)
    assert b"".join(pieces) == msgspec.json.encode(value)
    for piece in pieces:
        assert len(piece) <= 65_536 or isinstance(piece, memoryview)
