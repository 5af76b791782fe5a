"""A scripted upstream provider: OpenAI-compatible, over TLS, and misbehaving on request.

The model's name in the request chooses the behaviour (``BEHAVIOURS``); a parameter follows a
colon or a question mark, as in ``sim-slow:0.05``, and a prefix up to the last slash is ignored,
as in ``acme/sim-slow``. A name that does not start with ``sim-`` answers like ``sim-echo``, so any
model name can be tried. Tokens are words: counts are those of ``str.split``.

HTTP is spoken by hand, because a library would refuse to send what has to be sent here: bodies
shorter than announced, resets, characters cut in half, one byte a second. A behaviour is a
function from a request to steps: bytes to send, seconds to wait, or a ``Signal``. Ordinary
answers run through in one go, without a task and from a cache, so that the same server is the
mock behind a benchmark.

Imports nothing of the project: it stands for somebody else's server.
"""

import asyncio
import base64
import contextlib
import datetime
import functools
import gzip
import hashlib
import http.client
import ipaddress
import itertools
import json
import os
import re
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

MAX_REQUEST_BYTES = 64 * 1024 * 1024
WRITE_BYTES = 64 * 1024
MAX_ECHOED_WORDS = 256
SERVER_NAMES = ("localhost", "simulator.test", "127.0.0.1", "::1")
_ROUTES = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
}
CertificateFault = Literal["expired", "self-signed", "wrong-host"]


@dataclass(frozen=True, slots=True)
class Certificates:
    """Where a certificate authority (public part) and a server's certificate with key lie."""

    ca: Path
    server: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server)
        return context

    def client_context(self) -> ssl.SSLContext:
        """Trusts this authority alone, as strictly as Python 3.13 does by default."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context


def ensure_certificates(
    cert_dir: Path,
    fault: CertificateFault | None = None,
    *,
    names: tuple[str, ...] = SERVER_NAMES,
) -> Certificates:
    """Makes the authority and a server certificate once, and reuses them while they are valid.

    With a fault the server's certificate is one that a client must refuse; it lies beside the
    good one, under the same authority, as do those for other names. Processes may race for the
    same directory.
    """
    # An existing directory keeps its mode: it may be somebody's home, or /tmp.
    cert_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    authority_path = cert_dir / "ca-key.pem"
    authority = _load_pair(authority_path)
    if authority is None or authority[1].not_valid_after_utc < now + datetime.timedelta(days=400):
        authority_path.unlink(missing_ok=True)
        _write(authority_path, _pem(_issue(None, now, days=3650)), exclusive=True)
        authority = _load_pair(authority_path)
        if authority is None:
            raise OSError(f"{authority_path} cannot be read back")
    _write(cert_dir / "ca.pem", authority[1].public_bytes(serialization.Encoding.PEM), mode=0o644)

    kind = fault or ("" if names == SERVER_NAMES else _digest(names))
    server_path = cert_dir / (f"server-{kind}.pem" if kind else "server.pem")
    server = _load_pair(server_path)
    # A faulty certificate is made anew each time: there is no sense in checking what is wrong.
    if fault or server is None or not _still_good(server[1], authority[1], now):
        names = ("wrong-host.test",) if fault == "wrong-host" else names
        issuer = None if fault == "self-signed" else authority
        start = now - datetime.timedelta(days=30) if fault == "expired" else now
        days = 10 if fault == "expired" else 397
        _write(server_path, _pem(_issue(issuer, start, days=days, names=names)))
    return Certificates(ca=cert_dir / "ca.pem", server=server_path)


def _digest(names: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


_Pair = tuple[ec.EllipticCurvePrivateKey, x509.Certificate]


def _still_good(
    certificate: x509.Certificate, authority: x509.Certificate, now: datetime.datetime
) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError):
        return False
    return certificate.not_valid_after_utc > now + datetime.timedelta(days=30)


def _issue(
    issuer: _Pair | None,
    start: datetime.datetime,
    *,
    days: int,
    names: tuple[str, ...] = (),
) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    title = names[0] if names else "Causeway simulator CA"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])
    issuer_key, issuer_name = (issuer[0], issuer[1].subject) if issuer else (key, subject)
    usages = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
         "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
        False,
    )  # fmt: skip
    usages |= {"digital_signature": True} if names else {"key_cert_sign": True, "crl_sign": True}
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # An hour of grace, for clients whose clock is behind.
        .not_valid_before(start - datetime.timedelta(hours=1))
        .not_valid_after(start + datetime.timedelta(days=days))
        .add_extension(
            x509.BasicConstraints(ca=not names, path_length=None if names else 0), critical=True
        )
        .add_extension(x509.KeyUsage(**usages), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    if names:
        alternatives = [
            x509.IPAddress(ipaddress.ip_address(name))
            if re.fullmatch(r"[\d.]+|.*:.*", name)
            else x509.DNSName(name)
            for name in names
        ]
        builder = builder.add_extension(
            x509.SubjectAlternativeName(alternatives), critical=False
        ).add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return key, builder.sign(issuer_key, hashes.SHA256())


def _pem(pair: _Pair) -> bytes:
    return pair[0].private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + pair[1].public_bytes(serialization.Encoding.PEM)


def _load_pair(path: Path) -> _Pair | None:
    try:
        content = path.read_bytes()
        key = serialization.load_pem_private_key(content, None)
        certificate = x509.load_pem_x509_certificate(content)
    except (FileNotFoundError, ValueError):
        return None
    return (key, certificate) if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _write(path: Path, content: bytes, *, mode: int = 0o600, exclusive: bool = False) -> None:
    """Writes whole or not at all; exclusively: the first of several writers wins."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.chmod(name, mode)
    if not exclusive:
        os.replace(name, path)
        return
    with contextlib.suppress(FileExistsError):
        os.link(name, path)
    os.unlink(name)


