"""Adapts the fields of a request to servers of OpenAI's format that know fewer members."""

from __future__ import annotations

import re
from itertools import chain
from typing import Any, Final

import msgspec

from catalog.dialects.shared.constraints import OPENAI, CallIds, Constraints
from catalog.dialects.shared.messages import SYSTEM_ROLES, complete_schema, read_arguments
from catalog.dialects.shared.pairs import BEGIN, CONTINUE, NO_CALL, NO_RESULT, NOTED, pair_results
from catalog.dialects.shared.raw import (
    decode_list,
    decode_members,
    first_byte,
    is_empty,
    read_member,
    read_text,
    write_arguments,
)
from catalog.dialects.shared.replies import (
    GEMINI_FORMAT,
    NO_SIGNATURE,
    UNSIGNED_FORMAT,
    name_format,
)

ATTACHED: Final = "The result is attached to the next message."


class _Signature(msgspec.Struct):
    id: str | None = None
    data: str | None = None
    format: str | None = None


class _Thought(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    signature: str | None = None
    format: str | None = None


# The members that may have to be tidied.
TIDIED: Final = frozenset(("tools", "tool_choice", "parallel_tool_calls", "stop"))
_NULL: Final = msgspec.Raw(b"null")
# Schemas that may lack their type or, without an object inside, their properties.
_MAY_LACK: Final = re.compile(
    rb'"parameters"\s*:\s*(?:null|\{[^{}]*\}|\{(?!\s*"type"\s*:\s*"object"))'
)
# The members of a text in a content.
_TEXT_PART: Final = frozenset(("type", "text", "cache_control"))
_decode_thoughts = msgspec.json.Decoder(list[_Thought] | None).decode
_encode = msgspec.json.Encoder().encode
_decode_signatures = msgspec.json.Decoder(list[_Signature] | None).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def adapt_fields(
    fields: dict[str, Any], unsupported: set[str], *, restores_signatures: bool
) -> dict[str, Any]:
    """Returns the fields without unsupported members and without media in tool results."""
    fields = {name: value for name, value in fields.items() if name not in unsupported}
    if "tools" in fields:
        tools = decode_list(fields["tools"])
        fields["tools"] = fields["tools"] if tools is None else _strip(tools, unsupported)
    if "messages" in fields:
        messages = decode_list(fields["messages"])
        if messages is not None:
            for message in messages if restores_signatures else ():
                _restore_signatures(message)
            fields["messages"] = _adapt_messages(_strip(messages, unsupported), unsupported)
    return fields


def tidy_fields(fields: dict[str, Any]) -> None:
    """Leaves out what is empty and what only tools need; completes empty schemas."""
    if "stop" in fields:
        _tidy_stop(fields)
    if fields.keys() & TIDIED - {"stop"}:
        _tidy_tools(fields)


def _tidy_tools(fields: dict[str, Any]) -> None:
    raw = fields.get("tools")
    if raw is None or (isinstance(raw, msgspec.Raw) and is_empty(raw)):
        for name in ("tools", "tool_choice", "parallel_tool_calls"):
            fields.pop(name, None)
        return
    if not isinstance(raw, msgspec.Raw) or _MAY_LACK.search(raw) is None:
        return
    tools = decode_list(raw)
    for tool in tools or ():
        function = decode_members(tool.get("function"))
        if function is None or "parameters" not in function:
            continue
        schema = complete_schema(function["parameters"])
        if schema != function["parameters"]:
            tool["function"] = {**function, "parameters": schema}
            fields["tools"] = tools


def _tidy_stop(fields: dict[str, Any]) -> None:
    """Leaves out empty stop sequences, at which some servers stop at once and others refuse."""
    raw = fields["stop"]
    if not isinstance(raw, msgspec.Raw) or b'""' not in bytes(raw):
        return
    stop = msgspec.json.decode(raw)
    if kept := [each for each in stop if each] if isinstance(stop, list) else stop:
        fields["stop"] = kept
    else:
        del fields["stop"]


def repair_calls(fields: dict[str, Any], target: Constraints) -> dict[str, Any]:
    """Returns the fields with tool calls that the target accepts; the same ones if they are so.

    Arguments that are no object, perhaps because a limit cut them off, become one with a text.
    """
    messages = decode_list(fields.get("messages")) or []
    ids = None if target.call_id is OPENAI.call_id else CallIds(target.call_id)
    has_changed = False
    for message in messages:
        if ids is not None and read_member(message, "role") == "tool":
            message["tool_call_id"] = ids.name_result(read_member(message, "tool_call_id"))
            has_changed = True
        if read_member(message, "role") == "assistant":
            has_changed |= _tidy_parts(message)
        calls = decode_list(message.get("tool_calls")) or []
        if ids is not None and calls:
            named = ids.name_calls([read_text(call.get("id")) or "" for call in calls])
            for call, name in zip(calls, named, strict=True):
                call["id"] = name
            message["tool_calls"], has_changed = calls, True
        for call in calls:
            function = decode_members(call.get("function"))
            if function is None:
                continue
            raw = function.get("arguments", _NULL)
            text = write_arguments(raw)
            is_object = _is_object(text)
            if first_byte(raw) != b'"' or not is_object:
                arguments = text if is_object else _encode(read_arguments(text)).decode()
                call["function"] = {**function, "arguments": arguments}
                message["tool_calls"], has_changed = calls, True
    ordered = _pair_results(messages)
    if has_changed or ordered != messages:
        return {**fields, "messages": ordered}
    return fields


def _tidy_parts(message: dict[str, Any]) -> bool:
    """Leaves a part of a content its own members; returns whether one had others.

    Some SDKs copy the members of a whole answer, its calls and pictures too, into its text part.
    """
    parts = decode_list(message.get("content")) or []
    spread = [part for part in parts if "role" in part]
    for part in spread:
        for name in part.keys() - _TEXT_PART:
            del part[name]
    if spread:
        message["content"] = parts
    return bool(spread)


def _pair_results(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages in which each call has its one result behind it.

    Calls and results without an id are left to servers that know them by their place.
    """
    calls = [
        [read_member(call, "id") for call in decode_list(message.get("tool_calls")) or ()]
        for message in messages
    ]
    results = [
        read_member(message, "tool_call_id") if read_member(message, "role") == "tool" else None
        for message in messages
    ]
    if "" in [*results, *chain(*calls)] or not (steps := pair_results(calls, results)):
        return messages
    ordered = []
    for step in steps:
        message = messages[step.position]
        if step.lacking is not None:
            message = {"role": "tool", "tool_call_id": step.lacking, "content": NO_RESULT}
        elif step.is_stray:
            message = {"role": "user", "content": _tell_stray(message.get("content"))}
        ordered.append(message)
    return ordered


def _tell_stray(content: Any) -> Any:
    """Returns the content of a result without a call as the user tells it."""
    parts = decode_list(content)
    if parts is not None:
        return [{"type": "text", "text": NO_CALL}, *parts]
    return f"{NO_CALL}\n{read_text(content) or ''}"


def order_roles(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields with roles in the order that the strictest servers demand.

    They are the same fields if the order is so.
    """
    messages = decode_list(fields.get("messages")) or []
    ordered: list[dict[str, Any]] = []
    before = None
    for message in messages:
        role = read_member(message, "role")
        if role in SYSTEM_ROLES and before in ("assistant", "tool"):
            role, message = "user", {**message, "role": "user"}
        is_first = role == "assistant" and (before is None or before in SYSTEM_ROLES)
        if is_first and decode_list(message.get("tool_calls")):
            ordered.append({"role": "user", "content": BEGIN})
        elif role == "user" and before == "tool":
            ordered.append({"role": "assistant", "content": NOTED})
        ordered.append(message)
        before = role
    if before == "assistant" and ordered[-1].get("prefix") != msgspec.Raw(b"true"):
        ordered.append({"role": "user", "content": CONTINUE})
    return fields if ordered == messages else {**fields, "messages": ordered}


def _is_object(text: str) -> bool:
    try:
        _decode_object(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def drop_lifetimes(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields with cached prefixes that stay for the provider's usual lifetime."""
    found = {**fields}
    _shorten([found])
    for name in ("messages", "tools"):
        items = decode_list(found[name]) if name in found else None
        if items is None:
            continue
        has_changed = _shorten(items)
        for item in items if name == "messages" else ():
            if (parts := decode_list(item.get("content"))) is not None and _shorten(parts):
                item["content"] = parts
                has_changed = True
        if has_changed:
            found[name] = items
    return found


def _shorten(items: list[dict[str, Any]]) -> bool:
    """Removes the lifetimes from the marks of these objects; returns whether one had any."""
    has_changed = False
    for item in items:
        mark = item.get("cache_control")
        try:
            members = _decode_object(mark) if isinstance(mark, msgspec.Raw) else None
        except msgspec.DecodeError:
            continue
        if members is not None and members.pop("ttl", None) is not None:
            item["cache_control"] = members
            has_changed = True
    return has_changed


def _restore_signatures(message: dict[str, Any]) -> None:
    """Copies the signatures that callers keep in ``reasoning_details`` back into tool calls.

    The first of parallel calls gets Google's substitute if its caller did not keep the signature.
    """
    calls = decode_list(message.get("tool_calls"))
    if not calls:
        return
    try:
        details = _decode_signatures(message.get("reasoning_details", b"null"))
    except (msgspec.DecodeError, RecursionError):
        details = None
    signatures = {one.id: one.data for one in details or () if one.format == GEMINI_FORMAT}
    for position, call in enumerate(calls):
        signature = signatures.get(read_text(call.get("id"))) or (
            None if position else NO_SIGNATURE
        )
        if signature:
            call.setdefault("extra_content", {"google": {"thought_signature": signature}})
    message["tool_calls"] = calls


def return_thoughts(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields with earlier thoughts in the member that servers read them from.

    They are the same fields if there are no thoughts.
    """
    messages = decode_list(fields.get("messages")) or []
    answers = [each for each in messages if read_text(each.get("role")) == "assistant"]
    has_changed = [_return_thoughts(answer) for answer in answers]
    return {**fields, "messages": messages} if any(has_changed) else fields


def _return_thoughts(message: dict[str, Any]) -> bool:
    """Writes the thoughts of an answer as ``reasoning_content``; returns whether it has any.

    Thoughts that another provider has signed are that provider's alone.
    """
    if message.get("reasoning_content", _NULL) != _NULL:
        return False
    try:
        details = _decode_thoughts(message.get("reasoning_details", _NULL))
        text: Any = "".join(
            detail.text or ""
            for detail in details or ()
            if detail.type == "reasoning.text"
            and detail.signature is None
            and name_format(detail.format, None) in (None, UNSIGNED_FORMAT)
        )
    except (msgspec.DecodeError, RecursionError):
        details, text = None, ""
    if not details and not text:
        text = message.get("reasoning", "")
    if not text or text == _NULL:
        return False
    message["reasoning_content"] = text
    return True


def _adapt_messages(messages: list[dict[str, Any]], unsupported: set[str]) -> list[dict[str, Any]]:
    """Returns the messages without unsupported members in their parts.

    A tool result may hold only text: its media move to a user message after the last tool result
    of the same turn.
    """
    adapted: list[dict[str, Any]] = []
    media: list[dict[str, Any]] = []
    for message in messages:
        is_result = bytes(message.get("role", b"")) == b'"tool"'
        if media and not is_result:
            adapted.append({"role": "user", "content": media})
            media = []
        parts = decode_list(message.get("content"))
        if parts is not None:
            message["content"] = _strip(parts, unsupported)
            if is_result and (others := [part for part in parts if "text" not in part]):
                message["content"] = _build_tool_content([part for part in parts if "text" in part])
                media += others
        adapted.append(message)
    if media:
        adapted.append({"role": "user", "content": media})
    return adapted


def _build_tool_content(parts: list[dict[str, Any]]) -> Any:
    """Returns the text parts of a tool result; a single text as a string, as all servers accept."""
    if not parts:
        return ATTACHED
    is_plain = len(parts) == 1 and parts[0].keys() == {"type", "text"}
    return parts[0]["text"] if is_plain else parts


def _strip(items: list[dict[str, Any]], unsupported: set[str]) -> list[dict[str, Any]]:
    for item in items:
        for name in unsupported & item.keys():
            del item[name]
    return items
