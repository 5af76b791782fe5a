"""The live validation of a private endpoint: real calls with the same dialects as its traffic."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

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
from config.api.errors import Forbidden
from config.credentials import Secret
from config.egress.client import EgressClient, OutboundResponse
from config.secrets import DecryptionFailed
from endpoints.metrics import Refusal, count_refusal
from endpoints.models import (
    InvalidBaseURL,
    PrivateEndpoint,
    Validation,
    ValidationSlot,
    require_base_url,
)

logger = logging.getLogger(__name__)

Outcome = Validation.Outcome

# Some providers refuse fewer than 16 output tokens.
MAX_TOKENS: Final = 16
# A short answer is asked for. A large one would be parsed beside other tenants' requests.
_MAX_REPLY_BYTES: Final = 1_048_576
_MAX_STREAM_BYTES: Final = 4 * 1_048_576
_PROBE: Final = {
    "messages": [{"role": "user", "content": "Reply with the single word: ready"}],
}
# The message of the probe has about ten tokens. A deployment may add a system prompt of its own.
_MOST_PROMPT_TOKENS: Final = 16_384
# Some providers count more than they were allowed to write, such as thoughts.
_MOST_COMPLETION_TOKENS: Final = 1_024
_SEPARATORS: Final = ("-", "/", ":", "@")


class Reason(StrEnum):
    """The reason of a failed check, as the public API names it."""

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
    """Ends a validation at a failed check after which later checks are meaningless."""

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
    """The results of one validation, collected while it runs."""

    checks: list[dict[str, Any]] = field(default_factory=list)
    outcome: Outcome = Outcome.PASSED
    usages: list[Usage] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)

    def add_pass(self, name: str, **details: Any) -> None:
        self.checks.append({"name": name, "passed": True, **details})

    def add_failure(self, name: str, reason: Reason, **details: Any) -> None:
        self.checks.append({"name": name, "passed": False, "reason": str(reason), **details})
        self.outcome = Outcome.FAILED


class HostIsNew(Forbidden):
    """The operator may not send a tenant's secret to a host that has not received it before."""


def run(
    endpoint: PrivateEndpoint,
    *,
    workspace_id: uuid.UUID,
    slot: ValidationSlot | None = None,
    may_bind: bool = True,
) -> Validation:
    """Validates a draft with the workspace's credential, stores the result and returns it.

    Makes at most one plain and one streamed call within ``VALIDATION_TIMEOUT`` seconds, outside any
    transaction. Failed checks and a failure to store the result are part of the result. Takes a
    ``slot`` of the organization, unless the caller has one, and gives it back.

    Raises :class:`EndpointNotFound` when the draft was deleted meanwhile, :class:`ValidationsBusy`
    without a free slot, and, unless the caller ``may_bind`` credentials, :class:`HostIsNew`.
    """
    if slot is None:
        slot = ValidationSlot(organization_id=endpoint.organization_id).take()
    with slot:
        validation = examine(endpoint, workspace_id=workspace_id, may_bind=may_bind)
        try:
            endpoint.record_validation(validation)
        except DatabaseError:
            logger.exception("cannot store a validation")
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
    may_bind: bool = True,
) -> Validation:
    """Makes the calls of a validation and returns the unsaved result; the caller has a slot.

    ``trial`` is a credential with a new secret to try before it is stored; the validation uses this
    credential even if the workspace would use another one first. Raises :class:`HostIsNew` for a
    host that is new to the credential, unless the caller ``may_bind``.
    """
    started = time.monotonic()
    validation = Validation(
        endpoint=endpoint, configuration=endpoint.configuration, outcome=Outcome.PASSED
    )
    result = _Run()
    try:
        attempt = _find_attempt(endpoint, workspace_id, trial, may_bind, validation, result)
        validation.host = attempt.host
        # The calls take seconds; other threads may use the database connection meanwhile.
        if not connection.in_atomic_block:
            connection.close()
        asyncio.run(_probe(attempt.call, attempt.dialect, settings.EGRESS_POLICY, result))
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


class _Attempt(NamedTuple):
    """The call of a validation, its dialect, and the host to which it sends the secret."""

    call: Call
    dialect: Dialect
    host: str


def _find_attempt(
    endpoint: PrivateEndpoint,
    workspace_id: uuid.UUID,
    trial: tuple[ByokCredential, Secret] | None,
    may_bind: bool,
    validation: Validation,
    result: _Run,
) -> _Attempt:
    """Returns the call to make; raises :class:`_CheckFailed` before anything is resolved."""
    workspace = (
        Workspace.objects.for_organization(endpoint.organization_id).filter(pk=workspace_id).first()
    )
    if workspace is None:
        raise _CheckFailed("workspace", Reason.WORKSPACE_NOT_FOUND)
    validation.workspace = workspace
    result.add_pass("workspace")
    if not endpoint.model.is_listed:
        raise _CheckFailed("model", Reason.MODEL_NOT_FOUND)
    if not endpoint.provider.is_listed:
        raise _CheckFailed("provider", Reason.PROVIDER_NOT_FOUND)
    credential, secret = _find_credential(endpoint, workspace, trial, validation)
    result.add_pass("byok_key")
    dialect = dialects.get(endpoint.provider.dialect, endpoint.upstream_model_id)
    base_url = endpoint.base_url
    try:
        require_base_url(base_url, endpoint.provider)
        if base_url is not None:
            base_url = egress.parse_base_url(base_url, policy=settings.EGRESS_POLICY).text
        if dialect is None:
            raise _CheckFailed("base_url", Reason.INVALID_BASE_URL)
        host = dialect.host(base_url, secret)
    except (InvalidBaseURL, InvalidCredential, egress.InvalidURL):
        raise _CheckFailed("base_url", Reason.INVALID_BASE_URL) from None
    _require_host(host, endpoint, credential, may_bind)
    call = Call(
        operation=Operation.CHAT,
        base_url=base_url,
        model=endpoint.upstream_model_id,
        secret=secret,
        fields=_PROBE,
        is_byok=True,
    )
    return _Attempt(call, dialect, host)


