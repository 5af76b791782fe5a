"""Reads the authority of API keys in batches, and remembers it until its versions change."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Final
from uuid import UUID

import msgspec

from accounts.policy import Policy
from billing.budgets import Budget, MeterReading
from billing.rate_limits import NO_RULES, RateRules
from config.clocks.clock import clock
from config.server.batching.batcher import Batcher
from config.sql import load_statement
from inference.admission.budgets import Budgets, StaleReading
from inference.admission.copies.catalog import NO_CATALOG
from inference.admission.copies.organizations import OrganizationCopy
from inference.admission.copies.snapshots import Snapshots
from inference.admission.governance import (
    BudgetRule,
    ShadowedRules,
    WorkspaceRules,
    collect_budgets,
    make_key_limit,
)
from inference.filters.definitions import Filters
from inference.routing.routes import CatalogSnapshot, OrganizationSnapshot
from inference.shadows.counting import WorkerCounts
from inference.store import DataPlaneConnection

READ_AUTHORITY: Final = load_statement("inference", "read_authority")
READ_METERS: Final = load_statement("inference", "read_meters")

# Keys that a worker remembers, at three kilobytes each.
_REMEMBERED: Final = 10_000
# Names in the lists of merged rules that take as much memory as a key.
_NAMES: Final = 50
# Meters of rate limits that a worker remembers besides, at one kilobyte each.
_METERS: Final = 10_000


class Authority(msgspec.Struct, frozen=True, dict=True):
    """The rights, limits and versions of an API key: a row of ``read_authority.sql``.

    It is valid until the organization's version moves: with a change of the key, or of the rules
    that apply to it, but not of the catalogue. ``credits_id`` and ``usage_id`` are the accounts of
    its holds. ``suspension_reason`` is empty unless the organization is suspended.
    ``available_nano`` is the balance at the time of the read, and no version covers it.
    """

    key_id: UUID
    organization_id: UUID
    credits_id: int
    usage_id: int
    workspace_id: UUID
    member_id: UUID | None
    is_management: bool
    disabled: bool
    expires_at: datetime | None
    routing_version: int
    limit_nano: int | None
    limit_reset: str | None
    include_byok_in_limit: bool
    available_nano: int
    key_guardrail_id: UUID | None
    member_guardrail_id: UUID | None
    suspension_reason: str = ""

    @cached_property
    def subjects(self) -> tuple[UUID, ...]:
        """The subjects of the meters that count the key's generations."""
        if self.member_id is None:
            return self.key_id, self.workspace_id
        return self.key_id, self.workspace_id, self.member_id

    def make_budgets(self, rules: Iterable[BudgetRule]) -> tuple[Budget, ...]:
        """Returns the budgets of the key in the order of enforcement, its own limit last."""
        limit = make_key_limit(
            self.key_id,
            self.limit_nano,
            self.limit_reset,
            include_byok=self.include_byok_in_limit,
        )
        return collect_budgets(rules, self.key_id, self.workspace_id, self.member_id, limit)


class KeyReading(msgspec.Struct, frozen=True):
    """The authority and the meters of a key, and the database's time at which they were read."""

    authority: Authority
    meters: Mapping[UUID, MeterReading]
    read_at: datetime


@dataclass(frozen=True, slots=True)
class GovernedKey:
    """A key's authority with the routes and the rules of its organization that apply to it."""

    authority: Authority
    routes: OrganizationSnapshot
    rules: WorkspaceRules
    policy: Policy
    budgets: Sequence[Budget]
    filters: Filters
    rates: RateRules = NO_RULES
    shadows: Sequence[ShadowedRules] = ()
    guardrails: Mapping[UUID, Policy] = field(default_factory=dict)
    # Whether nothing but its limits and its filters can refuse a request of the key.
    is_unrestricted: bool = False


