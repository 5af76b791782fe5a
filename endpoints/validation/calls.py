"""The calls of a validation: sends them, and turns every refusal into a failed check."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec.structs import replace

from catalog.dialects.base import (
    Body,
    Call,
    Dialect,
    InvalidReply,
    ProviderFailure,
    Reply,
    build_stated,
    clean_message,
    parse_error,
)
from catalog.dialects.shared.multipart import FormPart
from catalog.dialects.wholes import is_stream, join_stream
from catalog.operations import OPERATIONS
from config import egress
from config.egress.client import EgressClient, OutboundResponse
from endpoints.validation.checks import KINDS, CheckFailed, Outcome, Reason, Result

# A short answer is asked for. A large one would be parsed beside other tenants' requests.
MOST_REPLY_BYTES: Final = 1_048_576
# Paths that a URL must not have, because they are appended to it.
_DOUBLED: Final = re.compile(
    r"/(?:chat/completions|completions|embeddings|responses|messages|rerank|models)/?$"
)


class CallLimits(NamedTuple):
    """What the calls of a validation may take: ``seconds`` in all, and ``tokens`` by their price.

    ``longest`` is the most tokens that an answer without a bound is taken to have.
    """

    seconds: float
    tokens: float = math.inf
    longest: int = 0


class DeploymentCaller:
    """Calls one deployment, and adds the check of its address once that was reached.

    ``check`` is the name of the check that the next call decides. The calls have ``limits``, and an
    answer may have ``most_bytes``. ``voices`` are those that the model has, if the catalogue knows
    them. ``has_answered`` says whether a call had an answer of status 200.
    """

    def __init__(
        self,
        call: Call,
        dialect: Dialect,
        result: Result,
        egress_client: EgressClient,
        check: str,
        *,
        limits: CallLimits,
        most_bytes: int = MOST_REPLY_BYTES,
        voices: Sequence[str] = (),
    ) -> None:
        self.call = call
        self.dialect = dialect
        self.result = result
        self.check = check
        self.voices = voices
        self.limits = limits
        self._most_bytes = most_bytes
        self._egress_client = egress_client
        self.has_answered = False

    async def ask(self, fields: Mapping[str, Any], files: Sequence[FormPart] = ()) -> Reply:
        """Returns the whole reply to a call with these fields; raises :class:`CheckFailed`."""
        response = await self.send(fields, files=files)
        peer = response.peer
        self.result.evidence |= {
            "address": peer.address,
            "certificate_key": None
            if peer.certificate is None
            else key_fingerprint(peer.certificate),
        }
        try:
            return self.parse(await response.read(limit=self._most_bytes))
        except (InvalidReply, ProviderFailure, egress.EgressError) as exc:
            if isinstance(exc, egress.TimedOut):
                raise
            raise self.fail(Reason.INVALID_RESPONSE, exc) from None
        finally:
            response.close()

    def parse(self, body: Body) -> Reply:
        """Returns the whole reply in a body; raises as :meth:`Dialect.parse_reply` does."""
        operation, native = self.call.operation, self.call.native
        if not (OPERATIONS[operation].is_written and is_stream(body)):
            return self.dialect.parse_reply(operation, body)
        parser = self.dialect.stream_parser(operation)
        return join_stream(parser, body, None if native is None else native.format)

    async def send(
        self, fields: Mapping[str, Any], *, stream: bool = False, files: Sequence[FormPart] = ()
    ) -> OutboundResponse:
        """Sends a call and returns its response of status 200.

        Raises :class:`Refused` for another status, and :class:`CheckFailed` without an answer.
        """
        response = await self._dial(replace(self.call, fields=fields, stream=stream, files=files))
        if response.status == 200:
            self.has_answered = True
            self.result.add_reached()
            return response
        try:
            body = await response.read(limit=MOST_REPLY_BYTES)
        except egress.TimedOut:
            raise
        except egress.EgressError:
            body = b""
        finally:
            response.close()
        self.result.add_reached()
        failure = parse_error(body, is_text_shown=False).clean(self.call.secret)
        raise Refused(self.check, response.status, failure.message, self._hint(response.status))

    def _hint(self, status: int) -> str:
        """Returns what to do about a path that the URL has already, if that may be the reason."""
        found = _DOUBLED.search(self.call.base_url or "")
        if found is None or status not in REFUSALS:
            return ""
        return (
            f"base_url ends with {found[0]}, and each call appends its path to it: leave "
            f"{found[0]} out of base_url."
        )

    def fail(self, reason: Reason, exc: Exception) -> CheckFailed:
        """Returns the failure of the running check, with a message that is safe to show."""
        if not isinstance(exc, egress.EgressError):
            return CheckFailed(self.check, reason, upstream_message=self.clean(str(exc)))
        self.result.evidence["broken_off"] = exc.kind
        details: dict[str, Any] = {"upstream_message": exc.public}
        if isinstance(exc, egress.BadResponse):
            details["kind"] = exc.kind
        return CheckFailed(self.check, reason, **details)

    def clean(self, text: str) -> str:
        return clean_message(text, self.call.secret)

    async def _dial(self, call: Call) -> OutboundResponse:
        try:
            return await self._send(call)
        except egress.AddressRefused:
            raise CheckFailed("base_url", Reason.INVALID_BASE_URL) from None
        except egress.RedirectRefused as exc:
            self.result.add_reached()
            raise self.fail(Reason.UPSTREAM_ERROR, exc) from None
        except egress.BadResponse as exc:
            self.result.add_reached()
            raise self.fail(Reason.INVALID_RESPONSE, exc) from None
        except egress.EgressError as exc:
            if isinstance(exc, egress.TimedOut) and exc.phase != "connect":
                raise
            self.result.add_reached()
            raise CheckFailed(
                self.check,
                Reason.UPSTREAM_ERROR,
                outcome=Outcome.UNREACHABLE,
                upstream_message=exc.public,
                **({"kind": exc.kind} if exc.kind in KINDS else {}),
            ) from None

    async def _send(self, call: Call) -> OutboundResponse:
        """Sends a call, notes that the secret has left, and returns the head of the response."""
        timeout = self.limits.seconds
        request = build_stated(self.dialect.build, call)
        response = await self._egress_client.start(request, idle_timeout=timeout)
        self.result.has_sent = True
        try:
            await response.receive_head(timeout)
        except BaseException:
            response.close()
            raise
        return response


# The statuses with which a server refuses the request itself; others say nothing about it.
REFUSALS: Final = (400, 404, 405, 415, 422, 501)


class Refused(CheckFailed):
    """The deployment answered with another status than 200; ``message`` is cleaned."""

    def __init__(self, check: str, status: int, message: str | None, hint: str = "") -> None:
        details: dict[str, Any] = {}
        if 400 <= status <= 599:
            details["upstream_status"] = status
        if message or hint:
            details["upstream_message"] = " ".join(filter(None, (hint, message)))
        super().__init__(check, Reason.UPSTREAM_ERROR, **details)
        self.status = status
        self.message = message or ""


def key_fingerprint(certificate: bytes) -> str:
    """Returns the SHA-256, in hex, of the public key of a certificate in DER."""
    key = x509.load_der_x509_certificate(certificate).public_key()
    return hashlib.sha256(
        key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ).hexdigest()
