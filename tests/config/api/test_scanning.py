"""The scan of JSON before it is decoded: bounds, duplicate keys, and texts cut into pieces."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from config.api import scanning
from config.api.scanning import BoundExceeded, Bounds, DuplicateKey, NumberOutOfRange, scan
from inference.requests.limits import check_short

BOUNDS = Bounds(depth=200, containers=1000, members=100, values=2000)
CHECKS = [check_short, scan]


class Pairs(list[tuple[str, Any]]):
    """The members of an object, which may repeat a key."""


keys = st.sampled_from(["a", "b", 'q"', "back\\", "ü", "\u0000", "{", "a:", ""])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | keys,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(st.tuples(keys, inner), max_size=4).map(Pairs)
    ),
    max_leaves=12,
)


def write(value: Any, space: str) -> str:
    if isinstance(value, Pairs):
        members = (f"{json.dumps(key)}{space}:{write(item, space)}" for key, item in value)
        return "{" + f"{space},".join(members) + "}"
    if isinstance(value, list):
        return "[" + f",{space}".join(write(item, space) for item in value) + "]"
    return json.dumps(value)


def has_duplicate(text: str) -> bool:
    """Tells what the standard library's decoder sees."""
    found = False

    def see(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len(dict(pairs)) != len(pairs)

    json.loads(text, object_pairs_hook=see)
    return found


# A key may be twice as long as a piece here; the scan refuses one that is longer than half of one.
@given(values, st.sampled_from(["", " ", "\r\n\t"]), st.integers(3, 40))
@example(Pairs([("a", 1), ("a", 2)]), "", 3)
@example(Pairs([("a", None), ("back\\", None), ("back\\", None)]), "", 3)
@example([Pairs([("a", Pairs([("a", 1)]))])], "", 3)
def test_a_scan_finds_what_a_decoder_sees_wherever_pieces_end(
    value: Any, space: str, size: int
) -> None:
    text = write(value, space)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "_PIECE_BYTES", size)
        for check in CHECKS:
            if has_duplicate(text):
                with pytest.raises(DuplicateKey):
                    check(text.encode(), BOUNDS)
            else:
                check(text.encode(), BOUNDS)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 128 * 1024])
@pytest.mark.parametrize(
    ("number", "is_read"),
    [
        ("1e400", False), ("-1.5E+309", False), ("1" * 400 + ".5", False),
        ("-" + "9" * 5_000, False), ("0." + "0" * 300 + "1e800", False),
        ("1e308", True), ("1e-400", True), ("0e999", True),
        ("9" * 400, True), ("0." + "3" * 5_000, True), ("1" + "0" * 400 + "e-200", True),
        ("[true, 1e5]", True), ('"1e400"', True), ('"\\"1e400"', True), ('["1e4", "00"]', True),
    ],
)  # fmt: skip
def test_a_number_out_of_range_is_found_wherever_pieces_end(
    size: int, number: str, is_read: bool
) -> None:
    text = f'{{"a": [1, 2e2], "b": {{"c": [null,{number}], "d": true}}, "e": 5}}'.encode()
    bounds = replace(BOUNDS, numbers=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "_PIECE_BYTES", size)
        for check in CHECKS:
            check(text, BOUNDS)
            if is_read:
                check(text, bounds)
                continue
            with pytest.raises(NumberOutOfRange) as raised:
                check(text, bounds)
            assert raised.value.member == "b"


@given(st.binary(max_size=60), st.integers(2, 9))
def test_a_scan_of_anything_ends(text: bytes, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "_PIECE_BYTES", size)
        for check in CHECKS:
            with suppress(BoundExceeded, DuplicateKey, UnicodeDecodeError):
                check(text, BOUNDS)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"a":1,"a":2}', "a"),
        ('{"a":{"b":[{"c":1,"d":2,"c":3}]}}', "c"),
        ('{"a":1,"\\u0061":2}', "a"),
        ('{"\\"":1,"\\u0022":2}', '"'),
        ('{"a" : 1, "a"\n: 2}', "a"),
        ('{"ü":1,"\\u00fc":2}', "ü"),
    ],
)
def test_a_duplicate_key_is_named(check: Any, text: str, key: str) -> None:
    with pytest.raises(DuplicateKey) as caught:
        check(text.encode(), BOUNDS)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("accepted", "refused", "what"),
    [
        ("[" * 200 + "1" + "]" * 200, "[" * 201 + "1" + "]" * 201, "levels of nesting"),
        ("[" + "[]," * 998 + "[]]", "[" + "[]," * 999 + "[]]", "objects and lists"),
        ("[" + "1," * 1999 + "1]", "[" + "1," * 2000 + "1]", "values"),
        (
            "{" + ",".join(f'"{n}":1' for n in range(100)) + "}",
            "{" + ",".join(f'"{n}":1' for n in range(101)) + "}",
            "members in one object",
        ),
    ],
)
def test_a_scan_refuses_one_more_than_each_bound(accepted: str, refused: str, what: str) -> None:
    scan(accepted.encode(), BOUNDS)
    with pytest.raises(BoundExceeded, match=what):
        scan(refused.encode(), BOUNDS)


def test_a_scan_bounds_the_objects_of_one_outermost_list() -> None:
    bounds = Bounds(depth=9, containers=1000, members=9, values=9000, lists={b"choices": 2})
    inner = '{"choices":[{},{},{}],"list":[[1],[2]]}'
    scan(
        f'{{"other":[{{}},{{}},{{}}],"choices":[{inner},{{}}],"more":[{{}},{{}}]}}'.encode(), bounds
    )
    for key in ("choices", "\\u0063hoices"):
        with pytest.raises(BoundExceeded, match="more than 2 objects in choices"):
            scan(f'{{"a":[{{}}],"{key}" :[{{}},{{}},{{}}]}}'.encode(), bounds)


def test_a_scan_refuses_a_key_of_half_a_piece() -> None:
    longest = "k" * (64 * 1024)
    for before in ("", " " * 100_000):
        scan(f'{{{before}"{longest}":1}}'.encode(), BOUNDS)
        for more in (1, 200_000):
            with pytest.raises(BoundExceeded, match="bytes in one key"):
                scan(f'{{{before}"{longest}{"k" * more}":1}}'.encode(), BOUNDS)


def test_a_long_text_over_many_pieces_is_no_key() -> None:
    text = json.dumps({"a": "x" * 400_000, "b": ['"' * 400_000], "c": "\U0001f600" * 99_999})
    scan(text.encode(), BOUNDS)
    with pytest.raises(DuplicateKey, match="a"):
        scan(f'{text[:-1]},"a":1}}'.encode(), BOUNDS)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("text", [b'{"a":"\xff"}', b'"\xc3', b'{"\xed\xa0\x80":1}'])
def test_a_text_that_is_not_utf8_is_refused(check: Any, text: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        check(text, BOUNDS)
