"""The first island: who may send what, decided and stored for a whole batch before any dispatch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
import psycopg

from accounts.authentication import require_usable
from accounts.models import LimitReset
from accounts.policy import Policy
from catalog.pricing import decimal_text, usd
from config.errors import Conflict, Forbidden, GatewayError, Unauthenticated, Unavailable
from config.secrets import hash_end_user
from inference.models import new_generation_id
from inference.routing import Candidate, Plan, plan
from inference.schemas import InferenceRequest
from inference.snapshots import Snapshots
from inference.store import Store

_AUTHORITY: Final = """
SELECT k.digest, k.id, k.organization_id, k.workspace_id, k.is_management, k.disabled, k.expires_at,
       o.routing_version, COALESCE((SELECT version FROM catalog_catalogversion), 0),
       k.limit_nano, k.limit_reset, k.include_byok_in_limit
FROM accounts_apikey k JOIN accounts_organization o ON o.id = k.organization_id
WHERE k.digest = ANY(%s)
"""

# Asked for keys with a limit alone; reads their generations since the last reset.
_SPENT: Final = """
SELECT k.id, (
    SELECT COALESCE(sum(g.cost_nano + CASE WHEN k.byok AND g.is_byok THEN g.upstream_cost_nano
                                           ELSE 0 END), 0)
    FROM inference_generation g WHERE g.api_key_id = k.id AND g.created_at >= k.since
)
FROM unnest(%s::uuid[], %s::timestamptz[], %s::bool[]) AS k(id, since, byok)
"""

# One JSON text for the whole batch: a fraction of what an array for each column costs to build.
# What was decided a moment ago is stored only while it is still true: an endpoint whose disabling
# has been acknowledged starts nothing more.
# The ids are random: a conflict is this statement's own first try, whose answer was lost.
_OPEN: Final = """
INSERT INTO inference_generation (
    id, organization_id, workspace_id, api_key_id, end_user, operation, streamed, model,
    private_endpoint_id, model_endpoint_id, provider_name, price_id, is_byok, attestation_id,
    created_at, request_id, status, is_estimated, cost_nano, upstream_cost_nano, attempts
)
SELECT v.id, v.organization_id, v.workspace_id, v.api_key_id, v.end_user, v.operation, v.streamed,
       v.model, v.private_endpoint_id, v.model_endpoint_id, v.provider_name, v.price_id, v.is_byok,
       v.attestation_id, v.created_at, v.request_id, 'pending', false, 0, 0, '[]'::jsonb
FROM json_to_recordset(%s::json) AS v(
    id text, organization_id uuid, workspace_id uuid, api_key_id uuid, end_user text,
    operation text, streamed bool, model text, private_endpoint_id uuid, model_endpoint_id uuid,
    provider_name text, price_id bigint, is_byok bool, attestation_id bigint,
    created_at timestamptz, request_id text, routing_version bigint, catalog_version bigint
)
JOIN accounts_organization o
  ON o.id = v.organization_id AND o.routing_version = v.routing_version
JOIN accounts_apikey k ON k.id = v.api_key_id AND NOT k.disabled
WHERE v.catalog_version = COALESCE((SELECT version FROM catalog_catalogversion), 0)
ON CONFLICT (id) DO UPDATE SET request_id = EXCLUDED.request_id
RETURNING id
"""

_REPIN: Final = """
UPDATE inference_generation g
SET private_endpoint_id = %s, model_endpoint_id = %s, provider_name = %s, price_id = %s,
    is_byok = %s, attestation_id = %s, model = %s
FROM accounts_organization o, accounts_apikey k
WHERE g.id = %s AND g.status = 'pending'
  AND o.id = g.organization_id AND o.routing_version = %s
  AND k.id = g.api_key_id AND NOT k.disabled
  AND COALESCE((SELECT version FROM catalog_catalogversion), 0) = %s
RETURNING g.id
"""

# A change at every try is no accident; the caller may try again.
_TRIES: Final = 5
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that waits for admission."""

    key_digest: str
    request: InferenceRequest
    request_id: str


