"""Parses whole answers of embeddings."""

from __future__ import annotations

import msgspec

from catalog.dialects.base import InvalidReply, Reply
from catalog.dialects.openai.members import NULL, parse_usage, read_text


class _Embedding(msgspec.Struct):
    """One vector: numbers, or their bytes in Base64. It stays raw, because it can be long."""

    embedding: msgspec.Raw


_decode_embeddings = msgspec.json.Decoder(list[_Embedding]).decode


def parse_embeddings(fields: dict[str, msgspec.Raw]) -> Reply:
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
