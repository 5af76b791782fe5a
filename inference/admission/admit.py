"""The first island: who may send what, decided and stored for a whole batch before any dispatch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from random import getrandbits
from typing import Any, Final
from uuid import UUID

import msgspec
from django.conf import settings

from accounts.authentication import require_inference, require_usable
from accounts.policy import Policy, require_ingress_region
from billing.budgets import Budget, Reading
from config.api.errors import Conflict, GatewayError, Unauthenticated, Unavailable
from config.secrets import hash_end_user
from config.sql import load_statement
from inference.admission import governance
from inference.admission.budgets import AffordableCandidate, Budgets, StaleReading
from inference.admission.governance import WorkspaceRules
from inference.admission.snapshots import Snapshots
from inference.filters.screening import Filters, Finding, Screened, screen_at_once
from inference.models import new_generation_id
from inference.requests.schemas import InferenceRequest
from inference.routing.candidates import RoutingContext, Selection, require_candidates
from inference.routing.health import HealthTable
from inference.routing.routes import Candidate, OrganizationSnapshot
from inference.store import DataPlaneConnection, Rejected

logger = logging.getLogger(__name__)

_READ_AUTHORITY: Final = load_statement("inference", "read_authority")
_READ_METERS: Final = load_statement("inference", "read_meters")
ADMIT: Final = load_statement("inference", "admit")
_REPIN: Final = load_statement("inference", "repin")

# A change at every try is no accident; the caller may try again.
_TRIES: Final = 8
# Keys that a worker remembers, at two kilobytes each.
_REMEMBERED: Final = 5_000
_encode = msgspec.json.Encoder().encode


class AdmissionRequest(msgspec.Struct, frozen=True):
    """A request that waits for admission; ``region`` is that of the host it came to."""

    key_digest: str
    request: InferenceRequest
    request_id: str
    region: str | None = None
    http_referer: str | None = None
    app_title: str | None = None
    user_agent: str | None = None
    is_metadata_wanted: bool = False
    screened: Screened | None = None


class Admission(msgspec.Struct):
    """An admitted request: its generation and hold are stored, its first price is pinned.

    ``request`` is the request after the content filters, which is what may be sent.
    ``candidates`` are the selected candidates that can be paid, in order; the hold is the highest
    of their worst-case costs. ``probe`` is the subject that the first candidate probes, if its
    circuit is half-open: the owner of the admission records an outcome for it, or releases it.
    """

    generation_id: str
    authority: Authority
    request: InferenceRequest
    selection: Selection
    candidates: Sequence[AffordableCandidate]
    hold_nano: int
    upstream_hold_nano: int
    user: str | None
    created_at: datetime
    region: str | None
    is_metadata_wanted: bool
    findings: Sequence[Finding]
    probe: UUID | None = None


class Authority(msgspec.Struct, frozen=True):
    """What a key may do, as PostgreSQL said it.

    It holds as long as the versions do: the key's row has one of its own, who is assigned to which
    guardrail moves the organization's. What is available is known for a moment alone.
    """

    key_id: UUID
    key_version: int
    organization_id: UUID
    workspace_id: UUID
    member_id: UUID | None
    is_management: bool
    disabled: bool
    expires_at: datetime | None
    routing_version: int
    catalog_version: int
    limit_nano: int | None
    limit_reset: str | None
    include_byok_in_limit: bool
    available_nano: int
    key_guardrail_id: UUID | None
    member_guardrail_id: UUID | None

    @property
    def subjects(self) -> tuple[UUID, ...]:
        """Whose meters a generation moves."""
        if self.member_id is None:
            return self.key_id, self.workspace_id
        return self.key_id, self.workspace_id, self.member_id


@dataclass(frozen=True, slots=True)
class _Known:
    """A key's authority with what its organization decided for it."""

    authority: Authority
    own: OrganizationSnapshot
    rules: WorkspaceRules
    policy: Policy
    budgets: Sequence[Budget]
    filters: Filters


