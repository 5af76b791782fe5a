"""What every management route shares: strict bodies, strict fields, pages."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, NoReturn
from uuid import UUID

from django.conf import settings
from drf_spectacular.utils import extend_schema_field
from rest_framework import renderers, serializers
from rest_framework.exceptions import ParseError, ValidationError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from config.api.errors import PayloadTooLarge

MAX_DEPTH: Final = 32
MAX_LIST: Final = 100
# C0, DEL and C1 controls; lone surrogates, which UTF-8 and PostgreSQL cannot carry.
CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# What PostgreSQL cannot hold in a text.
NOT_STORABLE: Final = re.compile(r"[\x00\ud800-\udfff]")
_NUMBER: Final = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,2})?")
_INSTANT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
    r"(?:Z|[+-][0-9]{2}:[0-9]{2})"
)
_MAX_DOLLARS: Final = 1_000_000_000
_NANO: Final = Decimal("1e-9")
_MONEY: Final = Context(prec=40)
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class JSONRenderer(renderers.JSONRenderer):
    """JSON and nothing else; ``Accept`` decides only whether JSON is allowed at all."""

    ensure_ascii = False


class StrictJSONParser(BaseParser):
    """Reads one JSON object in UTF-8: no duplicate key, no NaN, no needless depth.

    Raises ``ParseError`` (400) for what is malformed and :class:`PayloadTooLarge` (413).
    Numbers with a fraction arrive as :class:`~decimal.Decimal`, so that money keeps its digits.
    """

    media_type = "application/json"

    def parse(
        self,
        stream: Any,
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        raw = stream.read(settings.MAX_REQUEST_BYTES + 1)
        if len(raw) > settings.MAX_REQUEST_BYTES:
            raise PayloadTooLarge
        try:
            body = json.loads(
                raw.decode("utf-8"),
                object_pairs_hook=_unique_keys,
                parse_float=Decimal,
                parse_constant=_refuse_constant,
            )
        except UnicodeDecodeError:
            raise ParseError("The body is not valid UTF-8.") from None
        except RecursionError:
            raise ParseError("The body is nested too deeply.") from None
        except json.JSONDecodeError as exc:
            raise ParseError(f"The body is not valid JSON ({exc.msg}).") from None
        except ValueError:  # an integer of more digits than Python converts
            raise ParseError("The body holds a number that is too long.") from None
        except InvalidOperation:  # an exponent beyond those of Decimal
            raise ParseError("The body holds a number that is out of range.") from None
        if not isinstance(body, dict):
            raise ParseError("The body must be a JSON object.")
        _check_depth(body)
        return body


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ParseError("The body names a key twice in one object.")
    if any(CONTROL_CHARACTERS.search(name) for name in members):
        raise ParseError("The body has a key with control characters.")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ParseError(f"The body holds {name}, which is not JSON.")


def _check_depth(value: Any, depth: int = 1) -> None:
    if depth > MAX_DEPTH:
        raise ParseError("The body is nested too deeply.")
    children = value.values() if isinstance(value, dict) else value
    for child in children:
        if isinstance(child, dict | list):
            _check_depth(child, depth + 1)


class StrictSerializer(serializers.Serializer[Any]):
    """A shape that refuses the fields it does not know, by name."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise ValidationError("Must be a JSON object.")
        unknown = [name for name in data if name not in self.fields]
        if unknown:
            raise ValidationError({name[:100]: ["Unknown field."] for name in unknown[:10]})
        return super().to_internal_value(data)


class StringField(serializers.CharField):
    """A JSON string as it is: not trimmed, not converted, without control characters."""

    default_error_messages = {"invalid": "Must be a string."}

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("trim_whitespace", False)
        kwargs.setdefault("max_length", 255)
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        if CONTROL_CHARACTERS.search(data):
            raise ValidationError("Must not contain control characters.")
        return data


class TrackingField(StringField):
    """A tracking string of the wider rule: any Unicode text without NUL, no white space around."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("min_length", 1)
        kwargs.setdefault("max_length", 512)
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        if NOT_STORABLE.search(data):
            raise ValidationError("Must not contain NUL or lone surrogates.")
        if data != data.strip():
            raise ValidationError("Must not begin or end with white space.")
        return data


class FlagField(serializers.BooleanField):
    """A JSON boolean; ``"yes"`` and ``1`` are not booleans."""

    default_error_messages = {"invalid": "Must be true or false."}

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid")
        return data


class ChoiceField(serializers.ChoiceField):
    """One string of a closed list."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str) or data not in self.choices:
            raise ValidationError(f"Must be one of: {', '.join(map(str, self.choices))}.")
        return data


class UUIDField(serializers.UUIDField):
    """A UUID in its usual spelling, and in no other that Python would accept."""

    default_error_messages = {"invalid": "Must be a UUID."}

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str) or not _UUID.fullmatch(data):
            self.fail("invalid")
        return super().to_internal_value(data)


class IntegerField(serializers.IntegerField):
    """A JSON integer; ``"5"``, ``5.0`` and ``true`` are not integers."""

    default_error_messages = {"invalid": "Must be an integer."}

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, int) or isinstance(data, bool):
            self.fail("invalid")
        return super().to_internal_value(data)


@extend_schema_field({"type": "number", "minimum": 0, "maximum": _MAX_DOLLARS})
class DollarsField(serializers.Field[int, Any, float, Any]):
    """A JSON number of USD, not negative, as integer nano-USD: exact, or refused."""

    def to_internal_value(self, data: Any) -> int:
        if not isinstance(data, int | Decimal) or isinstance(data, bool):
            raise ValidationError("Must be a number.")
        if not 0 <= data <= _MAX_DOLLARS:
            raise ValidationError(f"Must be from 0 to {_MAX_DOLLARS}.")
        nano = Decimal(data).quantize(_NANO, context=_MONEY)
        if nano != data:
            raise ValidationError("Must have at most 9 decimals.")
        return int(nano.scaleb(9, context=_MONEY))

    def to_representation(self, value: int) -> float:
        return value / 10**9


class InstantField(serializers.DateTimeField):
    """An ISO 8601 moment with its seconds and its offset from UTC, and in no shorter spelling."""

    def to_internal_value(self, value: Any) -> datetime:
        if not isinstance(value, str) or not _INSTANT.fullmatch(value):
            raise ValidationError(
                "Must be a moment with seconds and time zone, such as 2030-01-31T12:00:00Z."
            )
        try:
            return datetime.fromisoformat(value).astimezone(UTC)
        except (ValueError, OverflowError):
            raise ValidationError("Is not a moment of the calendar.") from None


def path_uuid(text: str) -> UUID | None:
    """Returns a UUID of a path, or ``None`` for what is none, so that nothing has that id."""
    return UUID(text) if _UUID.fullmatch(text) else None


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
    if not _UUID.fullmatch(text):
        raise ValidationError({name: ["Must be a UUID."]})
    return UUID(text)


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
