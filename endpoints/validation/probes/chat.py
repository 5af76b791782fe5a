"""The probe of chat completions."""

from __future__ import annotations

from typing import Any, Final

from endpoints.validation.calls import Caller, Refused
from endpoints.validation.probes.streams import MAX_TOKENS, QUESTION, StreamedProbe

_MESSAGES: Final = [{"role": "user", "content": QUESTION}]


class ChatProbe(StreamedProbe):
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
        self.result.add_pass("completion", notes=reply.notes)
        self.note_reply(reply)
        await self.read_stream(self._fields())

    def _fields(self) -> dict[str, Any]:
        return {"messages": _MESSAGES, self._limit: MAX_TOKENS}
