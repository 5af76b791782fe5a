"""Base64 that a decoder reads although it is not written in the plainest form."""

from __future__ import annotations

import base64
import json
import os
import uuid

import pytest

from catalog.dialects.base import Operation
from inference.filters.definitions import build_filters
from inference.filters.problems import ContentBlocked
from inference.filters.screening import screen
from inference.requests import parsing

TEXT = b"Please remember that my number is 41111111, and here are some more words of it."
FILTERS = build_filters(
    uuid.uuid4(),
    [],
    [{"pattern": "41111111", "action": "block", "label": "NUMBER", "block_unreadable": True}],
)


def wrap(encoded: str) -> str:
    return "\n".join(encoded[start : start + 76] for start in range(0, len(encoded), 76))


@pytest.mark.parametrize("content", [TEXT, os.urandom(3000)])
@pytest.mark.parametrize(
    "write",
    [
        wrap,
        lambda encoded: f" {encoded}",
        lambda encoded: f"%{ord(encoded[0]):02X}{encoded[1:]}",
        lambda encoded: encoded.rstrip("=") + "===",
    ],
)
def test_wrapped_base64_is_read_or_refused(content: bytes, write: object) -> None:
    encoded = write(base64.b64encode(content).decode())  # type: ignore[operator]
    kind = "text/plain" if content is TEXT else "application/pdf"
    part = {"type": "file", "file": {"file_data": f"data:{kind};base64,{encoded}"}}
    body = json.dumps({"model": "a/b", "messages": [{"role": "user", "content": [part]}]})
    request = parsing.parse(Operation.CHAT, body.encode())
    with pytest.raises(ContentBlocked):
        screen(FILTERS, request)
