"""Says what a transition will do to the traffic, before an operator confirms it.

The traffic is that of the last hour. Where its requests would go instead is what routing itself
selects for the busiest keys. Everything is bounded: rows, keys, and the time that routing takes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from accounts.models import ApiKey, Organization
from config.api.errors import GatewayError
from config.api.text import parse_uuid
from config.clocks.clock import clock
from config.console.formatting import short_dollars
from config.server.regions import GLOBAL
from endpoints.models import PrivateEndpoint
from inference.admission.explain import explain
from inference.faces.explaining import BODIES, read_request
from inference.models import Generation

_SPAN: Final = timedelta(hours=1)
_MOST_ROWS: Final = 10_000
_MOST_ROUTES: Final = 5
_MOST_SECONDS: Final = 1.0

_COLUMNS: Final = (
    "api_key_id", "model", "operation", "cost_nano", "prompt_tokens", "completion_tokens",
)  # fmt: skip

_RATES: Final = ("prompt", "completion", "request")
_NOBODY: Final = UUID(int=0)
_Route = tuple[UUID, str, str]
"""The key, the model and the operation of requests."""


def foresee_key(object_id: str) -> list[str]:
    """Returns what happens when a key is paused or revoked."""
    key = (
        ApiKey.objects.select_related("organization")
        .filter(pk=parse_uuid(object_id) or _NOBODY)
        .first()
    )
    if key is None:
        return []
    return [
        f"The key {key} of {key.organization}.",
        _describe_traffic(_read({"api_key": key})),
        "Such requests will get 401.",
    ]


def foresee_suspension(object_id: str) -> list[str]:
    """Returns what happens when an organization is suspended."""
    found = Organization.objects.filter(pk=parse_uuid(object_id) or _NOBODY).first()
    if found is None:
        return []
    rows = _read({"organization": found})
    keys = len({row["api_key_id"] for row in rows})
    return [
        f"The organization {found}.",
        f"{_describe_traffic(rows)} {_count(keys, 'key')} sent them.",
        "Such requests will get 403 and the reason.",
    ]


def foresee_endpoint(object_id: str) -> list[str]:
    """Returns what happens when a private endpoint is disabled or removed."""
    found = (
        PrivateEndpoint.objects.select_related("organization", "model", "price")
        .filter(pk=parse_uuid(object_id) or _NOBODY)
        .first()
    )
    if found is None:
        return []
    rows = _read({"organization": found.organization_id, "private_endpoint": found.pk})
    return [
        f"The endpoint {found} of {found.organization}.",
        _describe_traffic(rows),
        *_foresee_routes(rows, found),
    ]


def _read(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the latest generations of the last hour."""
    rows = Generation.objects.created(clock.now() - _SPAN).filter(**columns)
    return list(rows.order_by("-created_at").values(*_COLUMNS)[:_MOST_ROWS])


def _describe_traffic(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "It had no requests in the last hour."
    spent = short_dollars(sum(row["cost_nano"] for row in rows))
    more = "at least " if len(rows) == _MOST_ROWS else ""
    return f"It had {more}{_count(len(rows), 'request')} in the last hour, for {spent}."


def _foresee_routes(rows: Sequence[dict[str, Any]], endpoint: PrivateEndpoint) -> list[str]:
    """Returns a sentence for each of the busiest routes through an endpoint."""
    routes: dict[_Route, list[dict[str, Any]]] = {}
    for row in rows:
        route = (row["api_key_id"], row["model"], row["operation"])
        routes.setdefault(route, []).append(row)
    busiest = sorted(routes, key=lambda route: -len(routes[route]))[:_MOST_ROUTES]
    keys = ApiKey.objects.select_related("organization", "creator").in_bulk(
        {key_id for key_id, _, _ in busiest}
    )
    ends_at = time.monotonic() + _MOST_SECONDS
    found: list[str] = []
    told = 0
    for route in busiest:
        if time.monotonic() > ends_at:
            break
        key, count = keys.get(route[0]), len(routes[route])
        told += count
        if key is not None and key.is_usable:
            fate = _foresee_route(key, route, routes[route], endpoint)
            found.append(f"{_count(count, 'request')} of the key {key.name}: {fate}")
    if (rest := len(rows) - told) > 0:
        found.append(f"{_count(rest, 'more request')} of other keys and models were not looked at.")
    return found


def _foresee_route(
    key: ApiKey, route: _Route, rows: Sequence[dict[str, Any]], endpoint: PrivateEndpoint
) -> str:
    """Returns where such requests would go without an endpoint, by the routing of the key."""
    _, model, operation = route
    if operation not in BODIES:
        return "they may go elsewhere or get 404."
    body = json.dumps({"model": model, **BODIES[operation]}).encode()
    try:
        found = explain(key, read_request(operation, body), region=GLOBAL)["candidates"]
    except GatewayError as exc:
        return f"they are refused already: {exc.message}"
    others = [each for each in found if each["endpoint_id"] != str(endpoint.pk)]
    if not others:
        return "nothing else may serve them; they will get 404."
    first = others[0]
    rates = {name: endpoint.price.price.text(name) for name in _RATES}
    now, then = _price(rows, rates), _price(rows, first["price"])
    change = f", price {(then - now) / now:+.0%}" if now else ""
    paid = "a credential of the organization" if first["is_byok"] else "credits"
    return f"they will go to {first['provider']} ({first['model']}), paid by {paid}{change}."


def _price(rows: Sequence[dict[str, Any]], texts: Mapping[str, str]) -> Decimal:
    """Returns what the tokens of requests cost at plain rates, in USD."""
    rates = {name: Decimal(texts[name]) for name in _RATES}
    prompt = sum(row["prompt_tokens"] or 0 for row in rows)
    completion = sum(row["completion_tokens"] or 0 for row in rows)
    return (
        prompt * rates["prompt"] + completion * rates["completion"] + len(rows) * rates["request"]
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
