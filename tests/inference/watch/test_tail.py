"""The live page: what it asks for, what each answer costs, and what it leaves alone."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from config.clocks.clock import clock
from inference.admin.live import MOST_QUESTIONS
from inference.models import Generation
from inference.watch import tail
from tests.support import factories
from tests.support.factories import Tenant

pytestmark = pytest.mark.usefixtures("fresh_cache")

PAGE = "/admin/inference/generation/live/"
ROWS = f"{PAGE}rows/"


def ask(client: Client, cursor: str = "", tag: str = "", **query: str) -> Any:
    headers = {"If-None-Match": tag} if tag else {}
    named = {"after": cursor} if cursor else {}
    return client.get(ROWS, {**query, **named}, headers=headers)


def shown(response: Any) -> list[str]:
    """Returns the ids of the rows of an answer."""
    assert response.status_code == 200, response
    return re.findall(r'data-id="([^"]+)"', response.json()["rows"])


def make(tenant: Tenant, seconds_ago: float = 0, **fields: Any) -> Generation:
    created_at = timezone.now() - timedelta(seconds=seconds_ago)
    return factories.make_generation(tenant, created_at=created_at, **fields)


def cursor_at(seconds_ago: int) -> str:
    return f"gen-{int(clock.time()) - seconds_ago}"


def test_the_first_answer_has_the_latest_requests(operator: Client, tenant: Tenant) -> None:
    make(tenant, 4_000)
    made = [make(tenant, age) for age in (1_000, 100, 10)]
    response = ask(operator)

    assert shown(response) == [row.pk for row in reversed(made)]
    assert response.json()["has_gap"] is False
    assert re.fullmatch(r"gen-\d{10}", response.headers["Causeway-Cursor"])


def test_an_answer_has_what_is_new_and_what_may_have_come_late(
    operator: Client, tenant: Tenant
) -> None:
    make(tenant, 30)
    late, new = make(tenant, 11), make(tenant, 1)

    # The rows of five seconds before the cursor come again; the page knows them by their ids.
    response = ask(operator, cursor_at(10))
    assert shown(response) == [new.pk, late.pk]
    assert (response.json()["is_cut"], response.json()["has_gap"]) == (False, False)


def test_a_page_that_asks_late_is_told(operator: Client, tenant: Tenant) -> None:
    make(tenant, 200)
    new = make(tenant, 30)

    response = ask(operator, cursor_at(300))
    assert shown(response) == [new.pk]
    assert response.json()["has_gap"] is True


def test_an_answer_is_bounded_and_says_so(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "MOST_ROWS", 3)
    made = [make(tenant, age) for age in (9, 8, 7, 6, 5)]

    response = ask(operator, cursor_at(10))
    assert shown(response) == [row.pk for row in reversed(made[2:])]
    assert response.json()["is_cut"] is True


def test_requests_that_ran_are_shown_as_they_ended(operator: Client, tenant: Tenant) -> None:
    running, other = (make(tenant, 50, status="pending") for _ in range(2))
    assert "data-running" in ask(operator).json()["rows"]
    Generation.objects.filter(pk=running.pk).update(status="failed", error_type="upstream_error")
    asked = {"running": f"{running.pk},{other.pk},nonsense,gen-1-'"}

    response = ask(operator, cursor_at(2), **asked)
    assert shown(response) == [running.pk]
    assert "upstream_error" in response.json()["rows"]
    assert "data-running" not in response.json()["rows"]


def test_the_filters_are_those_of_the_list(operator: Client, tenant: Tenant) -> None:
    other = factories.make_tenant("Other")
    mine, dear = make(tenant, model="acme/eagle"), make(tenant, cost_nano=2_000_000_000)
    theirs = make(other, status="failed", error_type="timeout")
    for query, expected in (
        ({"model__exact": "acme/eagle"}, [mine]),
        ({"cost_nano__gte": "1"}, [dear]),
        ({"error_type__exact": "timeout"}, [theirs]),
        ({"organization__id__exact": str(other.organization.pk)}, [theirs]),
        ({"status__exact": "failed", "organization__id__exact": str(tenant.organization.pk)}, []),
    ):
        assert shown(ask(operator, **query)) == [row.pk for row in expected], query
        page = operator.get(PAGE, query)
        assert page.status_code == 200
        assert (
            page.context["rows_url"].partition("?")[2] == page.context["list_url"].partition("?")[2]
        )
        assert operator.get(page.context["list_url"]).context["cl"].count_text == str(len(expected))


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"cost_nano__gte": "a lot"}, "A filter has an error"),
        ({"nonsense": "1"}, "no such filter"),
        ({"model__regex": "(a+)+"}, "no such filter"),
    ],
)
def test_a_wrong_filter_is_named(
    operator: Client, tenant: Tenant, query: dict[str, str], words: str
) -> None:
    make(tenant)
    response = ask(operator, **query)

    assert response.status_code == 400
    assert words in response.json()["notice"]
    assert "rows" not in response.json()


def test_an_answer_without_news_is_304_and_renders_nothing(
    operator: Client, tenant: Tenant
) -> None:
    running = make(tenant, status="pending")
    first = ask(operator, cursor_at(3))
    same = ask(operator, cursor_at(3), tag=first.headers["ETag"])
    assert (same.status_code, same.content) == (304, b"")
    assert re.fullmatch(r"gen-\d{10}", same.headers["Causeway-Cursor"])

    Generation.objects.filter(pk=running.pk).update(status="completed")
    assert ask(operator, cursor_at(3), tag=first.headers["ETag"]).status_code == 200


def test_a_question_is_bounded_by_the_partition_and_the_cursor(
    operator: Client, tenant: Tenant
) -> None:
    for age in range(60):
        make(tenant, age)
    with connection.cursor() as cursor:
        # The plan follows the statistics, which autovacuum makes at some time or other.
        cursor.execute("ANALYZE inference_generation")
    for query in ({}, {"provider_name__exact": "None"}, {"status__exact": "failed"}):
        with connection.cursor() as cursor, CaptureQueriesContext(connection) as queries:
            assert ask(operator, cursor_at(2), **query).status_code == 200
            [asked] = [q["sql"] for q in queries if 'FROM "inference_generation"' in q["sql"]]
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute("SET LOCAL enable_bitmapscan = off")
            # Without sorts, only an index in the order of the ids can answer.
            cursor.execute("SET LOCAL enable_sort = off")
            cursor.execute(f"EXPLAIN {asked}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
        assert "LIMIT 101" in asked
        assert re.search(r"Index Cond: .*\(id\)::text >= 'gen-", plan), plan
        # A partition of an earlier month is not read. One for rows of no span always may be.
        read = set(re.findall(r"on (inference_generation_\w+)", plan))
        assert len(read) <= 4, plan


def test_texts_and_large_columns_are_not_read(operator: Client, tenant: Tenant) -> None:
    make(tenant)
    with CaptureQueriesContext(connection) as queries:
        ask(operator)
    [asked] = [q["sql"] for q in queries if 'FROM "inference_generation"' in q["sql"]]

    assert '"attempts"' not in asked
    assert '"trace"' not in asked
    assert len(queries) <= 8


def test_an_operator_with_many_pages_is_slowed_down(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "time", lambda: 1_900_000_000.0)
    statuses = [ask(operator).status_code for _ in range(MOST_QUESTIONS + 2)]
    assert statuses == [200] * MOST_QUESTIONS + [429] * 2

    response = ask(operator)
    assert response.headers["Retry-After"] == "10"
    assert "too many live pages" in response.json()["notice"]
    other = Client()
    other.force_login(User.objects.create_superuser("other"))
    assert ask(other).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_a_filter_that_takes_too_long_is_stopped(
    operator: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tenant)
    monkeypatch.setattr(tail, "_LIMIT_MS", 50)
    page = admin.site._registry[Generation]
    monkeypatch.setattr(
        type(page), "get_queryset",
        lambda *_: Generation.objects.extra(where=["pg_sleep(1) IS NOT NULL"]),
    )  # fmt: skip
    response = ask(operator)

    assert shown(response) == []
    assert "Choose a narrower one" in response.json()["notice"]


def test_rows_escape_what_people_typed(operator: Client, tenant: Tenant) -> None:
    tenant.organization.name = "<script>alert(1)</script>"
    tenant.organization.save(update_fields=["name"])
    make(tenant, model="<b>")

    text = ask(operator).json()["rows"]
    assert "<script>" not in text
    assert "<b>" not in text
    assert "&lt;script&gt;" in text


def test_questions_do_not_keep_a_session_alive(operator: Client, tenant: Tenant) -> None:
    soon = timezone.now() + timedelta(minutes=5)
    Session.objects.update(expire_date=soon)
    background = {"Causeway-Background": "1"}
    assert operator.get(ROWS, headers=background).status_code == 200
    assert Session.objects.get().expire_date == soon

    assert operator.get(PAGE).status_code == 200
    assert Session.objects.get().expire_date > soon


def test_only_get_is_answered(operator: Client) -> None:
    for path in (PAGE, ROWS):
        response = operator.post(path)
        assert (response.status_code, response.headers["Allow"]) == (405, "GET, HEAD")


def test_the_answer_is_json_of_few_members(operator: Client, tenant: Tenant) -> None:
    assert json.loads(ask(operator).content).keys() == {"rows", "is_cut", "has_gap", "notice"}
