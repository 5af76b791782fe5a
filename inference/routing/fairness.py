"""Compares the estimate of a prompt with what its provider has reported; pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from inference.requests.operations.server_tools import NO_TOOLS
from inference.requests.parsing import InferenceRequest
from inference.routing.routes import Route

# What templates add to a message, and how much larger an estimate must be than all that is added.
_MESSAGE_TOKENS: Final = 8
_TIMES: Final = 10


class TokenSource(StrEnum):
    """Says whether the tokens of a prompt were estimated here or reported by the upstream."""

    ESTIMATED = "estimated"
    REPORTED = "reported"


class JudgedEstimate(NamedTuple):
    """The tokens of one prompt by who counted them, its script, and the mark of the weights."""

    script: str
    mark: str
    tokens: Mapping[TokenSource, int]


def judge_estimate(request: InferenceRequest, route: Route, reported: int) -> JudgedEstimate | None:
    """Compares the tokens of a prompt that were estimated and reported.

    Returns ``None`` for a prompt that says nothing about the estimate of a script: one whose text
    is not counted, that has several scripts, media or tools, or that is small beside what the
    provider adds. Small texts in ASCII are not counted: it would cost time.
    """
    counts = request.text_counts
    has_more = (
        request.media
        or request.files
        or request.milliseconds
        or request.tool_count
        or request.server_tools is not NO_TOOLS
    )
    if counts is None or has_more or not reported or (script := counts.main_script) is None:
        return None
    messages = request.messages or request.choices
    added = route.limits.bound_text(0, messages, 0) + _MESSAGE_TOKENS * messages
    estimated = route.family.estimate(counts)
    if estimated < _TIMES * added:
        return None
    tokens = {TokenSource.ESTIMATED: estimated, TokenSource.REPORTED: reported}
    return JudgedEstimate(script, route.family.mark, tokens)