class _Memory(msgspec.Struct, frozen=True):
    """What was read for a key, and when by the database's clock."""

    authority: Authority
    readings: Mapping[UUID, Reading]
    read_at: datetime


class AdmissionStore:
    """Admits batches with one statement, which stores all that is decided while it still holds.

    What is decided rests on what was read before. For keys that were not seen yet, and where memory
    would refuse or bound a request, one statement reads all authority and another one the meters.
    """

    def __init__(self, health: HealthTable) -> None:
        self._health = health
        self._store = DataPlaneConnection()
        # Fallback is rare: it has a connection of its own, so that it never waits for a batch.
        self._repins = DataPlaneConnection()
        self._repinning = asyncio.Lock()
        self._snapshots = Snapshots()
        self._memory: OrderedDict[str, _Memory] = OrderedDict()

    async def close(self) -> None:
        await self._store.close()
        await self._repins.close()

    async def admit(self, batch: list[AdmissionRequest]) -> Sequence[Admission | BaseException]:
        """Returns an admission, or the error that refuses it, for each entry in order.

        The statement that stores compares keys, balances, budgets and the versions of all that
        routing knows, so that a revocation, a spent budget or a disabled endpoint counts from the
        next request on. What has changed since it was read is read, and decided, again.
        """
        results: list[Admission | BaseException] = [Unavailable() for _ in batch]
        waiting = list(range(len(batch)))
        for attempt in range(_TRIES):
            try:
                decided = await self._admit(
                    [batch[index] for index in waiting],
                    may_recall=attempt == 0,
                    is_last=attempt == _TRIES - 1,
                )
            except Exception as exc:
                # What was stored by then is admitted all the same: somebody has to settle it.
                for index in waiting:
                    results[index] = exc
                break
            for index, result in zip(waiting, decided, strict=True):
                if result is not None:
                    results[index] = result
            waiting = [
                index for index, result in zip(waiting, decided, strict=True) if result is None
            ]
            if not waiting:
                break
        return results

    async def _admit(
        self, batch: list[AdmissionRequest], *, may_recall: bool, is_last: bool
    ) -> list[Admission | BaseException | None]:
        """Reads or recalls, decides and stores once; ``None`` where that held no more."""
        digests = {entry.key_digest for entry in batch}
        memories = self._recalled(digests) if may_recall else None
        is_current = memories is None
        if memories is None:
            memories = await self._read(digests)
        known = {
            digest: await self._governed(memory.authority) for digest, memory in memories.items()
        }
        budgets = _budgets(memories.values(), is_current=is_current)
        results: list[Admission | BaseException | None] = []
        for entry in batch:
            try:
                results.append(await self._decide(entry, known.get(entry.key_digest), budgets))
            except StaleReading:
                results.append(None)
            except GatewayError as exc:
                results.append(exc if is_current else None)
            except Exception:
                # One request's bug must not refuse those that happen to wait beside it.
                logger.exception("a request cannot be decided")
                results.append(GatewayError())
        admitted = [
            (index, entry, result)
            for index, (entry, result) in enumerate(zip(batch, results, strict=True))
            if isinstance(result, Admission)
        ]
        stored: set[str] = set()
        try:
            stored = await self._open(
                [(entry, admission) for _, entry, admission in admitted], budgets
            )
        except Rejected:
            # What one of them points at was deleted a moment ago; or its account was paid into, and
            # PostgreSQL checks a row's constraints before it sees that its statement has locked a
            # newer one. It alone is decided again.
            unavailable: Unavailable | None = None
            for index, entry, admission in admitted:
                if unavailable is not None:
                    # Those that are stored must not wait for as long with each of the others.
                    results[index] = unavailable
                    continue
                try:
                    stored |= await self._open([(entry, admission)], budgets)
                except Unavailable as exc:
                    results[index] = unavailable = exc
                except Rejected:
                    if is_last:
                        results[index] = Conflict("What this request needs was just removed.")
        finally:
            for _, _, admission in admitted:
                if admission.probe is not None and admission.generation_id not in stored:
                    self._health.release(admission.probe)
        for index, _, admission in admitted:
            if results[index] is admission and admission.generation_id not in stored:
                results[index] = None
        return results

    async def repin(self, admission: Admission, candidate: Candidate) -> bool:
        """Moves a generation, and the price it will pay, to the next candidate before dispatch.

        The hold stays: it covers every candidate. Returns ``False``, and changes nothing, when the
        key, the organization's endpoints and credentials or the catalogue changed since the
        candidates were found.
        """
        route = candidate.route
        authority = admission.authority
        parameters = [
            admission.generation_id,
            authority.organization_id,
            authority.key_id,
            route.endpoint_id if route.is_private else None,
            None if route.is_private else route.endpoint_id,
            route.facts.provider_name,
            route.price_id,
            candidate.is_byok,
            route.attestation_id,
            route.model_slug,
            authority.routing_version,
            authority.catalog_version,
        ]
        async with self._repinning:
            return bool(await self._repins.execute(_REPIN, parameters))

    def _recalled(self, digests: Collection[str]) -> dict[str, _Memory] | None:
        """Returns what was read for these keys, unless something is missing."""
        memories: dict[str, _Memory] = {}
        for digest in digests:
            memory = self._memory.get(digest)
            if memory is None or not self._snapshots.hold(
                memory.authority.organization_id,
                memory.authority.routing_version,
                memory.authority.catalog_version,
            ):
                return None
            self._memory.move_to_end(digest)
            memories[digest] = memory
        return memories

    async def _read(self, digests: Collection[str]) -> dict[str, _Memory]:
        """Reads, and remembers, the authority of every key and the meters that it moves."""
        rows = await self._store.execute(_READ_AUTHORITY, [list(digests)])
        authorities = {digest: Authority(*columns) for digest, *columns in rows}
        readings: dict[UUID, Reading] = {}
        read_at = datetime.now(UTC)
        subjects = {subject for each in authorities.values() for subject in each.subjects}
        if subjects:
            for now, *columns in await self._store.execute(_READ_METERS, [list(subjects)]):
                reading = Reading(*columns)
                readings[reading.subject_id], read_at = reading, now.astimezone(UTC)
        for digest in digests:
            self._memory.pop(digest, None)
        memories = {
            digest: _Memory(
                authority,
                {each: readings[each] for each in authority.subjects if each in readings},
                read_at,
            )
            for digest, authority in authorities.items()
        }
        self._memory.update(memories)
        while len(self._memory) > _REMEMBERED:
            self._memory.popitem(last=False)
        return memories

    async def _governed(self, authority: Authority) -> _Known | GatewayError:
        """Returns a key's authority with what it is subject to, or why there is none."""
        try:
            own = await self._snapshots.organization(
                authority.organization_id, authority.routing_version, authority.catalog_version
            )
        except GatewayError as exc:
            return exc
        workspace = own.governance.workspaces.get(authority.workspace_id)
        if workspace is None:
            # It is a moment younger than the copy: the next try has both.
            return Unavailable()
        governing = own.governance.governing(
            authority.workspace_id, authority.member_guardrail_id, authority.key_guardrail_id
        )
        limit = governance.limit(
            authority.key_id,
            authority.limit_nano,
            authority.limit_reset,
            include_byok=authority.include_byok_in_limit,
        )
        return _Known(
            authority,
            own.routes,
            workspace,
            governing.policy,
            governance.budgets(
                governing.rules,
                authority.key_id,
                authority.workspace_id,
                authority.member_id,
                limit,
            ),
            governing.filters,
        )

    async def _decide(
        self, entry: AdmissionRequest, known: _Known | GatewayError | None, budgets: Budgets
    ) -> Admission:
        if known is None:
            raise Unauthenticated("The API key is not valid.")
        if isinstance(known, GatewayError):
            raise known
        authority, request = known.authority, entry.request
        require_usable(
            disabled=authority.disabled, expires_at=authority.expires_at, now=budgets.now
        )
        require_inference(is_management=authority.is_management)
        require_ingress_region(known.policy, entry.region)
        if settings.REQUESTS_PER_MINUTE:
            budgets.require_pace(authority.key_id, settings.REQUESTS_PER_MINUTE)
        budgets.require_unspent(known.budgets)
        findings: Sequence[Finding] = ()
        if known.filters:
            screened = entry.screened
            if screened is None or screened.filters != known.filters:
                screened = screen_at_once(known.filters, request)
            request, findings = screened.request, screened.findings
        snapshot = await self._snapshots.catalog(authority.catalog_version)
        now = time.time()
        context = RoutingContext(
            snapshot=snapshot,
            own=known.own,
            workspace_id=authority.workspace_id,
            key_digest=entry.key_digest,
            policy=known.policy & Policy.of(served_in=entry.region),
            organization_id=authority.organization_id,
            member_id=authority.member_id,
            defaults=known.rules.defaults,
            disabled_tools=known.rules.disabled_server_tools,
            health_of=partial(self._health.health, now=now),
            seed=getrandbits(64),
        )
        selection = require_candidates(request, context)
        affordable = budgets.find_affordable(
            request,
            selection.candidates,
            authority.organization_id,
            known.budgets,
            settings.BYOK_FEE_PERCENT,
        )
        hold_nano = max(item.credits_nano for item in affordable)
        admission = Admission(
            generation_id=new_generation_id(),
            authority=authority,
            request=request,
            selection=selection,
            candidates=affordable,
            hold_nano=hold_nano,
            # One candidate pays, so what both kinds of money can come to is that of the dearest.
            upstream_hold_nano=max(item.credits_nano + item.upstream_nano for item in affordable)
            - hold_nano,
            user=None
            if request.user is None
            else hash_end_user(str(authority.organization_id), request.user),
            created_at=datetime.now(UTC),
            region=entry.region,
            is_metadata_wanted=entry.is_metadata_wanted,
            findings=findings,
        )
        budgets.take(
            authority.organization_id,
            authority.subjects,
            known.budgets,
            credits_nano=admission.hold_nano,
            upstream_nano=admission.upstream_hold_nano,
        )
        first = affordable[0].candidate.subject
        if self._health.claim(first, now):
            admission.probe = first
        return admission

    async def _open(
        self, admitted: list[tuple[AdmissionRequest, Admission]], budgets: Budgets
    ) -> set[str]:
        """Stores the generations whose decision still holds, and returns their ids."""
        if not admitted:
            return set()
        rows = await self._store.execute(
            ADMIT,
            [
                _encode([_row(entry, admission) for entry, admission in admitted]).decode(),
                _encode(list(budgets.ceilings.values())).decode(),
            ],
        )
        return {row[0] for row in rows}


