"""The probe of operations whose answers may be streamed: one call plain, and one streamed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from catalog.dialects.base import InvalidReply, InvalidStream, ProviderFailure
from catalog.dialects.wholes import JSON_TYPES, NOT_STREAMED
from catalog.pricing import Usage
from config import egress
from config.egress.client import OutboundResponse
from endpoints.validation.checks import Reason
from endpoints.validation.probes.base import Probe

# Some providers refuse fewer than 16 output tokens.
MAX_TOKENS: Final = 16
QUESTION: Final = "Reply with the single word: ready"
# The marks around a message have about 30 bytes, and the question has at least five tokens.
_COVERED_TOKENS: Final = 35
_MAX_STREAM_BYTES: Final = 4 * 1_048_576


class StreamedProbe(Probe):
    """A probe that reads a stream to its end."""

    def note_bounds(self, usage: Usage | None, most: int | None) -> None:
        """Records what the vendor adds to a prompt, and thoughts beside the bound of an answer.

        The hold has a token for each byte of a message, so what the message's marks cover is left
        out.
        """
        if usage is None or not self.has_usage:
            return
        if (added := usage.prompt - _COVERED_TOKENS) > 0:
            self.result.evidence.setdefault("added_tokens", added)
        if most is not None and usage.reasoning > most:
            self.result.evidence["thoughts_beside"] = True

    async def read_stream(self, fields: Mapping[str, Any]) -> None:
        """Makes the streamed call and reads it to its end; raises :class:`CheckFailed`."""
        self.caller.check = "stream"
        started = time.monotonic()
        response = await self.caller.send(fields, stream=True)
        parser = self.caller.dialect.stream_parser(self.caller.call.operation)
        usage, model, chunks, is_done, size = None, None, 0, False, 0
        if response.headers.get("Content-Type", "").startswith(JSON_TYPES):
            await self._read_whole(response)
            return
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
            for chunk in parser.finish():
                usage = chunk.usage or usage
                chunks += not chunk.is_done
            if not chunks:
                raise InvalidStream("The stream has no events.")
        except (InvalidStream, ProviderFailure, egress.EgressError) as exc:
            if isinstance(exc, egress.TimedOut):
                raise
            raise self.caller.fail(Reason.INVALID_STREAM, exc) from None
        finally:
            response.close()
        self.result.add_pass("stream", notes=parser.notes)
        self.note(model, usage)

    async def _read_whole(self, response: OutboundResponse) -> None:
        """Reads one JSON object, which requests get as a stream."""
        try:
            reply = self.caller.parse(await response.read(limit=_MAX_STREAM_BYTES))
        except (InvalidReply, ProviderFailure, egress.EgressError) as exc:
            if isinstance(exc, egress.TimedOut):
                raise
            raise self.caller.fail(Reason.INVALID_STREAM, exc) from None
        finally:
            response.close()
        self.result.add_pass("stream", notes={NOT_STREAMED, *reply.notes})
        self.note(reply.model, reply.usage)
