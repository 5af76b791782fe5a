"""Parses requests of OpenAI's Responses, and rewrites them as chat requests.

A field that chat cannot express is refused by name, unless its value sets nothing. A field of which
the interface knows nothing is dropped there, and passes to a provider that speaks Responses too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec.structs import replace

from catalog.capabilities import NativeFormat
from catalog.dialects.base import NativeBody, Operation
from catalog.dialects.shared.raw import ESCAPE, is_unset, read_text
from config.api.errors import InvalidRequest
from config.api.text import CONTROL_CHARACTERS
from inference.requests import parsing
from inference.requests.limits import MAX_MESSAGES, MAX_TOOLS, check_body
from inference.requests.operations.gateway_fields import GATEWAY_FIELDS
from inference.requests.operations.presets import AppliedPreset
from inference.requests.parsing import InferenceRequest
from inference.requests.problems import (
    MODEL_FIELDS,
    explain_decode_error,
    field_error,
    missing_fields,
    require_user,
)
from inference.requests.responses.conversation import Conversation
from inference.requests.responses.reading import read
from inference.requests.responses.reasoning import MARK
from inference.requests.responses.tools import (
    MAX_NAMES,
    CallerTool,
    Tools,
    keep_callers_choice,
    keep_callers_tools,
)
from inference.requests.rows import measure_body
from inference.requests.schemas import SESSION_LENGTH, ProviderPreferences

_Number = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_Bound = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
_Slug = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Raws = dict[str, msgspec.Raw]
_Any = msgspec.Raw


def _raw(*shapes: dict[str, Any]) -> Any:
    """Returns the type of a member that is decoded by its parts, with its shape for readers."""
    schema = {"anyOf": [*shapes, {"type": "null"}], "default": None}
    return Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=schema)]


_NONE: Final = msgspec.field(default_factory=msgspec.Raw)


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+\Z")]
    schema: _Raws
    strict: bool | None = None
    description: str | None = None


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    pass


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    pass


class TextOptions(msgspec.Struct):
    format: JsonSchemaFormat | JsonObjectFormat | TextFormat | None = None
    verbosity: str | None = None


class ReasoningRequest(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    mode: Literal["standard"] | None = None
    context: Literal["auto", "all_turns", "current_turn"] | None = None
    enabled: bool | None = None
    max_tokens: _Bound | None = None


_Metadata = dict[
    Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]
]


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /responses``; other fields of chat's sampling are sent upstream too."""

    model: _Slug | None = None
    models: Annotated[list[_Slug], msgspec.Meta(max_length=32)] | None = None
    input: str | Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_MESSAGES)] | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: _Bound | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    presence_penalty: _Number | None = None
    frequency_penalty: _Number | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=4)] | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: _raw({"type": "string"}, {"type": "object"}) = _NONE  # type: ignore[valid-type]
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, msgspec.Meta(ge=0)] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningRequest | None = None
    include: list[str] | None = None
    truncation: Literal["disabled"] | None = None
    service_tier: str | None = None
    metadata: Annotated[_Metadata, msgspec.Meta(max_length=16)] | None = None
    user: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    safety_identifier: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    session_id: Annotated[str, msgspec.Meta(max_length=SESSION_LENGTH)] | None = None
    prompt_cache_key: str | None = None
    cache_control: _Raws | None = None
    provider: ProviderPreferences | None = None


class Translated(msgspec.Struct, frozen=True):
    """A request in chat's format, and what its answer needs to know of it.

    ``echo`` has the members of the request that the answer repeats. ``tools`` are those that the
    caller runs, by the names of their functions, and ``left_out`` names what is not sent.
    """

    chat: bytes
    echo: dict[str, Any]
    tools: dict[str, CallerTool]
    left_out: tuple[str, ...]


