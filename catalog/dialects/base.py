"""The types that every dialect shares."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar

import msgspec

from catalog.abilities import UNSTATED, Abilities
from catalog.capabilities import UNDESCRIBED, Capabilities, NativeFormat
from catalog.dialects.shared.credentials import InvalidCredential, read_stated, sensitive_parts
from catalog.dialects.shared.multipart import FormPart
from catalog.pricing import Usage
from config.api.errors import InvalidRequest
from config.api.scanning import BoundExceeded, Bounds, scan
from config.credentials import Secret
from config.egress import OutboundRequest

Fields = dict[str, Any]
"""A JSON object whose values are raw JSON (``msgspec.Raw``) or plain Python values."""

# The largest count that is taken over; sums of such counts stay in the range of the database.
_MAX_TOKENS: Final = 10**15
_COUNT: Final = re.compile(r"[0-9]{1,15}(?:\.0*)?", re.ASCII)
_MAX_MESSAGE: Final = 512
# Where the message of an error may stand, and how much of plain text is looked at.
_MESSAGES: Final = (
    "message",
    "detail",
    "errors",
    "msg",
    "error",
    "error_message",
    "error_msg",
    "Message",
)
_MAX_TEXT: Final = 4096
_TEXT: Final = re.compile(r"(?=.{0,80}[^\W\d_])[^<{\[]", re.DOTALL)
_MAX_NAME: Final = 64
_ARGUMENTS: Final = frozenset(("input", "args", "arguments"))
_TEXTS: Final = frozenset(("text", "thinking"))
Decoded = TypeVar("Decoded")
# The entries of Google's ``details`` that are looked at.
_MAX_DETAILS: Final = 16
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s")
# Controls, line and paragraph separators, marks that turn the direction of text, lone surrogates.
_UNPRINTABLE: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+"
)
# A signed token (RFC 7515) grants the same access as a key until it expires.
_TOKEN: Final = re.compile(r"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
# A JSON escape: a pair of surrogates, a lone surrogate, or any other escape.
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB]..(?:\\u[dD][c-fC-F]..)?|u[dD][c-fC-F]..|.)", re.DOTALL
)
# Bounds of one answer. Vectors and logarithmic probabilities have many values; what is decoded one
# by one has few objects. ``lists`` is added for each answer.
_ANSWER: Final = Bounds(depth=200, containers=500_000, members=20_000, values=25_000_000)
# The lists of an answer that hold one item for each choice that was asked for, in all formats.
_CHOICES: Final = (b"choices", b"candidates", b"data", b"results")
# Above this size an answer must be strict JSON, because repairing it takes several times its size.
_LENIENT_BYTES: Final = 1_048_576
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


Body = bytes | bytearray
"""The body of an answer; one that arrived in many pieces was collected in a ``bytearray``."""


class Operation(StrEnum):
    """The operation that the caller asks for, named by its path in OpenAI's interface."""

    CHAT = "chat/completions"
    TEXT = "completions"
    EMBEDDINGS = "embeddings"
    SPEECH = "audio/speech"
    TRANSCRIPTION = "audio/transcriptions"
    RERANK = "rerank"
    IMAGES = "images/generations"


class Untranslatable(Exception):
    """A request that a wire format cannot express; the message is ours and safe to show."""


class InvalidReply(Exception):
    """A response with status 200 without a completion; the message is ours and safe to show."""


class InvalidStream(Exception):
    """A stream that breaks its format; the message is ours and safe to show."""


class UnusableReply(InvalidReply):
    """A valid answer in a form that this request cannot use; the message is ours."""


class ProviderFailure(Exception):
    """An error that the provider reported, with status 200 or as the body of an error status.

    Its texts come from outside: only the texts of :meth:`clean` are safe to show. ``names`` are all
    the names that the provider gives to the error, in lower case: its code, type, status and
    reason. ``retry_after`` is the wait in seconds that the body asks for.
    """

    def __init__(
        self,
        message: str | None,
        code: str | None = None,
        *,
        names: Iterable[str] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message or "The provider reported an error.")
        self.message = message
        self.code = code
        given = names if code is None else (code, *names)
        self.names = frozenset(name[:_MAX_NAME].lower() for name in given)
        self.retry_after = retry_after

    def clean(self, secret: Secret) -> ProviderFailure:
        """Returns the failure without the secret and short enough to show."""
        return ProviderFailure(
            None if self.message is None else clean_message(self.message, secret),
            None if self.code is None else clean_message(self.code, secret)[:_MAX_NAME],
            names=self.names,
            retry_after=self.retry_after,
        )


