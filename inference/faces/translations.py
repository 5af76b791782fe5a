"""The interfaces whose requests become chat requests, and whose answers are translated back.

These are Anthropic's Messages and OpenAI's Responses. Where a provider speaks the format too, body
and answer pass instead.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from catalog.dialects.base import InvalidReply, Operation
from catalog.dialects.shared.raw import Piece
from config.api.errors import GatewayError, UpstreamError
from config.server.bodies import Receive, Scope, Send
from config.server.load.large_work import LARGE_BYTES
from inference.exchange.failures import UnconvertedAnswer
from inference.exchange.tap import KnownAnswer
from inference.faces.connection import Connection
from inference.requests.messages import reply as messages
from inference.requests.messages.events import PING, MessageEvents
from inference.requests.messages.native import parse_message
from inference.requests.messages.reply import find_stops
from inference.requests.operations.presets import leave_out_unshown
from inference.requests.parsing import InferenceRequest
from inference.requests.responses import reply as responses
from inference.requests.responses.events import ResponseEvents
from inference.requests.responses.request import SHOWN, parse_response
from inference.requests.responses.tools import CallerTool

# The longest answer that is converted, which takes several times its size.
_CONVERTED_BYTES: Final = 8_388_608


class TranslatedConnection(Connection):
    """Translates whole answers and streams of chat to the format of its interface."""

    # The given one, its texts and the new one; texts outside of ASCII may take more.
    copies = 3
    # The modalities that its answers can have.
    shown: ClassVar[frozenset[str]]
    _events: MessageEvents | ResponseEvents
    # How many of the bytes that a stream keeps are accounted for; the first ones are free.
    _counted = LARGE_BYTES

    async def take_preset(self, body: bytes) -> bytes:
        rest = await super().take_preset(body)
        self.preset = self.preset and leave_out_unshown(self.preset, self.shown)
        return rest

    def render(self, body: bytes) -> bytes:
        """Returns a whole reply in the format of the interface."""
        raise NotImplementedError

    def rewrite_reply(self, reply: list[Piece]) -> list[Piece]:
        """Returns the reply in the format of the interface; raises :class:`UpstreamError`."""
        if sum(map(len, reply)) > _CONVERTED_BYTES:
            raise UnconvertedAnswer(
                f"The answer has more than {_CONVERTED_BYTES} bytes, the most that this interface "
                "converts. It is charged. Ask for it at /chat/completions."
            )
        try:
            return [self.render(b"".join(reply))]
        except InvalidReply as exc:
            raise UpstreamError(f"The upstream provider's answer is not valid: {exc}") from None

    async def deliver(self, data: bytes) -> None:
        if events := await self.workload.run(len(data), self._events.feed, data):
            await self.send_events(events)
        if self._events.held > self._counted:
            self._count_held()

    async def send_known(self, known: KnownAnswer) -> None:
        if not known.is_native:
            # Its events keep at most its size. That counts before the first of them is sent.
            self.workload.keep(len(known.body))
            self._counted = sys.maxsize
        await super().send_known(known)

    def _count_held(self) -> None:
        """Counts what is kept of a stream, in steps; raises as :meth:`Occupancy.keep` does."""
        more = max(self._events.held - self._counted, LARGE_BYTES)
        # A refusal ends the stream. The event of its error needs no further room.
        self._counted += more
        self.workload.keep(more)


class MessagesConnection(TranslatedConnection):
    """Speaks Anthropic's Messages."""

    comments = Connection.comments | {PING}
    shown = frozenset(("text",))
    _events: MessageEvents

    def __init__(self, operation: Operation, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(operation, scope, receive, send)
        self._events = MessageEvents(self.request_id)

    def parse(self, body: bytes) -> InferenceRequest:
        request = parse_message(
            body,
            is_count=self.is_count,
            session_id=self.header(b"x-session-id") or self.header(b"x-claude-code-session-id"),
            headers=self.native_headers(),
            preset=self.preset,
        )
        self._events.stops = find_stops(request.fields)
        return request

    def native_headers(self) -> list[tuple[str, str]]:
        """Returns the headers of Anthropic's format, each name once."""
        names = {name for name, _ in self._raw_headers if name.startswith(b"anthropic-")}
        return [
            (name.decode("latin-1"), b", ".join(self._headers(name)).decode("latin-1"))
            for name in sorted(names)
        ]

    def render(self, body: bytes) -> bytes:
        return messages.render_reply(body, self._events.stops)

    def error_body(self, error: GatewayError) -> dict[str, Any]:
        return messages.render_error(error.body(), self.request_id)

    def make_comment(self) -> bytes:
        """Returns an event, or a comment while there is no message that it could belong to."""
        return PING if self._has_events else super().make_comment()

    def common_headers(self) -> list[tuple[bytes, bytes]]:
        # Anthropic's clients read the request id from this header.
        return [(b"request-id", self.request_id.encode()), *super().common_headers()]


class CountTokensConnection(MessagesConnection):
    """Estimates the tokens of a message."""

    is_count: ClassVar = True


class ResponsesConnection(TranslatedConnection):
    """Speaks OpenAI's Responses."""

    shown = SHOWN
    # Set once the request is parsed.
    _echo: Mapping[str, Any]
    _tools: Mapping[str, CallerTool]
    # Events whose delivery was broken off. The error that follows is numbered after them.
    _unsent = b""

    def parse(self, body: bytes) -> InferenceRequest:
        request, translated = parse_response(
            body, session_id=self.header(b"x-session-id"), preset=self.preset
        )
        self._echo, self._tools = translated.echo, translated.tools
        self._events = ResponseEvents(translated.echo, translated.tools)
        return request

    def render(self, body: bytes) -> bytes:
        return responses.render_reply(body, self._echo, self._tools)

    async def deliver(self, data: bytes) -> None:
        self._unsent += await self.workload.run(len(data), self._events.feed, data)
        if self._unsent:
            await self.send_events(self._unsent)
            self._unsent = b""
        if self._events.held > self._counted:
            self._count_held()
