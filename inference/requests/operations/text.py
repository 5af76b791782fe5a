"""Text completions: the body of a request, and how it is read."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from inference.requests.limits import MAX_CHOICES
from inference.requests.operations.completions import PARAMETERS, check_plugins
from inference.requests.rows import Fields, RequestRow, name_models
from inference.requests.schemas import Completion


class TextRequest(Completion, kw_only=True):
    """The body of ``POST /completions``."""

    prompt: str | list[str | int | list[int]]
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None


def _check(request: TextRequest, fields: Fields) -> None:
    if "plugins" in fields:
        check_plugins(request.plugins or ())


def _bound_output(request: TextRequest) -> int | None:
    return request.max_tokens


def _count_choices(request: TextRequest) -> int:
    """Returns the number of completions for all prompts together."""
    prompts = 1
    if not isinstance(request.prompt, str):
        # A list of integers is one prompt in tokens.
        prompts = max(1, sum(not isinstance(part, int) for part in request.prompt))
    return max(request.n or 1, request.best_of or 1) * prompts


def _measure_text(fields: Fields) -> int:
    return len(fields["prompt"])


ROW: Final = RequestRow(
    shape=TextRequest,
    models=name_models,
    check=_check,
    answers=_count_choices,
    output_bound=_bound_output,
    bound_names=("max_tokens",),
    prompt_text=_measure_text,
    parameters=PARAMETERS,
)
