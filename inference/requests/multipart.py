"""Reads ``multipart/form-data`` bodies, and turns their texts into JSON; pure.

A form says the type of nothing but files, so a table says what each field holds. Everything behind
this module then sees one kind of request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from types import NoneType
from typing import Annotated, Any, Final, Union, get_args

import msgspec
from msgspec import UNSET, UnsetType
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from catalog.dialects.shared.multipart import FormPart
from config.api.errors import InvalidRequest
from config.api.text import CONTROL_CHARACTERS
from inference.requests.problems import field_error

# More than the fields of any request, with the repeated ones.
MAX_PARTS: Final = 256
# A longer text belongs into a JSON body.
MAX_TEXT_BYTES: Final = 1_048_576
_MAX_BOUNDARY: Final = 70  # RFC 2046, section 5.1.1
_MAX_HEADERS: Final = 8
_MAX_HEADER_BYTES: Final = 2_048
_BOUNDARY: Final = frozenset(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ'()+_,-./:=? "
)
_MALFORMED: Final = "The body is not a valid multipart form."
_encode = msgspec.json.Encoder().encode
# How the document shows a file of a form, and a field that holds JSON.
FormFile = Annotated[str, msgspec.Meta(extra_json_schema={"type": "string", "format": "binary"})]
FormJson = Annotated[str, msgspec.Meta(extra_json_schema={"contentMediaType": "application/json"})]


def describe_field(field: msgspec.structs.FieldInfo, as_json: Collection[str]) -> tuple[Any, ...]:
    """Returns a member of a request as the document shows it in a form.

    It is a text, or none at all, but never null; those named in ``as_json`` are JSON in a text.
    """
    if field.required:
        return field.name, field.type
    kinds = [kind for kind in get_args(field.type) if kind is not NoneType]
    kind = FormJson if field.name in as_json else Union[tuple(kinds) or (field.type,)]  # noqa: UP007
    return field.name, kind | UnsetType, UNSET


class FieldKind(Enum):
    """What the text of a form's field means."""

    TEXT = "text"
    NUMBER = "number"
    BOOLEAN = "boolean"
    # One item for each part of this name; clients write the name with or without ``[]``.
    LIST = "list"
    JSON = "JSON"


def is_form(content_type: str | None) -> bool:
    """Returns whether a request with this content type has a form as its body."""
    return (content_type or "").partition(";")[0].strip().lower() == "multipart/form-data"


def parse_form(content_type: str, body: bytes) -> list[FormPart]:
    """Returns the parts of a form; the data of files are views of ``body``.

    Raises :class:`InvalidRequest` for anything that is not a form, or that has too many parts. The
    number of boundaries is bounded before the body is parsed, and no boundary may have spaces
    behind it, because the parser takes both in steps of one byte.
    """
    boundary = read_boundary(content_type)
    mark = b"--" + boundary
    if body.count(mark) > MAX_PARTS + 1:
        raise InvalidRequest(f"The form has more than {MAX_PARTS} parts. Send fewer fields.")
    if not body.startswith(mark) or mark + b" " in body or mark + b"\t" in body:
        raise InvalidRequest(_MALFORMED)
    reader = _Reader(body)
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": reader.begin_part,
            "on_part_data": reader.add_data,
            "on_part_end": reader.end_part,
            "on_header_field": reader.add_header_name,
            "on_header_value": reader.add_header_value,
            "on_header_end": reader.end_header,
            "on_headers_finished": reader.end_headers,
            "on_end": reader.end,
        },
        max_header_count=_MAX_HEADERS,
        max_header_size=_MAX_HEADER_BYTES,
    )
    try:
        parser.write(body)
    except FormParserError:
        raise InvalidRequest(_MALFORMED) from None
    if not reader.has_ended:
        raise InvalidRequest("The form is cut off: its last boundary is missing.")
    return reader.parts


def read_boundary(content_type: str) -> bytes:
    """Returns the boundary that a content type names; raises :class:`InvalidRequest`."""
    if not content_type.isascii():
        raise InvalidRequest(_MALFORMED)
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= _MAX_BOUNDARY or not _BOUNDARY.issuperset(boundary):
        raise InvalidRequest(
            "The Content-Type of a form names a boundary of 1 to 70 characters: "
            "multipart/form-data; boundary=…"
        )
    return boundary


