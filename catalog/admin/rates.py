"""Shows the rules of a price to people: per million tokens, with their conditions."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.utils.html import format_html_join

from catalog.pricing import RATES, Price
from catalog.pricing.contract import describe_conditions
from catalog.pricing.rules import COLUMNS
from config.api.text import plain_digits
from config.console.formatting import dollars, per_million, render_table


def render_rates(version: Any) -> str:
    """Renders the rates of a price version; one that is not set is left out."""
    rows = (
        (name.replace("_", " "), _write(rate, COLUMNS[name].unit))
        for name in RATES
        if (rate := getattr(version, name)) is not None
    )
    return format_html_join("", "<div>{}: {}</div>", rows)


def _write(rate: Decimal, unit: str) -> str:
    return f"{per_million(rate)} per million" if unit == "token" else f"{dollars(rate)} per {unit}"


def render_rules(price: Price) -> str:
    """Renders the discount and the rules of a price as a table."""
    rows = [
        (
            f"{rule.billable}, {rule.variant.replace('_', ' ')}" if rule.variant else rule.billable,
            _write(rule.price, rule.unit),
            describe_conditions(rule.conditions) or "always",
        )
        for rule in price.rules
    ]
    if price.discount:
        rows.append(("discount", f"{plain_digits(price.discount * 100)} % of every rate", "always"))
    return render_table(("Rate", "Price", "When"), rows, empty="None.")
