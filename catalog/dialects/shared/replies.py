"""Builds replies in the shape of OpenAI's chat completions from replies of other wire formats.

https://platform.openai.com/docs/api-reference/chat/object describes the shape.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from catalog.dialects.audio import measure_base64
from catalog.dialects.base import Chunk, InvalidStream, Reply, read_count, read_usage
from catalog.dialects.shared.sse import SILENT, EventTooLarge
from catalog.pricing import Usage

Event = TypeVar("Event")
Event_co = TypeVar("Event_co", covariant=True)

ANTHROPIC_FORMAT: Final = "anthropic-claude-v1"
GEMINI_FORMAT: Final = "google-gemini-v1"
# The format of reasoning that no provider has signed: any of them may read it.
UNSIGNED_FORMAT: Final = "unknown"
# Models since the third generation refuse a tool call or a picture of theirs without a signature.
# Google documents this value for what the model did not make; it replaces one that was not kept.
NO_SIGNATURE: Final = "skip_thought_signature_validator"
# The members of a choice that end it.
_ENDS: Final = ("finish_reason", "native_finish_reason", "stop_reason")
LATE_ARGUMENTS: Final = "A tool call got arguments after the next one had begun."
# More pieces in one event are not a model's calls, and each would become an event of its own.
_MOST_SPLIT: Final = 128
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Output:
    """The output of the model: all of it, or one piece of a stream."""

    text: str = ""
    reasoning: str = ""
    details: list[dict[str, Any]] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    images: list[dict[str, Any]] = field(default_factory=list)
    audio: dict[str, Any] = field(default_factory=dict)
    annotations: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Returns whether the output has anything to relay."""
        return bool(
            self.text or self.reasoning or self.details or self.tool_calls or self.images
            or self.audio or self.annotations
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Returns the size in bytes, from which tokens are estimated when the usage is missing."""
        called = [text for call in self.tool_calls for text in call["function"].values()]
        texts = (self.text, self.reasoning, *called)
        return sum(len(text.encode()) for text in texts) + self.sound

    @property
    def sound(self) -> int:
        """Returns what of the size stands for sound."""
        return measure_base64(len(self.audio.get("data", "")))

    def message(self) -> dict[str, Any]:
        """Returns the message of a whole reply."""
        has_content = self.text or not self.tool_calls
        return {
            "role": "assistant",
            "content": self.text if has_content else None,
            **self._extra_members(),
        }

    def delta(self) -> dict[str, Any]:
        """Returns one delta of a stream."""
        return {**({"content": self.text} if self.text else {}), **self._extra_members()}

    def _extra_members(self) -> dict[str, Any]:
        members = {
            "reasoning": self.reasoning,
            "reasoning_details": self.details,
            "tool_calls": self.tool_calls,
            "images": self.images,
            "audio": self.audio,
            "annotations": self.annotations,
        }
        return {name: value for name, value in members.items() if value}


@dataclass(frozen=True, slots=True)
class Finish:
    """The reason for which the model stopped: OpenAI's name of it, and the provider's name."""

    reason: str
    native: str

    def follow(self, *, has_calls: bool) -> Finish:
        """Returns the reason of an answer whose calls say more than the provider's name."""
        if self.reason not in ("stop", "tool_calls"):
            return self
        return Finish("tool_calls" if has_calls else "stop", self.native)


def name_format(given: str | None, signature: str | None) -> str | None:
    """Returns the format of a thought that a caller sends back.

    Some SDKs join the formats of streamed pieces as if they were text, and others leave out one
    that they do not know. Of the known formats, only Anthropic's signs texts.
    """
    if not given:
        return ANTHROPIC_FORMAT if signature else None
    known = (ANTHROPIC_FORMAT, GEMINI_FORMAT, UNSIGNED_FORMAT)
    return next((each for each in known if not given.replace(each, "")), given)


def build_reasoning_detail(
    format_name: str,
    index: int,
    *,
    text: str | None = None,
    signature: str | None = None,
    data: str | None = None,
    call_id: str | None = None,
) -> dict[str, Any]:
    """Returns an item of ``reasoning_details``; with ``data`` it is an encrypted one."""
    members = {"text": text, "signature": signature, "data": data, "id": call_id}
    return {
        "type": "reasoning.text" if data is None else "reasoning.encrypted",
        **{name: value for name, value in members.items() if value is not None},
        "format": format_name,
        "index": index,
    }


def build_tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def choose_call_id(given: str | None, taken: set[str]) -> str:
    """Returns the provider's id of a call if the answer has it once, else a new one."""
    name = given if given and given not in taken else make_call_id()
    taken.add(name)
    return name


def make_call_id() -> str:
    """Returns an id that no other call of any conversation has."""
    return f"call_{secrets.token_hex(12)}"


def build_image(media_type: str, data: str) -> dict[str, Any]:
    """Returns an item of ``images``: a picture that the model made."""
    return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}


