"""Documents the inference routes in OpenAPI, with the parser's own types as request shapes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from inference.faces.response_shapes import DESCRIPTION, LEFT_OUT
from inference.faces.response_shapes import SHAPES as RESPONSES_SHAPES
from inference.faces.routes import COUNT_TOKENS, EDITS, MESSAGES, RESPONSES, ROUTES
from inference.requests.messages.request import CountTokensRequest, MessagesRequest
from inference.requests.operations import ROWS
from inference.requests.operations.images.edits import EditsForm
from inference.requests.responses.request import ResponsesRequest

_PREFIX: Final = "/api/v1/"
_REFERENCE: Final = "#/components/schemas/{name}"
_STATUSES: Final = (
    "400",
    "401",
    "402",
    "403",
    "404",
    "413",
    "429",
    "500",
    "502",
    "503",
    "504",
    "529",
)
_SUMMARIES: Final = {
    "chat/completions": "Sends a chat completion to the best endpoint that the caller may use.",
    "completions": "Sends a text completion to the best endpoint that the caller may use.",
    "embeddings": "Sends texts to the best endpoint that the caller may use, for their embeddings.",
    "audio/speech": "Sends a text to the best endpoint that the caller may use, and speaks it.",
    "audio/transcriptions": "Sends audio to the best endpoint that the caller may use, for its "
    "text.",
    "rerank": "Sorts documents by their relevance, at the best endpoint that the caller may use.",
    "images": "Makes images at the best endpoint that the caller may use.",
    "images/generations": "Makes images, in OpenAI's interface.",
    "images/edits": "Makes images from the images of a form, in OpenAI's interface.",
    "messages": "Sends an Anthropic message to the best endpoint that the caller may use.",
    "messages/count_tokens": "Estimates the number of tokens in the prompt of a message.",
    "responses": "Sends a conversation of items to the best endpoint that the caller may use.",
}
# The name of each operation, its tag, the shape of its response and the shape of an event.
_NAMES: Final = {
    "chat/completions": (
        "createChatCompletion", "chat-completions", "ChatResult", "ChatStreamChunk",
    ),
    "completions": (
        "createCompletion", "text-completions", "CompletionResponse", "CompletionResponse",
    ),
    "embeddings": ("createEmbeddings", "embeddings", "EmbeddingsResponse", None),
    "audio/speech": ("createAudioSpeech", "tts", None, None),
    "audio/transcriptions": ("createAudioTranscription", "stt", "TranscriptionResponse", None),
    "rerank": ("createRerank", "rerank", "RerankResponse", None),
    "images": ("createImages", "images", "ImagesResponse", "ImagesStreamEvent"),
    "images/generations": ("generateImages", "images", "ImagesResponse", "ImagesStreamEvent"),
    "images/edits": ("editImages", "images", "ImagesResponse", "ImagesStreamEvent"),
    "messages": ("createMessages", "anthropic-messages", "MessagesResult", "MessagesStreamEvent"),
    "messages/count_tokens": ("countMessagesTokens", "anthropic-messages", "MessagesCount", None),
    "responses": ("createResponses", "responses", "ResponsesResult", "ResponsesStreamEvent"),
}  # fmt: skip
_STREAM: Final = (
    "With `stream`, server-sent events: `data: {chunk}` lines, a last chunk with `usage` and its "
    "`cost`, then `data: [DONE]`; lines that begin with `:` are comments. A failure after the "
    "first event is one chunk with `error` and `finish_reason: error`, which ends the stream."
)
_SPEECH: Final = (
    "The answer is the bytes of the audio, as they come. Without `response_format` they are raw "
    "samples of 16 bits (`pcm`), 24,000 a second. A failure after the first byte closes the "
    "connection. The usage is that of `/generation`, whose id is in the header `X-Generation-Id`."
)
_TRANSCRIPTION: Final = (
    "The body is a form with a `file` of up to 25 MB, or JSON with `input_audio` in Base64. "
    "Nothing is downloaded: `url` and `source_url` are refused."
)
_AUDIO: Final = {
    f"audio/{name}": {"schema": {"type": "string", "contentMediaType": f"audio/{name}"}}
    for name in ("aac", "flac", "mpeg", "ogg", "pcm", "wav")
}
_IMAGES: Final = (
    "Each image is Base64 with its type. `/images` never answers with URLs; the other two routes "
    "pass the URLs of a provider that sends them. A member that no endpoint can honour is refused "
    "by name. With `stream`, the events are partial images and completed ones; the last has the "
    "`usage`. An `error` event ends a stream that fails."
)
_MESSAGES: Final = (
    "The key may also be sent as `x-api-key`. Every model can be used: the request becomes a "
    "chat completion, and a field without a translation is refused. `context_management` has no "
    "effect. With `stream`, the response is Anthropic's events; a failure after the first event is "
    "an `error` event, which ends the stream."
)
# The routes whose requests may offer what a provider runs, some of which is left out.
_OFFERING_TOOLS: Final = frozenset(("chat/completions", "completions", "messages", "responses"))
# By tag: what an answer and its stream are.
_DESCRIPTIONS: Final = {
    "anthropic-messages": _MESSAGES,
    "images": _IMAGES,
    "responses": DESCRIPTION,
    "tts": _SPEECH,
    "stt": _TRANSCRIPTION,
}


def document_inference_routes(
    result: dict[str, Any], generator: Any, request: Any, public: bool
) -> dict[str, Any]:
    """Adds the operations of the data plane, which Django does not route, to the document."""
    requests: dict[str, type[msgspec.Struct]] = {
        **{path: ROWS[route.operation].shape for path, route in ROUTES.items()},
        MESSAGES: MessagesRequest,
        COUNT_TOKENS: CountTokensRequest,
        RESPONSES: ResponsesRequest,
        EDITS: EditsForm,
    }
    _, shapes = msgspec.json.schema_components(requests.values(), ref_template=_REFERENCE)
    components = result["components"]["schemas"]
    for name, shape in shapes.items():
        components[name.lstrip("_")] = _make_names_public(shape)
    components.update(_RESPONSES)
    components.update(RESPONSES_SHAPES)
    for path, shape in requests.items():
        name = path.removeprefix(_PREFIX)
        result["paths"][f"/{name}"] = {"post": _operation(name, shape.__name__)}
    result["components"]["schemas"] = dict(sorted(components.items()))
    result["paths"] = dict(sorted(result["paths"].items()))
    return result


def _operation(name: str, request: str) -> dict[str, Any]:
    operation_id, tag, answer, chunk = _NAMES[name]
    content = _AUDIO if answer is None else {"application/json": {"schema": _reference(answer)}}
    if chunk is not None:
        content["text/event-stream"] = {"schema": _reference(chunk)}
    is_messages = tag == "anthropic-messages"
    description = _DESCRIPTIONS.get(tag, _STREAM if chunk else "")
    given = {"application/json": {"schema": _reference(request)}}
    if form := _FORMS.get(name):
        given["multipart/form-data"] = {"schema": form}
    if name == EDITS.removeprefix(_PREFIX):
        given = {"multipart/form-data": {"schema": _reference(request)}}
    # An operation that sends nothing upstream creates no generation.
    has_generation = name != COUNT_TOKENS.removeprefix(_PREFIX)
    identifier = {
        "description": "Our identifier of this generation.",
        "schema": {"type": "string"},
    }
    headers = {"X-Generation-Id": identifier} if has_generation else {}
    if name in _OFFERING_TOOLS:
        headers["X-Left-Out"] = LEFT_OUT
    error = {
        "description": "An error, in the one envelope.",
        "content": {
            "application/json": {"schema": _reference("MessagesError" if is_messages else "Error")}
        },
    }
    return {
        "operationId": operation_id,
        "summary": _SUMMARIES[name],
        "description": f"Needs an inference key. {description}".rstrip(),
        "tags": [tag],
        "security": [{"apiKey": []}],
        "requestBody": {
            "required": True,
            "content": given,
        },
        "responses": {
            "200": {
                "description": "The answer, or its stream.",
                **({"headers": headers} if headers else {}),
                "content": content,
            },
            **dict.fromkeys(_STATUSES, error),
        },
    }


def _reference(name: str) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=name)}


def _make_names_public(shape: Any) -> Any:
    """Removes the leading underscore from the names of the parser's private types."""
    if isinstance(shape, dict):
        return {
            key: value.lstrip("_")
            if key == "title" and isinstance(value, str)
            else _make_names_public(value)
            for key, value in shape.items()
        }
    if isinstance(shape, str):
        return shape.replace(_REFERENCE.format(name="_"), _REFERENCE.format(name=""))
    return [_make_names_public(item) for item in shape] if isinstance(shape, list) else shape


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the shape of an object that may also have other fields of the upstream."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": True,
    }


