"""OpenAI's chat request, read once into what the other wire formats are written from.

The fields that no other format knows are read by nobody, and so sent to nobody. What a format
cannot say is :class:`base.Untranslatable`: a part that were left out would change the question.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, Literal

import msgspec

from catalog.dialects.base import Call, Untranslatable, decode_object

Raw = msgspec.Raw
Kind = Literal["image", "file", "audio", "video"]

EMPTY_SCHEMA: Final = Raw(b'{"type":"object","properties":{}}')
_encode = msgspec.json.Encoder().encode
_DATA_URL: Final = re.compile(r"data:([A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+)?(?:;[^;,]*)*;base64")
_WEB_URL: Final = re.compile(r"https?://")
_SYSTEM_ROLES: Final = frozenset(("system", "developer"))
_JSON_ONLY: Final = (
    "Answer with one JSON object and nothing else: no text around it, no code fence."
)
_CHOICES: Final = frozenset(("auto", "none", "required"))


class _URL(msgspec.Struct):
    url: str


class _File(msgspec.Struct):
    file_data: str | None = None
    filename: str | None = None


class _Audio(msgspec.Struct):
    data: str
    format: str


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    image_url: str | _URL | None = None
    video_url: str | _URL | None = None
    input_audio: _Audio | None = None
    file: _File | None = None
    cache_control: dict[str, Any] | None = None


class _Function(msgspec.Struct):
    name: str
    arguments: str = ""


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


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_details: list[_Detail] | None = None


class _ToolFunction(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: Raw = Raw()
    strict: bool | None = None


class _Tool(msgspec.Struct):
    type: str
    function: _ToolFunction | None = None
    cache_control: dict[str, Any] | None = None


class _Named(msgspec.Struct):
    name: str


class _ToolChoice(msgspec.Struct):
    type: str
    function: _Named | None = None


class _JsonSchema(msgspec.Struct):
    name: str | None = None
    schema: Raw = Raw()


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
    cache_control: dict[str, Any] | None = None
    user: str | None = None


_decode = msgspec.json.Decoder(_Request).decode


@dataclass(frozen=True, slots=True)
class Text:
    """Some text; ``cache`` is the caller's ``cache_control``, which ends a cached prefix here."""

    text: str = field(repr=False)
    cache: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a document, a sound or a film: Base64 ``data``, or the URL where it lies."""

    kind: Kind
    media_type: str | None
    data: str | None = field(default=None, repr=False)
    url: str | None = field(default=None, repr=False)
    name: str | None = None
    cache: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model called, with its arguments as an object."""

    id: str
    name: str
    arguments: Mapping[str, Raw] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered; ``name`` is the tool's, from the call of that identifier.

    ``cache`` is the mark of its last part that has one: no format takes marks inside a result.
    """

    id: str
    name: str
    parts: tuple[Text | Media, ...]
    cache: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning of an earlier answer: its text with a signature, or ``data`` that is encrypted.

    Only the provider of its ``format`` can read either. ``id`` is the tool call that it led to.
    """

    text: str = field(default="", repr=False)
    signature: str | None = field(default=None, repr=False)
    data: str | None = field(default=None, repr=False)
    id: str | None = None
    format: str | None = None


Part = Text | Media | ToolCall | ToolResult | Thought


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side said until the other spoke; what a tool answered is the user's."""

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
class ToolChoice:
    """``auto``, ``none`` or ``required``; with a ``name``, that tool is required."""

    mode: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How much the model shall think, in the caller's words: an effort or a number of tokens.

    ``is_on`` is ``None`` where the caller leaves that to the model.
    """

    is_on: bool | None
    effort: str | None
    max_tokens: int | None
    is_hidden: bool


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat request: who said what, what the model may use, and how it shall answer."""

    system: list[Text]
    turns: list[Turn]
    tools: list[Tool]
    tool_choice: ToolChoice | None
    parallel_tool_calls: bool | None
    reasoning: Reasoning
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
    schema_name: str | None
    modalities: list[str]
    cache: dict[str, Any] | None
    user: str | None

    @property
    def instructions(self) -> list[Text]:
        """The system's texts, for formats that cannot ask for JSON without a schema of it."""
        if not self.is_json or self.schema is not None:
            return self.system
        return [*self.system, Text(_JSON_ONLY)]

    @property
    def media(self) -> Iterator[Media]:
        """Yields what is not text, in what was said and in what tools answered."""
        for turn in self.turns:
            for part in turn.parts:
                for inner in part.parts if isinstance(part, ToolResult) else (part,):
                    if isinstance(inner, Media):
                        yield inner

    @property
    def is_tool_forced(self) -> bool:
        """Tells whether the model must call a tool, be it a certain one or any."""
        choice = self.tool_choice
        return bool(self.tools) and choice is not None and choice.mode == "required"


