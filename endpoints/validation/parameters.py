"""Learns which parameters a deployment honours, by calls whose answers show the effect.

A list of parameters is what somebody wrote down. Many servers accept a parameter and ignore it, so
only an answer that the parameter must have changed proves it: a forced tool is called, an answer
has the shape of a schema that the question does not mention, a text ends before a stop sequence.
A refusal, and an answer without the effect, prove that the parameter is not to be relied on. A
deployment that serves a model by OpenAI's Responses alone is asked for responses instead of chats.

The calls cost their owner money, so they are made where they are cheap, or on request. Each asks
for at most 64 tokens, or 512 of a model that thinks in Responses, and no further call begins after
8,192 tokens or ``VALIDATION_TIMEOUT`` seconds in all. What was not tried then stays unknown, and so
does what an answer without a word says nothing about, because its model thought up to the bound. No
result fails the validation.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from django.conf import settings
from msgspec.structs import replace

from catalog.abilities import read_settings
from catalog.dialects.base import Call, Dialect, NativeBody, Operation, Untranslatable
from catalog.pricing import Usage
from config import egress
from config.egress.client import EgressClient
from endpoints.models import IMAGE_INPUT, PrivateEndpoint, Proof
from endpoints.validation.answers import Answer, read_chat, read_response, write_response
from endpoints.validation.calls import REFUSALS, CallLimits, DeploymentCaller, Refused
from endpoints.validation.checks import CheckFailed, Result

logger = logging.getLogger(__name__)

MOST_TRIAL_TOKENS: Final = 8_192
# What a call without usable counts is taken to have cost.
_UNCOUNTED_TOKENS: Final = 1_024
_SHORT: Final = 16
_LONG: Final = 64
# The models that are served by Responses alone think before they write.
_THINKING: Final = 512
_WORD: Final = "K7Q"
_TOOL: Final = "report_city"
_BOUNDS: Final = ("max_tokens", "max_completion_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """Calls that prove parameters: the fields of each, and whether their answers show the effect.

    ``after`` names a parameter that must have been proven before. ``otherwise`` are other calls,
    for a deployment where the first ones have no effect.
    """

    names: tuple[str, ...]
    question: str | list[dict[str, Any]]
    is_proven: Callable[[Sequence[Answer]], bool]
    fields: tuple[dict[str, Any], ...] = ({},)
    otherwise: tuple[dict[str, Any], ...] = ()
    tokens: int = _SHORT
    after: str = ""


def _draw_square(red: int, green: int, blue: int) -> str:
    """Returns a PNG of one colour as a data URI."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    head = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes((red, green, blue)) * 32) * 32
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    encoded = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return f"data:image/png;base64,{encoded.decode()}"


_CITY: Final = {
    "type": "function",
    "function": {
        "name": _TOOL,
        "description": "Reports one city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
_SCHEMA: Final = {
    "type": "json_schema",
    "json_schema": {
        "name": "code",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"code": {"type": "string", "enum": [_WORD]}},
            "required": ["code"],
            "additionalProperties": False,
        },
    },
}


def _calls_city(answers: Sequence[Answer]) -> bool:
    return any(_names_city(tool) for tool in answers[0].tools)


def _names_city(tool: dict[str, Any]) -> bool:
    function = tool.get("function")
    if not isinstance(function, dict) or function.get("name") != _TOOL:
        return False
    try:
        return isinstance(msgspec.json.decode(function.get("arguments", "")), dict)
    except (msgspec.DecodeError, TypeError):
        return False


def _stops_early(answers: Sequence[Answer]) -> bool:
    text = answers[0].text.lower()
    return "alpha" in text and "bravo" not in text and "charlie" not in text


def _repeats_by_seed(answers: Sequence[Answer]) -> bool:
    first, again, other = (answer.text for answer in answers)
    return bool(first) and first == again != other


def _has_alternatives(answers: Sequence[Answer]) -> bool:
    listed = [item.get("top_logprobs") for item in answers[0].logprobs]
    return any(isinstance(each, list) and len(each) == 2 for each in listed)


