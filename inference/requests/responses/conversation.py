"""Translates the items of a conversation to the messages of chat.

One answer of the model is several items: reasoning, a message, calls. In chat it is one message
that has them all, and the outputs of its calls follow it directly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import msgspec

from catalog.dialects.base import decode_object
from catalog.dialects.shared.messages import omit_none
from catalog.dialects.shared.raw import write_arguments
from config.api.errors import InvalidRequest
from inference.requests.limits import BOUNDS, MAX_PARTS
from inference.requests.problems import convert_each, field_error, missing_fields
from inference.requests.responses.output import PICTURE_URL
from inference.requests.responses.reading import read
from inference.requests.responses.reasoning import Damaged, unseal
from inference.requests.responses.tools import Tools, qualify

_ROLES: Final = frozenset(("user", "system", "developer", "assistant"))
# Records of tools that a server ran; the answer after them has their results.
_RECORDS: Final = frozenset(
    ("web_search_call", "file_search_call", "code_interpreter_call", "mcp_list_tools", "mcp_call")
)
_REFERENCE: Final = (
    "This service stores no items, so it cannot look one up. Set 'store' to false in your client; "
    "it then sends the items themselves."
)
_UNKNOWN: Final = "This service cannot send an item of the type {kind!r} to a model. Leave it out."
_MISSING: Final = object()
_TEXTS: Final = frozenset(("input_text", "output_text", "text", "summary_text", "reasoning_text"))
_LIFETIMES: Final = frozenset((b'"5m"', b'"1h"'))
_STORED: Final = "This service stores no files. Send the data itself or a URL."
_encode = msgspec.json.Encoder().encode

# The items as msgspec reads them; members that chat cannot use are not read.
_Raws = dict[str, msgspec.Raw]


class ItemPart(msgspec.Struct):
    """A part of a message or of a tool's output; its type says which members it has."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    detail: str | None = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    input_audio: _Raws | None = None
    video_url: Any = None
    processing: Any = None
    prompt_cache_breakpoint: _Raws | None = None
    cache_control: _Raws | None = None


_Parts = Annotated[list[ItemPart], msgspec.Meta(max_length=MAX_PARTS)]


class MessageItem(msgspec.Struct):
    role: str
    content: str | _Parts | None = None


class FunctionCallItem(msgspec.Struct):
    call_id: str
    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    namespace: str | None = None


class CustomCall(msgspec.Struct):
    call_id: str
    name: str
    input: str


class KnownCall(msgspec.Struct):
    """A call of a tool without a schema of its own, or of the search for tools."""

    type: str = ""
    call_id: str | None = None
    id: str | None = None
    action: _Raws | None = None
    operation: _Raws | None = None
    arguments: msgspec.Raw = msgspec.Raw()
    execution: str | None = None


class CallOutput(msgspec.Struct):
    output: str | _Parts
    call_id: str


class KnownOutput(msgspec.Struct):
    """The output of a tool whose output has a shape of its own."""

    call_id: str | None = None
    id: str | None = None
    status: str | None = None
    output: msgspec.Raw = msgspec.Raw()
    tools: list[msgspec.Raw] | None = None


class _Thought(msgspec.Struct):
    text: str = ""


class ThoughtItem(msgspec.Struct):
    summary: list[_Thought] | None = None
    encrypted_content: str | None = None


class _Effort(msgspec.Struct):
    effort: str


class ConfigurationUpdate(msgspec.Struct):
    reasoning: _Effort


class AdditionalTools(msgspec.Struct):
    tools: list[msgspec.Raw]


class PictureItem(msgspec.Struct):
    """A picture that a model made; some servers leave out what it shows."""

    result: str | None = None


class ItemKind(msgspec.Struct):
    """The members by which an item's type is known: a message may have a role only."""

    type: str | None = None
    role: str | None = None


_decode_kind: Final = msgspec.json.Decoder(ItemKind)


