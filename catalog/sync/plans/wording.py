"""Names the columns of a plan, and writes their values: prices in USD per million tokens."""

from __future__ import annotations

import re
from decimal import Context, Decimal
from typing import Final

from catalog.pricing.rules import KIND_OF_KEY, KINDS
from config.api.text import plain_digits
from config.console.formatting import LONGEST, NOTHING, dollars

RATES: Final = "pricing."
ESTIMATE: Final = "estimate."
_EXACT: Final = Context(prec=80)
_PER_MILLION: Final = 6
_SHOWN: Final = 120
# Where requests go: the ends of these tell as much as their beginnings.
_WHOLE: Final = frozenset(("base_url", "upstream_model_id"))
# The rates of the contract's pricing object, and what lines bill.
_RATE_LABELS: Final = {
    "prompt": "Prompt",
    "completion": "Completion",
    "input_cache_read": "Cache read",
    "input_cache_write": "Cache write",
    "input_cache_write_1h": "Cache write for an hour",
    "audio": "Audio in the prompt",
    "audio_output": "Spoken audio",
    "input_audio_cache": "Cached audio",
    "internal_reasoning": "Reasoning",
    "reasoning": "Reasoning",
    "cached": "Cached tokens",
    "image_token": "Tokens of generated images",
    "image": "Image in the prompt",
    "image_output": "Generated image",
    "request": "Request",
    "web_search": "Search",
    "search": "Search",
    "second": "Second",
    "character": "Character",
    "discount": "Discount",
}
_LABELS: Final = {
    "base_url": "Base URL",
    "bound.prompt": "Most tokens that the provider adds",
    "datacenters": "Countries of data centres",
    "declared_zdr": "Declared ZDR",
    "is_listed": "Listed",
    "is_moderated": "Moderated",
    "max_completion_tokens": "Largest completion",
    "retains_prompts": "Keeps prompts",
    "slug": "Public name",
    "uncharged": "Cannot be charged",
    "upstream_model_id": "Upstream model",
    "trains_on_prompts": "Trains on prompts",
    "zdr": "Zero data retention",
}
_COUNTS: Final = frozenset(
    ("context_length", "max_completion_tokens", "requests_per_minute", "tokens_per_minute")
)
_CONDITION: Final = re.compile(r"(?:^| )(?:above [0-9]|from [0-9]{4} to|on [a-z]+day)")
_SIZE: Final = re.compile(r"above ([0-9]+)")
_HOURS: Final = re.compile(r"from ([0-9]{2})([0-9]{2}) to ([0-9]{2})([0-9]{2}) UTC")


def describe_column(column: str) -> str:
    """Returns the name of a column, with the variant and the conditions of a rate."""
    if column.startswith(ESTIMATE):
        return f"Factor of estimated tokens, {column.removeprefix(ESTIMATE)}"
    if not column.startswith(RATES):
        return _LABELS.get(column) or column.replace("_", " ").capitalize()
    base, _, rest = column.removeprefix(RATES).partition(" ")
    label = _RATE_LABELS.get(base, base)
    found = _CONDITION.search(rest)
    variant = rest if found is None else rest[: found.start()]
    if variant:
        label = f"{_RATE_LABELS.get(base, base) if base != 'image' else 'Generated image'}, "
        label += variant.replace("_", " ")
    conditions = rest[len(variant) :].strip()
    conditions = _SIZE.sub(lambda match: f"above {int(match[1]):,} prompt tokens", conditions)
    conditions = _HOURS.sub(r"from \1:\2 to \3:\4 UTC", conditions)
    return f"{label}, {conditions}" if conditions else label


def describe_value(column: str, value: str | None) -> str:
    """Returns a value as people read it, with its unit; a dash for none."""
    if value is None:
        return NOTHING
    if column.startswith(RATES):
        return _describe_rate(column, value)
    if column in _COUNTS and value.isdecimal():
        return f"{int(value):,}"
    return value


def find_limit(column: str) -> int:
    """Returns the number of characters of a value that a plan shows."""
    return LONGEST if column in _WHOLE else _SHOWN


def _describe_rate(column: str, value: str) -> str:
    base, _, rest = column.removeprefix(RATES).partition(" ")
    try:
        amount = Decimal(value)
    except ArithmeticError:
        return value
    if base == "discount":
        return f"{plain_digits(amount * 100)} %"
    unit = find_unit(base, rest.partition(" ")[0])
    if unit == "token":
        return f"{dollars(_EXACT.scaleb(amount, _PER_MILLION))} per million"
    return f"{dollars(amount)} per {unit}"


def find_unit(name: str, variant: str = "") -> str:
    """Returns the unit of a key of the pricing object, or of a billable and its variant."""
    if (kind := KIND_OF_KEY.get(name)) is not None:
        return kind.unit
    kinds = [kind for kind in KINDS if kind.billable == name]
    named = [kind for kind in kinds if kind.variant == variant]
    return next((kind.unit for kind in (*named, *kinds)), "unit")
