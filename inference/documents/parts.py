"""Replaces the PDF files in the messages of a chat request by their text."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from catalog.dialects.shared.raw import first_byte
from config.api.errors import InvalidRequest
from inference.documents.reading import (
    MAX_FILES,
    MAX_TEXT_BYTES,
    PROBLEMS,
    UnreadablePdf,
    read_pdfs,
)
from inference.requests.parsing import InferenceRequest, replace_messages
from inference.requests.problems import explain_decode_error, field_error

_DATA: Final = "data:"
_PDF: Final = "application/pdf"
_SIGNATURE: Final = b"%PDF-"
# The first characters of the same in Base64, for data without a media type.
_ENCODED_SIGNATURE: Final = "JVBERi0"
_NAME_CHARACTERS: Final = 255
# What would end the mark that has the name, or its line.
_UNMARKED: Final = re.compile(r'[\0-\x1f\x7f<>"\u2028\u2029\ud800-\udfff]')
# The beginning of a mark of a file, however a model may read it.
_MARK: Final = re.compile(r"<(?=\s*/?\s*file\b)", re.IGNORECASE)
_SPACE: Final = re.compile(r"\s+")
_UNNAMED: Final = "document.pdf"
# A file is there as a text twice, as bytes and decoded; its text as an answer, as pages and in a
# few steps of JSON.
_FILE_COPIES: Final = 4
_TEXT_COPIES: Final = 5


class _File(msgspec.Struct):
    filename: str | None = None
    file_data: str | None = None
    file_id: Any = None


class _Place(NamedTuple):
    """Where a PDF stands: the indexes of its message and of its part."""

    message: int
    part: int

    def __str__(self) -> str:
        return f"messages[{self.message}].content[{self.part}].file"


class _Pdf(NamedTuple):
    place: _Place
    name: str
    data: bytes


_Members = dict[str, msgspec.Raw]
_decode_messages = msgspec.json.Decoder(list[_Members]).decode
_decode_parts = msgspec.json.Decoder(list[_Members]).decode
_decode_file = msgspec.json.Decoder(_File).decode
_encode = msgspec.json.Encoder().encode


def read_files(request: InferenceRequest) -> InferenceRequest:
    """Returns a chat request with the text of its PDF files instead of them.

    It takes up to thirty seconds, so a thread calls it. Raises :class:`InvalidRequest` with the
    place of a file that is not read, and :class:`Unavailable`.
    """
    messages = _write_texts(request.fields["messages"])
    return request if messages is None else replace_messages(request, messages)


def _write_texts(raw: msgspec.Raw) -> msgspec.Raw | None:
    """Returns the messages with the texts of their files; ``None`` if there are none."""
    messages: list[dict[str, Any]] = _decode_messages(raw)
    contents = {
        index: _decode_parts(message["content"])
        for index, message in enumerate(messages)
        if "content" in message and first_byte(message["content"]) == b"["
    }
    pdfs = [
        pdf
        for index, parts in contents.items()
        for at, part in enumerate(parts)
        if bytes(part.get("type", b"")) == b'"file"'
        and (pdf := _find_pdf(part, _Place(index, at))) is not None
    ]
    if not pdfs:
        return None
    if len(pdfs) > MAX_FILES:
        raise field_error(
            str(pdfs[MAX_FILES].place), f"Send at most {MAX_FILES} PDF files in a request."
        )
    texts, marks = _read(pdfs), [(pdf.place, pdf.name) for pdf in pdfs]
    # The files are needed no more, and each text is dropped once it is written.
    pdfs.clear()
    for place, name in reversed(marks):
        parts = messages[place.message]["content"] = contents[place.message]
        parts[place.part] = _write_part(parts[place.part], name, texts.pop())
    return msgspec.Raw(_encode(messages))


def bound_scratch(request: InferenceRequest) -> int:
    """Returns about the most bytes that :func:`read_files` takes beside a request."""
    return _FILE_COPIES * len(request.fields["messages"]) + _TEXT_COPIES * MAX_TEXT_BYTES


def _find_pdf(part: _Members, place: _Place) -> _Pdf | None:
    """Returns the PDF of a part; ``None`` for a file of another kind, which the model reads.

    Raises :class:`InvalidRequest` for a file that stands elsewhere, and for what is not Base64.
    """
    try:
        file = _decode_file(part.get("file", b"null"))
    except msgspec.ValidationError as exc:
        raise explain_decode_error(str(exc), within=str(place)) from None
    data = file.file_data
    if not data:
        name = "file_id" if file.file_id else "file_data"
        raise field_error(f"{place}.{name}", "Send the PDF itself as a data URL of Base64.")
    head, comma, encoded = data[:256].partition(",")
    if head[: len(_DATA)].lower() != _DATA:
        if not data.startswith(_ENCODED_SIGNATURE):
            raise field_error(
                f"{place}.file_data",
                "URLs are not fetched. Send the PDF itself as a data URL of Base64.",
            )
        encoded = data
    else:
        kind, *options = (each.strip().lower() for each in head[len(_DATA) :].split(";"))
        if kind != _PDF and not encoded.startswith(_ENCODED_SIGNATURE):
            return None
        if not comma or "base64" not in options:
            raise field_error(f"{place}.file_data", "Send the PDF as a data URL of Base64.")
        encoded = data[len(head) + 1 :]
    return _Pdf(place, _clean_name(file.filename), _decode_base64(encoded, place))


def _decode_base64(text: str, place: _Place) -> bytes:
    try:
        data = base64.b64decode(_SPACE.sub("", text), validate=True)
    except (binascii.Error, ValueError):
        raise field_error(f"{place}.file_data", "Is not valid Base64.") from None
    # The standard lets other bytes stand before the signature.
    if _SIGNATURE not in data[:1024]:
        raise field_error(f"{place}.file_data", "Is no PDF.")
    return data


def _clean_name(name: str | None) -> str:
    return _UNMARKED.sub("_", (name or _UNNAMED)[:_NAME_CHARACTERS])


def _read(pdfs: Sequence[_Pdf]) -> list[list[str]]:
    try:
        return read_pdfs([pdf.data for pdf in pdfs])
    except UnreadablePdf as exc:
        raise _refuse(pdfs[exc.index], exc.problem) from None


def _refuse(pdf: _Pdf, problem: str) -> InvalidRequest:
    """Returns the error for one file, which its name tells from others in any face."""
    return field_error(str(pdf.place), f"{PROBLEMS[problem]} (File: {pdf.name})")


def _write_part(part: _Members, name: str, pages: Sequence[str]) -> _Members:
    """Returns the part with the text of a file, which keeps its mark of a cached prefix.

    A mark that the text itself has is written as its entity, so that no text leaves its file.
    """
    marked = (
        f"### Page {number}\n{_MARK.sub('&lt;', text)}\n" for number, text in enumerate(pages, 1)
    )
    # Bytes: one rare character would make a whole text of Python's four times as long.
    inner = b"\\n".join(_encode(each)[1:-1] for each in marked)
    text = b'"<file name=\\"%s\\">\\n%s</file>"' % (_encode(name)[1:-1], inner)
    written = {"type": msgspec.Raw(b'"text"'), "text": msgspec.Raw(text)}
    if "cache_control" in part:
        written["cache_control"] = part["cache_control"]
    return written
