"""The head of a request of an inference route, and what its repeats are recognized by."""

from __future__ import annotations

import hashlib
from hmac import compare_digest
from typing import Final

from accounts.bearers import bearer_digests
from config.api.errors import InvalidRequest, Unauthenticated
from config.api.idempotency import HEADER, idempotency_key_of
from config.secrets import KeyDigests
from config.server import logs
from config.server.bodies import Scope
from config.telemetry.tracing import NO_ATTRIBUTES, Attributes
from inference.requests.multipart import MAX_PARTS, is_form, read_boundary

IDEMPOTENCY_KEY: Final = b"idempotency-key"
# The SDKs of OpenAI and Anthropic count here how often they have sent a request before.
RETRY_COUNT: Final = b"x-stainless-retry-count"
_AUTHORIZATION: Final = b"authorization"
# The note of a connection about the key that it has sent last.
_KEY_NOTE: Final = "key"
# These headers change what is answered, beside the body.
_SESSION: Final = b"x-session-id"
_ANTHROPIC: Final = b"anthropic-"


class RequestHead:
    """The method, the path and the headers of one request; reads what they say of its caller."""

    # What the span of the request says of its generation, and of its error.
    span_attributes: Attributes = NO_ATTRIBUTES
    error_type: str | None = None

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._raw_headers: list[tuple[bytes, bytes]] = scope["headers"]
        # The first header of each name.
        self._first_headers = dict(reversed(self._raw_headers))
        self._server = scope.get("server")
        self.request_id = logs.new_request_id(self.header(b"x-request-id"))
        # Whether the body is digested; set before it is read.
        self.is_digested = False
        self.digest = b""
        self.body_hash = 0
        # The headers of the answer that say what the response cache did.
        self.cache_headers: tuple[tuple[bytes, bytes], ...] = ()

    def digests(self) -> KeyDigests:
        """Returns the digests of the caller's key; raises :class:`Unauthenticated`.

        Most connections send the same key again: its digests are kept while the connection lasts.
        """
        notes = self._scope["causeway.cycle"].notes
        told = b"\0".join(self._headers(_AUTHORIZATION))
        known: tuple[bytes, KeyDigests] | None = notes.get(_KEY_NOTE)
        if known is not None and compare_digest(known[0], told):
            return known[1]
        digests = bearer_digests(self.authorization())
        notes[_KEY_NOTE] = told, digests
        return digests

    def authorization(self) -> str | None:
        """Returns the one ``Authorization`` header; raises :class:`Unauthenticated` for two."""
        return self.single_header(_AUTHORIZATION, "Send one Authorization header.")

    def host(self) -> str:
        """Returns the host as Django reads it; several hosts are joined, which no host matches."""
        values = self._headers(b"host")
        if not values and self._server:
            return str(self._server[0])
        return b",".join(values).decode("latin-1")

    def has_header(self, name: bytes) -> bool:
        return name in self._first_headers

    def idempotency_key(self) -> str | None:
        """Returns the one ``Idempotency-Key``; raises :class:`InvalidRequest`."""
        values = self._headers(IDEMPOTENCY_KEY)
        if len(values) > 1:
            raise InvalidRequest(f"{HEADER}: send one such header.")
        return idempotency_key_of({HEADER: values[0].decode("latin-1")})

    def note_body(self, body: bytes) -> None:
        """Notes what the repeats of the request have in common with it.

        A hash is enough for what is only told; a digest decides whose answer is given.
        """
        if self.is_digested:
            self.digest = self._digest(body)
        if RETRY_COUNT in self._first_headers:
            self.body_hash = hash(tuple(self._split(body)))

    def retry_count(self) -> str | None:
        """Returns how often an SDK says that it has sent the request before."""
        return self.header(RETRY_COUNT)

    def header(self, name: bytes) -> str | None:
        """Returns the first header of this name."""
        value = self._first_headers.get(name)
        return None if value is None else value.decode("latin-1")

    def single_header(self, name: bytes, message: str) -> str | None:
        values = self._headers(name)
        if len(values) > 1:
            raise Unauthenticated(message)
        return values[0].decode("latin-1") if values else None

    def _headers(self, name: bytes) -> list[bytes]:
        if len(self._first_headers) == len(self._raw_headers):  # no name comes twice
            return [self._first_headers[name]] if name in self._first_headers else []
        return [value for other, value in self._raw_headers if other == name]

    def _digest(self, body: bytes) -> bytes:
        """Returns a digest of the body, and of the headers that change its meaning."""
        found = hashlib.sha256()
        content_type = (self.header(b"content-type") or "").partition(";")[0].strip().lower()
        names = sorted(name for name in self._first_headers if name.startswith(_ANTHROPIC))
        texts = [content_type.encode(), self._first_headers.get(_SESSION)]
        for name in names:
            texts += (name, b", ".join(self._headers(name)))
        for text in (*texts, *self._split(body)):
            # The length comes first, so that no two lists of texts look the same.
            found.update(b"-" if text is None else b"%d:" % len(text))
            found.update(text or b"")
        return found.digest()

    def _split(self, body: bytes) -> list[bytes]:
        """Splits a form at its boundary, which a client chooses anew when it sends it again."""
        content_type = self.header(b"content-type") or ""
        if not is_form(content_type):
            return [body]
        try:
            return body.split(b"--" + read_boundary(content_type), MAX_PARTS + 1)
        except InvalidRequest:
            return [body]
