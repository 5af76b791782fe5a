"""Parses the members that answers of every operation have: error, usage and texts."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from catalog.dialects.base import parse_error, read_usage
from catalog.pricing import Usage

NULL: Final = msgspec.Raw(b"null")


# The members of the details of a usage that count, and our names for them.
_PROMPT_DETAILS: Final = {
    "cached_tokens": "cached", "cache_write_tokens": "cache_write", "audio_tokens": "audio",
}  # fmt: skip
_COMPLETION_DETAILS: Final = {
    "reasoning_tokens": "reasoning", "image_tokens": "image_output",
    "audio_tokens": "audio_output",
}  # fmt: skip


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    total_tokens: Any = None
    prompt_tokens_details: Any = None
    completion_tokens_details: Any = None
    # The searches of the web, as OpenRouter, Perplexity and xAI report them.
    server_tool_use: Any = None
    server_tool_use_details: Any = None
    num_search_queries: Any = None
    num_sources_used: Any = None
    # What Perplexity's research counts beside prompt and completion.
    citation_tokens: Any = None
    reasoning_tokens: Any = None

    @property
    def searches(self) -> Any:
        """The count of searches that the provider reports; ``None`` without one."""
        for tools in (self.server_tool_use_details, self.server_tool_use):
            if isinstance(tools, dict):
                count = tools.get("web_search_requests")
                if count is not None:
                    return count
        if self.num_search_queries is not None:
            return self.num_search_queries
        return self.num_sources_used


_decode_usage = msgspec.json.Decoder(_Usage | None).decode
decode_text: Final = msgspec.json.Decoder(str).decode


def raise_for_error(fields: dict[str, msgspec.Raw]) -> None:
    error = fields.get("error")
    if error is not None and error != NULL:
        raise parse_error(b'{"error":' + bytes(error) + b"}")


def parse_usage(fields: dict[str, msgspec.Raw], *, completion: int | None = None) -> Usage | None:
    """Returns the usage; ``completion`` replaces the count that embeddings do not have."""
    raw = fields.get("usage")
    if raw is None:
        return None
    try:
        usage = _decode_usage(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    if usage is None:
        return None
    parts: dict[str, Any] = {}
    for details, names in (
        (usage.prompt_tokens_details, _PROMPT_DETAILS),
        (usage.completion_tokens_details, _COMPLETION_DETAILS),
    ):
        if isinstance(details, dict):
            parts |= {names[name]: details[name] for name in names.keys() & details.keys()}
    if (searches := usage.searches) is not None:
        parts["searches"] = searches
    if usage.citation_tokens is not None:
        parts["citations"] = usage.citation_tokens
        parts["research"] = usage.reasoning_tokens
    counted = read_usage(
        usage.prompt_tokens,
        usage.completion_tokens if completion is None else completion,
        **parts,
    )
    if counted is not None and counted.reasoning:
        # Some servers do not count reasoning as part of the completion; only the total shows it.
        beside = counted.completion + counted.reasoning
        if usage.total_tokens == counted.prompt + beside:
            return replace(counted, completion=beside)
    return counted


def read_text(fields: dict[str, msgspec.Raw], name: str) -> str | None:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return decode_text(raw)
    except msgspec.DecodeError:
        return None
