"""Answers of other wire formats, written in the shape of OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from catalog.dialects.base import Chunk, InvalidStream, Reply, read_usage
from catalog.dialects.shared.sse import EventTooLarge
from catalog.pricing import Usage

Event = TypeVar("Event")
Event_co = TypeVar("Event_co", covariant=True)

ANTHROPIC_FORMAT: Final = "anthropic-claude-v1"
GEMINI_FORMAT: Final = "google-gemini-v1"
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Said:
    """What the model said: all of it, or one piece of a stream."""

    text: str = ""
    reasoning: str = ""
    details: list[dict[str, Any]] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    images: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Tells whether there is anything to relay."""
        return bool(self.text or self.reasoning or self.details or self.tool_calls or self.images)

    @property
    def size(self) -> int:
        """Returns the bytes that the model wrote, for an estimate where nobody counted tokens."""
        calls = len(_encode(self.tool_calls)) if self.tool_calls else 0
        return len(self.text.encode()) + len(self.reasoning.encode()) + calls

    def message(self) -> dict[str, Any]:
        """Returns the message of a whole answer."""
        has_content = self.text or not self.tool_calls
        return {
            "role": "assistant",
            "content": self.text if has_content else None,
            **self._others(),
        }

    def delta(self) -> dict[str, Any]:
        """Returns one delta of a stream."""
        return {**({"content": self.text} if self.text else {}), **self._others()}

    def _others(self) -> dict[str, Any]:
        members = {
            "reasoning": self.reasoning,
            "reasoning_details": self.details,
            "tool_calls": self.tool_calls,
            "images": self.images,
        }
        return {name: value for name, value in members.items() if value}


@dataclass(frozen=True, slots=True)
class Finish:
    """Why the model stopped: OpenAI's word for it, and the provider's own."""

    reason: str
    native: str


def thought(
    format_name: str,
    index: int,
    *,
    text: str | None = None,
    signature: str | None = None,
    data: str | None = None,
    call_id: str | None = None,
) -> dict[str, Any]:
    """Returns a member of ``reasoning_details``; with ``data``, an encrypted one."""
    members = {"text": text, "signature": signature, "data": data, "id": call_id}
    return {
        "type": "reasoning.text" if data is None else "reasoning.encrypted",
        **{name: value for name, value in members.items() if value is not None},
        "format": format_name,
        "index": index,
    }


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def image(media_type: str, data: str) -> dict[str, Any]:
    """Returns a member of ``images``: a picture that the model made."""
    return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}


def reply(
    choices: list[tuple[Said, Finish]],
    *,
    usage: Usage | None,
    model: str | None = None,
    upstream_id: str | None = None,
) -> Reply:
    """Returns a whole completion."""
    fields: dict[str, Any] = {
        "choices": [
            {"index": index, "message": said.message(), "logprobs": None, **_finish_members(finish)}
            for index, (said, finish) in enumerate(choices)
        ]
    }
    if usage is not None:
        fields["usage"] = _usage_members(usage)
    return Reply(
        fields=fields,
        model=model,
        usage=usage,
        finish_reason=choices[0][1].reason,
        output_bytes=sum(said.size for said, _ in choices),
        upstream_id=upstream_id,
    )


def chunk(
    said: Said | None = None,
    *,
    index: int = 0,
    is_first: bool = False,
    finish: Finish | None = None,
    usage: Usage | None = None,
    model: str | None = None,
    upstream_id: str | None = None,
) -> Chunk:
    """Returns one event of a stream; with a usage alone, the one that carries no choice."""
    fields: dict[str, Any] = {"choices": []}
    has_choices = said is not None or finish is not None
    if has_choices:
        delta = {} if said is None else said.delta()
        if is_first:
            delta = {"role": "assistant", "content": "", **delta}
        members = {"finish_reason": None} if finish is None else _finish_members(finish)
        fields["choices"].append({"index": index, "delta": delta, **members})
    if usage is not None:
        fields["usage"] = _usage_members(usage)
    return Chunk(
        fields=fields,
        model=model,
        usage=usage,
        finish_reason=None if finish is None else finish.reason,
        output_bytes=0 if said is None else said.size,
        has_choices=has_choices,
        upstream_id=upstream_id,
    )