_STRING: Final = {"type": "string"}
_INTEGER: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}
_BOOLEAN: Final = {"type": "boolean"}
_NULLABLE_STRING: Final = {"type": ["string", "null"]}
_OBJECT: Final = {"type": "object"}
_IDENTITY: Final = {
    "id": {"type": "string", "description": "Our generation id, `gen-…`."},
    "created": {"type": "integer", "description": "Unix seconds."},
    "model": {"type": "string", "description": "The public slug of the model that answered."},
}
_PROVIDER: Final = {"type": "string", "description": "Display name of the provider."}

_TEXTS: Final = {"type": "array", "items": _STRING}
# The forms of requests with files.
_FORMS: Final[dict[str, dict[str, Any]]] = {
    "audio/transcriptions": _object(
        {"model": _STRING, "file": {"type": "string", "contentMediaType": "audio/*"}},
        {
            "language": _STRING,
            "prompt": _STRING,
            "temperature": _NUMBER,
            "response_format": {"enum": ["json", "verbose_json", "diarized_json"]},
            "timestamp_granularities[]": _TEXTS,
            "keyterms[]": _TEXTS,
            "diarize": _BOOLEAN,
            "provider": {"type": "string", "contentMediaType": "application/json"},
            "user": _STRING,
            "session_id": _STRING,
        },
    )
}

