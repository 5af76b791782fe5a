"""Fits the items of a conversation in OpenAI's Responses to what its servers accept of them.

A session that another model has begun has ids, names and arguments that OpenAI refuses, in every
later turn. What fits stays as the caller wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from catalog.dialects.base import Call
from catalog.dialects.openai.abilities import Wish, decode_wish, fit_effort
from catalog.dialects.shared.constraints import RESPONSES, CallIds
from catalog.dialects.shared.messages import complete_schema
from catalog.dialects.shared.pairs import NO_CALL, NO_RESULT, pair_results
from catalog.dialects.shared.raw import (
    decode_list,
    decode_members,
    first_byte,
    is_empty,
    read_member,
    read_text,
    write_arguments,
)

# What may have to be fitted: calls and their outputs, ids of items, pictures in the words of chat.
_MARKED: Final = re.compile(rb'"(?:call_id|id|reasoning)"|"(?:image|video)_url"\s*:\s*\{')
_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# The beginnings of the ids of items, by their types.
_PREFIXES: Final = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc",
}  # fmt: skip
_CALLS: Final = frozenset(("function_call", "custom_tool_call"))
_OUTPUTS: Final = frozenset(("function_call_output", "custom_tool_call_output"))
_FUNCTION: Final = msgspec.Raw(b'"function"')
# The end of a cached prefix, which OpenAI's interface has another word for, and its holders.
_CACHE_MARK: Final = "cache_control"
_CACHED: Final = re.compile(rb'"cache_control"')
_HOLDERS: Final = ("input", "tools", "content", "output")
_EFFORTS: Final = frozenset(("reasoning", "reasoning_effort"))
# The words for thinking that OpenAI's interface lacks.
_WISHES: Final = frozenset(("enabled", "max_tokens"))
# The members of parts that are URLs, and what may be asked of the picture or the video there.
_URLS: Final = {"image_url": "detail", "video_url": "processing"}
_encode = msgspec.json.Encoder().encode


def drop_extensions(fields: dict[str, Any], call: Call) -> frozenset[str]:
    """Removes the members of a body that OpenAI's interface lacks; returns the names of the lost.

    An endpoint that lists its parameters gets ends of cached prefixes only if they are on its list;
    one without a list gets them all. Other words for thinking become an effort. Raises
    :class:`base.Untranslatable` if a model shall not think that always does.
    """
    lost, listed = set[str](), call.supported_parameters
    if _write_effort(fields, call):
        lost.add("reasoning")
    if listed is not None and _CACHE_MARK not in listed and _drop_marks(fields):
        lost.add(_CACHE_MARK)
    return frozenset(lost)


def _write_effort(fields: dict[str, Any], call: Call) -> bool:
    """Writes the thinking that a caller asks for as an effort; returns whether it is lost."""
    members = decode_members(fields.get("reasoning"))
    stated, listed = call.abilities.reasoning, call.supported_parameters
    has_switch = stated.switch == "reasoning_effort"
    if members is None or _WISHES.isdisjoint(members):
        return False
    wish = decode_wish(members) or Wish()
    del fields["reasoning"]
    if not has_switch and listed is not None and _EFFORTS.isdisjoint(listed):
        return wish.is_on is not None
    if not has_switch and listed is None and wish == Wish(enabled=True):
        # Nothing says that the model thinks by itself; servers with this word mean this effort.
        wish.effort = "medium"
    kept = {name: value for name, value in members.items() if name not in _WISHES}
    if (effort := fit_effort(wish, stated.efforts)) is not None:
        kept["effort"] = effort
    if kept:
        fields["reasoning"] = kept
    return False


def _drop_marks(holder: dict[str, Any]) -> bool:
    """Removes the ends of cached prefixes from what an object holds; returns whether it had any."""
    has_changed = False
    for name in _HOLDERS:
        raw: Any = holder.get(name)
        if first_byte(raw) != b"[" or not _CACHED.search(raw) or not (inner := decode_list(raw)):
            continue
        has_mark = False
        for each in inner:
            has_mark |= each.pop(_CACHE_MARK, None) is not None
            has_mark |= _drop_marks(each)
        if has_mark:
            holder[name], has_changed = msgspec.Raw(_encode(inner)), True
    return has_changed


def fit_fields(fields: dict[str, Any]) -> None:
    """Changes the members of a body to what its server accepts."""
    raw = fields.get("input", msgspec.Raw())
    if first_byte(raw) == b"[" and _MARKED.search(raw) and (found := decode_list(raw)) is not None:
        fields["input"] = _fit_items(found)
    tools = decode_list(fields["tools"]) if "tools" in fields else None
    for tool in tools or ():
        schema = tool.get("parameters", msgspec.Raw())
        if tool.get("type") != _FUNCTION or first_byte(schema) != b"{":
            continue
        tool["parameters"] = complete_schema(schema)
        if tool["parameters"] != schema:
            fields["tools"] = tools


def _fit_items(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ids, kept = CallIds(RESPONSES.call_id), []
    calls: list[dict[str, Any]] = []  # of the answer that is being read
    for item in given:
        kind = read_text(item.get("type")) or "message"
        if kind == "reasoning" and _is_lost(item):
            continue
        kept.append(item)
        if "id" in item and not _is_id(read_text(item["id"]) or "", _PREFIXES.get(kind, "")):
            del item["id"]
        if kind in _CALLS:
            calls.append(item)
            _fit_call(item)
        elif kind != "reasoning":
            _name_calls(calls, ids)
            if kind in _OUTPUTS:
                item["call_id"] = ids.name_result(read_text(item.get("call_id")) or "")
            _unwrap_parts(item)
    _name_calls(calls, ids)
    return _pair_outputs(kept)


def _pair_outputs(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns items in which each call has its one output somewhere behind it.

    The output of a function may be that of a call of another kind, such as a shell's.
    """
    kinds = [read_member(item, "type") for item in items]
    ids = [read_member(item, "call_id") or read_member(item, "id") for item in items]
    steps = pair_results(
        [[name] if kind.endswith("_call") else [] for kind, name in zip(kinds, ids, strict=True)],
        [name if kind in _OUTPUTS else None for kind, name in zip(kinds, ids, strict=True)],
    )
    lacking = {
        step.position
        for step in steps or ()
        if step.lacking is not None and kinds[step.position] in _CALLS
    }
    strays = {step.position for step in steps or () if step.is_stray}
    ordered = []
    for position, item in enumerate(items):
        ordered.append(_tell_stray(item) if position in strays else item)
        if position in lacking:
            output = {"type": f"{kinds[position]}_output", "call_id": ids[position]}
            ordered.append({**output, "output": NO_RESULT})
    return ordered


