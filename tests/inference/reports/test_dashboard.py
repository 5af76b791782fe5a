"""The dashboard of the admin: counts, charts, alerts and their roll-ups."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import ApiKey, Member, Organization, remove_member
from billing import ledger
from endpoints.models import PrivateEndpoint
from inference.ids import new_generation_id
from inference.models import Generation, HourlyUsage, UsageDay
from inference.reports.hours import hour_of, roll_up_hours
from inference.reports.rollups import roll_up_usage
from tests.support import factories
from tests.support.factories import Tenant

pytestmark = pytest.mark.usefixtures("fresh_cache")

HOUR = timedelta(hours=1)
TITLES = (
    "Requests", "Tokens", "Revenue", "Error rate", "Active endpoints", "Drafts",
    "Failed validations", "Drifted endpoints", "Refused credentials", "Deposits under review",
    "Excesses under review", "Low balances",
)  # fmt: skip


def make(tenant: Tenant, created_at: datetime, **fields: Any) -> Generation:
    """Creates a generation whose time and id match ``created_at``."""
    number = new_generation_id().rsplit("-", 1)[1]
    made = f"gen-{int(created_at.timestamp())}-{number}"
    return factories.make_generation(tenant, id=made, created_at=created_at, **fields)


def home(client: Client, **query: str) -> dict[str, Any]:
    cache.clear()
    shown: dict[str, Any] = client.get("/admin/", query).context["dashboard"]
    return shown


def values(shown: dict[str, Any]) -> dict[str, str]:
    return {card.title: card.value for card in shown["cards"]}


def test_an_empty_dashboard_explains_what_to_do(operator: Client) -> None:
    shown = home(operator)

    nothing = dict.fromkeys(TITLES, "0")
    assert values(shown) == {**nothing, "Revenue": "$0.00", "Error rate": "0.0%"}
    assert [chart.is_empty for chart in shown["charts"]] == [True] * 3
    text = operator.get("/admin/").content.decode()
    assert "add an API key for it" in text
    assert text.count("Nothing in this range.") == 3


def test_the_dashboard_counts_the_selected_range(operator: Client, tenant: Tenant) -> None:
    now = timezone.now()
    used = {"prompt_tokens": 600_000, "completion_tokens": 700_000, "latency_ms": 30}
    make(tenant, now, cost_nano=1_250_000_000, **used)
    make(tenant, now - 2 * HOUR, status="failed", cost_nano=0, latency_ms=10, end_user="ann")
    make(tenant, now - 30 * HOUR, cost_nano=1_000_000_000, end_user="ann", model="acme/eagle")
    make(tenant, now - 20 * 24 * HOUR, cost_nano=7)

    seen = {}
    for name in ("24h", "7d", "30d", "nonsense"):
        shown = home(operator, range=name)
        numbers = values(shown)
        tops = {top.title: [row[:3:2] for row in top.rows] for top in shown["tops"]}
        seen[name] = (
            *(numbers[title] for title in ("Requests", "Tokens", "Revenue", "Error rate")),
            tops["Top models"],
            tops["Top end users"],
        )

    assert seen["24h"] == (
        "2", "1.3M", "$1.25", "50.0%",
        [("acme/falcon", "2 · $1.25")],
        [("ann (Acme)", "1 · $0.00")],
    )  # fmt: skip
    assert seen["7d"] == (
        "3", "1.3M", "$2.25", "33.3%",
        [("acme/falcon", "2 · $1.25"), ("acme/eagle", "1 · $1.00")],
        [("ann (Acme)", "2 · $1.00")],
    )  # fmt: skip
    assert seen["30d"][:2] == ("4", "1.3M")
    assert seen["nonsense"] == seen["24h"]
    latency = home(operator)["charts"][2]
    assert (latency.summary, latency.highest) == ("20 ms to the first event", "30 ms")


def test_the_dashboard_is_the_same_from_rolled_up_sums(operator: Client, tenant: Tenant) -> None:
    now = timezone.now()
    for hours in (0, 3, 26, 27, 50, 200, 500, 600):
        used = {"cost_nano": 10_000_000 * (hours + 1), "prompt_tokens": hours}
        make(tenant, now - hours * HOUR, end_user=f"user {hours % 2}", latency_ms=hours, **used)
    before = {name: home(operator, range=name) for name in ("24h", "7d", "30d")}

    hours = roll_up_hours()
    assert roll_up_hours() == 0
    assert roll_up_usage() > 0
    after = {name: home(operator, range=name) for name in ("24h", "7d", "30d")}

    assert hours == HourlyUsage.objects.count() == 599
    for name, shown in before.items():
        assert values(shown) == values(after[name])
        assert shown["charts"] == after[name]["charts"]
        assert shown["tops"] == after[name]["tops"]
    assert UsageDay.objects.exists()


def test_hours_are_rolled_up_once_until_the_first_pending_generation(tenant: Tenant) -> None:
    now = timezone.now()
    assert roll_up_hours() == 0
    make(tenant, now - 6 * HOUR)
    waiting = make(tenant, now - 4 * HOUR, status="pending")
    make(tenant, now - 3 * HOUR)
    make(tenant, now)

    assert roll_up_hours() == 2
    Generation.objects.filter(pk=waiting.pk).update(status="completed")
    waiting.journal.delete()
    assert roll_up_hours() == 3
    found = HourlyUsage.objects.order_by("hour").values_list("hour", "requests")
    first = hour_of(now) - 6 * HOUR
    assert [((hour - first) / HOUR, requests) for hour, requests in found] == [
        (0, 1), (1, 0), (2, 1), (3, 1), (4, 0),
    ]  # fmt: skip


def test_numbers_link_to_the_lists_that_they_count(operator: Client, tenant: Tenant) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    credential = factories.make_credential(tenant, provider)
    draft = factories.make_draft(tenant, model, provider)
    factories.make_validation(draft, credential)
    drifted = factories.make_draft(tenant, model, provider, upstream_model_id="other")
    PrivateEndpoint.objects.filter(pk=drifted.pk).update(drifted_at=timezone.now())
    factories.keep_deleted(tenant, model, provider)
    make(tenant, timezone.now(), private_endpoint=draft, end_user="ann & co", cost_nano=5)
    make(tenant, timezone.now(), status="failed", model="acme/eagle")
    for nano in (0, 5):
        factories.make_excess(tenant, nano, f"gen-{nano}")
    shown = home(operator)
    assert values(shown)["Excesses under review"] == "1"

    counts = {}
    for card in shown["cards"]:
        response = operator.get(card.url)
        assert response.status_code == 200, card.url
        if "cl" in response.context:
            counts[card.title] = response.context["cl"].result_count
    assert counts == {
        **dict.fromkeys(TITLES, 0),
        "Requests": 2,
        "Tokens": 2,
        "Revenue": 1,
        "Error rate": 1,
        "Drafts": 2,
        "Drifted endpoints": 1,
        "Excesses under review": 1,
        "Low balances": 1,
    }
    for top in shown["tops"]:
        for row in top.rows:
            response = operator.get(row.url)
            if "cl" in response.context:
                assert response.context["cl"].result_count == int(row.numbers.split()[0])
            else:
                name = row.name.removesuffix(" (Acme)")
                assert str(response.context["original"]).startswith(name)


def ranked(client: Client, **query: str) -> dict[str, list[tuple[str, str, int]]]:
    return {
        top.title.removeprefix("Top "): [(row.name, row.numbers, row.percent) for row in top.rows]
        for top in home(client, **query)["tops"]
    }


def test_rankings_are_by_spend_requests_or_errors(operator: Client, tenant: Tenant) -> None:
    now = timezone.now()
    other = factories.make_tenant("Other")
    ann = Member.objects.create(organization=tenant.organization, email="ann@acme.example")
    busy, _ = ApiKey.objects.create_key(workspace=tenant.workspace, name="busy", creator=ann)
    used = {"api_key": busy, "end_user": "u-1", "model": "acme/eagle"}
    for number in range(3):
        make(tenant, now, status="failed" if number else "completed", cost_nano=0, **used)
    make(tenant, now, cost_nano=2_000_000_001)
    make(other, now, cost_nano=1_000_000_000, end_user="u-2")

    by_spend = ranked(operator)
    assert by_spend == {
        "organizations": [("Acme", "4 · $2.00", 100), ("Other", "1 · $1.00", 49)],
        "keys": [
            ("inference (Acme)", "1 · $2.00", 100),
            ("inference (Other)", "1 · $1.00", 49),
            ("busy (Acme)", "3 · $0.00", 1),
        ],
        "members": [("ann@acme.example (Acme)", "3 · $0.00", 100)],
        "models": [("acme/falcon", "2 · $3.00", 100), ("acme/eagle", "3 · $0.00", 1)],
        "end users": [("u-2 (Other)", "1 · $1.00", 100), ("u-1 (Acme)", "3 · $0.00", 1)],
    }
    assert ranked(operator, by="nonsense") == by_spend
    by_requests = ranked(operator, by="requests", range="7d")
    assert [row[0] for row in by_requests["keys"]] == [
        "busy (Acme)", "inference (Acme)", "inference (Other)",
    ]  # fmt: skip
    assert by_requests["end users"][0] == ("u-1 (Acme)", "3 · $0.00", 100)
    assert ranked(operator, by="errors", range="30d") == {
        "organizations": [("Acme", "2 of 4 failed", 100)],
        "keys": [("busy (Acme)", "2 of 3 failed", 100)],
        "members": [("ann@acme.example (Acme)", "2 of 3 failed", 100)],
        "models": [("acme/eagle", "2 of 3 failed", 100)],
        "end users": [("u-1 (Acme)", "2 of 3 failed", 100)],
    }
    text = operator.get("/admin/", {"range": "7d", "by": "requests"}).content.decode()
    assert 'title="$2.000000001"' in text
    assert 'href="?range=7d&amp;by=errors#most"' in text
    assert 'href="?range=24h&amp;by=requests"' in text


def test_a_deleted_member_is_ranked_by_the_organization(operator: Client, tenant: Tenant) -> None:
    ann = Member.objects.create(organization=tenant.organization, email="ann@acme.example")
    make(tenant, timezone.now(), member_id=ann.pk, cost_nano=1)
    remove_member(ann)

    [row] = next(top for top in home(operator)["tops"] if top.title == "Top members").rows

    assert operator.get(row.url).context["original"] == tenant.organization


def test_alerts_name_organizations_with_low_credits(operator: Client, tenant: Tenant) -> None:
    Organization.objects.create_organization(name="Never paid")
    poor = Organization.objects.create_organization(name="Poor <b>")
    ledger.grant(poor.pk, 4_999_999_999, actor="test")
    enough = Organization.objects.create_organization(name="Enough")
    ledger.grant(enough.pk, 5_000_000_000, actor="test")

    shown = home(operator)
    [(name, left, url)] = shown["alerts"]
    assert (name, left) == ("Poor <b>", "$4.999999999")
    assert operator.get(url).context["original"].organization == poor
    assert values(shown)["Low balances"] == "1"
    assert "<b>" not in operator.get("/admin/").content.decode()


def test_the_dashboard_shows_only_permitted_cards(db: None, tenant: Tenant) -> None:
    user = User.objects.create_user("viewer", is_staff=True)
    client = Client()
    client.force_login(user)
    assert home(client)["cards"] == []

    user.user_permissions.add(Permission.objects.get(codename="view_deposit"))
    assert [*values(home(client))] == ["Deposits under review"]


def test_traffic_is_cached_between_views(operator: Client, tenant: Tenant) -> None:
    home(operator)
    with CaptureQueriesContext(connection) as queries:
        operator.get("/admin/")
    assert not any("FROM inference_generation" in query["sql"] for query in queries)
    assert not any('FROM "inference_generation"' in query["sql"] for query in queries)


def test_charts_draw_the_counts_of_each_hour(operator: Client, tenant: Tenant) -> None:
    now = timezone.now().astimezone(UTC)
    for number in range(4):
        make(tenant, now - HOUR, status="failed" if number == 0 else "completed")
    make(tenant, now)
    [requests, spend, _] = home(operator)["charts"]

    assert [(bar.is_bad, bar.height) for bar in requests.bars if bar.height] == [
        (False, 160.0), (True, 40.0), (False, 40.0),
    ]  # fmt: skip
    assert spend.is_empty
    drawn = re.findall(r"<rect [^>]*><title>([^<]*)", operator.get("/admin/").content.decode())
    start = (hour_of(now) - HOUR).strftime("%H:%M UTC")
    assert drawn[-2:] == [f"{start}: 4 (1 failed)", f"{hour_of(now):%H:%M} UTC: 1 (0 failed)"]
