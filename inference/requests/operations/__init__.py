"""How the requests of each operation are read: one row of a table for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from catalog.dialects.base import Operation
from inference.requests.operations import (
    chat,
    embeddings,
    images,
    rerank,
    speech,
    text,
    transcription,
)
from inference.requests.rows import RequestRow

ROWS: Final[Mapping[Operation, RequestRow[Any]]] = {
    Operation.CHAT: chat.ROW,
    Operation.TEXT: text.ROW,
    Operation.EMBEDDINGS: embeddings.ROW,
    Operation.SPEECH: speech.ROW,
    Operation.TRANSCRIPTION: transcription.ROW,
    Operation.RERANK: rerank.ROW,
    Operation.IMAGES: images.ROW,
}
