"""The types that every dialect shares."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from catalog.dialects.shared.credentials import sensitive_parts
from catalog.pricing import Usage
from config.credentials import Secret
from config.egress import OutboundRequest

Fields = dict[str, Any]
"""A JSON object whose values are raw JSON (``msgspec.Raw``) or plain Python values."""

_MAX_TOKENS: Final = 100_000_000
_MAX_MESSAGE: Final = 512
# Controls, line and paragraph separators, marks that turn the direction of text, lone surrogates.
_UNPRINTABLE: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+"
)
# A signed token (RFC 7515): a key as good as the one that signed it, while it lasts.
_TOKEN: Final = re.compile(r"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
# An escape: a pair of surrogates, a lone half of one, or any other.
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB]..(?:\\u[dD][c-fC-F]..)?|u[dD][c-fC-F]..|.)", re.DOTALL
)
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Operation(StrEnum):
    """What the caller asks for, named by the path of OpenAI's interface."""

    CHAT = "chat/completions"
    TEXT = "completions"
    EMBEDDINGS = "embeddings"


class Untranslatable(Exception):
    """A request that a wire format cannot say; the text is ours and safe to show."""


class InvalidReply(Exception):
    """A 200 whose body is not a completion; the text is ours and safe to show."""


class InvalidStream(Exception):
    """A stream that breaks its format; the text is ours and safe to show."""


class ProviderFailure(Exception):
    """An error that the provider reported, inside a 200 or as the body of an error status.

    Its texts are foreign: only what :meth:`cleaned` returns is fit to show.
    """

    def __init__(self, message: str | None, code: str | None = None) -> None:
        super().__init__(message or "The provider reported an error.")
        self.message = message
        self.code = code

    def cleaned(self, secret: Secret) -> ProviderFailure:
        """Returns the failure without the secret and short enough to show."""
        return ProviderFailure(
            None if self.message is None else clean_message(self.message, secret),
            None if self.code is None else clean_message(self.code, secret)[:64],
        )


@dataclass(frozen=True, slots=True)
class Call:
    """A request to one deployment: where, as whom, and the body's fields as the caller sent them.

    ``fields`` holds no field that is meant for the gateway alone; ``model`` is the identifier that
    the deployment knows. Without a ``base_url`` the credential says where.
    ``max_completion_tokens`` is the most that the deployment writes, for a format that wants a
    bound where the caller names none. ``is_byok`` tells whether the one whose credential it is
    pays the provider, and not the operator by a list price.
    ``supported_parameters`` are those that the endpoint lists; ``None`` where it lists none.
    """

    operation: Operation
    base_url: str | None
    model: str
    secret: Secret
    fields: Mapping[str, Any] = field(repr=False)
    stream: bool = False
    max_completion_tokens: int | None = None
    is_byok: bool = False
    supported_parameters: frozenset[str] | None = None


class Reply(msgspec.Struct):
    """A whole completion: its body, and what the gateway must know of it.

    ``output_bytes`` is the size of the text produced, for an estimate when usage is absent.
    """

    fields: Fields
    model: str | None
    usage: Usage | None
    finish_reason: str | None
    output_bytes: int = 0
    upstream_id: str | None = None


class Chunk(msgspec.Struct):
    """One event of a stream, or its end mark (``is_done``, no fields).

    A chunk without choices carries something else, usage for instance. With ``alike`` it stands
    for so many events that are as the chunk before but for their choices, whose JSON this is;
    ``fields`` is empty then.
    """

    fields: Fields
    model: str | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    output_bytes: int = 0
    has_choices: bool = False
    is_done: bool = False
    upstream_id: str | None = None
    alike: list[bytes] = []


class StreamParser(Protocol):
    """Reads one stream; one object per request."""

    def feed(self, data: bytes) -> list[Chunk]:
        """Returns the chunks that these bytes complete.

        Raises :class:`InvalidStream`, and :class:`ProviderFailure` for an error in the stream;
        what came before it in the same bytes is then in :attr:`pending`.
        """
        ...

    @property
    def pending(self) -> list[Chunk]:
        """Returns the chunks parsed before the last :meth:`feed` raised."""
        ...

    def finish(self) -> list[Chunk]:
        """Returns the chunks that only the end of the body completes, and none after an end mark.

        Raises :class:`InvalidStream` for a stream that is cut off.
        """
        ...


