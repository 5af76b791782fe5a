"""The inference routes: the operation of each one, and the face that speaks its format."""

from __future__ import annotations

from typing import Final, NamedTuple

from catalog.dialects.base import Operation
from inference.faces.audio import SpeechConnection, TranscriptionConnection
from inference.faces.connection import Connection
from inference.faces.images import EditsConnection, ImagesConnection, RouterImagesConnection
from inference.faces.translations import (
    CountTokensConnection,
    MessagesConnection,
    ResponsesConnection,
)


class FaceRoute(NamedTuple):
    """The operation of an inference route, and the face that reads and answers its requests."""

    operation: Operation
    face: type[Connection] = Connection


IMAGES: Final = "/api/v1/images"
EDITS: Final = "/api/v1/images/edits"
MESSAGES: Final = "/api/v1/messages"
COUNT_TOKENS: Final = "/api/v1/messages/count_tokens"
RESPONSES: Final = "/api/v1/responses"
ROUTES: Final = {
    "/api/v1/chat/completions": FaceRoute(Operation.CHAT),
    "/api/v1/completions": FaceRoute(Operation.TEXT),
    "/api/v1/embeddings": FaceRoute(Operation.EMBEDDINGS),
    "/api/v1/audio/speech": FaceRoute(Operation.SPEECH, SpeechConnection),
    "/api/v1/audio/transcriptions": FaceRoute(Operation.TRANSCRIPTION, TranscriptionConnection),
    "/api/v1/rerank": FaceRoute(Operation.RERANK),
    IMAGES: FaceRoute(Operation.IMAGES, RouterImagesConnection),
    "/api/v1/images/generations": FaceRoute(Operation.IMAGES, ImagesConnection),
    EDITS: FaceRoute(Operation.IMAGES, EditsConnection),
    # Messages become chat requests.
    MESSAGES: FaceRoute(Operation.CHAT, MessagesConnection),
    COUNT_TOKENS: FaceRoute(Operation.CHAT, CountTokensConnection),
    # So do responses.
    RESPONSES: FaceRoute(Operation.CHAT, ResponsesConnection),
}
