"""Parses OpenAI's chat request into the types from which the other wire formats are built.

https://platform.openai.com/docs/api-reference/chat/create describes the request. Fields that no
other format has are not parsed, and so are not sent. A part that a format cannot express raises
:class:`base.Untranslatable`, because the request would mean something else without it.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Final, Literal

import msgspec

from catalog.dialects.base import Call, Untranslatable, decode_object
from catalog.dialects.shared import searches
from catalog.dialects.shared.constraints import (
    CallIds,
    Constraints,
    flatten_schema,
    has_map,
    name_media_type,
    restrict_schema,
)
from catalog.dialects.shared.left_out import name_asked
from catalog.dialects.shared.pairs import BEGIN, CONTINUE, NO_CALL, NO_RESULT, pair_parts
from catalog.dialects.shared.raw import (
    first_byte,
    is_blank,
    is_null,
    read_text,
    write_arguments,
)
from catalog.dialects.shared.replies import name_format
from catalog.dialects.shared.searches import Search

Raw = msgspec.Raw
Kind = Literal["image", "file", "audio", "video"]

EMPTY_SCHEMA: Final = Raw(b'{"type":"object","properties":{}}')
_NULL: Final = Raw(b"null")
_OBJECT: Final = Raw(b'"object"')
# What may be alternatives at the top of a schema.
_OPTIONS: Final = re.compile(rb'"(?:any|one|all)Of"')
_encode = msgspec.json.Encoder().encode
_DATA_URL: Final = re.compile(
    r"data:\s*([a-z0-9.+-]+/[a-z0-9.+*-]+)?\s*(?:;[^;,]*)*;\s*base64\s*", re.IGNORECASE
)
_WEB_URL: Final = re.compile(r"https?://", re.IGNORECASE)
SYSTEM_ROLES: Final = frozenset(("system", "developer"))
_JSON_ONLY: Final = (
    "Answer with one JSON object and nothing else: no text around it, no code fence."
)
_JSON_OF: Final = (
    "Answer with JSON of this schema and nothing else: no text around it, no code fence.\n"
)
_NO_MAPS: Final = "This provider's strict schemas have no objects of any names."
_CHOICES: Final = frozenset(("auto", "none", "required"))
_MARK: Final = {"type": "ephemeral"}
_LIFETIMES: Final = ("5m", "1h")
# Fields that change the answer and that no other format has.
_LOST: Final = frozenset(("functions", "image_config"))
# The fields for which every format has words, and those that the gateway reads itself. Tools and
# searches are left out or refused before.
_SAID: Final = searches.SEARCH_FIELDS | {
    "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature",
    "top_p", "stop", "tools", "tool_choice", "response_format", "reasoning", "reasoning_effort",
    "include_reasoning", "user",
}  # fmt: skip
# What an answer may be asked to be, besides what the format of a schema says.
_FORMATS: Final = ("text", "json_object", "json_schema")


class _URL(msgspec.Struct):
    url: str
    detail: Any = None
    processing: Any = None


class _File(msgspec.Struct):
    file_data: str | None = None
    filename: str | None = None


class _Audio(msgspec.Struct):
    data: str
    format: str


class _Breakpoint(msgspec.Struct):
    """The end of a cached prefix in OpenAI's words."""

    ttl: Any = None


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | _URL | None = None
    video_url: str | _URL | None = None
    input_audio: _Audio | None = None
    file: _File | None = None
    cache_control: dict[str, Any] | None = None
    prompt_cache_breakpoint: _Breakpoint | None = None


class _Function(msgspec.Struct):
    name: str
    arguments: Raw = Raw()


class _ToolCall(msgspec.Struct):
    function: _Function
    id: str = ""


class _Detail(msgspec.Struct):
    type: str
    text: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    format: str | None = None
    index: int | None = None


class _Picture(msgspec.Struct):
    image_url: str | _URL


class _Spoken(msgspec.Struct):
    """The sound of an earlier answer, which only the server that made it can look up."""

    transcript: str | None = None


