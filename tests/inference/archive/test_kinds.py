"""Audit entries, validations and sums of hours leave as generations do, and may come back."""

from __future__ import annotations

import io
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.urls import reverse

from billing.models import Fold
from config.audit import approvals
from config.audit.entries import AuditEntry
from config.models import Departure
from config.partitions.declarations import Partitioning
from config.partitions.tables import count_odd, list_partitions, read_now
from endpoints.models import PrivateEndpoint, Validation
from inference.archive.plans import DirectoryPlace
from inference.archive.retention import archive_due
from inference.models import HourlyUsage
from inference.reports.hours import HOUR, hour_of, sum_hours_again
from inference.reports.rollups import RowsArchived
from tests.support import factories
from tests.support.database import archive, snapshots
from tests.support.factories import Tenant

LONG_AGO = timedelta(days=900)


@pytest.fixture
def place(db: None, tmp_path: Path, settings: LazySettings) -> Path:
    settings.ARCHIVE_PLACE = DirectoryPlace(tmp_path / "archive")
    return tmp_path / "archive"


@pytest.fixture
def old(db: None) -> datetime:
    """A moment that the partitions of these tests begin with, in the middle of a span."""
    return read_now() - LONG_AGO


def note(kind: str, at: datetime, **columns: Any) -> AuditEntry:
    entry = AuditEntry(actor="operator root", action="test", kind=kind, object_id="7", **columns)
    entry.at = at
    entry.save(force_insert=True)
    return entry


def run(*arguments: str) -> dict[str, Any]:
    return archive.run("restore_archive", *arguments)


def refuse(message: str, *arguments: str) -> None:
    """Expects a refusal that changes nothing."""
    with snapshots.unchanged(), pytest.raises(CommandError, match=message):
        run(*arguments)


def past(partitioning: Partitioning, days: int) -> list[str]:
    """The names of the partitions that end this number of days ago or earlier."""
    limit = read_now() - timedelta(days=days)
    return [each.name for each in list_partitions(partitioning) if each.end and each.end <= limit]


def test_audit_entries_leave_but_for_those_by_which_approvals_judge(
    place: Path, old: datetime, settings: LazySettings
) -> None:
    User.objects.create_user("child", is_staff=True)
    made = note("auth.user", old, after={"username": "child"})
    joined = note("auth.user_groups", old, after={"group_id": 1})
    gone = note("accounts.apikey", old, after={"name": "é\t=cmd"})
    new = note("accounts.apikey", read_now(), after={"name": "new"})
    archive.divide_since(AuditEntry.partitioning, old)
    before = archive.dump("config_auditentry")
    settings.RETENTION_DAYS = {"audit": 400}
    leaving = past(AuditEntry.partitioning, 400)
    assert leaving

    assert archive_due() == len(leaving)

    assert set(AuditEntry.objects.values_list("pk", flat=True)) == {made.pk, joined.pk, new.pk}
    assert approvals._makers_of("child") == {"root"}
    assert not set(leaving) & {each.name for each in list_partitions(AuditEntry.partitioning)}
    assert count_odd(AuditEntry.partitioning) == 0
    first = Departure.objects.order_by("id")[0]
    [file] = first.files
    assert (file["table"], file["rows"]) == (leaving[0], 3)
    said = io.StringIO()
    call_command("restore_archive", stdout=said)
    assert f"departure: {first.pk}, kind: audit, begin: " in said.getvalue()
    assert re.findall("{|None", said.getvalue()) == []
    stored = pyarrow.parquet.read_table(place / file["name"]).to_pylist()
    assert [row["id"] for row in stored] == [made.pk, joined.pk, gone.pk]
    assert not Fold.objects.exists()
    assert archive.verify() == []
    assert archive_due() == 0

    refuse("RETENTION_DAYS lets audit leave after 400 days", str(first.pk), "--attach")
    settings.RETENTION_DAYS = {}
    assert run(str(first.pk)) == {"restored": {f"archived_{leaving[0]}": 3}}
    refuse("exists already; drop it with --drop", str(first.pk))
    assert run(str(first.pk), "--drop") == {"dropped": [f"archived_{leaving[0]}"]}
    assert run(str(first.pk), "--attach") == {"attached": {leaving[0]: 3}}
    assert archive.dump("config_auditentry") == before
    refuse(f"The partition {leaving[0]} is there", str(first.pk), "--attach")


def test_the_validation_of_an_endpoint_stays_with_it(
    place: Path, old: datetime, tenant: Tenant, settings: LazySettings
) -> None:
    provider = factories.make_provider()
    endpoint = factories.make_draft(tenant, factories.make_model(), provider)
    credential = factories.make_credential(tenant, provider)
    earlier = factories.make_validation(endpoint, credential)
    present = factories.make_validation(endpoint, credential)
    Validation.objects.update(created_at=old)
    archive.divide_since(Validation.partitioning, old)
    before = archive.dump("endpoints_validation")
    settings.RETENTION_DAYS = {"validations": 100}

    assert archive_due() == len(Departure.objects.all()) > 0

    assert list(Validation.objects.values_list("pk", flat=True)) == [present.pk]
    assert PrivateEndpoint.objects.get(pk=endpoint.pk).validation == present
    assert count_odd(Validation.partitioning) == 0
    settings.RETENTION_DAYS = {}
    first = str(Departure.objects.order_by("id")[0].pk)
    run(first, "--attach")
    assert archive.dump("endpoints_validation") == before
    assert Validation.objects.filter(pk=earlier.pk).exists()


