"""Query parameters, read strictly, and pages."""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal
from typing import Final
from uuid import UUID

from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from config.api.text import CONTROL_CHARACTERS, parse_uuid

MAX_LIST: Final = 100
_NUMBER: Final = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,2})?")


def query_integer(
    request: Request, name: str, *, minimum: int, maximum: int | None = None
) -> int | None:
    """Returns a query parameter as an integer, or ``None`` when it is absent; 400 otherwise."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValidationError({name: ["Must be an integer."]})
    number = int(text)
    if number < minimum or (maximum is not None and number > maximum):
        bounds = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise ValidationError({name: [f"Must be {bounds}."]})
    return number


def query_text(request: Request, name: str) -> str | None:
    """Returns a query parameter as it is, or ``None`` when it is absent; 400 for controls in it."""
    text = request.query_params.get(name)
    if text is not None and CONTROL_CHARACTERS.search(text):
        raise ValidationError({name: ["Must not contain control characters."]})
    return text


def query_choice(request: Request, name: str, choices: Collection[str]) -> str | None:
    """Returns a query parameter of a closed list, or ``None`` when it is absent; 400 otherwise."""
    text = request.query_params.get(name)
    if text is not None and text not in choices:
        raise ValidationError({name: [f"Must be one of: {', '.join(choices)}."]})
    return text


def query_list(
    request: Request, name: str, *, choices: Collection[str] | None = None
) -> list[str] | None:
    """Returns a comma list, or ``None`` when it is absent; 400 for an empty or unknown item."""
    text = query_text(request, name)
    if text is None:
        return None
    items = text.split(",")
    if choices is not None and not set(items) <= set(choices):
        raise ValidationError({name: [f"Must be of: {', '.join(choices)}."]})
    if "" in items or len(items) > MAX_LIST:
        raise ValidationError({name: [f"Must be 1 to {MAX_LIST} items, separated by commas."]})
    return items


def query_decimal(request: Request, name: str, *, maximum: int | None = None) -> Decimal | None:
    """Returns a query parameter as an exact number from 0, or ``None`` when absent; 400 otherwise.

    ``1e-05`` is what some clients make of a small number.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise ValidationError({name: ["Must be a number, at least 0."]})
    number = Decimal(text)
    if maximum is not None and number > maximum:
        raise ValidationError({name: [f"Must be from 0 to {maximum}."]})
    return number


def query_uuid(request: Request, name: str) -> UUID | None:
    """Returns a query parameter as a UUID, or ``None`` when it is absent; 400 otherwise."""
    text = request.query_params.get(name)
    if text is None:
        return None
    value = parse_uuid(text)
    if value is None:
        raise ValidationError({name: ["Must be a UUID."]})
    return value


def query_flag(request: Request, name: str) -> bool:
    """Returns a query parameter that says ``true`` or ``false``; absent is false, else 400."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise ValidationError({name: ["Must be true or false."]})
    return text == "true"


def slice_page(request: Request, *, default_limit: int, maximum_limit: int) -> tuple[int, int]:
    """Returns ``(offset, limit)`` of a list that is always paged; 400 when either is wrong."""
    offset = query_integer(request, "offset", minimum=0)
    limit = query_integer(request, "limit", minimum=1, maximum=maximum_limit)
    return offset or 0, limit or default_limit


def next_link(request: Request, *, offset: int, limit: int, total_count: int) -> str | None:
    """Returns the absolute URL of the page that follows, or ``None`` on the last one."""
    if offset + limit >= total_count:
        return None
    query = request.query_params.copy()
    query["offset"], query["limit"] = str(offset + limit), str(limit)
    return request.build_absolute_uri(f"{request.path}?{query.urlencode()}")
