"""Measures the console's pages over a large database: python -m tests.bench.pages --scale 1

Fills a database of its own, or uses the one that ``--data-dir`` kept from last time. Prints the
queries, the milliseconds and the milliseconds of CPU of a request, with all of Django's chain and
PostgreSQL: the medians of the rounds, after one round that is not counted. Other work on the
machine changes the time, but hardly the CPU time. Marks pages that are slower than their target or
make more than 15 queries. The duties of ``work`` that read generations, the activity report and the
statistics of models come first.

``--generations 10000000 --partitions 10`` adds generations over ten months, the present included,
each with its transfer, to a fill of a twentieth.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser(prog="python -m tests.bench.pages", description=__doc__)
parser.add_argument(
    "--scale", type=Decimal, default=Decimal("0.01"), help="1: a million generations"
)
parser.add_argument(
    "--generations", type=int, default=0, help="the number to add, in place of --scale"
)
parser.add_argument(
    "--partitions", type=int, default=1, help="the months to spread them over: 1, or 3 or more"
)
parser.add_argument("--data-dir", type=Path, help="keeps the database there for the next time")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--only", default="", help="measures the pages whose names contain this")
options = parser.parse_args()
if options.partitions == 2 or options.partitions < 1:
    parser.error("--partitions is 1, or 3 or more: the fill spreads its rows over 35 days")
temporary = None if options.data_dir else tempfile.TemporaryDirectory(prefix="causeway-pages-")
if temporary is not None:
    # Where PostgreSQL's account cannot enter, the cluster would lie elsewhere, and stay.
    os.chmod(temporary.name, 0o711)

# The fill creates made-up data, so it never uses a database that the caller's environment names.
os.environ["DATABASE_URL"] = "embedded"
os.environ["DATA_DIR"] = str(options.data_dir or temporary.name)
os.environ["ALLOWED_HOSTS"] = "testserver"
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"

import django

django.setup()

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, URLResolver, reverse

from accounts.models import ApiKey, Organization, workspace_for
from billing.models import Deposit, Transfer
from catalog.lists import traffic
from config.console.lists.keysets import Keyset
from config.console.lists.pages import AFTER
from config.partitions.tables import make_all_ahead
from endpoints.models import PrivateEndpoint
from endusers.models import EndUser
from inference.archive.retention import archive_due
from inference.models import Generation
from inference.reports.dashboard import RANGES
from inference.reports.hours import roll_up_hours
from inference.reports.rollups import roll_up_usage
from inference.settlement.sweeper import sweep
from tests.bench.fill.filling import fill
from tests.bench.fill.months import fill_months

# They answer with data, or they redirect.
NO_PAGES = {"autocomplete", "jsi18n", "login", "logout", "search", "view_on_site"}
TARGET_MS = 300
HOME_TARGET_MS = 500
MAX_QUERIES = 15
# The fill that --generations adds to.
FEW = Decimal("0.05")
_FAR = 20_000


def main() -> None:
    call_command("migrate", verbosity=0)
    if not Generation.objects.exists():
        _fill()
    user, _ = User.objects.get_or_create(
        username="bench", defaults={"is_staff": True, "is_superuser": True}
    )
    client = Client(raise_request_exception=True)
    client.force_login(user)
    print(f"{'page':<64}{'queries':>8}{'ms':>9}{'CPU ms':>9}")
    for title, read in _reads():
        if options.only in title:
            _measure(title, read, TARGET_MS)
    for title, path, target in _pages():
        if options.only in title:
            _measure(title, partial(_get, client, path), target)
    connection.close()


def _fill() -> None:
    began = time.monotonic()
    fill(FEW if options.generations else options.scale, messages=sys.stderr)
    if options.generations:
        fill_months(options.generations, options.partitions)
    print(f"filled in {time.monotonic() - began:.1f} s")
    # Autovacuum would do this a minute later.
    with connection.cursor() as cursor:
        cursor.execute("VACUUM")
    if not options.generations:
        began = time.monotonic()
        call_command("verify_ledger")
        print(f"verified in {time.monotonic() - began:.1f} s")


def _reads() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields what reads generations besides pages."""
    for run in (roll_up_usage, roll_up_hours, sweep, make_all_ahead, archive_due):
        yield f"work {run.__name__}", run
    largest = _organizations()[0]
    _, key = ApiKey.objects.create_key(
        workspace=workspace_for(largest.pk, None), name="bench", is_management=True
    )
    client = Client(headers={"Authorization": f"Bearer {key.reveal()}"})
    for path in ("activity", "activity?group_by=workspace", "models?sort=top-weekly"):
        yield f"GET /{path}", partial(_get, client, f"/api/v1/{path}")
    yield "figures of models", traffic.figures


