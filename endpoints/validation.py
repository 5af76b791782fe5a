"""The live validation of a private endpoint: real calls with the dialects of the traffic."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from django.conf import settings
from django.db import DatabaseError, connection

from accounts.models import ByokCredential, Workspace
from catalog import dialects
from catalog.dialects.base import (
    Call,
    Dialect,
    InvalidReply,
    InvalidStream,
    Operation,
    ProviderFailure,
    Reply,
    clean_message,
    parse_error,
)
from catalog.dialects.shared.credentials import InvalidCredential
from catalog.pricing import Usage, nano_usd, total_cost
from config import egress
from config.credentials import Secret
from config.secrets import DecryptionFailed
from endpoints.models import InvalidBaseURL, PrivateEndpoint, Validation, require_base_url

logger = logging.getLogger(__name__)

Outcome = Validation.Outcome

# Some providers refuse fewer than 16 output tokens.
MAX_TOKENS: Final = 16
_PROBE: Final = {
    "messages": [{"role": "user", "content": "Reply with the single word: ready"}],
}
_SEPARATORS: Final = ("-", "/", ":", "@")


class Reason(StrEnum):
    """Why a check failed, as the interface names it."""

    DATABASE_ERROR = "database_error"
    ENDPOINT_LIMIT_REACHED = "endpoint_limit_reached"
    INVALID_BASE_URL = "invalid_base_url"
    MODEL_NOT_FOUND = "model_not_found"
    PROVIDER_NOT_FOUND = "provider_not_found"
    ENDPOINT_NOT_FOUND = "endpoint_not_found"
    WORKSPACE_NOT_FOUND = "workspace_not_found"
    NO_BYOK_KEY = "no_byok_key"
    KEY_DECRYPTION_FAILED = "key_decryption_failed"
    UPSTREAM_ERROR = "upstream_error"
    INVALID_RESPONSE = "invalid_response"
    INVALID_STREAM = "invalid_stream"
    MISSING_USAGE = "missing_usage"
    MODEL_MISMATCH = "model_mismatch"
    NOT_VALIDATED = "not_validated"
    VALIDATION_STALE = "validation_stale"


class _CheckFailed(Exception):
    """Ends a validation: the named check failed, and what follows it has no meaning."""

    def __init__(
        self,
        name: str,
        reason: Reason,
        *,
        outcome: Outcome = Outcome.FAILED,
        **details: Any,
    ) -> None:
        super().__init__(name)
        self.outcome = outcome
        self.check = {"name": name, "passed": False, "reason": str(reason), **details}


@dataclass(slots=True)
class _Run:
    """The checks of one validation as they come in."""

    checks: list[dict[str, Any]] = field(default_factory=list)
    outcome: Outcome = Outcome.PASSED
    usages: list[Usage] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)

    def passed(self, name: str, **details: Any) -> None:
        self.checks.append({"name": name, "passed": True, **details})

    def failed(self, name: str, reason: Reason, **details: Any) -> None:
        self.checks.append({"name": name, "passed": False, "reason": str(reason), **details})
        self.outcome = Outcome.FAILED


def run(endpoint: PrivateEndpoint, *, workspace_id: uuid.UUID) -> Validation:
    """Validates a draft with the workspace's credential and records the result.

    Makes at most one plain and one streamed call within ``VALIDATION_TIMEOUT`` seconds, with no
    transaction open. A failed check is a result, not an exception, and so is a result that the
    database does not take. Raises :class:`EndpointNotFound` when the draft is deleted meanwhile.
    """
    validation = examine(endpoint, workspace_id=workspace_id)
    try:
        endpoint.record_validation(validation)
    except DatabaseError:
        logger.exception("a validation was not stored")
        validation.outcome = Outcome.BROKEN
        validation.checks.append(
            {"name": "database", "passed": False, "reason": str(Reason.DATABASE_ERROR)}
        )
    return validation


def examine(
    endpoint: PrivateEndpoint,
    *,
    workspace_id: uuid.UUID,
    trial: tuple[ByokCredential, Secret] | None = None,
) -> Validation:
    """Makes the calls of a validation and returns its result, not stored.

    ``trial`` tries a new secret of one credential before it is put in: that credential is checked
    and recorded, and its limits hold, whichever the workspace would use first.
    """
    started = time.monotonic()
    validation = Validation(
        endpoint=endpoint, configuration=endpoint.configuration, outcome=Outcome.PASSED
    )
    result = _Run()
    try:
        _check(endpoint, workspace_id, trial, validation, result)
    except _CheckFailed as failure:
        result.checks.append(failure.check)
        result.outcome = failure.outcome
    validation.outcome = result.outcome
    validation.checks = result.checks
    validation.evidence = result.evidence
    validation.cost_nano = sum(
        nano_usd(total_cost(endpoint.price.price, usage)) for usage in result.usages
    )
    validation.duration_ms = round((time.monotonic() - started) * 1000)
    return validation


def _check(
    endpoint: PrivateEndpoint,
    workspace_id: uuid.UUID,
    trial: tuple[ByokCredential, Secret] | None,
    validation: Validation,
    result: _Run,
) -> None:
    workspace = (
        Workspace.objects.for_organization(endpoint.organization_id).filter(pk=workspace_id).first()
    )
    if workspace is None:
        raise _CheckFailed("workspace", Reason.WORKSPACE_NOT_FOUND)
    validation.workspace = workspace
    result.passed("workspace")
    if not endpoint.model.is_listed:
        raise _CheckFailed("model", Reason.MODEL_NOT_FOUND)
    if not endpoint.provider.is_listed:
        raise _CheckFailed("provider", Reason.PROVIDER_NOT_FOUND)
    usable = ByokCredential.objects.usable_in(workspace, endpoint.provider.slug)
    if trial is not None:
        usable = usable.filter(pk=trial[0].pk)
    credential = usable.first()
    if credential is None:
        raise _CheckFailed("byok_key", Reason.NO_BYOK_KEY)
    validation.credential = credential
    validation.credential_version = credential.version
    try:
        secret = credential.reveal() if trial is None else trial[1]
    except DecryptionFailed:
        raise _CheckFailed(
            "byok_key", Reason.KEY_DECRYPTION_FAILED, outcome=Outcome.BROKEN
        ) from None
    result.passed("byok_key")
    dialect = dialects.get(endpoint.provider.dialect, endpoint.upstream_model_id)
    policy = settings.EGRESS_POLICY
    base_url = endpoint.base_url
    try:
        require_base_url(base_url, endpoint.provider)
        if base_url is not None:
            base_url = egress.parse_base_url(base_url, policy=policy).text
        if dialect is None or not credential.permits_host(dialect.host(base_url, secret)):
            raise _CheckFailed("base_url", Reason.INVALID_BASE_URL)
    except (InvalidBaseURL, InvalidCredential, egress.InvalidURL):
        raise _CheckFailed("base_url", Reason.INVALID_BASE_URL) from None
    call = Call(
        operation=Operation.CHAT,
        base_url=base_url,
        model=endpoint.upstream_model_id,
        secret=secret,
        fields=_PROBE,
        is_byok=True,
    )
    # Nobody else should wait for the connection that this thread holds while it waits outside.
    if not connection.in_atomic_block:
        connection.close()
    asyncio.run(_probe(call, dialect, policy, result))


async def _probe(call: Call, dialect: Dialect, policy: egress.EgressPolicy, result: _Run) -> None:
    probe = _Probe(call, dialect, result)
    try:
        async with (
            asyncio.timeout(settings.VALIDATION_TIMEOUT),
            egress.EgressClient(policy) as probe.egress_client,
        ):
            await probe.completion()
            await probe.stream()
    except (egress.TimedOut, TimeoutError):
        probe.reached()
        raise _CheckFailed(
            probe.check,
            Reason.UPSTREAM_ERROR,
            outcome=Outcome.TIMED_OUT,
            upstream_message="The deployment did not answer in time.",
        ) from None
    probe.judge()


class _Probe:
    """The two calls of a validation, and what they showed."""

    def __init__(self, call: Call, dialect: Dialect, result: _Run) -> None:
        self.call = call
        self.dialect = dialect
        self.result = result
        self.check = "completion"
        self.models: list[str] = []
        self.limit = "max_tokens"
        self.has_usage = True
        self.egress_client: egress.EgressClient

    async def completion(self) -> None:
        """Makes the plain call; raises :class:`_CheckFailed`."""
        response = await self._send(stream=False)
        peer = response.peer
        self.result.evidence |= {
            "address": peer.address,
            "certificate_key": peer.certificate_key,
        }
        try:
            body = await response.read()
            reply = self.dialect.parse_reply(self.call.operation, body)
        except (InvalidReply, ProviderFailure, egress.EgressError) as exc:
            if isinstance(exc, egress.TimedOut):
                raise
            raise self._failed(Reason.INVALID_RESPONSE, exc) from None
        finally:
            response.close()
        self.result.passed("completion")
        self.result.evidence |= {
            "model": None if reply.model is None else self._clean(reply.model)[:255],
            "system_fingerprint": self._fingerprint(reply),
            "prompt_tokens": None if reply.usage is None else reply.usage.prompt,
        }
        self._note(reply.model, reply.usage)

    async def stream(self) -> None:
        """Makes the streamed call and reads it to its end; raises :class:`_CheckFailed`."""
        self.check = "stream"
        started = time.monotonic()
        response = await self._send(stream=True)
        parser = self.dialect.stream_parser(self.call.operation)
        usage, model, chunks, is_done, size = None, None, 0, False, 0
        try:
            while not is_done and (data := await response.readany()):
                size += len(data)
                if size > settings.MAX_UPSTREAM_BYTES:
                    raise InvalidStream("The stream is too large.")
                for chunk in parser.feed(data):
                    if not chunks:
                        elapsed = round((time.monotonic() - started) * 1000)
                        self.result.evidence["first_event_ms"] = elapsed
                    usage = chunk.usage or usage
                    model = model or chunk.model
                    chunks += not chunk.is_done
                    is_done = is_done or chunk.is_done
            parser.finish()
            if not chunks:
                raise InvalidStream("The stream has no events.")
        except (InvalidStream, ProviderFailure, egress.EgressError) as exc:
            if isinstance(exc, egress.TimedOut):
                raise
            raise self._failed(Reason.INVALID_STREAM, exc) from None
        finally:
            response.close()
        self.result.passed("stream")
        self._note(model, usage)

    def judge(self) -> None:
        """Adds the checks that compare what both calls said."""
        if self.has_usage:
            self.result.passed("usage")
        else:
            self.result.failed("usage", Reason.MISSING_USAGE)
        wanted = self.call.model
        other = next((model for model in self.models if model != wanted), None)
        details = {} if other is None else {"actual_model": self._clean(other)[:255]}
        if self.dialect.names_deployments or all(
            is_same_model(wanted, model) for model in self.models
        ):
            self.result.passed("model", **details)
        else:
            self.result.failed("model", Reason.MODEL_MISMATCH, **details)

    def _fingerprint(self, reply: Reply) -> str | None:
        raw = reply.fields.get("system_fingerprint")
        value = None if raw is None else json.loads(bytes(raw))
        return self._clean(value)[:255] if isinstance(value, str) else None

    def _note(self, model: str | None, usage: Usage | None) -> None:
        if model is not None:
            self.models.append(model)
        if usage is None:
            self.has_usage = False
        else:
            self.result.usages.append(usage)

    async def _send(self, *, stream: bool) -> egress.OutboundResponse:
        """Sends the probe and returns an answer of status 200; raises :class:`_CheckFailed`."""
        status, failure = 0, ProviderFailure(None)
        for _ in range(2):
            response = await self._dial(stream=stream)
            if response.status == 200:
                self.reached()
                return response
            status, failure = await self._refusal(response)
            # Newer models of some providers know the limit by its newer name alone.
            if self.limit != "max_tokens" or "max_completion_tokens" not in (failure.message or ""):
                break
            self.limit = "max_completion_tokens"
        self.reached()
        details: dict[str, Any] = {}
        if 400 <= status <= 599:
            details["upstream_status"] = status
        if failure.message:
            details["upstream_message"] = failure.message
        raise _CheckFailed(self.check, Reason.UPSTREAM_ERROR, **details)

    async def _dial(self, *, stream: bool) -> egress.OutboundResponse:
        request = self.dialect.build(self._call(stream=stream))
        timeout = settings.VALIDATION_TIMEOUT
        try:
            return await self.egress_client.send(
                request, first_byte_timeout=timeout, idle_timeout=timeout
            )
        except egress.AddressRefused:
            raise _CheckFailed("base_url", Reason.INVALID_BASE_URL) from None
        except egress.RedirectRefused as exc:
            self.reached()
            raise self._failed(Reason.UPSTREAM_ERROR, exc) from None
        except egress.BadResponse as exc:
            self.reached()
            raise self._failed(Reason.INVALID_RESPONSE, exc) from None
        except egress.EgressError as exc:
            if isinstance(exc, egress.TimedOut) and exc.phase != "connect":
                raise
            self.reached()
            raise _CheckFailed(
                self.check,
                Reason.UPSTREAM_ERROR,
                outcome=Outcome.UNREACHABLE,
                upstream_message=exc.public,
            ) from None

    def _call(self, *, stream: bool) -> Call:
        return Call(
            operation=self.call.operation,
            base_url=self.call.base_url,
            model=self.call.model,
            secret=self.call.secret,
            fields={**self.call.fields, self.limit: MAX_TOKENS},
            stream=stream,
        )

    async def _refusal(self, response: egress.OutboundResponse) -> tuple[int, ProviderFailure]:
        try:
            body = await response.read(limit=1_048_576)
        except egress.TimedOut:
            raise
        except egress.EgressError:
            body = b""
        finally:
            response.close()
        return response.status, parse_error(body).clean(self.call.secret)

    def reached(self) -> None:
        """The address was one that may be dialled, whatever came of the call."""
        if self.check == "completion" and self.result.checks[-1]["name"] != "base_url":
            self.result.passed("base_url")

    def _failed(self, reason: Reason, exc: Exception) -> _CheckFailed:
        text = exc.public if isinstance(exc, egress.EgressError) else self._clean(str(exc))
        return _CheckFailed(self.check, reason, upstream_message=text)

    def _clean(self, text: str) -> str:
        return clean_message(text, self.call.secret)


def is_same_model(requested: str, reported: str) -> bool:
    """Tells whether a reported model is the requested one.

    Equal, or one extends the other at a separator: ``gpt-4o`` and ``gpt-4o-2024-08-06``,
    ``llama`` and ``meta/llama``.
    """
    requested, reported = requested.lower(), reported.lower()
    short, long = sorted((requested, reported), key=len)
    if short == long:
        return True
    return bool(short) and (
        (long.startswith(short) and long[len(short)] in _SEPARATORS)
        or (long.endswith(short) and long[-len(short) - 1] in _SEPARATORS)
    )
