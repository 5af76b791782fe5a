"""Azure OpenAI and Foundry models: OpenAI's wire format at a resource's own host.

https://learn.microsoft.com/en-us/azure/ai-foundry/openai/reference describes two routes, both with
the key in ``api-key``: the v1 interface has no version and names the deployment in the body; the
dated interface names the deployment in the path. Neither serves Claude; see :mod:`azure_claude`.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from catalog.dialects import openai
from catalog.dialects.base import Call, Operation
from catalog.dialects.openai.responses import PATH, NativeResponses, build_response
from catalog.dialects.shared import credentials
from config.credentials import Secret
from config.egress import OutboundRequest

operations: Final = openai.operations - {Operation.RERANK}
names_deployments: Final = True
image_parameters = openai.image_parameters
parse_reply = openai.parse_reply
stream_parser = openai.stream_parser


def host(base_url: str | None, secret: Secret) -> str:
    return credentials.parse_azure(secret).host


def build(call: Call) -> OutboundRequest:
    credential = credentials.parse_azure(call.secret)
    if credential.api_version is None:
        path = f"v1/{openai.path(call)}"
    else:
        deployment = quote(call.model, safe="")
        path = f"deployments/{deployment}/{openai.path(call)}?api-version={credential.api_version}"
    return openai.build_request(
        call, f"https://{credential.host}/openai/{path}", {"api-key": credential.api_key.reveal()}
    )


def _build_native(call: Call) -> OutboundRequest:
    credential = credentials.parse_azure(call.secret)
    version = credential.api_version
    # The dated interface, too, names the deployment in the body here.
    path = f"v1/{PATH}" if version is None else f"{PATH}?api-version={version}"
    return build_response(
        call, f"https://{credential.host}/openai/{path}", {"api-key": credential.api_key.reveal()}
    )


native: Final = NativeResponses(host, _build_native, names_deployments)