# What a service that stores nothing, or chat, cannot do: refused unless the value sets nothing.
_REFUSED: Final = {
    "previous_response_id": (
        "This service stores no responses. Send the whole conversation in 'input', and set 'store' "
        "to false in your client."
    ),
    "store": "This service stores no responses. Leave it out, or set it to false.",
    "background": "This service answers only while the connection is open. Leave it out.",
    "conversation": "This service stores no conversations. Send the messages in 'input'.",
    "prompt": "This service stores no prompts. Send the text in 'instructions' and 'input'.",
    "context_management": "This service does not shorten conversations. Leave it out.",
    "moderation": "This service has content filters of its own. Leave it out.",
    "prompt_cache_retention": "Prices here are for the provider's default lifetime. Leave it out.",
    "audio": "This interface answers without sound. Ask for sound at /chat/completions.",
}
# What the items of an answer can be.
SHOWN: Final = frozenset(("text", "image"))
_KEPT_RETENTION: Final = b'"in_memory"'
_UNBOUND: Final = (
    "Not every provider bounds the searches that it runs. Leave it out, or do not search."
)
# Members that chat reads or sends as they are.
_SAME: Final = (
    "image_config", "modalities", "plugins", "route", "trace", "transforms", "debug",
    "deferred_tools", "stop_server_tools_when", "seed", "min_p", "top_a", "repetition_penalty",
    "logit_bias", "preset", "prompt_cache_options",
)  # fmt: skip
# Members of chat alone, and what tells of the caller: no provider gets them in this format.
_OWN: Final = GATEWAY_FIELDS | {
    *_REFUSED, "cache_control", "image_config", "modalities", "prediction",
    "client_metadata", "metadata",
}  # fmt: skip
# With these only the chat form says what the caller wants.
_CHAT_ONLY: Final = ("image_config", "modalities")
# What the gateway replaces on the way, or keeps, and the answer repeats as the caller sent it.
_TOLD: Final = ("user", "safety_identifier", "prompt_cache_key", "metadata")
_MARK: Final = b'"' + MARK.encode()
_MARKS: Final = (_MARK, b'"tools"', ESCAPE)
_LOGPROBS: Final = "message.output_text.logprobs"
# The names of fields that chat names otherwise; of ends of cached prefixes in OpenAI's words, too.
_WORDS: Final = {
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "logprobs": "include",
    "tools.function.strict": "tools.strict",
    "image_url.detail": "input_image.detail",
    "video_url.processing": "input_video.processing",
    "messages.images": "input.image_generation_call",
}
_CACHE_WORDS: Final = {
    "cache_control": "prompt_cache_breakpoint", "cache_control.ttl": "prompt_cache_breakpoint.ttl",
}  # fmt: skip
# A longer text is not repeated in the answer, whose events would each keep it in memory.
_ECHO_BYTES: Final = 65_536
_decode = msgspec.json.Decoder(ResponsesRequest).decode
_decode_members = msgspec.json.Decoder(_Raws).decode
_encode = msgspec.json.Encoder().encode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_flag = msgspec.json.Decoder(dict[str, Any] | None)
_names = msgspec.json.Decoder(list[str] | None)


def to_chat(body: bytes, *, session_id: str | None = None) -> Translated:
    """Returns the equivalent chat request.

    ``session_id`` comes from a header of the request; one in the body takes precedence. Raises
    :class:`InvalidRequest` with the name of the wrong field. A body above ``LARGE_BYTES`` is
    converted in a thread.
    """
    check_body(body)
    try:
        members = _decode_members(body)
        _refuse_unsupported(members)
        request = _read(body, members)
    except msgspec.ValidationError as exc:
        raise explain_decode_error(str(exc)) from None
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    _check_names(request)
    tools = Tools()
    tools.add_all(request.tools or (), "tools")
    conversation = _converse(request, tools, members)
    choice = tools.choose(request.tool_choice)
    functions = [*tools.functions.values()]
    chat = {
        "model": request.model,
        "models": request.models,
        "messages": conversation.build(),
        "max_tokens": request.max_output_tokens,
        "tools": functions or None,
        "tool_choice": choice if functions else None,
        "parallel_tool_calls": request.parallel_tool_calls if functions else None,
        "reasoning": _reasoning(request, conversation.effort),
        "response_format": _response_format(request.text),
        "verbosity": request.text and request.text.verbosity,
        "stop": request.stop or None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        **_logprobs(request),
        "service_tier": None if request.service_tier == "auto" else request.service_tier,
        "stream": request.stream,
        "user": request.user or request.safety_identifier or None,
        "cache_control": request.cache_control,
        "provider": members.get("provider"),
        "session_id": request.session_id or session_id or _session_of(request.prompt_cache_key),
        **{name: members[name] for name in _SAME if not is_unset(members.get(name, _Any()))},
    }
    return Translated(
        chat=_encode({name: value for name, value in chat.items() if value is not None}),
        echo=_echo(request, tools, choice),
        tools=tools.by_name,
        left_out=tuple(tools.left_out),
    )


def _read(body: bytes, members: _Raws) -> ResponsesRequest:
    """Decodes a body; a member of the wrong type is as good as absent if it sets nothing."""
    try:
        return _decode(body)
    except msgspec.ValidationError:
        needed = {name: raw for name, raw in members.items() if not is_unset(raw)}
        if len(needed) == len(members):
            raise
        return _decode(_encode(needed))


