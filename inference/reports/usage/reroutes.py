"""Foresees where requests would go without some endpoints, by routing the busiest ones again."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from accounts.models import ApiKey
from catalog.pricing import Price
from config.api.errors import GatewayError
from inference.admission.explain import Explainer
from inference.faces.explaining import BODIES, read_request

Row = dict[str, Any]
"""The columns of a generation by their names."""
_Route = tuple[UUID, str, str]
"""The key, the model and the operation of requests."""
_MOST_ROUTES: Final = 10
_MOST_SECONDS: Final = 1.0
_RATES: Final = ("prompt", "completion", "request")
_NOWHERE: Final = "nothing else may serve them; they will get 404."
_UNKNOWN: Final = "they may go elsewhere or get 404."
_TOO_MUCH: Final = (
    "Where they would go instead is not known: the rules of their keys cannot be read in two "
    "seconds."
)


@dataclass(slots=True)
class _Fate:
    """What happens to the requests of some routes, and what they cost before and then."""

    keys: dict[UUID, str] = field(default_factory=dict)
    requests: int = 0
    now: Decimal = Decimal(0)
    then: Decimal = Decimal(0)

    def describe(self, text: str) -> str:
        names = list(self.keys.values())
        whose = f"the key {names[0]}" if len(names) == 1 else count_noun(len(names), "key")
        change = f", price {(self.then - self.now) / self.now:+.0%}." if self.now else ""
        end = change or ("" if text.endswith(".") else ".")
        return f"{count_noun(self.requests, 'request')} of {whose}: {text}{end}"


@dataclass(frozen=True, slots=True)
class Rules:
    """The keys of the busiest requests, and an explainer that has read all rules of theirs."""

    routes: Mapping[_Route, Sequence[Row]]
    keys: Mapping[UUID, ApiKey]
    explainer: Explainer


def read_rules(rows: Sequence[Row]) -> Rules | None:
    """Reads the rules of the busiest requests, those of all organizations together."""
    if not rows:
        return None
    routes: dict[_Route, list[Row]] = {}
    for row in rows:
        route = (row["api_key_id"], row["model"], row["operation"])
        routes.setdefault(route, []).append(row)
    busiest = sorted(routes, key=lambda route: -len(routes[route]))[:_MOST_ROUTES]
    explainer = Explainer()
    keys = explainer.load({key_id for key_id, _, _ in busiest})
    return Rules({route: routes[route] for route in busiest}, keys, explainer)


def foresee_routes(
    rows: Sequence[Row],
    rules: Rules | None,
    endpoints: Collection[UUID],
    *,
    price: Price | None = None,
) -> list[str]:
    """Returns a sentence for each fate of the busiest requests once the endpoints are gone.

    ``rules`` are those of the rows; ``None`` took too long to read. ``price`` is what the requests
    cost now, by default what the first of these endpoints costs.
    """
    if not rows:
        return []
    if rules is None:
        return [_TOO_MUCH]
    ends_at = time.monotonic() + _MOST_SECONDS
    gone, told = {str(each) for each in endpoints}, 0
    fates: dict[str, _Fate] = {}
    for route, sent in rules.routes.items():
        if time.monotonic() > ends_at:
            break
        key = rules.keys.get(route[0])
        told += len(sent)
        if key is not None and key.is_usable:
            _add_fate(fates, rules.explainer, key, route, sent, gone, price)
    found = [fate.describe(text) for text, fate in fates.items()]
    if (rest := len(rows) - told) > 0:
        text = count_noun(rest, "more request")
        found.append(f"{text} of other keys and models were not looked at.")
    return found


def _add_fate(
    fates: dict[str, _Fate],
    explainer: Explainer,
    key: ApiKey,
    route: _Route,
    rows: Sequence[Row],
    gone: Collection[str],
    price: Price | None,
) -> None:
    """Routes such a request as its key would now, and adds what is left for it."""
    text, now, then = _route_again(explainer, key, route, rows, gone, price)
    fate = fates.setdefault(text, _Fate())
    fate.keys[key.pk] = key.name
    fate.requests += len(rows)
    fate.now += now
    fate.then += then


def _route_again(
    explainer: Explainer,
    key: ApiKey,
    route: _Route,
    rows: Sequence[Row],
    gone: Collection[str],
    price: Price | None,
) -> tuple[str, Decimal, Decimal]:
    """Returns where such requests would go, and what they cost now and there, in USD."""
    nothing = Decimal(0)
    _, model, operation = route
    if operation not in BODIES:
        return _UNKNOWN, nothing, nothing
    body = json.dumps({"model": model, **BODIES[operation]}).encode()
    try:
        found = explainer.list_candidates(key, read_request(operation, body), region=None)
    except GatewayError as exc:
        return f"they are refused already: {exc.message}", nothing, nothing
    others = [each for each in found if each["endpoint_id"] not in gone]
    if not others:
        return _NOWHERE, nothing, nothing
    first = others[0]
    paid = "a credential of the organization" if first["is_byok"] else "credits"
    text = f"they will go to {first['provider']} ({first['model']}), paid by {paid}"
    if price is not None:
        rates: Mapping[str, str] | None = {name: price.text(name) for name in _RATES}
    else:
        rates = next((each["price"] for each in found if each["endpoint_id"] in gone), None)
    if rates is None:
        return text, nothing, nothing
    return text, _price(rows, rates), _price(rows, first["price"])


def _price(rows: Iterable[Row], texts: Mapping[str, str]) -> Decimal:
    """Returns what the tokens of requests cost at plain rates, in USD."""
    rates = {name: Decimal(texts[name]) for name in _RATES}
    return sum(
        (
            (row["prompt_tokens"] or 0) * rates["prompt"]
            + (row["completion_tokens"] or 0) * rates["completion"]
            + rates["request"]
            for row in rows
        ),
        Decimal(0),
    )


def count_noun(number: int, noun: str) -> str:
    """Returns a number with its noun: ``1 key``, ``1,200 keys``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
