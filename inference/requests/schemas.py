"""Inference requests: read once, checked by type, and kept as raw JSON for the way upstream."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import msgspec

from catalog.dialects.base import Operation
from config.api.errors import InvalidRequest
from config.api.text import CONTROL_CHARACTERS

# Meant for the gateway: a deployment would refuse or misread them.
_GATEWAY_FIELDS: Final = frozenset(
    (
        "model", "models", "provider", "plugins", "route", "session_id", "trace", "transforms",
        "debug", "deferred_tools", "stop_server_tools_when", "usage", "user",
    )
)  # fmt: skip
# Plugins that may be left out: they help with what fits anyway, or choose among models that are not
# here. Whatever else is a promise about the answer, and nobody here would keep it.
_IDLE_PLUGINS: Final = frozenset(
    (
        "auto-beta-router", "auto-router", "context-compression", "file-parser", "jev-router",
        "pareto-router", "response-healing", "switchyard-router",
    )
)  # fmt: skip
_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)

# The vocabulary of ``supported_parameters``.
PARAMETERS: Final = frozenset(
    (
        "temperature", "top_p", "top_k", "min_p", "top_a", "frequency_penalty",
        "presence_penalty", "repetition_penalty", "max_tokens", "max_completion_tokens",
        "logit_bias", "logprobs", "top_logprobs", "prediction", "seed", "response_format",
        "structured_outputs", "stop", "tools", "tool_choice", "parallel_tool_calls",
        "include_reasoning", "reasoning", "reasoning_effort", "web_search_options", "verbosity",
    )
)  # fmt: skip
# Two names of one parameter each: an endpoint that knows either is told by the one that it knows.
BOUNDS: Final = frozenset(("max_tokens", "max_completion_tokens"))
EFFORTS: Final = frozenset(("reasoning", "reasoning_effort"))
# Options of a provider may not change what was parsed, priced and held.
_RESERVED: Final = _GATEWAY_FIELDS | frozenset(
    (
        "messages", "prompt", "input", "stream", "stream_options", "max_tokens",
        "max_completion_tokens", "n", "best_of", "tools", "modalities",
    )
)  # fmt: skip
# The role and the marks around a message are about four tokens.
_MESSAGE_BYTES: Final = 16
# About what an image of common size costs, at four bytes a token.
_OTHER_PART_BYTES: Final = 4096
# The most tokens that a provider documents for one image, and a generous number for a document, a
# recording or a film, whose encoding says little of what it counts as.
_IMAGE_TOKENS: Final = 36_864
_OTHER_PART_TOKENS: Final = 131_072
# What providers add by themselves to explain the tools that they offer to a model.
_TOOLS_TOKENS: Final = 1_024
# Members of a part that carry its encoding; whatever else a part has may be read as text.
_MEDIA: Final = frozenset(
    ("image_url", "video_url", "input_audio", "input_video", "input_file", "file")
)
# Types of parts that are text; a part that names no type is taken for one.
_TEXTS: Final = frozenset((b"", b'"text"', b'"refusal"'))
_SESSION_LENGTH: Final = 256
# OpenAI's names for the one tool, which mean ours here.
_WEB_SEARCH: Final = "openrouter:web_search"

_Number = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
_Slug = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Slugs = Annotated[list[_Slug], msgspec.Meta(max_length=32)]


_Content = str | list[dict[str, msgspec.Raw]]


class _UserMessage(msgspec.Struct, tag_field="role", tag="user"):
    content: _Content


class _SystemMessage(msgspec.Struct, tag_field="role", tag="system"):
    content: _Content


class _DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer"):
    content: _Content


class _ToolMessage(msgspec.Struct, tag_field="role", tag="tool"):
    content: _Content
    tool_call_id: str


class _AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant"):
    content: _Content | None = None


class _SizedMessage(msgspec.Struct):
    """What of any message is text for a model."""

    content: _Content | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()


_Message = _UserMessage | _SystemMessage | _DeveloperMessage | _ToolMessage | _AssistantMessage


_Amount = (
    Annotated[float, msgspec.Meta(ge=0)]
    | Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}(\.[0-9]{1,12})?\Z")]
)


Order = Literal["price", "throughput", "latency", "exacto"]
Quantization = Literal[
    "int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32",
    "unknown",
]  # fmt: skip
_Measure = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]


class MaxPrice(msgspec.Struct):
    """The most that a request may cost: USD per million tokens, and per request, image or second.

    No price of the catalogue knows audio, so no endpoint exceeds a limit for it.
    """

    prompt: _Amount | None = None
    completion: _Amount | None = None
    request: _Amount | None = None
    image: _Amount | None = None
    audio: _Amount | None = None


class Percentiles(msgspec.Struct):
    """Thresholds for several shares of an endpoint's recent requests."""

    p50: _Measure | None = None
    p75: _Measure | None = None
    p90: _Measure | None = None
    p99: _Measure | None = None


