"""What callers write never becomes a header of an answer unchecked."""

from __future__ import annotations

from typing import Any

import pytest

from config.api.text import write_header, write_list
from inference.models import Generation
from tests.support.inference.site import Site

HOSTILE = ["web_search\r\nX-Evil: 1", "web_search\nSet-Cookie: a=b", "web_search\x00", "wëb_séarch",
           "web_search_\U0001f600", "x" * 5_000]  # fmt: skip
PROMPTS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "responses": {"input": "Hi"},
    "messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("path", PROMPTS)
def test_the_type_of_a_tool_breaks_no_answer(
    site: Site, path: str, kind: str, stream: bool
) -> None:
    site.publish()
    for tool in ({"type": kind}, {"type": kind, "name": kind}, {"type": "custom", "name": kind}):
        body = {"model": site.model.slug, **PROMPTS[path], "tools": [tool], "stream": stream}
        answer = site.post(body, path=f"/api/v1/{path}")
        assert answer.status_code in (200, 400), answer.text
        assert not {"x-evil", "set-cookie"} & {name.lower() for name in answer.headers}
        told = answer.headers.get("x-left-out", "")
        assert told.isascii()
        assert told[2_048:] == ""
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert set(Generation.objects.values_list("status", flat=True)) <= {"completed"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain text; of=any, kind", b"plain text; of=any, kind"),
        ("a\r\nX: 1", b"a??X: 1"),
        ("a\x00\x7f\x85é\U0001f600\ud800b", b"a??????b"),
        ("x" * 9_000, b"x" * 2_048),
        ("", b""),
    ],
)
def test_a_header_is_visible_ascii_and_bounded(text: str, value: bytes) -> None:
    assert write_header(text) == value


@pytest.mark.parametrize(
    ("names", "value"),
    [
        (["a, b", "c\n"], b"a? b, c?"),
        (["a, b"], b"a? b"),
        (["x" * 9_000], b"x" * 128),
        (["x" * 9_000, "y"], b"x" * 128 + b", y"),
        ([f"{number:03}" for number in range(999)],
         ", ".join(f"{number:03}" for number in range(410)).encode()),
        ([], b""),
    ],
)  # fmt: skip
def test_a_list_in_a_header_has_as_many_names_as_were_written(
    names: list[str], value: bytes
) -> None:
    assert write_list(names) == value
