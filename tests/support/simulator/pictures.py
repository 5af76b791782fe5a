"""Defines how the simulated upstream answers requests for images, and with which faults.

A picture is a black PNG of the size that was asked for. A request for an edit is a form; its files
become a list of their sizes and types.
"""

from __future__ import annotations

import base64
import functools
import re
import struct
import zlib
from collections.abc import Callable
from typing import Any

from tests.support.simulator.protocol import (
    STREAM_HEAD,
    WRITE_BYTES,
    Request,
    Script,
    Signal,
    encode_json,
    error_object,
    http_chunk,
    http_response,
    response_head,
    to_sse,
)

_TOKENS = {"low": 272, "medium": 1056, "high": 4160}
_CREATED = 1_780_272_000


@functools.lru_cache(maxsize=64)
def make_png(width: int, height: int) -> bytes:
    """Returns a black picture with one bit a pixel."""
    rows = bytes((-(-width // 8) + 1) * height)
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def parse_form(content_type: str, raw: bytes) -> dict[str, Any]:
    """Returns the fields of a form; the files of a field become a list of type and size."""
    found = re.search(r'boundary="?([^";]+)', content_type)
    if found is None:
        raise ValueError("the form names no boundary")
    fields: dict[str, Any] = {}
    for part in raw.split(b"--" + found[1].encode())[1:-1]:
        head, _, data = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        data = data.removesuffix(b"\r\n")
        text = head.decode()
        named = re.search(r'[; ]name="([^"]*)"', text)
        name = named[1] if named else ""
        if 'filename="' not in text:
            fields[name] = data.decode()
            continue
        kind = re.search(r"Content-Type: (\S+)", text)
        file = {"type": kind[1] if kind else "", "bytes": len(data)}
        fields.setdefault(name.removesuffix("[]"), []).append(file)
    return fields


class _Pictures:
    """The pictures that a request asks for."""

    def __init__(self, request: Request) -> None:
        body = request.body
        if not isinstance(body.get("prompt"), str):
            raise ValueError("a prompt is required")
        self.n = int(body.get("n") or 1)
        size = body.get("size") or "auto"
        self.size = "1024x1024" if size == "auto" else size
        quality = body.get("quality") or "auto"
        self.quality = "medium" if quality == "auto" else quality
        self.edits = len(body.get("image") or ())
        self.text = len(body["prompt"].split())
        self.partials = int(body.get("partial_images") or 0)
        self.is_edit = request.path.endswith("/edits")
        width, height = map(int, self.size.split("x"))
        self.encoded = base64.b64encode(make_png(width, height)).decode()

    def members(self) -> dict[str, Any]:
        shown = {"background": "opaque", "output_format": "png"}
        return {"created": _CREATED, **shown, "quality": self.quality, "size": self.size}

    def usage(self) -> dict[str, Any]:
        shown = 200 * self.edits
        made = self.n * _TOKENS.get(self.quality, 4160) + 100 * self.partials * self.n
        return {
            "input_tokens": self.text + shown,
            "output_tokens": made,
            "total_tokens": self.text + shown + made,
            "input_tokens_details": {"image_tokens": shown, "text_tokens": self.text},
            "output_tokens_details": {"image_tokens": made, "text_tokens": 0},
        }

    def answer(self, data: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self.members(), "data": data, "usage": self.usage()}

    def data(self) -> list[dict[str, Any]]:
        return [{"b64_json": self.encoded} for _ in range(self.n)]

    def events(self) -> list[bytes]:
        """Returns the payloads of a stream, which has no end mark."""
        kind = "image_edit" if self.is_edit else "image_generation"
        shown = self.members() | {"created_at": _CREATED}
        del shown["created"]
        events = []
        for number in range(self.n):
            for index in range(self.partials):
                partial = {"type": f"{kind}.partial_image", "partial_image_index": index}
                events.append({**partial, "b64_json": self.encoded, **shown})
            completed = {"type": f"{kind}.completed", "b64_json": self.encoded, **shown}
            usage = {"usage": self.usage()} if number == self.n - 1 else {}
            events.append({**completed, **usage})
        return [encode_json(event) for event in events]


def _paint(request: Request) -> Script:
    pictures = _Pictures(request)
    if not request.stream:
        yield http_response(200, encode_json(pictures.answer(pictures.data())))
        return
    yield STREAM_HEAD
    for event in to_sse(pictures.events()):
        yield http_chunk(event)
    yield b"0\r\n\r\n"


def _plain(change: Callable[[dict[str, Any], Request], Any]) -> Callable[[Request], Script]:
    """Builds a behaviour: a good whole answer after a change."""

    def behave(request: Request) -> Script:
        pictures = _Pictures(request)
        answer = pictures.answer(pictures.data())
        change(answer, request)
        yield http_response(200, encode_json(answer))

    return behave


def _stream(change: Callable[[list[bytes], Request], Script]) -> Callable[[Request], Script]:
    """Builds a behaviour from the events of a good stream; a plain request gets a good answer."""

    def behave(request: Request) -> Script:
        if not request.stream:
            yield from _paint(request)
            return
        yield STREAM_HEAD
        for step in change(to_sse(_Pictures(request).events()), request):
            yield http_chunk(step) if isinstance(step, bytes) else step
        yield b"0\r\n\r\n"

    return behave


def _set_data(data: Callable[[Request], Any]) -> Callable[[Request], Script]:
    return _plain(lambda answer, request: answer.update(data=data(request)))


def _send_large(request: Request) -> Script:
    """Sends images of :N bytes of Base64 each."""
    pictures = _Pictures(request)
    size = int(request.numbers(8_000_000)[0]) // 4 * 4
    head, mark, tail = encode_json(pictures.answer([])).partition(b'"data":[')
    # The first bytes of a PNG, which tell its type.
    start = base64.b64encode(make_png(8, 8)[:9])
    body = head + mark
    tail = b'"}]' + tail.removeprefix(b"]")
    between = b'"},'
    opening = b'{"b64_json":"' + start
    length = len(body) + len(tail) + pictures.n * (len(opening) + size - len(start))
    yield response_head(200, length + (pictures.n - 1) * len(between), "application/json")
    yield body
    for number in range(pictures.n):
        yield (between if number else b"") + opening
        for sent in range(0, size - len(start), WRITE_BYTES):
            yield b"A" * min(WRITE_BYTES, size - len(start) - sent)
    yield tail


def _leave_usage(answer: dict[str, Any], request: Request) -> None:
    del answer["usage"]


def _hold(request: Request) -> Script:
    yield Signal.GATE
    yield from _paint(request)


PICTURES: dict[str, tuple[str, Callable[[Request], Script]]] = {
    "sim-echo": ("paints black pictures of the size that was asked for", _paint),
    "sim-held": ("paints them after one release()", _hold),
    "sim-picture-more": ("one picture more than asked for", _plain(
        lambda a, q: a["data"].append(a["data"][0]))),
    "sim-picture-fewer": ("one picture however many were asked for", _plain(
        lambda a, q: a.update(data=a["data"][:1]))),
    "sim-picture-none": ("no picture", _set_data(lambda q: [])),
    "sim-picture-url": ("URLs in place of data", _set_data(
        lambda q: [{"url": "https://pictures.example/1.png", "revised_prompt": "a cat"}])),
    "sim-picture-data-url": ("pictures in data URLs", _plain(lambda a, q: a.update(
        data=[{"url": f"data:image/png;base64,{each['b64_json']}"} for each in a["data"]]))),
    "sim-picture-broken": ("Base64 with a character that it does not have", _plain(
        lambda a, q: a["data"][0].update(b64_json=a["data"][0]["b64_json"][:-8] + "AAA*AAA="))),
    "sim-picture-number": ("a number in place of a picture", _set_data(
        lambda q: [{"b64_json": 1}])),
    "sim-picture-large": ("pictures of :N bytes (8000000) of Base64", _send_large),
    "sim-picture-unstreamed": ("a whole answer even to a streamed request", _plain(
        lambda a, q: None)),
    "sim-picture-separators": ("a text of :N line separators beside each picture", _plain(
        lambda a, q: [each.update(revised_prompt="\u2028" * int(q.numbers(1)[0]))
                      for each in a["data"]])),
    "sim-picture-no-usage": ("good pictures without a usage", _plain(_leave_usage)),
    "sim-picture-stream-more": ("one event with a picture more than asked for", _stream(
        lambda e, q: [*e, e[-1]])),
    "sim-picture-stream-cut": ("ends before its last picture, after a release()", _stream(
        lambda e, q: [*e[:-1], Signal.GATE])),
    "sim-picture-stream-error": ("an error in place of the last picture, after a release()",
                                 _stream(lambda e, q: [*e[:-1], Signal.GATE, *to_sse(
                                     [encode_json({"type": "error", **error_object(500)})])])),
}  # fmt: skip
