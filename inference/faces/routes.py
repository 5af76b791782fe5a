"""The inference routes: the operation of each one, and the face that speaks its format."""

from __future__ import annotations

from typing import Final, NamedTuple

from catalog.dialects.base import Operation
from inference.faces.audio import SpeechConnection, TranscriptionConnection
from inference.faces.connection import Connection
from inference.faces.images import EditsConnection, ImagesConnection, RouterImagesConnection
from inference.faces.messages import CountTokensConnection, MessagesConnection
from inference.faces.responses import ResponsesConnection


class Route(NamedTuple):
    """The operation of an inference route, and the face that reads and answers its requests."""

    operation: Operation
    face: type[Connection] = Connection


IMAGES: Final = "/api/v1/images"
EDITS: Final = "/api/v1/images/edits"
MESSAGES: Final = "/api/v1/messages"
COUNT_TOKENS: Final = "/api/v1/messages/count_tokens"
RESPONSES: Final = "/api/v1/responses"
ROUTES: Final = {
    "/api/v1/chat/completions": Route(Operation.CHAT),
    "/api/v1/completions": Route(Operation.TEXT),
    "/api/v1/embeddings": Route(Operation.EMBEDDINGS),
    "/api/v1/audio/speech": Route(Operation.SPEECH, SpeechConnection),
    "/api/v1/audio/transcriptions": Route(Operation.TRANSCRIPTION, TranscriptionConnection),
    "/api/v1/rerank": Route(Operation.RERANK),
    IMAGES: Route(Operation.IMAGES, RouterImagesConnection),
    "/api/v1/images/generations": Route(Operation.IMAGES, ImagesConnection),
    EDITS: Route(Operation.IMAGES, EditsConnection),
    # Messages become chat requests.
    MESSAGES: Route(Operation.CHAT, MessagesConnection),
    COUNT_TOKENS: Route(Operation.CHAT, CountTokensConnection),
    # So do responses.
    RESPONSES: Route(Operation.CHAT, ResponsesConnection),
}
