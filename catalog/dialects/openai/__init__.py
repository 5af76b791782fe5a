"""OpenAI's completions, embeddings, audio and images, and servers of the same format.

https://platform.openai.com/docs/api-reference describes them. OpenAI has no rerank, but many of the
servers have one, in formats that :mod:`rerank` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from catalog.dialects.base import (
    Body,
    Call,
    InvalidReply,
    Operation,
    Reply,
    StreamParser,
    decode_object,
)
from catalog.dialects.openai.images import EDITS, image_parameters, images_parser, parse_images
from catalog.dialects.openai.members import (
    NULL,
    PLAIN_REASONS,
    Choice,
    add_long_reasoning,
    add_reasoning,
    count_pictures,
    find_finish_reason,
    find_usage,
    measure_choices,
    parse_choices,
    parse_usage,
    raise_for_error,
    read_text,
)
from catalog.dialects.openai.repair import repair_whole
from catalog.dialects.openai.requests import MISTRAL_HOST, build_request
from catalog.dialects.openai.rerank import parse_rerank, place_rerank, write_rerank
from catalog.dialects.openai.responses import PATH, NativeResponses, build_response
from catalog.dialects.openai.speech import SpeechParser, refuse_whole_speech
from catalog.dialects.openai.stream import ChoicesParser
from catalog.dialects.openai.transcriptions import parse_transcription
from catalog.dialects.shared.credentials import host_of_url
from catalog.dialects.shared.images.pictures import shows_images
from catalog.dialects.shared.raw import LONG_BYTES, count_characters, is_null
from config.egress import OutboundRequest


def _parse_chat(fields: dict[str, msgspec.Raw]) -> Reply:
    """Returns a reply of messages."""
    choices = parse_choices(fields)
    notes: set[str] = set()
    members: dict[str, Any] = fields
    for choice in choices:
        if (part := choice.message) is None:
            raise InvalidReply("A choice of the answer has no content.")
        is_marked = part.is_marked or not isinstance(choice.index, int)
        if is_marked or choice.finish_reason not in PLAIN_REASONS:
            members = {**fields, "choices": repair_whole(fields["choices"], notes)}
            break
        if part.reasoning or part.reasoning_content:
            is_long = len(fields["choices"]) > LONG_BYTES
            add = add_long_reasoning if is_long else add_reasoning
            members = {**fields, "choices": add(fields["choices"])}
    reply = _build_reply(members, choices, notes)
    if any(choice.message and choice.message.images for choice in choices) or notes:
        reply.pictures = count_pictures(reply.fields["choices"])
    return reply


def _parse_text(fields: dict[str, msgspec.Raw]) -> Reply:
    """Returns a reply of texts."""
    choices = parse_choices(fields)
    if any(is_null(choice.text) for choice in choices):
        raise InvalidReply("A choice of the answer has no content.")
    return _build_reply(fields, choices, set())


def _build_reply(members: dict[str, Any], choices: list[Choice], notes: set[str]) -> Reply:
    if not choices:
        raise InvalidReply("The answer has no choices.")
    size, sound = measure_choices(choices)
    return Reply(
        fields={**members},
        model=read_text(members, "model"),
        usage=parse_usage(members) if "usage" in members else find_usage(members),
        finish_reason=find_finish_reason(choices) or ("stop" if size or sound else None),
        output_bytes=size + sound,
        characters=measure_choices(choices, count_characters)[0] if choices[1:] else 0,
        sound=sound,
        upstream_id=read_text(members, "id"),
        choices=len(choices),
        notes=frozenset(notes),
    )


class _Embedding(msgspec.Struct):
    """One vector: numbers, or their bytes in Base64. It stays raw, because it can be long."""

    embedding: msgspec.Raw


_VOYAGE: Final = "://api.voyageai.com/"
_FLOAT: Final = msgspec.Raw(b'"float"')
_decode_embeddings = msgspec.json.Decoder(list[_Embedding]).decode


def _parse_embeddings(fields: dict[str, msgspec.Raw]) -> Reply:
    """Returns a reply of vectors, which always has the finish reason ``stop``."""
    try:
        vectors = _decode_embeddings(fields.get("data", NULL))
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("The embeddings of the answer are malformed.") from None
    if not vectors or any(bytes(each.embedding)[:1] not in (b"[", b'"') for each in vectors):
        raise InvalidReply("The answer has no embeddings.")
    return Reply(
        fields=fields,
        model=read_text(fields, "model"),
        usage=parse_usage(fields, completion=0),
        finish_reason="stop",
        upstream_id=read_text(fields, "id"),
        choices=len(vectors),
    )


# The parser of whole answers of each operation.
_PARSERS: Final[Mapping[Operation, Callable[[dict[str, msgspec.Raw]], Reply]]] = {
    Operation.CHAT: _parse_chat,
    Operation.TEXT: _parse_text,
    Operation.EMBEDDINGS: _parse_embeddings,
    Operation.SPEECH: refuse_whole_speech,
    Operation.TRANSCRIPTION: parse_transcription,
    Operation.RERANK: parse_rerank,
    Operation.IMAGES: parse_images,
}


def _write_embeddings(call: Call) -> Mapping[str, Any]:
    """Returns the fields of a request; Voyage has names of its own, and refuses all others.

    https://docs.voyageai.com/reference/embeddings-api describes them. Vectors are numbers there
    unless a request says otherwise.
    """
    if _VOYAGE not in f"{call.base_url}/":
        return call.fields
    fields = {name: value for name, value in call.fields.items() if name != "user"}
    if "dimensions" in fields:
        fields["output_dimension"] = fields.pop("dimensions")
    if fields.get("encoding_format") == _FLOAT:
        del fields["encoding_format"]
    return fields


# What Mistral names otherwise, and what it refuses; it tells the usage of a stream unasked.
_MISTRAL_NAMES: Final = {
    "dimensions": "output_dimension", "max_completion_tokens": "max_tokens", "seed": "random_seed",
}  # fmt: skip
_MISTRAL_REFUSES: Final = frozenset(("stream_options", "user"))


def _write_mistral(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the fields of a request as https://docs.mistral.ai/api names them."""
    kept = {name: value for name, value in fields.items() if name not in _MISTRAL_REFUSES}
    for name, own in _MISTRAL_NAMES.items():
        if name in kept:
            kept.setdefault(own, kept.pop(name))
    return kept


