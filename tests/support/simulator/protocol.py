"""Defines what behaviours are made of: requests, steps, and HTTP and server-sent events as bytes.

The simulator writes HTTP by hand, because a library refuses to send faults: bodies shorter than
announced, resets, characters cut in half, one byte a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any

WRITE_BYTES = 64 * 1024
# An id of fixed length that JSON does not escape; a cached answer gets its own id by replacement.
ID_PLACEHOLDER = "\x7f" * 24


class Signal(Enum):
    """A step that neither sends bytes nor waits for a time."""

    RESET = "drop the connection with a TCP reset"
    CLOSE = "close the connection in good order"
    STALL = "send nothing more, and keep the connection"
    GATE = "wait until the test calls release()"


Step = bytes | float | Signal
Script = Iterable[Step]
# The kinds of requests whose answers are never streamed.
WHOLE = ("embeddings", "rerank")


@dataclass(slots=True, eq=False)
class Request:
    """One request and the progress of its answer; times are `time.monotonic()`."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    connection: int
    received_at: float
    id: int = 0
    body: Any = None
    kind: str = ""
    """`chat`, `completions`, `embeddings`, `rerank`, `speech`, `transcription` or `images`.

    Empty for everything else.
    """
    option: str = ""
    nth: int = 0
    """The number of requests for this model so far, including this one."""
    sent_bytes: int = 0
    finished_at: float | None = None
    """When the last step ended; None while it runs, and if the client left before."""
    client_closed_at: float | None = None
    """When the client closed the connection before the answer's end."""

    @property
    def model(self) -> str:
        return str(self.body["model"])

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream")) and self.kind not in WHOLE

    @property
    def include_usage(self) -> bool:
        options = self.body.get("stream_options")
        return isinstance(options, dict) and bool(options.get("include_usage"))

    def numbers(self, *defaults: float) -> list[float]:
        """Returns the option's comma-separated numbers; a default replaces each missing one."""
        given = [float(part) for part in self.option.split(",") if part]
        return [*given, *defaults[len(given) :]]


def encode_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def http_response(
    status: int, body: bytes, content_type: str = "application/json", *, more: str = ""
) -> bytes:
    return response_head(status, len(body), content_type, more) + body


def response_head(status: int, length: int, content_type: str, more: str = "") -> bytes:
    phrase = _PHRASES.get(status, "Unusual")
    return (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {content_type}\r\n"
        f"x-request-id: req_{ID_PLACEHOLDER}\r\n{more}content-length: {length}\r\n\r\n"
    ).encode()


_PHRASES = {status.value: status.phrase for status in HTTPStatus}
STREAM_HEAD = (
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    f"x-request-id: req_{ID_PLACEHOLDER}\r\ntransfer-encoding: chunked\r\n\r\n"
).encode()


def insert_request_id(data: bytes, request: Request) -> bytes:
    return data.replace(ID_PLACEHOLDER.encode(), b"%024d" % request.id)


def to_sse(payloads: Iterable[bytes], end: bytes = b"\n", name: bytes = b"data: ") -> list[bytes]:
    return [name + payload + end + end for payload in payloads]


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def chunked_response(pieces: Iterable[bytes]) -> bytes:
    return b"".join([STREAM_HEAD, *map(http_chunk, pieces), b"0\r\n\r\n"])


_ERRORS: dict[int, tuple[str, str | None, str]] = {
    400: ("invalid_request_error", None, "The request is not valid."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("permission_error", "model_not_allowed", "This key may not use this model."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist."),
    408: ("timeout_error", "request_timeout", "The request took too long."),
    409: ("conflict_error", None, "The resource was changed meanwhile."),
    422: ("invalid_request_error", None, "The request cannot be processed."),
    429: ("rate_limit_error", "rate_limit_exceeded", "Rate limit reached, try again later."),
    503: ("overloaded_error", None, "The engine is overloaded."),
    529: ("overloaded_error", None, "The engine is overloaded."),
}


def error_object(status: int, **changes: Any) -> dict[str, Any]:
    kind, code, message = _ERRORS.get(status, ("server_error", None, "The server had an error."))
    return {"error": {"message": message, "type": kind, "param": None, "code": code} | changes}


def error_reply(status: int, more: str = "", **changes: Any) -> bytes:
    return http_response(status, encode_json(error_object(status, **changes)), more=more)