class NativeBody(msgspec.Struct, frozen=True):
    """A request in its caller's own format, for upstreams that speak it too.

    ``fields`` are the raw members of the body in their order, without those that only the gateway
    reads, and ``headers`` those of the format in lower case. ``problem`` refuses the first field
    that chat cannot express: it is raised where no upstream speaks the format. ``clouds`` are the
    dialects of the clouds that serve all of it, as the author of the format does; ``beside`` names
    for each cloud the fields that it does not know and that change no answer. ``foreign`` are the
    caller's betas that no operator's credential sends. ``left_out`` names what the caller sent and
    no upstream gets. ``told`` are members of an answer that repeat what the gateway replaced in the
    request.
    """

    format: NativeFormat
    fields: dict[str, Any]
    headers: tuple[tuple[str, str], ...] = ()
    problem: InvalidRequest | None = None
    clouds: frozenset[str] = frozenset()
    beside: Mapping[str, frozenset[str]] = {}
    foreign: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()
    told: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        """Names the request without its content, which no traceback shall show."""
        return f"<{self.format} body of {len(self.fields)} fields>"


class Call(msgspec.Struct, frozen=True):
    """A request to one endpoint: its URL, its credential, and the body's fields from the caller.

    ``fields`` holds no field that only the gateway reads; ``model`` is the upstream's identifier of
    the model. Without a ``base_url`` the credential names the host. ``max_completion_tokens`` is
    the output limit of the endpoint, for a format that requires a limit when the caller names none.
    ``is_byok`` is true when the owner of the credential pays the provider, not the operator.
    ``supported_parameters`` are the parameters that the endpoint lists, or ``None`` without a list.
    ``capabilities`` are those of the model in the catalogue: its name decides nothing.
    ``files`` are sent beside the fields, and ``is_billed_by_token`` says that the price needs the
    tokens of the answer, for a format that reports them only when it is asked.
    ``native`` is the request in the format of the upstream, if the caller wrote it in that.
    ``keeps_lifetimes`` says that cached prefixes may stay as long as the caller wants.
    ``most_searches`` bounds the searches of the web that one answer may make; 0 if it may not.
    ``abilities`` are what is stated of the endpoint. ``left_out`` names the fields that the caller
    sent and the endpoint does not list.
    """

    operation: Operation
    base_url: str | None
    model: str
    secret: Secret
    fields: Mapping[str, Any]
    stream: bool = False
    max_completion_tokens: int | None = None
    is_byok: bool = False
    supported_parameters: frozenset[str] | None = None
    capabilities: Capabilities = UNDESCRIBED
    files: Sequence[FormPart] = ()
    is_billed_by_token: bool = False
    native: NativeBody | None = None
    keeps_lifetimes: bool = True
    most_searches: int = 0
    abilities: Abilities = UNSTATED
    left_out: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        """Names the call without its content, which no traceback shall show."""
        return f"<{self.operation} of {len(self.fields)} fields for {self.model}>"


class Reply(msgspec.Struct):
    """A whole completion: its body, and the facts that the gateway needs.

    ``output_bytes`` is the size of the output, from which tokens are estimated when the usage is
    missing, and ``characters`` its letters and digits where the usage may be that of one choice of
    several. ``sound`` is what of ``output_bytes`` stands for sound in an answer of chat.
    ``choices`` is the number of completions or vectors, ``size`` that of bytes.
    ``native_finish_reason`` is the provider's own word where no choice has it. ``notes`` say what
    was repaired, and ``pictures`` is the number of finished pictures.
    """

    fields: Fields
    model: str | None
    usage: Usage | None
    finish_reason: str | None
    output_bytes: int = 0
    characters: int = 0
    sound: int = 0
    upstream_id: str | None = None
    choices: int = 1
    size: int = 0
    native_finish_reason: str | None = None
    notes: frozenset[str] = frozenset()
    pictures: int = 0


class Ranked(msgspec.Struct):
    """The relevance of one document to a rerank, by its place in the request."""

    index: int
    relevance_score: float


