"""Events as they leave: one JSON object, one line, whatever its parts were written like."""

from __future__ import annotations

import msgspec

from inference.requests import sse


def test_an_object_is_one_event() -> None:
    assert sse.event({"a": 1, "b": msgspec.Raw(b"[true]")}) == b'data: {"a":1,"b":[true]}\n\n'


def test_line_ends_between_the_parts_of_a_raw_member_do_not_end_the_event() -> None:
    raw = msgspec.Raw(b'[1,\n"two\\n"\n]')
    assert sse.event({"a": raw}) == b'data: {"a":[1, "two\\n" ]}\n\n'
