"""Anthropic's Messages: every request becomes a chat request, and its answer is translated back."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from accounts.bearers import key_digests
from catalog.dialects.base import InvalidReply, Operation
from catalog.dialects.shared.raw import Piece
from config.api.errors import GatewayError, UpstreamError
from config.secrets import KeyDigests
from config.server.bodies import Receive, Scope, Send
from inference.faces.connection import Connection
from inference.requests import parsing
from inference.requests.messages.events import PING, Events
from inference.requests.messages.reply import render_error, render_reply
from inference.requests.messages.request import to_chat
from inference.requests.parsing import InferenceRequest

# The longest answer that is converted to Anthropic's format, which takes several times its size.
_MESSAGE_BYTES: Final = 8_388_608


class MessagesConnection(Connection):
    """Speaks Anthropic's Messages: rewrites requests to chat, and replies and events back."""

    keepalive = PING

    def __init__(self, operation: Operation, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(operation, scope, receive, send)
        self._events = Events(self.request_id)

    def digests(self) -> KeyDigests:
        api_key = self.single_header(b"x-api-key", "Send one x-api-key header.")
        return key_digests(self.authorization(), api_key)

    def parse(self, body: bytes) -> InferenceRequest:
        chat = to_chat(body, is_count=self.is_count)
        session_id = self.header(b"x-session-id")
        return parsing.parse(self.operation, chat, session_id=session_id, is_checked=True)

    def rewrite_reply(self, reply: list[Piece]) -> list[Piece]:
        if sum(map(len, reply)) > _MESSAGE_BYTES:
            raise UpstreamError(
                f"The answer has more than {_MESSAGE_BYTES} bytes, the most that this interface "
                "converts. Ask for it at /chat/completions."
            )
        try:
            return [render_reply(b"".join(reply))]
        except InvalidReply as exc:
            raise UpstreamError(f"The upstream provider's answer is not valid: {exc}") from None

    def error_body(self, error: GatewayError) -> dict[str, Any]:
        return render_error(error.body(), self.request_id)

    async def deliver(self, data: bytes) -> None:
        if events := await self.workload.run(len(data), self._events.feed, data):
            await self.send_events(events)

    def common_headers(self) -> list[tuple[bytes, bytes]]:
        # Anthropic's clients read the request id from this header.
        return [(b"request-id", self.request_id.encode()), *super().common_headers()]


class CountTokensConnection(MessagesConnection):
    """Estimates the tokens of a message."""

    is_count: ClassVar = True