class Chunk(msgspec.Struct):
    """One event of a stream, or its end mark (``is_done``, no fields).

    The end of the body stands for a missing end mark (``is_unmarked``) if everything else came.

    A chunk without choices carries something else, for instance the usage. A chunk with ``repeats``
    stands for several events that equal the previous chunk except for their choices: each item is
    the JSON of the choices of one event without the ``frame`` around it, which all of them share,
    and ``fields`` is empty. ``characters`` and ``sound`` are those of a :class:`Reply`. ``data``
    are bytes that pass as they are: of an answer that is no JSON, such as audio, or of an event in
    the caller's format.
    ``native_finish_reason`` is the provider's own word where no choice has it, ``pictures`` the
    number of finished pictures, and ``milliseconds`` the length that a whole sound says it has, at
    its end.
    """

    fields: Fields
    model: str | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    output_bytes: int = 0
    characters: int = 0
    sound: int = 0
    has_choices: bool = False
    is_done: bool = False
    is_unmarked: bool = False
    upstream_id: str | None = None
    repeats: list[bytes] = []
    frame: tuple[bytes, bytes] = (b"", b"")
    data: bytes = b""
    native_finish_reason: str | None = None
    pictures: int = 0
    milliseconds: int | None = None

    @property
    def repeated_choices(self) -> list[bytes]:
        """The JSON of the choices of each event that the chunk stands for."""
        before, after = self.frame
        return [before + each + after for each in self.repeats]


class StreamParser(Protocol):
    """Parses one stream; each request has an object of its own."""

    def feed(self, data: bytes) -> list[Chunk]:
        """Returns the chunks that these bytes complete.

        Raises :class:`InvalidStream`, and :class:`ProviderFailure` for an error in the stream;
        :attr:`pending` then holds the chunks before the error.
        """
        ...

    @property
    def pending(self) -> list[Chunk]:
        """Returns the chunks parsed before the last :meth:`feed` raised."""
        ...

    @property
    def notes(self) -> set[str]:
        """Returns sentences that say what was repaired so far."""
        ...

    @property
    def held(self) -> int:
        """Returns about how many bytes of the stream are kept for chunks to come."""
        ...

    def finish(self) -> list[Chunk]:
        """Returns the chunks that the end of the body completes; none after an end mark.

        A stream without its end mark is whole if each choice has a finish reason. Raises
        :class:`InvalidStream` for a stream that is cut off.
        """
        ...


class Dialect(Protocol):
    """A wire format: builds requests and parses replies. A module of this package implements it."""

    @property
    def operations(self) -> frozenset[Operation]:
        """Returns the operations that the format supports."""
        ...

    @property
    def names_deployments(self) -> bool:
        """Returns whether its model identifiers are names of deployments, which may be any text."""
        ...

    def host(self, base_url: str | None, secret: Secret) -> str:
        """Returns the host that a call sends the secret to.

        Raises :class:`InvalidCredential` when the secret must name a host and does not.
        """
        ...

    def build(self, call: Call) -> OutboundRequest:
        """Returns the HTTP request of a call; raises :class:`Untranslatable`."""
        ...

    def parse_reply(self, operation: Operation, body: Body) -> Reply:
        """Parses a whole reply; raises :class:`InvalidReply` or :class:`ProviderFailure`."""
        ...

    def stream_parser(self, operation: Operation, choices: int = 1) -> StreamParser:
        """Returns the parser of one stream for a request with this number of choices."""
        ...


class ImagesDialect(Dialect, Protocol):
    """A wire format that has images among its operations."""

    def image_parameters(self, listed: frozenset[str]) -> frozenset[str]:
        """Returns the members of a request for images that an endpoint takes.

        ``listed`` are those that it lists; empty without a list.
        """
        ...


def check_answer(body: Body, choices: int) -> None:
    """Raises :class:`InvalidReply` for a large answer that would cost too much to parse.

    ``choices`` is the number of completions or vectors that were asked for. More of them are found
    here before they are decoded.
    """
    bounds = replace(_ANSWER, lists=dict.fromkeys(_CHOICES, choices))
    try:
        scan(body, bounds, may_repeat=True)
    except BoundExceeded as exc:
        raise InvalidReply(f"It has {exc}.") from None
    except UnicodeDecodeError:
        raise InvalidReply("It is not UTF-8.") from None