def _pages() -> Iterator[tuple[str, str, int]]:
    """Yields the title, the address and the target in milliseconds of each page."""
    for name in RANGES:
        yield f"home {name}", f"{reverse('admin:index')}?range={name}", HOME_TARGET_MS
    for title, path in (*_lists(), *_views(), *_searches(), *_routes()):
        yield title, path, TARGET_MS


def _lists() -> Iterator[tuple[str, str]]:
    for model in sorted(admin.site._registry, key=lambda model: model._meta.label_lower):
        label = model._meta.label_lower
        yield f"list {label}", reverse(f"admin:{label.replace('.', '_')}_changelist")


def _views() -> Iterator[tuple[str, str]]:
    """Yields the lists with the filters that other pages link to."""
    largest, *_, smallest = _organizations()
    queries = {
        "accounts.apikey": ("status=usable", "status=expired", "is_management__exact=1"),
        "endpoints.privateendpoint": ("status__exact=draft", "status__exact=active"),
        "endpoints.validation": ("outcome__exact=failed", "outcome__in=failed,unreachable"),
        "endusers.enduser": ("is_active__exact=0", "is_active__exact=1"),
        "inference.generation": (
            "since=hour", "since=week", "status__exact=failed", "status__exact=pending",
            "is_byok__exact=1", "streamed__exact=1", "status__exact=cancelled",
        ),
        "inference.feedback": ("category__exact=latency",),
        "billing.transfer": (
            "kind__exact=usage", "kind__exact=deposit", "kind__exact=write_off",
            "status__exact=voided", "status__exact=pending",
        ),
        "billing.topup": ("status__exact=open", "status__exact=confirmed"),
        "billing.deposit": ("status__exact=under", "chain_id__exact=8453"),
        "config.auditentry": ("kind=endusers.enduser", "kind=accounts.apikey"),
    }  # fmt: skip
    for label, wanted in queries.items():
        path = reverse(f"admin:{label.replace('.', '_')}_changelist")
        for query in wanted:
            yield f"list {label} {query}", f"{path}?{query}"
        yield f"list {label} after its middle", f"{path}?{AFTER}={_middle_of(label)}"
        if label not in ("endpoints.validation", "inference.feedback", "config.auditentry"):
            for size, owner in (("largest", largest), ("smallest", smallest)):
                query = f"organization__id__exact={owner.pk}"
                yield f"list {label} of the {size} organization", f"{path}?{query}"


