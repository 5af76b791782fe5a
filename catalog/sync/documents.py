"""Reads the document of a public price list: bounded JSON with exact decimals; pure."""

from __future__ import annotations

import codecs
import json
import re
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, NoReturn

from config.api.scanning import BoundExceeded, Bounds, DuplicateKey, scan
from config.api.text import plain_digits

MAX_ROWS: Final = 20_000
# Ten times the largest list of today, which has 4,500 models in 3 MB.
_BOUNDS: Final = Bounds(depth=20, containers=500_000, members=MAX_ROWS, values=3_000_000)
_MAX_NUMBER: Final = 64
# The zero of a decimal of 128 bits may be written 0E-6176.
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?")
_EXACT: Final = Context(prec=100)
# A stored rate has at most 30 decimals and is below 1,000,000.
_DECIMALS: Final = 30
_DIGITS: Final = 6


class UnreadableList(Exception):
    """A document that is not a price list of its source; the message is ours and safe to show."""


class InvalidRow(Exception):
    """A row that cannot be used, while the others can; the message is ours and safe to show."""


def read_json(data: bytes) -> dict[str, Any]:
    """Returns the JSON object of a document, as :func:`read_value` does."""
    document = read_value(data)
    if not isinstance(document, dict):
        raise UnreadableList("The list is not a JSON object.")
    return document


def read_value(data: bytes) -> Any:
    """Returns the JSON value of a document; its fractions are decimals, digit by digit.

    A byte order mark is left out. Raises :class:`UnreadableList`, also for a document that would
    cost too much to decode.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        scan(data, _BOUNDS)
        return json.loads(
            data.decode(),
            parse_float=_read_decimal,
            parse_int=_read_integer,
            parse_constant=_refuse_constant,
        )
    except (BoundExceeded, DuplicateKey) as exc:
        raise UnreadableList(f"The list cannot be read: it has {exc}.") from None
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise UnreadableList("The list is not JSON.") from None


def _read_decimal(text: str) -> Decimal:
    _require_short(text)
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond those of Decimal
        raise UnreadableList("The list has a number that is out of range.") from None


def _read_integer(text: str) -> int:
    _require_short(text)
    return int(text)


def _require_short(text: str) -> None:
    if len(text) > _MAX_NUMBER:
        raise UnreadableList(f"The list has a number of more than {_MAX_NUMBER} characters.")


def _refuse_constant(name: str) -> NoReturn:
    raise UnreadableList(f"The list has {name} for a number.")


def rate_text(value: Any, *, per: int = 0) -> str:
    """Returns a rate as plain decimal digits, exactly: ``0.0000015`` for ``1.5e-06``.

    ``per`` is the power of ten of the units that the value is for: 6 for USD per million. Raises
    :class:`InvalidRow` for anything that is not a rate.
    """
    if isinstance(value, str) and len(value) <= _MAX_NUMBER and _NUMBER.fullmatch(value):
        value = Decimal(value)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise InvalidRow("is not a number")
    number = Decimal(value)
    if not number.is_finite():
        raise InvalidRow("is not a number")
    if number < 0:
        raise InvalidRow("is negative")
    if not number:
        return "0"
    # The size is checked before the digits are written out: 1e999999 would have a million of them.
    if number.adjusted() - per >= _DIGITS:
        raise InvalidRow("is 1,000,000 or more")
    exact = number.scaleb(-per, _EXACT).normalize(_EXACT)
    # The smallest numbers would become 0.
    if not exact or -int(exact.as_tuple().exponent) > _DECIMALS:
        raise InvalidRow(f"has more than {_DECIMALS} decimals")
    return plain_digits(exact)
