"""How events are encoded: one JSON object on one line."""

from __future__ import annotations

import msgspec

from inference.exchange.rendering import encode_event


def test_an_object_is_one_event() -> None:
    assert encode_event({"a": 1, "b": msgspec.Raw(b"[true]")}) == b'data: {"a":1,"b":[true]}\n\n'


def test_line_ends_between_the_parts_of_a_raw_member_do_not_end_the_event() -> None:
    raw = msgspec.Raw(b'[1,\n"two\\n"\n]')
    assert encode_event({"a": raw}) == b'data: {"a":[1, "two\\n" ]}\n\n'
