"""Strict serializer fields, which convert nothing: a value of another type is refused by name."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any, Final

import msgspec
from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.fields import SkipField

from config.api.text import CONTROL_CHARACTERS, CONTROLS, INVISIBLE, NOT_STORABLE, parse_uuid

_INSTANT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
    r"(?:Z|[+-][0-9]{2}:[0-9]{2})"
)
# What the patterns of the document are made of, as ECMA-262 spells it: the characters of
# ``INVISIBLE`` that are no controls, and those that ``str.strip`` takes.
_UNSEEN: Final = (
    r" \u00a0\u00ad\u115f\u1160\u1680\u180e\u2000-\u200f\u2028\u2029\u202f\u205f-\u2064\u2800"
    r"\u3000\u3164\ufeff\uffa0"
)
_SPACE: Final = r"\t-\r\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_ANY_LINE: Final = rf"^[^{CONTROLS}]*$"
_SEEN_LINE: Final = rf"^[{_UNSEEN}]*[^{CONTROLS}{_UNSEEN}][^{CONTROLS}]*$"
_TRIMMED: Final = rf"^[^\u0000{_SPACE}]([^\u0000]*[^\u0000{_SPACE}])?$"
#: The pattern of a text that may have several lines.
STORABLE: Final = r"^[^\u0000]*$"
_MAX_DOLLARS: Final = 1_000_000_000
_NANO: Final = Decimal("1e-9")
_MONEY: Final = Context(prec=40)


class StrictSerializer(serializers.Serializer[Any]):
    """A shape that refuses unknown fields by name."""

    @property
    def is_absent_if_null(self) -> bool:
        """Returns whether null counts as absent: it is optional, and null has no meaning of it."""
        return not (self.required or self.allow_null or self.parent is None)

    def validate_empty_values(self, data: Any) -> tuple[bool, Any]:
        if data is None and self.is_absent_if_null:
            raise SkipField
        return super().validate_empty_values(data)

    def stored_entries(self, name: str) -> Collection[str]:
        """Returns the entries that a list of the updated row has; what they name may be gone.

        The view puts a function ``find_row`` into the context, which returns the row.
        """
        find_row = self.context.get("find_row")
        stored: Collection[str] | None = (
            None if find_row is None else getattr(find_row(), name, None)
        )
        return stored or ()

    def new_entries(self, name: str, given: Iterable[str] | None) -> list[str]:
        """Returns the given entries of a list that the updated row has not."""
        stored = frozenset(self.stored_entries(name))
        return [each for each in given or () if each not in stored]

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise ValidationError("Must be a JSON object.")
        unknown = [name for name in data if name not in self.fields]
        if unknown:
            raise ValidationError({name[:100]: ["Unknown field."] for name in unknown[:10]})
        return super().to_internal_value(data)


class StringField(serializers.CharField):
    """A JSON string without control characters, neither trimmed nor converted.

    White space alone, of whatever width, is refused where an empty text is, unless ``allow_space``.
    ``pattern`` is that of the document, where the texts have another form; ``""`` for none.
    """

    default_error_messages = {"invalid": "Must be a string."}

    def __init__(
        self, *, allow_space: bool = False, pattern: str | None = None, **kwargs: Any
    ) -> None:
        self.allow_space = allow_space
        kwargs.setdefault("trim_whitespace", False)
        kwargs.setdefault("max_length", 255)
        super().__init__(**kwargs)
        own = _ANY_LINE if self.allow_blank or allow_space else _SEEN_LINE
        self.pattern = own if pattern is None else pattern

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        if CONTROL_CHARACTERS.search(data):
            raise ValidationError("Must not contain control characters.")
        if INVISIBLE.fullmatch(data) and not (self.allow_blank or self.allow_space):
            raise ValidationError("Must not be white space alone.")
        return data


class TrackingField(StringField):
    """A tracking string: any text without NUL and without white space at its ends."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("min_length", 1)
        kwargs.setdefault("max_length", 512)
        kwargs.setdefault("pattern", _TRIMMED)
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
    """A string of a closed list."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str) or data not in self.choices:
            raise ValidationError(f"Must be one of: {', '.join(map(str, self.choices))}.")
        return data


class UUIDField(serializers.UUIDField):
    """A UUID in its usual spelling; Python would accept others."""

    default_error_messages = {"invalid": "Must be a UUID."}

    def to_internal_value(self, data: Any) -> Any:
        value = parse_uuid(data) if isinstance(data, str) else None
        if value is None:
            self.fail("invalid")
        return value


class IntegerField(serializers.IntegerField):
    """A JSON integer; ``"5"``, ``5.0`` and ``true`` are not integers."""

    default_error_messages = {"invalid": "Must be an integer."}

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, int) or isinstance(data, bool):
            self.fail("invalid")
        return super().to_internal_value(data)


@extend_schema_field({"type": "number", "minimum": 0, "maximum": _MAX_DOLLARS})
class DollarsField(serializers.Field[int, Any, float, Any]):
    """A JSON number of USD, at least 0, as integer nano-USD; refused unless it is exact."""

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


@extend_schema_field({"type": "number"})
class NumberField(serializers.FloatField):
    """A JSON number; ``"5"`` and ``true`` are not numbers."""

    default_error_messages = {"invalid": "Must be a number."}

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, int | float | Decimal) or isinstance(data, bool):
            self.fail("invalid")
        try:
            number = float(data)
        except OverflowError:  # an integer of more than 308 digits
            number = math.inf if data > 0 else -math.inf
        return super().to_internal_value(number)


class ClosedObjectField(serializers.DictField):
    """An object whose members have names of a closed list."""

    def __init__(self, *, names: Iterable[str], **options: Any) -> None:
        super().__init__(**options)
        self._names = frozenset(names)

    def to_internal_value(self, data: Any) -> Any:
        unknown = data.keys() - self._names if isinstance(data, dict) else ()
        if unknown:
            raise ValidationError({str(name): ["Unknown field."] for name in sorted(unknown)})
        return super().to_internal_value(data)


class InstantField(serializers.DateTimeField):
    """An ISO 8601 moment; seconds and the offset from UTC are required.

    Of nanoseconds, which other languages write, the microseconds stay.
    """

    def to_internal_value(self, value: Any) -> datetime:
        if not isinstance(value, str) or not _INSTANT.fullmatch(value):
            raise ValidationError(
                "Must be a moment with seconds and time zone, such as 2030-01-31T12:00:00Z."
            )
        try:
            return datetime.fromisoformat(value).astimezone(UTC)
        except (ValueError, OverflowError):
            raise ValidationError("Is not a moment of the calendar.") from None


def make_serializer(
    shape: type[msgspec.Struct], name: str, fields: Mapping[str, Any] | None = None
) -> type[StrictSerializer]:
    """Returns the strict serializer of a struct, all of whose members are optional and nullable.

    ``name`` is that of the component in the document; those of the structs inside begin with it.
    ``fields`` are further fields. The struct stays the only description of its members.
    """
    info: Any = msgspec.inspect.type_info(shape)
    made = {field.encode_name: _make_field(field.type, name) for field in info.fields}
    text = (shape.__doc__ or "").replace("``", "`")
    found = type(name, (StrictSerializer,), {**made, **(fields or {}), "__doc__": text})
    decorate = extend_schema_serializer(component_name=name)
    return decorate(found)


def _make_field(kind: Any, name: str, **given: Any) -> Any:
    """Returns the field of a member by its type."""
    optional = given or {"required": False, "allow_null": True}
    match kind:
        case msgspec.inspect.UnionType(types=types):
            [inner] = [each for each in types if not isinstance(each, msgspec.inspect.NoneType)]
            return _make_field(inner, name, **given)
        case msgspec.inspect.StructType(cls=inner):
            return make_serializer(inner, f"{name}{inner.__name__}")(**optional)
        case msgspec.inspect.BoolType():
            return FlagField(**optional)
        case msgspec.inspect.IntType(ge=least, le=most):
            return IntegerField(min_value=least, max_value=most, **optional)
        case msgspec.inspect.FloatType(ge=least, le=most):
            return NumberField(min_value=least, max_value=most, **optional)
        case msgspec.inspect.LiteralType(values=values):
            return ChoiceField(choices=values, **optional)
        case msgspec.inspect.VarTupleType(item_type=inner):
            child = _make_field(inner, name, required=True)
            most = len(getattr(inner, "values", ())) or None
            return serializers.ListField(child=child, max_length=most, **optional)
        case msgspec.inspect.DictType(key_type=keys, value_type=inner):
            child = _make_field(inner, name, required=True)
            return ClosedObjectField(names=getattr(keys, "values", ()), child=child, **optional)
        case msgspec.inspect.StrType(min_length=least, max_length=most):
            return StringField(min_length=least, max_length=most, **optional)
    raise TypeError(f"no field describes {kind}")