def _require_host(
    host: str, endpoint: PrivateEndpoint, credential: ByokCredential, may_bind: bool
) -> None:
    """Raises unless the secret may go to the host; every refusal is counted."""
    limits = credential.host_limits(endpoint.provider.own_hosts(host))
    if (reason := limits.refusal(host)) is not None:
        count_refusal(Refusal.HOST)
        logger.warning(
            "secret not sent: credential %s of organization %s is not for %s",
            credential.pk,
            credential.organization_id,
            host,
        )
        raise _CheckFailed("base_url", Reason.INVALID_BASE_URL, upstream_message=reason)
    if not may_bind and not limits.has_named(host):
        count_refusal(Refusal.NEW_HOST)
        raise HostIsNew(
            f"{host} has never received the secret of {credential}. The organization itself, or an "
            "operator who may change its credentials, must validate first. Nothing was sent."
        )


def _find_credential(
    endpoint: PrivateEndpoint,
    workspace: Workspace,
    trial: tuple[ByokCredential, Secret] | None,
    validation: Validation,
) -> tuple[ByokCredential, Secret]:
    """Returns the credential to use and its secret; records the credential in the validation.

    It is the first that may go to the endpoint's host, as in routing. If none may, it is the first
    of all, so that the check of the host names it.
    """
    usable = ByokCredential.objects.usable_in(workspace, endpoint.provider.slug)
    if trial is not None:
        usable = usable.filter(pk=trial[0].pk)
    credentials: list[ByokCredential] = list(usable)
    if not credentials:
        raise _CheckFailed("byok_key", Reason.NO_BYOK_KEY)
    credential = credentials[0]
    if endpoint.base_url is not None:
        host, own_hosts = endpoint.host, endpoint.provider.own_hosts()
        permitted = (each for each in credentials if each.host_limits(own_hosts).permits(host))
        credential = next(permitted, credential)
    validation.credential = credential
    validation.credential_version = credential.version
    try:
        return credential, credential.reveal() if trial is None else trial[1]
    except DecryptionFailed:
        raise _CheckFailed(
            "byok_key", Reason.KEY_DECRYPTION_FAILED, outcome=Outcome.BROKEN
        ) from None


async def _probe(call: Call, dialect: Dialect, policy: egress.EgressPolicy, result: _Run) -> None:
    probe = _Probe(call, dialect, result)
    try:
        async with (
            asyncio.timeout(settings.VALIDATION_TIMEOUT),
            EgressClient(policy) as probe.egress_client,
        ):
            await probe.call_plain()
            await probe.call_streamed()
    except (egress.TimedOut, TimeoutError):
        probe.add_reached()
        raise _CheckFailed(
            probe.check,
            Reason.UPSTREAM_ERROR,
            outcome=Outcome.TIMED_OUT,
            upstream_message="The deployment did not answer in time.",
        ) from None
    probe.compare_replies()


