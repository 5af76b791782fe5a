"""Recognizes why a provider refused a request, by the code or the words of its error; pure.

Providers have no common code for a prompt that is too long, or for content that a moderation
refuses. Most of them, and the servers that people run themselves, answer 400 with a sentence.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from catalog.dialects.base import ProviderFailure


class Refusal(StrEnum):
    """A reason for which another model may accept a request that this one refuses."""

    CONTEXT_LENGTH = "context_length"
    CONTENT = "content"


# The statuses with which a request itself is refused. A provider that is busy (429, 503) may say
# "too many tokens" as well, and means the tokens of a minute.
_STATUSES: Final = frozenset((200, 400, 403, 413, 422, 451, 500))
_CONTEXT_CODES: Final = frozenset(
    (
        "context_length_exceeded", "context_window_exceeded", "exceed_context_size_error",
        "model_max_prompt_tokens_exceeded",
    )
)  # fmt: skip
_CONTENT_CODES: Final = frozenset(
    (
        "content_filter", "content_policy_violation", "content_policy", "content_moderation",
        "datainspectionfailed", "data_inspection_failed", "moderation_blocked",
        "responsibleaipolicyviolation",
    )
)  # fmt: skip
# Providers put the reason first; a long rest repeats the request.
_SEARCHED: Final = 512
# Each gap is bounded: the texts come from outside, and a search must stay linear.
_CONTEXT: Final = re.compile(
    r"prompt is too long|input is too long|maximum (?:context|model|prompt) length"
    r"|context[ _-](?:length|window|size)[^.]{0,40}exceed"
    r"|exceed[^.]{0,40}context[ _-]?(?:length|window|size|limit)"
    r"|(?:greater|longer|larger) than the (?:maximum )?(?:context|model)"
    r"|input token count[^.]{0,60}exceed|prompt token count[^.]{0,60}exceed"
    r"|exceeded model token limit|prompt exceeds max length|range of input length should be"
    r"|reduce the length of the (?:messages|prompt|input)"
    r"|must have less than [0-9]{1,9} tokens|`max_new_tokens` must be"
    r"|too many (?:input )?tokens(?! per)"
)
_CONTENT: Final = re.compile(
    r"content (?:management )?policy|content[ _-](?:filter|moderation)|content exists risk"
    r"|requires moderation|inappropriate content"
    r"|(?:input|prompt|content|message|request)[^.]{0,60}\bflagged\b"
    r"|(?:input|prompt|content|message|request|output)[^.]{0,60}"
    r"violat[^.]{0,60}(?:polic|guideline|terms of use)"
    r"|(?:rejected|blocked|refused)[^.]{0,40}safety (?:system|filter|setting)"
)


def classify_refusal(status: int, failure: ProviderFailure) -> Refusal | None:
    """Returns why a provider refused a request; ``None`` for any other reason.

    ``status`` is 200 for an error inside an answer. The code decides if it is known, else the
    message. A misleading message costs one attempt at another model, which is free when refused.
    """
    if status not in _STATUSES:
        return None
    code = (failure.code or "").lower()
    if code in _CONTEXT_CODES:
        return Refusal.CONTEXT_LENGTH
    if code in _CONTENT_CODES:
        return Refusal.CONTENT
    text = (failure.message or "")[:_SEARCHED].lower()
    if _CONTEXT.search(text):
        return Refusal.CONTEXT_LENGTH
    return Refusal.CONTENT if _CONTENT.search(text) else None