class Signal(Enum):
    """What a behaviour does besides sending and waiting."""

    RESET = "drop the connection with a TCP reset"
    CLOSE = "close the connection in good order"
    STALL = "send nothing more, and keep the connection"
    GATE = "wait until the test calls release()"


Step = bytes | float | Signal
Script = Iterable[Step]


@dataclass(slots=True, eq=False)
class Request:
    """One request as it arrived, and what became of its answer; times are `time.monotonic()`."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    connection: int
    received_at: float
    id: int = 0
    body: Any = None
    kind: str = ""
    """`chat`, `completions` or `embeddings`; empty for everything else."""
    option: str = ""
    nth: int = 0
    """How many requests for this model there were, this one included."""
    sent_bytes: int = 0
    finished_at: float | None = None
    """When the last step was done; None while it runs and when the client went first."""
    client_closed_at: float | None = None
    """When the client closed the connection before the answer's end."""

    @property
    def model(self) -> str:
        return str(self.body["model"])

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream")) and self.kind != "embeddings"

    @property
    def include_usage(self) -> bool:
        options = self.body.get("stream_options")
        return isinstance(options, dict) and bool(options.get("include_usage"))

    def numbers(self, *defaults: float) -> list[float]:
        """The option's comma-separated numbers; defaults stand for what is missing."""
        given = [float(part) for part in self.option.split(",") if part]
        return [*given, *defaults[len(given) :]]


# An id of fixed length that JSON leaves alone: cached answers get theirs by replacement.
_ID = "\x7f" * 24
_HELLO = "Hello from the simulated upstream. Ask me something and I will repeat it."
_GREETINGS = {"", "hi", "hello", "hey", "test", "ping"}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(_text(part.get("text") if isinstance(part, dict) else part)
                        for part in content)  # fmt: skip
    return content if isinstance(content, str) else ""


