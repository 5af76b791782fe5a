"""The probes: what a validation asks a deployment, by the operation that it serves.

A probe makes two calls, because one good answer may be luck: a chat is asked plain and streamed, an
embedding alone and with another one, a rerank for two documents in both orders, speech for two
texts, a transcription for two sounds. A model that is served by OpenAI's Responses alone is asked
for a response instead of a chat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from django.conf import settings

from catalog.dialects.base import Call, Dialect, Operation
from config import egress
from config.egress.client import EgressClient
from endpoints.validation.calls import Caller
from endpoints.validation.checks import CheckFailed, Outcome, Reason, Result
from endpoints.validation.probes.audio import SpeechProbe, TranscriptionProbe
from endpoints.validation.probes.base import Probe, is_same_model
from endpoints.validation.probes.chat import ChatProbe
from endpoints.validation.probes.embeddings import EmbeddingsProbe
from endpoints.validation.probes.images import ImagesProbe
from endpoints.validation.probes.rerank import RerankProbe
from endpoints.validation.probes.responses import ResponsesProbe
from endpoints.validation.probes.streams import MAX_TOKENS

__all__ = ["MAX_TOKENS", "PROBES", "is_native", "is_same_model", "probe"]

PROBES: Final[Mapping[Operation, type[Probe]]] = {
    Operation.CHAT: ChatProbe,
    Operation.EMBEDDINGS: EmbeddingsProbe,
    Operation.SPEECH: SpeechProbe,
    Operation.TRANSCRIPTION: TranscriptionProbe,
    Operation.RERANK: RerankProbe,
    Operation.IMAGES: ImagesProbe,
}


def is_native(call: Call) -> bool:
    """Returns whether a validation asks for responses: the deployment has no chat."""
    return call.native is not None


async def probe(
    call: Call,
    dialect: Dialect,
    policy: egress.EgressPolicy,
    result: Result,
    *,
    voices: Sequence[str] = (),
) -> None:
    """Makes the calls that validate the operation of ``call``, and adds their checks.

    ``voices`` are those that the model has, if the catalogue knows them. Raises
    :class:`CheckFailed` at a failed check after which later ones are meaningless.
    """
    async with EgressClient(policy) as egress_client:
        kind = ResponsesProbe if is_native(call) else PROBES[call.operation]
        caller = Caller(
            call,
            dialect,
            result,
            egress_client,
            kind.check,
            most_bytes=kind.most_reply_bytes,
            voices=voices,
        )
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
