"""Claude on Google Vertex AI: Anthropic's wire format, with the model in the URL.

https://platform.claude.com/docs/en/build-with-claude/claude-models-on-google-cloud/google-managed
describes it. It accepts media only inside the request, and ``cache_control`` only on parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import msgspec

from catalog.dialects import anthropic, vertex
from catalog.dialects.base import Call, post_json
from catalog.dialects.shared import messages
from catalog.dialects.shared.constraints import ANTHROPIC
from config.clocks.clock import clock as database_clock
from config.egress import OutboundRequest

operations: Final = vertex.operations
names_deployments: Final = True
host = vertex.host
parse_reply = anthropic.parse_reply
stream_parser = anthropic.stream_parser

_VERSION: Final = "vertex-2023-10-16"
_encode = msgspec.json.Encoder().encode


def build(call: Call, *, clock: Callable[[], float] = database_clock.time) -> OutboundRequest:
    chat = messages.mark_last(messages.parse_chat(call, ANTHROPIC, has_search=True))
    for part in chat.media:
        if part.url is not None:
            raise messages.unsupported_part(part, "Vertex")
    request = _post(call, anthropic.build_body(call, chat), clock)
    request.left_out = anthropic.name_lost(call, chat)
    return request


def build_native(
    call: Call, *, clock: Callable[[], float] = database_clock.time
) -> OutboundRequest:
    """Returns the request of a call that passes the caller's own body.

    Vertex knows no field and no header of a beta, and takes the part that it knows for an error.
    """
    assert call.native is not None
    body = anthropic.build_native_body(call, call.native)
    for name in call.native.beside.get("vertex", ()):
        body.pop(name, None)
    body = anthropic.drop_scopes(anthropic.drop_attribution(body))
    return _post(call, anthropic.mark_last_block(body), clock)


def _post(call: Call, body: dict[str, Any], clock: Callable[[], float]) -> OutboundRequest:
    # An @ separates a model's name from its version; the path keeps it unescaped.
    model = quote(body.pop("model"), safe="@")
    method = "streamRawPredict" if call.stream else "rawPredict"
    url = f"{vertex.project_url(call.secret)}/publishers/anthropic/models/{model}:{method}"
    login = {"Authorization": f"Bearer {vertex.bearer_token(call.secret, clock()).reveal()}"}
    return post_json(call, url, login, _encode({"anthropic_version": _VERSION, **body}))


native: Final = anthropic.NativeMessages(host, build_native, names_deployments=names_deployments)
