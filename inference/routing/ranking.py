"""Ranks the endpoints of a request in the order in which they are tried; pure.

The sort key has nine members. A smaller member comes first, and a later member decides only
between endpoints whose earlier members are equal:

====  ===================  =====================================================================
 No.  Member               Meaning
====  ===================  =====================================================================
   1  misses_preference    1 for an endpoint that is known to miss ``preferred_max_latency`` or
                           ``preferred_min_throughput``, or that is down while either is set
   2  model_position       the place of the model in the request; 0 for every model when ``sort``
                           has the partition ``none``
   3  order_position       the place of the provider in ``order``; behind the last place when
                           ``order`` does not name it
   4  is_down              1 when the circuit is open or a rate limit holds
   5  is_public            0 for a private endpoint
   6  priority             the highest priority of a private endpoint first
   7  tier                 0 healthy or to be probed, 1 degraded, 2 down
   8  measure              price, latency, throughput or failure share, by ``sort``; without a
                           ``sort``, a draw weighted by price, or that of :class:`PoolDraw`.
                           The price of text is a rate, any other the most that it can cost
   9  endpoint_id          keeps the order of equals the same everywhere
====  ===================  =====================================================================

An endpoint that ``order`` names keeps its place however healthy it is: member 1 is 0 for it, and
its health decides only between those of one place. Without fallbacks a private endpoint that is
down still comes before public endpoints.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from catalog.abilities import NO_POOL
from catalog.operations import OPERATIONS
from catalog.pricing import Price
from inference.requests.parsing import InferenceRequest
from inference.requests.schemas import Percentiles, ProviderPreferences, Sorting
from inference.routing.health import Health, HealthState
from inference.routing.routes import Candidate, Route, RoutingDefaults

# The sort that a variant of the model's name asks for.
_VARIANT_SORTS: Final = {"nitro": "throughput", "floor": "price", "exacto": "exacto"}
_DOWN: Final = 2
_TIERS: Final = {
    HealthState.HEALTHY: 0,
    HealthState.HALF_OPEN: 0,
    HealthState.DEGRADED: 1,
    HealthState.RATE_LIMITED: _DOWN,
    HealthState.OPEN: _DOWN,
}
# After a failed probe a request falls back to another candidate. Without fallbacks the failed probe
# would fail the request, so a half-open endpoint counts as down.
_TIERS_ALONE: Final = {**_TIERS, HealthState.HALF_OPEN: _DOWN}
_MILLISECONDS: Final = 1000
# The weight of a private endpoint that states none.
_WEIGHT: Final = 100
# One more than the count of eight-byte numbers, so that a drawn number lies between 0 and 1.
_DRAWN_NUMBERS: Final = 2**64 + 1


class Contender(NamedTuple):
    """An endpoint to rank: its first candidate, and how the request names its model."""

    candidate: Candidate
    model_position: int
    variants: frozenset[str]


def draw_seed(request: InferenceRequest, owner: uuid.UUID, seed: int | None) -> bytes | None:
    """Returns the key of the request's weighted draw; ``None`` asks for the cheapest first.

    A session's key depends only on its name and owner: every worker draws the same order without
    a table of sessions, and only the sessions of an endpoint that disappears move to another.
    """
    if request.session_id is not None:
        return blake2b(request.session_id.encode(), key=owner.bytes, digest_size=8).digest()
    return None if seed is None else (seed % 2**64).to_bytes(8, "big")


def _sort_of(variants: frozenset[str]) -> str | None:
    """Returns the sort that the variants of a name ask for, of several the first of the table."""
    return next((sort for name, sort in _VARIANT_SORTS.items() if name in variants), None)


def is_down(health: Health, *, may_fall_back: bool) -> bool:
    """Returns whether an endpoint should be tried only after those that work."""
    return (_TIERS if may_fall_back else _TIERS_ALONE)[health.state] == _DOWN


def mixes_models(preferences: ProviderPreferences) -> bool:
    """Returns whether an endpoint of a later model may come before those of an earlier one."""
    return (
        _is_one_partition(preferences)
        or preferences.preferred_max_latency is not None
        or preferences.preferred_min_throughput is not None
    )


def _is_one_partition(preferences: ProviderPreferences) -> bool:
    sort = preferences.sort
    is_pool = isinstance(sort, Sorting) and sort.partition == "none" and sort.by is not None
    return is_pool and not preferences.order


class Ranking:
    """Makes the sort keys of one request's endpoints."""

    __slots__ = (
        "_default_sort", "_health_of", "_is_one_partition", "_is_session", "_latency",
        "_may_fall_back", "_order", "_pools", "_seed", "_sort", "_throughput", "_unwritten",
    )  # fmt: skip

    def __init__(
        self,
        request: InferenceRequest,
        defaults: RoutingDefaults,
        health_of: Callable[[uuid.UUID], Health],
        seed: bytes | None,
    ) -> None:
        preferences = request.preferences
        sort = preferences.sort
        if isinstance(sort, Sorting):
            sort = sort.by
        self._is_one_partition = sort is not None and _is_one_partition(preferences)
        self._sort: str | None = sort
        # A session should stay at its endpoint, so it is drawn rather than sorted by default.
        self._order = [name.lower() for name in preferences.order or ()]
        is_sorted = request.session_id is None and not self._order
        self._default_sort = defaults.provider_sort if is_sorted else None
        self._health_of = health_of
        self._seed = seed
        self._is_session = request.session_id is not None
        self._pools: PoolDraw | None = None
        latency, throughput = (
            preferences.preferred_max_latency,
            preferences.preferred_min_throughput,
        )
        self._latency = () if latency is None else _thresholds(latency)
        self._throughput = () if throughput is None else _thresholds(throughput)
        self._may_fall_back = preferences.allow_fallbacks is not False
        # The request, if its answer is no text: it may be priced by the piece.
        self._unwritten = None if OPERATIONS[request.operation].is_written else request

    def draw_pools(
        self, contenders: Iterable[Contender], running_of: Callable[[Route], int]
    ) -> None:
        """Draws private endpoints by their weights, unless the request has a ``sort``."""
        self._pools = PoolDraw(contenders, running_of, self._seed, is_session=self._is_session)

    def sort_key(self, contender: Contender) -> tuple[Any, ...]:
        """Returns the sort key of an endpoint; the module's docstring explains its members."""
        candidate, model_position, variants = contender
        route, health_of = candidate.route, self._health_of
        health = candidate.health(health_of) if candidate.is_byok else health_of(candidate.subject)
        tier = (_TIERS if self._may_fall_back else _TIERS_ALONE)[health.state]
        order_position = self._find_in_order(route) if self._order else 0
        is_named = order_position < len(self._order)
        is_down = tier == _DOWN and (self._may_fall_back or not route.is_private)
        misses_preference = False
        if (self._latency or self._throughput) and not is_named:
            misses_preference = is_down or self._misses_preference(health)
        if self._is_one_partition:
            model_position = 0
        return (
            misses_preference,
            model_position,
            order_position,
            is_down,
            not route.is_private,
            -(route.pool.priority or 0),
            tier,
            self._measure(route, health, variants),
            route.endpoint_id.int,
        )

    def _find_in_order(self, route: Route) -> int:
        return min(
            (self._order.index(name) for name in route.provider_names if name in self._order),
            default=len(self._order),
        )

    def _measure(self, route: Route, health: Health, variants: frozenset[str]) -> tuple[Any, ...]:
        """Returns the measures to sort by; an unknown measure comes last, and price decides."""
        sort: str | None = None
        if not self._order:
            sort = self._sort or (_sort_of(variants) if variants else None)
        if sort is None and route.is_private and self._pools is not None:
            return self._pools.measure(route)
        sort = sort or self._default_sort
        price = route.price.of_text
        if self._unwritten is not None:
            price = _find_most(self._unwritten, route.price)
        if sort is None and self._seed is not None:
            return _draw(self._seed, route.endpoint_id.bytes, float(price))
        if sort == "latency":
            return (_median(health.latency, math.inf), price)
        if sort == "throughput":
            return (-_median(health.throughput, 0.0), price)
        if sort == "exacto":
            return (health.failure_share, -_median(health.throughput, 0.0), price)
        return (price,)

    def _misses_preference(self, health: Health) -> bool:
        """Returns whether an endpoint is known to be slower than the request prefers."""
        latency, throughput = health.latency, health.throughput
        return (
            latency is not None
            and any(latency[name] > most * _MILLISECONDS for name, most in self._latency)
        ) or (
            throughput is not None
            and any(throughput[name] < least for name, least in self._throughput)
        )


