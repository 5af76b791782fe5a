"""The probe of deployments that serve a model by OpenAI's Responses alone."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from catalog.capabilities import NativeFormat
from catalog.dialects.base import NativeBody
from endpoints.validation.calls import DeploymentCaller
from endpoints.validation.probes.streams import MAX_TOKENS, QUESTION, StreamedProbe

_FIELDS: Final[dict[str, Any]] = {
    "input": [{"role": "user", "content": QUESTION}],
    "max_output_tokens": MAX_TOKENS,
}


class ResponsesProbe(StreamedProbe):
    """Asks for a word, first plain and then streamed, in the format that requests have.

    Such a model thinks before it writes, so an answer that ends at its bound passes.
    """

    check = "response"

    def __init__(self, caller: DeploymentCaller) -> None:
        super().__init__(caller)
        caller.call = replace(caller.call, native=NativeBody(NativeFormat.RESPONSES, dict(_FIELDS)))

    async def make_calls(self) -> None:
        reply = await self.caller.ask({})
        self.result.add_pass("response", notes=reply.notes)
        self.note_reply(reply)
        self.note_bounds(reply.usage, MAX_TOKENS)
        await self.read_stream({})
