"""Images in requests and answers: their Base64, their type and their size."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from catalog.dialects.base import Untranslatable
from catalog.dialects.shared.images.pictures import (
    InvalidImage,
    choose_size,
    is_base64,
    read_url,
    sniff,
)
from tests.support.inference.pictures import DATA_URL, ENCODED, PNG

# A text longer than the pieces in which it is checked.
LONG = "QUJD" * 40_000


def raw(text: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text))


@pytest.mark.parametrize("text", ["QUJD", "QUI=", "QQ==", "+/+/", LONG, LONG + "QQ=="])
def test_base64_is_recognized(text: str) -> None:
    assert is_base64(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "", "Q", "QQ", "QUI", "QQ=", "Q===", "====", "QQ==QUJD", "QU-_", "QU JD", "QUJ\n", "QUÄ=",
        LONG[:-1], LONG[:-1] + "*", LONG[:131_072] + "*AAA" + LONG[131_076:],
    ],
)  # fmt: skip
def test_other_text_is_not_base64(text: str) -> None:
    assert not is_base64(text.encode())


@pytest.mark.parametrize(
    ("head", "media_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "image/jpeg"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"GIF89a\x01\x00\x01\x00", "image/gif"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"></svg>', "image/svg+xml"),
        (b'\xef\xbb\xbf<?xml version="1.0"?>\n<svg/>', "image/svg+xml"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", None),
        (b"%PDF-1.7", None),
        (b"", None),
    ],
)
def test_the_first_bytes_tell_the_type(head: bytes, media_type: str | None) -> None:
    assert sniff(base64.b64encode(head)) == media_type


def test_a_data_url_is_read_without_a_copy() -> None:
    encoded = raw(DATA_URL)
    picture = read_url(encoded)
    assert (picture.media_type, picture.url) == ("image/png", None)
    assert picture.base64 is not None
    assert picture.base64.obj is memoryview(encoded).obj
    assert bytes(picture.base64).decode() == ENCODED


def test_an_encoder_may_escape_slashes() -> None:
    escaped = msgspec.Raw(bytes(raw(DATA_URL)).replace(b"/", b"\\/"))
    assert bytes(read_url(escaped).base64 or b"").decode() == ENCODED


def test_a_web_url_stays_one() -> None:
    picture = read_url(raw("https://pictures.example/cat.png"))
    assert picture == (None, None, "https://pictures.example/cat.png")


@pytest.mark.parametrize(
    "url",
    [
        "", "cat.png", "file:///etc/passwd", "ftp://example.com/cat.png", "https://a b",
        "data:image/png;base64,", "data:image/png;base64,A", "data:image/png;base64,AA*A",
        "data:image/png,AAAA", "data:;base64,AAAA", "https://example.com/" + "a" * 16_384,
        5, None, {"url": "x"},
    ],
)  # fmt: skip
def test_anything_else_is_no_image(url: Any) -> None:
    with pytest.raises(InvalidImage):
        read_url(raw(url))


@pytest.mark.parametrize(
    ("members", "size"),
    [
        ({}, None),
        ({"size": "auto"}, "auto"),
        ({"size": "1536x864"}, "1536x864"),
        ({"size": "1024x1024", "aspect_ratio": "1:1", "resolution": "1K"}, "1024x1024"),
        ({"aspect_ratio": "auto"}, None),
        ({"aspect_ratio": "1:1"}, "1024x1024"),
        ({"aspect_ratio": "3:2"}, "1536x1024"),
        ({"aspect_ratio": "2:3"}, "1024x1536"),
        ({"aspect_ratio": "2.35:1"}, "2400x1024"),
        ({"resolution": "512"}, "512x512"),
        ({"resolution": "1K"}, "1024x1024"),
        ({"size": "2K"}, "2048x2048"),
        ({"size": "2K", "aspect_ratio": "16:9"}, "2048x1152"),
        ({"resolution": "4K", "aspect_ratio": "16:9"}, "3840x2160"),
        ({"resolution": "4K", "aspect_ratio": "9:16"}, "2160x3840"),
        ({"size": "auto", "aspect_ratio": "auto"}, "auto"),
        ({"size": "auto", "resolution": "2K"}, "2048x2048"),
        ({"size": "auto", "aspect_ratio": "3:2"}, "1536x1024"),
        ({"size": "auto", "resolution": "4K", "aspect_ratio": "16:9"}, "3840x2160"),
    ],
)
def test_all_members_about_the_size_become_pixels(
    members: dict[str, Any], size: str | None
) -> None:
    assert choose_size(members) == size


def test_an_unknown_tier_is_named() -> None:
    with pytest.raises(Untranslatable, match="resolution: This provider has no size 8K"):
        choose_size({"resolution": "8K"})