def test_validations_of_an_endpoint_that_is_gone_are_not_attached(
    place: Path, old: datetime, tenant: Tenant, settings: LazySettings
) -> None:
    provider = factories.make_provider()
    endpoint = factories.make_draft(tenant, factories.make_model(), provider)
    factories.make_validation(endpoint, factories.make_credential(tenant, provider))
    PrivateEndpoint.objects.update(validation=None)
    Validation.objects.update(created_at=old)
    archive.divide_since(Validation.partitioning, old)
    settings.RETENTION_DAYS = {"validations": 100}
    archive_due()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE endpoints_attestation DISABLE TRIGGER USER")
    PrivateEndpoint.objects.filter(pk=endpoint.pk)._raw_delete("default")  # type: ignore[attr-defined]
    settings.RETENTION_DAYS = {}
    first = str(Departure.objects.order_by("id")[0].pk)
    refuse("does not fit in any more: .*foreign key", first, "--attach")


def add_hour(hour: datetime) -> None:
    sums = dict.fromkeys(
        ("requests", "failed", "tokens", "cost_nano", "upstream_nano", "latency_ms", "timed"), 3
    )
    HourlyUsage.objects.create(hour=hour, **sums)


def test_sums_of_hours_leave_once_later_ones_are_summed(
    place: Path, old: datetime, settings: LazySettings
) -> None:
    add_hour(hour_of(old))
    archive.divide_since(HourlyUsage.partitioning, old)
    settings.RETENTION_DAYS = {"hours": 31}
    # The duty sums from the last hour on.
    assert archive_due() == 0
    add_hour(hour_of(read_now()) - 3 * HOUR)

    assert archive_due() == len(Departure.objects.all()) > 0

    assert HourlyUsage.objects.count() == 1
    refusal = pytest.raises(RowsArchived, match=r"hours before 20.* are archived")
    with snapshots.unchanged(), refusal:
        sum_hours_again(old, read_now())


def test_days_whose_hours_have_left_are_not_summed_again(
    place: Path, old: datetime, tenant: Tenant, settings: LazySettings
) -> None:
    """Their generations are still there, so the days alone could be."""
    archive.make_old(tenant, old, cost_nano=5)
    add_hour(hour_of(old))
    add_hour(hour_of(read_now()) - 3 * HOUR)
    archive.divide_since(HourlyUsage.partitioning, old)
    settings.RETENTION_DAYS = {"hours": 31}
    assert archive_due() > 0
    before = snapshots.everything()
    with pytest.raises(CommandError, match=r"hours before 20.* are archived") as refusal:
        call_command("sum_usage", f"--from={old:%Y-%m-%d}", f"--to={old:%Y-%m-%d}")
    assert refusal.value.returncode == 1
    assert snapshots.everything() == before


def test_a_departure_is_never_changed_and_an_altered_one_never_restored(
    place: Path, old: datetime, settings: LazySettings
) -> None:
    note("accounts.apikey", old, after={"name": "x"})
    archive.divide_since(AuditEntry.partitioning, old)
    settings.RETENTION_DAYS = {"audit": 400}
    archive_due()
    first = Departure.objects.order_by("id")[0]
    rows = Departure.objects.filter(pk=first.pk)
    for change in (lambda: rows.update(kind="hours"), rows.delete):
        with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
            change()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE config_departure DISABLE TRIGGER USER")
        cursor.execute(
            "UPDATE config_departure SET files = files || files WHERE id = %s", [first.pk]
        )
    refuse("The seal of departure .* is wrong", str(first.pk))
    refuse("There is no departure 0", "0")


def test_a_fold_is_not_attached(tenant: Tenant, place: Path, settings: LazySettings) -> None:
    archive.let_leave(settings, settings.ARCHIVE_PLACE)
    archive.sum_all()
    assert archive_due() == 2
    with pytest.raises(CommandError, match="attached they would count twice"):
        call_command("restore_generations", "1", "--attach")


def test_the_page_shows_partitions_folds_departures_and_what_is_overdue(
    tenant: Tenant, operator: Client, place: Path, old: datetime, settings: LazySettings
) -> None:
    archive.let_leave(settings, settings.ARCHIVE_PLACE)
    archive.divide_since(AuditEntry.partitioning, old)
    archive.sum_all()
    archive_due()
    settings.RETENTION_DAYS = {"audit": 400, "generations": 400}
    late = past(AuditEntry.partitioning, 400)
    url = reverse("admin:config_departure_changelist")

    page = operator.get(url).content.decode()
    assert f"{len(late)} since 20" in page
    assert late[0] in page
    assert "fold" in page.lower()

    archive_due()
    page = operator.get(url).content.decode()
    assert late[0] not in page
    departure = Departure.objects.order_by("-id")[0]
    shown = operator.get(reverse("admin:config_departure_change", args=[departure.pk]))
    assert departure.files[0]["name"] in shown.content.decode()
    assert "right" in shown.content.decode()
