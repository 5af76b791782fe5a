"""Text completions: the body of a request, and how it is read."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from catalog.dialects.shared.raw import count_characters, first_byte
from catalog.tokens import TextCounts
from inference.requests.limits import MAX_CHOICES
from inference.requests.operations.completions import PARAMETERS
from inference.requests.rows import (
    CHARACTERS_PER_TOKEN,
    Demands,
    Fields,
    RequestRow,
    count_inputs,
    name_models,
)
from inference.requests.schemas import Completion

# The first bytes of a prompt that is a text or a list of tokens; another one begins a token.
_PROMPTS: Final = (b'"', b"[")
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class TextRequest(Completion, kw_only=True):
    """The body of ``POST /completions``."""

    prompt: str | list[str | int | list[int]]
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None


def _read_demands(request: TextRequest) -> Demands:
    return Demands(request.max_tokens)


def _count_choices(request: TextRequest) -> int:
    """Returns the number of completions for all prompts together."""
    prompts = 1
    if not isinstance(request.prompt, str):
        # A list of integers is one prompt in tokens.
        prompts = max(1, sum(not isinstance(part, int) for part in request.prompt))
    return max(request.n or 1, request.best_of or 1) * prompts


def _count_text(fields: Fields) -> TextCounts:
    return count_inputs(fields["prompt"])


def _count_least_tokens(fields: Fields) -> int:
    return _count_longest(fields["prompt"])


def _count_longest(prompt: msgspec.Raw) -> int:
    """Returns the least tokens of the longest of several prompts, which are texts or tokens."""
    if first_byte(prompt) == b'"':
        return count_characters(prompt) // CHARACTERS_PER_TOKEN
    parts = _decode_list(prompt)
    if all(first_byte(part) in _PROMPTS for part in parts):
        return max(map(_count_longest, parts), default=0)
    return len(parts)  # a list of integers is one prompt in tokens


ROW: Final = RequestRow(
    shape=TextRequest,
    models=name_models,
    answers=_count_choices,
    demands=_read_demands,
    bound_names=("max_tokens",),
    count_text=_count_text,
    least_tokens=_count_least_tokens,
    parameters=PARAMETERS,
)
