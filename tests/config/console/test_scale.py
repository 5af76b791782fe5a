"""The console over a filled database: the queries of its pages, and the ledger."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Max, Sum
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts.models import ApiKey, Organization, Workspace
from billing.models import Transfer
from catalog.models import LanguageModel, ModelEndpoint, Provider
from config.apps import declarations
from config.audit.entries import AuditEntry
from config.console.sign_in.roles import update_roles
from endpoints.models import PrivateEndpoint
from endusers.models import EndUser
from inference.models import DailyUsage, Generation, HourlyUsage, Journal, UsageDay
from inference.reports.dashboard import RANGES
from inference.reports.hours import HOUR
from inference.reports.rollups import midnight
from inference.reports.usage.sums import PERIODS
from tests.bench.fill import filling
from tests.support import ledger as books
from tests.support.database import snapshots

# pytest-django creates the database only for marked tests; a module fixture runs too early for it.
pytestmark = pytest.mark.django_db

GOLDEN: Final = Path(__file__).with_name("queries.json")
MAX_QUERIES: Final = 15
# The rows of a generation whose pages show usage.
USED: Final[dict[Any, Callable[[Generation], Any]]] = {
    Organization: lambda made: made.organization,
    Workspace: lambda made: made.workspace,
    ApiKey: lambda made: made.api_key,
    EndUser: lambda made: EndUser.objects.get(organization=made.organization, user=made.end_user),
    PrivateEndpoint: lambda made: PrivateEndpoint.objects.filter(deleted_at=None)[0],
    ModelEndpoint: lambda made: ModelEndpoint.objects.get(pk=made.model_endpoint_id),
    LanguageModel: lambda made: LanguageModel.objects.get(slug=made.model),
    Provider: lambda made: Provider.objects.get(name=made.provider_name),
}
UPDATE: Final = (
    "The pages make other queries than tests/queries.json says. If that is meant, run\n"
    "UPDATE_QUERIES=1 .venv/bin/python -m pytest tests/config/console/test_scale.py -n 0"
)


@pytest.fixture(scope="module")
def filled(django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, Any]]:
    """Fills the database with a thousand generations for this module; yields the fill's report."""
    with django_db_blocker.unblock(), transaction.atomic():
        # A test that empties the tables leaves no groups.
        update_roles()
        output = io.StringIO()
        assert filling.main(["--scale", "0.001", "--json"], output=output) == 0
        yield json.loads(output.getvalue())
        transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def _as_it_was(filled: dict[str, Any]) -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
    cache.clear()


@pytest.fixture
def operator() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("operator"))
    return client


def queries(client: Client, path: str) -> int:
    """Returns the number of queries of a page after a first request has warmed the process.

    Once a minute a request also renews its session, whichever page it is for.
    """
    client.get(path)
    cache.clear()
    with CaptureQueriesContext(connection) as captured:
        assert client.get(path).status_code == 200
    return sum(not each["sql"].startswith('UPDATE "django_session"') for each in captured)


def pages() -> Iterator[tuple[str, str]]:
    for name in RANGES:
        yield f"admin:index {name}", f"{reverse('admin:index')}?range={name}"
    for label in sorted(model._meta.label_lower for model in admin.site._registry):
        name = f"admin:{label.replace('.', '_')}_changelist"
        yield name, reverse(name)
    organization = Organization.objects.earliest("created_at")
    for label, declaration in sorted(declarations().items()):
        if declaration.tab is not None:
            name = f"admin:{label.replace('.', '_')}_changelist"
            yield f"{name} tab", f"{reverse(name)}?{declaration.tab.lookup}={organization.pk}"


def pages_with_usage() -> Iterator[tuple[str, str]]:
    made = Generation.objects.exclude(end_user=None).exclude(model_endpoint=None).latest("id")
    for model, page in admin.site._registry.items():
        if "usage" in getattr(page, "panels", ()):
            name = f"admin:{model._meta.label_lower.replace('.', '_')}_change"
            for period in PERIODS:
                path = reverse(name, args=[USED[model](made).pk])
                yield f"{name} {period}", f"{path}?usage={period}"


def test_pages_with_usage_make_few_queries(operator: Client) -> None:
    """Their exact number depends on what their objects have: budgets, keys, traffic."""
    counted = {name: queries(operator, path) for name, path in pages_with_usage()}

    assert len(counted) == len(USED) * len(PERIODS)
    assert {name: count for name, count in counted.items() if count > MAX_QUERIES} == {}


def test_pages_make_the_recorded_number_of_queries(operator: Client) -> None:
    counted = {name: queries(operator, path) for name, path in pages()}

    if os.environ.get("UPDATE_QUERIES"):
        GOLDEN.write_text(json.dumps(counted, indent=2) + "\n")
    assert counted == json.loads(GOLDEN.read_text()), UPDATE
    assert {name: count for name, count in counted.items() if count > MAX_QUERIES} == {}


def test_fill_reports_the_rows_that_it_created(filled: dict[str, Any]) -> None:
    assert {name: filled[name] for name in filled if name != "seconds"} == {
        "organizations": 50,
        "end_users": 1_000,
        "private_endpoints": 100,
        "generations": 1_000,
        "transfers": 5_000,
        "events": 200,
    }
    assert EndUser.objects.count() == 1_000
    assert PrivateEndpoint.objects.count() == 100
    assert Generation.objects.count() == 1_000
    assert Transfer.objects.count() == 5_000
    entry = AuditEntry.objects.get(kind="import")
    assert entry.after == {name: filled[name] for name in filled if name != "seconds"}


def test_the_ledger_of_the_fill_is_in_order() -> None:
    output = io.StringIO()
    call_command("verify_ledger", json=True, stdout=output, stderr=io.StringIO())

    assert json.loads(output.getvalue()) == {"differences": []}
    books.assert_in_order()


def test_fill_leaves_nothing_pending() -> None:
    assert not Generation.objects.filter(status=Generation.Status.PENDING).exists()
    assert not Transfer.objects.pending().exists()
    assert not Journal.objects.exists()


def test_usage_sums_count_every_generation_of_the_fill() -> None:
    last = UsageDay.objects.aggregate(last=Max("day"))["last"]
    made = Generation.objects.filter(created_at__lt=midnight(last) + timedelta(days=1)).count()
    for by_end_user in (False, True):
        summed = DailyUsage.objects.filter(by_end_user=by_end_user)
        assert summed.aggregate(sum=Sum("requests"))["sum"] == made
    end = HourlyUsage.objects.aggregate(last=Max("hour"))["last"] + HOUR
    made = Generation.objects.filter(created_at__lt=end).count()
    assert HourlyUsage.objects.aggregate(sum=Sum("requests"))["sum"] == made


def test_fill_refuses_a_filled_database() -> None:
    with (
        snapshots.unchanged(),
        pytest.raises(
            filling.DatabaseInUse, match=r"^The database holds organizations already \('"
        ),
    ):
        filling.fill(Decimal("0.001"))