def _refuse_unsupported(members: _Raws) -> None:
    """Raises :class:`InvalidRequest` for a member that asks for what no endpoint can do here."""
    for name, text in _REFUSED.items():
        raw = members.get(name, _Any())
        if not is_unset(raw) and bytes(raw) != _KEPT_RETENTION:
            raise field_error(name, text)
    modalities = members.get("modalities", _Any())
    if not is_unset(modalities) and not SHOWN.issuperset(
        read(_names, modalities, "modalities") or ()
    ):
        raise field_error(
            "modalities",
            "This interface answers with text and images. Ask for sound at /chat/completions.",
        )
    if read_text(members.get("truncation")) == "auto":
        raise field_error(
            "truncation", "This service does not shorten conversations. Set it to 'disabled'."
        )
    options = members.get("stream_options", _Any())
    if not is_unset(options) and (read(_flag, options, "stream_options") or {}).get(
        "include_obfuscation"
    ):
        raise field_error("stream_options.include_obfuscation", "Set it to false.")
    caching = members.get("prompt_cache_options", _Any())
    if not is_unset(caching):
        lifetime = (read(_flag, caching, "prompt_cache_options") or {}).get("ttl")
        if lifetime not in (None, "30m"):
            raise field_error("prompt_cache_options.ttl", _REFUSED["prompt_cache_retention"])


def _check_names(request: ResponsesRequest) -> None:
    for name, text in (("user", request.user), ("safety_identifier", request.safety_identifier)):
        require_user(name, text)


def _converse(request: ResponsesRequest, tools: Tools, members: _Raws) -> Conversation:
    conversation = Conversation(tools)
    if request.instructions:
        conversation.add_text("system", request.instructions)
    if isinstance(request.input, str):
        conversation.add_text("user", request.input)
    elif request.input:
        conversation.add_all(request.input)
    if not conversation.has_messages:
        raise missing_fields(*(("model",) if MODEL_FIELDS.isdisjoint(members) else ()), "input")
    if request.reasoning is not None and request.reasoning.context == "current_turn":
        conversation.forget_earlier_reasoning()
    return conversation


def _reasoning(request: ResponsesRequest, effort: str | None) -> dict[str, Any] | None:
    """Returns chat's ``reasoning``; ``effort`` is the last one that the conversation sets."""
    options = request.reasoning or ReasoningRequest()
    members = {
        "effort": effort or options.effort,
        "summary": options.summary or options.generate_summary,
        "enabled": options.enabled,
        "max_tokens": options.max_tokens,
    }
    return {name: value for name, value in members.items() if value is not None} or None


def _response_format(text: TextOptions | None) -> dict[str, Any] | None:
    wanted = None if text is None else text.format
    match wanted:
        case JsonSchemaFormat():
            schema: dict[str, Any] = {"name": wanted.name, "schema": wanted.schema}
            if wanted.strict is not None:
                schema["strict"] = wanted.strict
            if wanted.description:
                schema["description"] = wanted.description
            return {"type": "json_schema", "json_schema": schema}
        case JsonObjectFormat():
            return {"type": "json_object"}
    return None


def _logprobs(request: ResponsesRequest) -> dict[str, Any]:
    if not request.top_logprobs and _LOGPROBS not in (request.include or ()):
        return {}
    return {"logprobs": True, "top_logprobs": request.top_logprobs or None}


def _session_of(cache_key: str | None) -> str | None:
    """Returns the session of a cache key: both keep a conversation at one provider."""
    if not cache_key:
        return None
    if len(cache_key) <= SESSION_LENGTH and not CONTROL_CHARACTERS.search(cache_key):
        return cache_key
    return hashlib.sha256(cache_key.encode()).hexdigest()


def _echo(request: ResponsesRequest, tools: Tools, choice: Any) -> dict[str, Any]:
    """Returns the members of the request that every response repeats."""
    reasoning = request.reasoning or ReasoningRequest()
    text = request.text or TextOptions()
    members: dict[str, Any] = {
        "instructions": request.instructions,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "tool_choice": "auto" if is_unset(request.tool_choice) else request.tool_choice,
        "tools": tools.echoes,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "background": False,
        "previous_response_id": None,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort, "summary": reasoning.summary or reasoning.generate_summary
        },
        "safety_identifier": request.safety_identifier,
        "store": False,
        "text": {"format": text.format or TextFormat()},
        "top_logprobs": request.top_logprobs or 0,
        "truncation": "disabled",
        "user": request.user,
    }  # fmt: skip
    if text.verbosity is not None:
        members["text"]["verbosity"] = text.verbosity
    encoded = {name: _encode(value) for name, value in members.items()}
    for name, absent in (
        ("instructions", b"null"),
        ("tools", b"[]"),
        ("prompt_cache_key", b"null"),
        ("tool_choice", b'"auto"'),
        ("text", b'{"format":{"type":"text"}}'),
    ):
        if len(encoded[name]) > _ECHO_BYTES:
            encoded[name] = absent
    return {name: msgspec.Raw(value) for name, value in encoded.items()}


