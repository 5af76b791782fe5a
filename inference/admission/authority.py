"""Reads the authority of API keys in batches, and remembers it until its versions change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import msgspec

from accounts.policy import Policy
from billing.budgets import Budget, MeterReading
from billing.rate_limits import NO_RULES, RateRules
from config.api.errors import Unavailable
from config.clock import clock
from config.sql import load_statement
from inference.admission.budgets import Budgets
from inference.admission.governance import WorkspaceRules, collect_budgets, make_key_limit
from inference.admission.snapshots import Snapshots
from inference.filters.definitions import Filters
from inference.routing.routes import OrganizationSnapshot
from inference.store import DataPlaneConnection

READ_AUTHORITY: Final = load_statement("inference", "read_authority")
READ_METERS: Final = load_statement("inference", "read_meters")

# Keys that a worker remembers, at two kilobytes each.
_REMEMBERED: Final = 5_000
# Meters of rate limits that a worker remembers besides, at one kilobyte each.
_METERS: Final = 10_000


class Authority(msgspec.Struct, frozen=True):
    """The rights, limits and versions of an API key: a row of ``read_authority.sql``.

    It is valid until one of its versions moves. A change of the key's row moves ``key_version``;
    an assignment of a guardrail moves ``routing_version``. ``available_nano`` is the balance at
    the time of the read, and no version covers it.
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
        """The subjects of the meters that count the key's generations."""
        if self.member_id is None:
            return self.key_id, self.workspace_id
        return self.key_id, self.workspace_id, self.member_id


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


class AuthorityReader:
    """Reads the authority of keys with one statement, and their meters with another one.

    All lanes of a worker share what it remembers; each reads on a connection of its own.
    """

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._remembered: OrderedDict[str, KeyReading] = OrderedDict()
        self._meters: OrderedDict[UUID, tuple[datetime, MeterReading]] = OrderedDict()

    def recall(self, digests: Collection[str]) -> dict[str, KeyReading] | None:
        """Returns the remembered readings of these keys; ``None`` if one of them is unusable.

        A reading is usable while the worker has the snapshots of its versions.
        """
        readings: dict[str, KeyReading] = {}
        for digest in digests:
            reading = self._remembered.get(digest)
            if reading is None or not self._snapshots.has(
                reading.authority.organization_id,
                reading.authority.routing_version,
                reading.authority.catalog_version,
            ):
                return None
            self._remembered.move_to_end(digest)
            readings[digest] = reading
        return readings

    async def read(
        self, connection: DataPlaneConnection, digests: Collection[str]
    ) -> dict[str, KeyReading]:
        """Reads and remembers the authority and the meters of every key that exists."""
        rows = await connection.execute(READ_AUTHORITY, [list(digests)])
        authorities = {digest: Authority(*columns) for digest, *columns in rows}
        meters: dict[UUID, MeterReading] = {}
        read_at = clock.now()
        subjects = {subject for each in authorities.values() for subject in each.subjects}
        if subjects:
            for now, *columns in await connection.execute(READ_METERS, [list(subjects)]):
                meter = MeterReading(*columns)
                meters[meter.subject_id], read_at = meter, now.astimezone(UTC)
        for subject in subjects:
            self._meters.pop(subject, None)
        for digest in digests:
            self._remembered.pop(digest, None)
        readings = {
            digest: KeyReading(
                authority,
                {each: meters[each] for each in authority.subjects if each in meters},
                read_at,
            )
            for digest, authority in authorities.items()
        }
        self._remembered.update(readings)
        while len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        return readings

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

    async def govern(self, authority: Authority) -> GovernedKey:
        """Returns a key with the rules that apply to it; raises :class:`Unavailable`."""
        copy = await self._snapshots.organization(
            authority.organization_id, authority.routing_version, authority.catalog_version
        )
        workspace = copy.rules.workspaces.get(authority.workspace_id)
        if workspace is None:
            # The workspace was created after the copy was loaded; a retry loads a newer copy.
            raise Unavailable
        rules = copy.rules.for_key(
            authority.workspace_id, authority.member_guardrail_id, authority.key_guardrail_id
        )
        limit = make_key_limit(
            authority.key_id,
            authority.limit_nano,
            authority.limit_reset,
            include_byok=authority.include_byok_in_limit,
        )
        return GovernedKey(
            authority,
            copy.routes,
            workspace,
            rules.policy,
            collect_budgets(
                rules.budgets,
                authority.key_id,
                authority.workspace_id,
                authority.member_id,
                limit,
            ),
            rules.filters,
            copy.rules.rates,
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
        now=max((reading.read_at for reading in readings), default=clock.now()),
        is_current=is_current,
    )