@dataclass(slots=True)
class Admission:
    """An admitted request: its generation is stored, and its first candidate's price is pinned."""

    generation_id: str
    organization_id: UUID
    workspace_id: UUID
    key_id: UUID
    plan: Plan
    user: str | None
    created_at: datetime
    routing_version: int
    catalog_version: int


@dataclass(frozen=True, slots=True)
class _Authority:
    key_id: UUID
    organization_id: UUID
    workspace_id: UUID
    is_management: bool
    disabled: bool
    expires_at: datetime | None
    routing_version: int
    catalog_version: int
    limit_nano: int | None
    limit_reset: str | None
    include_byok_in_limit: bool


class LimitSpent(Forbidden):
    """What the key may spend is spent: until its limit is reset, or raised."""


class AdmissionIsland:
    """Admits batches with two statements: one reads all authority, one stores all generations."""

    def __init__(self) -> None:
        self._store = Store()
        # Fallback is rare: it has a connection of its own, so that it never waits for a batch.
        self._repins = Store()
        self._repinning = asyncio.Lock()
        self._snapshots = Snapshots()

    async def close(self) -> None:
        await self._store.close()
        await self._repins.close()

    async def admit(self, batch: list[Entry]) -> Sequence[Admission | BaseException]:
        """Returns an admission, or the error that refuses it, for each entry in order.

        Keys, their state and the versions of all that routing knows are read here, so that a
        revocation or a disabled endpoint counts from the next request on. What changes between
        reading and storing is decided again.
        """
        results: list[Admission | BaseException] = [Unavailable() for _ in batch]
        waiting = list(range(len(batch)))
        for _ in range(_TRIES):
            decided = await self._admit([batch[index] for index in waiting])
            for index, result in zip(waiting, decided, strict=True):
                if result is not None:
                    results[index] = result
            waiting = [
                index for index, result in zip(waiting, decided, strict=True) if result is None
            ]
            if not waiting:
                break
        return results

    async def _admit(self, batch: list[Entry]) -> list[Admission | BaseException | None]:
        """Reads, decides and stores once; ``None`` where what was decided held no more."""
        rows = await self._store.execute(_AUTHORITY, [list({entry.key_digest for entry in batch})])
        authorities = {row[0]: _Authority(*row[1:]) for row in rows}
        spent = await self._spent(authorities.values())
        results: list[Admission | BaseException | None] = []
        for entry in batch:
            try:
                results.append(await self._decide(entry, authorities.get(entry.key_digest), spent))
            except GatewayError as exc:
                results.append(exc)
        admitted = [
            (index, entry, result)
            for index, (entry, result) in enumerate(zip(batch, results, strict=True))
            if isinstance(result, Admission)
        ]
        stored: set[str] = set()
        try:
            stored = await self._open([(entry, admission) for _, entry, admission in admitted])
        except psycopg.Error:
            # What one of them points at was deleted a moment ago: it alone is refused.
            for index, entry, admission in admitted:
                try:
                    stored |= await self._open([(entry, admission)])
                except psycopg.Error:
                    results[index] = Conflict("What this request needs was just removed.")
        for index, _, admission in admitted:
            if results[index] is admission and admission.generation_id not in stored:
                results[index] = None
        return results

    async def repin(self, admission: Admission, candidate: Candidate) -> bool:
        """Moves a generation, and the price it will pay, to the next candidate before dispatch.

        Returns ``False``, and changes nothing, when the key, the organization's endpoints and
        credentials or the catalogue changed since the candidates were found.
        """
        route = candidate.route
        parameters = [
            route.endpoint_id if route.is_private else None,
            None if route.is_private else route.endpoint_id,
            route.facts.provider_name,
            route.price_id,
            candidate.is_byok,
            route.attestation_id,
            route.model_slug,
            admission.generation_id,
            admission.routing_version,
            admission.catalog_version,
        ]
        async with self._repinning:
            return bool(await self._repins.execute(_REPIN, parameters))

    async def _spent(self, authorities: Iterable[_Authority]) -> dict[UUID, int]:
        """Returns what counts against the limits of the keys that have one.

        Leaves them out when it cannot be read in time: that is no reason to refuse other keys.
        """
        now = datetime.now(UTC)
        limited = [authority for authority in authorities if authority.limit_nano is not None]
        if not limited:
            return {}
        columns = [
            [authority.key_id for authority in limited],
            [_counted_since(authority, now) for authority in limited],
            [authority.include_byok_in_limit for authority in limited],
        ]
        try:
            return {row[0]: int(row[1]) for row in await self._store.execute(_SPENT, columns)}
        except Unavailable:
            return {}

    async def _decide(
        self, entry: Entry, authority: _Authority | None, spent: Mapping[UUID, int]
    ) -> Admission:
        if authority is None:
            raise Unauthenticated("The API key is not valid.")
        require_usable(disabled=authority.disabled, expires_at=authority.expires_at)
        if authority.is_management:
            raise Forbidden("Management keys cannot call inference; use an inference key.")
        if authority.limit_nano is not None:
            _require_left(authority, authority.limit_nano, spent.get(authority.key_id))
        snapshot = await self._snapshots.catalog(authority.catalog_version)
        own = await self._snapshots.organization(
            authority.organization_id, authority.routing_version, authority.catalog_version
        )
        request = entry.request
        decided = plan(
            request,
            snapshot=snapshot,
            own=own,
            workspace_id=authority.workspace_id,
            key_digest=entry.key_digest,
            policy=Policy(),
        )
        return Admission(
            generation_id=new_generation_id(),
            organization_id=authority.organization_id,
            workspace_id=authority.workspace_id,
            key_id=authority.key_id,
            plan=decided,
            user=None
            if request.user is None
            else hash_end_user(str(authority.organization_id), request.user),
            created_at=datetime.now(UTC),
            routing_version=authority.routing_version,
            catalog_version=authority.catalog_version,
        )

    async def _open(self, admitted: list[tuple[Entry, Admission]]) -> set[str]:
        """Stores the generations whose decision still holds, and returns their ids."""
        if not admitted:
            return set()
        rows = await self._store.execute(
            _OPEN, [_encode([_row(entry, admission) for entry, admission in admitted]).decode()]
        )
        return {row[0] for row in rows}


