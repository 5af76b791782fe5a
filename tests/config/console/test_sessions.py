"""Operators' sessions: what a dump of them is worth, and when they end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings as configured
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from config.console.sign_in.recognition import _ask
from config.console.sign_in.sessions import SIGNED_IN_AT, SessionStore, digest_session_key

COOKIE = configured.SESSION_COOKIE_NAME
OLD = "an earlier secret key of 32 characters"


def is_inside(client: Client) -> bool:
    return client.get("/admin/").status_code == 200


def with_cookie(key: str) -> Client:
    client = Client()
    client.cookies[COOKIE] = key
    return client


def shift(row: Session, seconds: int) -> None:
    """Moves the sign-in of a stored session into the past."""
    store = SessionStore()
    data = store.decode(row.session_data)
    data[SIGNED_IN_AT] -= seconds
    Session.objects.filter(pk=row.pk).update(session_data=store.encode(data))


def test_login_without_a_page_to_return_to_leads_to_the_console(db: None) -> None:
    User.objects.create_superuser("operator", password="a long enough password")
    given = {"username": "operator", "password": "a long enough password"}
    answer = Client().post("/admin/login/", given)
    assert (answer.status_code, answer["Location"]) == (302, "/admin/")


def test_row_has_a_digest_and_the_digest_is_no_cookie(operator: Client) -> None:
    key = operator.cookies[COOKIE].value
    row = Session.objects.get()

    assert row.session_key == digest_session_key(key)
    assert key not in row.session_key + row.session_data
    assert is_inside(operator)
    assert not is_inside(with_cookie(row.session_key))
    assert not is_inside(with_cookie(row.session_key[:32]))


def test_sign_out_deletes_the_row(operator: Client) -> None:
    key = operator.cookies[COOKIE].value
    operator.post("/admin/logout/")

    assert not Session.objects.exists()
    assert not is_inside(with_cookie(key))


def test_idle_session_ends(operator: Client) -> None:
    Session.objects.update(expire_date=timezone.now() - timedelta(seconds=30))

    assert not is_inside(operator)


def test_form_may_be_the_first_request_after_a_while(operator: Client, settings: Any) -> None:
    """Puts off the end of the session while its operator is still to be found."""
    late = timezone.now() + timedelta(seconds=settings.SESSION_IDLE_TIMEOUT / 2)
    Session.objects.update(expire_date=late)
    answer = operator.post("/admin/password_change/", {"old_password": "wrong"})

    assert answer.status_code == 200
    assert Session.objects.get().expire_date > late


def test_used_session_ends_after_its_lifetime(operator: Client, settings: Any) -> None:
    row = Session.objects.get()
    shift(row, settings.SESSION_LIFETIME - 60)
    assert is_inside(operator)
    left = Session.objects.get().expire_date - timezone.now()
    assert left <= timedelta(seconds=60)

    shift(Session.objects.get(), 61)
    assert not is_inside(operator)


def test_shorter_settings_hold_for_open_sessions(operator: Client, settings: Any) -> None:
    settings.SESSION_IDLE_TIMEOUT = 600
    assert is_inside(operator)
    assert Session.objects.get().expire_date <= timezone.now() + timedelta(seconds=600)

    shift(Session.objects.get(), 120)
    settings.SESSION_LIFETIME = 100
    assert not is_inside(operator)


def test_new_password_does_not_put_off_the_end(db: None, settings: Any) -> None:
    user = User.objects.create_superuser("ann", password="a long enough password")
    client = Client()
    client.force_login(user)
    shift(Session.objects.get(), 1_000)
    begun = SessionStore(client.cookies[COOKIE].value)[SIGNED_IN_AT]
    form = {"old_password": "a long enough password"} | {
        f"new_password{place}": "another long password" for place in (1, 2)
    }
    assert client.post("/admin/password_change/", form).status_code == 302

    assert is_inside(client)
    assert SessionStore(client.cookies[COOKIE].value)[SIGNED_IN_AT] == begun


def test_row_is_written_at_most_once_a_minute(operator: Client) -> None:
    def writes() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert is_inside(operator)
        return sum(query["sql"].startswith("UPDATE") for query in queries)

    assert (writes(), writes()) == (0, 0)
    Session.objects.update(expire_date=timezone.now() + timedelta(minutes=5))
    assert (writes(), writes()) == (1, 0)
    assert Session.objects.get().expire_date > timezone.now() + timedelta(minutes=110)


def test_earlier_secret_keys_find_a_session(db: None, settings: Any) -> None:
    present = settings.SECRET_KEY
    user = User.objects.create_superuser("ann")
    settings.SECRET_KEY = OLD
    client = Client()
    client.force_login(user)

    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = present, [OLD]
    assert is_inside(client)
    [row] = Session.objects.all()
    assert row.session_key == digest_session_key(client.cookies[COOKIE].value)

    settings.SECRET_KEY_FALLBACKS = []
    assert is_inside(client)


def test_clearsessions_deletes_only_what_has_ended(operator: Client) -> None:
    ended = SessionStore()
    ended["left"] = "behind"
    ended.save()
    Session.objects.filter(pk=digest_session_key(ended.session_key or "")).update(
        expire_date=timezone.now() - timedelta(days=1)
    )
    call_command("clearsessions")

    assert Session.objects.count() == 1
    assert is_inside(operator)


def test_recognition_before_a_large_body_leaves_a_session_of_an_older_secret_to_the_request(
    db: None, settings: Any
) -> None:
    user = User.objects.create_superuser("root", "root@example.com", "a long enough password")
    settings.SECRET_KEY, present = OLD, settings.SECRET_KEY
    client = Client()
    client.force_login(user)
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = present, [OLD]
    request = RequestFactory().post("/admin/")
    request.COOKIES[COOKIE] = client.cookies[COOKIE].value

    # The browser never receives the answer of the recognition, so its cookie must stay valid.
    assert _ask(request).status_code == 204
    assert is_inside(client)
