"""Fits a request in Anthropic's own words to what its servers accept of their format.

A session that another model has begun has ids, names and arguments that Claude refuses, in every
later turn. What fits stays as the caller wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from catalog.dialects.shared.constraints import ALTERNATIVES, ANTHROPIC, CallIds, name_media_type
from catalog.dialects.shared.messages import (
    EMPTY_SCHEMA,
    fit_answer_schema,
    fit_schema,
    read_arguments,
)
from catalog.dialects.shared.pairs import NO_CALL, NO_RESULT, pair_parts
from catalog.dialects.shared.raw import (
    decode_list,
    decode_members,
    first_byte,
    is_empty,
    read_member,
    read_text,
    write_arguments,
)

_Block = dict[str, Any]
_Raw = msgspec.Raw
_BLANK_TEXT: Final = rb'"(?:\s++|(?:\\[nrt])++)*+"'
_BLANK: Final = re.compile(_BLANK_TEXT)
# What may have to be fitted: calls and their results, media, blank texts.
_MARKED: Final = re.compile(
    rb'"tool_(?:use|result)"|"base64"|"(?:text|content)"\s*:\s*(?:%b|\[\s*\])' % _BLANK_TEXT
)
_CALL: Final = _Raw(b'"tool_use"')
_RESULT: Final = _Raw(b'"tool_result"')
_TEXT: Final = _Raw(b'"text"')
_BASE64: Final = _Raw(b'"base64"')
_MEDIA: Final = (_Raw(b'"image"'), _Raw(b'"document"'))
_OBJECT: Final = _Raw(b'"object"')
_CUSTOM: Final = (None, _Raw(b'"custom"'), _Raw(b"null"))
_NO_CHOICE: Final = _Raw(b'{"type":"none"}')
# The bytes of media that are looked at.
_HEAD_BYTES: Final = 512
_encode = msgspec.json.Encoder().encode


def fit_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the members of a body as its server accepts them; new ones are raw too."""
    fitting = dict(fields)
    turns = _Turns()
    raw = fields.get("messages", _Raw())
    # A conversation that is to be continued has its last answer behind its last question.
    if _MARKED.search(raw) or bytes(raw).rfind(b'"assistant"') > bytes(raw).rfind(b'"user"'):
        fitting["messages"] = turns.fit(raw)
    if "system" in fields and (system := decode_list(fields["system"])) is not None:
        kept = [block for block in system if not _is_blank(block)]
        if len(kept) < len(system):
            fitting["system"] = _write(kept)
    _fit_tools(fitting, turns.names)
    _fit_stop(fitting)
    _fit_answer(fitting)
    return fitting


class _Turns:
    """Fits the turns of one conversation; ``names`` are those of the tools that it has called."""

    __slots__ = ("_has_changed", "_ids", "names")

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self._ids = CallIds(ANTHROPIC.call_id)
        self._has_changed = False

    def fit(self, raw: msgspec.Raw) -> msgspec.Raw:
        turns = decode_list(raw) or []
        kept = [turn for turn in turns if self._fit_turn(turn)]
        if kept and kept[-1].get("role") == _Raw(b'"assistant"'):
            self._trim(kept[-1])
        if (paired := _pair_results(kept)) is not None:
            return _write(paired)
        return _write(kept) if kept and self._has_changed else raw

    def _fit_turn(self, turn: _Block) -> bool:
        """Fits a turn; returns whether anything is left of it."""
        content = turn.get("content", _Raw())
        if first_byte(content) == b'"':
            self._has_changed |= (is_blank := _BLANK.fullmatch(content) is not None)
            return not is_blank
        blocks = decode_list(content)
        if blocks is None:
            return True
        if calls := [block for block in blocks if block.get("type") == _CALL]:
            named = self._ids.name_calls([read_text(call.get("id")) or "" for call in calls])
            for call, name in zip(calls, named, strict=True):
                self._fit_call(call, name)
        turn["content"] = kept = self._fit_blocks(blocks)
        self._has_changed |= not kept
        return bool(kept)

    def _fit_call(self, call: _Block, call_id: str) -> None:
        name = read_text(call.get("name")) or ""
        fitting = ANTHROPIC.fit_name(name)
        self.names[fitting] = None
        if call_id != read_text(call.get("id")):
            self._put(call, "id", call_id)
        if fitting != name:
            self._put(call, "name", fitting)
        if first_byte(given := call.get("input", _Raw())) != b"{":
            self._put(call, "input", read_arguments(write_arguments(given)))

    def _fit_blocks(self, blocks: list[_Block]) -> list[_Block]:
        """Fits the blocks of a turn or of a result; returns those that are not blank."""
        kept = [block for block in blocks if not _is_blank(block)]
        self._has_changed |= len(kept) < len(blocks)
        for block in kept:
            kind = block.get("type")
            if kind == _RESULT:
                self._fit_result(block)
            elif kind in _MEDIA:
                self._fit_source(block, decode_members(block.get("source")) or {})
        return kept

    def _fit_result(self, block: _Block) -> None:
        given = read_text(block.get("tool_use_id")) or ""
        if (call_id := self._ids.name_result(given)) != given:
            self._put(block, "tool_use_id", call_id)
        inner = decode_list(block["content"]) if "content" in block else None
        if inner is not None:
            block["content"] = self._fit_blocks(inner)

    def _fit_source(self, block: _Block, source: _Block) -> None:
        """Names the type of media in Base64 as their bytes say it."""
        data = source.get("data", _Raw())
        if source.get("type") != _BASE64 or first_byte(data) != b'"':
            return
        head = bytes(memoryview(data)[1:_HEAD_BYTES]).replace(b"\\", b"").decode(errors="replace")
        given = read_text(source.get("media_type"))
        kind = name_media_type(given, head, read_text(block.get("title")))
        if kind is not None and kind != given:
            self._put(block, "source", {**source, "media_type": kind})

    def _trim(self, turn: _Block) -> None:
        """Removes the white space at the end of an answer that the model is to continue."""
        blocks = turn.get("content")
        last, member = (blocks[-1], "text") if isinstance(blocks, list) else (turn, "content")
        text = read_text(last.get(member)) or ""
        if text != (kept := text.rstrip()):
            self._put(last, member, kept)

    def _put(self, block: _Block, member: str, value: Any) -> None:
        block[member] = value
        self._has_changed = True