_RESPONSES: Final = {
    "CompletionUsage": _object(
        {"prompt_tokens": _INTEGER, "completion_tokens": _INTEGER, "total_tokens": _INTEGER},
        {
            "cost": {"type": "number", "description": "The cost to the credits, in USD."},
            "is_byok": {
                "type": "boolean",
                "description": "The organization's own credential paid the provider.",
            },
            "cost_details": _object(
                {
                    "upstream_inference_cost": _NUMBER,
                    "upstream_inference_prompt_cost": _NUMBER,
                    "upstream_inference_completions_cost": _NUMBER,
                }
            ),
            "prompt_tokens_details": {"type": "object"},
            "completion_tokens_details": {"type": "object"},
        },
    ),
    "ChatResult": _object(
        {
            **_IDENTITY,
            "object": {"const": "chat.completion"},
            "choices": {
                "type": "array",
                "items": _object(
                    {
                        "index": _INTEGER,
                        "message": {"type": "object"},
                        "finish_reason": _NULLABLE_STRING,
                    },
                    {"logprobs": {"type": ["object", "null"]}},
                ),
            },
            "system_fingerprint": _NULLABLE_STRING,
        },
        {"provider": _PROVIDER, "usage": _reference("CompletionUsage")},
    ),
    "ChatStreamChunk": _object(
        {
            **_IDENTITY,
            "object": {"const": "chat.completion.chunk"},
            "choices": {
                "type": "array",
                "items": _object(
                    {"index": _INTEGER, "delta": {"type": "object"}},
                    {"finish_reason": _NULLABLE_STRING, "logprobs": {"type": ["object", "null"]}},
                ),
            },
        },
        {
            "provider": _PROVIDER,
            "usage": _reference("CompletionUsage"),
            "system_fingerprint": _STRING,
            "error": _reference("ErrorDetail"),
        },
    ),
    "EmbeddingsResponse": _object(
        {
            "object": {"const": "list"},
            "model": _IDENTITY["model"],
            "data": {
                "type": "array",
                "items": _object(
                    {
                        "object": {"const": "embedding"},
                        "embedding": {
                            "oneOf": [
                                {"type": "array", "items": _NUMBER},
                                {"type": "string", "description": "Base64."},
                            ]
                        },
                        "index": _INTEGER,
                    }
                ),
            },
        },
        {"id": _IDENTITY["id"], "provider": _PROVIDER, "usage": {"type": "object"}},
    ),
    "TranscriptionResponse": _object(
        {"text": _STRING, "id": _IDENTITY["id"], "model": _IDENTITY["model"]},
        {
            "provider": _PROVIDER,
            "usage": _object(
                {"type": {"enum": ["duration", "tokens"]}, "cost": _NUMBER, "is_byok": _BOOLEAN},
                {
                    "seconds": _NUMBER,
                    "input_tokens": _INTEGER,
                    "output_tokens": _INTEGER,
                    "total_tokens": _INTEGER,
                    "cost_details": _OBJECT,
                },
            ),
            "language": _STRING,
            "duration": _NUMBER,
            "segments": {"type": "array", "items": _OBJECT},
            "words": {"type": "array", "items": _OBJECT},
        },
    ),
    "RerankResponse": _object(
        {
            "results": {
                "type": "array",
                "description": "The most relevant documents first.",
                "items": _object(
                    {"index": _INTEGER, "relevance_score": _NUMBER},
                    {
                        "document": _object(
                            {}, {"text": _NULLABLE_STRING, "image": _NULLABLE_STRING}
                        )
                    },
                ),
            },
            "model": _IDENTITY["model"],
        },
        {
            "id": _IDENTITY["id"],
            "provider": _PROVIDER,
            "usage": _object(
                {}, {"search_units": _INTEGER, "total_tokens": _INTEGER, "cost": _NUMBER}
            ),
        },
    ),
    "ImagesUsage": _object(
        {
            "prompt_tokens": _INTEGER,
            "completion_tokens": _INTEGER,
            "total_tokens": _INTEGER,
            "input_tokens": _INTEGER,
            "output_tokens": _INTEGER,
            "input_tokens_details": _object({"image_tokens": _INTEGER, "text_tokens": _INTEGER}),
            "output_tokens_details": _object({"image_tokens": _INTEGER, "text_tokens": _INTEGER}),
        },
        {
            "cost": {"type": "number", "description": "The cost to the credits, in USD."},
            "is_byok": _BOOLEAN,
            "cost_details": _OBJECT,
            "completion_tokens_details": _OBJECT,
        },
    ),
    "ImagesResponse": _object(
        {
            **_IDENTITY,
            "data": {
                "type": "array",
                "items": _object(
                    {},
                    {
                        "b64_json": {"type": "string", "description": "The image, in Base64."},
                        "media_type": _STRING,
                        "url": _STRING,
                        "revised_prompt": _STRING,
                    },
                ),
            },
            "usage": _reference("ImagesUsage"),
        },
        {
            "provider": _PROVIDER,
            "size": _STRING,
            "quality": _STRING,
            "background": _STRING,
            "output_format": _STRING,
        },
    ),
    "ImagesStreamEvent": _object(
        {
            "type": {
                "enum": [
                    "image_generation.partial_image",
                    "image_generation.completed",
                    "image_edit.partial_image",
                    "image_edit.completed",
                    "error",
                ]
            }
        },
        {
            "b64_json": _STRING,
            "media_type": _STRING,
            "partial_image_index": _INTEGER,
            "created": _INTEGER,
            "created_at": _INTEGER,
            "usage": _reference("ImagesUsage"),
            "error": _OBJECT,
        },
    ),
    "MessagesUsage": _object(
        {
            "input_tokens": {"type": "integer", "description": "Without the tokens of the cache."},
            "cache_creation_input_tokens": _INTEGER,
            "cache_read_input_tokens": _INTEGER,
            "output_tokens": _INTEGER,
        },
        {
            "output_tokens_details": _OBJECT,
            "cost": {"type": "number", "description": "The cost to the credits, in USD."},
            "is_byok": _BOOLEAN,
            "cost_details": _OBJECT,
        },
    ),
    "MessagesResult": _object(
        {
            "id": _IDENTITY["id"],
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": _IDENTITY["model"],
            "content": {"type": "array", "items": _object({"type": _STRING})},
            "stop_reason": _NULLABLE_STRING,
            "stop_sequence": _NULLABLE_STRING,
            "usage": _reference("MessagesUsage"),
        },
        {"provider": _PROVIDER},
    ),
    "MessagesCount": _object(
        {
            "input_tokens": {
                "type": "integer",
                "description": "Estimated by size, at four bytes per token.",
            }
        }
    ),
    "MessagesStreamEvent": _object(
        {
            "type": {
                "enum": [
                    "message_start",
                    "content_block_start",
                    "content_block_delta",
                    "content_block_stop",
                    "message_delta",
                    "message_stop",
                    "ping",
                    "error",
                ]
            }
        },
        {
            "message": _reference("MessagesResult"),
            "index": _INTEGER,
            "content_block": _OBJECT,
            "delta": _OBJECT,
            "usage": _reference("MessagesUsage"),
            "error": _OBJECT,
            "request_id": _STRING,
        },
    ),
    "MessagesError": _object(
        {
            "type": {"const": "error"},
            "error": _object(
                {
                    "type": _STRING,
                    "message": _STRING,
                    "details": _object(
                        {
                            "error_code": {
                                "type": "string",
                                "description": "The `error_type` of other routes.",
                            }
                        }
                    ),
                }
            ),
            "request_id": _STRING,
        }
    ),
    "CompletionResponse": _object(
        {
            **_IDENTITY,
            "object": {"const": "text_completion"},
            "choices": {
                "type": "array",
                "items": _object(
                    {"text": _STRING, "index": _INTEGER, "finish_reason": _NULLABLE_STRING},
                    {"logprobs": {"type": ["object", "null"]}},
                ),
            },
        },
        {
            "provider": _PROVIDER,
            "usage": _reference("CompletionUsage"),
            "system_fingerprint": _STRING,
            "error": _reference("ErrorDetail"),
        },
    ),
}
