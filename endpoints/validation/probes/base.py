"""What the probes of all operations share."""

from __future__ import annotations

import json
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final

from catalog.dialects.base import InvalidReply, Reply
from catalog.operations import OPERATIONS
from catalog.pricing import Usage
from endpoints.validation.calls import MOST_REPLY_BYTES, DeploymentCaller
from endpoints.validation.checks import CheckFailed, Reason

# The texts of the probes have about ten tokens. A deployment may add a system prompt of its own,
# and think for long; larger counts are no counts of tokens.
_MOST_TOKENS: Final = 1_048_576
_SEPARATORS: Final = ("-", "/", ":", "@")


class Probe(ABC):
    """The calls of a validation, and the models and usages that their replies reported."""

    check: ClassVar[str]
    """The name of the check that the first call decides."""
    # Some providers count more than they were allowed to write, such as thoughts.
    most_completion_tokens: ClassVar = _MOST_TOKENS
    most_reply_bytes: ClassVar = MOST_REPLY_BYTES

    def __init__(self, caller: DeploymentCaller) -> None:
        self.caller = caller
        self.result = caller.result
        self._proof = OPERATIONS[caller.call.operation].proof
        self.models: list[str] = []
        self.has_usage = True

    @abstractmethod
    async def make_calls(self) -> None:
        """Makes the calls and adds their checks; raises :class:`CheckFailed`."""

    def note(self, model: str | None, usage: Usage | None) -> None:
        """Records the model and the usage that a reply reported."""
        if model:
            self.models.append(model)
        if usage is None and not self._proof:
            return
        if (
            usage is None
            # Every probe has a prompt, so a usage of none is no usage; nor is one beyond what the
            # probe allowed.
            or (self._proof and not any(getattr(usage, name) for name in self._proof))
            or usage.prompt > _MOST_TOKENS
            or usage.completion > self.most_completion_tokens
            or usage.searches > 1
        ):
            self.has_usage = False
        else:
            self.result.usages.append(usage)

    def note_reply(self, reply: Reply) -> None:
        """Records what the first whole reply tells about the deployment.

        That of the first operation stays, so that later validations compare like with like.
        """
        self.result.evidence = {
            "model": None if reply.model is None else self.caller.clean(reply.model)[:255],
            "system_fingerprint": self._fingerprint(reply),
            "prompt_tokens": None if reply.usage is None else reply.usage.prompt,
        } | self.result.evidence
        self.note(reply.model, reply.usage)

    def _fingerprint(self, reply: Reply) -> str | None:
        raw = reply.fields.get("system_fingerprint")
        value = None if raw is None else json.loads(bytes(raw))
        return self.caller.clean(value)[:255] if isinstance(value, str) else None

    def refuse(self, text: str) -> CheckFailed:
        """Returns the failure of an answer that is not what the operation answers."""
        return self.caller.fail(Reason.INVALID_RESPONSE, InvalidReply(text))


def compare_replies(probes: Sequence[Probe], reported_model: str | None = None) -> None:
    """Adds the checks of the usages and the models that all replies of a deployment reported.

    ``reported_model`` is the name that replies have if the owner has stated one.
    """
    caller, result = probes[0].caller, probes[0].result
    if all(probe.has_usage for probe in probes):
        result.add_pass("usage")
    else:
        result.add_failure("usage", Reason.MISSING_USAGE)
    requested = caller.call.model
    models = [model for probe in probes for model in probe.models]
    expected = reported_model or requested
    other = next((model for model in models if model != expected), None)
    details = {} if other is None else {"actual_model": caller.clean(other)[:255]}
    is_compared = not caller.dialect.names_deployments
    if details and is_compared:
        details["expected_model"] = expected
    # The owner states an exact name; without one, what extends the requested name means it too.
    means = operator.eq if reported_model else is_same_model
    if not is_compared or all(means(expected, model) for model in models):
        notes = () if models else ("The name of the model is not reported.",)
        result.add_pass("model", notes=notes, **details)
    else:
        result.add_failure("model", Reason.MODEL_MISMATCH, **details)


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
