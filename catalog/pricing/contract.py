"""Reads and writes prices as JSON: the contract's pricing object, and the lines beside it.

The object says most of a price in sixteen keys. ``lines`` say the rest, for instance the price of
an image by size and quality, of a second or of a character, or any rate under conditions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Annotated, Any, Final

import msgspec

from catalog.pricing.price import ONE, ZERO, Price, list_charges, nano_usd, usd
from catalog.pricing.rules import (
    COLUMNS,
    DAYS,
    KIND_OF,
    KIND_OF_KEY,
    KINDS,
    Billable,
    Conditions,
    Rule,
    find_condition_problems,
    find_conflicts,
    find_rule_problem,
)
from catalog.pricing.usage import Usage
from config.api.text import CONTROL_CHARACTERS, plain_digits

DECIMAL: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,30})?")
MAX_OVERRIDES: Final = 32
MAX_LINES: Final = 256
_DISCOUNT_STEP: Final = Decimal("1e-10")
# No provider sells an image for less: a smaller rate is the price of a token of an image.
CHEAPEST_IMAGE: Final = Decimal("0.0005")
_PLACE: Final = {kind.name: place for place, kind in enumerate(KINDS)}
_CONDITIONS: Final = ("min_prompt_tokens", "utc_start", "utc_end", "utc_days")

Rate = Annotated[str, msgspec.Meta(max_length=64)]
_Day = Annotated[str, msgspec.Meta(max_length=16)]
_Days = Annotated[list[_Day], msgspec.Meta(max_length=7)]


class InvalidPricing(ValueError):
    """A price that cannot be accepted; ``problems`` name each wrong member and the reason."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{path}: {text}" for path, text in problems))


