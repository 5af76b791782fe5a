"""Admission: decides about requests and stores them, in batches, before any of them is sent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final
from uuid import UUID

import msgspec

from billing.budgets import MeterReading
from billing.rate_limits import render_headers
from catalog.abilities import NO_POOL
from config.api.errors import Conflict, GatewayError, Unauthenticated, Unavailable
from config.clocks.clock import clock
from config.database.driver import Rejected
from config.server.batching.lanes import Lane, Lanes
from config.server.batching.waits import Blocked, Suspects
from config.server.readiness import HistoryLost, readiness
from config.sql import load_statement
from inference.admission.authority import (
    AuthorityReader,
    GovernedKey,
    KeyReading,
    build_budgets,
    parse_meter,
)
from inference.admission.budgets import Budgets, StaleReading, UnreadMeters
from inference.admission.copies.hints import VersionHints
from inference.admission.copies.snapshots import Snapshots
from inference.admission.decide import (
    Admission,
    AdmissionRequest,
    BatchScreening,
    decide,
    give_back,
)
from inference.ids import id_range
from inference.routing.fairness import JudgedEstimate
from inference.routing.health import HealthTable
from inference.routing.routes import Candidate, CatalogSnapshot
from inference.shadow_counts import GuardrailRefusal
from inference.shadows.counting import WorkerCounts
from inference.shadows.refusals import find_refusing
from inference.store import CommitMemory, Committed, DataPlaneConnection

logger = logging.getLogger(__name__)

ADMIT: Final = load_statement("inference", "admit")
REPIN: Final = load_statement("inference", "repin")

# Other writers may change the data of a request between reading and storing. After this many tries
# the request is refused with status 503.
_TRIES: Final = 8
# How long a request waits for a row that is locked, before it is refused with status 503.
_PATIENCE_SECONDS: Final = 4.5
# Generations that one connection moves in turn, before others may use it.
_REPINS: Final = 8
_encode = msgspec.json.Encoder().encode
# Stands for a request that has no decision yet.
_UNDECIDED: Final = StaleReading()
# The decision about one request. It must be decided again after ``None``, because its data changed,
# and after :class:`StaleReading`, with its key read again.
Decision = Admission | BaseException | None
# The admissions of a batch, by the index of their request.
AdmittedByIndex = Mapping[int, tuple[AdmissionRequest, Admission]]
# A generation and the candidate to which it moves.
Repinning = tuple[Admission, Candidate]


class Repinned(Enum):
    """The result of a move to another candidate; ``CHANGED`` asks to select candidates again."""

    MOVED = auto()
    CHANGED = auto()
    FULL = auto()


class GenerationRow(msgspec.Struct, frozen=True):
    """A pending generation, with the versions by which it was decided."""

    id: str
    organization_id: UUID
    workspace_id: UUID
    api_key_id: UUID
    member_id: UUID | None
    end_user: str | None
    session_id: str | None
    trace: str | None
    preset_id: UUID | None
    region: str
    http_referer: str | None
    app_title: str | None
    user_agent: str | None
    operation: str
    streamed: bool
    model: str
    private_endpoint_id: UUID | None
    model_endpoint_id: UUID | None
    provider_name: str
    price_id: int
    is_byok: bool
    attestation_id: int | None
    request_id: str
    hold_nano: int
    upstream_hold_nano: int
    held_tokens: int
    limit_subjects: list[UUID] | None
    images: int
    units: dict[str, Any] | None
    credits_id: int
    usage_id: int
    key_expires_at: datetime | None
    routing_version: int
    catalog_version: int


def make_row(entry: AdmissionRequest, admission: Admission) -> GenerationRow:
    """Returns the row of an admission, pinned to its first candidate."""
    candidate = admission.candidates[0].candidate
    route, authority = candidate.route, admission.authority
    return GenerationRow(
        id=admission.generation_id,
        organization_id=authority.organization_id,
        workspace_id=authority.workspace_id,
        api_key_id=authority.key_id,
        member_id=authority.member_id,
        end_user=entry.request.user,
        session_id=entry.request.session_id,
        trace=entry.request.trace,
        preset_id=entry.request.preset_id,
        region=entry.region or "global",
        http_referer=entry.http_referer,
        app_title=entry.app_title,
        user_agent=entry.user_agent,
        operation=entry.request.operation,
        streamed=entry.request.stream,
        model=route.model_slug,
        private_endpoint_id=route.endpoint_id if route.is_private else None,
        model_endpoint_id=None if route.is_private else route.endpoint_id,
        provider_name=route.facts.provider_name,
        price_id=route.price_id,
        is_byok=candidate.is_byok,
        attestation_id=route.attestation_id,
        request_id=entry.request_id,
        hold_nano=admission.hold_nano,
        upstream_hold_nano=admission.upstream_hold_nano,
        held_tokens=admission.held_tokens,
        limit_subjects=list(admission.limit_subjects) or None,
        images=admission.request.images,
        units=admission.request.known_units.units,
        credits_id=authority.credits_id,
        usage_id=authority.usage_id,
        key_expires_at=authority.expires_at,
        routing_version=authority.routing_version,
        catalog_version=admission.catalog_version,
    )


class AdmissionStore:
    """Admits batches of requests; one statement stores those decisions that are still valid.

    The first try decides by readings that the worker remembers. Two more statements read authority
    and meters of those keys that the worker does not know, or whose remembered reading would refuse
    or bound a request. A change of the catalogue alone makes no key be read again.

    A store is not for concurrent use: each lane has its own, and all stores of a worker share the
    health of endpoints, what it remembers of keys, and its copies.
    """

    def __init__(
        self,
        health: HealthTable,
        authority: AuthorityReader | None = None,
        memory: CommitMemory | None = None,
        *,
        is_apart: bool = False,
    ) -> None:
        self._health = health
        self._memory = memory or CommitMemory()
        self._connection = DataPlaneConnection(is_apart=is_apart)
        self._is_alone = authority is None
        self._authority = authority or AuthorityReader(Snapshots())
        self._snapshots = self._authority.snapshots

    async def close(self) -> None:
        await self._connection.close()
        if self._is_alone:
            await self._authority.close()

    async def admit(
        self, batch: list[AdmissionRequest], organizations: Collection[UUID] = ()
    ) -> Sequence[Admission | BaseException]:
        """Returns an admission, or the error that refuses it, for each request in order.

        ``admit.sql`` checks keys, balances, budgets and every version that routing depends on once
        more. A revocation, a spent budget or a disabled endpoint therefore takes effect on the
        next request. A request whose data has changed is read and decided again.
        :class:`Blocked` stands for a request that is not stored because of a lock, or whose key
        must be read while other organizations share the batch.
        """
        if readiness.is_history_lost:
            return [HistoryLost() for _ in batch]
        results: list[Admission | BaseException] = [_UNDECIDED] * len(batch)
        waiting = list(range(len(batch)))
        may_recall = True
        for attempt in range(_TRIES):
            entries = [batch[index] for index in waiting]
            try:
                decisions = await self._try_admit(
                    entries, may_recall=may_recall, is_last=attempt == _TRIES - 1
                )
            except Exception as exc:
                if not isinstance(exc, Blocked):
                    readiness.admissions.record_failure()
                # The admissions of earlier tries are stored, so they are returned: their callers
                # must settle them.
                for index in waiting:
                    results[index] = exc
                break
            undecided = []
            may_recall = True
            for index, decision in zip(waiting, decisions, strict=True):
                if isinstance(decision, StaleReading) and len(organizations) > 1:
                    # Its organization is served apart: the others do not wait for the reading.
                    results[index] = Blocked()
                elif decision is None or isinstance(decision, StaleReading):
                    undecided.append(index)
                    may_recall &= decision is None
                else:
                    results[index] = decision
            waiting = undecided
            if not waiting:
                return results
        return [Unavailable() if each is _UNDECIDED else each for each in results]

    async def _try_admit(
        self, batch: list[AdmissionRequest], *, may_recall: bool, is_last: bool
    ) -> list[Decision]:
        """Recalls or reads the keys of the batch, decides, and stores once.

        If some keys are remembered, the requests of the others are :class:`StaleReading`.
        """
        digests = {entry.key_digest for entry in batch}
        readings: dict[str, KeyReading] = {}
        if may_recall:
            recalled = {digest: self._authority.recall(digest) for digest in digests}
            readings = {digest: each for digest, each in recalled.items() if each is not None}
        is_current = not readings
        if is_current:
            readings = await self._authority.read(digests)
        catalog = self._snapshots.catalog
        keys: dict[str, GovernedKey | GatewayError | StaleReading] = {}
        for digest, each in readings.items():
            try:
                keys[digest] = self._authority.govern(each.authority, catalog)
            except (GatewayError, StaleReading) as exc:
                keys[digest] = exc
        budgets = build_budgets(readings.values(), is_current=is_current)
        if not is_current:
            self._authority.recall_meters(list(budgets.readings), budgets)
        screening = BatchScreening()
        decisions = await self._decide_all(batch, keys, budgets, catalog, screening)
        await self._store_admitted(batch, decisions, budgets, is_last=is_last)
        if screening.verdicts:
            _count_verdicts(screening, self._authority.counts)
        is_undecided = any(each is None for each in decisions)
        if is_undecided and not await _has_moved(self._snapshots, catalog):
            # A key, an organization, a balance or a meter has changed.
            return [StaleReading() if each is None else each for each in decisions]
        return decisions

    async def _store_admitted(
        self,
        batch: Sequence[AdmissionRequest],
        decisions: list[Decision],
        budgets: Budgets,
        *,
        is_last: bool,
    ) -> None:
        """Stores the admissions among the decisions; those not stored become ``None``."""
        admitted = {
            index: (entry, decision)
            for index, (entry, decision) in enumerate(zip(batch, decisions, strict=True))
            if isinstance(decision, Admission)
        }
        stored: set[str] = set()
        try:
            stored |= await self._store(list(admitted.values()), budgets)
        except Rejected:
            # A row that one admission refers to has just been deleted. Only that request is decided
            # again.
            refusals = await self._store_each(admitted, budgets, stored, is_last=is_last)
            for index, error in refusals.items():
                decisions[index] = error
        finally:
            for _, admission in admitted.values():
                if admission.generation_id not in stored:
                    give_back(admission, self._health)
        for index, (_, admission) in admitted.items():
            if decisions[index] is admission and admission.generation_id not in stored:
                decisions[index] = None

    async def _decide_all(
        self,
        batch: list[AdmissionRequest],
        keys: Mapping[str, GovernedKey | GatewayError | StaleReading],
        budgets: Budgets,
        catalog: CatalogSnapshot,
        screening: BatchScreening,
    ) -> list[Decision]:
        """Returns the decisions about a batch, in order.

        The meters of rate limits and pools are known once a request's end user and model are.
        Those that this worker has not read yet are read for the whole batch with one statement; the
        requests that wait for them are then decided.
        """
        decisions: list[Decision] = [None] * len(batch)
        waiting: Sequence[int] = range(len(batch))
        for is_last in (False, False, False, True):
            for index in waiting:
                entry = batch[index]
                key = keys.get(entry.key_digest)
                decisions[index] = self._decide(entry, key, budgets, catalog, screening)
            unread = {
                index: decision.subjects
                for index in waiting
                if isinstance(decision := decisions[index], UnreadMeters)
            }
            if not unread:
                break
            if is_last:
                # A request whose meter is missing must not be free of its limit.
                logger.error("meters of rate limits are missing: %s", set().union(*unread.values()))
                for index in unread:
                    decisions[index] = Unavailable()
                break
            subjects = frozenset().union(*unread.values())
            await self._authority.add_meters(self._connection, subjects, budgets)
            waiting = list(unread)
        return decisions

    def _decide(
        self,
        entry: AdmissionRequest,
        key: GovernedKey | GatewayError | StaleReading | None,
        budgets: Budgets,
        catalog: CatalogSnapshot,
        screening: BatchScreening,
    ) -> Decision:
        """Returns the decision about a request; only current readings may refuse one."""
        try:
            if key is None:
                raise Unauthenticated("The API key is not valid.")
            if isinstance(key, GatewayError | StaleReading):
                raise key
            return decide(entry, key, budgets, catalog, self._health, screening)
        except (StaleReading, UnreadMeters) as exc:
            return exc
        except GatewayError as exc:
            _count_refused(self._authority.counts, exc, key, budgets)
            return exc if budgets.is_current else StaleReading()
        except Exception:
            # A bug that one request triggers must not refuse the rest of the batch.
            logger.exception("a request cannot be decided")
            return GatewayError()

    async def _store(
        self, admitted: Sequence[tuple[AdmissionRequest, Admission]], budgets: Budgets
    ) -> set[str]:
        """Stores the generations whose decision is still valid, and returns their ids."""
        if not admitted:
            return set()
        given = _encode([make_row(entry, admission) for entry, admission in admitted]).decode()
        rows = await self._connection.execute(
            ADMIT,
            [
                given,
                _encode(list(budgets.ceilings.values())).decode(),
                list({rule.subject_id for _, each in admitted for rule in each.rates}),
                *id_range([admission.generation_id for _, admission in admitted]),
            ],
            {admission.authority.organization_id for _, admission in admitted},
        )
        now, admissions = time.monotonic(), readiness.admissions
        self._memory.note((now, Committed.ADMITTED, given))
        admissions.succeeded_at = now
        if admissions.failing_since is not None:
            admissions.record_success()
        # The instants of what was stored.
        stored = {row[0]: row[2] for row in rows if row[1] is None}
        for _, admission in admitted:
            admission.at = stored.get(admission.generation_id, 0)
            if admission.guardrails and admission.at:
                self._authority.counts.count_judged(admission.guardrails, admission.at)
        if len(rows) > len(stored):
            meters = [parse_meter(row[1]) for row in rows if row[1] is not None]
            self._authority.remember_meters(meters)
            _tell_rates([each for _, each in admitted if each.generation_id in stored], meters)
        return set(stored)

    async def _store_each(
        self, admitted: AdmittedByIndex, budgets: Budgets, stored: set[str], *, is_last: bool
    ) -> dict[int, GatewayError]:
        """Stores admissions one by one; adds their ids to ``stored`` and returns the refusals."""
        refusals: dict[int, GatewayError] = {}
        unavailable: Unavailable | None = None
        blocked: dict[UUID, Blocked] = {}
        for index, (entry, admission) in admitted.items():
            organization_id = admission.authority.organization_id
            if refusal := unavailable or blocked.get(organization_id):
                # Each further try would cost one time-out, and the callers whose admission is
                # stored would wait for all of them.
                refusals[index] = refusal
                continue
            try:
                stored |= await self._store([(entry, admission)], budgets)
            except Blocked as exc:
                refusals[index] = blocked[organization_id] = exc
            except Unavailable as exc:
                refusals[index] = unavailable = exc
            except Rejected:
                if is_last:
                    readiness.admissions.record_failure(organization_id)
                    refusals[index] = Conflict("A resource that this request needs was removed.")
        return refusals


class RepinStore:
    """Moves generations to their next candidates, one statement for each."""

    def __init__(self, memory: CommitMemory, *, is_apart: bool) -> None:
        self._connection = DataPlaneConnection(is_apart=is_apart)
        self._memory = memory

    async def close(self) -> None:
        await self._connection.close()

    async def repin(
        self, batch: list[Repinning], organizations: Collection[UUID] = ()
    ) -> Sequence[Repinned | BaseException]:
        """Returns for each generation what came of its move, or the error that prevented it."""
        results: list[Repinned | BaseException] = []
        blocked: dict[UUID, Blocked] = {}
        for admission, candidate in batch:
            organization_id = admission.authority.organization_id
            try:
                if organization_id in blocked:
                    raise blocked[organization_id]
                moved, route = _make_move(admission, candidate), candidate.route
                is_counted = route.pool != NO_POOL
                meter = route.endpoint_id if is_counted else None
                given = [*moved.values(), meter, route.pool.max_in_flight]
                rows = await self._connection.execute(REPIN, given, [organization_id])
                results.append(_read_move(rows))
                if results[-1] is Repinned.MOVED:
                    moved["limit_subjects"] = rows[0][2]
                    self._memory.note(
                        (time.monotonic(), Committed.MOVED, _encode([moved]).decode())
                    )
            except Blocked as exc:
                blocked[organization_id] = exc
                results.append(exc)
            except (Unavailable, Rejected) as exc:
                results.append(exc)
        return results


def _read_move(rows: Sequence[Sequence[Any]]) -> Repinned:
    if not rows:
        return Repinned.CHANGED
    return Repinned.MOVED if rows[0][1] else Repinned.FULL


async def _has_moved(snapshots: Snapshots, catalog: CatalogSnapshot) -> bool:
    """Returns whether the catalogue has another version by now; its copy is then current."""
    if snapshots.catalog is catalog:
        await snapshots.refresh_catalog()
    return snapshots.catalog is not catalog


def _make_move(admission: Admission, candidate: Candidate) -> dict[str, Any]:
    """Returns the parameters of :data:`REPIN` in order, named as in :class:`GenerationRow`."""
    route = candidate.route
    authority = admission.authority
    return {
        "id": admission.generation_id,
        "organization_id": authority.organization_id,
        "key_expires_at": authority.expires_at,
        "private_endpoint_id": route.endpoint_id if route.is_private else None,
        "model_endpoint_id": None if route.is_private else route.endpoint_id,
        "provider_name": route.facts.provider_name,
        "price_id": route.price_id,
        "is_byok": candidate.is_byok,
        "attestation_id": route.attestation_id,
        "model": route.model_slug,
        "routing_version": authority.routing_version,
        "catalog_version": admission.catalog_version,
    }


class AdmissionLanes:
    """The lanes in which a worker admits requests, and those in which it moves generations.

    Moving is rare. It has lanes of its own, so that it never waits for a batch of admissions.
    """

    def __init__(
        self, health: HealthTable, suspects: Suspects, memory: CommitMemory | None = None
    ) -> None:
        self._health = health
        self._memory = memory or CommitMemory()
        snapshots = Snapshots()
        self._authority = AuthorityReader(snapshots)
        self._hints = VersionHints(snapshots)
        self._probe_connection = DataPlaneConnection()
        self._probing: asyncio.Task[None] | None = None
        self._admissions: Lanes[AdmissionRequest, Admission] = Lanes(
            "admit", self._open_admission, suspects, patience=_PATIENCE_SECONDS
        )
        # Queues a request of an organization.
        self.submit = self._admissions.submit
        self._repins: Lanes[Repinning, Repinned] = Lanes(
            "repin", self._open_repin, suspects, side=2, limit=_REPINS, patience=_PATIENCE_SECONDS
        )

    @property
    def catalog(self) -> CatalogSnapshot:
        """The worker's copy of the catalogue, which may be older than the present one."""
        return self._authority.snapshots.catalog

    def start(self) -> None:
        """Begins to follow versions, and to probe admissions while no request does so."""
        self._hints.start()
        self._authority.counts.start()
        self._probing = asyncio.create_task(readiness.admissions.keep_probing(self._probe))

    async def close(self) -> None:
        await self._hints.close()
        if self._probing is not None:
            self._probing.cancel()
        await self._probe_connection.close()
        await self._admissions.close()
        await self._repins.close()
        await self._authority.close()

    async def drain(self) -> None:
        """Waits until every request that was submitted is admitted or refused."""
        await self._admissions.drain()

    async def prepare(self, key_digest: str) -> None:
        """Reads a key that the worker does not remember, before its request joins a batch.

        The other requests of the batch then wait neither for the reading nor for the organization's
        copy. Raises :class:`Unavailable`.
        """
        if self._authority.recall(key_digest) is not None:
            return
        try:
            await self._authority.read([key_digest])
        except Unavailable as exc:
            if not isinstance(exc, Blocked):
                readiness.admissions.record_failure()
            raise

    async def read_key(self, key_digest: str) -> tuple[GovernedKey, CatalogSnapshot]:
        """Reads a key with the rules that apply to it now, and returns the present catalogue too.

        Raises :class:`Unauthenticated` for a key that does not exist any more, and
        :class:`Unavailable` while its organization changes faster than it can be read.
        """
        for _ in range(_TRIES):
            reading = (await self._authority.read([key_digest])).get(key_digest)
            if reading is None:
                raise Unauthenticated("The API key is not valid.")
            catalog = self._authority.snapshots.catalog
            with contextlib.suppress(StaleReading):
                return self._authority.govern(reading.authority, catalog), catalog
        raise Unavailable

    def count_blocked(self, guardrail_id: UUID) -> None:
        """Counts a request that a content filter of a guardrail has blocked."""
        counts = self._authority.counts
        counts.count_judged((guardrail_id,), int(clock.time()), GuardrailRefusal.CONTENT)

    def count_tokens(self, endpoint_id: UUID, judged: JudgedEstimate) -> None:
        """Counts the tokens of a prompt, estimated and reported."""
        self._authority.counts.count_tokens(endpoint_id, judged)

    def forget_copies(self) -> None:
        """Forgets keys, organizations and the catalogue; the next request reads them."""
        self._authority.forget()

    def show_figures(self) -> None:
        """Sets the gauges of the queues and of the worker's copies."""
        self._admissions.show_figures()
        self._repins.show_figures()
        self._authority.snapshots.show_ages(is_listening=self._hints.is_listening)

    async def repin(self, admission: Admission, candidate: Candidate) -> Repinned:
        """Moves a generation, and the price it will pay, to the next candidate before dispatch.

        The hold stays as it is: it covers every candidate. Nothing changes if the key, the
        organization's endpoints and credentials, or the catalogue changed since the candidates were
        selected, or if the endpoint is full. Raises :class:`Unavailable`.
        """
        organization_id = admission.authority.organization_id
        return await self._repins.submit(organization_id, (admission, candidate)).future

    async def _probe(self) -> None:
        """Executes the statement of admission without a request; raises its error."""
        await self._probe_connection.execute(ADMIT, ["[]", "[]", [], "", ""])

    def _open_admission(self, is_apart: bool) -> Lane[AdmissionRequest, Admission]:
        store = AdmissionStore(self._health, self._authority, self._memory, is_apart=is_apart)
        return Lane(store.admit, store.close)

    def _open_repin(self, is_apart: bool) -> Lane[Repinning, Repinned]:
        store = RepinStore(self._memory, is_apart=is_apart)
        return Lane(store.repin, store.close)