class Sorting(msgspec.Struct):
    """By what endpoints are sorted, and whether the models keep their order meanwhile."""

    by: Order | None = None
    partition: Literal["model", "none"] | None = None


_Options = dict[_Slug, dict[str, msgspec.Raw]]


class ProviderPreferences(msgspec.Struct):
    """The ``provider`` object: which providers may serve the request, and in which order."""

    order: _Slugs | None = None
    only: _Slugs | None = None
    ignore: _Slugs | None = None
    allow_fallbacks: bool | None = None
    data_collection: Literal["allow", "deny"] | None = None
    zdr: bool | None = None
    max_price: MaxPrice | None = None
    quantizations: Annotated[list[Quantization], msgspec.Meta(max_length=32)] | None = None
    require_parameters: bool | None = None
    enforce_distillable_text: bool | None = None
    sort: Order | Sorting | None = None
    preferred_max_latency: _Measure | Percentiles | None = None
    preferred_min_throughput: _Measure | Percentiles | None = None
    options: Annotated[_Options, msgspec.Meta(max_length=32)] | None = None


class _Plugin(msgspec.Struct):
    id: str
    enabled: bool | None = None


class _Function(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[a-zA-Z0-9_-]+\Z")]


class _Tool(msgspec.Struct):
    type: Any = None
    function: _Function | None = None


class _Format(msgspec.Struct):
    type: Any = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None
    exclude: bool | None = None


_Metadata = dict[
    Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]
]


class _Common(msgspec.Struct, kw_only=True):
    model: _Slug | None = None
    models: _Slugs | None = None
    provider: ProviderPreferences | None = None
    plugins: Annotated[list[_Plugin], msgspec.Meta(max_length=32)] | None = None
    user: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    session_id: Annotated[str, msgspec.Meta(max_length=_SESSION_LENGTH)] | None = None
    stream: bool | None = None
    max_tokens: _Tokens | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    frequency_penalty: _Number | None = None
    presence_penalty: _Number | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=16)] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None


class ChatRequest(_Common, kw_only=True):
    """The body of ``POST /chat/completions``; fields beyond these travel upstream as they are."""

    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: _Tokens | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=4)] | None = None
    metadata: Annotated[_Metadata, msgspec.Meta(max_length=16)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    tools: list[_Tool] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, msgspec.Raw] | None = None
    reasoning: _Reasoning | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None


class TextRequest(_Common, kw_only=True):
    """The body of ``POST /completions``."""

    prompt: str | list[str | int | list[int]]
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None