def read(call: Call) -> Chat:
    """Reads the fields of a call; raises :class:`base.Untranslatable`."""
    try:
        request = _decode(_encode(dict(call.fields)))
    except RecursionError:
        raise Untranslatable("The request nests too deep.") from None
    except msgspec.DecodeError as exc:
        # Its words name a type and a place, and repeat no value.
        raise Untranslatable(f"The request has an unexpected shape: {exc}") from None
    if not call.is_byok:
        _drop_lifetimes(request)
    form = request.response_format
    schema = None if form is None else form.json_schema
    stop = request.stop
    return Chat(
        system=[
            part
            for message in request.messages
            if message.role in _SYSTEM_ROLES
            for part in _parts(message.content)
            if isinstance(part, Text)
        ],
        turns=_turns(request.messages),
        tools=[_tool(tool) for tool in request.tools or ()],
        tool_choice=_tool_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls,
        reasoning=_reasoning(request),
        max_tokens=request.max_completion_tokens or request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        seed=request.seed,
        choices=request.n,
        stop=[stop] if isinstance(stop, str) else stop or [],
        is_json=form is not None and form.type in ("json_object", "json_schema"),
        schema=None if schema is None else _given(schema.schema),
        schema_name=None if schema is None else schema.name,
        modalities=request.modalities or [],
        cache=request.cache_control,
        user=request.user,
    )


def _drop_lifetimes(request: _Request) -> None:
    """Gives every cached prefix the provider's own lifetime, which is what the price is for."""
    contents = [message.content for message in request.messages]
    marks = [
        request.cache_control,
        *(tool.cache_control for tool in request.tools or ()),
        *(part.cache_control for parts in contents if isinstance(parts, list) for part in parts),
    ]
    for mark in marks:
        if mark is not None:
            mark.pop("ttl", None)


def without_nones(**members: Any) -> dict[str, Any]:
    """Returns the members that have a value."""
    return {name: value for name, value in members.items() if value is not None}


def refusal(part: Media, provider: str) -> Untranslatable:
    """Returns the error for a part that a provider's format has no room for."""
    if part.url is not None:
        return Untranslatable(f"{provider} takes no {part.kind} part by its URL.")
    kind = (part.media_type or "unknown")[:64]
    return Untranslatable(f"{provider} takes no {part.kind} part of type {kind}.")


def _turns(messages: list[_Message]) -> list[Turn]:
    """Joins what one side says in several messages: the formats want the sides to alternate."""
    turns: list[Turn] = []
    names: dict[str, str] = {}
    for message in messages:
        if message.role in _SYSTEM_ROLES:
            continue
        parts: list[Part] = []
        match message.role:
            case "user":
                parts += _parts(message.content)
            case "assistant":
                parts += _said(message)
            case "tool":
                parts.append(_result(message, names))
            case _:
                raise Untranslatable("The role of a message is none that this provider knows.")
        names |= {part.id: part.name for part in parts if isinstance(part, ToolCall)}
        role: Literal["user", "assistant"] = "assistant" if message.role == "assistant" else "user"
        if not parts:
            continue
        if turns and turns[-1].role == role:
            turns[-1].parts.extend(parts)
        else:
            turns.append(Turn(role, parts))
    return turns


def _result(message: _Message, names: Mapping[str, str]) -> ToolResult:
    call_id = message.tool_call_id or ""
    content = message.content
    cache = None
    for part in content if isinstance(content, list) else ():
        cache, part.cache_control = part.cache_control or cache, None
    return ToolResult(call_id, names.get(call_id, call_id), tuple(_parts(content)), cache)


