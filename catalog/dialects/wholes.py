"""Reads a stream where a whole answer is due, and makes a stream of a whole answer; pure.

Servers that stream by default answer a plain request with events, and servers that cannot stream
answer a streamed one with JSON. Each format of an answer has its own functions for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from catalog.capabilities import NativeFormat
from catalog.dialects.anthropic.native import join_message, split_message
from catalog.dialects.audio import join_base64
from catalog.dialects.base import Body, Chunk, InvalidReply, InvalidStream, Reply, StreamParser
from catalog.dialects.openai.responses import join_response, split_response
from catalog.dialects.shared.constraints import restore_names
from catalog.dialects.shared.raw import first_byte
from catalog.dialects.shared.reasoning import REASONING_NAMES
from catalog.dialects.shared.replies import build_end_mark, build_usage, split_calls

STREAMED: Final = "A plain request was answered with a stream; its events were joined."
NOT_STREAMED: Final = "A streamed request was answered with one JSON object; it was split."
# The content types of answers that are no streams.
JSON_TYPES: Final = ("application/json", "text/json", "application/problem+json")
_STARTS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
_BOM: Final = b"\xef\xbb\xbf"
# Members of a delta whose pieces are joined.
_TEXTS: Final = ("content", *REASONING_NAMES, "refusal", "text")
_SOUND_TEXTS: Final = ("data", "transcript")
_LISTS: Final = ("reasoning_details", "images", "annotations")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode
_decode_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def is_stream(body: Body) -> bool:
    """Returns whether the body of an answer is server-sent events."""
    start = bytes(memoryview(body)[:64]).removeprefix(_BOM).lstrip()
    return start.startswith(_STARTS)


def join_stream(parser: StreamParser, body: Body, native: NativeFormat | None) -> Reply:
    """Returns the whole reply that the events of a body add up to; raises :class:`InvalidReply`."""
    try:
        chunks = [*parser.feed(bytes(body)), *parser.finish()]
    except InvalidStream as exc:
        raise InvalidReply(str(exc)) from None
    reply = _JOINS.get(native, join_chat)(chunks)
    reply.notes |= {STREAMED, *parser.notes}
    return reply


def split_reply(reply: Reply, native: NativeFormat | None) -> list[Chunk]:
    """Returns the chunks of a whole reply, with its end mark."""
    split = _SPLITS.get(native, _split_chat)
    return [*split(reply), build_end_mark()]


def _split_chat(reply: Reply) -> list[Chunk]:
    """Returns the chunks of the output of each choice, one for its end, and one for the usage."""
    given = reply.fields["choices"]
    choices: list[dict[str, Any]] = (
        [*_decode_objects(given)] if isinstance(given, msgspec.Raw) else given
    )
    shared = {
        name: value for name, value in reply.fields.items() if name not in ("choices", "usage")
    }
    common: dict[str, Any] = {"model": reply.model, "upstream_id": reply.upstream_id}
    chunks = []
    for position, choice in enumerate(choices):
        ends: dict[str, Any] = {
            name: choice.pop(name)
            for name in ("finish_reason", "native_finish_reason", "stop_reason")
            if name in choice
        }
        index = choice.setdefault("index", position)
        if "message" in choice:
            choice["delta"] = _number_calls(choice.pop("message"))
        begun = {**choice, "finish_reason": None}
        nothing: Any = {} if "delta" in choice else ""
        name = "delta" if "delta" in choice else "text"
        ended: dict[str, Any] = {"index": index, name: nothing, **ends}
        for piece in (begun, ended):
            fields = {**shared, "choices": [piece]}
            chunks += split_calls(Chunk(fields=fields, has_choices=True, **common))
        chunks[-1].finish_reason = reply.finish_reason
    if chunks:
        first = chunks[0]
        first.output_bytes, first.characters = reply.output_bytes, reply.characters
        first.pictures, first.sound = reply.pictures, reply.sound
    if reply.usage is not None:
        # Some servers tell it elsewhere.
        usage = reply.fields.get("usage") or build_usage(reply.usage)
        fields = {**shared, "choices": [], "usage": usage}
        chunks.append(Chunk(fields=fields, usage=reply.usage, **common))
    return chunks


def _number_calls(message: Any) -> dict[str, Any]:
    delta = _decode_members(message) if isinstance(message, msgspec.Raw) else message
    calls: Any = delta.get("tool_calls")
    if first_byte(calls) == b"[":
        calls = _decode(calls)
    if not isinstance(calls, list):
        return {name: value for name, value in delta.items() if name != "tool_calls"}
    return {**delta, "tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]}


def join_chat(chunks: Iterable[Chunk]) -> Reply:
    """Returns the answer of chat that chunks add up to; raises :class:`InvalidReply`."""
    fields: dict[str, Any] = {}
    joined: dict[int, dict[str, Any]] = {}
    texts = _Texts()
    reply = Reply(fields, None, None, None)
    for chunk in chunks:
        fields |= {
            name: value
            for name, value in chunk.fields.items()
            if name not in ("choices", "usage", "object")
        }
        reply.model = reply.model or chunk.model
        reply.upstream_id = reply.upstream_id or chunk.upstream_id
        reply.finish_reason = reply.finish_reason or chunk.finish_reason
        reply.output_bytes += chunk.output_bytes
        reply.characters += chunk.characters
        reply.pictures += chunk.pictures
        reply.sound += chunk.sound
        if chunk.usage is not None:
            reply.usage = chunk.usage
            fields["usage"] = chunk.fields.get("usage") or build_usage(chunk.usage)
        for raw in chunk.repeated_choices or [_encode(chunk.fields.get("choices", []))]:
            for choice in _decode(raw):
                index = choice.get("index") or 0
                _join_choice(joined.setdefault(index, {"index": index}), choice, texts)
    texts.join()
    if not joined:
        raise InvalidReply("The answer has no choices.")
    fields["choices"] = [joined[index] for index in sorted(joined)]
    reply.choices = len(joined)
    return reply


class _Texts:
    """The pieces of the texts of an answer, which are joined once, at its end."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, str], tuple[dict[str, Any], list[str]]] = {}

    def add(self, part: dict[str, Any], name: str, piece: str) -> None:
        """Adds to a member of a part of the answer, which keeps its place among the members."""
        found = self._pieces.get((id(part), name))
        if found is None:
            part.setdefault(name, "")
            found = self._pieces[id(part), name] = part, []
        found[1].append(piece)

    def join(self) -> None:
        for (_, name), (part, pieces) in self._pieces.items():
            part[name] = join_base64(pieces) if name == "data" else "".join(pieces)


