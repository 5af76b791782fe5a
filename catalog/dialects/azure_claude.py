"""Claude in Microsoft Foundry: Anthropic's wire format, at a host that has nothing but Foundry's.

Only a credential of that host says where: of a resource's other hosts it is not known whether they
belong to a Foundry.
"""

from __future__ import annotations

from typing import Final

import msgspec

from catalog.dialects import anthropic
from catalog.dialects.base import Call, Operation, Untranslatable
from catalog.dialects.shared import credentials, messages
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
    found = credentials.azure(secret).host
    if _FOUNDRY not in found:
        raise InvalidCredential("Claude is served at a Foundry's own host alone.")
    return found


def build(call: Call) -> OutboundRequest:
    try:
        place = host(None, call.secret)
    except InvalidCredential as exc:
        raise Untranslatable(str(exc)) from None
    return OutboundRequest(
        method="POST",
        url=f"https://{place}/anthropic/v1/messages",
        headers=anthropic.headers(call, credentials.azure(call.secret).api_key),
        body=_encode(anthropic.message(call, messages.read(call))),
    )
