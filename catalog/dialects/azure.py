"""Azure OpenAI and Foundry models: OpenAI's wire format at a resource's own host.

https://learn.microsoft.com/en-us/azure/ai-foundry/openai/reference describes two routes, both with
the key in ``api-key``: the v1 interface has no version and names the deployment in the body; the
dated interface names the deployment in the path. The inference interface of Foundry, ``/models``,
is used where the credential's target URI names it. None of them serves Claude; see
:mod:`azure_claude`.
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
    if credential.interface == "models":
        path = f"models/{openai.path(call)}"
    elif credential.is_dated:
        path = f"openai/deployments/{quote(call.model, safe='')}/{openai.path(call)}"
    else:
        path = f"openai/v1/{openai.path(call)}"
    login = credential.api_key.in_header("api-key")
    return openai.build_request(call, credential.address(path), login)


def _build_native(call: Call) -> OutboundRequest:
    credential = credentials.parse_azure(call.secret)
    # The dated interface, too, names the deployment in the body here.
    path = f"openai/{PATH}" if credential.is_dated else f"openai/v1/{PATH}"
    login = credential.api_key.in_header("api-key")
    return build_response(call, credential.address(path), login)


native: Final = NativeResponses(host, _build_native, names_deployments)