def _budgets(memories: Collection[_Memory], *, is_current: bool) -> Budgets:
    """Returns the balances and meters that were read.

    Of several times the last one counts: by it, an old reading is of a period that has ended, and
    whatever was spent since counts against the next.
    """
    return Budgets(
        balances={
            memory.authority.organization_id: memory.authority.available_nano for memory in memories
        },
        readings={
            subject: reading for memory in memories for subject, reading in memory.readings.items()
        },
        now=max((memory.read_at for memory in memories), default=datetime.now(UTC)),
        is_current=is_current,
    )


def _row(entry: AdmissionRequest, admission: Admission) -> dict[str, Any]:
    candidate = admission.candidates[0].candidate
    route, authority = candidate.route, admission.authority
    return {
        "id": admission.generation_id,
        "organization_id": authority.organization_id,
        "workspace_id": authority.workspace_id,
        "api_key_id": authority.key_id,
        "member_id": authority.member_id,
        "end_user": entry.request.user,
        "session_id": entry.request.session_id,
        "region": entry.region or "global",
        "http_referer": entry.http_referer,
        "app_title": entry.app_title,
        "user_agent": entry.user_agent,
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
        "hold_nano": admission.hold_nano,
        "upstream_hold_nano": admission.upstream_hold_nano,
        "images": admission.request.images,
        "key_version": authority.key_version,
        "routing_version": authority.routing_version,
        "catalog_version": authority.catalog_version,
    }