class PoolDraw:
    """Draws between the private endpoints of a model by their weights.

    Endpoints of the same weight are drawn as one, and the least busy of them comes first. A
    session draws each endpoint by itself, however busy, so that it stays at its own while that is
    available: prompt caches are there.
    """

    def __init__(
        self,
        contenders: Iterable[Contender],
        running_of: Callable[[Route], int],
        seed: bytes | None,
        *,
        is_session: bool,
    ) -> None:
        self._running_of = running_of
        self._seed = seed
        self._is_session = is_session
        routes = (contender.candidate.route for contender in contenders)
        self._counts = Counter(_place_of(route) for route in routes if route.is_private)

    def measure(self, route: Route) -> tuple[float, float, float]:
        """Returns the place of an endpoint within its priority; the lowest comes first."""
        place, weight = _place_of(route), weight_of(route)
        share = weight * self._counts[place]
        if self._seed is None:
            return (-share, self._running_of(route), 0)
        own, _ = _draw(self._seed, route.endpoint_id.bytes, 1)
        if self._is_session:
            return (own / weight, 0, 0)
        drawn, _ = _draw(self._seed, repr(place).encode(), 1)
        return (drawn / share, self._running_of(route), own)


def weight_of(route: Route) -> int:
    """Returns the weight of an endpoint among those of its priority."""
    return route.pool.weight or _WEIGHT


