"""Speech: the body of a request, and how it is read."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from catalog.dialects.audio import OUTPUT_BYTES, SPEECH_BYTES
from catalog.pricing import Usage
from catalog.tokens import TextCounts
from inference.requests.problems import field_error
from inference.requests.rows import Demands, Fields, RequestRow, count_texts, name_model
from inference.requests.schemas import ProviderPreferences, Session, Slug, User

# Speech has about 15 characters and 20 tokens a second: the bounds are those of a voice that is
# twelve times as slow, and of some silence.
_TOKENS_A_CHARACTER: Final = 16
_MORE_TOKENS: Final = 512
_MS_A_CHARACTER: Final = 800
_MORE_MS: Final = 20_000
_decode_text = msgspec.json.Decoder(str).decode


class SpeechRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /audio/speech``: a text, and how it is spoken."""

    input: Annotated[str, msgspec.Meta(min_length=1, max_length=1_000_000)]
    model: Slug
    voice: Annotated[str, msgspec.Meta(max_length=255)] | dict[str, Any] | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[float, msgspec.Meta(ge=0.25, le=4)] | None = None
    instructions: str | None = None
    stream_format: Literal["audio", "sse"] | None = None
    input_references: list[Any] | None = None
    provider: ProviderPreferences | None = None
    user: User | None = None
    session_id: Session | None = None
    stream: bool | None = None


def _check(request: SpeechRequest, fields: Fields) -> None:
    if request.stream_format == "sse":
        raise field_error("stream_format", "The answer is a stream of bytes; leave it out.")
    if request.input_references:
        raise field_error("input_references", "No endpoint here clones a voice; leave it out.")


def _read_demands(request: SpeechRequest) -> Demands:
    return Demands(len(request.input) * _TOKENS_A_CHARACTER + _MORE_TOKENS)


def _allow(fields: Fields) -> Usage:
    """Returns the characters of the text, and more milliseconds than it takes to speak them."""
    count = len(_decode_text(fields["input"]))
    return Usage(0, 0, characters=count, milliseconds=count * _MS_A_CHARACTER + _MORE_MS)


def _estimate(prompt: int, completion: int, known: Usage) -> Usage:
    """Returns the usage of speech: its length by the size of its audio, and its whole text.

    The tokens stand for the size.
    """
    length = completion * OUTPUT_BYTES * 1000 // SPEECH_BYTES
    return Usage(
        prompt,
        completion,
        audio_output=completion,
        milliseconds=min(length, known.milliseconds or length),
        characters=known.characters,
    )


def _count_text(fields: Fields) -> TextCounts:
    return count_texts(fields["input"], fields.get("instructions", b""))


ROW: Final = RequestRow(
    shape=SpeechRequest,
    models=name_model,
    check=_check,
    answers_field="input",
    demands=_read_demands,
    count_text=_count_text,
    allowed=_allow,
    estimate=_estimate,
    # What the interface answers if it is not told; providers have other defaults.
    defaults={"response_format": msgspec.Raw(b'"pcm"')},
    left_out=frozenset(("stream_format", "input_references", "stream")),
    # The face names the format of the bytes, and what the body must not ask for.
    reserved=frozenset(("response_format", "stream_format", "input_references")),
)
