"""Parses requests of Anthropic's Messages by type, and rewrites them as chat requests.

A field that chat cannot express is refused by name, unless its value sets nothing. A field is left
out only if the answer does not depend on it: hints (``eager_input_streaming``),
``context_management``, and members of an earlier reply's blocks (``citations``, ``caller``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from catalog.dialects.anthropic.wire import ATTRIBUTION
from catalog.dialects.shared.constraints import is_closed, name_media_type
from catalog.dialects.shared.messages import omit_none
from catalog.dialects.shared.raw import is_empty
from catalog.dialects.shared.replies import UNSIGNED_FORMAT
from config.api.errors import InvalidRequest
from inference.requests.chat_replies import ReplyReasoning
from inference.requests.limits import MAX_MESSAGES, MAX_TOOLS, check_body
from inference.requests.messages.reasoning import decode_opaque
from inference.requests.operations.gateway_fields import is_set
from inference.requests.problems import explain_decode_error, field_error, require_user
from inference.requests.schemas import ProviderPreferences

_FIELD: Final = re.compile(
    r"Object contains unknown field `(?P<name>.*?)`(?: - at `\$\.?(?P<path>.*)`)?",
    re.DOTALL,
)
_TOOL_TYPE: Final = re.compile(r"Invalid value '.*' - at `\$\.(tools\[\d+\]\.type)`", re.DOTALL)

# Blocks that no other format knows. Another model reads what they say as text, so that a session
# can go on elsewhere; their encrypted parts say nothing to it.
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

_Raws = dict[str, msgspec.Raw]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
# What a model has written; a target that wants an object gets one.
_Input = Annotated[Any, msgspec.Meta(extra_json_schema={"type": "object"})]
# The name of a function in chat.
_ToolName = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_-]+\Z")]
_Data = Annotated[str, msgspec.Meta(min_length=1)]
# Under any of the names that clients give it; without one its bytes decide.
_ImageType = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(image/(p?jpe?g|(x-)?png|gif|webp|\*)|IMAGE/(JPE?G|PNG|GIF|WEBP)"
        r"|application/octet-stream)(;.*)?\Z"
    ),
]


class _Shape(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    pass


class TextBlock(_Shape, tag="text"):
    text: str
    cache_control: _Raws | None = None
    citations: list[msgspec.Raw] | None = None


class Base64Image(_Shape, tag="base64"):
    data: _Data
    media_type: _ImageType | None = None


class WebSource(_Shape, tag="url"):
    url: _Data


class ImageBlock(_Shape, tag="image"):
    source: Base64Image | WebSource
    cache_control: _Raws | None = None


class Base64Document(_Shape, tag="base64"):
    data: _Data
    media_type: str | None = None


class TextDocument(_Shape, tag="text"):
    media_type: Literal["text/plain"]
    data: str


class DocumentBlock(_Shape, tag="document"):
    source: Base64Document | WebSource | TextDocument
    title: str | None = None
    cache_control: _Raws | None = None


_Content = TextBlock | ImageBlock | DocumentBlock


class ToolResultBlock(_Shape, tag="tool_result"):
    """The result of a tool; chat cannot mark a failure, so the text must say it."""

    tool_use_id: str
    content: str | list[_Content] | None = None
    is_error: bool | None = None
    cache_control: _Raws | None = None


class ToolUseBlock(_Shape, tag="tool_use"):
    id: str
    name: str
    input: _Input = None
    caller: _Raws | None = None
    cache_control: _Raws | None = None


class ThinkingBlock(_Shape, tag="thinking"):
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(_Shape, tag="redacted_thinking"):
    data: str


class UserTurn(_Shape, tag_field="role", tag="user"):
    content: str | list[TextBlock | ImageBlock | DocumentBlock | ToolResultBlock]


class AssistantTurn(_Shape, tag_field="role", tag="assistant"):
    content: str | list[TextBlock | ToolUseBlock | ThinkingBlock | RedactedThinkingBlock]


class SystemTurn(_Shape, tag_field="role", tag="system"):
    content: str | list[TextBlock]


class FunctionTool(_Shape, tag="custom"):
    """A tool that the caller runs; the gateway has no tools that a server runs."""

    name: _ToolName
    input_schema: _Raws
    description: str | None = None
    strict: bool | None = None
    cache_control: _Raws | None = None
    eager_input_streaming: bool | None = None


class AutoChoice(_Shape, tag="auto"):
    disable_parallel_tool_use: bool | None = None


class AnyChoice(_Shape, tag="any"):
    disable_parallel_tool_use: bool | None = None


class NamedChoice(_Shape, tag="tool"):
    name: _Name
    disable_parallel_tool_use: bool | None = None


class NoChoice(_Shape, tag="none"):
    pass


class ThinkingOn(_Shape, tag="enabled"):
    budget_tokens: Annotated[int, msgspec.Meta(ge=1024, le=100_000_000)]
    display: Literal["summarized", "omitted"] | None = None


class ThinkingAdaptive(_Shape, tag="adaptive"):
    display: Literal["summarized", "omitted"] | None = None


class ThinkingOff(_Shape, tag="disabled"):
    pass


class OutputFormat(_Shape, tag="json_schema"):
    schema: _Raws


class OutputConfig(_Shape):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class UserMetadata(_Shape):
    user_id: Annotated[str, msgspec.Meta(max_length=512)] | None = None


_Slug = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


# Members that chat reads or refuses as they are.
_SAME: Final = (
    "models", "provider", "route", "session_id", "trace", "safety_identifier", "plugins",
    "transforms", "debug", "deferred_tools", "stop_server_tools_when",
)  # fmt: skip
_NONE: Final = msgspec.field(default_factory=msgspec.Raw)
_OBJECT: Final[dict[str, Any]] = {"type": "object"}
_PLUGIN: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "string"}, "enabled": {"type": "boolean"}},
}


def _raw(shape: dict[str, Any]) -> Any:
    """Returns the type of a member that chat reads, with its shape for readers."""
    schema = {"anyOf": [shape, {"type": "null"}], "default": None}
    return Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=schema)]


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


class CommonFields(_Shape, kw_only=True):
    """The fields that decide about price, limits and routing, in whatever form the rest is."""

    model: _Slug
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    stream: bool | None = None
    metadata: UserMetadata | None = None
    models: Annotated[list[_Slug], msgspec.Meta(max_length=32)] | None = None
    provider: ProviderPreferences | None = None
    route: str | None = None
    session_id: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    trace: _Raws | None = None
    user: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    safety_identifier: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    usage: _Raws | None = None
    plugins: _raw(_list_of(_PLUGIN)) = _NONE  # type: ignore[valid-type]
    transforms: _raw(_list_of({"type": "string"})) = _NONE  # type: ignore[valid-type]
    debug: _raw(_OBJECT) = _NONE  # type: ignore[valid-type]
    deferred_tools: _raw(_OBJECT) = _NONE  # type: ignore[valid-type]
    stop_server_tools_when: _raw(_list_of(_OBJECT)) = _NONE  # type: ignore[valid-type]

    def gateway_fields(self) -> dict[str, Any]:
        """Returns the members that chat reads as they are."""
        members = {name: getattr(self, name) for name in _SAME}
        return {
            name: value
            for name, value in members.items()
            if value is not None and not (isinstance(value, msgspec.Raw) and is_empty(value))
        }


class _CommonRequest(CommonFields, kw_only=True):
    messages: Annotated[
        list[UserTurn | AssistantTurn | SystemTurn],
        msgspec.Meta(min_length=1, max_length=MAX_MESSAGES),
    ]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[FunctionTool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: AutoChoice | AnyChoice | NamedChoice | NoChoice | None = None
    thinking: ThinkingOn | ThinkingAdaptive | ThinkingOff | None = None
    output_config: OutputConfig | None = None
    stop_sequences: Annotated[list[str], msgspec.Meta(max_length=4)] | None = None
    cache_control: _Raws | None = None
    context_management: _Raws | None = None
    service_tier: Literal["auto"] | None = None


_Bound = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]


class MessagesRequest(_CommonRequest, kw_only=True):
    """The body of ``POST /messages``: Anthropic's fields, and the gateway's fields of chat."""

    max_tokens: _Bound


class CountTokensRequest(_CommonRequest, kw_only=True):
    """The body of ``POST /messages/count_tokens``: a message whose ``max_tokens`` is optional."""

    max_tokens: _Bound | None = None


def _name_members(*shapes: type[_Shape]) -> dict[str | None, frozenset[str]]:
    """Returns the names of the members of objects by their type, which is one of them."""
    return {
        str(shape.__struct_config__.tag): frozenset((*shape.__struct_fields__, "type"))
        for shape in shapes
    }


_BLOCKS: Final = _name_members(
    TextBlock, ImageBlock, DocumentBlock, ToolResultBlock, ToolUseBlock, ThinkingBlock,
    RedactedThinkingBlock,
)  # fmt: skip
# What the objects in a body may have, by the name of the member that holds them.
_MEMBERS: Final[Mapping[str, Mapping[str | None, frozenset[str]]]] = {
    "messages": {None: frozenset(("role", "content"))},
    "system": _BLOCKS,
    "content": _BLOCKS,
    "source": _name_members(Base64Document, WebSource, TextDocument),
    "tools": {None: frozenset(FunctionTool.__struct_fields__), **_name_members(FunctionTool)},
    "tool_choice": _name_members(AutoChoice, AnyChoice, NamedChoice, NoChoice),
    "thinking": _name_members(ThinkingOn, ThinkingAdaptive, ThinkingOff),
    "output_config": {None: frozenset(OutputConfig.__struct_fields__)},
    "format": _name_members(OutputFormat),
    "metadata": {None: frozenset(UserMetadata.__struct_fields__)},
}
# What holds for every tool is no wish.
_USUAL: Final[Mapping[str, Any]] = {"allowed_callers": ["direct"]}
_Request = MessagesRequest | CountTokensRequest
_decode = msgspec.json.Decoder(MessagesRequest).decode
_decode_count = msgspec.json.Decoder(CountTokensRequest).decode
_encode = msgspec.json.Encoder().encode


def convert(body: bytes, *, is_count: bool = False) -> tuple[bytes, bool]:
    """Returns the equivalent chat request, and whether blocks that chat does not know became text.

    ``is_count`` reads a request to count tokens. Raises :class:`InvalidRequest` with the name of
    the wrong field. A body above ``LARGE_BYTES`` is converted in a thread.
    """
    check_body(body)
    has_foreign = False
    decode = _decode_count if is_count else _decode
    request: _Request
    try:
        try:
            request = decode(body)
        except msgspec.ValidationError:
            if (adapted := _adapt(body)) is None:
                raise
            plain, has_foreign = adapted
            request = decode(plain)
    except msgspec.ValidationError as exc:
        shape = CountTokensRequest if is_count else MessagesRequest
        raise _explain_decode_error(str(exc), shape, body) from None
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    fields = {
        "model": request.model,
        "messages": _convert_messages(request),
        "max_tokens": request.max_tokens,
        "tools": [_convert_tool(tool) for tool in request.tools or ()] or None,
        **_tool_choice(request),
        "reasoning": _reasoning(request),
        "response_format": _response_format(request),
        "stop": request.stop_sequences or None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stream": request.stream,
        "user": find_user(request),
        "cache_control": request.cache_control,
        **request.gateway_fields(),
    }
    return _encode(omit_none(**fields)), has_foreign


def _convert_messages(request: _Request) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if system := _without_attribution(request.system):
        messages.append({"role": "system", "content": _convert_content(system)})
    for turn in request.messages:
        match turn:
            case UserTurn():
                messages += _convert_user_turn(turn.content)
            case AssistantTurn():
                messages.append(_convert_assistant_turn(turn.content))
            case SystemTurn():
                messages.append({"role": "system", "content": _convert_content(turn.content)})
    return messages


def _without_attribution(
    system: str | list[TextBlock] | None,
) -> str | list[TextBlock] | None:
    """Leaves out Claude Code's line for Anthropic, which every other model reads as a prompt."""
    if isinstance(system, list) and system and system[0].text.startswith(ATTRIBUTION):
        return system[1:]
    return system


