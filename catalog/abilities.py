"""The abilities that a catalogue endpoint or a private endpoint states of itself; pure.

Both kinds of endpoints store an object that states some of these members. What is not stated is
unknown, and decides nothing. The catalogue file, the REST API, the console and the routing
snapshot all read it here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import msgspec

Quantization = Literal[
    "int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32",
    "unknown",
]  # fmt: skip
# The names that an owner may declare or exclude, in the order of the contract.
DeclaredParameter = Literal[
    "temperature", "top_p", "top_k", "min_p", "top_a", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "max_tokens", "max_completion_tokens", "logit_bias", "logprobs",
    "top_logprobs", "prediction", "seed", "response_format", "structured_outputs", "stop", "tools",
    "tool_choice", "parallel_tool_calls", "reasoning", "reasoning_effort", "web_search_options",
    "verbosity",
]  # fmt: skip
ReturnMechanism = Literal["reasoning", "reasoning-content", "content-string", "none"]
ThinkingSwitch = Literal[
    "reasoning_effort", "thinking.type", "enable_thinking", "thinking_budget", "none"
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
# The scripts by which tokens are estimated; see :mod:`catalog.tokens`.
Script = Literal[
    "ASCII", "Arabic", "Arabic, rare", "Armenian", "Bengali", "Cherokee", "Cyrillic",
    "Cyrillic, rare", "Devanagari", "Emoji", "Ethiopic", "Georgian", "Georgian, rare", "Greek",
    "Greek, rare", "Gujarati", "Gurmukhi", "Han", "Han, rare", "Hangul", "Hangul, rare", "Hebrew",
    "Kana", "Kana, rare", "Kannada", "Khmer", "Lao", "Latin", "Latin, rare", "Latin, with marks",
    "Malayalam", "Mongolian", "Myanmar", "NKo", "Oriya", "Other", "Santali", "Sinhala", "Symbols",
    "Symbols, rare", "Syriac", "Tamil", "Telugu", "Thaana", "Thai", "Tibetan", "Tifinagh", "Vai",
    "Yi",
]  # fmt: skip

DECLARABLE: Final[tuple[str, ...]] = get_args(DeclaredParameter)
QUANTIZATIONS: Final[tuple[str, ...]] = get_args(Quantization)
# The thinking tokens of an effort, where a deployment counts tokens; more effort has no bound.
BUDGETS: Final[Mapping[str, int]] = {"minimal": 1024, "low": 4096, "medium": 8192, "high": 16384}

_Count = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
_Extra = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
_Factor = Annotated[float, msgspec.Meta(ge=0.001, le=64)]
_Name = Annotated[
    str, msgspec.Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z")
]


class Facet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A group of members; all are optional."""


class Completions(Facet, frozen=True):
    """The interfaces that the deployment serves; null means that it serves those of its model."""

    chat: bool | None = None
    text: bool | None = None


class Inputs(Facet, frozen=True):
    """The forms of input that the deployment accepts; null means those of its model."""

    audio: bool | None = None
    base64_files: bool | None = None
    base64_images: bool | None = None
    file_urls: bool | None = None
    image_urls: bool | None = None


class Reasoning(Facet, frozen=True):
    """The way in which a deployment is told to think, and returns its thoughts.

    ``switch`` is the member of the request that turns thinking on and off, and ``efforts`` are the
    values that it takes; ``none`` means that it cannot be turned off. ``return_mechanism`` says
    where the thoughts stand in an answer. ``must_return`` says that the deployment refuses the next
    turn of tools unless its thoughts come back.
    """

    supported: bool | None = None
    return_mechanism: ReturnMechanism | None = None
    switch: ThinkingSwitch | None = None
    efforts: tuple[Effort, ...] | None = None
    must_return: bool | None = None


class ToolChoice(Facet, frozen=True):
    """The values of ``tool_choice`` that the deployment accepts; ``function`` names one."""

    auto: bool | None = None
    function: bool | None = None
    none: bool | None = None
    required: bool | None = None


