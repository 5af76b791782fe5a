"""The probes: what a validation asks a deployment, by the operations that it serves.

A model may be served by several operations, such as chat and images, and a deployment need not have
all of them: one that it refuses is not proven, and nothing is routed there. One that it answers
wrongly fails the validation, because then the deployment is not what it says it is.

A probe makes two calls, because one good answer may be luck: a chat is asked plain and streamed, an
embedding alone and with another one, a rerank for two documents in both orders, speech for two
texts, a transcription for two sounds. A model that is served by OpenAI's Responses alone is asked
for a response instead of a chat, and a deployment without chat for text completions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from catalog.dialects.base import Call, Dialect, Operation
from catalog.operations import OPERATIONS
from config import egress
from config.egress.client import EgressClient
from endpoints.models import Proof
from endpoints.validation.calls import REFUSALS, CallLimits, DeploymentCaller, Refused
from endpoints.validation.checks import CheckFailed, Outcome, Reason, Result
from endpoints.validation.probes.audio import SpeechProbe, TranscriptionProbe
from endpoints.validation.probes.base import Probe, compare_replies, is_same_model
from endpoints.validation.probes.chat import ChatProbe, ResponsesProbe
from endpoints.validation.probes.streams import MAX_TOKENS
from endpoints.validation.probes.whole import EmbeddingsProbe, ImagesProbe, RerankProbe

PROBES: Final[Mapping[Operation, type[Probe]]] = {
    Operation.CHAT: ChatProbe,
    Operation.EMBEDDINGS: EmbeddingsProbe,
    Operation.SPEECH: SpeechProbe,
    Operation.TRANSCRIPTION: TranscriptionProbe,
    Operation.RERANK: RerankProbe,
    Operation.IMAGES: ImagesProbe,
}
# The statuses that say that a server, or a credential there, has no such operation.
_LACKING: Final = (403, *REFUSALS)


def is_native(call: Call) -> bool:
    """Returns whether a validation asks for responses: the deployment has no chat."""
    return call.native is not None


async def probe(
    calls: Sequence[tuple[Call, Dialect]],
    policy: egress.EgressPolicy,
    result: Result,
    limits: CallLimits,
    *,
    voices: Sequence[str] = (),
    reported_model: str | None = None,
) -> None:
    """Validates each operation that a deployment may serve, and adds its checks and its proof.

    ``calls`` has one call for each of them, with its dialect. ``voices`` are those that the model
    has, if the catalogue knows them. All calls together have ``limits``. Raises
    :class:`CheckFailed` at a failed check after which later ones are meaningless, and if the
    deployment refuses all operations.
    """
    async with EgressClient(policy) as egress_client:
        probes = [_make_probe(*each, egress_client, result, limits, voices) for each in calls]
        proven = []
        refusals = []
        running = probes[0]
        try:
            async with asyncio.timeout(limits.seconds):
                for running in probes:
                    if (refusal := await _prove(running)) is None:
                        proven.append(running)
                    else:
                        refusals.append(refusal)
        except (egress.TimedOut, TimeoutError):
            result.add_reached()
            raise CheckFailed(
                running.caller.check,
                Reason.UPSTREAM_ERROR,
                outcome=Outcome.TIMED_OUT,
                upstream_message="The deployment did not answer in time.",
                kind="timeout",
            ) from None
    if not proven:
        raise refusals[0]
    compare_replies(proven, reported_model)


def _make_probe(
    call: Call,
    dialect: Dialect,
    egress_client: EgressClient,
    result: Result,
    limits: CallLimits,
    voices: Sequence[str],
) -> Probe:
    asked = OPERATIONS[call.operation].proven_by or call.operation
    kind = ResponsesProbe if is_native(call) else PROBES[asked]
    caller = DeploymentCaller(
        call,
        dialect,
        result,
        egress_client,
        kind.check,
        limits=limits,
        most_bytes=kind.most_reply_bytes,
        voices=voices,
    )
    return kind(caller)


async def _prove(probe: Probe) -> Refused | None:
    """Makes the calls of one operation; returns the refusal if the deployment does not serve it.

    Raises :class:`CheckFailed` for every other failure.
    """
    operation, result = probe.caller.call.operation, probe.result
    try:
        await probe.make_calls()
    except Refused as refusal:
        if probe.caller.has_answered or refusal.status not in _LACKING:
            raise
        result.operations[operation] = Proof.REFUSED
        result.refusals[operation] = f"{refusal.status} {refusal.message}"[:255].strip()
        return refusal
    result.operations[operation] = Proof.PROVEN
    return None
