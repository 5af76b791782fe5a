"""Writes blocks that no other format knows as text, so that a session can go on elsewhere.

A session with Claude has results of tools that Anthropic ran, results of searches, and references
to tools. Another model reads what they say; their encrypted parts say nothing to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

_FOREIGN: Final = frozenset(
    (
        "tool_reference", "search_result", "server_tool_use", "mcp_tool_use", "container_upload",
        "compaction",
    )
)  # fmt: skip
_RESULT: Final = "_tool_result"
_PARTS: Final = "content"
# Members that say nothing to another model.
_OPAQUE: Final = frozenset(
    ("type", "id", "tool_use_id", "cache_control", "citations", "encrypted_content",
     "encrypted_index", "signature", "caller")
)  # fmt: skip
# The members of a block of plain text.
_OF_TEXT: Final = frozenset(("type", "text", "citations", "cache_control"))
_encode = msgspec.json.Encoder().encode


def write_as_text(body: bytes) -> bytes | None:
    """Returns a body whose foreign blocks are text; ``None`` if it has none."""
    request = msgspec.json.decode(body)
    messages = request.get("messages") if isinstance(request, dict) else None
    has_changed = False
    for turn in messages if isinstance(messages, list) else ():
        has_changed |= isinstance(turn, dict) and _rewrite(turn)
    return _encode(request) if has_changed else None


def _rewrite(holder: dict[str, Any]) -> bool:
    """Rewrites the blocks of a message or of a tool's result; returns whether one was foreign."""
    content = holder.get("content")
    if not isinstance(content, list):
        return False
    has_changed = False
    for index, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and _is_foreign(kind, block):
            content[index] = {"type": "text", "text": "\n".join(_describe(block))}
            if (mark := block.get("cache_control")) is not None:
                content[index]["cache_control"] = mark
            has_changed = True
        elif kind == "tool_result":
            has_changed |= _rewrite(block)
    return has_changed


def _is_foreign(kind: str, block: dict[str, Any]) -> bool:
    if kind == "document":
        source = block.get("source")
        return isinstance(source, dict) and source.get("type") == _PARTS
    return kind in _FOREIGN or kind.endswith(_RESULT)


def _describe(value: Any) -> Iterable[str]:
    """Yields the lines that a block says, its kind first; adjacent texts are one."""
    if isinstance(value, list):
        texts = ""
        for each in value:
            if isinstance(each, dict) and each.get("type") == "text" and each.keys() <= _OF_TEXT:
                texts += str(each.get("text", ""))
                continue
            if texts:
                yield texts
                texts = ""
            yield from _describe(each)
        if texts:
            yield texts
    elif isinstance(value, dict) and value.get("type") == "base64":
        yield f"[{value.get('media_type')}]"
    elif isinstance(value, dict):
        if value.get("type") not in ("text", _PARTS):
            yield f"[{value.get('type', 'result')}]"
        for name, member in value.items():
            if name in _OPAQUE or member is None:
                continue
            if isinstance(member, list | dict) and name != "input":
                yield from _describe(member)
            else:
                text = member if isinstance(member, str) else _encode(member).decode()
                yield text if name in ("text", "content") else f"{name}: {text}"
    elif isinstance(value, str):
        yield value