# In the order of their use. Later trials may need what an earlier one has proven.
_TRIALS: Final = (
    _Trial(
        names=_BOUNDS[:1],
        question="Count from one to two hundred in words.",
        is_proven=lambda answers: answers[0].finish == "length" and len(answers[0].text) < 1000,
    ),
    _Trial(
        names=("stop",),
        question="Write exactly these words and nothing else: alpha bravo charlie",
        fields=({"stop": ["bravo"]},),
        is_proven=_stops_early,
    ),
    _Trial(
        names=("tools", "tool_choice"),
        question="Say hello.",
        fields=(
            {
                "tools": [_CITY],
                "tool_choice": {"type": "function", "function": {"name": _TOOL}},
            },
        ),
        # A llama.cpp server treats the name of a function as no choice.
        otherwise=({"tools": [_CITY], "tool_choice": "required"},),
        tokens=_LONG,
        is_proven=_calls_city,
    ),
    _Trial(
        names=("parallel_tool_calls",),
        question="Report the cities Rome and Oslo, each with a call of its own, at once.",
        fields=({"tools": [_CITY], "parallel_tool_calls": True},),
        tokens=_LONG,
        after="tools",
        is_proven=lambda answers: sum(map(_names_city, answers[0].tools)) > 1,
    ),
    _Trial(
        names=("structured_outputs",),
        question="Say hello.",
        fields=({"response_format": _SCHEMA},),
        tokens=_LONG,
        is_proven=lambda answers: answers[0].json == {"code": _WORD},
    ),
    _Trial(
        names=("response_format",),
        question="Say hello in one plain English sentence, without any JSON.",
        fields=({"response_format": {"type": "json_object"}},),
        tokens=_LONG,
        is_proven=lambda answers: isinstance(answers[0].json, dict),
    ),
    _Trial(
        names=("seed",),
        question="Invent a number of twelve digits. Write only its digits.",
        fields=tuple({"seed": seed, "temperature": 1} for seed in (11, 11, 12)),
        is_proven=_repeats_by_seed,
    ),
    _Trial(
        names=("logprobs",),
        question="Say hello.",
        fields=({"logprobs": True},),
        is_proven=lambda answers: bool(answers[0].logprobs),
    ),
    _Trial(
        names=("top_logprobs",),
        question="Say hello.",
        fields=({"logprobs": True, "top_logprobs": 2},),
        after="logprobs",
        is_proven=_has_alternatives,
    ),
    _Trial(
        names=("reasoning", "reasoning_effort"),
        question="What is 17 times 23?",
        fields=({"reasoning_effort": "low"},),
        tokens=_LONG,
        is_proven=lambda answers: answers[0].has_thoughts,
    ),
    _Trial(
        names=(IMAGE_INPUT,),
        question=[
            {"type": "text", "text": "Which colour is this picture? Answer with one word."},
            {"type": "image_url", "image_url": {"url": _draw_square(0, 160, 0)}},
        ],
        is_proven=lambda answers: "green" in answers[0].text.lower(),
    ),
)
# The operations whose parameters are tried; the others have none with an effect that shows.
TRIALS: Final = {Operation.CHAT: _TRIALS}
TRIED_NAMES: Final = tuple(name for trial in _TRIALS for name in trial.names)


async def learn_parameters(
    call: Call,
    dialect: Dialect,
    policy: egress.EgressPolicy,
    endpoint: PrivateEndpoint,
    result: Result,
    most_tokens: float = MOST_TRIAL_TOKENS,
) -> None:
    """Makes the calls that prove parameters, and adds the proofs and the usages to the result.

    An image is not shown to a model without that input. What was tested and proven before is not
    tried again, and what the owner excludes is not tried. No call begins after ``most_tokens``.
    """
    async with EgressClient(policy) as egress_client:
        # The checks of these calls are not checks of the validation.
        limits = CallLimits(settings.VALIDATION_TIMEOUT)
        caller = DeploymentCaller(
            call, dialect, Result(), egress_client, "parameters", limits=limits
        )
        learner = _Learner(caller, result, endpoint, most_tokens)
        try:
            async with asyncio.timeout(limits.seconds):
                await learner.try_all(frozenset(endpoint.model.input_modalities))
        except (egress.TimedOut, TimeoutError):
            logger.info("the trial of parameters ended at its time limit")
        except CheckFailed as failure:
            logger.info("the trial of parameters ended early: %s", failure.check)


