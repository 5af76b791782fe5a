"""Claude in Microsoft Foundry: Anthropic's wire format at a host of Foundry.

https://learn.microsoft.com/en-us/azure/ai-foundry/foundry-models/how-to/use-foundry-models-claude
describes it. The credential must name the Foundry host itself, or the target URI of a deployment of
Claude: the names of a resource's other hosts do not show whether it is a Foundry resource.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from catalog.dialects import anthropic
from catalog.dialects.base import Call, Operation, Untranslatable
from catalog.dialects.shared import credentials, messages
from catalog.dialects.shared.constraints import ANTHROPIC
from catalog.dialects.shared.credentials import InvalidCredential
from config.credentials import Secret
from config.egress import OutboundRequest

operations: Final = frozenset((Operation.CHAT,))
names_deployments: Final = True
parse_reply = anthropic.parse_reply
stream_parser = anthropic.stream_parser

_FOUNDRY: Final = ".services.ai."
_encode = msgspec.json.Encoder().encode


def host(base_url: str | None, secret: Secret) -> str:
    found = credentials.parse_azure(secret)
    if _FOUNDRY not in found.host and found.interface != "anthropic":
        raise InvalidCredential(
            "Claude is served only at the host of a Foundry (services.ai), or at a target URI with "
            "/anthropic."
        )
    return found.host


def build(call: Call) -> OutboundRequest:
    key = credentials.parse_azure(call.secret).api_key
    chat = messages.parse_chat(call, ANTHROPIC, has_search=True)
    request = _post(call, anthropic.build_headers(call, key), anthropic.build_body(call, chat))
    request.left_out = anthropic.name_lost(call, chat)
    return request


def build_native(call: Call) -> OutboundRequest:
    """Returns the request of a call that passes the caller's own body."""
    assert call.native is not None
    key = credentials.parse_azure(call.secret).api_key
    headers = anthropic.build_native_headers(call, key)
    return _post(call, headers, anthropic.build_native_body(call, call.native))


def _post(call: Call, headers: dict[str, str], body: dict[str, Any]) -> OutboundRequest:
    try:
        host(None, call.secret)
    except InvalidCredential as exc:
        raise Untranslatable(str(exc)) from None
    return OutboundRequest(
        method="POST",
        url=f"{credentials.parse_azure(call.secret).root}/anthropic/v1/messages",
        headers=headers,
        body=_encode(body),
    )


native: Final = anthropic.NativeMessages(host, build_native, names_deployments=names_deployments)
