"""Prices: what a usage costs, by rules, exactly; pure.

``usage`` counts, ``rules`` say what is billed, ``price`` is a list of rules, ``rates`` compiles
them, ``sizes`` knows the sizes of pictures, and ``contract`` reads and writes prices as JSON.
"""

from catalog.pricing.price import (
    MOST_NANO,
    NANO,
    RATES,
    Charge,
    Costs,
    Price,
    UnknownRule,
    cost_nano,
    dump_rules,
    list_charges,
    load_rules,
    nano_usd,
    round_scaled,
    scale_rate,
    split_cost,
    usd,
)
from catalog.pricing.rules import Billable, Conditions, Rule
from catalog.pricing.usage import Usage