def _place_of(route: Route) -> tuple[str, int, int, bool]:
    """Returns what endpoints have in common that are drawn as one; some have no count."""
    is_counted = route.pool != NO_POOL
    return route.model_slug, route.pool.priority or 0, weight_of(route), is_counted


def _find_most(request: InferenceRequest, price: Price) -> Decimal:
    """Returns the most that a request whose answer is no text can cost at a price, in USD."""
    output = (request.max_tokens or 0) * request.choices
    return price.find_most(request.prompt_bound, output, request.allowed, images=request.images)


def _thresholds(preferred: float | Percentiles) -> Sequence[tuple[str, float]]:
    """Returns the thresholds by percentile; a plain number is that of the median."""
    if not isinstance(preferred, Percentiles):
        return (("p50", preferred),)
    named = ((name, getattr(preferred, name)) for name in preferred.__struct_fields__)
    return tuple((name, value) for name, value in named if value is not None)


def _median(measured: Mapping[str, float] | None, otherwise: float) -> float:
    return otherwise if measured is None else measured["p50"]


def _draw(seed: bytes, name: bytes, price: float) -> tuple[float, float]:
    """Draws an endpoint's place, lowest first, with a weight of one over its price squared.

    Each endpoint draws an exponential waiting time at the rate of its weight. Sorting by waiting
    time is a weighted draw without replacement, and because each endpoint draws its own number,
    the others keep their order when one disappears. Free endpoints come first.
    """
    number = int.from_bytes(blake2b(name, key=seed, digest_size=8).digest(), "big")
    waited = -math.log((number + 1) / _DRAWN_NUMBERS)
    return (waited * price * price, waited)