def parse_response(
    body: bytes, *, session_id: str | None = None, preset: AppliedPreset | None = None
) -> tuple[InferenceRequest, Translated]:
    """Parses a request of Responses, with its native form where a provider could answer that.

    The fields of a ``preset`` are those of chat, so a request with one has its chat form alone; and
    so has one that asks the gateway to search. Raises :class:`InvalidRequest` with the name of the
    wrong field.
    """
    translated = to_chat(body, session_id=session_id)
    request = parsing.parse(Operation.CHAT, translated.chat, is_checked=True, preset=preset)
    left_out = (*request.left_out, *translated.left_out)
    request = replace(request, left_out=left_out, words=_choose_words(request, body))
    members = _decode_members(body)
    if request.server_tools.searches and not is_unset(members.get("max_tool_calls", _Any())):
        raise field_error("max_tool_calls", _UNBOUND)
    if (
        preset is not None
        or request.preferences.options
        or request.server_tools.searches
        or parsing.has_stored_file(body)
        or any(not is_unset(members.get(name, _Any())) for name in _CHAT_ONLY)
    ):
        return request, translated
    return (
        replace(
            request,
            native=_read_native(body, members, translated),
            # The chat form may lack what the body has, such as encrypted reasoning.
            prompt_bound=request.prompt_bound
            + max(0, measure_body(body) - measure_body(translated.chat)),
            size=max(request.size, len(body)),
        ),
        translated,
    )


def _choose_words(request: InferenceRequest, body: bytes) -> dict[str, str]:
    """Returns the caller's names of fields by those of chat; they depend on what the body has."""
    words = {**_WORDS}
    if "top_logprobs" in request.fields:
        words["logprobs"] = "top_logprobs"
    if b'"prompt_cache_breakpoint"' in body and b'"cache_control"' not in body:
        words |= _CACHE_WORDS
    return words


def _read_native(body: bytes, members: _Raws, translated: Translated) -> NativeBody:
    fields: dict[str, Any] = {
        name: raw
        for name, raw in members.items()
        if (name == "model" or name not in _OWN) and bytes(memoryview(raw)[:5]) != b"null"
    }
    left_out = {name: None for name in translated.left_out if not name.startswith("input.")}
    if not is_unset(members.get("cache_control", _Any())):
        left_out["cache_control"] = None
    if not is_unset(fields.get("tools", _Any())):
        fields["tools"], dropped = keep_callers_tools(fields["tools"])
        left_out |= dict.fromkeys(dropped)
    if is_unset(fields.get("tools", _Any())):
        # What only tools need goes with them.
        for name in ("tools", "tool_choice", "parallel_tool_calls"):
            fields.pop(name, None)
    if "tool_choice" in fields:
        fields["tool_choice"] = keep_callers_choice(fields["tool_choice"])
    items = fields.get("input")
    if items is not None and _is_marked(bytes(items)):
        kept, dropped = _adapt_items(items)
        fields["input"] = kept
        left_out |= dict.fromkeys(dropped)
    return NativeBody(
        NativeFormat.RESPONSES,
        fields,
        left_out=tuple(left_out)[:MAX_NAMES],
        told={name: translated.echo[name] for name in _TOLD},
    )


def _adapt_items(raw: msgspec.Raw) -> tuple[msgspec.Raw, list[str]]:
    """Returns the items as OpenAI may get them, and the names of those that it does not get.

    Reasoning with our own mark comes from another provider; tools that came inside the conversation
    are filtered like all others.
    """
    if bytes(memoryview(raw)[:1]) != b"[":
        return raw, []
    kept: list[Any] = []
    dropped: list[str] = []
    for item in _decode_items(raw):
        text = bytes(item)
        members = _decode_members(text) if _is_marked(text) else {}
        if _is_own_reasoning(members):
            dropped.append("input.reasoning")
        elif not is_unset(members.get("tools", _Any())):
            tools, others = keep_callers_tools(members["tools"])
            kept.append({**members, "tools": tools})
            dropped += others
        else:
            kept.append(item)
    return msgspec.Raw(_encode(kept)), dropped


def _is_marked(text: bytes) -> bool:
    """Tells whether items may have tools or our own mark; the name of a member may be escaped."""
    return any(mark in text for mark in _MARKS)


def _is_own_reasoning(item: Mapping[str, msgspec.Raw]) -> bool:
    return bytes(item.get("encrypted_content", b"")).startswith(_MARK)