def _pair_results(turns: list[_Block]) -> list[_Block] | None:
    """Returns turns in which each call has its one result first behind it; ``None`` if it has."""
    given: list[tuple[str, list[_Block]]] = []
    for turn in turns:
        content = turn.get("content")
        if not isinstance(content, list):
            content = [{"type": "text", "text": content}]
        given.append((read_text(turn.get("role")) or "", content))
    paired = pair_parts(
        given,
        lambda block: (
            read_member(block, "id") if block.get("type") == _CALL else None,
            read_member(block, "tool_use_id") if block.get("type") == _RESULT else None,
        ),
        lambda call_id: {"type": "tool_result", "tool_use_id": call_id, "content": NO_RESULT},
        _tell_stray,
    )
    if paired is None:
        return None
    return [{"role": role, "content": blocks} for role, blocks in paired]


def _tell_stray(block: _Block) -> list[_Block]:
    """Returns the blocks that tell a result without a call."""
    content = block.get("content", _Raw())
    inner = content if isinstance(content, list) else decode_list(content)
    text = NO_CALL if inner is not None else f"{NO_CALL}\n{read_text(content) or ''}"
    return [{"type": "text", "text": text}, *(inner or ())]


def _is_blank(block: _Block) -> bool:
    text = block.get("text", _Raw())
    return block.get("type") == _TEXT and _BLANK.fullmatch(text) is not None


def _fit_tools(fields: dict[str, Any], used: Iterable[str]) -> None:
    """Completes schemas; without tools, adds those that were called or drops what needs some."""
    tools = decode_list(fields["tools"]) if "tools" in fields else []
    if not tools and "mcp_servers" not in fields:
        for name in ("tools", "tool_choice"):
            fields.pop(name, None)
        if called := [{"name": name, "input_schema": EMPTY_SCHEMA} for name in used]:
            fields |= {"tools": _write(called), "tool_choice": _NO_CHOICE}
        return
    has_changed = False
    for tool in tools or ():
        schema = decode_members(tool.get("input_schema"))
        is_strict = tool.get("strict") == _Raw(b"true")
        if tool.get("type") not in _CUSTOM or schema is None:
            continue
        if is_strict or schema.get("type") != _OBJECT or not ALTERNATIVES.isdisjoint(schema):
            given = tool["input_schema"]
            tool["input_schema"] = fit_schema(given, ANTHROPIC, is_strict=is_strict)
            has_changed |= tool["input_schema"] != given
    if has_changed:
        fields["tools"] = _write(tools)


def _fit_stop(fields: dict[str, Any]) -> None:
    raw = fields.get("stop_sequences")
    if raw is None or is_empty(raw) or _BLANK.search(raw) is None:
        return
    stop = msgspec.json.decode(raw)
    if not isinstance(stop, list):
        return
    if kept := [each for each in stop if not isinstance(each, str) or each.strip()]:
        fields["stop_sequences"] = _write(kept)
    else:
        del fields["stop_sequences"]


def _fit_answer(fields: dict[str, Any]) -> None:
    """Fits the schema of the answer."""
    config = decode_members(fields.get("output_config")) or {}
    form = decode_members(config.get("format")) or {}
    schema = form.get("schema", _Raw())
    if first_byte(schema) != b"{":
        return
    fitting = fit_answer_schema(schema, ANTHROPIC, member="output_config.format")
    if fitting != schema:
        fields["output_config"] = _write({**config, "format": {**form, "schema": fitting}})


def _write(value: Any) -> msgspec.Raw:
    return _Raw(_encode(value))