# Operations whose fields or URL differ from those of the interface.
_WRITERS: Final[Mapping[Operation, Callable[[Call], Mapping[str, Any]]]] = {
    Operation.RERANK: write_rerank,
    Operation.EMBEDDINGS: _write_embeddings,
}
_PLACES: Final = {Operation.RERANK: place_rerank}

operations: Final = frozenset(_PARSERS)
names_deployments: Final = False
host = host_of_url


def path(call: Call) -> str:
    """Returns the path of a call: a request that shows the model images is an edit of them."""
    if call.operation is Operation.IMAGES and shows_images(call.fields):
        return EDITS
    return call.operation


def build(call: Call) -> OutboundRequest:
    place = _PLACES.get(call.operation)
    if (write := _WRITERS.get(call.operation)) is not None:
        call = replace(call, fields=write(call))
    if MISTRAL_HOST in (call.base_url or ""):
        call = replace(call, fields=_write_mistral(call.fields))
    return build_request(
        call,
        f"{call.base_url}/{path(call)}" if place is None else place(call.base_url),
        call.secret.in_header("Authorization", "Bearer "),
    )


def _build_native(call: Call) -> OutboundRequest:
    login = call.secret.in_header("Authorization", "Bearer ")
    return build_response(call, f"{call.base_url}/{PATH}", login)


native: Final = NativeResponses(host, _build_native)


def parse_reply(operation: Operation, body: Body) -> Reply:
    fields = decode_object(body)
    if fields is None:
        raise InvalidReply("The answer is not a JSON object.")
    raise_for_error(fields)
    return _PARSERS[operation](fields)


def stream_parser(operation: Operation, choices: int = 1) -> StreamParser:
    match operation:
        case Operation.SPEECH:
            return SpeechParser()
        case Operation.IMAGES:
            return images_parser(choices)
    return ChoicesParser(choices, is_text=operation is Operation.TEXT)
