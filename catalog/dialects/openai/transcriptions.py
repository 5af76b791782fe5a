"""Transcriptions: a form with a file, and the text that it says, billed by tokens or seconds."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from catalog.dialects.audio import MOST_MS
from catalog.dialects.base import (
    Call,
    InvalidReply,
    Reply,
    Untranslatable,
    read_count,
    read_usage,
)
from catalog.dialects.openai.members import (
    NULL,
    ReportedUsage,
    decode_usage,
    find_detail,
    read_text,
)
from catalog.dialects.shared.multipart import MultipartContent, write_form
from catalog.dialects.shared.raw import is_unset
from catalog.pricing import Usage

# Parameters that OpenAI's format lacks: only an endpoint that lists them gets them.
_EXTENSIONS: Final = ("diarize", "keyterms")


def write_transcription(call: Call) -> MultipartContent:
    """Returns the form of a request; raises :class:`Untranslatable` for what no server may lose."""
    fields = {**call.fields, "model": msgspec.Raw(msgspec.json.encode(call.model))}
    fields.pop("user", None)
    for name in _EXTENSIONS:
        is_listed = name in (call.supported_parameters or ())
        if name in fields and not is_listed and not is_unset(fields.pop(name)):
            raise Untranslatable(f"{name}: The endpoint does not list this parameter.")
    return write_form(fields, call.files)


def parse_transcription(fields: dict[str, msgspec.Raw]) -> Reply:
    """Returns a reply with a text, maybe an empty one: a recording may be silent."""
    text = read_text(fields, "text")
    if text is None:
        raise InvalidReply("The answer has no text.")
    return Reply(
        fields=fields,
        model=read_text(fields, "model"),
        usage=_parse_usage(fields),
        finish_reason="stop",
        output_bytes=len(text.encode("utf-8", "surrogatepass")),
        upstream_id=read_text(fields, "id"),
    )


def _parse_usage(fields: dict[str, msgspec.Raw]) -> Usage | None:
    """Returns the tokens, the length of the audio, or both; ``None`` if neither is reported."""
    usage = decode_usage(fields.get("usage", NULL)) or ReportedUsage()
    try:
        duration = msgspec.json.decode(fields.get("duration", b"null"))
    except (msgspec.DecodeError, RecursionError):
        return None
    lengths = map(_read_milliseconds, (usage.seconds, usage.prompt_audio_seconds, duration))
    length = next((each for each in lengths if each is not None), None)
    prompt, made = usage.input_tokens, usage.output_tokens
    audio = find_detail(usage.input_token_details, "audio_tokens")
    if prompt is None:
        prompt, made, audio = _read_counts_of_chat(usage)
    tokens = read_usage(prompt, made, audio=audio, milliseconds=length)
    if tokens is None and length is not None:
        return Usage(prompt=0, completion=0, milliseconds=length)
    return tokens


def _read_counts_of_chat(usage: ReportedUsage) -> tuple[int | None, int | None, Any]:
    """Returns the tokens of prompt, text and sound by chat's names, which Mistral has here too.

    It counts the tokens of the sound in the total alone.
    """
    prompt, made = read_count(usage.prompt_tokens), read_count(usage.completion_tokens)
    audio = find_detail(usage.prompt_tokens_details, "audio_tokens")
    rest = (read_count(usage.total_tokens) or 0) - (prompt or 0) - (made or 0)
    if made is None or rest <= 0:
        return prompt, made, audio
    return (prompt or 0) + rest, made, audio or rest


def _read_milliseconds(seconds: Any) -> int | None:
    """Returns a length; older servers write it as text."""
    if isinstance(seconds, str):
        try:
            seconds = float(seconds)
        except ValueError:
            return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    if not 0 <= seconds < math.inf:
        return None
    return min(round(seconds * 1000), MOST_MS) if seconds < MOST_MS else MOST_MS