class _UpdatedReasoning(msgspec.Struct):
    effort: str | None = None


class _Update(msgspec.Struct):
    """What a later message changes about the request."""

    reasoning: _UpdatedReasoning | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_details: list[_Detail] | None = None
    configuration_update: _Update | None = None
    images: list[_Picture] | None = None
    audio: _Spoken | None = None
    name: Any = None

    @property
    def words(self) -> str | list[_Part] | None:
        """The content; without one the refusal, or what was said aloud."""
        spoken = None if self.audio is None else self.audio.transcript
        return self.content or self.refusal or spoken


class _ToolFunction(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: Raw = Raw()
    strict: bool | None = None


class _Tool(msgspec.Struct):
    type: str
    function: _ToolFunction | None = None
    cache_control: dict[str, Any] | None = None


class _FunctionName(msgspec.Struct):
    name: str


class _ToolChoice(msgspec.Struct):
    type: str
    function: _FunctionName | None = None


class _JsonSchema(msgspec.Struct):
    name: str | None = None
    description: str | None = None
    schema: Raw = Raw()
    strict: bool | None = None


class _ResponseFormat(msgspec.Struct):
    type: str
    json_schema: _JsonSchema | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None
    max_tokens: int | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class _Request(msgspec.Struct):
    messages: list[_Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | _ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: _ResponseFormat | None = None
    reasoning: _Reasoning | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    modalities: list[str] | None = None
    image_config: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    user: str | None = None


_decode = msgspec.json.Decoder(_Request).decode


@dataclass(frozen=True, slots=True)
class Text:
    """A text; ``cache`` is the caller's ``cache_control``, which ends a cached prefix here."""

    text: str = field(repr=False)
    cache: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a document, a sound or a video: as Base64 ``data`` or as a URL."""

    kind: Kind
    media_type: str | None
    data: str | None = field(default=None, repr=False)
    url: str | None = field(default=None, repr=False)
    name: str | None = None
    cache: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the model; the arguments are an object."""

    id: str
    name: str
    arguments: Mapping[str, Raw] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call; ``name`` is the tool's name, from the call with the same ``id``.

    ``cache`` is the last ``cache_control`` of its parts: no format allows one inside a result.
    """

    id: str
    name: str
    parts: tuple[Text | Media, ...]
    cache: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class ReasoningBlock:
    """Reasoning of an earlier reply: a text with a signature, or encrypted ``data``.

    Only the provider of its ``format`` can read it. ``id`` names the tool call that followed it.
    """

    text: str = field(default="", repr=False)
    signature: str | None = field(default=None, repr=False)
    data: str | None = field(default=None, repr=False)
    id: str | None = None
    format: str | None = None


Part = Text | Media | ToolCall | ToolResult | ReasoningBlock


@dataclass(frozen=True, slots=True)
class Turn:
    """The consecutive parts of one role; tool results belong to the user's turn."""

    role: Literal["user", "assistant"]
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str | None
    schema: Raw
    strict: bool | None
    cache: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class ToolDemand:
    """A mode ``auto``, ``none`` or ``required``; with a ``name``, that tool is required."""

    mode: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ReasoningOptions:
    """The reasoning that the caller asks for: an effort or a number of tokens.

    ``is_on`` is ``None`` when the caller leaves the choice to the model.
    """

    is_on: bool | None
    effort: str | None
    max_tokens: int | None
    is_hidden: bool


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat request: the conversation, the tools, and the options of the reply.

    ``search`` is the search of the web that the provider runs for the model. Without
    ``has_own_tools`` the tools are those of earlier calls, which a target demands. ``told_schema``
    is one that the target has no form for. ``marks`` names the members of messages and tools that
    few formats have, such as the ends of cached prefixes.
    """

    system: list[Text]
    turns: list[Turn]
    tools: list[Tool]
    search: Search | None
    tool_choice: ToolDemand | None
    has_own_tools: bool
    parallel_tool_calls: bool | None
    reasoning: ReasoningOptions
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    choices: int | None
    stop: list[str]
    is_json: bool
    schema: Raw | None
    told_schema: Raw | None
    schema_name: str | None
    modalities: list[str]
    image_config: dict[str, Any]
    cache: dict[str, Any] | None
    marks: frozenset[str]
    user: str | None

    @property
    def instructions(self) -> list[Text]:
        """Returns the system texts, and an instruction to write JSON that has no form."""
        if not self.is_json or self.schema is not None:
            return self.system
        told = self.told_schema
        return [*self.system, Text(_JSON_ONLY if told is None else _JSON_OF + bytes(told).decode())]

    @property
    def media(self) -> Iterator[Media]:
        """Yields the parts that are not text, in messages and in tool results."""
        for turn in self.turns:
            for part in turn.parts:
                for inner in part.parts if isinstance(part, ToolResult) else (part,):
                    if isinstance(inner, Media):
                        yield inner

    @property
    def is_tool_forced(self) -> bool:
        """Returns whether the model must call a tool, either a named one or any."""
        choice = self.tool_choice
        has_tools = bool(self.tools) or self.search is not None
        return has_tools and choice is not None and choice.mode == "required"


def parse_chat(
    call: Call, target: Constraints, *, has_search: bool = False, said: Iterable[str] = ()
) -> Chat:
    """Returns the chat request of a call within the constraints of a target.

    ``has_search`` says that the format can ask its provider to search the web. ``said`` are fields
    that the format has, and others lack. Raises :class:`base.Untranslatable`.
    """
    request = _read_request(call)
    for name in (_LOST & call.fields.keys()).difference(said):
        if msgspec.json.decode(_encode(call.fields[name])):
            raise Untranslatable(f"{name}: This provider's format has no such field.")
    marks = frozenset(_read_marks(request))
    if not call.keeps_lifetimes:
        _drop_lifetimes(request)
    search, functions = _split_tools(call, request.tools or [])
    if search is not None and not has_search:
        raise Untranslatable("This provider's format has no search of the web.")
    response_format = request.response_format
    schema = _read_schema(response_format)
    formed, told = _form_schema(schema, target)
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    turns = _order_turns(_parse_turns(request.messages, target), target, call, schema)
    tools = [_parse_tool(tool, target) for tool in functions]
    needs_tools = target.needs_tools and not tools and search is None
    used = _find_used_tools(turns) if needs_tools else []
    return Chat(
        system=[
            part
            for message in request.messages
            if message.role in SYSTEM_ROLES
            for part in _parse_parts(message.content)
            if isinstance(part, Text)
        ],
        turns=turns,
        tools=tools or used,
        search=search,
        tool_choice=ToolDemand("none") if used else _parse_tool_choice(request.tool_choice),
        has_own_tools=not used,
        parallel_tool_calls=request.parallel_tool_calls,
        reasoning=_parse_reasoning(request),
        max_tokens=request.max_completion_tokens or request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        seed=request.seed,
        choices=request.n,
        stop=[each for each in stop if each.strip() or (each and target.has_blanks)],
        is_json=response_format is not None and response_format.type != "text",
        schema=formed,
        told_schema=told,
        schema_name=None if schema is None else schema.name,
        modalities=request.modalities or [],
        image_config=request.image_config or {},
        cache=request.cache_control,
        marks=marks,
        user=request.user,
    )


def _read_request(call: Call) -> _Request:
    try:
        return _decode(_encode(dict(call.fields)))
    except RecursionError:
        raise Untranslatable("The request has too many levels.") from None
    except msgspec.DecodeError as exc:
        # The message of msgspec names a type and a path, and repeats no value.
        raise Untranslatable(f"The request has an unexpected shape: {exc}") from None


def _read_marks(request: _Request) -> Iterator[str]:
    """Yields the names of what messages and tools have beside their texts, as callers write them.

    Marks of cached prefixes in OpenAI's words are translated.
    """
    for message in request.messages:
        if message.name and message.role != "tool":
            yield "messages.name"
        if message.images:
            yield "messages.images"
        if (sound := message.audio) and not (
            sound.transcript and message.words == sound.transcript
        ):
            yield "messages.audio"
        for part in message.content if isinstance(message.content, list) else ():
            yield from _read_wishes(part)
            if (end := part.prompt_cache_breakpoint) is not None:
                yield "prompt_cache_breakpoint"
                lifetime = {"ttl": end.ttl} if end.ttl in _LIFETIMES else {}
                part.cache_control = part.cache_control or {**_MARK, **lifetime}
            elif part.cache_control is not None:
                yield "cache_control"
    for tool in request.tools or ():
        if tool.cache_control is not None:
            yield "cache_control"
        if tool.function is not None and tool.function.strict:
            yield "tools.function.strict"


def _read_wishes(part: _Part) -> Iterator[str]:
    """Yields the names of what a part asks for beside its picture or its video."""
    if isinstance(part.image_url, _URL) and part.image_url.detail not in (None, "", "auto"):
        yield "image_url.detail"
    if isinstance(part.video_url, _URL) and part.video_url.processing:
        yield "video_url.processing"


def _drop_lifetimes(request: _Request) -> None:
    """Gives every cached prefix the provider's default lifetime, to which the prices apply."""
    contents = [message.content for message in request.messages]
    marks = [
        request.cache_control,
        *(tool.cache_control for tool in request.tools or ()),
        *(part.cache_control for parts in contents if isinstance(parts, list) for part in parts),
    ]
    for mark in marks:
        if mark is not None:
            mark.pop("ttl", None)


def mark_last(chat: Chat) -> Chat:
    """Returns a chat whose own mark ends a cached prefix at its last part that can have one."""
    if chat.cache is None:
        return chat
    for turn in reversed(chat.turns):
        for index, part in reversed([*enumerate(turn.parts)]):
            if isinstance(part, Text | Media | ToolResult):
                turn.parts[index] = replace(part, cache=part.cache or chat.cache)
                return replace(chat, cache=None)
    return chat


def name_lost(call: Call, chat: Chat, said: Iterable[str]) -> frozenset[str]:
    """Returns the names of what a request asks for and a format lacks.

    ``said`` are the fields that the format has, beside those of every format.
    """
    known = _SAID.union(said)
    return name_asked(call.fields, call.fields.keys() - known) | (chat.marks - known)


def omit_none(**members: Any) -> dict[str, Any]:
    """Returns the members whose value is not ``None``."""
    return {name: value for name, value in members.items() if value is not None}


def _read_schema(response_format: _ResponseFormat | None) -> _JsonSchema | None:
    """Returns the schema of an answer; raises :class:`Untranslatable` for an unknown type."""
    if response_format is None:
        return None
    if response_format.type not in _FORMATS:
        kind = response_format.type
        raise Untranslatable(f"response_format: This provider's format has no {kind!r}.")
    return response_format.json_schema


def _form_schema(schema: _JsonSchema | None, target: Constraints) -> tuple[Raw | None, Raw | None]:
    """Returns the schema of an answer in the target's form, or one that words must tell.

    Raises :class:`base.Untranslatable` for a strict one that has maps.
    """
    given = None if schema is None else _none_if_empty(schema.schema)
    if schema is None or given is None:
        return None, None
    given = _describe_schema(given, schema.description or "")
    try:
        return fit_answer_schema(given, target, member="response_format"), None
    except Untranslatable:
        if schema.strict:
            raise
        return None, given


def _describe_schema(raw: Raw, description: str) -> Raw:
    """Returns the schema of an answer with what stands beside it in OpenAI's format alone."""
    if not description or (members := decode_object(bytes(raw))) is None:
        return raw
    own = read_text(members.get("description")) or ""
    if description in own:
        return raw
    return Raw(_encode({**members, "description": f"{description}\n\n{own}".rstrip()}))


def unsupported_part(part: Media, provider: str) -> Untranslatable:
    """Returns the error for a part that a provider's format cannot express."""
    if part.url is not None:
        return Untranslatable(f"{provider} does not accept URLs for {part.kind} parts.")
    kind = (part.media_type or "unknown")[:64]
    return Untranslatable(f"{provider} does not accept {part.kind} parts of type {kind}.")


def _trim_answer(turns: list[Turn]) -> None:
    """Removes the white space at the end of an answer that the model is to continue."""
    if turns and turns[-1].role == "assistant" and isinstance(last := turns[-1].parts[-1], Text):
        turns[-1].parts[-1] = replace(last, text=last.text.rstrip())


def _find_used_tools(turns: list[Turn]) -> list[Tool]:
    """Returns a tool for each name that a conversation has called."""
    parts = (part for turn in turns for part in turn.parts)
    names = dict.fromkeys(part.name for part in parts if isinstance(part, ToolCall | ToolResult))
    return [Tool(name, None, EMPTY_SCHEMA, None, None) for name in names]


def _parse_turns(messages: list[_Message], target: Constraints) -> list[Turn]:
    """Joins consecutive messages of one role, because the formats require alternating roles."""
    turns: list[Turn] = []
    names: dict[str, str] = {}
    ids = CallIds(target.call_id)
    for message in messages:
        parts: list[Part] = []
        match message.role:
            case "system" | "developer":
                # The formats have texts alone among their instructions: media become the user's.
                parts += (each for each in _parse_parts(message.content) if isinstance(each, Media))
            case "user":
                parts += _parse_parts(message.content)
            case "assistant":
                parts += _parse_assistant_message(message, ids, target)
            case "tool":
                parts.append(_parse_tool_result(message, names, ids))
            case _:
                raise Untranslatable("This provider does not know the role of a message.")
        names |= {part.id: part.name for part in parts if isinstance(part, ToolCall)}
        role: Literal["user", "assistant"] = "assistant" if message.role == "assistant" else "user"
        if not parts:
            continue
        if turns and turns[-1].role == role:
            turns[-1].parts.extend(parts)
        else:
            turns.append(Turn(role, parts))
    return turns


def _pair_results(turns: list[Turn]) -> list[Turn]:
    """Returns turns in which each call has its one result behind it."""
    parts = [part for turn in turns for part in turn.parts]
    names = {part.id: part.name for part in parts if isinstance(part, ToolCall)}
    paired = pair_parts(
        ((turn.role, turn.parts) for turn in turns),
        lambda part: (
            part.id if isinstance(part, ToolCall) else None,
            part.id if isinstance(part, ToolResult) else None,
        ),
        lambda call_id: ToolResult(call_id, names[call_id], (Text(NO_RESULT),)),
        _tell_stray,
    )
    if paired is None:
        return turns
    return [Turn("assistant" if role == "assistant" else "user", kept) for role, kept in paired]


def _tell_stray(part: Part) -> list[Part]:
    if not isinstance(part, ToolResult):
        return [part]
    media = [inner for inner in part.parts if isinstance(inner, Media)]
    return [Text(f"{NO_CALL}\n{part.text}", part.cache), *media]


def _order_turns(
    given: list[Turn], target: Constraints, call: Call, schema: _JsonSchema | None
) -> list[Turn]:
    """Returns turns with paired results, and with the user's that must stand first and last.

    The newer models of Claude continue no answer, and none of them does so within a schema.
    """
    turns = _pair_results(given)
    is_older = call.capabilities.has_thinking_budget and schema is None
    is_claude = call.capabilities.is_anthropic and not is_older
    if target.begins_with_user and (not turns or turns[0].role == "assistant"):
        turns.insert(0, Turn("user", [Text(BEGIN)]))
    if turns and turns[-1].role == "assistant" and (target.ends_with_user or is_claude):
        turns.append(Turn("user", [Text(CONTINUE)]))
    if not target.has_blanks:
        _trim_answer(turns)
    return turns


def _parse_tool_result(message: _Message, names: Mapping[str, str], ids: CallIds) -> ToolResult:
    call_id = ids.name_result(message.tool_call_id or "")
    content = message.content
    cache = None
    for part in content if isinstance(content, list) else ():
        cache, part.cache_control = part.cache_control or cache, None
    return ToolResult(call_id, names.get(call_id, call_id), tuple(_parse_parts(content)), cache)


def _parse_assistant_message(
    message: _Message, ids: CallIds, target: Constraints
) -> Iterator[Part]:
    calls = message.tool_calls or ()
    named = ids.name_calls([call.id for call in calls])
    by_id = dict(zip((call.id for call in calls), named, strict=True))
    for block in _join_reasoning(message.reasoning_details or []):
        yield replace(block, id=by_id.get(block.id or "", block.id))
    yield from _parse_parts(message.words)
    if target.has_pictures:
        for picture in message.images or ():
            yield _parse_media("image", picture.image_url, cache=None)
    for call, call_id in zip(calls, named, strict=True):
        arguments = read_arguments(write_arguments(call.function.arguments))
        yield ToolCall(call_id, call.function.name, arguments)


def read_arguments(text: str) -> dict[str, Raw]:
    """Returns the arguments of an earlier call as an object.

    A text that is none, perhaps because a limit cut it off, becomes its member: every later turn
    would be refused for it.
    """
    found = decode_object(text.encode("utf-8", "surrogatepass"))
    if found is None:
        found = {} if is_blank(text) else {"arguments": Raw(_encode(text))}
    return found


def _join_reasoning(details: list[_Detail]) -> Iterator[ReasoningBlock]:
    """Joins the pieces of each text, because callers send them back as they were streamed."""
    pieces: list[str] = []
    for detail, following in zip_longest(details, details[1:]):
        pieces.append(detail.text or "")
        if (
            following is None
            or not detail.type == following.type == "reasoning.text"
            or (detail.index, detail.format) != (following.index, following.format)
            or detail.signature is not None
        ):
            form = name_format(detail.format, detail.signature)
            yield ReasoningBlock("".join(pieces), detail.signature, detail.data, detail.id, form)
            pieces.clear()


def _parse_parts(content: str | list[_Part] | None) -> Iterator[Text | Media]:
    """Yields the parts of a content without blank texts, which other providers refuse."""
    if isinstance(content, str):
        if content.strip():
            yield Text(content)
        return
    for part in content or ():
        cache = part.cache_control
        text = part.refusal if part.text is None else part.text
        if text is not None:
            if text.strip():
                yield Text(text, cache)
        elif part.image_url is not None:
            yield _parse_media("image", part.image_url, cache=cache)
        elif part.video_url is not None:
            yield _parse_media("video", part.video_url, cache=cache)
        elif part.input_audio is not None:
            audio = part.input_audio
            media_type = name_media_type(f"audio/{audio.format}", audio.data)
            yield Media("audio", media_type, audio.data, cache=cache)
        elif part.file is not None and part.file.file_data is not None:
            yield _parse_media("file", part.file.file_data, name=part.file.filename, cache=cache)
        else:
            kind = part.type[:64]
            raise Untranslatable(f"This provider does not accept a part of the type {kind!r}.")


def _parse_media(
    kind: Kind, place: str | _URL, *, name: str | None = None, cache: dict[str, Any] | None
) -> Media:
    url = place.url if isinstance(place, _URL) else place
    if url[:5].lower() != "data:":
        if not _WEB_URL.match(url):
            raise Untranslatable("The URL of a part must begin with https://, http:// or data:.")
        media_type, _ = mimetypes.guess_type(url.partition("?")[0])
        return Media(kind, media_type, url=url, name=name, cache=cache)
    head, _, data = url.partition(",")
    match = _DATA_URL.fullmatch(head)
    if match is None:
        raise Untranslatable("A data: URL must be encoded in Base64.")
    return Media(kind, name_media_type(match[1], data, name), data, name=name, cache=cache)


def _split_tools(call: Call, tools: list[_Tool]) -> tuple[Search | None, list[_Tool]]:
    """Returns the search of the web that a call asks for, and the other tools.

    Raises :class:`base.Untranslatable` for a search that no hold covers.
    """
    functions = [tool for tool in tools if not searches.is_search(tool.type)]
    if len(functions) == len(tools) and searches.WEB_SEARCH_OPTIONS not in call.fields:
        return None, tools
    search = searches.read_search(call.fields)
    if search is not None and not call.most_searches:
        raise Untranslatable("This request may not search the web.")
    return search, functions


def _parse_tool(tool: _Tool, target: Constraints) -> Tool:
    function = tool.function
    if tool.type != "function" or function is None:
        raise Untranslatable("This provider accepts only tools of the type function.")
    return Tool(
        name=function.name,
        description=function.description or None,
        schema=fit_schema(function.parameters, target, is_strict=function.strict is True),
        strict=function.strict,
        cache=tool.cache_control,
    )


def fit_schema(raw: Raw, target: Constraints, *, is_strict: bool) -> Raw:
    """Returns the schema of a tool's arguments as the target accepts it.

    Raises :class:`base.Untranslatable` for a strict one that has maps.
    """
    schema = complete_schema(raw)
    if not target.has_strict_schemas:
        return schema
    if not is_strict and _OPTIONS.search(schema) is None:
        return schema
    given = msgspec.json.decode(schema)
    fitting = flatten_schema(given)
    if is_strict:
        if has_map(fitting):
            raise Untranslatable(f"tools: {_NO_MAPS}")
        fitting = restrict_schema(fitting)
    return schema if fitting == given else Raw(_encode(fitting))


def fit_answer_schema(raw: Raw, target: Constraints, *, member: str) -> Raw:
    """Returns the schema of an answer, in a member, with the keywords that the target accepts.

    Raises :class:`base.Untranslatable` for one that has maps.
    """
    if not target.has_strict_schemas:
        return raw
    given = msgspec.json.decode(raw)
    if has_map(given):
        raise Untranslatable(f"{member}: {_NO_MAPS}")
    fitting = restrict_schema(given)
    return raw if fitting == given else Raw(_encode(fitting))


def complete_schema(raw: Raw) -> Raw:
    """Returns the schema of a tool's arguments, which are always an object."""
    members = decode_object(bytes(raw)) or {}
    kind = members.get("type", _NULL)
    if kind == b'"object"' and not is_null(members.get("properties", _NULL)):
        return raw
    if is_null(kind) or (first_byte(kind) == b"[" and b'"object"' in bytes(kind)):
        members["type"] = _OBJECT
    if members["type"] == _OBJECT and is_null(members.get("properties", _NULL)):
        members["properties"] = Raw(b"{}")
    return Raw(_encode(members))


def _none_if_empty(raw: Raw) -> Raw | None:
    return None if bytes(raw) in (b"", b"null") else raw


def _parse_tool_choice(choice: str | _ToolChoice | None) -> ToolDemand | None:
    if choice is None:
        return None
    if isinstance(choice, str):
        if choice in _CHOICES:
            return ToolDemand(choice)
    elif choice.type == "function" and choice.function is not None:
        return ToolDemand("required", choice.function.name)
    elif searches.is_search(choice.type):
        return ToolDemand("required", searches.NAME)
    raise Untranslatable("This provider does not know the tool_choice.")


def _parse_reasoning(request: _Request) -> ReasoningOptions:
    options = request.reasoning or _Reasoning()
    effort, is_on = options.effort or request.reasoning_effort, options.enabled
    for message in request.messages:
        update = message.configuration_update and message.configuration_update.reasoning
        if update and update.effort:
            # The last one applies to the answer.
            effort, is_on = update.effort, None
    if effort == "none" or is_on is False:
        is_on, effort = False, None
    elif effort is not None or options.max_tokens is not None:
        is_on = True
    return ReasoningOptions(
        is_on=is_on,
        effort=effort,
        max_tokens=options.max_tokens,
        is_hidden=options.exclude is True or request.include_reasoning is False,
    )