def done() -> Chunk:
    """Returns the end mark of a stream."""
    return Chunk(fields={}, is_done=True)


def count_usage(prompt: Iterable[Any], completion: Iterable[Any], **details: Any) -> Usage | None:
    """Adds up the counts that a provider gives apart; one that is left out is zero."""
    return read_usage(_sum(prompt), _sum(completion), **details)


def _sum(counts: Iterable[Any]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            continue
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            return None
        total += count
    return total


def _finish_members(finish: Finish) -> dict[str, Any]:
    return {"finish_reason": finish.reason, "native_finish_reason": finish.native}


def _usage_members(usage: Usage) -> msgspec.Raw:
    return msgspec.Raw(
        _encode(
            {
                "prompt_tokens": usage.prompt,
                "completion_tokens": usage.completion,
                "total_tokens": usage.prompt + usage.completion,
                "prompt_tokens_details": {
                    "cached_tokens": usage.cached,
                    "cache_write_tokens": usage.cache_write,
                },
                "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
            }
        )
    )


class CallsOfBlocks:
    """Follows the tool calls of a stream whose events tell content blocks by their index."""

    __slots__ = ("_numbers", "_silent")

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._silent: set[int] = set()

    def begun(self, block: int, call_id: str, name: str, arguments: str = "") -> Said:
        number = self._numbers[block] = len(self._numbers)
        if not arguments:
            self._silent.add(block)
        return Said(tool_calls=[{"index": number, **tool_call(call_id, name, arguments)}])

    def continued(self, block: int, arguments: str) -> Said:
        """Returns a piece of a call's arguments; of a block that is no call, nothing."""
        if not arguments or block not in self._numbers:
            return Said()
        self._silent.discard(block)
        call = {"index": self._numbers[block], "function": {"arguments": arguments}}
        return Said(tool_calls=[call])

    def ended(self, block: int) -> Said:
        """Returns the arguments that a call without any still needs: callers parse them."""
        return self.continued(block, "{}") if block in self._silent else Said()


class Decoder(Protocol[Event_co]):
    """Cuts bytes into events."""

    def feed(self, data: bytes) -> Iterable[Event_co]:
        """Yields the events that these bytes complete."""
        ...

    @property
    def is_complete(self) -> bool:
        """Tells whether everything fed so far ended at an event's end."""
        ...


class Parser(Generic[Event]):
    """Reads one stream with a decoder of its framing and a reader of its events.

    The reader returns what an event makes of chunks; nothing after the end mark counts. Where a
    format has none, ``ended`` returns what the end of the body makes of them, if it is one.
    """

    __slots__ = ("_decoder", "_ended", "_is_done", "_read", "pending")

    def __init__(
        self,
        decoder: Decoder[Event],
        read: Callable[[Event], Iterable[Chunk]],
        ended: Callable[[], list[Chunk]] = list,
    ) -> None:
        self._decoder = decoder
        self._read = read
        self._ended = ended
        self._is_done = False
        self.pending: list[Chunk] = []

    def feed(self, data: bytes) -> list[Chunk]:
        chunks: list[Chunk] = []
        self.pending = chunks
        if self._is_done:
            return chunks
        try:
            for event in self._decoder.feed(data):
                for made in self._read(event):
                    chunks.append(made)
                    if made.is_done:
                        self._is_done = True
                        return chunks
        except EventTooLarge:
            raise InvalidStream("An event of the stream is too large.") from None
        return chunks

    def finish(self) -> list[Chunk]:
        if self._is_done:
            return []
        if not self._decoder.is_complete:
            raise InvalidStream("The stream was cut off inside an event.")
        if chunks := self._ended():
            self._is_done = True
            return chunks
        raise InvalidStream("The stream ended without its end mark.")