def decode_object(body: Body) -> dict[str, msgspec.Raw] | None:
    """Decodes a JSON object and leaves its values raw; returns ``None`` for anything else.

    :func:`check_answer` has read a body above 1 MiB, which is neither copied nor repaired.

    Some servers print ``NaN`` for a missing number. That is not JSON, but the rest of the reply is
    valid, so ``NaN`` is read as ``null``. Other servers split the two surrogates of a character
    over two events; each surrogate is read as U+FFFD.
    """
    if len(body) > _LENIENT_BYTES:
        try:
            return _decode_fields(body)
        except (msgspec.DecodeError, RecursionError):
            return None
    if b"\\ud" in body or b"\\uD" in body:
        body = _ESCAPE.sub(_replace_lone_surrogate, body)
    try:
        # Raw values are decoded only when they are used. The encoding is checked here, because
        # everything that is relayed must be UTF-8.
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


def decode_answer(
    decode: Callable[[str], Decoded], body: Body, problem: str
) -> tuple[Decoded, bytes | None]:
    """Decodes an answer in which null may stand for an absent member.

    Returns also its bytes without these nulls, if they had to go. Half of a pair of surrogates is
    read as U+FFFD. Raises :class:`InvalidReply` with the problem.
    """
    try:
        return _decode_leniently(decode, body)
    except _MALFORMED:
        raise InvalidReply(problem) from None


def decode_lenient_event(
    decode: Callable[[str], Decoded], data: bytes
) -> tuple[Decoded, bytes | None]:
    """Decodes an event as :func:`decode_answer` does; raises :class:`InvalidStream`."""
    try:
        return _decode_leniently(decode, data)
    except _MALFORMED:
        raise InvalidStream("An event of the stream is malformed.") from None


def _decode_leniently(decode: Callable[[str], Decoded], data: Body) -> tuple[Decoded, bytes | None]:
    text = bytes(data).decode()
    try:
        return decode(text), None
    except msgspec.DecodeError:
        mended = _ESCAPE.sub(_replace_lone_surrogate, text.encode())
        if b"null" in mended:
            mended = msgspec.json.encode(_drop_nulls(msgspec.json.decode(mended)))
        elif mended == text.encode():
            raise
        return decode(mended.decode()), mended


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_drop_nulls(item) for item in value if item is not None]
    if not isinstance(value, dict):
        return value
    # What a model wrote for a tool stays as it is, and the SDKs append to a text that begins.
    return {
        name: "" if item is None else item if name in _ARGUMENTS else _drop_nulls(item)
        for name, item in value.items()
        if item is not None or name in _TEXTS
    }


def _replace_lone_surrogate(escape: re.Match[bytes]) -> bytes:
    is_lone = len(escape[0]) == len(rb"\ud83d")
    return rb"\ufffd" if is_lone else escape[0]


def read_usage(prompt: Any, completion: Any, **details: Any) -> Usage | None:
    """Returns the usage, or ``None`` when one of the two counts is missing or not a count.

    A detail that is missing or not a count counts as zero, because it only splits a known total. A
    count may be far more than was allowed: settlement decides what of it is believed. A usage of
    nothing is a missing one: some servers send zeros beside any text.
    """
    prompt, completion = read_count(prompt), read_count(completion)
    if prompt is None or completion is None:
        return None
    parts: dict[str, Any] = {
        name: read_count(value) or 0 for name, value in details.items() if value
    }
    cached, audio = parts.get("cached", 0), parts.get("audio", 0)
    if cached and audio:
        # What is cached beyond the text of the prompt is audio, whether a provider says so or not.
        parts["audio_cached"] = max(parts.get("audio_cached", 0), cached + audio - prompt)
    if not (prompt or completion or any(parts.values())):
        return None
    return Usage(prompt, completion, **parts)


