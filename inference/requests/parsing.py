"""Parses inference requests once; their fields stay raw JSON on the way upstream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from catalog.dialects.base import Operation
from config.api.errors import InvalidRequest
from config.api.text import CONTROL_CHARACTERS
from inference.requests.limits import MAX_ALL_CHOICES, check_body, is_large
from inference.requests.problems import explain_decode_error, field_error
from inference.requests.schemas import (
    SESSION_LENGTH,
    SHAPES,
    Body,
    ChatRequest,
    EmbeddingsRequest,
    Plugin,
    ProviderPreferences,
    TextRequest,
)
from inference.requests.sizes import bound_prompt, measure_text

# Fields that the gateway reads and does not send, because a provider would refuse or misread them.
_GATEWAY_FIELDS: Final = frozenset(
    (
        "model", "models", "provider", "plugins", "route", "session_id", "trace", "transforms",
        "debug", "deferred_tools", "stop_server_tools_when", "usage", "user",
    )
)  # fmt: skip
# Plugins that are ignored: they only shorten or repair texts, or choose among models that this
# gateway does not offer. Any other plugin would change the answer, so it is refused.
_IDLE_PLUGINS: Final = frozenset(
    (
        "auto-beta-router", "auto-router", "context-compression", "file-parser", "jev-router",
        "pareto-router", "response-healing", "switchyard-router",
    )
)  # fmt: skip

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
# Each pair names one parameter. It is sent under a name that the endpoint supports.
BOUNDS: Final = frozenset(("max_tokens", "max_completion_tokens"))
EFFORTS: Final = frozenset(("reasoning", "reasoning_effort"))
# Provider options must not change what was parsed, priced and held.
_RESERVED: Final = _GATEWAY_FIELDS | frozenset(
    (
        "messages", "prompt", "input", "stream", "stream_options", "max_tokens",
        "max_completion_tokens", "n", "best_of", "tools", "modalities",
    )
)  # fmt: skip
# OpenAI's names for web search begin with ``web_search``; they all mean this tool.
_WEB_SEARCH: Final = "openrouter:web_search"


class _Format(msgspec.Struct):
    type: Any = None


_DECODERS: Final = {
    operation: msgspec.json.Decoder(shape).decode for operation, shape in SHAPES.items()
}
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NO_PREFERENCES: Final = ProviderPreferences()
_decode_format = msgspec.json.Decoder(_Format).decode


class InferenceRequest(msgspec.Struct, frozen=True):
    """A parsed request, and the raw fields that are sent upstream.

    ``models`` is empty if the caller names none. ``max_tokens`` is the most that one choice may
    produce, ``None`` if the caller leaves it to the endpoint. ``choices`` is the number of
    completions, or of vectors. ``prompt_bound`` is an upper bound of the prompt's tokens for any
    tokenizer, and ``images`` the number of its images. ``tools`` names the tools that a server
    runs.
    ``is_reasoning_hidden`` asks for an answer without the model's reasoning. ``size`` is the size
    of the body in bytes, ``text_bytes`` the size of the text of a large prompt.
    """

    operation: Operation
    models: tuple[str, ...]
    stream: bool
    user: str | None
    preferences: ProviderPreferences
    fields: dict[str, Any]
    session_id: str | None = None
    max_tokens: int | None = None
    choices: int = 1
    prompt_bound: int = 0
    images: int = 0
    tools: frozenset[str] = frozenset()
    is_reasoning_hidden: bool = False
    size: int = 0
    text_bytes: int | None = None

    def __repr__(self) -> str:
        """Names the request without its content, which no traceback shall show."""
        return f"<{self.operation} of {len(self.fields)} fields for {', '.join(self.models)}>"

    @property
    def parameters(self) -> frozenset[str]:
        """The model parameters that the request sets, which an endpoint may not know."""
        return PARAMETERS.intersection(self.fields)

    @property
    def needed_parameters(self) -> frozenset[str]:
        """The parameters that an endpoint must support to serve the whole request.

        A null parameter needs no support. A JSON schema also needs ``structured_outputs``.
        """
        needed = {name for name in self.parameters if bytes(self.fields[name]) != b"null"}
        if "response_format" in needed and self.operation is Operation.CHAT:
            response_format = _decode_format(self.fields["response_format"])
            if response_format.type == "json_schema":
                needed.add("structured_outputs")
        return frozenset(needed)

    @property
    def prompt_bytes(self) -> int:
        """The size of the prompt's text in bytes."""
        if self.text_bytes is not None:
            return self.text_bytes
        return measure_text(self.operation, self.fields)