def _middle_of(label: str) -> str:
    """Returns the position of a row in the middle of a list's first 20,000 rows."""
    page = admin.site._registry[apps.get_model(label)]
    keyset = Keyset.of(page.model, [*(page.ordering or page.opts.ordering), "-pk"])
    assert keyset is not None
    rows = keyset.order(page.model._default_manager.all(), backwards=False)
    # As far as a person pages; to count and pass ten million rows takes minutes.
    few = list(rows[:_FAR])
    return keyset.position_of(few[len(few) // 2])


def _searches() -> Iterator[tuple[str, str]]:
    organization = _organizations()[0]
    end_user = EndUser.objects.filter(user__startswith="customer-").latest("created_at")
    generation = Generation.objects.exclude(end_user=None).latest("id")
    key = ApiKey.objects.filter(organization=organization).order_by("id")[0]
    endpoint = PrivateEndpoint.objects.filter(status="active").order_by("id")[0]
    deposit = Deposit.objects.order_by("id")[0]
    transfer = Transfer.objects.exclude(reference=None).latest("id")
    terms = {
        "accounts.organization": (organization.name, organization.slug, organization.pk),
        "accounts.workspace": ("production", organization.name),
        "accounts.apikey": (key.name, key.label, key.digest, key.pk, organization.name),
        "accounts.member": ("ada.", organization.name),
        "catalog.languagemodel": ("claude", "nothing like it"),
        "catalog.priceversion": (endpoint.price_id, endpoint.pk),
        "endpoints.privateendpoint": (
            endpoint.pk, organization.pk, organization.name, "openai", endpoint.upstream_model_id,
            "nothing like it",
        ),
        "endpoints.validation": (endpoint.pk, endpoint.upstream_model_id, "nothing like it"),
        "endusers.enduser": (
            end_user.user, end_user.user[:-2], "customer-1", "nobody", end_user.pk, organization.pk,
        ),
        "inference.generation": (
            generation.pk, generation.pk[:12], key.label, key.digest, key.pk, organization.name,
            generation.end_user, "customer-1", "nobody", f"{generation.created_at:%Y-%m-%d}",
        ),
        "inference.feedback": (generation.pk, generation.pk[:9]),
        "billing.account": (organization.name, organization.pk),
        "billing.transfer": (transfer.reference, organization.pk, "nothing like it"),
        "billing.topup": (deposit.sender, deposit.tx_hash, organization.name, "nothing like it"),
        "billing.deposit": (deposit.sender, deposit.tx_hash, organization.name, "nothing like it"),
        "config.auditentry": (end_user.pk, organization.pk, organization.name, "nobody"),
    }  # fmt: skip
    for label, wanted in terms.items():
        path = reverse(f"admin:{label.replace('.', '_')}_changelist")
        for term in wanted:
            yield f"search {label} {str(term)[:32]}", f"{path}?q={str(term).replace(' ', '+')}"


def _routes() -> Iterator[tuple[str, str]]:
    """Yields every other page and dialog of the console, of the busiest rows that there are."""
    largest = _organizations()[0]
    for pattern in admin.site.get_urls():
        if isinstance(pattern, URLResolver):
            model = apps.get_model(*str(pattern.pattern).strip("/").split("/"))
            yield from _routes_of(model, pattern, largest)
        elif pattern.name and "<" not in str(pattern.pattern) and pattern.name not in NO_PAGES:
            yield f"page {pattern.name}", reverse(f"admin:{pattern.name}")
    for term in ("claude", largest.name, largest.pk, Generation.objects.latest("id").pk):
        yield f"find {str(term)[:32]}", f"{reverse('admin:search')}?s={term}"


def _routes_of(
    model: type[Any], pattern: URLResolver, largest: Organization
) -> Iterator[tuple[str, str]]:
    rows = model._default_manager.all()
    if model is Organization:
        rows = rows.filter(pk=largest.pk)
    elif any(field.name == "organization" for field in model._meta.get_fields()):
        rows = rows.filter(organization=largest)
    row = rows.order_by("pk").last()
    for inner in pattern.url_patterns:
        assert isinstance(inner, URLPattern)
        name, path = inner.name or "", f"/admin/{pattern.pattern}{inner.pattern}"
        if "export" in path or name.endswith(("_changelist", "_history", "_delete")) or not name:
            continue
        if "<" not in path:
            yield f"page {name}", path
        elif row is not None:
            place = re.sub("<[^>]*>", quote(str(row.pk)), path)
            yield f"page {name}", place
            panels = getattr(admin.site._registry[model], "panels", ())
            if "usage" in panels and name.endswith("_change"):
                yield f"page {name} 30 days", f"{place}?usage=30d"


def _organizations() -> list[Organization]:
    """Returns the organizations by their traffic, largest first."""
    return list(Organization.objects.order_by("created_at"))


def _get(client: Client, path: str) -> None:
    response = client.get(path)
    # 302, 403 and 405: what is not offered for this row, nobody may add, or only a form reaches.
    assert response.status_code in (200, 302, 403, 405), (path, response.status_code)


def _measure(title: str, read: Callable[[], object], target: int) -> None:
    times = []
    used = []
    queries = 0
    for _ in range(options.rounds + 1):
        cache.clear()
        used_before = _cpu_ms()
        with CaptureQueriesContext(connection) as captured:
            began = time.perf_counter()
            read()
            times.append((time.perf_counter() - began) * 1000)
        used.append(_cpu_ms() - used_before)
        queries = len(captured)
    median = statistics.median(times[1:])
    notes = [
        *(["slow"] if median > target else []),
        *(["too many queries"] if queries > MAX_QUERIES and "work" not in title else []),
    ]
    cpu = statistics.median(used[1:])
    line = f"{title[:63]:<64}{queries:>8}{median:>9.1f}{cpu:>9.1f}  {', '.join(notes)}"
    print(line.rstrip(), flush=True)


def _cpu_ms() -> float:
    """Returns the CPU time of this process and of its PostgreSQL session, in milliseconds."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [(session,)] = cursor.fetchall()
    # The first number is the time on a CPU, in nanoseconds.
    scheduled = Path(f"/proc/{session}/schedstat").read_text().split()
    return time.process_time() * 1000 + int(scheduled[0]) / 1e6


if __name__ == "__main__":
    main()
