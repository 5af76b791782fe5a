"""Recognizes why a provider refused a request, by the names or the words of its error; pure.

Providers have no common code for a prompt that is too long, or for content that a moderation
refuses. Most of them, and the servers that people run themselves, answer 400 with a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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


# The names of errors that an answer of status 200 can have, and the statuses that they stand for.
# OpenAI names a server that is overloaded and one that failed alike.
_STATUSES_OF_NAMES: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        (
            "rate_limit_exceeded", "rate_limit_error", "rate_limit", "rate_limited",
            "rate_limit_reached_error", "too_many_requests", "resource_exhausted",
            "throttlingexception", "throttling", "servicequotaexceededexception",
        ),
        429,
    ),
    **dict.fromkeys(
        (
            "overloaded_error", "overloaded", "server_is_overloaded", "slow_down",
            "engine_overloaded", "engine_overloaded_error",
        ),
        529,
    ),
    **dict.fromkeys(
        (
            "server_error", "service_unavailable", "service_unavailable_error", "unavailable",
            "serviceunavailableexception", "modelnotreadyexception",
        ),
        503,
    ),
    **dict.fromkeys(("deadline_exceeded", "timeout_error", "modeltimeoutexception"), 504),
}  # fmt: skip
_RANK: Final = (401, 402, 403, 429, 529, 503, 504)
# The statuses with which a provider refuses a credential or an account by name.
_NAMED_STATUSES: Final = frozenset((200, 400, 403, 429))
_ACCOUNT_NAMES: Final = frozenset(
    (
        "insufficient_quota", "insufficient_balance", "insufficient_credits", "insufficient_funds",
        "billing_error", "billing_hard_limit_reached", "billing_not_active", "payment_required",
        "exceeded_current_quota_error", "arrearage", "accountoverdueerror", "account_deactivated",
        "account_suspended", "access_terminated",
        "invalid_api_key", "incorrect_api_key", "api_key_invalid", "api_key_expired",
        "api_key_service_blocked", "authentication_error", "invalid_authentication_error",
        "unauthenticated", "unrecognizedclientexception", "invalidsignatureexception",
        "expiredtokenexception", "missingauthenticationtokenexception", "incompletesignature",
    )
)  # fmt: skip
# What a provider names when a credential is known and may not use this model.
_PERMISSION_NAMES: Final = frozenset(
    (
        "permission_error", "permission_denied", "model_not_allowed", "accessdeniedexception",
        "unsupported_country_region_territory",
    )
)  # fmt: skip
# Only the beginning counts: what the error repeats of the request must not look like a refusal.
_ACCOUNT_TEXTS: Final = (
    "your credit balance is too low", "your account is not active", "insufficient balance",
    "insufficient credits",
)  # fmt: skip
# Google's words for a file of its Files API, and for one in its storage.
_FILE: Final = re.compile(r"permission to access the file\b|\bstorage\.objects\.")


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


def infer_status(failure: ProviderFailure) -> int | None:
    """Returns the HTTP status that an error inside an answer stands for; ``None`` if unknown.

    Some providers put the status itself into ``code``.
    """
    if not failure.names.isdisjoint(_ACCOUNT_NAMES):
        return 401
    found = {_STATUSES_OF_NAMES[name] for name in failure.names & _STATUSES_OF_NAMES.keys()}
    numbers = {int(name) for name in failure.names if re.fullmatch("[45][0-9]{2}", name, re.ASCII)}
    return next((status for status in _RANK if status in found | numbers), None)


def is_account_refused(status: int, failure: ProviderFailure) -> bool:
    """Returns whether a provider refuses the credential or its account, whatever the request.

    ``status`` is 200 for an error inside an answer.
    """
    if status in (401, 402):
        return True
    if status not in _NAMED_STATUSES:
        return False
    return not failure.names.isdisjoint(_ACCOUNT_NAMES) or (
        (failure.message or "").lower().startswith(_ACCOUNT_TEXTS)
    )


def is_file_refused(status: int, failure: ProviderFailure) -> bool:
    """Returns whether a provider may not read a file that the request names by its URL.

    Google answers so for the URL of any file that is not the account's, which callers can write.
    """
    text = (failure.message or "")[:_SEARCHED].lower()
    return status == 403 and _FILE.search(text) is not None


def is_permission_refused(status: int, failure: ProviderFailure) -> bool:
    """Returns whether a provider knows the credential, and does not let it use the model."""
    return status == 403 and not failure.names.isdisjoint(_PERMISSION_NAMES)
