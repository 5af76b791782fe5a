"""The probe of chat completions."""

from __future__ import annotations

import time
from typing import Any, Final

from catalog.dialects.base import InvalidStream, ProviderFailure
from config import egress
from endpoints.validation.calls import Caller, Refused
from endpoints.validation.checks import Reason
from endpoints.validation.probes.base import Probe

# Some providers refuse fewer than 16 output tokens.
MAX_TOKENS: Final = 16
_MAX_STREAM_BYTES: Final = 4 * 1_048_576
_MESSAGES: Final = [{"role": "user", "content": "Reply with the single word: ready"}]


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
            if any(chunk.is_unmarked for chunk in parser.finish()):
                # Requests are served nevertheless.
                raise InvalidStream("The stream ended without its end mark.")
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
