"""Rerank: the body of a request, how it is read, and how its answer is completed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from catalog.dialects.base import InvalidReply, Ranked, Reply
from catalog.dialects.shared.raw import first_byte, is_null
from catalog.pricing import Usage
from catalog.tokens import TextCounts
from inference.requests.limits import MAX_ALL_CHOICES
from inference.requests.problems import field_error
from inference.requests.rows import Demands, Fields, RequestRow, add_value, name_model
from inference.requests.schemas import ProviderPreferences, Session, Slug, User

# A provider may wrap each pair of query and document in instructions for the model.
_PAIR_TOKENS: Final = 128
# Cohere counts documents in chunks of at most this many tokens, which begin with the query; of a
# long query it takes the first 256 tokens. A search unit is a query with up to 100 chunks.
_CHUNK_TOKENS: Final = 500
_QUERY_TOKENS: Final = 256
_UNIT_CHUNKS: Final = 100


class RerankDocument(msgspec.Struct, forbid_unknown_fields=True):
    """A document with a text, an image (a URL or a data URI), or both."""

    text: str | None = None
    image: Annotated[str, msgspec.Meta(min_length=1)] | None = None


class RerankRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /rerank``; other fields are sent upstream unchanged."""

    model: Slug
    query: Annotated[str, msgspec.Meta(min_length=1)]
    documents: Annotated[
        list[str | RerankDocument], msgspec.Meta(min_length=1, max_length=MAX_ALL_CHOICES)
    ]
    top_n: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    return_documents: bool | None = None
    provider: ProviderPreferences | None = None
    user: User | None = None
    session_id: Session | None = None
    stream: bool | None = None


_decode_documents = msgspec.json.Decoder(list[str | RerankDocument]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_limit = msgspec.json.Decoder(int | None).decode
_decode_flag = msgspec.json.Decoder(bool | None).decode
_NONE: Final = msgspec.Raw(b"null")


def _check(request: RerankRequest, fields: Fields) -> None:
    for index, document in enumerate(request.documents):
        if isinstance(document, RerankDocument) and not (document.text or document.image):
            raise field_error(f"documents[{index}]", "Needs a text or an image.")


def _find_images(request: RerankRequest) -> Iterable[dict[str, msgspec.Raw]]:
    """Yields the images of the documents as parts of a prompt."""
    for document in request.documents:
        if isinstance(document, RerankDocument) and document.image is not None:
            yield {"image_url": msgspec.Raw(msgspec.json.encode(document.image))}


def _read_demands(request: RerankRequest) -> Demands:
    """Returns the demands: a prompt has the query for each document, and what joins the two."""
    query = len(request.query.encode())
    return Demands(added_tokens=(query + _PAIR_TOKENS) * len(request.documents))


def _allow_units(fields: Fields) -> Usage:
    """Returns the most search units that the request can cost: a token has at least one byte."""
    room = _CHUNK_TOKENS - min(len(fields["query"]) - 2, _QUERY_TOKENS)
    documents = _decode_documents(fields["documents"])
    return _count_units(sum(max(1, -(-_measure(each) // room)) for each in documents))


def _count_least_units(fields: Fields) -> Usage:
    return _count_units(len(_decode_documents(fields["documents"])))


def _count_units(chunks: int) -> Usage:
    return Usage(0, 0, searches=-(-chunks // _UNIT_CHUNKS))


def _measure(document: str | RerankDocument) -> int:
    text = document if isinstance(document, str) else document.text or ""
    return len(text.encode())


def _count_text(fields: Fields) -> TextCounts:
    """Counts the documents, and the query as often as it is read with one."""
    documents, counts = _decode_documents(fields["documents"]), TextCounts()
    add_value(counts, fields["query"], len(documents))
    for each in documents:
        counts.add((each if isinstance(each, str) else each.text) or "")
    return counts


def _complete(fields: Fields, reply: Reply) -> None:
    """Sorts the results, takes the best ones, and adds the documents that were sent.

    The size of the reply grows by theirs. Raises :class:`InvalidReply` unless each document has one
    result, or the best ``top_n`` do.
    """
    documents = _decode_list(fields["documents"])
    limit = _decode_limit(fields.get("top_n", _NONE)) or len(documents)
    has_documents = _decode_flag(fields.get("return_documents", _NONE)) is not False
    ranked: list[Ranked] = reply.fields["results"]
    if any(not 0 <= each.index < len(documents) for each in ranked):
        raise InvalidReply("A result of the answer has an index that no document has.")
    if len({each.index for each in ranked}) != len(ranked):
        raise InvalidReply("Two results of the answer have the same document.")
    wanted = min(limit, len(documents))
    if len(ranked) < wanted:
        raise InvalidReply(f"The answer has {len(ranked)} results instead of {wanted}.")
    # Equal scores keep the order of the provider.
    ranked = sorted(ranked, key=lambda each: -each.relevance_score)[:wanted]
    reply.fields["results"] = [
        {
            "index": each.index,
            "relevance_score": each.relevance_score,
            **({"document": _echo(documents[each.index])} if has_documents else {}),
        }
        for each in ranked
    ]
    reply.choices = len(ranked)
    if has_documents:
        reply.size += sum(len(documents[each.index]) for each in ranked)
    if reply.usage is not None and not reply.usage.searches:
        # Servers that count tokens do not count search units.
        least = _count_units(len(documents)).searches
        reply.usage = replace(reply.usage, searches=least)


def _echo(document: msgspec.Raw) -> Any:
    """Returns a document in the form of an object; its text and its image are not decoded."""
    if first_byte(document) == b'"':
        return {"text": document}
    return {name: raw for name, raw in _decode_members(document).items() if not is_null(raw)}


ROW: Final = RequestRow(
    shape=RerankRequest,
    models=name_model,
    check=_check,
    answers=lambda request: len(request.documents),
    answers_field="documents",
    parts=_find_images,
    demands=_read_demands,
    allowed=_allow_units,
    least=_count_least_units,
    count_text=_count_text,
    reserved=frozenset(("query", "documents", "top_n", "return_documents")),
    complete=_complete,
)
