"""Compares the ledger with a model of it after random sequences of operations."""

from __future__ import annotations

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pytest
from django.db import connection, transaction
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from accounts.models import ApiKey, LimitReset, Member
from billing import ledger, reviews
from billing.models import Account, Excess, Meter, NotChargeable, Transfer
from billing.verification import VERIFY_EXCESSES as BILLING_EXCESSES
from billing.verification import run_check
from catalog.models import CatalogVersion, ModelEndpoint
from catalog.pricing import Usage, cost_nano
from config import sql
from config.api.errors import NotFound
from config.partitions.tables import read_now
from inference.admission.admit import ADMIT
from inference.admission.estimate import Claim
from inference.ids import id_range, new_generation_id
from inference.models import Generation, Journal
from inference.settlement.journal import JOURNAL
from inference.settlement.settle import SETTLE, Settlement, settlement_parameters
from inference.settlement.sweeper import sweep
from inference.settlement.verification import VERIFY_EXCESSES, VERIFY_GENERATIONS
from tests.support import factories
from tests.support.governance import make_key
from tests.support.suite.tiers import count_examples

_KINDS: Final = ("cost", "byok")
_LONG_AGO: Final = timedelta(hours=2)
amounts = st.integers(1, 1_000)
holds = st.integers(0, 300)


@dataclass
class Books:
    """Holds the expected balances of the accounts of an organization."""

    credits_in: int = 0
    credits_out: int = 0
    held: int = 0
    granted: int = 0
    deposited: int = 0
    written_off: int = 0
    used: int = 0
    refunded: int = 0

    @property
    def available(self) -> int:
        return self.credits_in - self.credits_out - self.held

    def rows(self) -> dict[str, tuple[int, int, int]]:
        return {
            "credits": (self.credits_out, self.credits_in, self.held),
            "usage": (self.refunded, self.used, 0),
            "grants": (self.granted, 0, 0),
            "deposits": (self.deposited, 0, 0),
            "write_off": (self.written_off, 0, 0),
        }


@dataclass
class Used:
    """Holds the expected values of a meter."""

    day: date = date.min
    amounts: Counter[str] = field(default_factory=Counter)

    def add(self, today: date, **more: int) -> None:
        moment = datetime.combine(today, datetime.min.time(), UTC)
        for reset in LimitReset:
            if self.day < reset.began_at(moment).date():
                for kind in _KINDS:
                    self.amounts[f"{kind}_{reset}"] = 0
        self.day = max(self.day, today)
        for kind in _KINDS:
            for name in (kind, *(f"{kind}_{reset}" for reset in LimitReset)):
                self.amounts[name] += more[kind]


@dataclass
class Made:
    """Holds the admitted values of a generation and its expected final values."""

    organization: uuid.UUID
    subjects: tuple[uuid.UUID, ...]
    hold: int
    byok_hold: int
    is_byok: bool
    is_old: bool
    journal: tuple[int, int] | None = (0, 0)
    status: str = "pending"
    cost: int = 0
    upstream_cost: int = 0
    paid: int = 0
    is_refunded: bool = False
    excess: int | None = None
    decision: str = "under_review"

    @property
    def is_reviewed(self) -> bool:
        return self.excess is not None and self.decision == "under_review"


@dataclass(frozen=True)
class Stage:
    """Holds the rows with which every example starts."""

    keys: Sequence[ApiKey]
    organizations: Sequence[uuid.UUID]
    endpoint: ModelEndpoint
    catalog_version: int
    accounts: Mapping[tuple[uuid.UUID, str], int]


wishes = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.integers(0, 3),
            "hold": holds,
            "byok_hold": holds,
            "is_byok": st.booleans(),
            "is_old": st.booleans(),
            "is_stale": st.sampled_from([False] * 9 + [True]),
        }
    ),
    min_size=1,
    max_size=4,
)
# The distance of a meter's ceilings above its present values; None is no ceiling.
rooms = st.dictionaries(
    st.integers(0, 4), st.tuples(*[st.sampled_from([None, None, -1, 0, 1])] * 3), max_size=2
)
# The cost minus the hold: 0, negative, slightly positive, or above all credits.
overs = st.just(0) | st.integers(-300, -1) | st.integers(1, 50) | st.integers(100, 3_000)
# The cost of a claim beyond what was allowed; None is no claim.
claims = st.none() | st.just(0) | st.integers(1, 50) | st.integers(100, 3_000)