class Dialect(Protocol):
    """A wire format: how to ask, and how to read the answer."""

    @property
    def operations(self) -> frozenset[Operation]:
        """Returns what can be asked at all."""
        ...

    @property
    def names_deployments(self) -> bool:
        """Tells whether what it calls a model is a deployment's name, which may be anything."""
        ...

    def host(self, base_url: str | None, secret: Secret) -> str:
        """Returns the host to which a call carries the secret.

        Raises :class:`InvalidCredential` when the secret should say
        where, and does not.
        """
        ...

    def build(self, call: Call) -> OutboundRequest:
        """Returns the HTTP request of a call; raises :class:`Untranslatable`."""
        ...

    def parse_reply(self, operation: Operation, body: bytes) -> Reply:
        """Reads a whole answer; raises :class:`InvalidReply` or :class:`ProviderFailure`."""
        ...

    def stream_parser(self, operation: Operation, choices: int = 1) -> StreamParser:
        """Returns the reader of one streamed answer, which was asked to have so many choices."""
        ...


def decode_object(body: bytes) -> dict[str, msgspec.Raw] | None:
    """Decodes the outermost object and leaves its values raw; ``None`` when it is none.

    Some servers print ``NaN`` where a number is missing. That is not JSON, but the answer around it
    is whole, so it is read as ``null``. Others escape the two halves of a character in two events;
    each half is read as U+FFFD.
    """
    if b"\\ud" in body or b"\\uD" in body:
        body = _ESCAPE.sub(_whole_escape, body)
    try:
        # Values are checked when they are read, which for most is never: the encoding is checked
        # here, because what is relayed must be UTF-8 throughout.
        return _decode_fields(body.decode())
    except RecursionError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        if b"NaN" not in body and b"Infinity" not in body:
            return None
    try:
        lenient = json.loads(body, parse_constant=lambda _: None)
        return _decode_fields(msgspec.json.encode(lenient))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _whole_escape(escape: re.Match[bytes]) -> bytes:
    is_half = len(escape[0]) == len(rb"\ud83d")
    return rb"\ufffd" if is_half else escape[0]


def read_usage(prompt: Any, completion: Any, **details: Any) -> Usage | None:
    """Returns the usage when both counts are sane; what is absent or absurd is not a usage.

    A detail that is absent or absurd counts as zero: it only splits a total that is known.
    """
    if not _is_count(prompt) or not _is_count(completion):
        return None
    return Usage(
        prompt=prompt,
        completion=completion,
        **{name: value if _is_count(value) else 0 for name, value in details.items()},
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_TOKENS


def clean_message(text: str, secret: Secret) -> str:
    """Makes a foreign message fit to show: one line, no secret, at most 512 characters."""
    for part in sensitive_parts(secret):
        text = text.replace(part, "********")
    text = _TOKEN.sub("********", text)
    return _UNPRINTABLE.sub(" ", text[:4096]).strip()[:_MAX_MESSAGE]


def parse_error(body: bytes) -> ProviderFailure:
    """Reads an error body of any known dialect; only a JSON error's message is ever shown.

    Knows ``{"error": {"message", "code", "type"}}``, ``{"error": "…"}`` and ``{"message": "…"}``.
    Google repeats the HTTP status in ``code`` and names the error in ``status``.
    """
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        return ProviderFailure(None)
    error = decoded.get("error", decoded) if isinstance(decoded, dict) else None
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict):
        return ProviderFailure(None)
    message, code = error.get("message"), error.get("code")
    if isinstance(code, int) and isinstance(error.get("status"), str):
        code = error["status"]
    if code is None:
        code = error.get("type")
    return ProviderFailure(
        message if isinstance(message, str) else None,
        str(code) if isinstance(code, str | int) else None,
    )
