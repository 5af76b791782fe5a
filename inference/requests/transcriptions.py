"""Reads requests for transcriptions: a form with a file, or JSON with the audio in Base64; pure.

Both become one request with a file beside its fields, as providers take it. The file keeps the
format of the caller's, but not its name, which may say anything.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from catalog.dialects.audio import CONTENT_TYPES, find_extension, measure, recognize
from catalog.dialects.base import Operation
from catalog.dialects.shared.multipart import FormPart
from catalog.dialects.shared.raw import Piece
from catalog.pricing import Usage
from config.api.errors import InvalidRequest, PayloadTooLarge
from inference.requests.limits import check_body
from inference.requests.multipart import FieldKind, is_form, parse_form, to_json
from inference.requests.operations.transcription import refuse_other_audio
from inference.requests.parsing import InferenceRequest, parse
from inference.requests.problems import explain_decode_error, field_error, missing_parts

_KINDS: Final[Mapping[str, FieldKind]] = {
    "temperature": FieldKind.NUMBER,
    "diarize": FieldKind.BOOLEAN,
    "stream": FieldKind.BOOLEAN,
    "provider": FieldKind.JSON,
    "trace": FieldKind.JSON,
    **dict.fromkeys(
        (
            "timestamp_granularities", "keyterms", "include", "languages", "keywords",
            "known_speaker_names", "known_speaker_references",
        ),
        FieldKind.LIST,
    ),
}  # fmt: skip
# Models count 10 to 32 tokens for a second of audio, and a second of speech has fewer in text. An
# estimate takes 10.
_USUAL_TOKENS: Final = 10
_TOKENS_A_SECOND: Final = 64
_MORE_TOKENS: Final = 1_024
_MS: Final = 1_000


class _InputAudio(msgspec.Struct):
    data: msgspec.Raw = msgspec.Raw()
    format: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    url: str | None = None


class _Body(msgspec.Struct):
    input_audio: _InputAudio | None = None


_decode_body = msgspec.json.Decoder(_Body).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


def parse_transcription(
    body: bytes, content_type: str | None, *, max_bytes: int, session_id: str | None = None
) -> InferenceRequest:
    """Parses a request.

    Raises :class:`InvalidRequest`, and :class:`PayloadTooLarge` for a file above ``max_bytes``.
    """
    if is_form(content_type):
        text, file = _read_form(content_type or "", body)
    else:
        text, file = _read_json(body)
    if len(file.data) > max_bytes:
        raise PayloadTooLarge(
            f"The file has {len(file.data):,} bytes; the largest that is taken has {max_bytes:,}."
        )
    if not file.data:
        raise field_error(file.name, "The file is empty.")
    request = parse(Operation.TRANSCRIPTION, text, session_id=session_id)
    length = measure(file.data, (file.filename or "").rpartition(".")[2])
    counts = request.text
    counts.tokens += -(-length.estimate * _USUAL_TOKENS // _MS)
    # Providers report and bill whole seconds.
    most_seconds = -(-length.bound // _MS)
    bound = most_seconds * _TOKENS_A_SECOND + _MORE_TOKENS
    return replace(
        request,
        files=[replace(file, name="file")],
        size=len(body),
        prompt_bound=request.prompt_bound + bound,
        max_tokens=bound,
        allowed=Usage(0, 0, milliseconds=most_seconds * _MS),
        milliseconds=length.estimate,
        text_counts=counts,
    )


def _read_form(content_type: str, body: bytes) -> tuple[bytes, FormPart]:
    text, files = to_json(parse_form(content_type, body), _KINDS)
    fields = _decode_fields(text)
    if "file" in fields:
        raise field_error("file", "Send it as a file, with a file name.")
    for part in files:
        if part.name != "file":
            raise field_error(part.name, "This route takes no such file.")
    if not files:
        refuse_other_audio(fields)
        raise missing_parts(fields, "file")
    if len(files) > 1:
        raise field_error("file", "The form has several files; send one.")
    [file] = files
    names = (file.filename or "", file.content_type or "")
    return text, _make_file("file", file.data, names)


def _read_json(body: bytes) -> tuple[bytes, FormPart]:
    check_body(body)
    try:
        audio = _decode_body(body).input_audio
        fields: dict[str, Any] = _decode_fields(body)
    except msgspec.ValidationError as exc:
        raise explain_decode_error(str(exc)) from None
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    if "file" in fields:
        raise field_error("file", "Send it in a multipart form, or as input_audio.")
    if audio is None:
        refuse_other_audio(fields)
        raise missing_parts(fields, "input_audio")
    if audio.url:
        raise field_error("input_audio.url", "No audio is downloaded here; send the audio itself.")
    if not audio.data or audio.format is None:
        lacking = [name for name in ("data", "format") if not getattr(audio, name)]
        raise missing_parts(fields, *(f"input_audio.{name}" for name in lacking))
    data = _decode_base64(audio.data)
    del fields["input_audio"]
    return _encode(fields), _make_file("input_audio.data", data, (audio.format,))


def _decode_base64(raw: msgspec.Raw) -> bytes:
    """Decodes the audio; its text is not copied unless it is a data URL or has escapes."""
    view = memoryview(raw)
    if bytes(view[:1]) == b'"':
        with suppress(binascii.Error):
            return binascii.a2b_base64(view[1:-1], strict_mode=True)
    try:
        text = _decode_text(raw).rpartition(",")[2]
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise field_error("input_audio.data", "Expected audio in Base64.") from None


def _make_file(name: str, data: Piece, names: Sequence[str]) -> FormPart:
    """Returns the file as it is sent; raises :class:`InvalidRequest` for an unknown format."""
    known = next((found for each in names if (found := find_extension(each))), None)
    extension = known or recognize(data)
    if extension is None:
        formats = ", ".join(CONTENT_TYPES)
        raise field_error(
            name.replace(".data", ".format"), f"The format is unknown; send one of {formats}."
        )
    return FormPart(name, data, f"audio.{extension}", CONTENT_TYPES[extension])
