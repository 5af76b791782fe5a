"""Embeddings: the body of a request, how it is read, and how its answer is checked."""

from __future__ import annotations

import base64
import binascii
import math
import sys
from array import array
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec

from catalog.dialects.base import InvalidReply, Reply, UnusableReply
from catalog.dialects.shared.raw import first_byte, is_null, read_text
from catalog.tokens import UNSTATED_LIMITS, TextCounts
from inference.requests.operations.completions import PARAMETERS
from inference.requests.rows import (
    Demands,
    Fields,
    RequestRow,
    count_inputs,
    find_media,
    name_model,
)
from inference.requests.schemas import ProviderPreferences, Session, Slug, User


class EmbeddingsItem(msgspec.Struct):
    content: Annotated[list[dict[str, msgspec.Raw]], msgspec.Meta(min_length=1)]


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /embeddings``: texts, tokens, or items with parts of several kinds."""

    input: str | Annotated[list[str | int | list[int] | EmbeddingsItem], msgspec.Meta(min_length=1)]
    model: Slug
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    input_type: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    provider: ProviderPreferences | None = None
    user: User | None = None
    session_id: Session | None = None
    stream: bool | None = None


def _count_vectors(request: EmbeddingsRequest) -> int:
    # A list of integers is one input in tokens.
    inputs = () if isinstance(request.input, str) else request.input
    return max(1, sum(not isinstance(part, int) for part in inputs))


def _read_demands(request: EmbeddingsRequest) -> Demands:
    """Returns the demands: a server writes a sentence before each input."""
    return Demands(added_tokens=UNSTATED_LIMITS.input * _count_vectors(request))


def _find_media(request: EmbeddingsRequest) -> Iterable[dict[str, msgspec.Raw]]:
    inputs = () if isinstance(request.input, str) else request.input
    return find_media(item.content for item in inputs if isinstance(item, EmbeddingsItem))


def _count_text(fields: Fields) -> TextCounts:
    return count_inputs(fields["input"])


_NULL: Final = msgspec.Raw(b"null")
_OBJECT: Final = msgspec.Raw(b'"embedding"')
# The fields of Voyage and Mistral, of Jina, and of others that ask for other numbers than floats,
# and the values that do not.
_TYPES: Final = ("output_dtype", "embedding_type", "encoding_format")
_FLOATS: Final = ("float", "base64")
_encode = msgspec.json.Encoder().encode
_decode_items = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_number = msgspec.json.Decoder(int | None).decode
_decode_numbers = msgspec.json.Decoder(list[float]).decode
_decode_text = msgspec.json.Decoder(str).decode


def _complete(fields: Fields, reply: Reply) -> None:
    """Sorts the vectors, names their type, and gives them the form that was asked for.

    Many servers ignore the form, and some leave the type out, which SDKs need.

    Raises :class:`InvalidReply` unless each input has one vector of finite numbers, all of one
    length, and :class:`UnusableReply` for another length than was asked for. Quantized vectors of
    one length pass as they are: their bytes are no floats, and may have eight dimensions each.
    """
    try:
        items = _decode_items(reply.fields["data"])
        places = [_decode_number(item.get("index", _NULL)) for item in items]
    except msgspec.DecodeError:
        raise InvalidReply("The embeddings of the answer are malformed.") from None
    wanted = _count_inputs(fields["input"])
    if len(items) != wanted:
        raise InvalidReply(f"The answer has {len(items)} embeddings instead of {wanted}.")
    order = list(range(wanted))
    has_places = any(place is not None for place in places)
    if has_places and sorted(-1 if place is None else place for place in places) != order:
        raise InvalidReply("The embeddings of the answer are not those of the inputs.")
    is_changed = places != order or any(item.get("object") != _OBJECT for item in items)
    if all(_asks_for_floats(fields.get(name, _NULL)) for name in _TYPES):
        is_changed |= _form_vectors(fields, items)
    else:
        _find_length({_measure_quantized(item["embedding"]) for item in items})
    if is_changed:
        if has_places:
            items = [item for _, item in sorted(zip(places, items, strict=True), key=_place)]
        reply.fields["data"] = [
            {**item, "object": _OBJECT, "index": place} for place, item in enumerate(items)
        ]


def _form_vectors(fields: Fields, items: list[dict[str, msgspec.Raw]]) -> bool:
    """Gives vectors of floats the form that was asked for; returns whether one had another."""
    wants_text = read_text(fields.get("encoding_format")) == "base64"
    is_changed = False
    lengths = set()
    for item in items:
        raw = item["embedding"]
        is_text = first_byte(raw) == b'"'
        vector = _read_vector(raw, is_text=is_text)
        lengths.add(len(vector))
        if is_text != wants_text:
            item["embedding"] = _write_vector(vector, is_text=wants_text)
            item.pop("encoding_format", None)
            is_changed = True
    dimensions, length = _read_dimensions(fields), _find_length(lengths)
    if dimensions is not None and length != dimensions:
        raise UnusableReply(f"Its vectors have {length} dimensions; {dimensions} were asked for.")
    return is_changed


def _asks_for_floats(raw: msgspec.Raw) -> bool:
    return is_null(raw) or read_text(raw) in _FLOATS


def _find_length(lengths: set[int]) -> int:
    """Returns the length of all vectors; raises :class:`InvalidReply` if they do not have one."""
    if len(lengths) != 1 or not (length := lengths.pop()):
        raise InvalidReply("The embeddings of the answer do not have one length.")
    return length


def _measure_quantized(raw: msgspec.Raw) -> int:
    """Returns the size of a quantized vector: of its numbers, or of their text in Base64."""
    if first_byte(raw) != b'"':
        return len(_read_vector(raw, is_text=False))
    try:
        return len(_decode_text(raw))
    except (msgspec.DecodeError, ValueError):
        raise InvalidReply("An embedding of the answer is no text.") from None


def _read_dimensions(fields: Fields) -> int | None:
    """Returns the length that was asked for; a provider's options may have any other value."""
    try:
        return _decode_number(fields.get("dimensions", _NULL))
    except msgspec.DecodeError:
        return None