class Roles(Facet, frozen=True):
    """The roles that messages may have.

    ``developer`` says whether it is known, and ``later_system`` whether system messages may stand
    after the first message.
    """

    developer: bool | None = None
    later_system: bool | None = None


class MediaBound(Facet, frozen=True):
    """The most prompt tokens of one picture, tile, file and so on.

    A picture whose size is known has a tile more than squares of 512 pixels cover it, and at most
    ``image``. ``image_low`` is what one with ``detail: low`` has where the provider reads that, and
    ``audio_least`` what the shortest sound has.
    """

    image: _Extra | None = None
    image_low: _Extra | None = None
    image_tile: _Extra | None = None
    audio: _Extra | None = None
    audio_least: _Extra | None = None
    audio_second: _Extra | None = None
    video: _Extra | None = None
    video_second: _Extra | None = None
    file: _Extra | None = None
    page: _Extra | None = None


class TokenBound(Facet, frozen=True):
    """The most tokens that a request may have beside those of its text.

    ``thoughts_beside`` says that thoughts do not count towards ``max_tokens``; the longest has
    ``longest_thought`` tokens. ``prompt``, ``message`` and ``tool`` are the tokens that the
    provider adds to each of these. ``tokens_per_byte`` is the most that its tokenizer makes of a
    byte of text.
    """

    thoughts_beside: bool | None = None
    longest_thought: _Extra | None = None
    prompt: _Extra | None = None
    message: _Extra | None = None
    tool: _Extra | None = None
    tokens_per_byte: _Factor | None = None
    media: MediaBound = MediaBound()


class Abilities(Facet, frozen=True):
    """The abilities of an endpoint that are not columns of a catalogue endpoint.

    ``estimate`` has a factor for the estimated tokens of a script where its tokenizer's row errs.
    """

    completions: Completions = Completions()
    max_prompt_tokens: _Count | None = None
    excluded_parameters: tuple[DeclaredParameter, ...] = ()
    inputs: Inputs = Inputs()
    reasoning: Reasoning = Reasoning()
    tool_choice: ToolChoice = ToolChoice()
    roles: Roles = Roles()
    string_content: bool | None = None
    bound: TokenBound = TokenBound()
    estimate: dict[Script, _Factor] = {}


class PoolRouting(Facet, frozen=True):
    """The place of a deployment among the private ones of its model.

    The highest ``priority`` serves, 0 where none is stated, and the others while none of it is
    available. ``weight`` is the share of requests within a priority, 100 where none is stated.
    ``max_in_flight`` requests run at once.
    """

    priority: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None
    weight: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    max_in_flight: Annotated[int, msgspec.Meta(ge=1, le=10**6)] | None = None


NO_POOL: Final = PoolRouting()


class EndpointSettings(Abilities, frozen=True):
    """The settings of a private endpoint: its abilities, its limits, and what it calls its model.

    ``reported_model`` is the name that its answers carry instead of the upstream model's.
    """

    context_length: _Count | None = None
    max_completion_tokens: _Count | None = None
    quantization: Quantization = "unknown"
    reported_model: _Name | None = None
    routing: PoolRouting = NO_POOL


UNSTATED: Final = Abilities()
UNSET_SETTINGS: Final = EndpointSettings()
ANY_CHOICE: Final = ToolChoice()
_Shape = TypeVar("_Shape", bound=Abilities)
_encode = msgspec.json.Encoder(order="sorted").encode


