"""Shows the rules of a price to people: per million tokens, with their conditions."""

from __future__ import annotations

from catalog.pricing import Price
from catalog.pricing.contract import describe_conditions
from config.console.formatting import dollars, per_million, plain_digits, render_table


def render_rules(price: Price) -> str:
    """Renders the discount and the rules of a price as a table."""
    rows = [
        (
            f"{rule.billable}, {rule.variant.replace('_', ' ')}" if rule.variant else rule.billable,
            f"{per_million(rule.price)} per million"
            if rule.unit == "token"
            else f"{dollars(rule.price)} per {rule.unit}",
            describe_conditions(rule.conditions) or "always",
        )
        for rule in price.rules
    ]
    if price.discount:
        rows.append(("discount", f"{plain_digits(price.discount * 100)} % of every rate", "always"))
    return render_table(("Rate", "Price", "When"), rows, empty="None.")
