"""The operations of the data plane: their names, their texts and the shapes of their answers."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from inference.faces.openapi import media, messages, responses
from inference.faces.openapi.headers import (
    CACHE,
    GENERATION_ID,
    LEFT_OUT,
    MESSAGES_PARAMETERS,
    PARAMETERS,
    RATE_LIMITS,
    REPLAYED,
    REQUEST_ID,
    RETRY_AFTER,
    SHOULD_RETRY,
)
from inference.faces.openapi.shapes import reference

_STREAM: Final = (
    "With `stream`, server-sent events: `data: {chunk}` lines, a last chunk with `usage` and its "
    "`cost`, then `data: [DONE]`; lines that begin with `:` are comments. A failure after the "
    "first event is one chunk with `error` and `finish_reason: error`, which ends the stream."
)
_ERRORS: Final = {
    "400": "The request is malformed: a type, a format, a size or an unknown field.",
    "401": "The key is missing, wrong, revoked or expired.",
    "402": "The credits or a budget do not cover the worst case.",
    "403": "The key may not do this, the organization is suspended, a budget is spent, or a "
    "content filter refused the request.",
    "404": "There is no such model, or no endpoint that may serve it.",
    "409": "A request with this `Idempotency-Key` runs, or its answer is not kept.",
    "413": "The body is too large.",
    "415": "The body has another `Content-Encoding` than `gzip` or `zstd`.",
    "422": "The `Idempotency-Key` was used with a different request.",
    "429": "Too many requests, here or at the provider.",
    "500": "The gateway failed.",
    "502": "The provider failed.",
    "503": "The gateway or the provider is unavailable.",
    "504": "The provider was too slow.",
    "529": "The provider is overloaded.",
}
_QUESTION: Final = [{"role": "user", "content": "What is a causeway?"}]
# What a page shows as an example of a JSON body.
EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "createChatCompletion": {"model": "causeway/echo", "messages": _QUESTION},
    "createCompletion": {"model": "causeway/echo", "prompt": "A causeway is"},
    "createEmbeddings": {"model": "causeway/echo", "input": ["a causeway", "a bridge"]},
    "createAudioSpeech": {
        "model": "openai/gpt-4o-mini-tts", "input": "Hello", "voice": "alloy",
        "response_format": "mp3",
    },
    "createAudioTranscription": {
        "model": "openai/whisper-1", "input_audio": {"data": "UklGRg==", "format": "wav"},
    },
    "createRerank": {
        "model": "cohere/rerank-v3.5", "query": "a road over water",
        "documents": ["a causeway", "a tunnel"],
    },
    "createImages": {"model": "openai/gpt-image-1", "prompt": "A causeway at low tide"},
    "generateImages": {"model": "openai/gpt-image-1", "prompt": "A causeway at low tide"},
    "createMessages": {"model": "causeway/echo", "max_tokens": 1024, "messages": _QUESTION},
    "countMessagesTokens": {"model": "causeway/echo", "messages": _QUESTION},
    "createResponses": {"model": "causeway/echo", "input": "What is a causeway?", "store": False},
}  # fmt: skip
_RETRYABLE: Final = frozenset(("429", "503", "529"))
_REPEATED: Final = frozenset(("409", "422"))
# Errors that no repetition cures may have these.
_FINAL: Final = ("402", "403", "409", "429")
_MESSAGES_TAG: Final = "anthropic-messages"


class OperationDocument(NamedTuple):
    """How the document describes one operation.

    ``answer`` and ``event`` are the shapes of a whole answer and of an event of a stream: ``None``
    for bytes, and for an answer that is never streamed. ``has_offers`` says that a request may
    offer tools some of which are left out; ``form`` is the shape of a body that is a form.
    """

    id: str
    tag: str
    summary: str
    answer: str | None
    event: str | None = None
    description: str = ""
    has_offers: bool = False
    has_generation: bool = True
    form: str | None = None
    is_json: bool = True


_BEST: Final = "the best endpoint that the caller may use"
OPERATIONS: Final = {
    "chat/completions": OperationDocument(
        "createChatCompletion", "chat-completions", f"Sends a chat completion to {_BEST}.",
        "ChatResult", "ChatStreamChunk", _STREAM, has_offers=True,
    ),
    "completions": OperationDocument(
        "createCompletion", "text-completions", f"Sends a text completion to {_BEST}.",
        "CompletionResponse", "CompletionResponse", _STREAM, has_offers=True,
    ),
    "embeddings": OperationDocument(
        "createEmbeddings", "embeddings", f"Sends texts to {_BEST}, for their embeddings.",
        "EmbeddingsResponse",
    ),
    "audio/speech": OperationDocument(
        "createAudioSpeech", "tts", f"Sends a text to {_BEST}, and speaks it.",
        None, None, media.SPEECH_DESCRIPTION,
    ),
    "audio/transcriptions": OperationDocument(
        "createAudioTranscription", "stt", f"Sends audio to {_BEST}, for its text.",
        "TranscriptionResponse", None, media.TRANSCRIPTION_DESCRIPTION, form="TranscriptionForm",
    ),
    "rerank": OperationDocument(
        "createRerank", "rerank",
        "Sorts documents by their relevance, at the best endpoint that the caller may use.",
        "RerankResponse",
    ),
    "images": OperationDocument(
        "createImages", "images", "Makes images at the best endpoint that the caller may use.",
        "ImagesResponse", "ImagesStreamEvent", media.IMAGES_DESCRIPTION,
    ),
    "images/generations": OperationDocument(
        "generateImages", "images", "Makes images, in OpenAI's interface.",
        "ImagesResponse", "ImagesStreamEvent", media.IMAGES_DESCRIPTION,
    ),
    "images/edits": OperationDocument(
        "editImages", "images", "Makes images from the images of a form, in OpenAI's interface.",
        "ImagesResponse", "ImagesStreamEvent", media.IMAGES_DESCRIPTION, form="EditsForm",
        is_json=False,
    ),
    "messages": OperationDocument(
        "createMessages", _MESSAGES_TAG, f"Sends an Anthropic message to {_BEST}.",
        "MessagesResult", "MessagesStreamEvent", messages.DESCRIPTION, has_offers=True,
    ),
    "messages/count_tokens": OperationDocument(
        "countMessagesTokens", _MESSAGES_TAG,
        "Estimates the number of tokens in the prompt of a message.",
        "MessagesCount", None, messages.DESCRIPTION, has_generation=False,
    ),
    "responses": OperationDocument(
        "createResponses", "responses", f"Sends a conversation of items to {_BEST}.",
        "ResponsesResult", "ResponsesStreamEvent", responses.DESCRIPTION, has_offers=True,
    ),
}  # fmt: skip


def describe(operation: OperationDocument, request: str) -> dict[str, Any]:
    """Returns an operation of the document; ``request`` names the shape of its JSON body."""
    content: dict[str, Any] = {}
    if operation.answer is None:
        content.update(media.AUDIO_CONTENT)
    else:
        content["application/json"] = {"schema": reference(operation.answer)}
    if operation.event is not None:
        content["text/event-stream"] = {"schema": reference(operation.event)}
    bodies: dict[str, Any] = {}
    if operation.is_json:
        example = EXAMPLES[operation.id]
        bodies["application/json"] = {"schema": reference(request), "example": example}
    if operation.form is not None:
        bodies["multipart/form-data"] = {"schema": reference(operation.form)}
    # An operation that sends nothing upstream creates no generation and counts at no limit.
    told = {**GENERATION_ID, **REPLAYED, **CACHE, **RATE_LIMITS} if operation.has_generation else {}
    offered = LEFT_OUT if operation.has_offers else {}
    return {
        "operationId": operation.id,
        "summary": operation.summary,
        "description": f"Needs an inference key. {operation.description}".rstrip(),
        "tags": [operation.tag],
        "security": [{"apiKey": []}],
        "parameters": [
            *PARAMETERS,
            *(MESSAGES_PARAMETERS if operation.tag == _MESSAGES_TAG else ()),
        ],
        "requestBody": {"required": True, "content": bodies},
        "responses": {
            "200": {
                "description": "The answer, or its stream." if operation.event else "The answer.",
                "headers": {**REQUEST_ID, **told, **offered},
                "content": content,
            },
            **{
                status: _describe_error(operation, status)
                for status in _ERRORS
                if operation.has_generation or status not in _REPEATED
            },
        },
    }


def _describe_error(operation: OperationDocument, status: str) -> dict[str, Any]:
    shape = "MessagesError" if operation.tag == _MESSAGES_TAG else "Error"
    headers = {**REQUEST_ID, **(GENERATION_ID if operation.has_generation else {})}
    if status in _RETRYABLE:
        headers |= RETRY_AFTER
    if status in _FINAL:
        headers |= SHOULD_RETRY
    if status == "429" and operation.has_generation:
        headers |= RATE_LIMITS
    return {
        "description": _ERRORS[status],
        "headers": headers,
        "content": {"application/json": {"schema": reference(shape)}},
    }
