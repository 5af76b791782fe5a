"""Builds the items of an answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from catalog.dialects.base import decode_object
from catalog.dialects.shared.messages import omit_none
from inference.requests.chat_replies import ReplyReasoning, ReplyToolCall
from inference.requests.responses.reasoning import seal
from inference.requests.responses.tools import CallerTool

# Tools whose calls have items of their own: the prefix of an item's id, and the member for the
# arguments. Their items are complete when they begin.
_WHOLE: Final = {
    "local_shell": ("lsh", "action"),
    "shell": ("sh", "action"),
    "apply_patch": ("ap", "operation"),
    "tool_search": ("tsc", "arguments"),
}
# How a picture begins that is no bare Base64.
PICTURE_URL: Final = re.compile(r"(?:data:|https?://)", re.IGNORECASE)
_URL: Final = "url_citation"


class Names:
    """Names the items of one response; no two of them have the same name."""

    __slots__ = ("_base", "_count")

    def __init__(self, response_id: str) -> None:
        self._base = response_id.removeprefix("gen-")
        self._count = 0

    def item(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._base}_{self._count}"


class Thoughts:
    """Joins the pieces of reasoning that providers stream."""

    __slots__ = ("_details", "_pieces")

    def __init__(self) -> None:
        self._details: list[ReplyReasoning] = []
        self._pieces: list[list[str]] = []

    def add(self, detail: ReplyReasoning) -> bool:
        """Adds a piece; returns whether its text continues the text before it."""
        text = detail.text or detail.summary or ""
        last = self._details[-1] if self._details else None
        if last is None or not _is_continued(last, detail):
            self._details.append(detail)
            self._pieces.append([text])
            return False
        last.signature = detail.signature
        self._pieces[-1].append(text)
        return True

    @property
    def texts(self) -> list[str]:
        """The readable texts; encrypted reasoning has none."""
        return [text for pieces in self._pieces if (text := "".join(pieces))]

    def seal(self) -> str | None:
        for detail, pieces in zip(self._details, self._pieces, strict=True):
            if detail.summary is not None:
                detail.summary = "".join(pieces)
            elif detail.text is not None or any(pieces):
                detail.text = "".join(pieces)
        return seal(self._details)


def _is_continued(last: ReplyReasoning, following: ReplyReasoning) -> bool:
    return (
        (last.type, last.index, last.format) == (following.type, following.index, following.format)
        and last.data is None
        and following.data is None
        and last.signature is None
    )


def text_part(
    text: str, annotations: Iterable[dict[str, Any]] = (), logprobs: Iterable[Any] = ()
) -> dict[str, Any]:
    return {
        "type": "output_text",
        "text": text,
        "annotations": [*annotations],
        "logprobs": [*logprobs],
    }


def refusal_part(text: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": text}


def message_item(item_id: str, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def summary_part(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def reasoning_item(item_id: str, texts: Iterable[str], sealed: str | None) -> dict[str, Any]:
    """Returns reasoning; its text is a summary, because every client shows a summary."""
    return {
        "id": item_id,
        "type": "reasoning",
        "summary": [summary_part(text) for text in texts],
        "encrypted_content": sealed,
    }


def picture_item(item_id: str, data: str | None, status: str) -> dict[str, Any]:
    return {"id": item_id, "type": "image_generation_call", "status": status, "result": data}


def read_picture(image: Any) -> str | None:
    """Returns the Base64 of a picture in an answer of chat, or its URL where a server stores it.

    ``None`` stands for anything else.
    """
    place = image.get("image_url") if isinstance(image, dict) else None
    url = place.get("url") if isinstance(place, dict) else place
    if not isinstance(url, str) or (scheme := PICTURE_URL.match(url)) is None:
        return None
    if scheme[0].lower() != "data:":
        return url
    return url.partition(",")[2] or None


def read_annotations(given: Any) -> list[dict[str, Any]]:
    """Returns the sources that an answer of chat names, in the flat form of this interface."""
    found = []
    for each in given if isinstance(given, list) else ():
        source = each.get(_URL) if isinstance(each, dict) else None
        if isinstance(source, dict) and isinstance(source.get("url"), str):
            citation = {
                "type": _URL,
                "url": source["url"],
                "title": source.get("title") or "",
                "start_index": _integer(source.get("start_index")),
                "end_index": _integer(source.get("end_index")),
            }
            if isinstance(source.get("content"), str):
                citation["content"] = source["content"]
            found.append(citation)
    return found


def _integer(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def read_logprobs(given: Any) -> list[dict[str, Any]]:
    """Returns the logarithmic probabilities of a text; clients require all their members."""
    tokens = given.get("content") if isinstance(given, dict) else None
    return [
        {"bytes": [], "top_logprobs": [], **omit_none(**token)}
        for token in (tokens if isinstance(tokens, list) else ())
        if isinstance(token, dict) and "token" in token and "logprob" in token
    ]


def find_tool(call: ReplyToolCall, tools: Mapping[str, CallerTool]) -> CallerTool:
    """Returns the tool of a call; a model may also name one that the request does not have."""
    name = (call.function.name if call.function is not None else None) or ""
    return tools.get(name) or CallerTool("function", name)


def is_streamed(tool: CallerTool) -> bool:
    """Returns whether a call's item may begin before its arguments are complete."""
    return tool.kind not in _WHOLE


