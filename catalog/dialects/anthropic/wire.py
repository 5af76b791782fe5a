"""The members of Anthropic's replies and events from which the gateway learns something."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from catalog.dialects.base import read_count
from catalog.dialects.shared import replies
from catalog.dialects.shared.raw import first_byte, is_null
from catalog.pricing import Usage

# The first words of the line with which Claude Code tells Anthropic about itself.
ATTRIBUTION: Final = "x-anthropic-billing-header:"
# The header that names the betas of a request.
BETA: Final = "anthropic-beta"


def split_betas(text: str) -> list[str]:
    """Returns the names in the header of betas."""
    return [beta for each in text.split(",") if (beta := each.strip())]


class _OutputDetails(msgspec.Struct):
    thinking_tokens: Any = None


class _CacheCreation(msgspec.Struct):
    """Tokens written to the cache by the time for which they stay."""

    ephemeral_1h_input_tokens: Any = None


class _ServerToolUse(msgspec.Struct):
    web_search_requests: Any = None


class _Iteration(msgspec.Struct):
    """One pass of the model over the prompt; a compaction reads all of it and writes a summary."""

    type: Any = None
    input_tokens: Any = None
    output_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None
    cache_creation: _CacheCreation | None = None


class MessageUsage(msgspec.Struct):
    input_tokens: Any = None
    output_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None
    output_tokens_details: _OutputDetails | None = None
    cache_creation: _CacheCreation | None = None
    server_tool_use: _ServerToolUse | None = None
    iterations: list[_Iteration] | None = None

    @property
    def counts_reasoning(self) -> bool:
        details = self.output_tokens_details
        return details is not None and details.thinking_tokens is not None

    @property
    def prompt_usage(self) -> Usage | None:
        """Returns the usage of the prompt, which is known when a stream begins.

        Some streams begin with zeros and report the counts at the end; then the result is ``None``.
        """
        prompt = msgspec.structs.replace(
            self, output_tokens=0, output_tokens_details=None, iterations=None
        )
        total = prompt.add_up(MessageUsage())
        return total if total is not None and total.prompt else None

    def count_searches(self, searches: int) -> Usage | None:
        """Returns the usage of the prompt with the searches so far; ``None`` if it tells no more.

        Anthropic counts them at the end, which may never come.
        """
        usage = self.prompt_usage
        if usage is None or usage.searches >= searches:
            return None
        return msgspec.structs.replace(usage, searches=searches)

    def add_up(self, earlier: MessageUsage) -> Usage | None:
        """Returns the usage; a count that this event lacks comes from an earlier event.

        Anthropic bills compactions of the prompt too, but counts them in ``iterations`` alone.
        """

        def latest(name: str) -> Any:
            value, before = getattr(self, name), getattr(earlier, name)
            if value is None:
                return before
            # Some servers repeat the counts of the beginning as zero.
            counts = read_count(value), read_count(before)
            return max(filter(None, counts), default=0) if any(counts) else value

        if self.output_tokens is None or latest("input_tokens") is None:
            return None
        added = [each for each in latest("iterations") or () if each.type == "compaction"]

        def every(name: str) -> tuple[Any, ...]:
            return latest(name), *(getattr(each, name) for each in added)

        read, written = every("cache_read_input_tokens"), every("cache_creation_input_tokens")
        details = self.output_tokens_details or _OutputDetails()
        creations = (latest("cache_creation"), *(each.cache_creation for each in added))
        tools = latest("server_tool_use") or _ServerToolUse()
        return replies.split_writes(
            replies.count_usage(
                (*every("input_tokens"), *read, *written),
                (latest("output_tokens"), *(each.output_tokens for each in added)),
                cached=replies.sum_counts(read),
                cache_write=replies.sum_counts(written),
                reasoning=details.thinking_tokens,
                cache_write_1h=replies.sum_counts(
                    each.ephemeral_1h_input_tokens for each in creations if each is not None
                ),
                searches=tools.web_search_requests,
            )
        )


class Block(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    signature: str | None = None
    data: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()
    citations: Any = None

    @property
    def has_object(self) -> bool:
        """Whether the input is an object, as the SDKs read it."""
        return first_byte(self.input) == b"{"

    @property
    def is_search_result(self) -> bool:
        """Whether a search of the web has succeeded; Anthropic bills no other."""
        return self.type == "web_search_tool_result" and first_byte(self.content) == b"["


class WireMessage(msgspec.Struct):
    type: str = ""
    content: list[Block] = []
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: MessageUsage | None = None
    error: msgspec.Raw = msgspec.Raw()


class BlockDelta(msgspec.Struct):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None
    citation: Any = None
    content: msgspec.Raw = msgspec.Raw()


class StreamEvent(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: WireMessage | None = None
    content_block: Block | None = None
    delta: BlockDelta | None = None
    usage: MessageUsage | None = None
    error: msgspec.Raw = msgspec.Raw()

    @property
    def is_error(self) -> bool:
        """Whether the answer failed; proxies write OpenAI's errors into it, which have no type."""
        return self.type == "error" or not (self.type or is_null(self.error))


decode_message = msgspec.json.Decoder(WireMessage).decode
decode_event = msgspec.json.Decoder(StreamEvent).decode
