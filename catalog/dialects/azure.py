"""Azure OpenAI and Foundry models: OpenAI's wire format at a resource's own host.

Microsoft documents two routes, both with the key in ``api-key``: the v1 interface, which needs no
version and names the deployment in the body, and the dated one, which names it in the path. Neither
serves Claude, which is :mod:`azure_claude`'s.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from catalog.dialects import openai
from catalog.dialects.base import Call, Operation
from catalog.dialects.shared import credentials
from config.credentials import Secret
from config.egress import OutboundRequest

operations: Final = frozenset(Operation)
names_deployments: Final = True
parse_reply = openai.parse_reply
stream_parser = openai.stream_parser


def host(base_url: str | None, secret: Secret) -> str:
    return credentials.azure(secret).host


def build(call: Call) -> OutboundRequest:
    credential = credentials.azure(call.secret)
    if credential.api_version is None:
        path = f"v1/{call.operation.value}"
    else:
        deployment = quote(call.model, safe="")
        path = (
            f"deployments/{deployment}/{call.operation.value}?api-version={credential.api_version}"
        )
    return openai.request(
        call, f"https://{credential.host}/openai/{path}", {"api-key": credential.api_key.reveal()}
    )