class _Probe:
    """The two calls of a validation, and the models and usage that the replies reported."""

    def __init__(self, call: Call, dialect: Dialect, result: _Run) -> None:
        self.call = call
        self.dialect = dialect
        self.result = result
        self.check = "completion"
        self.models: list[str] = []
        self.limit = "max_tokens"
        self.has_usage = True
        self.egress_client: EgressClient

    async def call_plain(self) -> None:
        """Makes the plain call, without streaming; raises :class:`_CheckFailed`."""
        response = await self._send(stream=False)
        peer = response.peer
        self.result.evidence |= {
            "address": peer.address,
            "certificate_key": peer.certificate_key,
        }
        try:
            body = await response.read(limit=_MAX_REPLY_BYTES)
            reply = self.dialect.parse_reply(self.call.operation, body)
        except (InvalidReply, ProviderFailure, egress.EgressError) as exc:
            if isinstance(exc, egress.TimedOut):
                raise
            raise self._check_failed(Reason.INVALID_RESPONSE, exc) from None
        finally:
            response.close()
        self.result.add_pass("completion")
        self.result.evidence |= {
            "model": None if reply.model is None else self._clean(reply.model)[:255],
            "system_fingerprint": self._fingerprint(reply),
            "prompt_tokens": None if reply.usage is None else reply.usage.prompt,
        }
        self._note(reply.model, reply.usage)

    async def call_streamed(self) -> None:
        """Makes the streamed call and reads it to its end; raises :class:`_CheckFailed`."""
        self.check = "stream"
        started = time.monotonic()
        response = await self._send(stream=True)
        parser = self.dialect.stream_parser(self.call.operation)
        usage, model, chunks, is_done, size = None, None, 0, False, 0
        try:
            while not is_done and (data := await response.readany()):
                size += len(data)
                if size > _MAX_STREAM_BYTES:
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
            raise self._check_failed(Reason.INVALID_STREAM, exc) from None
        finally:
            response.close()
        self.result.add_pass("stream")
        self._note(model, usage)

    def compare_replies(self) -> None:
        """Adds the checks of the usage and the models that both replies reported."""
        if self.has_usage:
            self.result.add_pass("usage")
        else:
            self.result.add_failure("usage", Reason.MISSING_USAGE)
        requested = self.call.model
        other = next((model for model in self.models if model != requested), None)
        details = {} if other is None else {"actual_model": self._clean(other)[:255]}
        if self.dialect.names_deployments or all(
            is_same_model(requested, model) for model in self.models
        ):
            self.result.add_pass("model", **details)
        else:
            self.result.add_failure("model", Reason.MODEL_MISMATCH, **details)

    def _fingerprint(self, reply: Reply) -> str | None:
        raw = reply.fields.get("system_fingerprint")
        value = None if raw is None else json.loads(bytes(raw))
        return self._clean(value)[:255] if isinstance(value, str) else None

    def _note(self, model: str | None, usage: Usage | None) -> None:
        if model is not None:
            self.models.append(model)
        if (
            usage is None
            or usage.prompt > _MOST_PROMPT_TOKENS
            or usage.completion > _MOST_COMPLETION_TOKENS
        ):
            # A count beyond what the probe allowed is no count.
            self.has_usage = False
        else:
            self.result.usages.append(usage)

    async def _send(self, *, stream: bool) -> OutboundResponse:
        """Sends a call and returns its response of status 200; raises :class:`_CheckFailed`."""
        status, failure = 0, ProviderFailure(None)
        for _ in range(2):
            response = await self._dial(stream=stream)
            if response.status == 200:
                self.add_reached()
                return response
            status, failure = await self._read_refusal(response)
            # Newer models of some providers accept only the newer name of the limit.
            if self.limit != "max_tokens" or "max_completion_tokens" not in (failure.message or ""):
                break
            self.limit = "max_completion_tokens"
        self.add_reached()
        details: dict[str, Any] = {}
        if 400 <= status <= 599:
            details["upstream_status"] = status
        if failure.message:
            details["upstream_message"] = failure.message
        raise _CheckFailed(self.check, Reason.UPSTREAM_ERROR, **details)

    async def _dial(self, *, stream: bool) -> OutboundResponse:
        request = self.dialect.build(self._call(stream=stream))
        timeout = settings.VALIDATION_TIMEOUT
        try:
            return await self.egress_client.send(
                request, first_byte_timeout=timeout, idle_timeout=timeout
            )
        except egress.AddressRefused:
            raise _CheckFailed("base_url", Reason.INVALID_BASE_URL) from None
        except egress.RedirectRefused as exc:
            self.add_reached()
            raise self._check_failed(Reason.UPSTREAM_ERROR, exc) from None
        except egress.BadResponse as exc:
            self.add_reached()
            raise self._check_failed(Reason.INVALID_RESPONSE, exc) from None
        except egress.EgressError as exc:
            if isinstance(exc, egress.TimedOut) and exc.phase != "connect":
                raise
            self.add_reached()
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

    async def _read_refusal(self, response: OutboundResponse) -> tuple[int, ProviderFailure]:
        try:
            body = await response.read(limit=1_048_576)
        except egress.TimedOut:
            raise
        except egress.EgressError:
            body = b""
        finally:
            response.close()
        return response.status, parse_error(body).clean(self.call.secret)

    def add_reached(self) -> None:
        """Adds the passed check of the base URL: the egress policy allowed the connection."""
        if self.check == "completion" and self.result.checks[-1]["name"] != "base_url":
            self.result.add_pass("base_url")

    def _check_failed(self, reason: Reason, exc: Exception) -> _CheckFailed:
        text = exc.public if isinstance(exc, egress.EgressError) else self._clean(str(exc))
        return _CheckFailed(self.check, reason, upstream_message=text)

    def _clean(self, text: str) -> str:
        return clean_message(text, self.call.secret)


def is_same_model(requested: str, reported: str) -> bool:
    """Returns whether a reported model name means the requested one.

    The names are equal, or one extends the other at a separator: ``gpt-4o`` and
    ``gpt-4o-2024-08-06``, or ``llama`` and ``meta/llama``.
    """
    requested, reported = requested.lower(), reported.lower()
    short, long = sorted((requested, reported), key=len)
    if short == long:
        return True
    return bool(short) and (
        (long.startswith(short) and long[len(short)] in _SEPARATORS)
        or (long.endswith(short) and long[-len(short) - 1] in _SEPARATORS)
    )
