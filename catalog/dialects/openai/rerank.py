"""Rerank in the formats of Cohere (version 2), Jina and Voyage, which other servers speak as well.

https://docs.cohere.com/reference/rerank, https://jina.ai/reranker and
https://docs.voyageai.com/reference/reranker-api describe them. They agree on ``model``, ``query``
and ``documents``, and differ in the rest: in the name of the limit, in where the results stand, and
in what they count.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from catalog.dialects.base import Call, InvalidReply, Ranked, Reply, read_usage
from catalog.dialects.openai.members import NULL, ReportedUsage, decode_usage, read_text
from catalog.pricing import Usage

# The end of a URL at which Cohere speaks OpenAI's interface, and the path of its own, which alone
# has a rerank.
_COMPATIBLE: Final = "/compatibility/v1"
_OWN: Final = "/v2"
# Members that the gateway itself applies, because servers disagree on their names; and the user,
# whom no server of a rerank knows.
_APPLIED: Final = frozenset(("top_n", "return_documents", "stream", "user"))


class _Document(msgspec.Struct, omit_defaults=True):
    text: str | None = None
    image: str | None = None


class _Units(msgspec.Struct):
    search_units: Any = None
    input_tokens: Any = None
    total_tokens: Any = None


class _Meta(msgspec.Struct):
    billed_units: _Units | None = None
    tokens: _Units | None = None


_decode_results = msgspec.json.Decoder(list[Ranked]).decode
_decode_documents = msgspec.json.Decoder(list[str | _Document]).decode
_decode_meta = msgspec.json.Decoder(_Meta | None).decode


def place_rerank(base_url: str | None) -> str:
    """Returns the URL of the rerank beside an interface of OpenAI's format."""
    base_url = base_url or ""
    if base_url.endswith(_COMPATIBLE):
        return f"{base_url.removesuffix(_COMPATIBLE)}{_OWN}/rerank"
    return f"{base_url}/rerank"


def write_rerank(call: Call) -> dict[str, Any]:
    """Returns the fields of a request: every server takes documents as texts."""
    fields = {name: value for name, value in call.fields.items() if name not in _APPLIED}
    documents = fields["documents"]
    if isinstance(documents, msgspec.Raw):
        documents = _decode_documents(documents)
        fields["documents"] = [_write_document(each) for each in documents]
    return fields


def _write_document(document: str | _Document) -> Any:
    if isinstance(document, _Document) and document.image is None:
        return document.text
    return document


def parse_rerank(fields: dict[str, msgspec.Raw]) -> Reply:
    """Returns a reply of results in the order of the server."""
    try:
        results = _decode_results(fields.get("results") or fields.get("data", NULL))
    except (msgspec.DecodeError, RecursionError):
        raise InvalidReply("The results of the answer are malformed.") from None
    return Reply(
        fields={"results": results},
        model=read_text(fields, "model"),
        usage=_parse_usage(fields),
        finish_reason="stop",
        upstream_id=read_text(fields, "id"),
        choices=len(results),
    )


def _parse_usage(fields: dict[str, msgspec.Raw]) -> Usage | None:
    """Returns the tokens of ``usage``, or the units of ``meta``; ``None`` without either."""
    usage = decode_usage(fields.get("usage", NULL)) or ReportedUsage()
    try:
        meta = _decode_meta(fields.get("meta", NULL)) or _Meta()
    except (msgspec.DecodeError, RecursionError):
        return None
    billed, counted = meta.billed_units or _Units(), meta.tokens or _Units()
    units = billed.search_units
    if isinstance(units, float) and units.is_integer():
        units = int(units)
    candidates = (
        usage.prompt_tokens, usage.total_tokens, billed.input_tokens, billed.total_tokens,
        counted.input_tokens,
    )  # fmt: skip
    tokens = next((each for each in candidates if each is not None), None)
    if tokens is None and units is not None:
        tokens = 0
    return read_usage(tokens, 0, searches=units)