def build_citation(url: str, title: Any, start: int, end: int, quote: Any) -> dict[str, Any]:
    """Returns an item of ``annotations``: the source of a part of the text, in characters."""
    citation: dict[str, Any] = {
        "url": url,
        "title": title if isinstance(title, str) else "",
        "start_index": start,
        "end_index": end,
    }
    if isinstance(quote, str) and quote:
        citation["content"] = quote
    return {"type": "url_citation", "url_citation": citation}


def build_reply(
    choices: list[tuple[Output, Finish]],
    *,
    usage: Usage | None,
    model: str | None = None,
    upstream_id: str | None = None,
    counts_reasoning: bool = False,
) -> Reply:
    """Returns a whole completion."""
    choices = [(each, finish.follow(has_calls=bool(each.tool_calls))) for each, finish in choices]
    taken: set[str] = set()
    for each in (call for output, _ in choices for call in output.tool_calls):
        each["id"] = choose_call_id(each["id"], taken)
    fields: dict[str, Any] = {
        "choices": [
            {
                "index": index,
                "message": output.message(),
                "logprobs": None,
                **_finish_members(finish),
            }
            for index, (output, finish) in enumerate(choices)
        ]
    }
    if usage is not None:
        fields["usage"] = build_usage(usage, counts_reasoning=counts_reasoning)
    return Reply(
        fields=fields,
        model=model,
        usage=usage,
        finish_reason=choices[0][1].reason,
        output_bytes=sum(output.size for output, _ in choices),
        sound=sum(output.sound for output, _ in choices),
        upstream_id=upstream_id,
        choices=len(choices),
        pictures=sum(len(output.images) for output, _ in choices),
    )


def build_chunk(
    output: Output | None = None,
    *,
    index: int = 0,
    is_first: bool = False,
    finish: Finish | None = None,
    usage: Usage | None = None,
    model: str | None = None,
    upstream_id: str | None = None,
    counts_reasoning: bool = False,
) -> Chunk:
    """Returns one event of a stream. An event with only a usage carries no choice.

    ``counts_reasoning`` says that the provider counted the tokens of reasoning, if only to 0.
    """
    fields: dict[str, Any] = {"choices": []}
    has_choices = output is not None or finish is not None
    if has_choices:
        delta = {} if output is None else output.delta()
        if is_first:
            delta = {"role": "assistant", "content": "", **delta}
        members = {"finish_reason": None} if finish is None else _finish_members(finish)
        fields["choices"].append({"index": index, "delta": delta, **members})
    if usage is not None:
        fields["usage"] = build_usage(usage, counts_reasoning=counts_reasoning)
    return Chunk(
        fields=fields,
        model=model,
        usage=usage,
        finish_reason=None if finish is None else finish.reason,
        output_bytes=0 if output is None else output.size,
        sound=0 if output is None else output.sound,
        has_choices=has_choices,
        upstream_id=upstream_id,
        pictures=0 if output is None else len(output.images),
    )


def split_calls(chunk: Chunk) -> list[Chunk]:
    """Returns the chunks into which a chunk is split so that each has a piece of one tool call.

    Providers that stream calls send them so, and some SDKs read only the first call of a chunk. The
    first chunk has everything else, and the last one the end and the counts: nothing is repeated.
    """
    choices = chunk.fields["choices"]
    if not isinstance(choices, list) or len(choices) != 1:
        return [chunk]
    [choice] = choices
    delta = choice.get("delta")
    # It is raw in a completion of text, which has no calls.
    calls = (isinstance(delta, dict) and delta.get("tool_calls")) or ()
    if not 1 < len(calls) <= _MOST_SPLIT:
        return [chunk]
    fields = {**chunk.fields}
    usage = fields.pop("usage", None)
    ends = {name: choice.pop(name) for name in _ENDS if name in choice}
    chunks = []
    for call in calls:
        piece = {**choice, "delta": {**delta, "tool_calls": [call]}, "finish_reason": None}
        chunks.append(
            Chunk(
                fields={**fields, "choices": [piece]},
                model=chunk.model,
                upstream_id=chunk.upstream_id,
                has_choices=True,
            )
        )
        choice, delta, fields = {"index": choice["index"]}, {}, {}
    chunk.fields = {"choices": [{**piece, **ends}]}
    if usage is not None:
        chunk.fields["usage"] = usage
    return [*chunks[:-1], chunk]


