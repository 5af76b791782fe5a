"""Documents the inference routes in OpenAPI, with the parser's own types as request shapes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from inference.faces.openapi.answers import EmbeddingsResponse, RerankResponse
from inference.faces.openapi.chat import CHAT_SHAPES, ChatRequest, TextRequest
from inference.faces.openapi.media import MEDIA_SHAPES, SpeechRequest
from inference.faces.openapi.messages import (
    MESSAGES_SHAPES,
    MESSAGES_UNIONS,
    CountTokensRequest,
    MessagesRequest,
)
from inference.faces.openapi.operations import OPERATIONS, describe
from inference.faces.openapi.responses import RESPONSES_SHAPES, RESPONSES_UNIONS, ResponsesRequest
from inference.faces.openapi.shapes import make_schemas
from inference.faces.routes import COUNT_TOKENS, EDITS, MESSAGES, RESPONSES, ROUTES
from inference.requests.operations import ROWS
from inference.requests.operations.images.edits import EditsForm

_PREFIX: Final = "/api/v1/"
# The shapes whose members the parser partly keeps raw, and those of routes with formats of their
# own. The shape of any other route is the parser's.
_REQUESTS: Final[dict[str, type[msgspec.Struct]]] = {
    "/api/v1/chat/completions": ChatRequest,
    "/api/v1/completions": TextRequest,
    "/api/v1/audio/speech": SpeechRequest,
    MESSAGES: MessagesRequest,
    COUNT_TOKENS: CountTokensRequest,
    RESPONSES: ResponsesRequest,
    EDITS: EditsForm,
}
_UNIONS: Final = {**MESSAGES_UNIONS, **RESPONSES_UNIONS}


def document_inference_routes(
    result: dict[str, Any], generator: Any, request: Any, public: bool
) -> dict[str, Any]:
    """Adds the operations of the data plane, which Django does not route, to the document.

    Raises :class:`ValueError` for two shapes of the same name.
    """
    requests = {path: ROWS[route.operation].shape for path, route in ROUTES.items()} | _REQUESTS
    shapes = make_schemas(
        [
            *requests.values(), *CHAT_SHAPES, *MESSAGES_SHAPES, *RESPONSES_SHAPES, *MEDIA_SHAPES,
            EmbeddingsResponse, RerankResponse,
        ]
    ) | _UNIONS  # fmt: skip
    components = result["components"]["schemas"]
    if repeated := components.keys() & shapes.keys():
        raise ValueError(f"Two shapes have the name {', '.join(sorted(repeated))}.")
    for path, shape in requests.items():
        name = path.removeprefix(_PREFIX)
        result["paths"][f"/{name}"] = {"post": describe(OPERATIONS[name], shape.__name__)}
    result["components"]["schemas"] = dict(sorted({**components, **shapes}.items()))
    result["paths"] = dict(sorted(result["paths"].items()))
    return result