class _Window(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The conditions of a price, as JSON has them."""

    min_prompt_tokens: int | None = None
    utc_start: int | None = None
    utc_end: int | None = None
    utc_days: _Days | None = None

    def read(self) -> Conditions:
        days = None if self.utc_days is None else tuple(sorted(self.utc_days, key=_day_order))
        return Conditions(self.min_prompt_tokens, self.utc_start, self.utc_end, days)


class Override(_Window, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Prices of the pricing object under conditions."""

    prompt: Rate | None = None
    completion: Rate | None = None
    input_cache_read: Rate | None = None
    input_cache_write: Rate | None = None
    input_cache_write_1h: Rate | None = None
    audio: Rate | None = None
    input_audio_cache: Rate | None = None


class Pricing(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The contract's pricing object: USD per unit as decimal text; null means absent."""

    prompt: Rate
    completion: Rate
    image: Rate | None = None
    request: Rate | None = None
    input_cache_read: Rate | None = None
    input_cache_write: Rate | None = None
    input_cache_write_1h: Rate | None = None
    internal_reasoning: Rate | None = None
    audio: Rate | None = None
    audio_output: Rate | None = None
    input_audio_cache: Rate | None = None
    image_token: Rate | None = None
    image_output: Rate | None = None
    web_search: Rate | None = None
    discount: Decimal | None = None
    overrides: Annotated[list[Override], msgspec.Meta(max_length=MAX_OVERRIDES)] | None = None


class Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A rule that the pricing object cannot say.

    ``most`` bounds the units of one answer that no request bounds, for instance unasked searches.
    """

    billable: Annotated[str, msgspec.Meta(max_length=64)]
    unit: Annotated[str, msgspec.Meta(max_length=64)]
    price: Rate
    variant: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    conditions: _Window | None = None
    most: int | None = None


Lines = Annotated[list[Line], msgspec.Meta(max_length=MAX_LINES)]


def read_price(pricing: Pricing, lines: Sequence[Line] = ()) -> Price:
    """Returns the price that JSON states; raises :class:`InvalidPricing`."""
    reader = _Reader()
    stated: list[tuple[str, Rule]] = []
    for key, kind in KIND_OF_KEY.items():
        place = f"pricing.{key}"
        if (amount := reader.read_rate(place, getattr(pricing, key))) is None:
            continue
        if key == "image_output" and 0 < amount < CHEAPEST_IMAGE:
            reader.add(place, "is the price of one image; that of a token is image_token")
        stated.append((place, Rule(kind.billable, kind.unit, amount, kind.variant)))
    for index, override in enumerate(pricing.overrides or ()):
        stated += reader.read_override(f"pricing.overrides[{index}]", override)
    for index, line in enumerate(lines):
        stated += reader.read_line(f"lines[{index}]", line)
    discount = reader.read_discount("pricing.discount", pricing.discount)
    for wrong, other, reason in find_conflicts([rule for _, rule in stated]):
        reader.add(stated[wrong][0], f"{reason} {stated[other][0]}; leave one of them out")
    reader.raise_if_any()
    columns: dict[str, Decimal] = {"image": ZERO, "request": ZERO}
    rules = []
    for _, rule in stated:
        named = KIND_OF.get(rule.name)
        if rule.conditions is None and named is not None and named.column:
            columns[named.column] = rule.price
        else:
            rules.append(rule)
    rates: dict[str, Any] = {**columns, "discount": discount}
    return Price(**rates, rules=_sort_rules(rules))


class _Reader:
    """Collects what is wrong with the members of a price while they are read."""

    def __init__(self) -> None:
        self._problems: list[tuple[str, str]] = []

    def add(self, path: str, text: str) -> None:
        self._problems.append((path, text))

    def raise_if_any(self) -> None:
        if self._problems:
            raise InvalidPricing(self._problems)

    def read_rate(self, path: str, text: str | None) -> Decimal | None:
        if text is None:
            return None
        if not DECIMAL.fullmatch(text):
            self.add(path, "must be a decimal such as 0.0000005, below 1000000")
            return None
        return Decimal(text)

    def read_discount(self, path: str, discount: Decimal | None) -> Decimal:
        if discount is None:
            return ZERO
        if not (discount.is_finite() and 0 <= discount <= ONE):
            self.add(path, "must be a number from 0 to 1")
        elif discount != discount.quantize(_DISCOUNT_STEP):
            self.add(path, "must have at most 10 decimals")
        return discount

    def read_override(self, path: str, override: Override) -> Iterable[tuple[str, Rule]]:
        conditions = self._read_conditions(path, override)
        keys = [key for key in override.__struct_fields__ if key not in _CONDITIONS]
        if all(getattr(override, key) is None for key in keys):
            self.add(path, "has no price")
        for key in keys:
            amount = self.read_rate(f"{path}.{key}", getattr(override, key))
            if amount is not None:
                kind = KIND_OF_KEY[key]
                rule = Rule(kind.billable, kind.unit, amount, kind.variant, conditions)
                yield f"{path}.{key}", rule

    def read_line(self, path: str, line: Line) -> Iterable[tuple[str, Rule]]:
        amount = self.read_rate(f"{path}.price", line.price)
        conditions = None
        if line.conditions is not None:
            conditions = self._read_conditions(f"{path}.conditions", line.conditions)
        if line.billable not in set(Billable):
            self.add(f"{path}.billable", f"must be one of {', '.join(Billable)}")
            return
        billable, variant = Billable(line.billable), line.variant or ""
        if CONTROL_CHARACTERS.search(variant):
            self.add(f"{path}.variant", "must not contain control characters")
            return
        if (billable, variant, line.unit) == (Billable.IMAGE, "", "token"):
            # The tokens of a generated image.
            billable, variant = Billable.COMPLETION, "image"
        rule = Rule(billable, line.unit, amount or ZERO, variant, conditions, line.most or 0)
        if (wrong := find_rule_problem(rule)) is not None:
            self.add(f"{path}.{wrong[0]}", wrong[1])
        elif amount is not None:
            yield path, rule

    def _read_conditions(self, path: str, window: _Window) -> Conditions:
        conditions = window.read()
        for member, reason in find_condition_problems(conditions):
            self.add(f"{path}.{member}" if member else path, reason)
        return conditions


def render_pricing(price: Price) -> dict[str, Any]:
    """Returns the contract's pricing object of a price; ``overrides`` are plain dictionaries."""
    pricing: dict[str, Any] = {
        kind.key: price.text(column)
        for column, kind in COLUMNS.items()
        if getattr(price, column) is not None
    }
    if not price.rules and not price.discount:
        return pricing
    for rule in price.rules:
        if rule.conditions is None and rule.kind.name == rule.name and rule.kind.key:
            pricing[rule.kind.key] = plain_digits(rule.price)
    if price.discount:
        pricing["discount"] = float(price.discount)
    conditional = [rule for rule in price.rules if _is_override(rule)]
    overrides = [
        {
            **_render_conditions(conditions),
            **{rule.kind.key: plain_digits(rule.price) for rule in group},
        }
        for conditions, group in groupby(conditional, lambda rule: rule.conditions)
    ]
    if overrides:
        pricing["overrides"] = overrides
    return pricing


def render_lines(price: Price) -> list[dict[str, Any]]:
    """Returns the rules that the pricing object cannot say."""
    return [
        {
            "billable": str(rule.billable),
            "unit": rule.unit,
            **({"variant": rule.variant} if rule.variant else {}),
            "price": plain_digits(rule.price),
            **({"most": rule.most} if rule.most else {}),
            **(
                {}
                if rule.conditions is None
                else {"conditions": _render_conditions(rule.conditions)}
            ),
        }
        for rule in price.rules
        if not _is_override(rule)
        and not (rule.conditions is None and rule.kind.name == rule.name and rule.kind.key)
    ]


def _render_conditions(conditions: Conditions | None) -> dict[str, Any]:
    members: dict[str, Any] = msgspec.to_builtins(conditions)
    if "utc_days" in members:
        members["utc_days"] = list(members["utc_days"])
    return members


def describe_conditions(conditions: Conditions | None) -> str:
    """Returns conditions as a person reads them; empty without any."""
    if conditions is None:
        return ""
    parts = []
    if conditions.min_prompt_tokens is not None:
        parts.append(f"above {conditions.min_prompt_tokens:,} prompt tokens")
    if conditions.utc_days is not None:
        parts.append(", ".join(day.capitalize() for day in conditions.utc_days))
    if conditions.utc_start is not None and conditions.utc_end is not None:
        start, end = (
            f"{time // 100:02d}:{time % 100:02d}"
            for time in (conditions.utc_start, conditions.utc_end)
        )
        parts.append(f"{start} to {end}")
    if conditions.has_time:
        parts[-1] += " UTC"
    return "; ".join(parts)


def describe_charges(price: Price, usage: Usage, at: int) -> list[dict[str, Any]]:
    """Returns what each rule charges for a usage, as JSON; amounts are in USD."""
    return [
        {
            "billable": str(charge.kind.billable),
            "unit": charge.kind.unit,
            **({"variant": charge.variant} if charge.variant else {}),
            "quantity": float(charge.quantity) if charge.quantity % 1 else int(charge.quantity),
            "price": plain_digits(charge.rate),
            "cost": usd(nano_usd(charge.cost)),
        }
        for charge in list_charges(price, usage, at)
    ]


def _is_override(rule: Rule) -> bool:
    return rule.conditions is not None and rule.name in KIND_OF and rule.kind.is_overridable


def _sort_rules(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Returns rules in the one order that equal prices share.

    Of rules with conditions, a later one wins, so only neighbours with equal conditions are sorted.
    """
    plain = [rule for rule in rules if rule.conditions is None]
    overrides = [rule for rule in rules if _is_override(rule)]
    others = [rule for rule in rules if rule.conditions is not None and not _is_override(rule)]
    ordered = sorted(plain, key=_rule_order)
    for part in (overrides, others):
        for _, group in groupby(part, lambda rule: rule.conditions):
            ordered += sorted(group, key=_rule_order)
    return tuple(ordered)


def _rule_order(rule: Rule) -> tuple[int, str]:
    return _PLACE[rule.kind.name], rule.variant


def _day_order(day: str) -> tuple[int, str]:
    return (DAYS.index(day) if day in DAYS else len(DAYS)), day
