"""Amounts of tokens in base units."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from django.db import models


class UnitsField(models.DecimalField):  # type: ignore[type-arg]
    """An integer of up to 256 bits, as token contracts use them."""

    _pyi_private_set_type: int
    _pyi_private_get_type: int  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "max_digits": 90, "decimal_places": 0})

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        name, path, args, kwargs = super().deconstruct()
        del kwargs["max_digits"], kwargs["decimal_places"]
        return name, path, args, kwargs

    def from_db_value(
        self, value: Decimal | None, expression: object, connection: object
    ) -> int | None:
        return None if value is None else int(value)


def token_text(units: int, decimals: int, symbol: str) -> str:
    """Returns base units as an amount of whole tokens with all its decimals."""
    whole, rest = divmod(units, 10**decimals)
    return f"{whole}.{rest:0{decimals}d} {symbol}"