class LedgerMachine(RuleBasedStateMachine):
    """Runs grants, deposits, holds, settlements, sweeps, refunds, reviews of two organizations."""

    stage: Stage

    @initialize(credits_in=st.tuples(st.integers(1, 3_000), st.integers(1, 300)))
    def begin(self, credits_in: tuple[int, int]) -> None:
        self.savepoint = transaction.savepoint()
        self.books = {organization: Books() for organization in self.stage.organizations}
        self.used: defaultdict[uuid.UUID, Used] = defaultdict(Used)
        self.made: dict[str, Made] = {}
        self.references: set[str] = set()
        # The whole test is one transaction, whose day the meters have.
        self.today = read_now().date()
        self.last: tuple[str, str] | None = None
        for number, amount in enumerate(credits_in):
            self.grant(number, amount)

    def teardown(self) -> None:
        transaction.savepoint_rollback(self.savepoint)

    def organization(self, number: int) -> uuid.UUID:
        return self.stage.organizations[number]

    @rule(number=st.integers(0, 1), amount=amounts)
    def grant(self, number: int, amount: int) -> None:
        ledger.grant(self.organization(number), amount, actor="model")
        books = self.books[self.organization(number)]
        books.credits_in += amount
        books.granted += amount

    @rule(number=st.integers(0, 1), amount=amounts, reference=st.sampled_from("abcd"))
    def deposit(self, number: int, amount: int, reference: str) -> None:
        credited = ledger.credit_deposit(
            self.organization(number), amount, reference=reference, actor="model"
        )
        assert credited == (reference not in self.references)
        if credited:
            self.references.add(reference)
            books = self.books[self.organization(number)]
            books.credits_in += amount
            books.deposited += amount

    @rule(amount=amounts)
    def grant_to_nobody(self, amount: int) -> None:
        with pytest.raises(NotFound):
            ledger.grant(uuid.uuid4(), amount, actor="model")

    @rule(wanted=wishes, rooms=rooms)
    def admit(self, wanted: list[dict[str, Any]], rooms: dict[int, tuple[int | None, ...]]) -> None:
        subjects = sorted(
            {subject for wish in wanted for subject in _subjects(self.stage.keys[wish["key"]])}
        )
        ceilings = {subjects[index % len(subjects)]: limits for index, limits in rooms.items()}
        texts = {s: self._ceiling(s, limits) for s, limits in ceilings.items()}
        batch = {new_generation_id(): self._wish(**wish) for wish in wanted}
        rows = [
            self._row(generation_id, made, key, is_stale)
            for generation_id, (made, key, is_stale) in batch.items()
        ]
        live = {
            generation_id: made
            for generation_id, (made, _, is_stale) in batch.items()
            if not is_stale
        }
        wanted_of: Counter[uuid.UUID] = Counter()
        for made in live.values():
            wanted_of[made.organization] += made.hold
        overdrawn = {
            organization
            for organization, hold in wanted_of.items()
            if hold > self.books[organization].available
        }
        passed = {
            s for s, limits in ceilings.items() if any(n is not None and n < 0 for n in limits)
        }
        placed = {
            generation_id: made
            for generation_id, made in live.items()
            if not (passed & set(made.subjects))
            and not (made.hold and made.organization in overdrawn)
        }
        self.last = json.dumps(rows), json.dumps(list(texts.values()))
        assert self._open() == set(placed)
        for generation_id, made in placed.items():
            self.made[generation_id] = made
            self._age(generation_id)
            self.books[made.organization].held += made.hold
            for subject in made.subjects:
                self.used[subject].amounts.update(
                    held_cost=made.hold, held_byok=made.byok_hold, requests=1
                )

    @precondition(lambda self: self.last is not None)
    @rule()
    def repeat_the_last_admission(self) -> None:
        """Repeats the stored rows of the last admission, as after a lost connection."""
        assert self.last is not None
        ids = {row["id"] for row in json.loads(self.last[0])} & set(self.made)
        rows = json.dumps([row for row in json.loads(self.last[0]) if row["id"] in ids])
        self.last = rows, self.last[1]
        assert self._open() == ids

    def _age(self, generation_id: str) -> None:
        if self.made[generation_id].is_old:
            Journal.objects.filter(pk=generation_id).update(beat_at=timezone.now() - _LONG_AGO)

    def _open(self) -> set[str]:
        with connection.cursor() as cursor:
            rows, ceilings = self.last or ("[]", "[]")
            ids = id_range([row["id"] for row in json.loads(rows)])
            sql.execute(cursor, ADMIT, [rows, ceilings, [], *ids])
            return {row[0] for row in cursor.fetchall()}

    def _wish(
        self, *, key: int, hold: int, byok_hold: int, is_byok: bool, is_old: bool, is_stale: bool
    ) -> tuple[Made, ApiKey, bool]:
        chosen = self.stage.keys[key]
        made = Made(
            chosen.organization_id, _subjects(chosen), hold, byok_hold if is_byok else 0, is_byok,
            is_old,
        )  # fmt: skip
        return made, chosen, is_stale

    def _row(self, generation_id: str, made: Made, key: ApiKey, is_stale: bool) -> dict[str, Any]:
        version = key.organization.routing_version
        return {
            "id": generation_id,
            "organization_id": str(made.organization),
            "workspace_id": str(key.workspace_id),
            "api_key_id": str(key.pk),
            "member_id": str(key.creator_id) if key.creator_id else None,
            "region": "global",
            "operation": "chat/completions",
            "streamed": False,
            "model": "m",
            "model_endpoint_id": str(self.stage.endpoint.pk),
            "provider_name": "p",
            "price_id": self.stage.endpoint.price_id,
            "is_byok": made.is_byok,
            "created_at": (
                timezone.now() - (_LONG_AGO if made.is_old else timedelta())
            ).isoformat(),
            "request_id": "r",
            "hold_nano": made.hold,
            "upstream_hold_nano": made.byok_hold,
            "held_tokens": made.hold,
            "credits_id": self.stage.accounts[made.organization, "credits"],
            "usage_id": self.stage.accounts[made.organization, "usage"],
            "routing_version": version - 1 if is_stale else version,
            "catalog_version": self.stage.catalog_version,
        }

    def _ceiling(self, subject: uuid.UUID, limits: tuple[int | None, ...]) -> dict[str, Any]:
        seen = self.used[subject].amounts
        cost = seen["cost"] + seen["held_cost"]
        total = cost + seen["byok"] + seen["held_byok"]
        levels = zip(
            ("cost", "total", "requests"), (cost, total, seen["requests"]), limits, strict=True
        )
        return {
            "subject_id": str(subject),
            **{name: 2**62 if room is None else level + room for name, level, room in levels},
        }

    @precondition(lambda self: self.made)
    @rule(
        picks=st.lists(st.tuples(st.integers(0, 100), overs, holds, claims), min_size=1, max_size=6)
    )
    def settle(self, picks: list[tuple[int, int, int, int | None]]) -> None:
        """Settles one batch below, at and above the holds; it may include ended generations."""
        batch: dict[str, tuple[int, int, int | None]] = {}
        pending = [i for i, made in self.made.items() if made.status == "pending"]
        ids = [*pending, *[i for i in self.made if i not in pending][-2:]]
        for index, over, upstream, claim in picks:
            generation_id = ids[index % len(ids)]
            made = self.made[generation_id]
            cost = max(made.hold + over, 0)
            batch[generation_id] = (cost, upstream if made.is_byok else cost, claim)
        with connection.cursor() as cursor:
            sql.execute(
                cursor,
                SETTLE,
                settlement_parameters(
                    [
                        Settlement(
                            generation_id,
                            "completed",
                            cost_nano=cost,
                            upstream_cost_nano=upstream,
                            claim=None if claim is None else Claim(7, 9, 7, 8, claim, claim),
                        )
                        for generation_id, (cost, upstream, claim) in batch.items()
                    ]
                ),
            )
            ended = {row[0] for row in cursor.fetchall()}
        assert ended == {i for i in batch if self.made[i].status == "pending"}
        self._end({i: batch[i] for i in ended}, "completed")

    def _end(self, batch: dict[str, tuple[int, int, int | None]], status: str) -> None:
        """Frees the holds of the batch and charges the costs up to them."""
        for generation_id, (whole_cost, upstream, claim) in batch.items():
            made = self.made[generation_id]
            books = self.books[made.organization]
            books.held -= made.hold
            cost = made.paid = min(whole_cost, made.hold)
            # What exceeds the hold is never charged: it waits for an operator, with the claim.
            if claim is not None or whole_cost > cost:
                made.excess = whole_cost - cost + (claim or 0)
            books.credits_out += cost
            books.used += cost
            for subject in made.subjects:
                used = self.used[subject]
                used.amounts.subtract({"held_cost": made.hold, "held_byok": made.byok_hold})
                used.add(self.today, cost=cost, byok=upstream if made.is_byok else 0)
            made.status, made.cost, made.upstream_cost = status, cost, upstream
            made.journal = None

    @precondition(lambda self: any(made.is_reviewed for made in self.made.values()))
    @rule(index=st.integers(0, 100), is_charged=st.booleans())
    def decide(self, index: int, is_charged: bool) -> None:
        """Charges an excess or writes it off; a charge is refused where it is not available."""
        reviewed = [i for i, made in self.made.items() if made.is_reviewed]
        generation_id = reviewed[index % len(reviewed)]
        made = self.made[generation_id]
        books = self.books[made.organization]
        excess = Excess.objects.get(reference=generation_id)
        assert made.excess is not None
        if not is_charged:
            reviews.write_off(excess, by="model")
            books.written_off += made.excess
            books.used += made.excess
            made.decision = "written_off"
        elif made.is_refunded or not 0 < made.excess <= books.available:
            with pytest.raises(NotChargeable):
                reviews.charge(excess, by="model")
        else:
            reviews.charge(excess, by="model")
            books.credits_out += made.excess
            books.used += made.excess
            made.paid += made.excess
            made.decision = "charged"

    @precondition(lambda self: any(made.status == "pending" for made in self.made.values()))
    @rule(index=st.integers(0, 100), prompt=st.integers(0, 3), completion=st.integers(0, 3))
    def beat(self, index: int, prompt: int, completion: int) -> None:
        pending = [i for i, made in self.made.items() if made.status == "pending"]
        generation_id = pending[index % len(pending)]
        made = self.made[generation_id]
        tokens = {"prompt_tokens": prompt, "completion_tokens": completion}
        ended = [
            {"generation_id": i, **tokens} for i, m in self.made.items() if m.status != "pending"
        ]
        with connection.cursor() as cursor:
            sql.execute(
                cursor, JOURNAL, [json.dumps([{"generation_id": generation_id, **tokens}, *ended])]
            )
        made.journal = (prompt, completion)
        self._age(generation_id)

    @rule()
    def sweep(self) -> None:
        abandoned = [i for i, m in self.made.items() if m.status == "pending" and m.is_old]
        assert sweep() == len(abandoned)
        batch = {}
        for generation_id in abandoned:
            made = self.made[generation_id]
            cost = 0
            if made.journal is not None and made.journal[1]:
                price = self.stage.endpoint.price.price
                cost = cost_nano(price, Usage(*made.journal))
            # Beyond the hold an estimate of our own is no claim of the upstream.
            batch[generation_id] = (0 if made.is_byok else min(cost, made.hold), cost, None)
        self._end(batch, "failed")

    @precondition(lambda self: self.made)
    @rule(index=st.integers(0, 100))
    def refund(self, index: int) -> None:
        generation_id = list(self.made)[index % len(self.made)]
        made = self.made[generation_id]
        if made.status == "pending" or not made.paid or made.is_refunded:
            with pytest.raises(ledger.NothingToRefund):
                ledger.refund(generation_id, actor="model")
            return
        assert ledger.refund(generation_id, actor="model").posted_nano == made.paid
        books = self.books[made.organization]
        books.credits_in += made.paid
        books.refunded += made.paid
        made.is_refunded = True

    @rule(days=st.sampled_from([1, 7, 40]))
    def time_passes(self, days: int) -> None:
        """Moves the day of each meter back by ``days``."""
        for subject, used in self.used.items():
            if used.day > date.min:
                used.day -= timedelta(days)
                Meter.objects.filter(subject_id=subject).update(day=used.day)

    @invariant()
    def tables_are_as_the_model_says(self) -> None:
        if not hasattr(self, "books"):
            return
        found: defaultdict[uuid.UUID, dict[str, tuple[int, int, int]]] = defaultdict(dict)
        kinds: dict[int, tuple[uuid.UUID, str]] = {}
        for account in Account.objects.filter(organization__in=self.books):
            kinds[account.pk] = account.organization_id, account.kind
            found[account.organization_id][account.kind] = (
                account.posted_debits, account.posted_credits, account.pending_debits
            )  # fmt: skip
        assert found == {organization: books.rows() for organization, books in self.books.items()}
        for rows in found.values():
            assert sum(credit - debit for debit, credit, _ in rows.values()) == 0
            spent, received, held = rows["credits"]
            assert received - spent - held >= 0

        sums: Counter[tuple[uuid.UUID, str, str]] = Counter()
        status_of: dict[str, str] = {}
        paid: Counter[str] = Counter()
        charged: Counter[str] = Counter()
        for row in Transfer.objects.filter(organization__in=self.books):
            debit, credit = kinds[row.debit_id], kinds[row.credit_id]
            assert debit[0] == credit[0] == row.organization_id
            sums[*debit, "debits"] += row.posted_nano or 0
            sums[*credit, "credits"] += row.posted_nano or 0
            if row.status == "pending":
                sums[*debit, "pending"] += row.amount_nano
            if row.kind == "usage":
                assert row.reference is not None
                status_of[row.reference] = row.status
            if row.kind in ("usage", "excess"):
                paid[row.reference or ""] += row.posted_nano or 0
            if row.kind in ("usage", "excess", "write_off"):
                charged[row.reference or ""] += row.posted_nano or 0
        for organization, rows in found.items():
            for kind, levels in rows.items():
                names = ("debits", "credits", "pending")
                assert levels == tuple(sums[organization, kind, name] for name in names)

        journals = {
            pk: (prompt, completion)
            for pk, prompt, completion in Journal.objects.values_list(
                "pk", "prompt_tokens", "completion_tokens"
            )
        }
        stored = {
            pk: tuple(rest)
            for pk, *rest in Generation.objects.values_list(
                "pk", "status", "hold_nano", "upstream_hold_nano", "cost_nano",
                "upstream_cost_nano",
            )
        }  # fmt: skip
        assert stored == {
            i: (m.status, m.hold, m.byok_hold, m.cost, m.upstream_cost)
            for i, m in self.made.items()
        }
        assert journals == {i: m.journal for i, m in self.made.items() if m.journal is not None}
        for generation_id, made in self.made.items():
            ended = "posted" if min(made.hold, made.cost) else "voided"
            expected = "pending" if made.status == "pending" else ended
            assert status_of.get(generation_id) == (expected if made.hold else None)
            decided = 0 if made.decision == "under_review" else made.excess or 0
            assert (charged[generation_id], paid[generation_id]) == (made.cost + decided, made.paid)
        assert {
            excess.reference: (excess.organization_id, excess.amount_nano, excess.status)
            for excess in Excess.objects.all()
        } == {
            i: (made.organization, made.excess, made.decision)
            for i, made in self.made.items()
            if made.excess is not None
        }
        for check in (BILLING_EXCESSES, VERIFY_EXCESSES, VERIFY_GENERATIONS):
            assert run_check(check) == []

        for meter in Meter.objects.filter(organization__in=self.books):
            used = self.used[meter.subject_id]
            assert meter.day == used.day
            for name in ("held_cost", "held_byok", "requests", *_KINDS, *(
                f"{kind}_{reset}" for kind in _KINDS for reset in LimitReset
            )):  # fmt: skip
                assert getattr(meter, name) == used.amounts[name], name


def _subjects(key: ApiKey) -> tuple[uuid.UUID, ...]:
    found = (key.pk, key.workspace_id, key.creator_id)
    return tuple(subject for subject in found if subject is not None)


def test_ledger_agrees_with_its_model(db: None) -> None:
    keys: list[ApiKey] = []
    organizations: list[uuid.UUID] = []
    for name in ("first", "second"):
        tenant = factories.make_tenant(name, credits_usd=0)
        organizations.append(tenant.organization.pk)
        member = Member.objects.create(organization=tenant.organization, email="a@example.com")
        for number, creator in enumerate((None, member)):
            keys.append(make_key(tenant, f"k{number}", creator=creator))
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    stage = Stage(
        [ApiKey.objects.select_related("organization").get(pk=key.pk) for key in keys],
        organizations,
        endpoint,
        sum(CatalogVersion.objects.values_list("version", flat=True)),
        {
            (account.organization_id, account.kind): account.pk
            for account in Account.objects.filter(organization__in=organizations)
        },
    )
    machine = type("StagedLedger", (LedgerMachine,), {"stage": stage})
    with transaction.atomic():
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=count_examples(100),
                stateful_step_count=40,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