def _tell_stray(item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an output without a call as the user tells it."""
    output = item.get("output")
    parts = output if isinstance(output, list) else decode_list(output)
    text = NO_CALL if parts is not None else f"{NO_CALL}\n{read_member(item, 'output')}"
    content = [{"type": "input_text", "text": text}, *(parts or ())]
    return {"type": "message", "role": "user", "content": content}


def _is_lost(item: Mapping[str, Any]) -> bool:
    """Returns whether a thought has nothing that a server could read: it stores none."""
    return all(is_empty(item.get(name, msgspec.Raw())) for name in ("encrypted_content", "content"))


def _is_id(text: str, prefix: str) -> bool:
    return text.startswith(prefix) and _ID.fullmatch(text) is not None


def _fit_call(call: dict[str, Any]) -> None:
    call["name"] = RESPONSES.fit_name(read_text(call.get("name")) or "")
    if first_byte(call.get("arguments")) != b'"' and call.get("input") is None:
        call["arguments"] = write_arguments(call.get("arguments", msgspec.Raw())) or "{}"


def _name_calls(calls: list[dict[str, Any]], ids: CallIds) -> None:
    if calls:
        named = ids.name_calls([read_text(call.get("call_id")) or "" for call in calls])
        for call, name in zip(calls, named, strict=True):
            call["call_id"] = name
        calls.clear()


def _unwrap_parts(item: dict[str, Any]) -> None:
    """Writes URLs that stand in an object, as in chat, as texts, and what is asked of them."""
    for member in ("content", "output"):
        parts = decode_list(item[member]) if first_byte(item.get(member)) == b"[" else None
        for part in parts or ():
            for name, wish in _URLS.items():
                wrapped = decode_members(part.get(name))
                if wrapped is None or "url" not in wrapped:
                    continue
                part[name], item[member] = wrapped["url"], parts
                asked = wrapped.get(wish, msgspec.Raw())
                if not is_empty(asked) and is_empty(part.get(wish, msgspec.Raw())):
                    part[wish] = asked