def _count_refused(counts: WorkerCounts, error: GatewayError, key: Any, budgets: Budgets) -> None:
    """Counts a final refusal for the guardrail that caused it, if one did."""
    if budgets.is_current and isinstance(key, GovernedKey):
        refusing = find_refusing(error, key.guardrails, key.budgets)
        if refusing is not None:
            guardrail_id, reason = refusing
            counts.count_judged((guardrail_id,), int(clock.time()), reason)


def _count_verdicts(screening: BatchScreening, counts: WorkerCounts) -> None:
    """Counts the verdicts of shadows about the admissions that were stored."""
    for admission, verdicts in screening.verdicts:
        if admission.at:
            counts.count_verdicts(admission.authority.key_id, admission.at, verdicts)


def _tell_rates(
    admissions: Iterable[Admission], meters: Sequence[tuple[datetime, MeterReading]]
) -> None:
    """Notes for the callers what is left of their rate limits."""
    now = max(read_at for read_at, _ in meters)
    readings = {meter.subject_id: meter for _, meter in meters}
    rendered: dict[tuple[UUID, ...], Mapping[str, str]] = {}
    for admission in admissions:
        # One subject has one rule, besides the setting's rule for every key.
        subjects = tuple(rule.subject_id for rule in admission.rates)
        if subjects not in rendered:
            rendered[subjects] = render_headers(admission.rates, readings, now)
        admission.rate_headers = rendered[subjects]
