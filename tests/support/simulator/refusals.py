"""Defines errors that each provider words in its own way: codes, waits, errors inside a 200."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.support.simulator.protocol import (
    Request,
    Script,
    chunked_response,
    encode_json,
    error_object,
    error_reply,
    http_response,
    to_sse,
)

_NO_FILE: Final = "You do not have permission to access the File abc or it may not exist."


def _name(request: Request) -> Script:
    status, _, code = request.option.partition(",")
    yield error_reply(int(status), code=code, message="The provider's own words.")


def _report(request: Request) -> Script:
    """Reports an error inside an answer of status 200."""
    name = request.option or "overloaded_error"
    error = encode_json(
        error_object(200, type=name, code=None, message="The provider's own words.")
    )
    if request.stream:
        yield chunked_response(to_sse([error]))
    else:
        yield http_response(200, error)


def _ask_to_wait(request: Request) -> Script:
    status, _, header = request.option.partition(",")
    name, _, value = header.partition("=")
    yield error_reply(int(status), f"{name}: {value}\r\n")


REFUSALS: dict[str, tuple[str, Callable[[Request], Script]]] = {
    "sim-named": ("error :STATUS,CODE", _name),
    "sim-reported": ("an error of the type :NAME (overloaded_error) with status 200", _report),
    "sim-wait": ("error :STATUS,HEADER=VALUE", _ask_to_wait),
    "sim-firewall": ("403 with a page of HTML", lambda q: (
        http_response(403, b"<!doctype html><title>Forbidden</title>", "text/html"),)),
    "sim-strange-file": ("Google's 403 for a file of another account", lambda q: (
        error_reply(403, code="PERMISSION_DENIED", message=_NO_FILE),)),
    "sim-huge-error": ("400 with a message of 1 MB and control characters", lambda q: (
        error_reply(400, message="\x00\x1b[31m\r\n\u202e\x7f" + "A" * 1_000_000),)),
    "sim-error-number": ("429 whose code is a number", lambda q: (error_reply(429, code=429),)),
    "sim-error-code": ("400 whose code is a string", lambda q: (
        error_reply(400, code="context_length_exceeded"),)),
    "sim-error-string": ("500 whose error is a string", lambda q: (
        http_response(500, b'{"error":"the model crashed"}'),)),
    "sim-error-text": ("500 in plain text", lambda q: (
        http_response(500, b"Internal Server Error", "text/plain"),)),
    "sim-error-200": ("error object with status 200", lambda q: (
        http_response(200, encode_json(error_object(500))),)),
}  # fmt: skip
