"""Transcriptions: the body of a request, and how it is read."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from catalog.dialects.shared.raw import is_unset
from catalog.pricing import Usage
from catalog.tokens import TextCounts
from inference.requests.problems import field_error
from inference.requests.rows import Fields, RequestRow, count_texts, name_model
from inference.requests.schemas import ProviderPreferences, Session, Slug, User

MAX_TERMS: Final = 1_000
# Names for audio that is not in the request: nobody has measured it, and a stored file may be
# another tenant's.
_OTHER_AUDIO: Final = ("source_url", "url", "file_url", "audio_url", "file_id")


class InputAudio(msgspec.Struct, kw_only=True):
    """The audio of a JSON body, in Base64."""

    data: str | None = None
    format: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    url: str | None = None


class TranscriptionRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /audio/transcriptions``: JSON with the audio in Base64, or a form."""

    model: Slug
    input_audio: InputAudio | None = None
    language: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    prompt: str | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    response_format: Literal["json", "verbose_json", "diarized_json"] | None = None
    timestamp_granularities: (
        Annotated[list[Literal["segment", "word"]], msgspec.Meta(max_length=16)] | None
    ) = None
    diarize: bool | None = None
    keyterms: Annotated[list[str], msgspec.Meta(max_length=MAX_TERMS)] | None = None
    source_url: str | None = None
    provider: ProviderPreferences | None = None
    user: User | None = None
    session_id: Session | None = None
    stream: bool | None = None


def refuse_other_audio(fields: Fields) -> None:
    """Raises :class:`InvalidRequest` for a field that names audio outside of the request."""
    for name in _OTHER_AUDIO:
        if not is_unset(fields.get(name, msgspec.Raw())):
            raise field_error(name, "Only audio in the request is taken; send the audio itself.")


def _check(request: TranscriptionRequest, fields: Fields) -> None:
    refuse_other_audio(fields)
    if request.diarize and request.response_format in (None, "json"):
        raise field_error("diarize", "Needs the response_format verbose_json.")


def _estimate(prompt: int, completion: int, known: Usage) -> Usage:
    return Usage(prompt, completion, audio=prompt, milliseconds=known.milliseconds)


def _count_text(fields: Fields) -> TextCounts:
    return count_texts(fields.get("prompt", b""))


ROW: Final = RequestRow(
    shape=TranscriptionRequest,
    models=name_model,
    check=_check,
    answers_field="model",
    count_text=_count_text,
    estimate=_estimate,
    left_out=frozenset((*_OTHER_AUDIO, "stream")),
    # Other audio than what was measured, and a format that no answer of the interface has.
    reserved=frozenset((*_OTHER_AUDIO, "file", "input_audio", "response_format")),
)
