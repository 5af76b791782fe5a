"""The headers of inference requests and of their answers."""

from __future__ import annotations

from typing import Any, Final

from inference.requests.schemas import SESSION_LENGTH

# What a caller may send with any inference request.
PARAMETERS: Final[list[dict[str, Any]]] = [
    {
        "in": "header",
        "name": "X-OpenRouter-Metadata",
        "schema": {"type": "string", "enum": ["enabled", "disabled"]},
        "description": "`enabled` adds `openrouter_metadata` to the answer: how it was routed.",
    },
    {
        "in": "header",
        "name": "Idempotency-Key",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
        "description": "A request that is sent again with its key is neither run nor charged "
        "again. It gets the answer of the first one if the workspace keeps answers, else 409.",
    },
    {
        "in": "header",
        "name": "X-Request-Timeout",
        "schema": {"type": "string", "pattern": "^[0-9]{1,9}([.][0-9]{1,9})?$"},
        "description": "The seconds that you wait in all, above 0. Then the call ends with 408, or "
        "an error event, and is settled as if you had left.",
    },
    {
        "in": "header",
        "name": "X-OpenRouter-Cache",
        "schema": {"type": "string", "enum": ["true", "false"]},
        "description": "Whether the response cache is used; without it, the workspace decides.",
    },
    {
        "in": "header",
        "name": "X-OpenRouter-Cache-TTL",
        "schema": {"type": "integer", "minimum": 1, "maximum": 86400, "default": 300},
        "description": "The lifetime of a new entry of the response cache, in seconds.",
    },
    {
        "in": "header",
        "name": "X-OpenRouter-Cache-Clear",
        "schema": {"type": "string", "enum": ["true", "false"]},
        "description": "`true` replaces the entry of the response cache by a new answer.",
    },
    {
        "in": "header",
        "name": "X-Session-Id",
        "schema": {"type": "string", "maxLength": SESSION_LENGTH},
        "description": "The conversation of the request; `session_id` in the body precedes it.",
    },
    {
        "in": "header",
        "name": "HTTP-Referer",
        "schema": {"type": "string"},
        "description": "The address of your application, which is stored with the generation.",
    },
    {
        "in": "header",
        "name": "X-OpenRouter-Title",
        "schema": {"type": "string"},
        "description": "The name of your application, which is stored with the generation. "
        "`X-Title` is read where it is absent.",
    },
]

# What a caller of Messages may send too. Endpoints of Anthropic's format get it.
MESSAGES_PARAMETERS: Final[list[dict[str, Any]]] = [
    {
        "in": "header",
        "name": "anthropic-beta",
        "schema": {"type": "string"},
        "description": "Names of Anthropic's betas, separated by commas.",
    }
]


def _text(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


REQUEST_ID: Final = {"X-Request-Id": _text("Names the request in the logs of the service.")}
GENERATION_ID: Final = {
    "X-Generation-Id": _text("Our identifier of this generation, for `/generation`.")
}
REPLAYED: Final = {
    "Idempotency-Replayed": _text("`true` for the kept answer of an earlier request.")
}
CACHE: Final = {
    "X-OpenRouter-Cache-Status": _text("`HIT` or `MISS`, if the response cache is used."),
    "X-OpenRouter-Cache-Age": _text("The age of the entry in seconds, for a `HIT`."),
    "X-OpenRouter-Cache-TTL": _text("The seconds for which the entry is kept."),
}
LEFT_OUT: Final = {
    "X-Left-Out": _text(
        "The tools and items of the request that were not sent, separated by commas."
    )
}
RETRY_AFTER: Final = {
    "Retry-After": {
        "description": "The seconds after which a new attempt makes sense.",
        "schema": {"type": "integer"},
    }
}
SHOULD_RETRY: Final = {
    "X-Should-Retry": {
        "description": "`false` if no repetition can succeed.",
        "schema": {"type": "string", "enum": ["false"]},
    }
}
RATE_LIMITS: Final = {
    f"X-RateLimit-{figure}-{unit.capitalize()}": {
        "description": text.format(unit=unit),
        "schema": {"type": "string" if figure == "Reset" else "integer"},
    }
    for unit in ("requests", "tokens")
    for figure, text in (
        ("Limit", "The limit of {unit} that has the least left."),
        ("Remaining", "How many {unit} are left of it."),
        ("Reset", "The time until it is whole again, for instance `6m0s`."),
    )
}
