"""The first island: who may send what, decided and stored for a whole batch before any dispatch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec
import psycopg

from accounts.authentication import require_usable
from accounts.policy import Policy
from config.errors import Conflict, Forbidden, GatewayError, Unauthenticated
from config.secrets import hash_end_user
from inference.models import new_generation_id
from inference.routing import Candidate, Plan, plan
from inference.schemas import InferenceRequest
from inference.snapshots import Snapshots
from inference.store import Store

_AUTHORITY: Final = """
SELECT k.digest, k.id, k.organization_id, k.workspace_id, k.is_management, k.disabled, k.expires_at,
       o.routing_version, COALESCE((SELECT version FROM catalog_catalogversion), 0)
FROM accounts_apikey k JOIN accounts_organization o ON o.id = k.organization_id
WHERE k.digest = ANY(%s)
"""

# One JSON text for the whole batch: a fraction of what an array for each column costs to build.
# The ids are random: a conflict is this statement's own first try, whose answer was lost.
_OPEN: Final = """
INSERT INTO inference_generation (
    id, organization_id, workspace_id, api_key_id, end_user, operation, streamed, model,
    private_endpoint_id, model_endpoint_id, provider_name, price_id, is_byok, attestation_id,
    created_at, request_id, status, is_estimated, cost_nano, upstream_cost_nano, attempts
)
SELECT *, 'pending', false, 0, 0, '[]'::jsonb FROM json_to_recordset(%s::json) AS v(
    id text, organization_id uuid, workspace_id uuid, api_key_id uuid, end_user text,
    operation text, streamed bool, model text, private_endpoint_id uuid, model_endpoint_id uuid,
    provider_name text, price_id bigint, is_byok bool, attestation_id bigint,
    created_at timestamptz, request_id text
)
ON CONFLICT (id) DO NOTHING
"""

_REPIN: Final = """
UPDATE inference_generation
SET private_endpoint_id = %s, model_endpoint_id = %s, provider_name = %s, price_id = %s,
    is_byok = %s, attestation_id = %s, model = %s
WHERE id = %s AND status = 'pending'
"""


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
        revocation or a disabled endpoint counts from the next request on.
        """
        rows = await self._store.execute(_AUTHORITY, [list({entry.key_digest for entry in batch})])
        authorities = {row[0]: _Authority(*row[1:]) for row in rows}
        results: list[Admission | BaseException] = []
        for entry in batch:
            try:
                results.append(await self._decide(entry, authorities.get(entry.key_digest)))
            except GatewayError as exc:
                results.append(exc)
        admitted = [
            (index, entry, result)
            for index, (entry, result) in enumerate(zip(batch, results, strict=True))
            if isinstance(result, Admission)
        ]
        try:
            await self._open([(entry, admission) for _, entry, admission in admitted])
        except psycopg.Error:
            # What one of them points at was deleted a moment ago: it alone is refused.
            for index, entry, admission in admitted:
                try:
                    await self._open([(entry, admission)])
                except psycopg.Error:
                    results[index] = Conflict("What this request needs was just removed.")
        return results

    async def repin(self, generation_id: str, candidate: Candidate) -> None:
        """Moves a generation, and the price it will pay, to the next candidate before dispatch."""
        route = candidate.route
        parameters = [
            route.endpoint_id if route.is_private else None,
            None if route.is_private else route.endpoint_id,
            route.facts.provider_name,
            route.price_id,
            candidate.is_byok,
            route.attestation_id,
            route.model_slug,
            generation_id,
        ]
        async with self._repinning:
            await self._repins.execute(_REPIN, parameters)

    async def _decide(self, entry: Entry, authority: _Authority | None) -> Admission:
        if authority is None:
            raise Unauthenticated("The API key is not valid.")
        require_usable(disabled=authority.disabled, expires_at=authority.expires_at)
        if authority.is_management:
            raise Forbidden("Management keys cannot call inference; use an inference key.")
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
        )

    async def _open(self, admitted: list[tuple[Entry, Admission]]) -> None:
        if not admitted:
            return
        await self._store.execute(
            _OPEN, [_encode([_row(entry, admission) for entry, admission in admitted]).decode()]
        )


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
    }
