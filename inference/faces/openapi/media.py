"""Images and audio for the document."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from inference.faces.openapi.answers import (
    AnsweringModel,
    Byok,
    Cost,
    GenerationId,
    ProviderName,
    RoutingMetadata,
    UnixSeconds,
)
from inference.faces.openapi.shapes import NO_TEXT, WHOLE, Open, refine
from inference.requests.multipart import FormFile, describe_field
from inference.requests.operations.images.schema import ImagesRequest as ParsedImages
from inference.requests.operations.speech import SpeechRequest as ParsedSpeech
from inference.requests.operations.transcription import InputAudio
from inference.requests.operations.transcription import TranscriptionRequest as ParsedTranscription
from inference.requests.schemas import Slug

IMAGES_DESCRIPTION: Final = (
    "Each image is Base64 with its type. `/images` never answers with URLs; the other two routes "
    "pass the URLs of a provider that sends them. A member that no endpoint can honour is refused "
    "by name. With `stream`, the events are partial images and completed ones; the last has the "
    "`usage`. An `error` event ends a stream that fails."
)
SPEECH_DESCRIPTION: Final = (
    "The answer is the bytes of the audio, as they come. Without `response_format` they are raw "
    "samples of 16 bits (`pcm`), 24,000 a second. A failure after the first byte closes the "
    "connection. The usage is that of `/generation`, whose id is in the header `X-Generation-Id`."
)
TRANSCRIPTION_DESCRIPTION: Final = (
    "The body is a form with a `file` of up to 25 MB, or JSON with `input_audio` in Base64. "
    "No other audio is taken: `url`, `source_url`, `file_url`, `audio_url` and `file_id` are "
    "refused."
)
AUDIO_CONTENT: Final = {
    f"audio/{name}": {"schema": {"type": "string", "contentMediaType": f"audio/{name}"}}
    for name in ("aac", "flac", "mpeg", "ogg", "pcm", "wav")
}
# A generator of clients that knows no audio leaves the answer out, unless bytes are named too.
AUDIO_CONTENT["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}

# The parser knows further values, to refuse them by name.
SpeechRequest: Final = refine(
    ParsedSpeech,
    optional={
        "stream_format": Literal["audio"] | None,
        "input_references": Annotated[list[Any], msgspec.Meta(max_length=0)] | None,
        **WHOLE,
    },
)
ImagesRequest: Final = refine(
    ParsedImages, optional={"response_format": Literal["b64_json"] | None}
)
ImageGenerationsRequest: Final = refine(ParsedImages, name="ImageGenerationsRequest")
# JSON has no other place for the audio, which it must have.
_SentAudio: Final = refine(
    InputAudio,
    required={
        "data": Annotated[str, msgspec.Meta(min_length=1)],
        "format": Annotated[str, msgspec.Meta(max_length=64)],
    },
    optional={"url": NO_TEXT},
)
TranscriptionRequest: Final = refine(
    ParsedTranscription,
    required={"input_audio": _SentAudio},
    optional={"source_url": NO_TEXT, **WHOLE},
)
_NOT_IN_FORMS: Final = frozenset(("model", "input_audio", "source_url", "stream"))
# The form of a transcription. Its arrays have the names that OpenAI's clients write.
TranscriptionForm: Final = msgspec.defstruct(
    "TranscriptionForm",
    [
        ("model", Slug),
        ("file", FormFile),
        *(
            describe_field(field, ("provider",))
            for field in msgspec.structs.fields(ParsedTranscription)
            if field.name not in _NOT_IN_FORMS
        ),
    ],
    rename={"timestamp_granularities": "timestamp_granularities[]", "keyterms": "keyterms[]"},
    kw_only=True,
)


class TranscriptionUsage(Open):
    """The length of the audio or its tokens, and the cost."""

    type: Literal["duration", "tokens"]
    cost: Cost
    is_byok: Byok
    seconds: float | UnsetType = UNSET
    input_tokens: int | UnsetType = UNSET
    output_tokens: int | UnsetType = UNSET
    total_tokens: int | UnsetType = UNSET
    cost_details: dict[str, Any] | UnsetType = UNSET


class TranscriptionResponse(Open):
    """The text of the audio."""

    text: str
    id: GenerationId
    model: AnsweringModel
    provider: ProviderName | UnsetType = UNSET
    usage: TranscriptionUsage | UnsetType = UNSET
    language: str | UnsetType = UNSET
    duration: float | UnsetType = UNSET
    segments: list[dict[str, Any]] | UnsetType = UNSET
    words: list[dict[str, Any]] | UnsetType = UNSET
    openrouter_metadata: RoutingMetadata | UnsetType = UNSET


class ImagesTokensDetails(Open):
    """The tokens of images and of texts."""

    image_tokens: int
    text_tokens: int


class ImagesUsage(Open):
    """The tokens of an answer by the names of both interfaces, and its cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    input_tokens: int
    output_tokens: int
    input_tokens_details: ImagesTokensDetails
    output_tokens_details: ImagesTokensDetails
    cost: Cost | UnsetType = UNSET
    is_byok: Byok | UnsetType = UNSET
    cost_details: dict[str, Any] | UnsetType = UNSET
    completion_tokens_details: dict[str, Any] | UnsetType = UNSET


class MadeImage(Open):
    """An image."""

    b64_json: Annotated[str, msgspec.Meta(description="The image, in Base64.")] | UnsetType = UNSET
    media_type: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    revised_prompt: str | UnsetType = UNSET


class ImagesResponse(Open):
    """The images of a request."""

    id: GenerationId
    created: UnixSeconds
    model: AnsweringModel
    data: list[MadeImage]
    usage: ImagesUsage
    provider: ProviderName | UnsetType = UNSET
    size: str | UnsetType = UNSET
    quality: str | UnsetType = UNSET
    background: str | UnsetType = UNSET
    output_format: str | UnsetType = UNSET
    openrouter_metadata: RoutingMetadata | UnsetType = UNSET


class ImagesStreamEvent(Open):
    """A partial image, a completed one, or the error that ends a stream."""

    type: Literal[
        "image_generation.partial_image",
        "image_generation.completed",
        "image_edit.partial_image",
        "image_edit.completed",
        "error",
    ]
    b64_json: str | UnsetType = UNSET
    media_type: str | UnsetType = UNSET
    partial_image_index: int | UnsetType = UNSET
    created: UnixSeconds | UnsetType = UNSET
    created_at: UnixSeconds | UnsetType = UNSET
    usage: ImagesUsage | UnsetType = UNSET
    error: dict[str, Any] | UnsetType = UNSET


MEDIA_SHAPES: Final = (
    TranscriptionForm, TranscriptionResponse, ImagesResponse, ImagesStreamEvent,
)  # fmt: skip