def _convert_user_turn(
    content: str | list[TextBlock | ImageBlock | DocumentBlock | ToolResultBlock],
) -> list[dict[str, Any]]:
    """Returns the tool results, which must directly follow their calls in chat, then the rest."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    messages: list[dict[str, Any]] = []
    rest: list[_Content] = []
    for block in content:
        if isinstance(block, ToolResultBlock):
            result = _convert_content(block.content or "", block.cache_control)
            messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": result})
        else:
            rest.append(block)
    if rest or not messages:
        messages.append({"role": "user", "content": _convert_content(rest)})
    return messages


def _convert_assistant_turn(
    content: str | list[TextBlock | ToolUseBlock | ThinkingBlock | RedactedThinkingBlock],
) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts: list[TextBlock] = []
    calls: list[dict[str, Any]] = []
    details: list[ReplyReasoning] = []
    for index, block in enumerate(content):
        match block:
            case TextBlock():
                texts.append(block)
            case ToolUseBlock():
                given = block.input
                arguments = given if isinstance(given, str) else _encode(given).decode()
                function = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ThinkingBlock() if block.signature:
                details.append(
                    decode_opaque(
                        block.signature, is_encrypted=False, text=block.thinking, index=index
                    )
                )
            case ThinkingBlock():
                if block.thinking:
                    detail = ReplyReasoning(type="reasoning.text", text=block.thinking)
                    detail.format, detail.index = UNSIGNED_FORMAT, index
                    details.append(detail)
            case RedactedThinkingBlock():
                details.append(decode_opaque(block.data, is_encrypted=True, index=index))
    message: dict[str, Any] = {"role": "assistant"}
    message["content"] = _convert_content(texts) if texts or not calls else None
    if calls:
        message["tool_calls"] = calls
    if details:
        message["reasoning_details"] = details
    return message


def _convert_content(
    content: str | Iterable[_Content], cache_control: _Raws | None = None
) -> str | list[dict[str, Any]]:
    """Returns the content of a message: one text if it has only text, else a list of parts.

    Every server accepts one text. ``cache_control`` is the enclosing block's; it moves to the last
    part.
    """
    parts: list[dict[str, Any]] = []
    if not isinstance(content, str):
        parts += map(_convert_part, content)
    elif content:
        parts.append({"type": "text", "text": content})
    if parts and cache_control is not None:
        parts[-1].setdefault("cache_control", cache_control)
    if not parts:
        return ""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        text: str = parts[0]["text"]
        return text
    return parts


def _convert_part(block: _Content) -> dict[str, Any]:
    match block:
        case TextBlock():
            part: dict[str, Any] = {"type": "text", "text": block.text}
        case ImageBlock():
            part = {"type": "image_url", "image_url": {"url": _data_url(block.source)}}
        case DocumentBlock():
            part = _convert_document(block)
    if block.cache_control is not None:
        part["cache_control"] = block.cache_control
    return part


def _convert_document(block: DocumentBlock) -> dict[str, Any]:
    source = block.source
    if isinstance(source, TextDocument):
        text = source.data if block.title is None else f"{block.title}\n\n{source.data}"
        return {"type": "text", "text": text}
    url = _data_url(source, block.title)
    is_pdf = isinstance(source, WebSource) or url.startswith("data:application/pdf;")
    name = block.title or ("document.pdf" if is_pdf else "document")
    return {"type": "file", "file": {"filename": name, "file_data": url}}


def _data_url(source: Base64Image | Base64Document | WebSource, name: str | None = None) -> str:
    if isinstance(source, WebSource):
        return source.url
    kind = name_media_type(source.media_type, source.data, name) or "application/octet-stream"
    return f"data:{kind};base64,{source.data}"


def _convert_tool(tool: FunctionTool) -> dict[str, Any]:
    function = omit_none(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict and _strictness(tool.input_schema),
    )
    return omit_none(type="function", function=function, cache_control=tool.cache_control)


def _strictness(schema: _Raws) -> bool | None:
    """Returns the ``strict`` of a schema: Anthropic's may have optional properties, OpenAI's not.

    Without it a server does its best.
    """
    return is_closed(msgspec.json.decode(_encode(schema))) or None


def _tool_choice(request: _Request) -> dict[str, Any]:
    choice = request.tool_choice
    members: dict[str, Any] = {}
    match choice:
        case AutoChoice():
            members["tool_choice"] = "auto"
        case AnyChoice():
            members["tool_choice"] = "required"
        case NamedChoice():
            members["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        case NoChoice():
            return {"tool_choice": "none"}
        case None:
            return {}
    if choice.disable_parallel_tool_use:
        members["parallel_tool_calls"] = False
    return members


def _reasoning(request: _Request) -> dict[str, Any] | None:
    """Returns chat's ``reasoning`` for Anthropic's ``thinking`` and ``output_config``."""
    thinking = request.thinking
    members = omit_none(
        effort=None if request.output_config is None else request.output_config.effort
    )
    match thinking:
        case ThinkingOn():
            members["max_tokens"] = thinking.budget_tokens
        case ThinkingAdaptive():
            members["enabled"] = True
        case ThinkingOff():
            return {"enabled": False}
    if isinstance(thinking, ThinkingOn | ThinkingAdaptive) and thinking.display == "omitted":
        members["exclude"] = True
    return members or None


def _response_format(request: _Request) -> dict[str, Any] | None:
    config = request.output_config
    if config is None or config.format is None:
        return None
    schema = config.format.schema
    made = omit_none(name="answer", schema=schema, strict=_strictness(schema))
    return {"type": "json_schema", "json_schema": made}


def find_user(request: CommonFields) -> str | None:
    """Returns the end user of a request; raises :class:`InvalidRequest` for a malformed name."""
    user_id = None if request.metadata is None else request.metadata.user_id
    require_user("metadata.user_id", user_id)
    return request.user or user_id


def _explain_decode_error(text: str, shape: type[_Request], body: bytes) -> InvalidRequest:
    """Returns the error of a field by its full name; the decoder's path ends at its object."""
    if match := _FIELD.fullmatch(text):
        name = match["name"][:100]
        path = f"{match['path']}.{name}" if match["path"] else name
        return field_error(path, "Unknown field.")
    if match := _TOOL_TYPE.fullmatch(text):
        return field_error(match[1], "Only tools that the caller runs, of type 'custom'.")
    return explain_decode_error(text, shape=shape, body=body)