def _said(message: _Message) -> Iterator[Part]:
    yield from _thoughts(message.reasoning_details or [])
    yield from _parts(message.content or message.refusal)
    for call in message.tool_calls or ():
        arguments = decode_object(call.function.arguments.encode() or b"{}")
        if arguments is None:
            raise Untranslatable("The arguments of a tool call are not a JSON object.")
        yield ToolCall(call.id, call.function.name, arguments)


def _thoughts(details: list[_Detail]) -> Iterator[Thought]:
    """Joins the pieces of one text, which callers send back as the stream gave them."""
    pieces: list[str] = []
    for detail, following in zip_longest(details, details[1:]):
        pieces.append(detail.text or "")
        if (
            following is None
            or not detail.type == following.type == "reasoning.text"
            or (detail.index, detail.format) != (following.index, following.format)
            or detail.signature is not None
        ):
            yield Thought("".join(pieces), detail.signature, detail.data, detail.id, detail.format)
            pieces.clear()


def _parts(content: str | list[_Part] | None) -> Iterator[Text | Media]:
    """Yields the parts of a message's content; blank text, which others refuse, is none."""
    if isinstance(content, str):
        if content.strip():
            yield Text(content)
        return
    for part in content or ():
        cache = part.cache_control
        if part.text is not None:
            if part.text.strip():
                yield Text(part.text, cache)
        elif part.image_url is not None:
            yield _media("image", part.image_url, cache=cache)
        elif part.video_url is not None:
            yield _media("video", part.video_url, cache=cache)
        elif part.input_audio is not None:
            audio = part.input_audio
            yield Media("audio", f"audio/{audio.format}", audio.data, cache=cache)
        elif part.file is not None and part.file.file_data is not None:
            yield _media("file", part.file.file_data, name=part.file.filename, cache=cache)
        else:
            raise Untranslatable("A message has a part of a type that this provider cannot take.")


def _media(
    kind: Kind, place: str | _URL, *, name: str | None = None, cache: dict[str, Any] | None
) -> Media:
    url = place.url if isinstance(place, _URL) else place
    if not url.startswith("data:"):
        if not _WEB_URL.match(url):
            raise Untranslatable("A part of a message lies at a URL that is not one of the web.")
        media_type, _ = mimetypes.guess_type(url.partition("?")[0])
        return Media(kind, media_type, url=url, name=name, cache=cache)
    head, _, data = url.partition(",")
    match = _DATA_URL.fullmatch(head)
    if match is None:
        raise Untranslatable("A data: URL of a message is not encoded in Base64.")
    return Media(kind, match[1], data, name=name, cache=cache)


def _tool(tool: _Tool) -> Tool:
    function = tool.function
    if tool.type != "function" or function is None:
        raise Untranslatable("This provider takes no tools but functions.")
    return Tool(
        name=function.name,
        description=function.description or None,
        schema=_given(function.parameters) or EMPTY_SCHEMA,
        strict=function.strict,
        cache=tool.cache_control,
    )


def _given(raw: Raw) -> Raw | None:
    return None if bytes(raw) in (b"", b"null") else raw


def _tool_choice(choice: str | _ToolChoice | None) -> ToolChoice | None:
    if choice is None:
        return None
    if isinstance(choice, str):
        if choice in _CHOICES:
            return ToolChoice(choice)
    elif choice.type == "function" and choice.function is not None:
        return ToolChoice("required", choice.function.name)
    raise Untranslatable("The tool_choice is none that this provider knows.")


def _reasoning(request: _Request) -> Reasoning:
    wanted = request.reasoning or _Reasoning()
    effort = wanted.effort or request.reasoning_effort
    is_on = wanted.enabled
    if effort == "none" or is_on is False:
        is_on, effort = False, None
    elif effort is not None or wanted.max_tokens is not None:
        is_on = True
    return Reasoning(
        is_on=is_on,
        effort=effort,
        max_tokens=wanted.max_tokens,
        is_hidden=wanted.exclude is True or request.include_reasoning is False,
    )
