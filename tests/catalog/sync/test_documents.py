"""Tests how documents of price lists are read: exact, bounded, and refused by name."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from catalog.sync.documents import MAX_ROWS, InvalidRow, UnreadableList, rate_text, read_json
from catalog.sync.offers import ListOffer, clean_name, read_offers


@pytest.mark.parametrize(
    ("text", "per", "expected"),
    [
        ("1.5e-06", 0, "0.0000015"),
        ("1.25E-7", 0, "0.000000125"),
        ("0", 0, "0"),
        ("-0.0", 0, "0"),
        ("0E-6176", 0, "0"),
        ("0E+6111", 2, "0"),
        ("0.0000002500", 0, "0.00000025"),
        ("3", 6, "0.000003"),
        ("0.028", 6, "0.000000028"),
        ("15", 6, "0.000015"),
        ("0.1", 6, "0.0000001"),
        ("1e-30", 0, "0.000000000000000000000000000001"),
        ("999999.999", 0, "999999.999"),
        ("999999999999", 6, "999999.999999"),
        ("0.12345678901234567890123", 6, "0.00000012345678901234567890123"),
    ],
)
def test_a_rate_keeps_every_digit(text: str, per: int, expected: str) -> None:
    found = read_json(f'{{"rate": {text}}}'.encode())["rate"]
    assert rate_text(found, per=per) == expected
    assert rate_text(text, per=per) == expected


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (Decimal("-1e-9"), "is negative"),
        (-1, "is negative"),
        ("-1", "is negative"),
        (Decimal("1e30"), "is 1,000,000 or more"),
        (Decimal("1e999999"), "is 1,000,000 or more"),
        (1_000_000, "is 1,000,000 or more"),
        (Decimal("1e-31"), "has more than 30 decimals"),
        (Decimal("1e-999999"), "has more than 30 decimals"),
        (Decimal("1e999999999999"), "is 1,000,000 or more"),
        (Decimal("1e-999999999999"), "has more than 30 decimals"),
        (True, "is not a number"),
        (None, "is not a number"),
        ("free", "is not a number"),
        ("1_0", "is not a number"),
        ("٣", "is not a number"),
        ("NaN", "is not a number"),
        ("1e9999", "is 1,000,000 or more"),
        ("1e-9999", "has more than 30 decimals"),
        ("1e99999", "is not a number"),
        (Decimal("Infinity"), "is not a number"),
        ({}, "is not a number"),
    ],
)
def test_what_is_no_rate_is_refused(value: Any, problem: str) -> None:
    with pytest.raises(InvalidRow, match=f"^{problem}$"):
        rate_text(value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"<html>", "The list is not JSON."),
        (b"[]", "The list is not a JSON object."),
        (b"\xff{}", "The list is not JSON."),
        (b'{"a": 1', "The list is not JSON."),
        (b'{"a": 1e99999999999999999999}', "The list has a number that is out of range."),
        (b'{"a": 1.5e-99999999999999999999}', "The list has a number that is out of range."),
        (b'{"a": NaN}', "The list has NaN for a number."),
        (b'{"a": -Infinity}', "The list has -Infinity for a number."),
        (b'{"a": 1%s}' % (b"0" * 64), "The list has a number of more than 64 characters."),
        (b'{"a": 0.%s}' % (b"1" * 63), "The list has a number of more than 64 characters."),
    ],
)
def test_a_document_that_is_no_list_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(UnreadableList) as caught:
        read_json(data)
    assert str(caught.value) == problem


def test_a_document_may_begin_with_a_byte_order_mark() -> None:
    assert read_json(b'\xef\xbb\xbf{"a": 1.50}') == {"a": Decimal("1.50")}
    with pytest.raises(UnreadableList):
        read_json(b"\xef\xbb\xbf" * 2 + b"{}")


def test_a_document_that_repeats_a_key_or_is_too_deep_is_refused() -> None:
    for data in (b'{"a": 1, "a": 2}', b'{"a": ' + b"[" * 30 + b"]" * 30 + b"}"):
        with pytest.raises(UnreadableList, match=r"^The list cannot be read: it has "):
            read_json(data)


def make_offer(name: str, row: Any) -> ListOffer:
    if "rate" not in row:
        raise InvalidRow("has no rate")
    return ListOffer(name, "acme", name, {})


def test_a_list_has_at_most_20_000_rows() -> None:
    rows = [(f"m{number}", {"rate": 1}) for number in range(MAX_ROWS + 1)]
    assert len(read_offers(rows[:-1], make_offer).offers) == MAX_ROWS
    with pytest.raises(UnreadableList, match=r"^The list has more than 20000 rows\.$"):
        read_offers(rows, make_offer)
    document = {name: {} for name, _ in [*rows, ("one more", 1)]}
    with pytest.raises(UnreadableList):
        read_json(json.dumps(document).encode())


def test_rows_that_cannot_be_used_are_counted_and_named_safely() -> None:
    bad = [(f"bad\x1b[2J{number}", {}) for number in range(150)]
    found = read_offers([("good", {"rate": 1}), *bad, ("worse", 7)], make_offer)
    assert (len(found.offers), found.refused_count, len(found.refused)) == (1, 151, 100)
    assert found.refused[0] == ("bad\ufffd[2J0", "has no rate")
    assert clean_name("x" * 121) == "x" * 120 + "…"


def test_a_list_without_a_usable_row_is_refused() -> None:
    with pytest.raises(UnreadableList, match=r"^The list has no row that can be used\. Is it of"):
        read_offers([("bad", {}), ("worse", [])], make_offer)