class _EmbeddingsItem(msgspec.Struct):
    content: Annotated[list[dict[str, msgspec.Raw]], msgspec.Meta(min_length=1)]


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /embeddings``: texts, tokens, or items of several kinds of parts."""

    input: (
        str | Annotated[list[str | int | list[int] | _EmbeddingsItem], msgspec.Meta(min_length=1)]
    )
    model: _Slug
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    input_type: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    provider: ProviderPreferences | None = None
    user: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    session_id: Annotated[str, msgspec.Meta(max_length=_SESSION_LENGTH)] | None = None
    stream: bool | None = None


_Body = ChatRequest | TextRequest | EmbeddingsRequest
SHAPES: Final[dict[Operation, type[_Body]]] = {
    Operation.CHAT: ChatRequest,
    Operation.TEXT: TextRequest,
    Operation.EMBEDDINGS: EmbeddingsRequest,
}
_DECODERS: Final = {
    operation: msgspec.json.Decoder(shape).decode for operation, shape in SHAPES.items()
}
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NO_PREFERENCES: Final = ProviderPreferences()


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """What the caller wants, and the raw fields that go upstream.

    ``models`` is empty where the caller names none. ``max_tokens`` is the most that one choice may
    produce, ``None`` where the caller leaves that to the endpoint, and ``choices`` how many the
    request makes. ``prompt_bound`` is in tokens, and no less than any tokenizer can make of the
    request; ``images`` are those that it holds. ``tools`` names what is no function of the caller.
    ``hides_reasoning`` asks for an answer without what the model thought.
    """

    operation: Operation
    models: tuple[str, ...]
    stream: bool
    user: str | None
    preferences: ProviderPreferences
    fields: dict[str, Any] = field(repr=False)
    session_id: str | None = None
    max_tokens: int | None = None
    choices: int = 1
    prompt_bound: int = 0
    images: int = 0
    tools: frozenset[str] = frozenset()
    hides_reasoning: bool = False

    @property
    def parameters(self) -> frozenset[str]:
        """The named model parameters that the request sets, which an endpoint may not know."""
        return PARAMETERS.intersection(self.fields)

    @property
    def needed_parameters(self) -> frozenset[str]:
        """The parameters without which an endpoint does not do all that is asked for.

        Null asks for nothing. An answer by a schema needs more than one that is any JSON.
        """
        needed = {name for name in self.parameters if bytes(self.fields[name]) != b"null"}
        if "response_format" in needed and self.operation is Operation.CHAT:
            wanted = msgspec.json.decode(self.fields["response_format"], type=_Format)
            if wanted.type == "json_schema":
                needed.add("structured_outputs")
        return frozenset(needed)

    @property
    def prompt_bytes(self) -> int:
        """The size of the prompt's text, for an estimate where nobody counted its tokens.

        Tools and their calls are text too. A part that is not counts as so many bytes, however
        large its encoding is.
        """
        if self.operation is Operation.TEXT:
            return len(self.fields["prompt"])
        if self.operation is Operation.EMBEDDINGS:
            return len(self.fields["input"])
        messages = msgspec.json.decode(self.fields["messages"], type=list[_SizedMessage])
        tools = self.fields.get("tools", b"")
        return sum(map(_text_bytes, messages)) + len(tools)


def parse(operation: Operation, body: bytes, *, session_id: str | None = None) -> InferenceRequest:
    """Reads a request body; raises :class:`InvalidRequest` naming the field that is wrong.

    ``session_id`` is the one of the headers, for a body that names none.
    """
    try:
        body.decode("utf-8")
        request = _DECODERS[operation](body)
        fields = _decode_fields(body)
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not valid UTF-8.") from None
    except msgspec.ValidationError as exc:
        raise invalid(str(exc)) from None
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    session_id = request.session_id or session_id
    if session_id is not None and len(session_id) > _SESSION_LENGTH:
        raise named("session_id", f"Expected str of length <= {_SESSION_LENGTH}.")
    for name, text in (("user", request.user), ("session_id", session_id)):
        if text is not None and CONTROL_CHARACTERS.search(text):
            raise named(name, "Must not contain control characters.")
    if operation is Operation.EMBEDDINGS and request.stream:
        raise named("stream", "Embeddings cannot be streamed.")
    preferences = request.provider or _NO_PREFERENCES
    if preferences.enforce_distillable_text:
        raise named("provider.enforce_distillable_text", "No endpoint here is known to allow it.")
    for slug, options in (preferences.options or {}).items():
        for name in sorted(_RESERVED.intersection(options)):
            raise named(f"provider.options.{slug}.{name}", "Set it in the body itself.")
    if "reasoning_effort" in fields and isinstance(request, ChatRequest):
        _check_effort(request)
    if "plugins" in fields and not isinstance(request, EmbeddingsRequest):
        _check_plugins(request.plugins or ())
    for name in _GATEWAY_FIELDS.intersection(fields):
        del fields[name]
    bound, images = _prompt_bound(request, fields)
    return InferenceRequest(
        operation=operation,
        models=_models(request),
        stream=bool(request.stream),
        user=request.user or None,
        preferences=preferences,
        fields=fields,
        session_id=session_id or None,
        max_tokens=_max_tokens(request),
        choices=_choices(request),
        prompt_bound=bound,
        images=images,
        tools=_tools(request),
        hides_reasoning=isinstance(request, ChatRequest) and _hides_reasoning(request),
    )


def required(name: str) -> InvalidRequest:
    """Returns the error that a field is missing."""
    return named(name, "This field is required.")


def _check_effort(request: ChatRequest) -> None:
    """Raises :class:`InvalidRequest` where the two members for one effort contradict each other."""
    effort = request.reasoning and request.reasoning.effort
    if effort and request.reasoning_effort and effort != request.reasoning_effort:
        raise named("reasoning_effort", "Contradicts reasoning.effort.")


def _hides_reasoning(request: ChatRequest) -> bool:
    """Reads the two members for one wish, of which ``include_reasoning`` is the older."""
    excluded = request.reasoning is not None and request.reasoning.exclude is True
    return excluded or request.include_reasoning is False


def _check_plugins(plugins: Iterable[_Plugin]) -> None:
    """Raises :class:`InvalidRequest` for a plugin whose absence would change the answer."""
    for index, plugin in enumerate(plugins):
        if plugin.enabled is not False and plugin.id not in _IDLE_PLUGINS:
            raise named(f"plugins[{index}].id", "This service does not run the plugin.")


def _models(request: _Body) -> tuple[str, ...]:
    if isinstance(request, EmbeddingsRequest):
        return (request.model,)
    if not request.models:
        return () if request.model is None else (request.model,)
    return tuple(dict.fromkeys(filter(None, (request.model, *request.models))))


def _max_tokens(request: _Body) -> int | None:
    """Returns the larger limit where both are set: either may be the one that is heeded."""
    if isinstance(request, ChatRequest):
        return max(request.max_tokens or 0, request.max_completion_tokens or 0) or None
    return request.max_tokens if isinstance(request, TextRequest) else 0


def _choices(request: _Body) -> int:
    """Returns how many completions are made, of all prompts together."""
    if isinstance(request, TextRequest):
        prompts = 1
        if not isinstance(request.prompt, str):
            # A list of numbers is one prompt, in tokens.
            prompts = max(1, sum(not isinstance(part, int) for part in request.prompt))
        return max(request.n or 1, request.best_of or 1) * prompts
    return (request.n or 1) if isinstance(request, ChatRequest) else 1


def _prompt_bound(request: _Body, fields: dict[str, msgspec.Raw]) -> tuple[int, int]:
    """Returns the most tokens that the request's text and parts can be, and its images.

    A token is a byte of UTF-8 or more, and text is never shorter in JSON, whose marks outweigh the
    few tokens that go between messages. So the size of what travels is a bound, once each part
    that is not text is counted by a bound of its own instead of its encoding.
    """
    bound = _size(fields)
    images = 0
    for part in _other_parts(request):
        media = _MEDIA.intersection(part)
        bound -= _size({name: part[name] for name in media})
        images += "image_url" in media
        # A part that has more than an image may be read as any of what it has.
        bound += _IMAGE_TOKENS if media == {"image_url"} else _OTHER_PART_TOKENS
    if "tools" in fields:
        bound += _TOOLS_TOKENS
    return bound, images


def _size(members: dict[str, msgspec.Raw]) -> int:
    return sum([memoryview(raw).nbytes for raw in members.values()])


def _other_parts(request: _Body) -> Iterable[dict[str, msgspec.Raw]]:
    """Yields the parts of the prompt that are not text."""
    contents: Iterable[Any] = ()
    if isinstance(request, ChatRequest):
        contents = (message.content for message in request.messages)
    elif isinstance(request, EmbeddingsRequest) and isinstance(request.input, list):
        contents = (item.content for item in request.input if isinstance(item, _EmbeddingsItem))
    for content in contents:
        if isinstance(content, list):
            yield from (part for part in content if bytes(part.get("type", b"")) not in _TEXTS)


def _tools(request: _Body) -> frozenset[str]:
    if not isinstance(request, ChatRequest) or not request.tools:
        return frozenset()
    # What is no name is no tool either; whoever runs tools will say so.
    names = {tool.type for tool in request.tools if isinstance(tool.type, str)}
    if any(name.startswith("web_search") for name in names):
        names.add(_WEB_SEARCH)
    return frozenset(names - {"function"})


def _text_bytes(message: _SizedMessage) -> int:
    size = _MESSAGE_BYTES + len(message.tool_calls)
    if isinstance(message.content, str):
        return size + len(message.content.encode("utf-8", "surrogatepass"))
    return size + sum(
        len(part["text"]) if "text" in part else _OTHER_PART_BYTES for part in message.content or ()
    )


def invalid(text: str) -> InvalidRequest:
    """Returns the error for what a decoder says, which names a type and a place."""
    match = _PLACE.fullmatch(text)
    assert match is not None
    what = match["what"].replace("`", "")
    path = (match["path"] or "").lstrip(".").replace("[...]", "[]")
    missing = re.search(r"missing required field (\w+)", what)
    if missing:
        return named(f"{path}.{missing[1]}".lstrip("."), "This field is required.")
    if not path:
        return InvalidRequest(f"The body must be a JSON object. ({what})")
    return named(path, f"{what}.")


def named(name: str, text: str) -> InvalidRequest:
    """Returns the error that a field is wrong."""
    return InvalidRequest(f"{name}: {text}", metadata={"fields": {name: text}})
