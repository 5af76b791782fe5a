"""The price of a private endpoint as JSON: two strings, or all keys of the pricing object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from catalog.pricing import Price
from catalog.pricing.contract import (
    InvalidPricing,
    Line,
    Lines,
    Pricing,
    Rate,
    read_price,
    render_pricing,
)

# The interface's own names of two keys of the pricing object.
_SHORT_NAMES: Final = {"cache_read": "input_cache_read", "cache_write": "input_cache_write"}


class EndpointPricing(Pricing, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The contract's pricing object, in which the two cache rates may have their short names."""

    cache_read: Rate | None = None
    cache_write: Rate | None = None


def read_endpoint_price(pricing: EndpointPricing, lines: Sequence[Line] = ()) -> Price:
    """Returns the price that JSON states; raises :class:`InvalidPricing`."""
    members = {
        name: getattr(pricing, name)
        for name in pricing.__struct_fields__
        if name not in _SHORT_NAMES
    }
    problems = []
    for short, name in _SHORT_NAMES.items():
        if (rate := getattr(pricing, short)) is None:
            continue
        if members[name] is not None:
            problems.append((f"pricing.{short}", f"is {name} too; leave one of them out"))
        members[name] = rate
    if problems:
        raise InvalidPricing(problems)
    try:
        return read_price(Pricing(**members), lines)
    except InvalidPricing as exc:
        found = [(_shorten(path, pricing), text) for path, text in exc.problems]
        raise InvalidPricing(found) from None


def render_endpoint_pricing(price: Price) -> dict[str, Any]:
    """Returns the pricing object of a private endpoint.

    Prices of images in a prompt and of requests are left out while they are zero, as the interface
    has it.
    """
    pricing = render_pricing(price)
    for name in ("image", "request"):
        if pricing[name] == "0":
            del pricing[name]
    for short, name in _SHORT_NAMES.items():
        if name in pricing:
            pricing[short] = pricing.pop(name)
    return pricing


def decode_endpoint_price(pricing: Any, lines: Any) -> Price:
    """Returns the price of a decoded body; raises :class:`InvalidPricing` with the wrong member."""
    form = _convert(pricing, EndpointPricing, "pricing")
    rules = _convert([] if lines is None else lines, Lines, "lines")
    return read_endpoint_price(form, rules)


def _convert(data: Any, shape: Any, name: str) -> Any:
    try:
        return msgspec.convert(data, shape)
    except msgspec.ValidationError as exc:
        text, _, path = str(exc).partition(" - at `$")
        member = f"{name}{path.rstrip('`')}"
        rows = data[:20] if shape is Lines and isinstance(data, list) else ()
        lacking = [
            (f"lines[{index}].{field.name}", "This field is required.")
            for index, each in enumerate(rows)
            for field in msgspec.structs.fields(Line)
            if field.required and isinstance(each, dict) and field.name not in each
        ]
        raise InvalidPricing(lacking or [(member, text)]) from None


def _shorten(path: str, pricing: EndpointPricing) -> str:
    """Returns the path of a member as the caller has named it."""
    for short, name in _SHORT_NAMES.items():
        if path == f"pricing.{name}" and getattr(pricing, short) is not None:
            return f"pricing.{short}"
    return path
