"""Inference requests: read once, checked by type, and kept as raw JSON for the way upstream."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec

from catalog.dialects.base import Operation
from config.api import CONTROL_CHARACTERS
from config.errors import InvalidRequest

# Meant for the gateway: a deployment would refuse or misread them.
_GATEWAY_FIELDS: Final = frozenset(
    ("model", "models", "provider", "route", "session_id", "trace", "transforms", "debug", "user")
)
_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)

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
# The role and the marks around a message are about four tokens.
_MESSAGE_BYTES: Final = 16
# About what an image of common size costs, at four bytes a token.
_OTHER_PART_BYTES: Final = 4096

_Number = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
_Slug = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Slugs = Annotated[list[_Slug], msgspec.Meta(max_length=32)]


class _Message(msgspec.Struct):
    role: Annotated[str, msgspec.Meta(min_length=1, max_length=32)]
    content: str | list[dict[str, msgspec.Raw]] | None = None


_Amount = (
    Annotated[float, msgspec.Meta(ge=0)]
    | Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}(\.[0-9]{1,12})?\Z")]
)


class MaxPrice(msgspec.Struct):
    """The most that a request may cost: USD per million tokens, and per request or image."""

    prompt: _Amount | None = None
    completion: _Amount | None = None
    request: _Amount | None = None
    image: _Amount | None = None


class ProviderPreferences(msgspec.Struct):
    """The ``provider`` object: which providers may serve the request.

    What it says of speed and order beyond ``order`` is a wish, and passed over.
    """

    order: _Slugs | None = None
    only: _Slugs | None = None
    ignore: _Slugs | None = None
    allow_fallbacks: bool | None = None
    data_collection: str | None = None
    zdr: bool | None = None
    max_price: MaxPrice | None = None
    quantizations: _Slugs | None = None
    require_parameters: bool | None = None
    enforce_distillable_text: bool | None = None


class _Common(msgspec.Struct, kw_only=True):
    model: _Slug | None = None
    models: _Slugs | None = None
    provider: ProviderPreferences | None = None
    user: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    session_id: Annotated[str, msgspec.Meta(max_length=256)] | None = None
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
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, msgspec.Raw]] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, msgspec.Raw] | None = None


class TextRequest(_Common, kw_only=True):
    """The body of ``POST /completions``."""

    prompt: str | list[str | int | list[int]]
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None


SHAPES: Final[dict[Operation, type[ChatRequest | TextRequest]]] = {
    Operation.CHAT: ChatRequest,
    Operation.TEXT: TextRequest,
}
_DECODERS: Final = {
    operation: msgspec.json.Decoder(shape).decode for operation, shape in SHAPES.items()
}
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """What the caller wants, and the raw fields that go upstream."""

    operation: Operation
    models: tuple[str, ...]
    stream: bool
    user: str | None
    preferences: ProviderPreferences
    fields: dict[str, Any] = field(repr=False)

    @property
    def parameters(self) -> frozenset[str]:
        """The named model parameters that the request sets, which an endpoint may not know."""
        return PARAMETERS.intersection(self.fields)

    @property
    def prompt_bytes(self) -> int:
        """The size of the prompt's text, for an estimate where nobody counted its tokens.

        A part that is not text counts as so many bytes, however large its encoding is.
        """
        if self.operation is Operation.TEXT:
            return len(self.fields["prompt"])
        messages = msgspec.json.decode(self.fields["messages"], type=list[_Message])
        return sum(map(_text_bytes, messages))


def parse(operation: Operation, body: bytes) -> InferenceRequest:
    """Reads a request body; raises :class:`InvalidRequest` naming the field that is wrong."""
    try:
        body.decode("utf-8")
        request = _DECODERS[operation](body)
        fields = _decode_fields(body)
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not valid UTF-8.") from None
    except msgspec.ValidationError as exc:
        raise _invalid(str(exc)) from None
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    if request.user is not None and CONTROL_CHARACTERS.search(request.user):
        raise _named("user", "Must not contain control characters.")
    if request.provider is not None and request.provider.enforce_distillable_text:
        raise _named("provider.enforce_distillable_text", "No endpoint here is known to allow it.")
    models = tuple(dict.fromkeys(filter(None, (request.model, *(request.models or ())))))
    if not models:
        raise _named("model", "This field is required.")
    preferences = request.provider or ProviderPreferences()
    if preferences.data_collection not in (None, "allow", "deny"):
        raise _named("provider.data_collection", "Must be allow or deny.")
    for name in _GATEWAY_FIELDS.intersection(fields):
        del fields[name]
    return InferenceRequest(
        operation=operation,
        models=models,
        stream=bool(request.stream),
        user=request.user or None,
        preferences=preferences,
        fields=fields,
    )


def _text_bytes(message: _Message) -> int:
    if isinstance(message.content, str):
        return _MESSAGE_BYTES + len(message.content.encode("utf-8", "surrogatepass"))
    return _MESSAGE_BYTES + sum(
        len(part["text"]) if "text" in part else _OTHER_PART_BYTES for part in message.content or ()
    )


def _invalid(text: str) -> InvalidRequest:
    match = _PLACE.fullmatch(text)
    assert match is not None
    what = match["what"].replace("`", "")
    if not match["path"]:
        missing = re.search(r"missing required field (\w+)", what)
        if missing:
            return _named(missing[1], "This field is required.")
        return InvalidRequest(f"The body must be a JSON object. ({what})")
    return _named(match["path"].lstrip(".").replace("[...]", "[]"), f"{what}.")


def _named(name: str, text: str) -> InvalidRequest:
    return InvalidRequest(f"{name}: {text}", metadata={"fields": {name: text}})