def encode_named_event(name: str, data: bytes) -> bytes:
    """Returns an event of a format that names events by the ``type`` of their data.

    JSON allows line ends between its values, and control characters nowhere: as spaces they end no
    event, and change nothing.
    """
    if "\n" in name or "\r" in name:
        raise InvalidStream("An event of the stream is malformed.")
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\n", b" ").replace(b"\r", b" ")
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def build_end_mark(*, is_unmarked: bool = False) -> Chunk:
    """Returns the end mark of a stream, or what stands for a missing one."""
    return Chunk(fields={}, is_done=True, is_unmarked=is_unmarked)


def count_usage(prompt: Iterable[Any], completion: Iterable[Any], **details: Any) -> Usage | None:
    """Adds up counts that a provider reports separately; a missing count is zero."""
    return read_usage(sum_counts(prompt), sum_counts(completion), **details)


def split_writes(usage: Usage | None) -> Usage | None:
    """Returns a usage whose written tokens do not include those that stay for an hour."""
    if usage is None or not usage.cache_write_1h:
        return usage
    hour = min(usage.cache_write_1h, usage.cache_write)
    return msgspec.structs.replace(usage, cache_write=usage.cache_write - hour, cache_write_1h=hour)


def sum_counts(counts: Iterable[Any]) -> int | None:
    """Adds up counts; a missing one is zero, and ``None`` is the sum with one that is no count."""
    total = 0
    for count in counts:
        if count is None:
            continue
        if (read := read_count(count)) is None:
            return None
        total += read
    return total


def _finish_members(finish: Finish) -> dict[str, Any]:
    return {"finish_reason": finish.reason, "native_finish_reason": finish.native}


def build_usage(usage: Usage, *, counts_reasoning: bool = False) -> msgspec.Raw:
    """Returns the usage of a completion as JSON."""
    sent = {"audio_tokens": usage.audio} if usage.audio else {}
    made = {"audio_tokens": usage.audio_output} if usage.audio_output else {}
    if counts_reasoning or usage.reasoning:
        made["reasoning_tokens"] = usage.reasoning
    members: dict[str, Any] = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.cache_write + usage.cache_write_1h,
            **sent,
        },
    }
    if made:
        members["completion_tokens_details"] = made
    if usage.searches:
        members["server_tool_use_details"] = {"web_search_requests": usage.searches}
    return msgspec.Raw(_encode(members))


class ToolCallBlocks:
    """Numbers the tool calls of a stream whose events name content blocks by their index.

    Several blocks may have one index after each other. A block begins after the end of the last
    one, whether the server tells that end or not.
    """

    __slots__ = ("_empty", "_ended", "_ids", "_numbers", "_whole", "notes")

    def __init__(self) -> None:
        self.notes: set[str] = set()
        self._numbers: dict[int, int] = {}
        self._ids: set[str] = set()
        # The calls whose arguments stand where they begin: what follows repeats these.
        self._whole: set[int] = set()
        # The last call, while it has no arguments; and the calls that got an empty object.
        self._empty: int | None = None
        self._ended: set[int] = set()

    @property
    def has_calls(self) -> bool:
        return bool(self._ids)

    def begin(self, block: int, call_id: str, name: str, arguments: str = "") -> Output:
        output = self.close()
        number = self._numbers[block] = len(self._ids)
        if arguments:
            self._whole.add(number)
        else:
            self._empty = number
        chosen = choose_call_id(call_id, self._ids)
        if chosen != call_id:
            self.notes.add(CALLS_NAMED)
        call = build_tool_call(chosen, name, arguments)
        output.tool_calls.append({"index": number, **call})
        return output

    def extend(self, block: int, arguments: str) -> Output:
        """Returns a piece of a call's arguments; an empty output for a block that is not a call.

        Raises :class:`InvalidStream` for arguments that come after the call has ended without.
        """
        number = self._numbers.get(block)
        if not arguments or number is None or number in self._whole:
            return Output()
        if number in self._ended:
            raise InvalidStream(LATE_ARGUMENTS)
        if number == self._empty:
            self._empty = None
        return Output(tool_calls=[{"index": number, "function": {"arguments": arguments}}])

    def end(self, block: int) -> Output:
        """Returns an empty object for a call without arguments, because callers parse them."""
        return self.close() if self._numbers.get(block) == self._empty else Output()

    def close(self) -> Output:
        """Returns an empty object for the last call if it has no arguments."""
        if self._empty is None:
            return Output()
        number, self._empty = self._empty, None
        self._ended.add(number)
        return Output(tool_calls=[{"index": number, "function": {"arguments": "{}"}}])