def _join_choice(whole: dict[str, Any], piece: dict[str, Any], texts: _Texts) -> None:
    """Adds an event's choice to the whole one."""
    delta = piece.pop("delta", None)
    part = whole
    if isinstance(delta, dict):
        part = whole.setdefault("message", {"role": "assistant", "content": None})
    else:
        delta = {name: piece.pop(name) for name in (*_TEXTS, *_LISTS) if name in piece}
    for name, value in delta.items():
        if value is None:
            continue
        if name in _TEXTS and isinstance(value, str):
            texts.add(part, name, value)
        elif name in _LISTS and isinstance(value, list):
            _extend(part, name, value)
        elif name == "tool_calls" and isinstance(value, list):
            _join_calls(part.setdefault(name, []), value, texts)
        elif name == "audio" and isinstance(value, dict):
            _join_sound(part.setdefault(name, {}), value, texts)
        else:
            part[name] = value
    for name, value in piece.items():
        if name == "logprobs" and isinstance(value, dict) and whole.get(name):
            for kind, tokens in value.items():
                if isinstance(tokens, list):
                    _extend(whole[name], kind, tokens)
        elif value is not None or name not in whole:
            whole[name] = value


def _extend(whole: dict[str, Any], name: str, items: list[Any]) -> None:
    """Adds items to a list, which may have been null so far, as the tokens of a refusal are."""
    known = whole.get(name)
    if isinstance(known, list):
        known.extend(items)
    else:
        whole[name] = items


def _join_sound(whole: dict[str, Any], piece: dict[str, Any], texts: _Texts) -> None:
    """Adds a piece of the sound and of its words; of other members the last one stays."""
    for name, value in piece.items():
        if name in _SOUND_TEXTS and isinstance(value, str):
            texts.add(whole, name, value)
        else:
            whole[name] = value


def _join_calls(calls: list[dict[str, Any]], pieces: list[dict[str, Any]], texts: _Texts) -> None:
    """Adds pieces of tool calls, whose numbers were repaired."""
    for piece in pieces:
        index, function = piece.pop("index"), piece.pop("function", {})
        while len(calls) <= index:
            calls.append({"function": {"name": "", "arguments": ""}})
        for name, text in function.items():
            texts.add(calls[index]["function"], name, text)
        calls[index] |= piece


class RenamingParser:
    """Parses a stream whose calls have the short names that a target got for long ones."""

    __slots__ = ("_names", "_parser")

    def __init__(self, parser: StreamParser, names: Mapping[str, str]) -> None:
        self._parser = parser
        self._names = names

    @property
    def notes(self) -> set[str]:
        return self._parser.notes

    @property
    def pending(self) -> list[Chunk]:
        return self._rename(self._parser.pending)

    @property
    def held(self) -> int:
        return self._parser.held

    def feed(self, data: bytes) -> list[Chunk]:
        return self._rename(self._parser.feed(data))

    def finish(self) -> list[Chunk]:
        return self._rename(self._parser.finish())

    def _rename(self, chunks: list[Chunk]) -> list[Chunk]:
        for chunk in chunks:
            if "choices" in chunk.fields:
                chunk.fields["choices"] = restore_names(chunk.fields["choices"], self._names)
        return chunks


_JOINS: Final[Mapping[NativeFormat | None, Callable[[Iterable[Chunk]], Reply]]] = {
    NativeFormat.ANTHROPIC: join_message,
    NativeFormat.RESPONSES: join_response,
}
_SPLITS: Final[Mapping[NativeFormat | None, Callable[[Reply], list[Chunk]]]] = {
    NativeFormat.ANTHROPIC: split_message,
    NativeFormat.RESPONSES: split_response,
}