def read_count(value: Any) -> int | None:
    """Returns a count; some servers write it as a float or as text. ``None`` for anything else."""
    if isinstance(value, str) and _COUNT.fullmatch(value):
        value = float(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return None
    return min(value, _MAX_TOKENS)


def post_json(
    call: Call, url: str, login: Mapping[str, str], body: bytes, kind: str = "application/json"
) -> OutboundRequest:
    """Returns the request of a call; the headers of ``login`` authenticate it."""
    accepted = "text/event-stream" if call.stream else "application/json"
    headers = {**login, "Content-Type": kind, "Accept": accepted}
    return OutboundRequest("POST", url, headers, body)


def build_stated(build: Callable[[Call], OutboundRequest], call: Call) -> OutboundRequest:
    """Builds the request of a call, with the headers and the query that its secret states.

    The owner's headers take the place of the dialect's. Raises :class:`Untranslatable` for a secret
    that an earlier release took.
    """
    if not call.secret.is_object:
        return build(call)
    try:
        stated = read_stated(call.secret)
    except InvalidCredential as exc:
        raise Untranslatable(str(exc)) from None
    made = build(msgspec.structs.replace(call, secret=stated.secret))
    folded = {name.lower() for name in stated.headers}
    kept = {name: text for name, text in made.headers.items() if name.lower() not in folded}
    mark = "&" if "?" in made.url else "?"
    url = f"{made.url}{mark}{stated.query}" if stated.query else made.url
    return replace(made, url=url, headers={**kept, **stated.headers})


def clean_message(text: str, secret: Secret) -> str:
    """Returns an upstream's message safe to show: one line, no secret, at most 512 characters."""
    for part in sensitive_parts(secret):
        text = text.replace(part, "********")
    text = _TOKEN.sub("********", text)
    return _UNPRINTABLE.sub(" ", text[:4096]).strip()[:_MAX_MESSAGE]


def _read_message(value: Any) -> str | None:
    """Returns the text of a message: itself, or those of the first entries of a list.

    An entry of FastAPI has the place and the text of a fault, and repeats the caller's input.
    """
    if isinstance(value, str):
        return value or None
    if isinstance(value, list):
        texts = [text for each in value[:_MAX_DETAILS] if (text := _read_message(each))]
        return "; ".join(texts) or None
    if not isinstance(value, dict):
        return None
    text = next((value[name] for name in _MESSAGES if isinstance(value.get(name), str)), None)
    place = value.get("loc")
    if text is not None and isinstance(place, list):
        return f"{'.'.join(str(part) for part in place[:_MAX_DETAILS])}: {text}"
    return text or next((found for each in value.values() if (found := _read_nested(each))), None)


def _read_nested(value: Any) -> str | None:
    """Returns the text of a list inside of a message, such as Mistral's ``{"detail": […]}``."""
    return _read_message(value) if isinstance(value, list) else None


def parse_error(body: Body, *, is_text_shown: bool = True) -> ProviderFailure:
    """Parses an error body of any known dialect.

    Accepts ``{"error": {"message", "code", "type"}}``, ``{"error": "…"}``, ``{"message": "…"}``,
    FastAPI's ``{"detail": …}`` and ``{"errors": […]}``; and plain text, unless ``is_text_shown`` is
    false. Google repeats the HTTP status in ``code`` and names the error in ``status``; its
    ``details`` have a reason and a wait, and some of its servers put the error into a list.
    """
    try:
        return _read_error(body, is_text_shown=is_text_shown)
    except RecursionError:  # lists in lists
        return ProviderFailure(None)


def _read_error(body: Body, *, is_text_shown: bool) -> ProviderFailure:
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        text = bytes(body[:_MAX_TEXT]).decode(errors="replace").strip() if is_text_shown else ""
        # A page of HTML tells nobody anything, and broken JSON is none of ours.
        return ProviderFailure(text if _TEXT.match(text) else None)
    if isinstance(decoded, list) and decoded:
        decoded = decoded[0]
    error = decoded.get("error") or decoded if isinstance(decoded, dict) else None
    if isinstance(decoded, dict) and isinstance(error, str | list):
        error = {**decoded, "message": error}
    elif isinstance(error, int):
        # True, or the status once more: the rest stands beside it.
        error = decoded
    elif isinstance(decoded, str):
        error = {"message": decoded}
    if not isinstance(error, dict):
        return ProviderFailure(None)
    message = next(filter(None, (_read_message(error.get(name)) for name in _MESSAGES)), None)
    code = error.get("code")
    if isinstance(code, int) and isinstance(error.get("status"), str):
        code = error["status"]
    if code is None:
        code = error.get("type")
    names = [error.get("code"), error.get("type"), error.get("status")]
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and isinstance(raw := metadata.get("raw"), str):
        # OpenRouter says only that there was an error, and has that of the provider beside it.
        inner = parse_error(raw.encode(errors="replace"))
        message = inner.message or message
    retry_after = None
    details = error.get("details")
    for detail in details[:_MAX_DETAILS] if isinstance(details, list) else ():
        if isinstance(detail, dict):
            names.append(detail.get("reason"))
            found = _DURATION.fullmatch(str(detail.get("retryDelay", "")))
            retry_after = float(found[1]) if found else retry_after
    return ProviderFailure(
        message,
        str(code) if isinstance(code, str | int) else None,
        names=[str(name) for name in names if isinstance(name, str | int)],
        retry_after=retry_after,
    )
