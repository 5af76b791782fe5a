"""Query parameters: each value is read without conversion, or refused with a 400 that names it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from typing import Any, ClassVar, Final
from uuid import UUID

from django import forms
from django.core import exceptions as django
from django.http import QueryDict
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from config.api.text import CONTROL_CHARACTERS, CONTROLS, NOT_STORABLE, parse_uuid

MAX_LIST: Final = 100
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_MOST: Final = 10**18 - 1
# The document describes decimals as doubles, and every integer up to this one is a double.
_LARGEST: Final = 10**15
# Some clients write a small number as 1e-05.
_NUMBER: Final = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,2})?")


class QueryParameter(forms.Field):
    """A query parameter. Its value is :attr:`absent` unless the parameter is sent.

    An empty parameter counts as sent; Django's own form fields treat it as absent.
    """

    schema: Mapping[str, Any] = {"type": "string"}
    absent: ClassVar[Any] = None

    def clean(self, value: str | None) -> Any:
        return self.absent if value is None else self.parse(value)

    def parse(self, text: str) -> Any:
        """Returns the value of a sent parameter; raises Django's ``ValidationError``."""
        raise NotImplementedError


class TextParameter(QueryParameter):
    """A text without control characters."""

    schema = {"type": "string", "pattern": f"^[^{CONTROLS}]*$"}

    def parse(self, text: str) -> str:
        if CONTROL_CHARACTERS.search(text):
            raise django.ValidationError("Must not contain control characters.")
        return text


class TrackingParameter(QueryParameter):
    """A tracking string, which may contain any character that PostgreSQL stores."""

    schema = {"type": "string", "pattern": r"^[^\u0000]*$"}

    def parse(self, text: str) -> str:
        if NOT_STORABLE.search(text):
            raise django.ValidationError("Must not contain NUL.")
        return text


class FlagParameter(QueryParameter):
    """``true`` or ``false``; absent is false."""

    schema = {"type": "boolean"}
    absent: ClassVar[bool | None] = False

    def parse(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise django.ValidationError("Must be true or false.")
        return text == "true"


class StateParameter(FlagParameter):
    """``true`` or ``false``; absent is neither."""

    absent = None


class IntegerParameter(QueryParameter):
    """An integer between two bounds, written in at most 18 digits."""

    def __init__(self, *, minimum: int = 0, maximum: int | None = None, **kwargs: Any) -> None:
        self.minimum, self.maximum = minimum, maximum
        most = _MOST if maximum is None else maximum
        self.schema = {"type": "integer", "minimum": minimum, "maximum": most}
        super().__init__(**kwargs)

    def parse(self, text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise django.ValidationError("Must be an integer.")
        number = int(text)
        if number < self.minimum or (self.maximum is not None and number > self.maximum):
            bounds = f"at least {self.minimum}"
            if self.maximum is not None:
                bounds = f"from {self.minimum} to {self.maximum}"
            raise django.ValidationError(f"Must be {bounds}.")
        return number


class OffsetParameter(IntegerParameter):
    """The number of rows to skip; one that is absent or empty is 0."""

    absent = 0

    def parse(self, text: str) -> int:
        return super().parse(text) if text else 0


class DecimalParameter(QueryParameter):
    """An exact number, at least 0."""

    def __init__(self, *, maximum: int = _LARGEST, **kwargs: Any) -> None:
        self.maximum = maximum
        self.schema = {"type": "number", "format": "double", "minimum": 0, "maximum": maximum}
        super().__init__(**kwargs)

    def parse(self, text: str) -> Decimal:
        if not _NUMBER.fullmatch(text):
            raise django.ValidationError("Must be a number, at least 0.")
        number = Decimal(text)
        if number > self.maximum:
            raise django.ValidationError(f"Must be from 0 to {self.maximum}.")
        return number


class UUIDParameter(QueryParameter):
    """A UUID."""

    schema = {"type": "string", "format": "uuid"}

    def parse(self, text: str) -> UUID:
        value = parse_uuid(text)
        if value is None:
            raise django.ValidationError("Must be a UUID.")
        return value


class ChoiceParameter(QueryParameter):
    """One of a closed list of words."""

    def __init__(self, *, choices: Collection[str], **kwargs: Any) -> None:
        self.choices = choices
        super().__init__(**kwargs)

    def parse(self, text: str) -> str:
        if text not in self.choices:
            raise django.ValidationError(f"Must be one of: {', '.join(self.choices)}.")
        return text


class ListParameter(TextParameter):
    """From 1 to ``MAX_LIST`` items separated by commas; ``words`` limits the accepted items.

    Blanks around items are ignored.
    """

    def __init__(self, *, words: Collection[str] | None = None, **kwargs: Any) -> None:
        self.words = words
        item = f"[^,{CONTROLS}]*[^, {CONTROLS}][^,{CONTROLS}]*"
        if words is not None:
            item = f" *(?:{'|'.join(words)}) *"
        self.schema = {"type": "string", "pattern": f"^{item}(?:,{item}){{0,{MAX_LIST - 1}}}$"}
        super().__init__(**kwargs)

    def parse(self, text: str) -> Any:
        items = [item.strip() for item in super().parse(text).split(",")]
        if self.words is not None and not set(items) <= set(self.words):
            raise django.ValidationError(f"Must contain only {', '.join(self.words)}.")
        if "" in items or len(items) > MAX_LIST:
            raise django.ValidationError(f"Must be 1 to {MAX_LIST} items, separated by commas.")
        return items


def require_single(sent: QueryDict, names: Iterable[str]) -> None:
    """Raises a 400 that names the parameters that are sent twice: one of the values would win."""
    if repeated := [name for name in names if len(sent.getlist(name)) > 1]:
        raise ValidationError({name: ["Must be sent once."] for name in repeated})


def read_parameter(request: Request, name: str, parameter: QueryParameter) -> Any:
    """Returns the value of one query parameter; raises a 400 that names it."""
    require_single(request.query_params, [name])
    try:
        return parameter.clean(request.query_params.get(name))
    except django.ValidationError as exc:
        raise ValidationError({name: exc.messages}) from None