def _adapt(body: bytes) -> tuple[bytes, bool] | None:
    """Returns a body whose foreign blocks are text, without unknown members that ask for nothing.

    Also returns whether it had such blocks, and ``None`` if it had neither.
    """
    request = msgspec.json.decode(body)
    if not isinstance(request, dict):
        return None
    dropped = sum(_drop_unset(request.get(name), known) for name, known in _MEMBERS.items())
    has_foreign, messages = False, request.get("messages")
    for turn in messages if isinstance(messages, list) else ():
        has_foreign |= isinstance(turn, dict) and _rewrite(turn)
    return (_encode(request), has_foreign) if dropped or has_foreign else None


def _drop_unset(value: Any, known: Mapping[str | None, frozenset[str]]) -> int:
    """Drops unknown members that ask for nothing from objects of known types; counts them."""
    if isinstance(value, list):
        return sum(_drop_unset(each, known) for each in value)
    kind = value.get("type") if isinstance(value, dict) else ()
    names = known.get(kind) if isinstance(kind, str | None) else None
    if names is None:
        return 0
    unset = [
        name
        for name, member in value.items()
        if name not in names and (not is_set(member) or member == _USUAL.get(name))
    ]
    for name in unset:
        del value[name]
    inner = (_drop_unset(value[name], _MEMBERS[name]) for name in _MEMBERS.keys() & value.keys())
    return len(unset) + sum(inner)


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
        is_foreign = isinstance(source, dict) and source.get("type") == _PARTS
    else:
        is_foreign = kind in _FOREIGN or kind.endswith(_RESULT)
    return is_foreign and not _has_file(block)


def _has_file(value: Any) -> bool:
    """Tells whether a block shows a file of an account, which not every credential may read."""
    if isinstance(value, list):
        return any(map(_has_file, value))
    if not isinstance(value, dict):
        return False
    return value.get("type") == "file" or any(
        _has_file(member) for name, member in value.items() if name != "input"
    )


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
