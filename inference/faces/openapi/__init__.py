"""Documents the inference routes in OpenAPI, with the parser's own types as request shapes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from inference.faces.openapi.answers import EmbeddingsResponse, RerankResponse
from inference.faces.openapi.chat import CHAT_SHAPES, ChatRequest, TextRequest
from inference.faces.openapi.media import (
    MEDIA_SHAPES,
    ImageGenerationsRequest,
    ImagesRequest,
    SpeechRequest,
    TranscriptionRequest,
)
from inference.faces.openapi.messages import (
    MESSAGES_SHAPES,
    MESSAGES_UNIONS,
    CountTokensRequest,
    MessagesRequest,
)
from inference.faces.openapi.operations import OPERATIONS, describe
from inference.faces.openapi.responses import RESPONSES_SHAPES, RESPONSES_UNIONS, ResponsesRequest
from inference.faces.openapi.shapes import WHOLE, make_schemas, refine
from inference.faces.routes import COUNT_TOKENS, EDITS, IMAGES, MESSAGES, RESPONSES, ROUTES
from inference.requests.operations.embeddings import EmbeddingsRequest
from inference.requests.operations.images.edits import EditsForm
from inference.requests.operations.rerank import RerankRequest

_PREFIX: Final = "/api/v1/"
# The shapes of bodies: members that the parser keeps raw have their type, and none allows what is
# always refused.
_REQUESTS: Final[dict[str, type[msgspec.Struct]]] = {
    "/api/v1/chat/completions": ChatRequest,
    "/api/v1/completions": TextRequest,
    "/api/v1/embeddings": refine(EmbeddingsRequest, optional=WHOLE),
    "/api/v1/rerank": refine(RerankRequest, optional=WHOLE),
    "/api/v1/audio/speech": SpeechRequest,
    "/api/v1/audio/transcriptions": TranscriptionRequest,
    IMAGES: ImagesRequest,
    "/api/v1/images/generations": ImageGenerationsRequest,
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
    shapes = make_schemas(
        [
            *_REQUESTS.values(), *CHAT_SHAPES, *MESSAGES_SHAPES, *RESPONSES_SHAPES, *MEDIA_SHAPES,
            EmbeddingsResponse, RerankResponse,
        ]
    ) | _UNIONS  # fmt: skip
    components = result["components"]["schemas"]
    if repeated := components.keys() & shapes.keys():
        raise ValueError(f"Two shapes have the name {', '.join(sorted(repeated))}.")
    for path in ROUTES:
        name = path.removeprefix(_PREFIX)
        result["paths"][f"/{name}"] = {"post": describe(OPERATIONS[name], _REQUESTS[path].__name__)}
    result["components"]["schemas"] = dict(sorted({**components, **shapes}.items()))
    result["paths"] = dict(sorted(result["paths"].items()))
    return result
