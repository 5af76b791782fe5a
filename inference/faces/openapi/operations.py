"""The operations of the data plane: their names, texts and headers, and the shapes of answers."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from inference.faces.openapi import media, messages, responses
from inference.faces.openapi.shapes import reference
from inference.requests.schemas import SESSION_LENGTH

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
    "408": "Your `X-Request-Timeout` is over, or the body or the content filters took too long.",
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
_FINAL: Final = ("402", "403", "408", "409", "429")
_MESSAGES_TAG: Final = "anthropic-messages"


def _parameter(name: str, description: str, **schema: Any) -> dict[str, Any]:
    """Returns a header that callers may send, a text unless its schema says otherwise."""
    shape = {"type": "string", **schema}
    return {"in": "header", "name": name, "schema": shape, "description": description}


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    """Returns a header of answers, a text unless its schema says otherwise."""
    return {name: {"description": description, "schema": {"type": "string", **schema}}}


_FLAG: Final = ["true", "false"]
# What a caller may send with any inference request.
_PARAMETERS: Final = (
    _parameter(
        "X-OpenRouter-Metadata",
        "`enabled` adds `openrouter_metadata` to the answer: how it was routed.",
        enum=["enabled", "disabled"],
    ),
    _parameter(
        "Idempotency-Key",
        "A request that is sent again with its key is neither run nor charged again. It gets the "
        "answer of the first one if the workspace keeps answers, else 409.",
        minLength=1, maxLength=255, pattern="^[ -~]+$",
    ),
    _parameter(
        "X-Request-Timeout",
        "The seconds that you wait in all, above 0. Then the call ends with 408, or an error "
        "event, and is settled as if you had left.",
        pattern="^[0-9]{1,9}([.][0-9]{1,9})?$",
    ),
    _parameter(
        "X-OpenRouter-Cache",
        "Whether the response cache is used; without it, the workspace decides.", enum=_FLAG,
    ),
    _parameter(
        "X-OpenRouter-Cache-TTL",
        "The lifetime of a new entry of the response cache, in seconds.",
        type="integer", minimum=1, maximum=86400, default=300,
    ),
    _parameter(
        "X-OpenRouter-Cache-Clear",
        "`true` replaces the entry of the response cache by a new answer.", enum=_FLAG,
    ),
    _parameter(
        "X-Session-Id",
        "The conversation of the request; `session_id` in the body precedes it.",
        maxLength=SESSION_LENGTH,
    ),
    _parameter(
        "HTTP-Referer",
        "The address of your application, which is stored with the generation.",
    ),
    _parameter(
        "X-OpenRouter-Title",
        "The name of your application, which is stored with the generation. `X-Title` is read "
        "where it is absent.",
    ),
)  # fmt: skip
# What a caller of Messages may send too. Endpoints of Anthropic's format get it.
_BETAS: Final = _parameter("anthropic-beta", "Names of Anthropic's betas, separated by commas.")

_REQUEST_ID: Final = _header("X-Request-Id", "Names the request in the logs of the service.")
_GENERATION_ID: Final = _header(
    "X-Generation-Id", "Our identifier of this generation, for `/generation`."
)
_RATE_LIMITS: Final = {
    f"X-RateLimit-{figure}-{unit.capitalize()}": {
        "description": text.format(unit=unit),
        "schema": {"type": "string" if figure == "Reset" else "integer"},
    }
    for unit in ("requests", "tokens")
    for figure, text in (
        ("Limit", "The limit of {unit} that has the least left."),
        ("Remaining", "How many {unit} are left of it."),
        ("Reset", "The time until it is whole again, for instance `6m0s`."),
    )
}
# What the answer of a generation has besides.
_TOLD: Final = {
    **_GENERATION_ID,
    **_header("Idempotency-Replayed", "`true` for the kept answer of an earlier request."),
    **_header("X-OpenRouter-Cache-Status", "`HIT` or `MISS`, if the response cache is used."),
    **_header("X-OpenRouter-Cache-Age", "The age of the entry in seconds, for a `HIT`."),
    **_header("X-OpenRouter-Cache-TTL", "The seconds for which the entry is kept."),
    **_RATE_LIMITS,
}
_LEFT_OUT: Final = _header(
    "X-Left-Out",
    "The tools, fields and items of the request that were not sent, separated by commas.",
)
_RETRY_AFTER: Final = _header(
    "Retry-After", "The seconds after which a new attempt makes sense.", type="integer"
)
_SHOULD_RETRY: Final = _header(
    "X-Should-Retry", "`false` if no repetition can succeed.", enum=["false"]
)


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
    told = _TOLD if operation.has_generation else {}
    offered = _LEFT_OUT if operation.has_offers else {}
    return {
        "operationId": operation.id,
        "summary": operation.summary,
        "description": f"Needs an inference key. {operation.description}".rstrip(),
        "tags": [operation.tag],
        "security": [{"apiKey": []}],
        "parameters": [*_PARAMETERS, *([_BETAS] if operation.tag == _MESSAGES_TAG else [])],
        "requestBody": {"required": True, "content": bodies},
        "responses": {
            "200": {
                "description": "The answer, or its stream." if operation.event else "The answer.",
                "headers": {**_REQUEST_ID, **told, **offered},
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
    headers = {**_REQUEST_ID, **(_GENERATION_ID if operation.has_generation else {})}
    if status in _RETRYABLE:
        headers |= _RETRY_AFTER
    if status in _FINAL:
        headers |= _SHOULD_RETRY
    if status == "429" and operation.has_generation:
        headers |= _RATE_LIMITS
    return {
        "description": _ERRORS[status],
        "headers": headers,
        "content": {"application/json": {"schema": reference(shape)}},
    }