class _Learner:
    """Tries the parameters of one deployment in turn, within the bound of tokens."""

    def __init__(
        self,
        caller: DeploymentCaller,
        result: Result,
        endpoint: PrivateEndpoint,
        most_tokens: float,
    ) -> None:
        self._caller = caller
        self._result = result
        self._tested = frozenset(endpoint.tested_parameters)
        self._excluded = frozenset(read_settings(endpoint.settings).excluded_parameters)
        self._most_tokens = most_tokens
        self._spent = 0
        self._bound = _BOUNDS[0]

    async def try_all(self, inputs: frozenset[str]) -> None:
        proofs = self._result.parameters
        for trial in TRIALS.get(self._caller.call.operation, ()):
            if self._tested.issuperset(trial.names) or self._excluded.intersection(trial.names):
                continue
            if trial.names == _BOUNDS[:1] and _BOUNDS[1] in self._tested:
                self._bound = _BOUNDS[1]
                continue
            before = Proof.PROVEN if trial.after in self._tested else proofs.get(trial.after)
            if trial.after and before != Proof.PROVEN:
                continue
            if IMAGE_INPUT in trial.names and inputs and "image" not in inputs:
                continue
            if self._spent >= self._most_tokens:
                return
            proof = await self._try(trial, trial.fields)
            if trial.otherwise and proof in (Proof.NO_EFFECT, Proof.REFUSED):
                other = await self._try(trial, trial.otherwise)
                proof = other if other is Proof.PROVEN else proof
            if proof is None:
                continue
            proofs.update(dict.fromkeys(trial.names, proof))
            is_native = self._caller.call.native is not None
            if trial.names == _BOUNDS[:1] and proof is Proof.REFUSED and not is_native:
                # Newer models of some providers accept only the newer name of the bound.
                self._bound = _BOUNDS[1]
                if (proof := await self._try(trial, trial.fields)) is not None:
                    proofs[self._bound] = proof

    async def _try(self, trial: _Trial, calls: Sequence[dict[str, Any]]) -> Proof | None:
        """Makes the calls of a trial; ``None`` if their answers say nothing about it."""
        answers: list[Answer] = []
        for fields in calls:
            try:
                answer = await self._ask(trial, fields)
            except Untranslatable:
                return Proof.REFUSED
            except Refused as refusal:
                if refusal.status in REFUSALS:
                    return Proof.REFUSED
                raise
            answers.append(answer)
        if trial.is_proven(answers):
            return Proof.PROVEN
        return None if any(answer.is_cut_off for answer in answers) else Proof.NO_EFFECT

    async def _ask(self, trial: _Trial, fields: dict[str, Any]) -> Answer:
        """Returns the answer to one question, in the format that the deployment serves."""
        message = {"role": "user", "content": trial.question}
        tokens = trial.tokens
        native = self._caller.call.native
        if native is not None and trial.names != _BOUNDS[:1]:
            tokens = _THINKING
        chat = {"messages": [message], self._bound: tokens, **fields}
        if native is None:
            reply = await self._caller.ask(chat)
        else:
            body = NativeBody(native.format, write_response(chat))
            self._caller.call = replace(self._caller.call, native=body)
            # The dialect sends optional members only if chat has them too.
            reply = await self._caller.ask(fields)
        self._note_usage(reply.usage)
        return read_chat(reply) if native is None else read_response(reply)

    def _note_usage(self, usage: Usage | None) -> None:
        """Counts the tokens of an answer; counts beyond the bound end the trial, and cost nothing.

        The deployment may count what it likes, and its price is its owner's own statement.
        """
        tokens = _UNCOUNTED_TOKENS if usage is None else usage.prompt + usage.completion
        self._spent += max(tokens, 1)
        if usage is not None and tokens <= MOST_TRIAL_TOKENS:
            self._result.usages.append(usage)
