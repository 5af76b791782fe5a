"""Anthropic's Messages: every request becomes a chat request, and its answer is translated back."""

from __future__ import annotations

from typing import Any, ClassVar

from catalog.dialects.base import Operation
from catalog.dialects.shared.raw import Piece
from config.api.errors import GatewayError
from config.server.bodies import Receive, Scope, Send
from inference.faces.connection import Connection
from inference.faces.conversion import CONVERTED_COPIES, convert_reply
from inference.requests.messages.events import PING, MessageEvents
from inference.requests.messages.native import parse_message
from inference.requests.messages.reply import render_error, render_reply
from inference.requests.parsing import InferenceRequest


class MessagesConnection(Connection):
    """Speaks Anthropic's Messages: rewrites requests to chat, and replies and events back."""

    comments = Connection.comments | {PING}
    copies = CONVERTED_COPIES

    def __init__(self, operation: Operation, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(operation, scope, receive, send)
        self._events = MessageEvents(self.request_id)

    def parse(self, body: bytes) -> InferenceRequest:
        return parse_message(
            body,
            is_count=self.is_count,
            session_id=self.header(b"x-session-id") or self.header(b"x-claude-code-session-id"),
            headers=self.native_headers(),
            preset=self.preset,
        )

    def native_headers(self) -> list[tuple[str, str]]:
        """Returns the headers of Anthropic's format, each name once."""
        names = {name for name, _ in self._raw_headers if name.startswith(b"anthropic-")}
        return [
            (name.decode("latin-1"), b", ".join(self._headers(name)).decode("latin-1"))
            for name in sorted(names)
        ]

    def rewrite_reply(self, reply: list[Piece]) -> list[Piece]:
        return convert_reply(reply, render_reply)

    def error_body(self, error: GatewayError) -> dict[str, Any]:
        return render_error(error.body(), self.request_id)

    def make_comment(self) -> bytes:
        """Returns an event, or a comment while there is no message that it could belong to."""
        return PING if self._has_events else super().make_comment()

    async def deliver(self, data: bytes) -> None:
        if events := await self.workload.run(len(data), self._events.feed, data):
            await self.send_events(events)

    def common_headers(self) -> list[tuple[bytes, bytes]]:
        # Anthropic's clients read the request id from this header.
        return [(b"request-id", self.request_id.encode()), *super().common_headers()]


class CountTokensConnection(MessagesConnection):
    """Estimates the tokens of a message."""

    is_count: ClassVar = True