def parse(
    operation: Operation, body: bytes, *, session_id: str | None = None, is_checked: bool = False
) -> InferenceRequest:
    """Parses a request body; raises :class:`InvalidRequest` with the name of the wrong field.

    ``session_id`` comes from a header of the request; one in the body takes precedence. A body
    above ``LARGE_BYTES`` is parsed in a thread. ``is_checked`` says that the body was made from one
    that passed :func:`check_body`.
    """
    if not is_checked:
        check_body(body)
    try:
        request = _DECODERS[operation](body)
        fields = _decode_fields(body)
    except msgspec.ValidationError as exc:
        raise explain_decode_error(str(exc)) from None
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    session_id = request.session_id or session_id
    _check_request(operation, request, fields, session_id)
    for name in _GATEWAY_FIELDS.intersection(fields):
        del fields[name]
    bound, images = bound_prompt(request, fields)
    return InferenceRequest(
        operation=operation,
        models=_models(request),
        stream=bool(request.stream),
        user=request.user or None,
        preferences=request.provider or _NO_PREFERENCES,
        fields=fields,
        session_id=session_id or None,
        max_tokens=_max_tokens(request),
        choices=_choices(request),
        prompt_bound=bound,
        images=images,
        tools=_tools(request),
        is_reasoning_hidden=isinstance(request, ChatRequest) and _is_reasoning_hidden(request),
        size=len(body),
        # Measured here, in a thread: the event loop needs it for every heartbeat.
        text_bytes=measure_text(operation, fields) if is_large(body) else None,
    )


def _check_request(
    operation: Operation, request: Body, fields: dict[str, msgspec.Raw], session_id: str | None
) -> None:
    """Raises :class:`InvalidRequest` for values that the schema cannot check."""
    if session_id is not None and len(session_id) > SESSION_LENGTH:
        raise field_error("session_id", f"Expected str of length <= {SESSION_LENGTH}.")
    for name, text in (("user", request.user), ("session_id", session_id)):
        if text is not None and CONTROL_CHARACTERS.search(text):
            raise field_error(name, "Must not contain control characters.")
    if operation is Operation.EMBEDDINGS and request.stream:
        raise field_error("stream", "Embeddings cannot be streamed.")
    if (choices := _choices(request)) > MAX_ALL_CHOICES:
        raise field_error(
            "input" if operation is Operation.EMBEDDINGS else "prompt",
            f"Asks for {choices:,} answers at once; send at most {MAX_ALL_CHOICES:,}.",
        )
    preferences = request.provider or _NO_PREFERENCES
    if preferences.enforce_distillable_text:
        raise field_error(
            "provider.enforce_distillable_text", "No endpoint here is known to allow it."
        )
    for slug, options in (preferences.options or {}).items():
        for name in sorted(_RESERVED.intersection(options)):
            raise field_error(f"provider.options.{slug}.{name}", "Set it in the body itself.")
    if "reasoning_effort" in fields and isinstance(request, ChatRequest):
        _check_effort(request)
    if "plugins" in fields and not isinstance(request, EmbeddingsRequest):
        _check_plugins(request.plugins or ())


def _check_effort(request: ChatRequest) -> None:
    """Raises :class:`InvalidRequest` when the two members for the effort contradict each other."""
    effort = request.reasoning and request.reasoning.effort
    if effort and request.reasoning_effort and effort != request.reasoning_effort:
        raise field_error("reasoning_effort", "Contradicts reasoning.effort.")


def _is_reasoning_hidden(request: ChatRequest) -> bool:
    """Returns whether either member hides the reasoning; ``include_reasoning`` is the older one."""
    excluded = request.reasoning is not None and request.reasoning.exclude is True
    return excluded or request.include_reasoning is False


def _check_plugins(plugins: Iterable[Plugin]) -> None:
    """Raises :class:`InvalidRequest` for an enabled plugin that cannot be ignored."""
    for index, plugin in enumerate(plugins):
        if plugin.enabled is not False and plugin.id not in _IDLE_PLUGINS:
            raise field_error(f"plugins[{index}].id", "This service does not run the plugin.")


def _models(request: Body) -> tuple[str, ...]:
    if isinstance(request, EmbeddingsRequest):
        return (request.model,)
    if not request.models:
        return () if request.model is None else (request.model,)
    return tuple(dict.fromkeys(filter(None, (request.model, *request.models))))


def _max_tokens(request: Body) -> int | None:
    """Returns the larger limit if both are set, because a provider may apply either one."""
    if isinstance(request, ChatRequest):
        return max(request.max_tokens or 0, request.max_completion_tokens or 0) or None
    return request.max_tokens if isinstance(request, TextRequest) else 0


def _choices(request: Body) -> int:
    """Returns the number of completions for all prompts together, or of vectors."""
    if isinstance(request, TextRequest):
        prompts = 1
        if not isinstance(request.prompt, str):
            # A list of integers is one prompt in tokens.
            prompts = max(1, sum(not isinstance(part, int) for part in request.prompt))
        return max(request.n or 1, request.best_of or 1) * prompts
    if isinstance(request, EmbeddingsRequest):
        # A list of integers is one input in tokens.
        inputs = () if isinstance(request.input, str) else request.input
        return max(1, sum(not isinstance(part, int) for part in inputs))
    return request.n or 1


def _tools(request: Body) -> frozenset[str]:
    if not isinstance(request, ChatRequest) or not request.tools:
        return frozenset()
    # A type that is not text names no tool; the upstream refuses it.
    names = {tool.type for tool in request.tools if isinstance(tool.type, str)}
    if any(name.startswith("web_search") for name in names):
        names.add(_WEB_SEARCH)
    return frozenset(names - {"function"})
