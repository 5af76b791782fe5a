"""Reads the body of any inference route as its route would, to explain it without serving it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final

from catalog.dialects.base import Operation
from inference.requests import parsing
from inference.requests.messages.native import parse_message
from inference.requests.operations.presets import find_preset_name
from inference.requests.parsing import InferenceRequest
from inference.requests.problems import field_error
from inference.requests.responses import request as responses
from inference.requests.transcriptions import parse_transcription

# A body and the name of its session.
_Reader = Callable[[bytes, str | None], InferenceRequest]
DEFAULT: Final = "chat/completions"


def _read_messages(body: bytes, session_id: str | None) -> InferenceRequest:
    return parse_message(body, session_id=session_id)


def _read_responses(body: bytes, session_id: str | None) -> InferenceRequest:
    request, _ = responses.parse_response(body, session_id=session_id)
    return request


def _read_transcription(body: bytes, session_id: str | None) -> InferenceRequest:
    return parse_transcription(body, None, max_bytes=len(body), session_id=session_id)


def _reader_of(operation: Operation) -> _Reader:
    return lambda body, session_id: parsing.parse(operation, body, session_id=session_id)


# By the path of a route. Image edits are forms, and are routed like other images.
READERS: Final[Mapping[str, _Reader]] = {
    DEFAULT: _reader_of(Operation.CHAT),
    "messages": _read_messages,
    "responses": _read_responses,
    "completions": _reader_of(Operation.TEXT),
    "embeddings": _reader_of(Operation.EMBEDDINGS),
    "rerank": _reader_of(Operation.RERANK),
    "images": _reader_of(Operation.IMAGES),
    "audio/speech": _reader_of(Operation.SPEECH),
    "audio/transcriptions": _read_transcription,
}
# The routes whose requests may name a preset.
_WITH_PRESETS: Final = frozenset((DEFAULT, "messages", "responses", "completions"))
_MESSAGES: Final = {"messages": [{"role": "user", "content": "Hi"}]}
# The shortest request of each operation; one second of silence for a transcription.
BODIES: Final[Mapping[str, dict[str, Any]]] = {
    "chat/completions": _MESSAGES,
    "messages": {**_MESSAGES, "max_tokens": 1},
    "responses": {"input": "Hi"},
    "completions": {"prompt": "Hi"},
    "embeddings": {"input": "Hi"},
    "rerank": {"query": "Hi", "documents": ["Hi"]},
    "images": {"prompt": "Hi"},
    "audio/speech": {"input": "Hi", "voice": "alloy"},
    "audio/transcriptions": {
        "input_audio": {"data": b64encode(bytes(16_000)).decode(), "format": "wav"}
    },
}
# The path under which requests of a stored operation are explained.
PATHS: Final[Mapping[str, str]] = {**{each: each for each in Operation}, Operation.IMAGES: "images"}


def read_request(operation: str, body: bytes, *, session_id: str | None = None) -> InferenceRequest:
    """Returns the request of a body; ``operation`` is a key of :data:`READERS`.

    Raises :class:`InvalidRequest` with the name of the wrong field, and for a body that names a
    preset: whose it is depends on the key.
    """
    if operation in _WITH_PRESETS and (named := find_preset_name(body)) is not None:
        raise field_error(named.field, "Presets are not explained. Send the fields of the preset.")
    return READERS[operation](body, session_id)