class Conversation:
    """Collects the messages of one request; ``tools`` gets those that come inside it."""

    def __init__(self, tools: Tools) -> None:
        self.effort: str | None = None
        self._tools = tools
        self._messages: list[dict[str, Any]] = []
        self._details = 0
        # The message of the assistant to which the next reasoning, text and calls belong.
        self._answer: dict[str, Any] | None = None
        self._answer_calls: set[str] = set()
        # The calls of each id that wait for an output: some servers use the same ids for every
        # answer, or one id for all calls of an answer.
        self._calls: dict[str, deque[dict[str, Any]]] = {}
        self._outputs: dict[int, Any] = {}
        # Ids of items by which older callers name a call.
        self._call_ids: dict[str, str] = {}

    @property
    def has_messages(self) -> bool:
        return bool(self._messages)

    def add_text(self, role: str, text: str) -> None:
        self._messages.append({"role": role, "content": text})

    def add_all(self, raws: list[msgspec.Raw]) -> None:
        """Adds the items; raises :class:`InvalidRequest` with the name of the wrong field."""
        convert_each(raws, self._add, "input")
        self._end_answer()

    def build(self) -> list[dict[str, Any]]:
        """Returns the messages; the outputs of calls directly follow them, as chat requires."""
        messages = []
        for message in self._messages:
            messages.append(message)
            for call in message.get("tool_calls", ()):
                if (content := self._outputs.get(id(call), _MISSING)) is not _MISSING:
                    output = {"role": "tool", "tool_call_id": call["id"], "content": content}
                    messages.append(output)
        return messages

    def forget_earlier_reasoning(self) -> None:
        """Drops the reasoning before the last message of the user."""
        asked = [at for at, each in enumerate(self._messages) if each["role"] == "user"]
        for message in self._messages[: asked[-1] if asked else 0]:
            message.pop("reasoning_details", None)

    def _add(self, raw: msgspec.Raw, place: str) -> None:
        kind = read(_decode_kind, raw, place)
        name = kind.type or ("message" if kind.role is not None else None)
        if name is None:
            raise missing_fields(f"{place}.type")
        if (found := _ADDERS.get(name)) is not None:
            decoder, add = found
            add(self, read(decoder, raw, place), place)
        elif name in _RECORDS or name.startswith("openrouter:"):
            self._tools.leave_out(f"input.{name}")
        else:
            raise field_error(f"{place}.type", _UNKNOWN.format(kind=name[:64]))

    def _add_message(self, message: MessageItem, place: str) -> None:
        role = message.role
        if role not in _ROLES:
            expected = "Expected 'user', 'assistant', 'system' or 'developer'."
            raise field_error(f"{place}.role", expected)
        if role == "assistant":
            answer = self._open_answer()
            text = _join_texts(message.content, f"{place}.content")
            answer["content"] = (answer["content"] or "") + text
            return
        content = _convert_content(message.content, f"{place}.content")
        # Servers of OpenAI's format know the older name of the role.
        role = "user" if role == "user" else "system"
        self._end_answer()
        self._messages.append({"role": role, "content": content})

    def _add_reasoning(self, item: ThoughtItem, place: str) -> None:
        if not item.encrypted_content:
            # No provider accepts reasoning without its own mark.
            return
        try:
            details = unseal(item.encrypted_content)
        except (Damaged, InvalidRequest):
            text = "It is not as this service sent it. Send the item unchanged, or leave it out."
            raise field_error(f"{place}.encrypted_content", text) from None
        if details is None:
            self._tools.leave_out("input.reasoning")
            return
        self._details += len(details)
        if self._details > BOUNDS.containers:
            raise field_error(
                "input", f"It has more than {BOUNDS.containers:,} parts of reasoning."
            )
        answer = self._open_answer()
        answer.setdefault("reasoning_details", []).extend(details)

    def _add_picture(self, picture: PictureItem, place: str) -> None:
        if picture.result:
            url = picture.result
            if PICTURE_URL.match(url) is None:
                url = f"data:image/png;base64,{url}"
            image = {"type": "image_url", "image_url": {"url": url}}
            self._open_answer().setdefault("images", []).append(image)

    def _add_function_call(self, call: FunctionCallItem, place: str) -> None:
        name = qualify(call.name, call.namespace)
        self._call(call.call_id, name, write_arguments(call.arguments) or "{}")

    def _add_custom_call(self, call: CustomCall, place: str) -> None:
        arguments = _encode({"input": call.input}).decode()
        self._call(call.call_id, qualify(call.name, None), arguments)

    def _add_known_call(self, call: KnownCall, place: str) -> None:
        kind = call.type
        call_id = call.call_id or call.id
        if call_id is None:
            raise missing_fields(f"{place}.call_id")
        if call.id is not None:
            self._call_ids[call.id] = call_id
        members = call.action
        if kind == "apply_patch_call":
            members = (
                None
                if call.operation is None
                else {"operation": msgspec.Raw(_encode(call.operation))}
            )
        elif kind == "tool_search_call":
            members = decode_object(bytes(call.arguments)) or {}
        if members is None:
            needed = "operation" if kind == "apply_patch_call" else "action"
            raise missing_fields(f"{place}.{needed}")
        arguments = {
            name: value
            for name, value in members.items()
            if name != "type" and bytes(value) != b"null"
        }
        self._call(call_id, kind.removesuffix("_call"), _encode(arguments).decode())

    def _call(self, call_id: str, name: str, arguments: str) -> None:
        answer = self._open_answer()
        if call_id not in self._answer_calls:
            self._answer_calls.add(call_id)
            self._calls[call_id] = deque()
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        self._calls[call_id].append(call)
        answer.setdefault("tool_calls", []).append(call)

    def _add_output(self, output: CallOutput, place: str) -> None:
        self._answer_call(output.call_id, _convert_content(output.output, f"{place}.output"))

    def _add_known_output(self, output: KnownOutput, place: str) -> None:
        call_id = output.call_id or (output.id and self._call_ids.get(output.id, output.id))
        if call_id is None:
            raise missing_fields(f"{place}.call_id")
        if output.tools is not None:
            self._tools.add_loaded(output.tools, f"{place}.tools")
            text = _encode(output.tools).decode()
        else:
            text = _write_output(output)
        self._answer_call(call_id, text)

    def _answer_call(self, call_id: str, content: Any) -> None:
        self._end_answer()
        if waiting := self._calls.get(call_id):
            self._outputs[id(waiting.popleft())] = content
        else:
            # The dialects tell the model a result without a call.
            self._messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _add_tools(self, item: AdditionalTools, place: str) -> None:
        self._tools.add_loaded(item.tools, f"{place}.tools")

    def _configure(self, update: ConfigurationUpdate, place: str) -> None:
        self.effort = update.reasoning.effort

    def _refuse_reference(self, item: ItemKind, place: str) -> None:
        raise field_error(f"{place}.type", f"item_reference: {_REFERENCE}")

    def _open_answer(self) -> dict[str, Any]:
        """Returns the message of the assistant to which the next item belongs."""
        if self._answer is None:
            self._answer = {"role": "assistant", "content": None}
            self._answer_calls.clear()
        return self._answer

    def _end_answer(self) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if "tool_calls" not in answer and answer["content"] is None:
            answer["content"] = ""
        self._messages.append(answer)