class AuthorityReader:
    """Reads the authority of keys with one statement, and their meters with another one.

    Requests that need different keys at the same time share the statements. All lanes of a worker
    share what it remembers.
    """

    def __init__(self, snapshots: Snapshots) -> None:
        self.snapshots = snapshots
        self.counts = WorkerCounts()
        self._connection = DataPlaneConnection()
        self._reads: Batcher[str, KeyReading | None] = Batcher(self._read)
        self._remembered: OrderedDict[str, KeyReading] = OrderedDict()
        self._meters: OrderedDict[UUID, tuple[datetime, MeterReading]] = OrderedDict()
        # The keys as they were governed last: by organization, because only its latest copy may
        # stay in memory, and with the catalogue with which they were.
        self._governed: dict[UUID, tuple[OrganizationCopy, dict[UUID, GovernedKey]]] = {}
        self._most_governed = _REMEMBERED
        self._catalog = NO_CATALOG

    async def close(self) -> None:
        await self._reads.drain()
        await self._connection.close()
        await self.counts.close()
        await self.snapshots.close()

    def forget(self) -> None:
        """Forgets every reading and every copy; a reading that is under way is not remembered."""
        self._remembered = OrderedDict()
        self._meters.clear()
        self._governed.clear()
        self.snapshots.forget()

    def recall(self, digest: str) -> KeyReading | None:
        """Returns the remembered reading of a key, if the worker has its organization's copy."""
        reading = self._remembered.get(digest)
        if reading is None:
            return None
        authority = reading.authority
        if self.snapshots.find(authority.organization_id, authority.routing_version) is None:
            return None
        self._remembered.move_to_end(digest)
        return reading

    async def read(self, digests: Collection[str]) -> dict[str, KeyReading]:
        """Reads and remembers every key that exists, and loads what its decisions need.

        Refreshes the copy of the catalogue if it has changed, so that a decision by the readings
        is final.
        """
        found = await asyncio.gather(*(self._reads.submit(digest) for digest in digests))
        readings = {
            digest: reading
            for digest, reading in zip(digests, found, strict=True)
            if reading is not None
        }
        versions = {
            (each.authority.organization_id, each.authority.routing_version)
            for each in readings.values()
        }
        await asyncio.gather(*(self.snapshots.load(*each) for each in versions))
        return readings

    async def _read(self, digests: Sequence[str]) -> list[KeyReading | None]:
        """Reads a batch of keys; ``None`` for one that does not exist."""
        remembered = self._remembered
        rows = await self._connection.execute(READ_AUTHORITY, [list(set(digests))])
        authorities = {digest: Authority(*columns) for digest, _, *columns in rows}
        meters: dict[UUID, MeterReading] = {}
        read_at = clock.now()
        subjects = {subject for each in authorities.values() for subject in each.subjects}
        if subjects:
            for now, *columns in await self._connection.execute(READ_METERS, [list(subjects)]):
                meter = MeterReading(*columns)
                meters[meter.subject_id], read_at = meter, now.astimezone(UTC)
        for subject in subjects:
            self._meters.pop(subject, None)
        for digest in digests:
            remembered.pop(digest, None)
        readings = {
            digest: KeyReading(
                authority,
                {each: meters[each] for each in authority.subjects if each in meters},
                read_at,
            )
            for digest, authority in authorities.items()
        }
        remembered.update(readings)
        while len(remembered) > _REMEMBERED:
            remembered.popitem(last=False)
        if rows and rows[0][1] != self.snapshots.catalog.version:
            await self.snapshots.refresh_catalog()
        return [readings.get(digest) for digest in digests]

    async def add_meters(
        self, connection: DataPlaneConnection, subjects: frozenset[UUID], budgets: Budgets
    ) -> None:
        """Adds the meters of rate limits, and remembers them.

        Reads those that are not remembered, or all if the other readings are current.
        """
        if not budgets.is_current:
            self.recall_meters(subjects, budgets)
            subjects = subjects - budgets.readings.keys()
            if not subjects:
                return
        rows = await connection.execute(READ_METERS, [list(subjects)])
        meters = [(now.astimezone(UTC), MeterReading(*columns)) for now, *columns in rows]
        self.remember_meters(meters)
        for read_at, meter in meters:
            budgets.add(meter, read_at)

    def remember_meters(self, meters: Iterable[tuple[datetime, MeterReading]]) -> None:
        """Remembers meters that have just been read; the least recently read are forgotten."""
        for read_at, meter in meters:
            self._meters.pop(meter.subject_id, None)
            self._meters[meter.subject_id] = read_at, meter
        while len(self._meters) > _METERS:
            self._meters.popitem(last=False)

    def recall_meters(self, subjects: Collection[UUID], budgets: Budgets) -> None:
        """Adds remembered meters, which are newer than those remembered with their keys."""
        if self._meters:
            for subject in subjects:
                if (found := self._meters.get(subject)) is not None:
                    budgets.add(found[1], found[0])

    def govern(self, authority: Authority, catalog: CatalogSnapshot) -> GovernedKey:
        """Returns a key with the rules that apply to it and the routes of its organization.

        Raises :class:`StaleReading` when the organization's copy has another version.
        """
        copy = self.snapshots.find(authority.organization_id, authority.routing_version)
        if copy is None:
            raise StaleReading
        if self._catalog is not catalog or self._most_governed <= 0:
            self._catalog, self._most_governed = catalog, _REMEMBERED
            self._governed.clear()
        known = self._governed.get(authority.organization_id)
        if known is None or known[0] is not copy:
            known = self._governed[authority.organization_id] = copy, {}
        key = known[1].get(authority.key_id)
        if key is None or key.authority is not authority:
            merged_count = copy.rules.merged_count
            key = known[1][authority.key_id] = self._govern_anew(authority, copy, catalog)
            self._most_governed -= 1
            if copy.rules.merged_count != merged_count:
                policies = (key.policy, *(each.policy for each in key.shadows))
                self._most_governed -= sum(each.size for each in policies) // _NAMES
        return key

    def _govern_anew(
        self, authority: Authority, copy: OrganizationCopy, catalog: CatalogSnapshot
    ) -> GovernedKey:
        workspace = copy.rules.workspaces.get(authority.workspace_id)
        if workspace is None:
            raise StaleReading
        rules = copy.rules.for_key(
            authority.workspace_id, authority.member_guardrail_id, authority.key_guardrail_id
        )
        return GovernedKey(
            authority,
            copy.resolve(catalog),
            workspace,
            rules.policy,
            authority.make_budgets(rules.budgets),
            rules.filters,
            copy.rules.rates,
            rules.shadows,
            rules.guardrails,
            not (authority.disabled or authority.is_management or authority.suspension_reason)
            and authority.expires_at is None
            and rules.policy.ingress_regions is None,
        )


def parse_meter(row: str) -> tuple[datetime, MeterReading]:
    """Returns a meter that ``admit.sql`` counted, and the time."""
    read_at, *columns = msgspec.json.decode(row)
    return datetime.fromisoformat(read_at).astimezone(UTC), msgspec.convert(columns, MeterReading)


def build_budgets(readings: Collection[KeyReading], *, is_current: bool) -> Budgets:
    """Returns the balances and meters that were read for a batch.

    The time is that of the latest reading. An older reading may then belong to a period that has
    ended; spending after that reading counts against the next period.
    """
    return Budgets(
        balances={
            reading.authority.organization_id: reading.authority.available_nano
            for reading in readings
        },
        readings={
            subject: meter for reading in readings for subject, meter in reading.meters.items()
        },
        now=max(reading.read_at for reading in readings) if readings else clock.now(),
        is_current=is_current,
    )
