"""OpenAI's Responses: requests become chat requests, and their answers are translated back.

Where a provider speaks Responses too, body and answer pass instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from catalog.dialects.shared.raw import Piece
from inference.faces.connection import Connection
from inference.faces.conversion import CONVERTED_COPIES, convert_reply
from inference.requests.parsing import InferenceRequest
from inference.requests.responses.events import ResponseEvents
from inference.requests.responses.reply import render_reply
from inference.requests.responses.request import parse_response
from inference.requests.responses.tools import CallerTool


class ResponsesConnection(Connection):
    """Speaks OpenAI's Responses: rewrites requests to chat, and replies and events back."""

    copies = CONVERTED_COPIES
    # Set once the request is parsed.
    _echo: Mapping[str, Any]
    _tools: Mapping[str, CallerTool]
    _events: ResponseEvents

    def parse(self, body: bytes) -> InferenceRequest:
        request, translated = parse_response(
            body, session_id=self.header(b"x-session-id"), preset=self.preset
        )
        self._echo, self._tools = translated.echo, translated.tools
        self._events = ResponseEvents(translated.echo, translated.tools)
        return request

    def rewrite_reply(self, reply: list[Piece]) -> list[Piece]:
        return convert_reply(reply, lambda body: render_reply(body, self._echo, self._tools))

    async def deliver(self, data: bytes) -> None:
        if events := await self.workload.run(len(data), self._events.feed, data):
            await self.send_events(events)
