"""Old generations leave: archived, summed, folded; the ledger still proves every balance."""

from __future__ import annotations

import fcntl
import re
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from billing import ledger, reviews
from billing.models import Archived, Excess, Fold, MeterOpening, Opening, Transfer
from config.clocks.leases import Lease
from config.management.commands import work
from config.partitions.spans import MONTH
from config.partitions.tables import make_ahead, read_now
from inference.archive.plans import DirectoryPlace
from inference.archive.ranges import list_ranges
from inference.archive.retention import ARCHIVE_PARTITIONS, RetentionCollector, archive_due
from inference.archive.sealing import list_sealed
from inference.archive.stores import open_store
from inference.models import DailyUsage, Feedback, Generation, HourlyUsage, Journal, UsageDay
from inference.reports import analytics
from tests.support import factories
from tests.support.database import archive, snapshots
from tests.support.database.archive import HOUR, months
from tests.support.factories import Tenant


@pytest.fixture
def place(db: None, tmp_path: Path, settings: LazySettings) -> Path:
    """A divided past, and an archive that takes what is older than a month."""
    archive.let_leave(settings, DirectoryPlace(tmp_path / "archive"))
    return tmp_path / "archive"


@pytest.fixture
def other() -> Tenant:
    return factories.make_tenant("Other")


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def read_sums() -> list[list[Any]]:
    return [list(model.objects.order_by("pk").values_list()) for model in (DailyUsage, HourlyUsage)]


def test_a_range_leaves_and_every_balance_is_still_proved(
    place: Path, tenant: Tenant, other: Tenant
) -> None:
    first, second, third = months()
    kept = archive.fill(tenant, third + 20 * 24 * HOUR)
    gone = {
        first: [*archive.fill(tenant, first + HOUR), *archive.fill(other, first + HOUR)],
        second: archive.fill(tenant, second + HOUR),
    }
    archive.sum_all()
    assert archive.verify() == []
    before = archive.balances()
    sums = read_sums()
    stays = Transfer.objects.exclude(reference__startswith="gen-").count()

    assert archive_due() == 2

    assert set(Generation.objects.values_list("pk", flat=True)) == {row.pk for row in kept}
    assert archive.verify() == []
    assert archive.balances() == before
    assert read_sums() == sums
    assert Transfer.objects.exclude(reference__startswith="gen-").count() == stays
    for fold, rows in zip(Fold.objects.order_by("number"), gone.values(), strict=True):
        files = {file["table"].split("_p")[0]: file for file in fold.files}
        stored = rows_of(place / files["inference_generation"]["name"])
        assert [row["id"] for row in stored] == sorted(row.pk for row in rows)
        assert files["inference_generation"]["rows"] == len(rows)
        moved = rows_of(place / files["billing_transfer"]["name"])
        assert {row["reference"] for row in moved} == {row.pk for row in rows if row.cost_nano}
        assert [row["kind"] for row in moved].count("refund") == len(rows) // 6
    assert list_sealed() == set()
    assert archive_due() == 0


@pytest.fixture
def row(place: Path, tenant: Tenant) -> Generation:
    """A paid generation of the oldest month."""
    return archive.make_old(tenant, months()[0] + HOUR, cost_nano=5)


def test_an_archived_generation_cannot_be_refunded_and_says_why(row: Generation) -> None:
    archive.sum_all()
    archive_due()
    refusal = pytest.raises(Archived, match="Grant the organization credits instead")
    with snapshots.unchanged(), refusal:
        ledger.refund(row.pk, actor="test")


def test_a_sealed_row_cannot_change_and_says_why(row: Generation) -> None:
    archive.seal_oldest(Transfer)
    before = archive.balances()
    with pytest.raises(Archived), transaction.atomic():
        ledger.refund(row.pk, actor="test")
    assert archive.balances() == before
    assert not Transfer.objects.filter(kind="refund").exists()


def test_an_undue_partition_that_was_left_sealed_is_opened(
    row: Generation, settings: LazySettings
) -> None:
    archive.seal_oldest(Transfer)
    settings.RETENTION_DAYS = {}
    archive_due()
    ledger.refund(row.pk, actor="test")
    assert archive.verify() == []


