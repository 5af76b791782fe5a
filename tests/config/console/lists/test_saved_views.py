"""Saved views: whose they are, what they hold, and what happens to those that fit no more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client

from accounts.models import Organization
from config.apps import Role
from config.audit.entries import AuditEntry
from config.console.lists import models
from config.console.lists.models import SavedView, TooManyViews
from config.console.lists.saved_views import ViewBar
from tests.support import factories
from tests.support.console import messages_of
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import sign_in

LIST = "/admin/inference/generation/"
PAGE = "inference.generation"
QUERY = "status__exact=failed&o=-1"


def change(client: Client, do: str, **fields: Any) -> Any:
    return client.post("/admin/views/", {"page": PAGE, "do": do, **fields})


def save(client: Client, name: str = "Failed", query: str = QUERY) -> SavedView:
    response = change(client, "save", name=name, query=query)
    assert response.status_code == 302, response
    return SavedView.objects.latest("pk")


def bar(client: Client, query: str = "") -> ViewBar:
    shown = client.get(f"{LIST}?{query}", headers={"Referer": f"http://testserver{LIST}"})
    found: ViewBar = shown.context["view_bar"]
    return found


@pytest.fixture
def other(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("other"))
    return client


def test_an_operator_saves_and_opens_a_view(operator: Client, tenant: Tenant) -> None:
    failed = factories.make_generation(tenant, status="failed")
    factories.make_generation(tenant)
    # The position in the list is no part of a view, and neither is an empty field.
    query = "status__exact=failed&after=x&model__exact=&p=2"
    response = change(operator, "save", name=" Failed  ones ", query=query)
    view = SavedView.objects.get()
    assert (view.name, view.query, view.page) == ("Failed ones", "status__exact=failed", PAGE)
    assert response.headers["Location"] == f"{LIST}?status__exact=failed&view={view.pk}"

    page = operator.get(response.headers["Location"])
    assert [row.pk for row in page.context["cl"].result_list] == [failed.pk]
    assert messages_of(page) == ['The view "Failed ones" is saved.']
    shown = page.context["view_bar"]
    assert shown.present == view
    assert [url for _, url, _ in shown.links] == [f"?status__exact=failed&view={view.pk}"]
    assert f'href="?status__exact=failed&amp;view={view.pk}" aria-current="page"' in page.text


def test_a_view_of_the_same_name_is_replaced(operator: Client) -> None:
    first = save(operator)
    assert save(operator, query="status__exact=completed").pk == first.pk
    assert SavedView.objects.get().query == "status__exact=completed"


def test_changed_filters_are_no_longer_the_view(operator: Client) -> None:
    view = save(operator)
    assert bar(operator, f"o=-1&status__exact=failed&view={view.pk}").present == view
    changed = bar(operator, f"{QUERY}&model__exact=m&view={view.pk}")
    assert (changed.present, changed.asked) == (None, view)


def test_nobody_sees_or_changes_the_views_of_another(operator: Client, other: Client) -> None:
    mine, theirs = save(operator), save(other, "Theirs")
    assert (bar(operator).views, bar(other).views) == ([mine], [theirs])
    assert bar(other, f"{QUERY}&view={mine.pk}").asked is None
    with snapshots.unchanged():
        for do in ("rename", "delete", "default", "undefault"):
            assert change(other, do, id=mine.pk, name="Stolen").status_code == 404
    # The same name is free for everybody.
    assert save(other).operator_id != mine.operator_id


def test_a_shared_view_is_opened_by_others_and_changed_by_its_operator_alone(
    operator: Client, other: Client, tenant: Tenant
) -> None:
    failed = factories.make_generation(tenant, status="failed")
    factories.make_generation(tenant)
    view, private = save(operator), save(operator, "Private")
    change(operator, "default", id=view.pk)
    told = operator.get(change(operator, "share", id=view.pk).headers["Location"])
    assert messages_of(told)[-1] == (
        'All operators who may see this list now see the view "Failed".'
    )
    assert "Failed (default) (shared)</a>" in told.text
    assert "Stop sharing" in told.text

    # It is no default of others, and they see the private one no more than before.
    assert other.get(LIST, headers={"Referer": "http://testserver/admin/"}).status_code == 200
    shown = bar(other)
    assert (shown.views, shown.shared) == ([], [view])
    opened = other.get(f"{LIST}{shown.shared_links[0][1]}")
    assert [row.pk for row in opened.context["cl"].result_list] == [failed.pk]
    assert "Failed (shared by operator)</a>" in opened.text
    assert (opened.context["view_bar"].present, opened.context["view_bar"].own) == (view, None)
    assert "Change this view" not in opened.text
    assert "Save these filters" in opened.text
    assert bar(other, f"{QUERY}&view={private.pk}").asked is None

    with snapshots.unchanged():
        for do in ("rename", "delete", "default", "undefault", "share", "unshare"):
            assert change(other, do, id=view.pk, name="Stolen").status_code == 404

    # A copy is the reader's own.
    copied = save(other, "Failed")
    assert (bar(other).views, bar(other).shared) == ([copied], [view])
    change(operator, "unshare", id=view.pk)
    assert bar(other).shared == []
    assert bar(other, f"{QUERY}&view={view.pk}").asked is None
    change(operator, "share", id=view.pk)
    change(operator, "delete", id=view.pk)
    assert bar(other).shared == []


def test_a_shared_view_shows_its_reader_nothing_else(operator: Client) -> None:
    """The list is refused to a role that may not see it, and its filters are those of the list."""
    reader = sign_in("reader", Role.READ_ONLY)
    view = save(operator)
    broken = save(operator, "Old", "colour__exact=red")
    for each in (view, broken):
        change(operator, "share", id=each.pk)
    assert bar(reader).shared == [view, broken]
    refused = reader.get(f"{LIST}?colour__exact=red&view={broken.pk}")
    [told] = messages_of(reader.get(refused.headers["Location"]))
    assert told.endswith("Ask operator, who shares it, or choose your own filters.")

    Group.objects.get(name=Role.READ_ONLY).permissions.filter(codename="view_generation").delete()
    assert reader.get(f"{LIST}?{QUERY}&view={view.pk}").status_code == 403
    assert change(reader, "share", id=view.pk).status_code == 403


def test_the_views_of_a_disabled_operator_are_shared_no_more(
    operator: Client, other: Client
) -> None:
    view = save(operator)
    change(operator, "share", id=view.pk)
    User.objects.filter(username="operator").update(is_active=False)
    assert bar(other).shared == []


def test_a_list_has_a_bounded_number_of_shared_views(
    operator: Client, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "MOST_SHARED", 1)
    theirs = save(other, "Theirs")
    change(other, "share", id=theirs.pk)
    change(other, "share", id=theirs.pk)
    view = save(operator)
    with snapshots.unchanged():
        refused = operator.get(change(operator, "share", id=view.pk).headers["Location"])
        assert "must stop sharing a view first" in messages_of(refused)[-1]
    # Each list has its own number.
    elsewhere = {"page": "accounts.organization", "query": "", "name": "All"}
    operator.post("/admin/views/", {"do": "save", **elsewhere})
    second = SavedView.objects.latest("pk")
    operator.post("/admin/views/", {"do": "share", **elsewhere, "id": second.pk})
    second.refresh_from_db()
    assert second.is_shared


def test_sharing_is_in_the_audit_log_without_the_filters(operator: Client) -> None:
    view = save(operator, query="q=canary-of-a-search")
    for do in ("share", "default", "unshare", "delete"):
        change(operator, do, id=view.pk)
    entries = AuditEntry.objects.filter(kind="config.savedview").order_by("pk")
    assert [entry.after for entry in entries][1:] == [
        {"is_shared": True}, {"is_shared": False}, None,
    ]  # fmt: skip
    assert {entry.actor for entry in entries} == {"operator operator"}
    assert "canary-of-a-search" not in str(list(entries.values()))


def test_a_view_is_renamed_and_deleted(operator: Client) -> None:
    view, second = save(operator), save(operator, "Second")
    renamed = operator.get(change(operator, "rename", id=view.pk, name="First").headers["Location"])
    assert messages_of(renamed)[-1] == 'The view is now "First".'
    before = snapshots.everything()
    taken = operator.get(change(operator, "rename", id=second.pk, name="First").headers["Location"])
    assert messages_of(taken) == [
        "Another view of this list has this name. Choose another one; nothing was changed."
    ]
    assert snapshots.everything() == before

    change(operator, "delete", id=view.pk)
    assert bar(operator).views == [second]


def test_the_default_view_opens_from_other_pages(operator: Client, other: Client) -> None:
    first, second = save(operator), save(operator, "Second", "status__exact=completed")
    change(operator, "default", id=first.pk)
    change(operator, "default", id=second.pk)
    assert list(SavedView.objects.filter(is_default=True)) == [second]

    opened = operator.get(LIST, headers={"Referer": "http://testserver/admin/"})
    assert (opened.status_code, opened.headers["Location"]) == (
        302, f"?status__exact=completed&view={second.pk}",
    )  # fmt: skip
    # Links of the list itself, and those of other pages with filters, open what they say.
    assert bar(operator).present is None
    assert operator.get(f"{LIST}?view=all").status_code == 200
    assert operator.get(f"{LIST}?model__exact=m").status_code == 200
    assert operator.get("/admin/inference/generation/live/").status_code == 200
    assert other.get(LIST).status_code == 200

    change(operator, "undefault", id=second.pk)
    assert operator.get(LIST).status_code == 200


def test_a_view_with_a_filter_that_is_gone_says_so(operator: Client) -> None:
    view = save(operator, "Old", "colour__exact=red")
    change(operator, "default", id=view.pk)
    response = operator.get(f"{LIST}?colour__exact=red&view={view.pk}")
    assert (response.status_code, response.headers["Location"]) == (302, f"{LIST}?view=all")
    page = operator.get(response.headers["Location"])

    [told] = [text for text in messages_of(page) if "any more" in text]
    assert told.startswith('The view "Old" has a filter that this list does not take any more.')
    # Without a view, the list says what it always says.
    assert operator.get(f"{LIST}?colour__exact=red").headers["Location"] == f"{LIST}?e=1"


def test_a_filter_by_what_is_gone_shows_nothing(operator: Client, tenant: Tenant) -> None:
    factories.make_generation(tenant)
    gone = Organization.objects.create_organization(name="Gone")
    query = f"organization__id__exact={gone.pk}"
    view = save(operator, "Of Gone", query)
    Organization.objects.filter(pk=gone.pk).update(name="Renamed")

    page = operator.get(f"{LIST}?{query}&view={view.pk}")
    assert page.status_code == 200
    assert list(page.context["cl"].result_list) == []


def test_a_role_without_the_list_has_no_views_of_it(operator: Client, tenant: Tenant) -> None:
    client = sign_in("reader", Role.READ_ONLY)
    save(client)
    Group.objects.get(name=Role.READ_ONLY).permissions.filter(codename="view_generation").delete()
    with snapshots.unchanged():
        assert change(client, "save", name="More", query="").status_code == 403
        assert client.get(f"{LIST}?view={SavedView.objects.get().pk}").status_code == 403
        assert change(operator, "save", name="x", page="auth.nothing").status_code == 404
        assert change(operator, "save", name="x", page="inference.journal").status_code == 404


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": ""}, "Give the view a name."),
        ({"name": "a\x00b"}, "Null characters are not allowed."),
        ({"name": "a\x1bb"}, "must not contain control characters"),
        ({"name": "n" * 61}, "at most 60 characters"),
        ({"name": "n", "query": "q" * 2_001}, "at most 2000 characters"),
        ({"name": "n", "do": "explode"}, "Select a valid choice"),
    ],
)
def test_a_wrong_form_changes_nothing_and_says_why(
    operator: Client, fields: dict[str, str], words: str
) -> None:
    with snapshots.unchanged():
        response = operator.post("/admin/views/", {"page": PAGE, "do": "save", **fields})

        assert response.status_code == 302
        [told] = messages_of(operator.get(response.headers["Location"]))
        assert words in told
        assert told.endswith("Nothing was changed.")


def test_only_post_changes_views_and_only_for_operators(operator: Client, db: None) -> None:
    assert operator.get("/admin/views/").status_code == 405
    refused = change(Client(), "save", name="x", query="")
    assert refused.headers["Location"].startswith("/admin/login/")
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get())
    assert change(strict, "save", name="x", query="").status_code == 403
    assert not SavedView.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_limit_holds_under_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MOST_VIEWS", 3)
    user = User.objects.create_superuser("busy")

    def run(number: int) -> bool:
        try:
            SavedView.objects.save_view(
                operator_id=user.pk, page=PAGE, name=f"view {number}", query=""
            )
        except TooManyViews:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(8) as executor:
        assert sorted(executor.map(run, range(8))) == [False] * 5 + [True] * 3
    assert SavedView.objects.count() == 3


def test_the_views_go_with_their_operator(operator: Client) -> None:
    save(operator)
    User.objects.get(username="operator").delete()
    assert not SavedView.objects.exists()
