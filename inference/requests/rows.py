"""What a row of the table of requests holds: how the requests of one operation are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import msgspec

from catalog.dialects.base import Reply
from catalog.pricing import Usage
from inference.requests.schemas import ProviderPreferences

Fields = Mapping[str, msgspec.Raw]
# English text has about four bytes a token.
BYTES_PER_TOKEN: Final = 4


class Body(Protocol):
    """The members that the bodies of all operations have."""

    provider: ProviderPreferences | None
    user: str | None
    session_id: str | None
    stream: bool | None


B = TypeVar("B", bound=Body)


class Modelled(Protocol):
    """A body that may name several models."""

    model: str | None
    models: list[str] | None


def name_models(request: Modelled) -> tuple[str, ...]:
    """Returns the models of a body that may name several, in the order of their preference."""
    if not request.models:
        return () if request.model is None else (request.model,)
    return tuple(dict.fromkeys(filter(None, (request.model, *request.models))))


class OneModel(Protocol):
    """A body that names one model."""

    model: str


def name_model(request: OneModel) -> tuple[str, ...]:
    """Returns the model of a body that names one."""
    return (request.model,)


def _accept(request: Any, fields: Fields) -> None:
    """Accepts every body that fits its shape."""


def _count_one(request: Any) -> int:
    return 1


def _bound_nothing(request: Any) -> int:
    return 0


def _find_nothing(request: Any) -> tuple[()]:
    return ()


def _use_nothing(request: Any) -> frozenset[str]:
    return frozenset()


def _need_nothing(fields: Fields) -> tuple[()]:
    return ()


def _count_nothing(fields: Fields) -> int:
    return 0


def _is_shown(request: Any) -> bool:
    return False


def _estimate(prompt: int, completion: int, known: Usage) -> Usage:
    return Usage(prompt, completion, searches=known.searches)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow(Generic[B]):
    """How the requests of one operation are checked, measured and bounded.

    ``shape`` is the body; ``models`` names its models, and ``default_model`` is the setting of a
    workspace that names the model of a body without any. ``check`` raises :class:`InvalidRequest`
    for what the shape cannot check.

    ``answers`` is the number of completions, vectors or results that are asked for, and
    ``answers_field`` the field that asks for too many. ``output_bound`` is the most tokens of one
    answer: ``None`` if the request leaves it to the endpoint, 0 if answers have no output tokens.
    ``bound_names`` are the parameters that set this bound.

    ``prompt_text`` measures the text of the prompt in bytes, for an estimate of its tokens. An
    upper bound of the tokens counts the bytes of all fields, with ``parts`` of the prompt that are
    not text by bounds of their own, and ``added_tokens`` for what a provider adds.

    ``least_tokens`` is a number of tokens that the longest prompt exceeds in all likelihood; an
    endpoint with a shorter context is not asked. It is low where the bound is high: an honest
    request must not be refused for an estimate, while a prompt that is too long after all costs one
    refusal of the provider. So it counts text alone, at six characters a token without spaces, and
    it is 0 where providers cut long prompts by design, as for embeddings. ``outputs`` are the
    modalities that the answer must have.

    ``allowed`` is the most that a request may use of what is not counted in tokens, and ``least``
    what it uses of it in any case, for an answer that counts nothing. ``estimate`` returns the
    usage of an answer by the estimated tokens of prompt and completion, and by the units that were
    known before (:attr:`InferenceRequest.known_units`).

    ``defaults`` are sent upstream for fields that are absent or null, and ``left_out`` are fields
    that only the gateway reads.

    ``reserved`` are the fields of the operation that the options of a provider must not replace,
    beside those of all operations. ``parameters`` is the vocabulary of model parameters, and
    ``implied_parameters`` are those that the values of other fields need. ``tools`` names the tools
    that a server runs. ``complete`` turns a reply to these fields into an answer of the interface,
    or raises :class:`InvalidReply`.
    """

    shape: type[B]
    models: Callable[[B], tuple[str, ...]]
    prompt_text: Callable[[Fields], int]
    default_model: Literal["text_model", "image_model"] = "text_model"
    check: Callable[[B, Fields], None] = _accept
    answers: Callable[[B], int] = _count_one
    answers_field: str = "prompt"
    output_bound: Callable[[B], int | None] = _bound_nothing
    bound_names: tuple[str, ...] = ()
    parts: Callable[[B], Iterable[dict[str, msgspec.Raw]]] = _find_nothing
    added_tokens: Callable[[B], int] = _bound_nothing
    least_tokens: Callable[[Fields], int] = _count_nothing
    outputs: Callable[[B], frozenset[str]] = _use_nothing
    reserved: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()
    implied_parameters: Callable[[Fields], Iterable[str]] = _need_nothing
    tools: Callable[[B], frozenset[str]] = _use_nothing
    is_reasoning_hidden: Callable[[B], bool] = _is_shown
    allowed: Callable[[Fields], Usage] | None = None
    least: Callable[[Fields], Usage] | None = None
    estimate: Callable[[int, int, Usage], Usage] = _estimate
    defaults: Fields = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    complete: Callable[[Fields, Reply], None] | None = None