class _Reader:
    """Collects the parts of one form as the parser finds them in the whole body."""

    def __init__(self, body: bytes) -> None:
        self.parts: list[FormPart] = []
        self.has_ended = False
        self._view = memoryview(body)
        self._name = self._value = b""
        self._headers: dict[str, bytes] = {}
        self._filename: str | None = None
        self._field = ""
        self._data = self._view[:0]

    def begin_part(self) -> None:
        self._headers.clear()
        self._data = self._view[:0]

    def add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._name = data[start:end]
        self._value = b""

    def add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value = data[start:end]

    def end_header(self) -> None:
        name = self._name.decode("latin-1").lower()
        if name in self._headers:
            raise InvalidRequest(f"A part of the form names its header {name!r} twice.")
        self._headers[name] = self._value

    def end_headers(self) -> None:
        """Reads the name of the part; raises :class:`InvalidRequest`."""
        kind, options = parse_options_header(
            self._headers.get("content-disposition", b"").decode("latin-1")
        )
        name = _read_text(options.get(b"name", b""))
        if kind != b"form-data" or not name:
            raise InvalidRequest(
                "A part of the form has no name: Content-Disposition: form-data; name=…"
            )
        encoding = self._headers.get("content-transfer-encoding", b"binary").strip().lower()
        if encoding not in (b"binary", b"8bit", b"7bit"):
            raise field_error(name, "Send it without Content-Transfer-Encoding.")
        filename = options.get(b"filename")
        self._field = name
        self._filename = None if filename is None else _read_text(filename)

    def add_data(self, data: bytes, start: int, end: int) -> None:
        # The whole body is one write, so the data of a part come at once.
        self._data = self._view[start:end]

    def end_part(self) -> None:
        content_type = self._headers.get("content-type")
        if self._filename is None and len(self._data) > MAX_TEXT_BYTES:
            raise field_error(self._field, f"Is longer than {MAX_TEXT_BYTES:,} bytes.")
        self.parts.append(
            FormPart(
                self._field,
                self._data,
                self._filename,
                None if content_type is None else content_type.decode("latin-1"),
            )
        )

    def end(self) -> None:
        self.has_ended = True


def _read_text(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("A name in the form is not valid UTF-8.") from None
    if CONTROL_CHARACTERS.search(text):
        raise InvalidRequest("A name in the form contains control characters.")
    return text


def to_json(
    parts: Sequence[FormPart], kinds: Mapping[str, FieldKind]
) -> tuple[bytes, list[FormPart]]:
    """Returns the texts of a form as one JSON object, and its files.

    A field that ``kinds`` does not name is text. An empty text is null, except in a list. Raises
    :class:`InvalidRequest` with the name of the wrong field.
    """
    fields: dict[str, Any] = {}
    files: list[FormPart] = []
    for part in parts:
        if part.filename is not None:
            files.append(part)
            continue
        name = part.name.removesuffix("[]")
        kind = kinds.get(name)
        if kind is not FieldKind.LIST and (name := part.name) in fields:
            raise field_error(name, "The form names this field twice; name it once.")
        try:
            text = str(part.data, "utf-8")
        except UnicodeDecodeError:
            raise field_error(name, "Is not valid UTF-8.") from None
        if kind is FieldKind.LIST:
            fields.setdefault(name, []).append(text)
        else:
            fields[name] = _read_value(name, text, kind or FieldKind.TEXT)
    return _encode(fields), files


def _read_value(name: str, text: str, kind: FieldKind) -> Any:
    if not text or (text == "null" and kind is not FieldKind.TEXT):
        return None
    match kind:
        case FieldKind.TEXT:
            return text
        case FieldKind.BOOLEAN if text in ("true", "false"):
            return text == "true"
        case FieldKind.JSON | FieldKind.NUMBER:
            try:
                value = msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                value = None
            if kind is FieldKind.JSON and value is not None:
                return msgspec.Raw(text.encode())
            if isinstance(value, int | float) and not isinstance(value, bool):
                return value
    raise field_error(name, f"Expected {kind.value}, got other text.")