def _write_output(output: KnownOutput) -> str:
    """Returns the output of a tool as text; its status, if it has one, stands before it."""
    raw = bytes(output.output)
    text = ""
    if raw[:1] == b'"':
        text = msgspec.json.decode(raw, type=str)
    elif raw and raw != b"null":
        text = raw.decode()
    status = output.status
    return f"{status}\n{text}".strip() if status and status != "completed" else text


def _convert_content(
    content: str | list[ItemPart] | None, place: str
) -> str | list[dict[str, Any]]:
    """Returns the content of a chat message: one text if it has only text, else a list of parts.

    Every server accepts one text. Raises :class:`InvalidRequest`.
    """
    if content is None or isinstance(content, str):
        return content or ""
    parts = convert_each(content, _convert_part, place)
    if not parts:
        return ""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        text: str = parts[0]["text"]
        return text
    return parts


def _join_texts(content: str | list[ItemPart] | None, place: str) -> str:
    """Returns the text of an answer that is sent back; its parts are one text to their reader."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        if part.type == "refusal":
            texts.append(part.refusal or "")
        elif part.type in _TEXTS:
            texts.append(part.text or "")
        else:
            text = "An answer of the assistant consists of 'output_text' and 'refusal'."
            raise field_error(f"{place}[{index}].type", text)
    return "".join(texts)


def _convert_part(part: ItemPart, place: str) -> dict[str, Any]:
    match part.type:
        case kind if kind in _TEXTS:
            if part.text is None:
                raise missing_fields(f"{place}.text")
            converted: dict[str, Any] = {"type": "text", "text": part.text}
        case "refusal":
            converted = {"type": "text", "text": part.refusal or ""}
        case "input_image":
            converted = _convert_image(part, place)
        case "input_file":
            converted = _convert_file(part, place)
        case "input_audio":
            if part.input_audio is None:
                raise missing_fields(f"{place}.input_audio")
            converted = {"type": "input_audio", "input_audio": part.input_audio}
        case "input_video":
            url = _read_url(part.video_url, f"{place}.video_url")
            processing = part.processing or _read_beside(part.video_url, "processing")
            video = omit_none(url=url, processing=processing)
            converted = {"type": "video_url", "video_url": video}
        case kind:
            text = f"This service does not know a part of the type {kind[:64]!r}."
            raise field_error(f"{place}.type", text)
    if (mark := _cache_control(part)) is not None:
        converted["cache_control"] = mark
    return converted


def _convert_image(part: ItemPart, place: str) -> dict[str, Any]:
    if part.image_url is None and part.file_id:
        raise field_error(f"{place}.file_id", _STORED)
    url = _read_url(part.image_url, f"{place}.image_url")
    detail = part.detail or _read_beside(part.image_url, "detail")
    image = omit_none(url=url, detail=None if detail == "auto" else detail)
    return {"type": "image_url", "image_url": image}


def _convert_file(part: ItemPart, place: str) -> dict[str, Any]:
    data = part.file_data or part.file_url
    if not data:
        if part.file_id:
            raise field_error(f"{place}.file_id", _STORED)
        raise missing_fields(f"{place}.file_data")
    name = part.filename or ("document.pdf" if "application/pdf" in data[:64] else "document")
    return {"type": "file", "file": {"filename": name, "file_data": data}}


def _read_url(given: Any, place: str) -> str:
    """Returns a URL, which some callers wrap as chat does."""
    if isinstance(given, dict):
        given = given.get("url")
    if given is None:
        raise missing_fields(place)
    if not isinstance(given, str) or not given:
        raise field_error(place, "Expected a URL, or a data: URL.")
    return given


def _read_beside(given: Any, name: str) -> Any:
    """Returns a member that stands beside a URL where a caller wraps it as chat does."""
    return given.get(name) if isinstance(given, dict) else None


def _cache_control(part: ItemPart) -> dict[str, Any] | None:
    """Returns the end of a cached prefix, which the two interfaces name differently."""
    if part.cache_control is not None:
        return part.cache_control
    if part.prompt_cache_breakpoint is None:
        return None
    lifetime = part.prompt_cache_breakpoint.get("ttl")
    mark: dict[str, Any] = {"type": "ephemeral"}
    if lifetime is not None and bytes(lifetime) in _LIFETIMES:
        mark["ttl"] = lifetime
    return mark


Adder = Callable[[Conversation, Any, str], None]
_ADDERS: Final[Mapping[str, tuple[msgspec.json.Decoder[Any], Adder]]] = {
    kind: (msgspec.json.Decoder(shape), add)
    for kinds, shape, add in (
        ("message", MessageItem, Conversation._add_message),
        ("reasoning", ThoughtItem, Conversation._add_reasoning),
        ("function_call", FunctionCallItem, Conversation._add_function_call),
        ("custom_tool_call", CustomCall, Conversation._add_custom_call),
        ("local_shell_call shell_call apply_patch_call tool_search_call", KnownCall,
         Conversation._add_known_call),
        ("function_call_output custom_tool_call_output", CallOutput, Conversation._add_output),
        ("local_shell_call_output shell_call_output apply_patch_call_output tool_search_output",
         KnownOutput, Conversation._add_known_output),
        ("image_generation_call", PictureItem, Conversation._add_picture),
        ("additional_tools", AdditionalTools, Conversation._add_tools),
        ("configuration_update", ConfigurationUpdate, Conversation._configure),
        ("item_reference", ItemKind, Conversation._refuse_reference),
    )
    for kind in kinds.split()
}  # fmt: skip