def call_prefix(tool: CallerTool) -> str:
    if tool.kind in _WHOLE:
        return _WHOLE[tool.kind][0]
    return "ctc" if tool.kind == "custom" else "fc"


def call_item(
    tool: CallerTool, item_id: str, call_id: str, arguments: str, status: str
) -> dict[str, Any]:
    """Returns a call of a tool, with the item of its type.

    A call whose arguments do not fit its type becomes a call of a function, so that the caller can
    tell the model.
    """
    if tool.kind == "custom":
        return {
            "id": item_id,
            "type": "custom_tool_call",
            "status": status,
            "call_id": call_id,
            "name": tool.name,
            "input": read_input(arguments),
        }
    if tool.kind in _WHOLE and (members := _read_whole(tool.kind, arguments)) is not None:
        return {
            "id": item_id,
            "type": f"{tool.kind}_call",
            "status": status,
            "call_id": call_id,
            **members,
        }
    namespace = {} if tool.namespace is None else {"namespace": tool.namespace}
    return {
        "id": item_id,
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": tool.name,
        "arguments": arguments,
        **namespace,
    }


def read_input(arguments: str) -> str:
    """Returns the input of a custom tool; what the model wrote in another form stays as it is."""
    members = decode_object(arguments.encode())
    try:
        return arguments if members is None else msgspec.json.decode(members["input"], type=str)
    except (KeyError, msgspec.DecodeError):
        return "" if members == {} else arguments


class _Run(msgspec.Struct, omit_defaults=True):
    command: list[str]
    env: dict[str, str] = msgspec.field(default_factory=dict)
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class _RunMany(msgspec.Struct):
    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class _Patch(msgspec.Struct, omit_defaults=True):
    type: str
    path: str
    diff: str | None = None


class _Operation(msgspec.Struct):
    operation: _Patch


_READERS: Final[Mapping[str, msgspec.json.Decoder[Any]]] = {
    "local_shell": msgspec.json.Decoder(_Run),
    "shell": msgspec.json.Decoder(_RunMany),
    "apply_patch": msgspec.json.Decoder(_Operation),
    "tool_search": msgspec.json.Decoder(dict[str, Any]),
}


def _read_whole(kind: str, arguments: str) -> dict[str, Any] | None:
    try:
        read = _READERS[kind].decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    match kind:
        case "local_shell":
            members = msgspec.to_builtins(read)
            return {"action": {"type": "exec", "env": {}, **members}}
        case "apply_patch":
            return {"operation": msgspec.to_builtins(read.operation)}
        case "tool_search":
            return {"execution": "client", "arguments": read}
    return {"action": msgspec.to_builtins(read)}
