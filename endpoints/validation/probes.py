"""The probes: what a validation asks a deployment, by the operation that it serves.

A probe makes two calls, because one good answer may be luck: a chat is asked plain and streamed, an
embedding alone and with another one.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec
from django.conf import settings

from catalog.dialects.base import (
    Call,
    Dialect,
    InvalidReply,
    InvalidStream,
    Operation,
    ProviderFailure,
    Reply,
)
from catalog.pricing import Usage
from config import egress
from config.egress.client import EgressClient
from endpoints.validation.calls import Caller, Refused
from endpoints.validation.checks import CheckFailed, Outcome, Reason, Result

# Some providers refuse fewer than 16 output tokens.
MAX_TOKENS: Final = 16
_MAX_STREAM_BYTES: Final = 4 * 1_048_576
_MESSAGES: Final = [{"role": "user", "content": "Reply with the single word: ready"}]
_INPUT: Final = "ready"
_TWO_INPUTS: Final = ("ready", "A second text, which has more words than the first one.")
# The texts of the probes have about ten tokens. A deployment may add a system prompt of its own.
_MOST_PROMPT_TOKENS: Final = 16_384
# Some providers count more than they were allowed to write, such as thoughts.
_MOST_COMPLETION_TOKENS: Final = 1_024
_SEPARATORS: Final = ("-", "/", ":", "@")
_read_vectors: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_read_numbers: Final = msgspec.json.Decoder(list[float]).decode


async def probe(call: Call, dialect: Dialect, policy: egress.EgressPolicy, result: Result) -> None:
    """Makes the calls that validate the operation of ``call``, and adds their checks.

    Raises :class:`CheckFailed` at a failed check after which later ones are meaningless.
    """
    async with EgressClient(policy) as egress_client:
        kind = _PROBES[call.operation]
        caller = Caller(call, dialect, result, egress_client, kind.check)
        probe = kind(caller)
        try:
            async with asyncio.timeout(settings.VALIDATION_TIMEOUT):
                await probe.make_calls()
        except (egress.TimedOut, TimeoutError):
            caller.add_reached()
            raise CheckFailed(
                caller.check,
                Reason.UPSTREAM_ERROR,
                outcome=Outcome.TIMED_OUT,
                upstream_message="The deployment did not answer in time.",
            ) from None
    probe.compare_replies()


class Probe(ABC):
    """The calls of a validation, and the models and usages that their replies reported."""

    check: ClassVar[str]
    """The name of the check that the first call decides."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.result = caller.result
        self._models: list[str] = []
        self._has_usage = True

    @abstractmethod
    async def make_calls(self) -> None:
        """Makes the calls and adds their checks; raises :class:`CheckFailed`."""

    def note(self, model: str | None, usage: Usage | None) -> None:
        """Records the model and the usage that a reply reported."""
        if model is not None:
            self._models.append(model)
        if (
            usage is None
            # Every probe has a prompt, so a count of none is no count; nor is one beyond what the
            # probe allowed.
            or not 0 < usage.prompt <= _MOST_PROMPT_TOKENS
            or usage.completion > _MOST_COMPLETION_TOKENS
        ):
            self._has_usage = False
        else:
            self.result.usages.append(usage)

    def note_reply(self, reply: Reply) -> None:
        """Records what the first whole reply tells about the deployment."""
        self.result.evidence |= {
            "model": None if reply.model is None else self.caller.clean(reply.model)[:255],
            "system_fingerprint": self._fingerprint(reply),
            "prompt_tokens": None if reply.usage is None else reply.usage.prompt,
        }
        self.note(reply.model, reply.usage)

    def compare_replies(self) -> None:
        """Adds the checks of the usages and the models that the replies reported."""
        if self._has_usage:
            self.result.add_pass("usage")
        else:
            self.result.add_failure("usage", Reason.MISSING_USAGE)
        requested = self.caller.call.model
        other = next((model for model in self._models if model != requested), None)
        details = {} if other is None else {"actual_model": self.caller.clean(other)[:255]}
        if self.caller.dialect.names_deployments or all(
            is_same_model(requested, model) for model in self._models
        ):
            self.result.add_pass("model", **details)
        else:
            self.result.add_failure("model", Reason.MODEL_MISMATCH, **details)

    def _fingerprint(self, reply: Reply) -> str | None:
        raw = reply.fields.get("system_fingerprint")
        value = None if raw is None else json.loads(bytes(raw))
        return self.caller.clean(value)[:255] if isinstance(value, str) else None


class ChatProbe(Probe):
    """Asks for a word, first plain and then streamed."""

    check = "completion"

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self._limit = "max_tokens"

    async def make_calls(self) -> None:
        try:
            reply = await self.caller.ask(self._fields())
        except Refused as refusal:
            # Newer models of some providers accept only the newer name of the limit.
            if "max_completion_tokens" not in refusal.message:
                raise
            self._limit = "max_completion_tokens"
            reply = await self.caller.ask(self._fields())
        self.result.add_pass("completion")
        self.note_reply(reply)
        self.caller.check = "stream"
        await self._read_stream()

    async def _read_stream(self) -> None:
        """Makes the streamed call and reads it to its end; raises :class:`CheckFailed`."""
        started = time.monotonic()
        response = await self.caller.send(self._fields(), stream=True)
        parser = self.caller.dialect.stream_parser(self.caller.call.operation)
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
            raise self.caller.fail(Reason.INVALID_STREAM, exc) from None
        finally:
            response.close()
        self.result.add_pass("stream")
        self.note(model, usage)

    def _fields(self) -> dict[str, Any]:
        return {"messages": _MESSAGES, self._limit: MAX_TOKENS}


class EmbeddingsProbe(Probe):
    """Asks for the vector of a text, then for it and another one: all have the same length."""

    check = "embeddings"

    async def make_calls(self) -> None:
        reply = await self.caller.ask({"input": _INPUT})
        lengths = self._measure(reply, vectors=1)
        self.note_reply(reply)
        reply = await self.caller.ask({"input": list(_TWO_INPUTS)})
        lengths |= self._measure(reply, vectors=2)
        self.note(reply.model, reply.usage)
        if len(lengths) > 1:
            raise self._refuse("The vectors of the answers differ in length.")
        self.result.evidence["dimensions"] = lengths.pop()
        self.result.add_pass("embeddings")

    def _measure(self, reply: Reply, *, vectors: int) -> set[int]:
        """Returns the lengths of the vectors; raises :class:`CheckFailed` if one has no numbers."""
        try:
            given = [each["embedding"] for each in _read_vectors(reply.fields["data"])]
            lengths = {len(_read_numbers(vector)) for vector in given}
        except (msgspec.DecodeError, KeyError):
            raise self._refuse("An embedding of the answer is not a list of numbers.") from None
        if len(given) != vectors:
            raise self._refuse(f"The answer has {len(given)} embeddings instead of {vectors}.")
        if 0 in lengths:
            raise self._refuse("An embedding of the answer is empty.")
        return lengths

    def _refuse(self, text: str) -> CheckFailed:
        return self.caller.fail(Reason.INVALID_RESPONSE, InvalidReply(text))


_PROBES: Final[Mapping[Operation, type[Probe]]] = {
    Operation.CHAT: ChatProbe,
    Operation.EMBEDDINGS: EmbeddingsProbe,
}


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