def _counted_since(authority: _Authority, now: datetime) -> datetime:
    if authority.limit_reset is None:
        return datetime.min.replace(tzinfo=UTC)
    return LimitReset(authority.limit_reset).began_at(now)


def _require_left(authority: _Authority, limit: int, spent: int | None) -> None:
    """Raises :class:`LimitSpent` unless something is left of the limit.

    What is under way is not known yet: the requests that run when a limit is reached exceed it by
    what they cost.
    """
    if spent is None:
        raise Unavailable
    if spent < limit:
        return
    text = f"The key has spent its limit of ${decimal_text(Decimal(limit).scaleb(-9))}"
    resets_at = None
    if authority.limit_reset is not None:
        moment = LimitReset(authority.limit_reset).ends_at(datetime.now(UTC))
        resets_at = moment.isoformat().replace("+00:00", "Z")
        text += f"; it is reset at {resets_at}"
    budget = {
        "scope": "key_limit",
        "limit_usd": usd(limit),
        "spend_usd": usd(spent),
        "resets_at": resets_at,
    }
    raise LimitSpent(f"{text}.", metadata={"budget": budget})


def _row(entry: Entry, admission: Admission) -> dict[str, Any]:
    candidate = admission.plan.candidates[0]
    route = candidate.route
    return {
        "id": admission.generation_id,
        "organization_id": admission.organization_id,
        "workspace_id": admission.workspace_id,
        "api_key_id": admission.key_id,
        "end_user": entry.request.user,
        "operation": entry.request.operation.value,
        "streamed": entry.request.stream,
        "model": route.model_slug,
        "private_endpoint_id": route.endpoint_id if route.is_private else None,
        "model_endpoint_id": None if route.is_private else route.endpoint_id,
        "provider_name": route.facts.provider_name,
        "price_id": route.price_id,
        "is_byok": candidate.is_byok,
        "attestation_id": route.attestation_id,
        "created_at": admission.created_at,
        "request_id": entry.request_id,
        "routing_version": admission.routing_version,
        "catalog_version": admission.catalog_version,
    }