def _place(entry: tuple[int | None, Any]) -> int:
    return entry[0] or 0


def _count_inputs(raw: msgspec.Raw) -> int:
    """Returns the number of inputs; a list of integers is one, in tokens."""
    if first_byte(raw) == b'"':
        return 1
    return max(1, sum(not first_byte(part).isdigit() for part in _decode_list(raw)))


def _read_vector(raw: msgspec.Raw, *, is_text: bool) -> array[float] | list[float]:
    """Returns the numbers of a vector; raises :class:`InvalidReply`."""
    vector: array[float] | list[float]
    try:
        if is_text:
            vector = array("f", base64.b64decode(_decode_text(raw), validate=True))
            if sys.byteorder == "big":
                vector.byteswap()
        else:
            vector = _decode_numbers(raw)
    except (msgspec.DecodeError, binascii.Error, ValueError):
        raise InvalidReply("An embedding of the answer is no list of numbers.") from None
    # A sum of finite numbers of a vector is finite, and what is not stays in the sum.
    if not math.isfinite(sum(vector)):
        raise InvalidReply("An embedding of the answer has a number that is not finite.")
    return vector


def _write_vector(vector: array[float] | list[float], *, is_text: bool) -> msgspec.Raw:
    """Returns a vector as JSON: as numbers, or as their bytes in Base64."""
    if not is_text:
        return msgspec.Raw(_encode(list(vector)))
    numbers = array("f", vector)
    if not math.isfinite(sum(numbers)):
        raise InvalidReply("An embedding of the answer has a number that is too large.")
    if sys.byteorder == "big":
        numbers.byteswap()
    return msgspec.Raw(b'"' + base64.b64encode(numbers.tobytes()) + b'"')


ROW: Final = RequestRow(
    shape=EmbeddingsRequest,
    models=name_model,
    answers=_count_vectors,
    answers_field="input",
    parts=_find_media,
    demands=_read_demands,
    count_text=_count_text,
    parameters=PARAMETERS,
    complete=_complete,
)