@dataclass(slots=True)
class Reply:
    """A well-behaved answer, which a behaviour may change before it is written."""

    kind: str
    model: str
    pieces: tuple[str, ...]
    """The words of the answer; for embeddings the inputs."""
    prompt_tokens: int
    finish: str = "stop"
    created: int = 0
    vector: tuple[int, bool] = (8, False)
    """Dimensions, and whether they are wanted as base64."""
    first: dict[str, Any] = field(default_factory=lambda: {"role": "assistant", "content": ""})
    message: dict[str, Any] = field(default_factory=dict)
    deltas: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.count()

    def count(self) -> None:
        completion = 0 if self.kind == "embeddings" else len(self.pieces) + len(self.deltas)
        self.usage = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }

    @classmethod
    def to(cls, request: Request) -> Self:
        body, kind = request.body, request.kind
        created = int(time.time())
        if kind == "embeddings":
            given = body.get("input")
            inputs = tuple(map(str, given)) if isinstance(given, list) else (_text(given),)
            vector = (int(body.get("dimensions") or 8), body.get("encoding_format") == "base64")
            tokens = sum(len(text.split()) for text in inputs)
            return cls(kind, request.model, inputs, tokens, vector=vector)
        if kind == "completions" and "prompt" in body:
            texts = last = [_text(body["prompt"])]
        else:
            messages = [m for m in body.get("messages") or () if isinstance(m, dict)]
            if not messages:
                raise ValueError("messages are required")
            texts = [_text(m.get("content")) for m in messages]
            last = [t for m, t in zip(messages, texts, strict=True) if m.get("role") == "user"]
        asked = last[-1].strip() if last else ""
        answer = _HELLO if asked.lower().strip(" .!?") in _GREETINGS else f"You said: {asked}"
        words = answer.split()[:MAX_ECHOED_WORDS]
        limit = body.get("max_completion_tokens", body.get("max_tokens"))
        finish = "length" if isinstance(limit, int) and 0 < limit < len(words) else "stop"
        words = words[:limit] if finish == "length" else words
        pieces = (words[0], *(f" {word}" for word in words[1:]))
        return cls(kind, request.model, pieces, sum(len(t.split()) for t in texts), finish, created)

    def plain(self) -> dict[str, Any]:
        usage: dict[str, Any] = {} if self.usage is None else {"usage": self.usage}
        if self.kind == "embeddings":
            usage.get("usage", {}).pop("completion_tokens", None)
            data = [
                {"object": "embedding", "index": index, "embedding": _embed(text, *self.vector)}
                for index, text in enumerate(self.pieces)
            ]
            return {"object": "list", "data": data, "model": self.model} | usage | self.extra
        text = "".join(self.pieces)
        choice: dict[str, Any] = {"text": text}
        if self.kind == "chat":
            choice = {"message": {"role": "assistant", "content": text} | self.message}
        ending = {"logprobs": None, "finish_reason": self.finish}
        return self._frame("", [{"index": 0} | choice | ending]) | usage | self.extra

    def events(self, include_usage: bool) -> list[bytes]:
        """The stream's payloads, `[DONE]` last."""
        chat = self.kind == "chat"
        # As the original does: other chunks say `"usage": null` when usage was asked for.
        extra = {"usage": None} | self.extra if include_usage else self.extra
        deltas = [self.first, *self.deltas] if chat else []
        deltas += [{"content": piece} if chat else {"text": piece} for piece in self.pieces]
        deltas.append({} if chat else {"text": ""})
        events = []
        for number, delta in enumerate(deltas, 1):
            choice: dict[str, Any] = {"index": 0} | ({"delta": delta} if chat else delta)
            choice["finish_reason"] = self.finish if number == len(deltas) else None
            events.append(_json(self._frame(".chunk", [choice]) | extra))
        if include_usage and self.usage is not None:
            events.append(_json(self._frame(".chunk", []) | {"usage": self.usage} | self.extra))
        return [*events, b"[DONE]"]

    def _frame(self, suffix: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chat = self.kind == "chat"
        return {
            "id": f"chatcmpl-{_ID}" if chat else f"cmpl-{_ID}",
            "object": f"chat.completion{suffix}" if chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": "fp_simulated",
            "choices": choices,
        }


def _embed(text: str, dimensions: int, as_base64: bool) -> list[float] | str:
    digest = hashlib.shake_128(text.encode()).digest(dimensions)
    vector = [byte / 127.5 - 1 for byte in digest]
    if as_base64:
        return base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()
    return vector


def _http(
    status: int, body: bytes, content_type: str = "application/json", *, more: str = ""
) -> bytes:
    return _head(status, len(body), content_type, more) + body


def _head(status: int, length: int, content_type: str, more: str = "") -> bytes:
    phrase = http.client.responses.get(status, "Unusual")
    return (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {content_type}\r\n"
        f"x-request-id: req_{_ID}\r\n{more}content-length: {length}\r\n\r\n"
    ).encode()


_STREAM_HEAD = (
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    f"x-request-id: req_{_ID}\r\ntransfer-encoding: chunked\r\n\r\n"
).encode()


def _named(data: bytes, request: Request) -> bytes:
    return data.replace(_ID.encode(), b"%024d" % request.id)


def _sse(payloads: Iterable[bytes], end: bytes = b"\n", name: bytes = b"data: ") -> list[bytes]:
    return [name + payload + end + end for payload in payloads]


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _chunked(pieces: Iterable[bytes]) -> bytes:
    return b"".join([_STREAM_HEAD, *map(_chunk, pieces), b"0\r\n\r\n"])


def _answer(reply: Reply, request: Request) -> bytes:
    if request.stream:
        return _chunked(_sse(reply.events(request.include_usage)))
    return _http(200, _json(reply.plain()))


@functools.lru_cache(maxsize=512)
def _cached(stream: bool, include_usage: bool, *fields: Any) -> bytes:
    reply = Reply(*fields)
    if stream:
        return _chunked(_sse(reply.events(include_usage)))
    return _http(200, _json(reply.plain()))


def _cheap(reply: Reply, request: Request) -> Script:
    if reply.kind == "embeddings" or sum(map(len, reply.pieces)) > 10_000:
        return (_answer(reply, request),)
    fields = (reply.kind, reply.model, reply.pieces, reply.prompt_tokens, reply.finish)
    wanted = (request.stream, request.include_usage)
    return (_cached(*wanted, *fields, reply.created),)


def _echo(request: Request) -> Script:
    return _cheap(Reply.to(request), request)


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


def _error_object(status: int, **changes: Any) -> dict[str, Any]:
    kind, code, message = _ERRORS.get(status, ("server_error", None, "The server had an error."))
    return {"error": {"message": message, "type": kind, "param": None, "code": code} | changes}


def _error(status: int, more: str = "", **changes: Any) -> bytes:
    return _http(status, _json(_error_object(status, **changes)), more=more)


def _status(request: Request) -> Script:
    status, retry_after = (int(number) for number in request.numbers(500, 0))
    retry_after = retry_after or (1 if status == 429 else 0)
    yield _error(status, f"retry-after: {retry_after}\r\n" if retry_after else "")


def _reply(**changes: Callable[[Reply, Request], Any]) -> Callable[[Request], Script]:
    """A good answer with some of its fields changed, plain or streamed."""

    def script(request: Request) -> Script:
        reply = Reply.to(request)
        for name, change in changes.items():
            setattr(reply, name, change(reply, request))
        if "usage" not in changes:
            reply.count()
        return (_answer(reply, request),)

    return script


def _stream(spoil: Callable[[list[bytes], Request], Script]) -> Callable[[Request], Script]:
    """A stream made of other steps than its events; a plain request gets a good answer."""

    def script(request: Request) -> Script:
        if not request.stream:
            yield from _echo(request)
            return
        yield _STREAM_HEAD
        for step in spoil(Reply.to(request).events(request.include_usage), request):
            yield _chunk(step) if isinstance(step, bytes) else step
        yield b"0\r\n\r\n"

    return script


def _raw(make: Callable[[str, bytes, Request], Script]) -> Callable[[Request], Script]:
    """Whatever is made of a good answer's content type and body, plain or streamed."""

    def script(request: Request) -> Script:
        reply = Reply.to(request)
        if request.stream:
            events = _sse(reply.events(request.include_usage))
            return make("text/event-stream", _named(b"".join(events), request), request)
        return make("application/json", _named(_json(reply.plain()), request), request)

    return script


def _usage(count: Any) -> Callable[[Request], Script]:
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return _reply(usage=lambda reply, request: dict.fromkeys(names, count))


def _delta(request: Request, **delta: Any) -> bytes:
    """One event of a stream in progress with the delta given."""
    reply = Reply.to(request)
    reply.deltas, reply.pieces = [delta], ()
    return _sse(reply.events(False)[1:2])[0]


def _tools(reply: Reply, request: Request) -> list[dict[str, Any]]:
    tools = request.body.get("tools") or [{"function": {"name": "get_weather"}}]
    return [
        {"id": f"call_{number}", "type": "function",
         "function": {"name": tools[number % len(tools)]["function"]["name"],
                      "arguments": json.dumps({"city": "Zürich", "number": number})}}
        for number in range(int(request.numbers(1)[0]))
    ]  # fmt: skip


def _tool_deltas(reply: Reply, request: Request) -> list[dict[str, Any]]:
    deltas = []
    for index, call in enumerate(_tools(reply, request)):
        function, text = call["function"], call["function"]["arguments"]
        opened = {"index": index} | call | {"function": function | {"arguments": ""}}
        parts = [text[at : at + 7] for at in range(0, len(text), 7)]
        continued = [{"index": index, "function": {"arguments": part}} for part in parts]
        deltas += [{"tool_calls": [part]} for part in (opened, *continued)]
    return deltas


def _chunks(request: Request) -> Script:
    reply = Reply.to(request)
    reply.pieces = tuple(f" {number}" for number in range(int(request.numbers(50)[0])))
    return _cheap(reply, request)


def _paced(request: Request, before: Step | None, between: Step) -> Script:
    if before is not None:
        yield before
    if not request.stream:
        yield from _echo(request)
        return
    yield _STREAM_HEAD
    for number, event in enumerate(_sse(Reply.to(request).events(request.include_usage))):
        if number:
            yield between
        yield _chunk(event)
    yield b"0\r\n\r\n"


def _slow(request: Request) -> Script:
    first = request.numbers(0.2)[0]
    return _paced(request, *request.numbers(first, first))


def _gated(request: Request) -> Script:
    return _paced(request, None if request.stream else Signal.GATE, Signal.GATE)


def _slowly(data: bytes, request: Request) -> Script:
    (pause,) = request.numbers(1)
    for number, byte in enumerate(_named(data, request)):
        if number:
            yield pause
        yield bytes([byte])


def _endless(request: Request) -> Script:
    """An answer without end, at the pace at which it is read."""
    if request.stream:
        yield _STREAM_HEAD
        yield from itertools.repeat(_chunk(_delta(request, content="x" * 1000)))
    head, name, _ = _json(Reply.to(request).plain()).partition(b'"content":"')
    yield _STREAM_HEAD.replace(b"text/event-stream", b"application/json")
    yield _chunk(head + name)
    yield from itertools.repeat(_chunk(b"x" * WRITE_BYTES))


def _echo_key(request: Request) -> Script:
    status = int(request.numbers(401)[0])
    given = request.headers["authorization"]
    yield _error(status, message=f"Incorrect API key provided: {given}.")


def _flaky(request: Request) -> Script:
    return (_error(503),) if request.nth <= request.numbers(1)[0] else _echo(request)


def _mirror(reply: Reply, request: Request) -> tuple[str, ...]:
    seen = {"body": request.body, "headers": request.headers, "path": request.path}
    return (json.dumps(seen, ensure_ascii=False),)


def _cut_character(events: list[bytes], request: Request) -> Script:
    event = _delta(request, content="Zürich")
    return (*_sse(events[:1]), event[: event.index("ü".encode()) + 1])


def _usage_twice(events: list[bytes], request: Request) -> Script:
    first, last = Reply.to(request), Reply.to(request)
    last.usage = {name: 2 * count for name, count in (last.usage or {}).items()}
    return _sse([*first.events(True)[:-1], *last.events(True)[-2:]])


def _usage_with_choices(events: list[bytes], request: Request) -> Script:
    reply = Reply.to(request)
    finish = json.loads(reply.events(False)[-2]) | {"usage": reply.usage}
    return _sse([*reply.events(False)[:-2], _json(finish), b"[DONE]"])


def _reasoning(reply: Reply, request: Request) -> dict[str, Any]:
    reply.deltas = [{"reasoning_content": "Let me"}, {"reasoning_content": " think."}]
    counts = reply.usage or {}
    return counts | {
        "completion_tokens": counts["completion_tokens"] + 3,
        "total_tokens": counts["total_tokens"] + 3,
        "completion_tokens_details": {"reasoning_tokens": 3},
    }


def _tokens(reply: Reply, request: Request) -> dict[str, Any]:
    prompt, completion = (int(number) for number in request.numbers(1000, 500))
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


def _cached_tokens(reply: Reply, request: Request) -> dict[str, Any]:
    cached = int(request.numbers(reply.prompt_tokens)[0])
    return (reply.usage or {}) | {"prompt_tokens_details": {"cached_tokens": cached}}


_TIMINGS = {"prompt_n": 1, "prompt_ms": 1.5, "predicted_n": 2, "predicted_ms": 2.5}
# The pause is there because a reset overtakes what was sent before it.
_GONE: tuple[Step, ...] = (0.05, Signal.RESET)

BEHAVIOURS: dict[str, tuple[str, Callable[[Request], Script]]] = {
    # Good answers.
    "sim-echo": ("repeats the last user message; what any other model name does", _echo),
    "sim-chunks": ("answers :N words (50), a chunk each when streamed", _chunks),
    "sim-big": ("answers one word of :N bytes (3000000)", _reply(
        pieces=lambda r, q: ("x" * int(q.numbers(3_000_000)[0]),))),
    "sim-mirror": ("answers the received body, headers and path as JSON text",
                   _reply(pieces=_mirror)),
    "sim-tools": ("calls :N tools (1) of the request, arguments streamed in parts", _reply(
        pieces=lambda r, q: (), deltas=_tool_deltas, finish=lambda r, q: "tool_calls",
        message=lambda r, q: {"content": None, "tool_calls": _tools(r, q)},
        first=lambda r, q: {"role": "assistant", "content": None})),
    "sim-reasoning": ("reasons (reasoning_content) before it answers", _reply(
        usage=_reasoning, message=lambda r, q: {"reasoning_content": "Let me think."})),
    "sim-content-filter": ("finishes with content_filter",
                           _reply(finish=lambda r, q: "content_filter")),
    "sim-null-content": ("first delta has content null", _reply(
        first=lambda r, q: {"role": "assistant", "content": None})),
    "sim-extra": ("adds a field `timings` that OpenAI does not have",
                  _reply(extra=lambda r, q: {"timings": _TIMINGS})),
    "sim-cached": ("reports :N cached prompt tokens (all)", _reply(usage=_cached_tokens)),
    "sim-tokens": ("reports :PROMPT,COMPLETION tokens (1000,500)", _reply(usage=_tokens)),
    "sim-versioned": ("reports <model>-2026-01-01",
                      _reply(model=lambda r, q: f"{r.model}-2026-01-01")),
    "sim-slow": ("waits :FIRST,BETWEEN seconds (0.2) before the first event and between", _slow),
    "sim-gated": ("each event after the first (a plain answer: all) waits for release()", _gated),
    "sim-held": ("everything waits for one release()", lambda q: (Signal.GATE, *_echo(q))),
    # Errors.
    "sim-status": ("error :STATUS,RETRY_AFTER (500); also sim-status-429", _status),
    "sim-flaky": ("503 for the first :N requests (1), then good", _flaky),
    "sim-redirect": ("redirects with :STATUS (302); also sim-redirect-307", lambda q: (
        _http(int(q.numbers(302)[0]), b"", more="location: /v1/elsewhere\r\n"),)),
    "sim-echo-key": ("error :STATUS (401) that repeats the Authorization header", _echo_key),
    "sim-huge-error": ("400 with a message of 1 MB and control characters", lambda q: (
        _error(400, message="\x00\x1b[31m\r\n\u202e\x7f" + "A" * 1_000_000),)),
    "sim-error-number": ("429 whose code is a number", lambda q: (_error(429, code=429),)),
    "sim-error-code": ("400 whose code is a string", lambda q: (
        _error(400, code="context_length_exceeded"),)),
    "sim-error-string": ("500 whose error is a string", lambda q: (
        _http(500, b'{"error":"the model crashed"}'),)),
    "sim-error-text": ("500 in plain text", lambda q: (
        _http(500, b"Internal Server Error", "text/plain"),)),
    "sim-error-200": ("error object with status 200", lambda q: (
        _http(200, _json(_error_object(500))),)),
    # Bodies.
    "sim-wrong-model": ("reports `another-model`", _reply(model=lambda r, q: "another-model")),
    "sim-wrong-shape": ("valid JSON that is no completion", lambda q: (
        _http(200, b'{"status":"ok","items":[1,2]}'),)),
    "sim-html": ("a page of HTML with 200", lambda q: (
        _http(200, b"<!doctype html><title>Sign in</title>", "text/html"),)),
    "sim-truncated": ("JSON cut in half, its length announced correctly", _raw(
        lambda t, body, q: (_http(200, body[: len(body) // 2], t),))),
    "sim-short-body": ("100 bytes fewer than announced, then closes", _raw(
        lambda t, body, q: (_head(200, len(body) + 100, t), body, Signal.CLOSE))),
    "sim-reset-body": ("half the body, then a reset", _raw(
        lambda t, body, q: (_head(200, len(body), t), body[: len(body) // 2], *_GONE))),
    "sim-endless": ("a body (or a stream) without end", _endless),
    "sim-gzip": ("a body compressed though nobody asked", _raw(lambda t, body, q: (
        _http(200, gzip.compress(body, mtime=0), t, more="content-encoding: gzip\r\n"),))),
    "sim-no-usage": ("no usage", _reply(usage=lambda r, q: None)),
    "sim-null-usage": ("usage null", _reply(
        usage=lambda r, q: None, extra=lambda r, q: {"usage": None})),
    "sim-usage-negative": ("token counts -1", _usage(-1)),
    "sim-usage-huge": ("token counts 1000000000", _usage(1_000_000_000)),
    "sim-usage-float": ("token counts 1.5", _usage(1.5)),
    "sim-usage-string": ('token counts "5"', _usage("5")),
    "sim-usage-nan": ("token counts NaN, which is not JSON", _usage(float("nan"))),
    "sim-usage-zero": ("token counts 0", _usage(0)),
    "sim-usage-null": ("token counts null", _usage(None)),
    # Connections.
    "sim-connect-reset": ("reset before any header", lambda q: (Signal.RESET,)),
    "sim-connect-close": ("closes before any header", lambda q: (Signal.CLOSE,)),
    "sim-stall": ("never answers", lambda q: (Signal.STALL,)),
    "sim-drip": ("a byte of the body every :SECONDS (1)", _raw(
        lambda t, body, q: itertools.chain((_head(200, len(body), t),), _slowly(body, q)))),
    "sim-drip-headers": ("a byte of everything every :SECONDS (1)", _raw(
        lambda t, body, q: _slowly(_http(200, body, t), q))),
    # Streams; a plain request gets a good answer.
    "sim-no-done": ("no [DONE]", _stream(lambda e, q: _sse(e[:-1]))),
    "sim-cut-event": ("ends inside an event", _stream(
        lambda e, q: (*_sse(e[:2]), b"data: " + e[2][: len(e[2]) // 2]))),
    "sim-cut-character": ("ends inside a UTF-8 character", _stream(_cut_character)),
    "sim-bad-json": ("an event that is not JSON", _stream(
        lambda e, q: _sse([*e[:2], b'{"id": oops', *e[2:]]))),
    "sim-bad-shape": ("an event that is JSON but no chunk", _stream(
        lambda e, q: _sse([*e[:2], b"[1,2]", *e[2:]]))),
    "sim-big-event": ("an event of :N bytes of content (2 MiB)", _stream(lambda e, q: (
        *_sse(e[:1]), _delta(q, content="x" * int(q.numbers(2**21)[0])), *_sse(e[1:])))),
    "sim-only-comments": ("three comments and no event", _stream(
        lambda e, q: [b": still here\n\n"] * 3)),
    "sim-comments": ("a comment before each event", _stream(
        lambda e, q: _sse(e, name=b": still here\n\ndata: "))),
    "sim-cr": ("lines end in CR", _stream(lambda e, q: _sse(e, b"\r"))),
    "sim-lf": ("lines end in LF", _stream(lambda e, q: _sse(e))),
    "sim-crlf": ("lines end in CRLF", _stream(lambda e, q: _sse(e, b"\r\n"))),
    "sim-no-space": ("no space after `data:`", _stream(lambda e, q: _sse(e, name=b"data:"))),
    "sim-multi-line": ("an event's data in two lines", _stream(
        lambda e, q: _sse(event.replace(b",", b",\ndata: ", 1) for event in e))),
    "sim-bom": ("begins with a byte order mark", _stream(
        lambda e, q: (b"\xef\xbb\xbf", *_sse(e)))),
    "sim-usage-twice": ("usage twice, doubled the second time", _stream(_usage_twice)),
    "sim-usage-with-choices": ("usage in the chunk that finishes", _stream(_usage_with_choices)),
    "sim-after-done": ("content after [DONE]", _stream(
        lambda e, q: (*_sse(e), _delta(q, content=" late")))),
    "sim-linger": ("keeps the connection after [DONE]", _stream(
        lambda e, q: (*_sse(e), Signal.STALL))),
    "sim-error-stream": ("an error object after two events", _stream(
        lambda e, q: _sse([*e[:2], _json(_error_object(500))]))),
    "sim-error-first": ("an error object as the first event", _stream(
        lambda e, q: _sse([_json(_error_object(429))]))),
    "sim-empty-stream": ("no event at all", _stream(lambda e, q: ())),
    "sim-reset-stream": ("two events, then a reset", _stream(
        lambda e, q: (*_sse(e[:2]), *_GONE))),
    "sim-close-stream": ("two events, then closes without the last chunk", _stream(
        lambda e, q: (*_sse(e[:2]), Signal.CLOSE))),
    "sim-stall-stream": ("one event, then silence", _stream(
        lambda e, q: (*_sse(e[:1]), Signal.STALL))),
}  # fmt: skip


def find_behaviour(model: str) -> tuple[str, str]:
    """The name in `BEHAVIOURS` (or one that is not there, of a `sim-` model) and the option."""
    tail = re.sub(r"^[^:?]*/", "", model)
    if not tail.startswith("sim-"):
        return "sim-echo", ""
    name, _, option = tail.replace("?", ":", 1).partition(":")
    numbered = re.fullmatch(r"(sim-status|sim-redirect)-(\d{3})", name)
    if numbered:
        return numbered[1], f"{numbered[2]},{option}"
    return name, option


class _Connection(asyncio.Protocol):
    """One client's connection: cuts requests out of the bytes and plays their steps."""

    transport: asyncio.Transport

    def __init__(self, simulator: "Simulator") -> None:
        self.simulator = simulator
        self.number = simulator._accepted()
        self.buffer = bytearray()
        self.request: Request | None = None
        self.steps: Iterator[Step] = iter(())
        self.timer: asyncio.Handle | None = None
        self.paused = self.waits_for_drain = self.leaving = self.told_to_continue = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.simulator._connected(self)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self._next()

    def eof_received(self) -> None:
        self._client_closed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client_closed()
        self.leaving = True
        self.simulator._lost(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.waits_for_drain:
            self.waits_for_drain = False
            self.advance()

    def _client_closed(self) -> None:
        if self.timer:
            self.timer.cancel()
        if self.request is not None and not self.leaving:
            self.leaving = True
            self.request.client_closed_at = time.monotonic()
            self.simulator._changed()
            self.transport.abort()

    def _next(self) -> None:
        if self.request is not None or self.leaving:
            return
        try:
            request = self._parse()
        except (ValueError, IndexError):
            self._leave(_error(400))
            return
        if request is None:
            return
        self.request, self.told_to_continue = request, False
        self.steps = iter(self.simulator._answer(request))
        self.advance()

    def _parse(self) -> Request | None:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0 or len(self.buffer) > MAX_REQUEST_BYTES:
            if len(self.buffer) > WRITE_BYTES:
                raise ValueError("the request is too large")
            return None
        first, *lines = self.buffer[:end].decode("latin-1").split("\r\n")
        method, path, _version = first.split(" ")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        start = end + 4
        if "expect" in headers and not self.told_to_continue:
            self.told_to_continue = True
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while True:
                line_end = self.buffer.find(b"\r\n", start)
                if line_end < 0:
                    return None
                size = int(self.buffer[start:line_end].split(b";")[0], 16)
                start = line_end + 2 + size + 2
                if len(self.buffer) < start:
                    return None
                if size == 0:
                    break
                parts.append(self.buffer[line_end + 2 : start - 2])
            raw = b"".join(parts)
        else:
            stop = start + int(headers.get("content-length", 0))
            if len(self.buffer) < stop:
                return None
            raw, start = bytes(self.buffer[start:stop]), stop
        del self.buffer[:start]
        return Request(method, path, headers, raw, self.number, time.monotonic())

    def advance(self) -> None:
        """Plays steps until one has to wait; bytes that follow each other leave together."""
        if self.leaving or self.request is None:
            return
        pending: list[bytes] = []
        size = 0
        for step in self.steps:
            if isinstance(step, bytes):
                pending.append(step)
                size += len(step)
                if size >= WRITE_BYTES:
                    self._write(pending)
                    if self.paused:
                        self.waits_for_drain = True
                    else:
                        # Others have their turn between two writes of an answer without end.
                        self.timer = self.simulator.loop.call_soon(self.advance)
                    return
                continue
            self._write(pending)
            if isinstance(step, float | int):
                self.timer = self.simulator.loop.call_later(step, self.advance)
                return
            if step is Signal.GATE and self.simulator._pass_gate(self):
                pending, size = [], 0
                continue
            if step is Signal.RESET:
                # Lingering for no time makes close() send RST instead of FIN.
                linger = struct.pack("ii", 1, 0)
                sock = self.transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self._leave(abort=True)
            elif step is Signal.CLOSE:
                self._leave()
            return
        self._write(pending)
        request, self.request = self.request, None
        request.finished_at = time.monotonic()
        self.simulator._changed()
        if request.headers.get("connection", "").lower() == "close":
            self._leave()
        elif self.buffer:
            self.simulator.loop.call_soon(self._next)

    def _write(self, pending: list[bytes]) -> None:
        if pending and self.request:
            data = _named(b"".join(pending), self.request)
            self.request.sent_bytes += len(data)
            self.transport.write(data)

    def _leave(self, last: bytes = b"", *, abort: bool = False) -> None:
        self.leaving = True
        if self.request:
            self.request.finished_at = time.monotonic()
            self.simulator._changed()
        if abort:
            self.transport.abort()
            return
        if last:
            self.transport.write(last)
        self.transport.close()


class Simulator:
    """The server, and what it saw; everything public may be called from any thread.

    `keys` are the API keys accepted, by default all that do not start with `bad`; `admit`, when
    given, decides in their place: it returns the kind of a request, or the status of a refusal;
    `models_status` makes `GET /models` fail where chat works; `remember` bounds `requests`.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        certificates: Certificates | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: bool = True,
        keys: set[str] | None = None,
        admit: Callable[[Request], str | int] | None = None,
        models_status: int = 200,
        remember: int = 1000,
    ) -> None:
        if tls and certificates is None:
            raise ValueError("certificates are needed unless tls=False")
        self.certificates = certificates if tls else None
        self.host, self.port = host, port
        self.keys, self.models_status = keys, models_status
        self.admit = admit
        self.connections = 0
        """TCP connections accepted, those included that failed the TLS handshake."""
        self.handshakes = 0
        """Connections that got as far as being able to send a request."""
        self.total_requests = 0
        self._requests: deque[Request] = deque(maxlen=remember)
        self._counts: Counter[str] = Counter()
        self._open: set[_Connection] = set()
        self._gate: deque[_Connection] = deque()
        self._permits = 0
        self._news = threading.Condition()
        self._server: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        # Nobody can call the address that stands for all of them, and no certificate names it.
        host = "localhost" if self.host in ("", "0.0.0.0", "::") else self.host
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self.certificates else 'http'}://{host}:{self.port}/v1"

    @property
    def requests(self) -> list[Request]:
        """The last requests, oldest first."""
        with self._news:
            return list(self._requests)

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def wait_until(self, condition: Callable[[], bool], timeout: float = 5.0) -> bool:
        """Blocks until the condition holds, asked again at each event; False after the timeout."""
        with self._news:
            return self._news.wait_for(condition, timeout)

    def release(self, count: int = 1) -> None:
        """Lets that many waiting steps pass, of gated streams that wait now or will."""
        self.loop.call_soon_threadsafe(self._release, count)

    def clear(self) -> None:
        """Forgets requests, counters and unused releases, between two tests."""
        with self._news:
            self._requests.clear()
            self._counts.clear()
            self.connections = self.handshakes = self.total_requests = self._permits = 0

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        context = self.certificates.server_context() if self.certificates else None
        self._server = await self.loop.create_server(
            lambda: _Connection(self),
            self.host,
            self.port,
            ssl=context,
            backlog=1024,
            ssl_shutdown_timeout=1 if context else None,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for connection in list(self._open):
            connection._leave(abort=True)
        while self._open:
            await asyncio.sleep(0.001)

    @contextlib.contextmanager
    def run_in_thread(self) -> Iterator[Self]:
        """Serves from a thread and an event loop of its own."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="simulator", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.start(), loop).result(10)
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self.stop(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()

    def _answer(self, request: Request) -> Script:
        """Records the request and chooses the steps of its answer."""
        with contextlib.suppress(ValueError):
            request.body = json.loads(request.raw) if request.raw else None
        model = request.body.get("model") if isinstance(request.body, dict) else None
        path = request.path.partition("?")[0]
        with self._news:
            self.total_requests += 1
            request.id = self.total_requests
            if isinstance(model, str):
                self._counts[model] += 1
                request.nth = self._counts[model]
            self._requests.append(request)
            self._news.notify_all()
        if self.admit is not None:
            admitted = self.admit(request)
            if isinstance(admitted, int):
                return (_error(admitted),)
            request.kind = admitted
        elif not self._knows_key(request):
            return (_error(401),)
        if request.method == "GET" and path == "/v1/models":
            if self.models_status != 200:
                return (_error(self.models_status),)
            models = [{"id": name, "object": "model", "created": 0, "owned_by": "simulator"}
                      for name in BEHAVIOURS]  # fmt: skip
            return (_http(200, _json({"object": "list", "data": models})),)
        request.kind = request.kind or _ROUTES.get(path, "")
        if not request.kind:
            return (_error(404, message=f"Unknown path {path}", code=None),)
        if request.method != "POST":
            return (_error(405),)
        if not isinstance(model, str):
            return (_error(400),)
        name, request.option = find_behaviour(model)
        if name not in BEHAVIOURS:
            return (_error(404),)
        try:
            steps = iter(BEHAVIOURS[name][1](request))
            return itertools.chain((next(steps),), steps)
        except (ValueError, TypeError, AttributeError, KeyError, IndexError) as exc:
            # An option or a body that the behaviour cannot use shows in its first step.
            return (_error(400, message=f"The simulator cannot use this request: {exc!r}"),)

    def _knows_key(self, request: Request) -> bool:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        known = key in self.keys if self.keys is not None else key and not key.startswith("bad")
        return scheme.lower() == "bearer" and bool(known)

    def _accepted(self) -> int:
        with self._news:
            self.connections += 1
            self._news.notify_all()
            return self.connections

    def _connected(self, connection: _Connection) -> None:
        with self._news:
            self.handshakes += 1
            self._open.add(connection)
            self._news.notify_all()

    def _lost(self, connection: _Connection) -> None:
        with self._news:
            self._open.discard(connection)
            self._news.notify_all()

    def _changed(self) -> None:
        with self._news:
            self._news.notify_all()

    def _pass_gate(self, connection: _Connection) -> bool:
        if self._permits:
            self._permits -= 1
            return True
        self._gate.append(connection)
        return False

    def _release(self, count: int) -> None:
        for _ in range(count):
            while self._gate and self._gate[0].leaving:
                self._gate.popleft()
            if self._gate:
                self._gate.popleft().advance()
            else:
                self._permits += 1
