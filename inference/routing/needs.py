"""Compares what a request needs with what an endpoint can do; pure.

An endpoint is left out only for what the catalogue says, or the settings of a private endpoint:
where they do not know the modalities, the context or the output bound, they exclude nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Final

from catalog.abilities import ANY_CHOICE, UNSTATED, Abilities
from catalog.dialects.shared.raw import first_byte, read_text
from config.api.errors import GatewayError, InvalidRequest, NotFound
from inference.requests.operations.completions import EFFORTS
from inference.requests.parsing import InferenceRequest
from inference.requests.problems import name_shortening
from inference.requests.rows import TOKEN_BYTES
from inference.routing.routes import Route


class Shortfall(StrEnum):
    """A need of a request that an endpoint does not meet, by the column of the catalogue."""

    INPUT = "input_modalities"
    OUTPUT = "output_modalities"
    CONTEXT = "context_length"
    BOUND = "max_completion_tokens"
    PROMPT = "max_prompt_tokens"
    FORM = "inputs"
    EXCLUDED = "excluded_parameters"
    REASONING = "reasoning"
    TOOL_CHOICE = "tool_choice"


_SHORTFALLS: Final = frozenset(Shortfall)
_NAMED: Final = {
    Shortfall.PROMPT: "a prompt of this length",
    Shortfall.EXCLUDED: "all parameters of the request",
    Shortfall.REASONING: "reasoning",
    Shortfall.TOOL_CHOICE: "this tool_choice",
}


class NoEndpoint(NotFound):
    """The model exists, but none of its endpoints may serve this request."""

    error_type = "no_endpoint"


class PromptTooLong(InvalidRequest):
    """The prompt exceeds the context of every endpoint that could serve it otherwise."""

    error_type = "context_length_exceeded"


def find_shortfalls(route: Route, request: InferenceRequest) -> list[Shortfall]:
    """Returns the needs of a request that a route does not meet."""
    found: list[Shortfall] = []
    if request.inputs and route.inputs and not request.inputs <= route.inputs:
        found.append(Shortfall.INPUT)
    if request.outputs and route.outputs and not request.outputs <= route.outputs:
        found.append(Shortfall.OUTPUT)
    length, ceiling = route.context_length, route.max_completion_tokens
    if (
        length is not None
        # The bytes of the body are known. The prompt is measured only if they do not tell enough.
        and request.prompt_bound > length * TOKEN_BYTES
        and request.least_tokens > length
    ):
        found.append(Shortfall.CONTEXT)
    if (
        ceiling is not None
        and request.max_tokens is not None
        and request.max_tokens > ceiling
        and request.may_choose_bound
    ):
        found.append(Shortfall.BOUND)
    if route.abilities is not UNSTATED:
        found += _find_inabilities(route.abilities, request)
    return found


def _find_inabilities(abilities: Abilities, request: InferenceRequest) -> Iterator[Shortfall]:
    """Yields what a request asks for and an endpoint states that it is not able to do."""
    most = abilities.max_prompt_tokens
    if (
        most is not None
        and request.prompt_bound > most * TOKEN_BYTES
        and request.least_tokens > most
    ):
        yield Shortfall.PROMPT
    if any(getattr(abilities.inputs, form, None) is False for form in request.forms):
        yield Shortfall.FORM
    if abilities.excluded_parameters and not request.needed_parameters.isdisjoint(
        abilities.excluded_parameters
    ):
        yield Shortfall.EXCLUDED
    if abilities.reasoning.supported is False and not EFFORTS.isdisjoint(request.needed_parameters):
        yield Shortfall.REASONING
    if abilities.tool_choice != ANY_CHOICE:
        choice = name_tool_choice(request)
        if choice is not None and getattr(abilities.tool_choice, choice, None) is False:
            yield Shortfall.TOOL_CHOICE


def name_tool_choice(request: InferenceRequest) -> str | None:
    """Returns the value of ``tool_choice``; ``function`` for the name of one, ``None`` without."""
    raw = request.fields.get("tool_choice")
    return "function" if first_byte(raw) == b"{" else read_text(raw)


def describe_needs(request: InferenceRequest) -> dict[str, Any]:
    """Describes what a request needs, in the words of the catalogue."""
    return {
        "input_modalities": sorted(request.inputs),
        "output_modalities": sorted(request.outputs),
        "least_prompt_tokens": request.least_tokens,
        "max_tokens": request.max_tokens or None,
    }


def explain_no_candidate(
    request: InferenceRequest,
    requested: str,
    excluded: Sequence[tuple[Route, Sequence[str]]],
    metadata: dict[str, Any],
) -> GatewayError:
    """Returns the error of a request without a candidate, which says what is missing.

    If a shorter prompt alone would help, it is :class:`PromptTooLong`, else :class:`NoEndpoint`.
    The endpoints that count are those that only fall short of the request's needs.
    """
    near = [(route, reasons) for route, reasons in excluded if _SHORTFALLS.issuperset(reasons)]
    if not near:
        named = ", ".join(sorted({str(name) for _, reasons in excluded for name in reasons}))
        why = f" Reasons: {named}." if named else ""
        return NoEndpoint(
            f"No endpoints found for {requested!r} that may serve this request.{why}"
            f"{_name_other_routes([route for route, _ in excluded], request)}",
            metadata=metadata,
        )
    metadata = {**metadata, "needs": describe_needs(request)}
    too_short = [route for route, reasons in near if list(reasons) == [Shortfall.CONTEXT]]
    if too_short:
        longest = max(route.context_length or 0 for route in too_short)
        error = PromptTooLong(
            f"The prompt has more than {request.least_tokens:,} tokens, and the maximum context "
            f"length of {requested!r} is {longest:,} tokens. Send a shorter prompt, or name a "
            "model with a longer context.",
            metadata=metadata,
        )
        if request.shortening:
            name_shortening(error, request.shortening)
        return error
    lacking = " or ".join(_name_lacking([route for route, _ in near], request))
    return NoEndpoint(
        f"No endpoints found that support {lacking}. No endpoint of {requested!r} may serve this "
        "request: change it, or name another model.",
        metadata=metadata,
    )


def _name_other_routes(routes: Sequence[Route], request: InferenceRequest) -> str:
    """Returns a sentence with what the endpoints serve, if none of them serves the operation."""
    served = sorted({f"/{each}" for route in routes for each in route.operations})
    if not served or f"/{request.operation}" in served:
        return ""
    return f" Its endpoints serve {', '.join(served)}."


def _name_lacking(routes: Sequence[Route], request: InferenceRequest) -> Iterator[str]:
    """Yields the needs that at least one of the routes does not meet, in words."""
    for modality in sorted(request.inputs):
        if any(route.inputs and modality not in route.inputs for route in routes):
            yield f"{modality} input"
    for modality in sorted(request.outputs):
        if any(route.outputs and modality not in route.outputs for route in routes):
            yield f"{modality} output"
    if any(Shortfall.FORM in find_shortfalls(route, request) for route in routes):
        yield f"media as {', '.join(sorted(request.forms))}"
    for shortfall, name in _NAMED.items():
        if any(shortfall in find_shortfalls(route, request) for route in routes):
            yield name
    ceilings = [
        route.max_completion_tokens
        for route in routes
        if Shortfall.BOUND in find_shortfalls(route, request)
    ]
    if ceilings:
        most = max(ceiling or 0 for ceiling in ceilings)
        yield f"max_tokens of {request.max_tokens:,} (at most {most:,})"