def run_a_generation(tenant: Tenant, row: Generation) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO inference_journal (generation_id, prompt_tokens, completion_tokens, "
            "images, beat_at) VALUES (%s, 0, 0, 0, now())",
            [row.pk],
        )


def leave_a_day_unsummed(tenant: Tenant, row: Generation) -> None:
    UsageDay.objects.filter(day=row.created_at.date()).delete()


def leave_hours_unsummed(tenant: Tenant, row: Generation) -> None:
    HourlyUsage.objects.filter(hour__gte=row.created_at - HOUR).delete()


@pytest.mark.parametrize(
    ("obstruct", "message"),
    [
        (run_a_generation, "a generation of it is running"),
        (archive.open_excess, "an excess of it is under review; charge it or write it off"),
        (leave_a_day_unsummed, "is not summed yet; the duty roll_up_usage does it"),
        (leave_hours_unsummed, "are not summed yet; the duty roll_up_hours does it"),
    ],
)
def test_a_range_that_is_not_whole_stays(
    place: Path,
    row: Generation,
    tenant: Tenant,
    caplog: pytest.LogCaptureFixture,
    obstruct: Any,
    message: str,
) -> None:
    archive.make_old(tenant, months()[1] + HOUR, cost_nano=6)
    archive.sum_all()
    obstruct(tenant, row)
    before, names = snapshots.everything(), archive.partition_names()

    assert archive_due() == 0

    assert message in caplog.text
    assert (snapshots.everything(), archive.partition_names()) == (before, names)
    assert list_sealed() == set()
    assert not place.exists()


def test_no_range_leaves_while_rows_of_a_month_without_work_have_no_partition(
    place: Path, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    """Once the first partitions had left, the rows could not move any more."""
    archive.make_old(tenant, months()[0] + HOUR)
    archive.make_old(tenant, MONTH.following(months()[2]) + HOUR)
    archive.sum_all()
    assert archive_due() == 0
    assert "inference_generation_default has rows of a month without a partition" in caplog.text
    with connection.cursor() as cursor:
        # PostgreSQL alters no table while deferred checks are pending.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    make_ahead(Generation.partitioning)
    make_ahead(Transfer.partitioning)
    assert archive_due() == 2


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The system refuses to write more, as it does on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_nothing_is_dropped_while_the_disk_of_the_archive_is_full(
    place: Path, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    archive.fill(tenant, months()[0] + HOUR)
    archive.sum_all()
    before, names = snapshots.everything(), archive.partition_names()

    with no_file_larger_than(2_000):
        assert archive_due() == 0

    assert "were not archived and stay" in caplog.text
    assert (snapshots.everything(), archive.partition_names()) == (before, names)
    assert [path for path in place.rglob("*") if path.is_file()] == []
    assert list_sealed() == set()
    assert archive_due() > 0
    assert archive.verify() == []


def test_work_once_fails_if_the_archive_does(
    place: Path, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    """A timer that runs it must tell the operator, whose disk fills."""
    archive.fill(tenant, months()[0] + HOUR)
    archive.sum_all()
    [duty] = [each for each in work.DUTIES if each.name == "archive_partitions"]
    with no_file_larger_than(2_000):
        assert not work._run_due([duty], threading.Event())
    assert "archive_partitions is incomplete: generations " in caplog.text
    # It is due again after its interval, as after a success.
    assert work._run_due([duty], threading.Event())


def test_each_month_that_leaves_is_a_success_of_its_duty(place: Path, tenant: Tenant) -> None:
    """Many months may take a slow archive longer than the alert on a late duty waits."""
    archive.fill(tenant, months()[0] + HOUR)
    archive.sum_all()
    now = read_now()
    old = now - timedelta(days=1)
    Lease.objects.create(name=ARCHIVE_PARTITIONS, until=now, succeeded_at=old)
    with no_file_larger_than(2_000):
        assert archive_due([]) == 0
    assert Lease.objects.get().succeeded_at == old
    assert archive_due() > 0
    assert Lease.objects.get().succeeded_at == now


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-9], lambda raw: raw[:4] + bytes(300) + raw[304:]]
)
def test_a_file_of_an_earlier_try_is_used_again_if_it_is_whole(
    place: Path, tenant: Tenant, damage: Callable[[bytes], bytes]
) -> None:
    archive.fill(tenant, months()[0] + HOUR)
    archive.sum_all()
    sid = transaction.savepoint()
    archive_due()
    files = sorted(path for path in place.rglob("*.parquet") if path.stat().st_size > 8_000)
    transaction.savepoint_rollback(sid)
    stamps = {path: path.stat().st_mtime_ns for path in files}
    files[0].write_bytes(damage(files[0].read_bytes()))

    assert archive_due() > 0

    assert rows_of(files[0])
    assert [path.stat().st_mtime_ns for path in files[1:]] == [stamps[path] for path in files[1:]]
    assert archive.verify() == []


