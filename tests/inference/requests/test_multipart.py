"""Multipart forms: what real clients send is read, and what is malformed or endless is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from catalog.dialects.shared.multipart import FormPart, encode_form
from config.api.errors import InvalidRequest
from inference.requests import multipart
from inference.requests.multipart import FieldKind, parse_form, to_json

TYPE = "multipart/form-data; boundary=xx"


def form(*parts: bytes) -> bytes:
    return b"".join(b"--xx\r\n" + part + b"\r\n" for part in parts) + b"--xx--\r\n"


def field(name: str, value: bytes = b"1") -> bytes:
    return f'Content-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + value


def refusal(body: bytes, content_type: str = TYPE) -> str:
    with pytest.raises(InvalidRequest) as error:
        parse_form(content_type, body)
    return error.value.message


def test_the_form_of_a_real_client_is_read() -> None:
    sent = requests.Request(
        "POST",
        "https://example.com",
        data={"model": "a/b", "keyterms[]": ["one", "zwölf"]},
        files={"file": ("Töne.wav", b"RIFF\r\n--x\r\n\x00", "audio/wav")},
    ).prepare()
    assert isinstance(sent.body, bytes)
    parts = parse_form(sent.headers["Content-Type"], sent.body)
    assert [(part.name, bytes(part.data), part.filename, part.content_type) for part in parts] == [
        ("model", b"a/b", None, None),
        ("keyterms[]", b"one", None, None),
        ("keyterms[]", "zwölf".encode(), None, None),
        ("file", b"RIFF\r\n--x\r\n\x00", "Töne.wav", "audio/wav"),
    ]


@given(
    st.lists(
        st.tuples(
            st.text(
                st.characters(exclude_categories=["C", "Z"], exclude_characters='"\\'), min_size=1
            ),
            st.binary(max_size=2000),
            st.none() | st.just("a.wav"),
        ),
        max_size=8,
    )
)
def test_a_form_that_is_written_is_read_back(given: list[tuple[str, bytes, str | None]]) -> None:
    content_type, pieces = encode_form([FormPart(*each) for each in given])
    if given:
        parts = parse_form(content_type, b"".join(pieces))
        assert [(part.name, bytes(part.data), part.filename) for part in parts] == given


def test_the_data_of_a_file_are_not_copied() -> None:
    body = form(b'Content-Disposition: form-data; name="f"; filename="a"\r\n\r\n' + b"x" * 100)
    [part] = parse_form(TYPE, body)
    assert isinstance(part.data, memoryview)
    assert part.data.obj is body
    assert "x" not in repr(part)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not a valid multipart form"),
        (b"{}", "not a valid multipart form"),
        (b"--xx\r\n" + field("a"), "its last boundary is missing"),
        (form(field("a"))[:-5], "its last boundary is missing"),
        (form(b"\r\nno headers"), "has no name"),
        (form(b'Content-Disposition: attachment; name="a"\r\n\r\n1'), "has no name"),
        (form(b"Content-Disposition: form-data\r\n\r\n1"), "has no name"),
        (form(b'Content-Disposition: form-data; name="\xff"\r\n\r\n1'), "not valid UTF-8"),
        (form(b"Content-Disposition form-data\r\n\r\n1"), "not a valid multipart form"),
        (form(b'Content-Disposition: form-data; name="a"\nX: y\r\n\r\n1'), "control characters"),
        (form(b"A: 1\r\na: 2\r\n" + field("a")), "names its header 'a' twice"),
        (form(b"Content-Transfer-Encoding: base64\r\n" + field("a")), "a: Send it without"),
        (b"--xx \r\n" + field("a") + b"\r\n--xx--", "not a valid multipart form"),
    ],
)
def test_what_is_no_form_is_refused(body: bytes, text: str) -> None:
    assert text in refusal(body)


@pytest.mark.parametrize(
    ("boundary", "is_read"),
    [("", False), ("x", True), ("x" * 70, True), ("x" * 71, False), ("x" * 10_000, False),
     ('"x\r"', False), ("x\x80", False)],
)  # fmt: skip
def test_a_boundary_has_at_most_70_characters(boundary: str, is_read: bool) -> None:
    content_type = f"multipart/form-data; boundary={boundary}"
    body = form(field("a")).replace(b"xx", boundary.encode("latin-1"))
    if is_read:
        assert len(parse_form(content_type, body)) == 1
    else:
        refusal(body, content_type)


@pytest.mark.parametrize("count", [255, 256, 257, 5_000])
def test_a_form_has_at_most_256_parts(count: int) -> None:
    body = form(*[field("a")] * count)
    if count <= multipart.MAX_PARTS:
        assert len(parse_form(TYPE, body)) == count
    else:
        assert "more than 256 parts" in refusal(body)


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_a_text_has_at_most_a_mebibyte(excess: int) -> None:
    body = form(field("a", b"x" * (multipart.MAX_TEXT_BYTES + excess)))
    if excess <= 0:
        assert len(parse_form(TYPE, body)) == 1
    else:
        assert refusal(body) == "a: Is longer than 1,048,576 bytes."


@pytest.mark.parametrize(
    "body",
    [
        b"--xx\r\n" + b"X: y\r\n" * 1_000_000,
        b"--xx\r\nX: " + b"y" * 10_000_000,
        b"--xx\r\n" + b"X" * 10_000_000,
        b"--xx\r\nX:" + b" " * 10_000_000,
        b"--xx" + b" " * 10_000_000,
        b"--xx\r\n" + field("a") + b"\r\n--xx" + b"\t" * 10_000_000,
        b"--xx\r\n" + field("a") + b"\r\n--xx-" * 1_000_000,
        b"--xx\r\n" + field("a") + b"\r\n--x" * 2_000_000,
        b"\r\n" * 5_000_000,
    ],
    ids=["headers", "value", "name", "spaces", "padding", "tabs", "boundaries", "nearly", "lines"],
)
def test_an_endless_form_is_refused(body: bytes) -> None:
    assert refusal(body)


KINDS = {
    "temperature": FieldKind.NUMBER,
    "diarize": FieldKind.BOOLEAN,
    "keyterms": FieldKind.LIST,
    "provider": FieldKind.JSON,
}


@pytest.mark.parametrize(
    ("parts", "fields"),
    [
        ([("model", "a/b"), ("other[x]", "1")], {"model": "a/b", "other[x]": "1"}),
        ([("temperature", "0.5")], {"temperature": 0.5}),
        ([("temperature", "")], {"temperature": None}),
        ([("diarize", "false")], {"diarize": False}),
        ([("keyterms[]", "a"), ("keyterms", "")], {"keyterms": ["a", ""]}),
        ([("provider", '{"zdr": true}')], {"provider": {"zdr": True}}),
        ([("provider", "null")], {"provider": None}),
    ],
)
def test_texts_become_json(parts: list[tuple[str, str]], fields: dict[str, Any]) -> None:
    given = [FormPart(name, text.encode()) for name, text in parts]
    body, files = to_json([*given, FormPart("file", b"x", "a.wav")], KINDS)
    assert json.loads(body) == fields
    assert [part.name for part in files] == ["file"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([("temperature", b"warm")], "temperature: Expected number, got other text."),
        ([("temperature", b"true")], "temperature: Expected number, got other text."),
        ([("diarize", b"yes")], "diarize: Expected boolean, got other text."),
        ([("provider", b"{")], "provider: Expected JSON, got other text."),
        ([("model", b"a"), ("model", b"b")], "model: The form names this field twice"),
        ([("model", b"\xff")], "model: Is not valid UTF-8."),
    ],
)
def test_a_wrong_text_is_named(parts: list[tuple[str, bytes]], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as error:
        to_json([FormPart(*each) for each in parts], KINDS)
    assert error.value.metadata["fields"].keys() == {message.partition(":")[0]}