class InvalidAbilities(ValueError):
    """The members do not fit each other; ``field`` is the path of one of them."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field = field
        self.text = text


def read_abilities(stated: Mapping[str, Any] | str) -> Abilities:
    """Returns the abilities that a catalogue endpoint states, one object for the same members.

    The data plane has them as JSON. A member of a later release is left out.
    """
    text = stated.encode() if isinstance(stated, str) else _encode(stated)
    return UNSTATED if text == b"{}" else _read_known(text, Abilities)


def read_settings(stated: Mapping[str, Any]) -> EndpointSettings:
    """Returns the settings that a private endpoint states, one object for equal ones."""
    found: EndpointSettings = UNSET_SETTINGS
    if stated:
        found = _read_known(_encode(stated), EndpointSettings)
    return found


@lru_cache(maxsize=4096)
def _read_known(text: bytes, shape: type[Any]) -> Any:
    """Decodes stored members; keeps those alone that this release knows."""
    stated = msgspec.json.decode(text)
    try:
        return msgspec.convert(stated, shape)
    except msgspec.ValidationError:
        kept = {name: value for name, value in stated.items() if _is_known(name, value, shape)}
        return msgspec.convert(kept, shape)


def _is_known(name: str, value: Any, shape: type[Abilities]) -> bool:
    try:
        msgspec.convert({name: value}, shape)
    except msgspec.ValidationError:
        return False
    return True


def change(unset: _Shape, stated: Mapping[str, Any], given: Mapping[str, Any]) -> _Shape:
    """Returns what is stated after a partial change, in which null takes a member away.

    ``unset`` is the shape that states nothing. Raises :class:`InvalidAbilities` for what ``given``
    must not contain. The caller asks :func:`find_problem` whether the members fit each other.
    """
    merged = _merge(stated, given, unset)
    try:
        return msgspec.convert(merged, type(unset))
    except msgspec.ValidationError as exc:
        text, _, path = str(exc).replace("`key` in ", "").partition(" - at `$")
        raise InvalidAbilities(path.removesuffix("[...]`").strip("`."), f"{text}.") from None


def find_problem(
    abilities: Abilities, *, length: int | None = None, tested: Collection[str] = ()
) -> InvalidAbilities | None:
    """Returns why members do not fit each other or what was tested; ``None`` if they do.

    ``length`` is the context length where the abilities state none.
    """
    if abilities.completions.chat is False and abilities.completions.text is False:
        return InvalidAbilities(
            "completions", "chat and text are both off, so nothing could be routed here."
        )
    if proven := sorted(set(tested).intersection(abilities.excluded_parameters)):
        return InvalidAbilities(
            "excluded_parameters", f"A validation has proven {', '.join(proven)}; leave it out."
        )
    length = getattr(abilities, "context_length", None) or length
    most = abilities.max_prompt_tokens
    if length is not None and most is not None and most > length:
        return InvalidAbilities(
            "max_prompt_tokens", f"Must be at most {length}, the context length."
        )
    return None


def dump(abilities: Abilities) -> dict[str, Any]:
    """Returns the members that are stated, as they are stored."""
    return _prune(msgspec.to_builtins(abilities))


def show(abilities: Abilities) -> dict[str, Any]:
    """Returns all members; null where nothing is stated."""
    return _show(abilities)


def _merge(
    stated: Mapping[str, Any], given: Mapping[str, Any], known: Facet, path: str = ""
) -> dict[str, Any]:
    merged = dict(stated)
    for name, value in given.items():
        if name not in known.__struct_fields__:
            raise InvalidAbilities(f"{path}{name[:100]}", "Unknown field.")
        group = getattr(known, name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(group, Facet) and isinstance(value, Mapping):
            merged[name] = _merge(merged.get(name) or {}, value, group, f"{path}{name}.")
        else:
            merged[name] = value
    return merged


def _prune(value: Any) -> Any:
    """Returns an object without the objects in it that state nothing."""
    if not isinstance(value, dict):
        return list(value) if isinstance(value, tuple) else value
    pruned = ((name, _prune(inner)) for name, inner in value.items())
    return {name: inner for name, inner in pruned if inner != {}}


def _show(value: Any) -> Any:
    if isinstance(value, Facet):
        return {name: _show(getattr(value, name)) for name in value.__struct_fields__}
    return list(value) if isinstance(value, tuple) else value