def test_without_an_archive_the_sums_alone_stay(
    place: Path, tenant: Tenant, settings: LazySettings
) -> None:
    settings.ARCHIVE_PLACE = None
    archive.fill(tenant, months()[0] + HOUR)
    archive.sum_all()
    assert archive_due() > 0
    assert archive.verify() == []
    assert not place.exists()
    assert Fold.objects.get(number=1).files[0]["rows"] > 0


def test_the_first_partition_leaves_its_grants_and_deposits(
    db: None, tenant: Tenant, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has everything from before the table was divided."""
    settings.RETENTION_DAYS, settings.ARCHIVE_PLACE = {"generations": 31}, None
    ledger.credit_deposit(tenant.organization.pk, 9, reference="deposit:1", actor="test")
    archive.make_old(tenant, archive.old_month() + HOUR, cost_nano=5)
    archive.sum_all()
    [whole, *_] = list_ranges("generations")
    assert whole.begin is None
    [transfers] = whole.of(Transfer)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(f"SELECT reference FROM {transfers.partition.name} ORDER BY 1")
        assert cursor.fetchall()[0] == ("deposit:1",)
    before = archive.balances()
    from_future(monkeypatch, whole.end + timedelta(days=31))

    assert archive_due() == 1

    kept = [("grant", None), ("deposit", "deposit:1")]
    assert list(Transfer.objects.order_by("pk").values_list("kind", "reference")) == kept
    assert (archive.balances(), Fold.objects.get().begin) == (before, "gen-")
    deposit = Transfer.objects.get(kind="deposit")
    assert archive.verify() == [f"transfer {deposit.pk}: there is no credited deposit:1"]


def test_partitions_are_read_before_their_tables_are_locked(place: Path, tenant: Tenant) -> None:
    """A partition with millions of rows is read for seconds, and requests wait for the locks."""
    archive.fill(tenant, months()[0] + HOUR)
    archive.sum_all()
    with CaptureQueriesContext(connection) as captured:
        assert archive_due() == 2
    statements = [each["sql"] for each in captured]
    begin = next(place for place, text in enumerate(statements) if " DETACH PARTITION " in text)
    end = next(
        place for place, text in enumerate(statements)
        if place > begin and text.startswith("SET LOCAL lock_timeout = 0")
    )  # fmt: skip
    locked = [re.sub(r"_p\d{8}", "", text) for text in statements[begin:end]]
    assert locked == [
        'ALTER TABLE "inference_generation" DETACH PARTITION "inference_generation"',
        'ALTER TABLE "billing_transfer" DETACH PARTITION "billing_transfer"',
        'DROP TABLE "inference_generation"',
        'INSERT INTO "billing_transfer_default" SELECT * FROM "kept_billing_transfer"',
        'DROP TABLE "billing_transfer"',
    ]


def test_parts_of_dead_writers_are_removed_and_those_of_living_ones_stay(
    place: Path, tenant: Tenant, settings: LazySettings
) -> None:
    settings.RETENTION_DAYS = {"generations": 36_000}
    folder = place / "billing_transfer"
    folder.mkdir(parents=True)
    dead, alive, other = (folder / name for name in (".a.1.part", ".b.2.part", "c.parquet"))
    for path in (dead, alive, other):
        path.write_bytes(b"PAR1")
    with alive.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert archive_due() == 0
        assert sorted(folder.iterdir()) == [alive, other]
    assert archive_due() == 0
    assert list(folder.iterdir()) == [other]


def test_a_writer_holds_the_lock_of_its_part(place: Path) -> None:
    store = open_store(DirectoryPlace(place))

    def chunks() -> Iterator[bytes]:
        yield b"1"
        store.clear()
        yield b"2"

    store.write("billing_transfer/a", chunks())
    assert (place / "billing_transfer" / "a").read_bytes() == b"12"
    assert [path.name for path in (place / "billing_transfer").iterdir()] == ["a"]


def from_future(monkeypatch: pytest.MonkeyPatch, moment: Any) -> None:
    monkeypatch.setattr("inference.archive.retention.read_now", lambda: moment)


def test_a_sealed_partition_refuses_rows_at_the_database(row: Generation) -> None:
    archive.seal_oldest(Generation)
    with pytest.raises(IntegrityError, match="leaves"), transaction.atomic():
        Generation.objects.filter(pk=row.pk).update(latency_ms=1)


def folded(tenant: Tenant) -> None:
    for month in months()[:2]:
        archive.fill(tenant, month + HOUR)
    archive.sum_all()
    assert archive_due() == 2
    assert archive.verify() == []


@contextmanager
def tampering() -> Iterator[Any]:
    tables = ("billing_fold", "billing_opening", "billing_meteropening")
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield cursor
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


# What was altered, and what must be told of it.
ALTERED: dict[str, tuple[str, list[str]]] = {
    "account": (
        "UPDATE billing_opening SET posted_debits = posted_debits + 1 WHERE fold_id = 1",
        ["account ", "fold 1: its opening balances are not those that were sealed"],
    ),
    "meter": (
        "UPDATE billing_meteropening SET cost = cost + 1 WHERE fold_id = 2",
        ["meter ", "fold 2: its opening balances are not those that were sealed"],
    ),
    "missing": (
        "DELETE FROM billing_fold WHERE number = 1",
        ["fold 1: it is missing, and fold 2 exists"],
    ),
    "unlisted": (
        "DELETE FROM billing_fold WHERE number = 2",
        ["fold 2: it is missing, and has opening balances"],
    ),
    "invented": (
        """INSERT INTO billing_opening SELECT 3, id, 1, 1 FROM billing_account
            WHERE kind = 'credits' LIMIT 1;
            UPDATE billing_account SET posted_debits = posted_debits + 1,
                posted_credits = posted_credits + 1
            WHERE id = (SELECT account_id FROM billing_opening WHERE fold_id = 3)""",
        ["fold 3: it is missing, and has opening balances"],
    ),
    "last": (
        """DELETE FROM billing_fold WHERE number = 2;
            DELETE FROM billing_opening WHERE fold_id = 2;
            DELETE FROM billing_meteropening WHERE fold_id = 2""",
        ["account ", "meter "],
    ),
    "exchanged": (
        """UPDATE billing_fold SET number = CASE number WHEN 1 THEN 12 ELSE 11 END;
            UPDATE billing_fold SET number = number - 10""",
        ["fold 1: its seal is wrong", "fold 1: it does not", "fold 2: its range overlaps"],
    ),
    "files": (
        "UPDATE billing_fold SET files = files || '[1]'::jsonb WHERE number = 1",
        ["fold 1: its seal is wrong; it was altered, or KEY_PEPPERS"],
    ),
    "replayed": (
        """INSERT INTO billing_fold (
                number, begin, "end", files, sums_digest, previous, seal, folded_at
            ) SELECT 11, begin, "end", files, sums_digest, previous, seal, folded_at
            FROM billing_fold WHERE number = 1""",
        [": it is missing, and fold 11 exists", "fold 11: its range overlaps that of fold"],
    ),
}


def test_verify_ledger_finds_an_altered_fold(place: Path, tenant: Tenant) -> None:
    folded(tenant)
    for name, (change, messages) in ALTERED.items():
        with transaction.atomic():
            with tampering() as cursor:
                cursor.execute(change)
            found = archive.verify()
            transaction.set_rollback(True)
        missing = [text for text in messages if not any(text in line for line in found)]
        assert missing == [], (name, found)
    assert archive.verify() == []


def test_a_fold_is_append_only(place: Path, tenant: Tenant) -> None:
    folded(tenant)
    for model in (Fold, Opening, MeterOpening):
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            model.objects.all().delete()


def test_an_older_secret_still_proves_a_seal(
    place: Path, tenant: Tenant, settings: LazySettings
) -> None:
    folded(tenant)
    old = settings.SECRET_KEY
    settings.SECRET_KEY = "another-secret-key-another-secret-key"
    assert all("its seal is wrong" in text for text in archive.verify())
    assert archive.verify() != []
    settings.SECRET_KEY_FALLBACKS = [old]
    assert archive.verify() == []


def test_an_excess_of_an_archived_generation_keeps_its_decision(
    place: Path, tenant: Tenant
) -> None:
    folded(tenant)
    assert Excess.objects.filter(status="charged").exists()
    assert Journal.objects.count() == 0
    assert archive.verify() == []


def test_a_claim_that_costs_nothing_keeps_no_month(row: Generation, tenant: Tenant) -> None:
    """No money moves for it, so its review may come after its generation has left."""
    claim = factories.make_excess(tenant, 0, row.pk)
    archive.sum_all()
    assert archive_due() == 2
    reviews.write_off(claim, by="test")
    assert archive.verify() == []


def test_the_console_shows_feedback_on_an_archived_generation(
    row: Generation, operator: Client
) -> None:
    given = Feedback.objects.submit(row, category="latency", comment="slow", by="test")
    archive.sum_all()
    assert archive_due() == 2
    assert row.pk in operator.get("/admin/inference/feedback/").content.decode()
    page = operator.get(f"/admin/inference/feedback/{given.pk}/change/")
    assert (page.status_code, row.pk in page.content.decode()) == (200, True)


def test_sums_of_archived_days_cannot_be_made_again(place: Path, tenant: Tenant) -> None:
    folded(tenant)
    before, day = snapshots.everything(), months()[0].date() - timedelta(days=1)
    with pytest.raises(CommandError, match="are archived, so their sums cannot be made") as refusal:
        call_command("sum_usage", f"--from={day}", f"--to={day}")
    assert refusal.value.returncode == 1
    assert snapshots.everything() == before


def test_analytics_say_which_days_they_lack(
    place: Path, tenant: Tenant, other: Tenant, management: APIClient
) -> None:
    first, second, third = months()
    folded(tenant)
    now = read_now()

    def ask(start: datetime) -> dict[str, Any]:
        span = {"start": f"{start:%Y-%m-%dT%H:%M:%SZ}", "end": f"{now:%Y-%m-%dT%H:%M:%SZ}"}
        body = {"metrics": ["request_count"], "time_range": span}
        answer = management.post("/api/v1/analytics/query", body, format="json")
        assert answer.status_code == 200, answer.content
        found: dict[str, Any] = answer.json()["data"]
        return found

    assert ask(first)["warnings"] == [
        f"Requests of the days up to {second.date()} are archived and not counted here."
    ]
    assert "warnings" not in ask(third)
    of_another = analytics.Query(other.organization.pk, first, now, ["request_count"])
    assert of_another.run().warnings == []


def test_an_overdue_range_is_measured(place: Path, tenant: Tenant) -> None:
    [metric] = RetentionCollector().collect()
    [sample] = metric.samples
    assert sample.labels == {"kind": "generations"}
    assert sample.value > 20 * 86_400
    archive.sum_all()
    archive_due()
    [metric] = RetentionCollector().collect()
    assert [sample.value for sample in metric.samples] == [0]
