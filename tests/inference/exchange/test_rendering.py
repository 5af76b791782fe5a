"""``encode_event`` writes a JSON object on one line."""

from __future__ import annotations

import msgspec
import pytest

from inference.exchange.rendering import encode_event


def test_encode_event_writes_an_object_as_one_event() -> None:
    assert encode_event({"a": 1, "b": msgspec.Raw(b"[true]")}) == b'data: {"a":1,"b":[true]}\n\n'


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_line_breaks_in_a_raw_member_do_not_end_the_event(end: bytes) -> None:
    event = encode_event({"a": msgspec.Raw(b'[1,%b"two\\r\\n"%b]' % (end, end))})
    assert event.replace(b" ", b"") == b'data:{"a":[1,"two\\r\\n"]}\n\n'