# What is noted of answers that are read more tolerantly than their format is written.
CALLS_NAMED: Final = "The tool calls have no ids of their own; they got some."
FILES_LEFT_OUT: Final = "The answer has files that are no pictures or sound; they were left out."
CALLS_WRITTEN: Final = "The arguments of the tool calls are no objects; they became some."
WITHOUT_DATA: Final = "The stream has events without content; they were passed over."
WITHOUT_LINE_END: Final = "The last line of the stream has no line end."
WITHOUT_MARK: Final = "The stream ends without its end mark; its finish reason ended it."
_SHORT_EVENT_BYTES: Final = 16


class Decoder(Protocol[Event_co]):
    """Splits bytes into events."""

    def feed(self, data: bytes) -> Iterable[Event_co]:
        """Yields the events that these bytes complete."""
        ...

    def flush(self) -> Iterable[Event_co]:
        """Returns what the end of all bytes completes."""
        ...

    @property
    def is_complete(self) -> bool:
        """Returns whether the bytes so far end at the end of an event."""
        ...

    @property
    def held(self) -> int:
        """Returns about how many bytes the unfinished event takes of the memory."""
        ...


class EventParser(Generic[Event]):
    """Parses one stream with a decoder of its framing and a reader of its events.

    ``read`` returns the chunks of an event; everything after the end mark is ignored. At the end of
    a body without an end mark, ``end`` returns the last chunks, or none when the stream was cut
    off. ``notes`` are those of the reader, and ``kept`` returns the bytes of earlier events that it
    keeps.
    """

    __slots__ = ("_decoder", "_end", "_is_done", "_kept", "_read", "notes", "pending")

    def __init__(
        self,
        decoder: Decoder[Event],
        read: Callable[[Event], Iterable[Chunk]],
        end: Callable[[], list[Chunk]] = list,
        notes: set[str] | None = None,
        kept: Callable[[], int] = int,
    ) -> None:
        self._decoder = decoder
        self._read = read
        self._end = end
        self._kept = kept
        self._is_done = False
        self.notes = set() if notes is None else notes
        self.pending: list[Chunk] = []

    @property
    def held(self) -> int:
        return self._decoder.held + self._kept()

    def feed(self, data: bytes) -> list[Chunk]:
        self.pending = []
        if self._is_done:
            return self.pending
        try:
            self._read_events(self._decoder.feed(data))
        except EventTooLarge:
            raise InvalidStream("An event of the stream is too large.") from None
        return self.pending

    def _read_events(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, bytes) and len(event) < _SHORT_EVENT_BYTES:
                mark = event.strip()
                if mark.lower() in SILENT:
                    self.notes.add(WITHOUT_DATA)
                    continue
                if mark == b"[DONE]":
                    # Another format's end mark ends an answer that lacks nothing else.
                    self.pending += self._end()
                    self._is_done = bool(self.pending and self.pending[-1].is_done)
                    if self._is_done:
                        return
            for chunk in self._read(event):
                self.pending.append(chunk)
                if chunk.is_done:
                    self._is_done = True
                    return

    def finish(self) -> list[Chunk]:
        if self._is_done:
            return []
        self.pending = []
        if not self._decoder.is_complete:
            try:
                self._read_events(self._decoder.flush())
            except InvalidStream:
                raise InvalidStream("The stream was cut off inside an event.") from None
            self.notes.add(WITHOUT_LINE_END)
        if not self._is_done:
            if not (chunks := self._end()):
                raise InvalidStream("The stream ended without its end mark.")
            self._is_done = True
            self.pending += chunks
            if chunks[-1].is_unmarked:
                self.notes.add(WITHOUT_MARK)
        return self.pending
