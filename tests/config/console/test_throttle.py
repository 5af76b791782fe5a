"""Limits of sign-ins: what counts, whom a lock keeps out, and who lifts it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth import hashers
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import timezone

from config.apps import Role
from config.audit.entries import AuditEntry
from config.console.sign_in.models import SignInLimit
from config.console.sign_in.throttle import clean_account, clear_limits, network_of
from tests.support.console import messages_of, page
from tests.support.machine.logs import own_records
from tests.support.operators.four_eyes import press, sign_in

PASSWORD = "a long enough password"
LOGIN = "/admin/login/?next=/admin/"
HERE, THERE = "203.0.113.7", "198.51.100.9"


@pytest.fixture(autouse=True)
def _from_everywhere(settings: LazySettings) -> None:
    """Opens the console to the addresses of this module, which are public ones."""
    settings.CONSOLE_NETWORKS = ["*"]


@pytest.fixture
def user(db: None) -> User:
    return User.objects.create_superuser("ann", password=PASSWORD)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the list of the passwords that are hashed from now on."""
    found: list[str] = []
    encode = hashers.MD5PasswordHasher.encode

    def spy(self: Any, password: str, salt: str) -> str:
        found.append(password)
        return encode(self, password, salt)

    monkeypatch.setattr(hashers.MD5PasswordHasher, "encode", spy)
    return found


def log_in(
    account: str = "ann", *, password: str = PASSWORD, address: str = HERE, code: str = ""
) -> Any:
    form = {"username": account, "password": password, "otp_token": code}
    return Client().post(LOGIN, form, REMOTE_ADDR=address)


def fail(times: int, account: str = "ann", *, address: str = HERE) -> list[int]:
    return [log_in(account, password="wrong", address=address).status_code for _ in range(times)]


def outcomes() -> list[str]:
    entries = AuditEntry.objects.filter(kind="sign_in").order_by("id")
    return [entry.after["outcome"] for entry in entries]


def test_lock_follows_five_failures_and_hashes_nothing(user: User, hashed: list[str]) -> None:
    assert fail(5) == [200] * 5
    assert len(hashed) == 5

    answer = log_in()

    assert answer.status_code == 429
    assert 890 < int(answer["Retry-After"]) <= 900
    text = answer.content.decode()
    assert "Too many attempts have failed. Try again in 15 minutes, or ask an administrator" in text
    assert PASSWORD not in text
    assert len(hashed) == 5
    assert outcomes() == ["failed"] * 5 + ["locked"]
    assert Client().get(LOGIN, REMOTE_ADDR=HERE).status_code == 200


def test_lock_of_one_address_leaves_the_others_alone(user: User) -> None:
    fail(5)

    assert log_in().status_code == 429
    assert log_in(address=THERE).status_code == 302
    assert log_in("bob", password="wrong").status_code == 200


def test_unknown_accounts_count_and_cost_the_same(user: User, hashed: list[str]) -> None:
    assert fail(6, "nobody") == [200] * 5 + [429]
    assert len(hashed) == 5


def test_address_is_locked_over_all_accounts(user: User) -> None:
    for number in range(20):
        assert fail(1, f"name {number}") == [200]

    assert log_in().status_code == 429
    assert log_in(address=THERE).status_code == 302


def test_a_locked_address_spares_an_account_that_signed_in_from_it(user: User) -> None:
    User.objects.create_superuser("bob", password=PASSWORD)
    assert log_in().status_code == 302
    assert [*map(fail, [1] * 20, [f"name {number}" for number in range(20)])] == [[200]] * 20

    assert log_in("bob").status_code == 429
    assert log_in().status_code == 302
    # It is still held by its own limit, which alone counts for it.
    assert fail(6) == [200] * 5 + [429]
    assert SignInLimit.objects.get(scope="address").failures == 20


def test_account_is_locked_over_all_addresses_but_familiar_ones(user: User) -> None:
    assert log_in(address=THERE).status_code == 302
    for number in range(30):
        assert fail(1, address=f"192.0.2.{number}") == [200]

    strange = log_in(address=HERE)
    assert (strange.status_code, int(strange["Retry-After"]) > 900) == (429, True)
    assert log_in(address=THERE).status_code == 302
    SignInLimit.objects.filter(scope="pair", network=THERE).update(
        signed_in_at=timezone.now() - timedelta(days=31)
    )
    assert log_in(address=THERE).status_code == 429


def test_refused_attempts_do_not_put_off_the_end_of_a_lock(user: User) -> None:
    fail(5)
    before = list(SignInLimit.objects.order_by("id").values_list())
    for _ in range(3):
        assert log_in().status_code == 429
    assert list(SignInLimit.objects.order_by("id").values_list()) == before

    SignInLimit.objects.update(resets_at=timezone.now() - timedelta(hours=1))
    assert log_in().status_code == 302
    assert fail(5) == [200] * 5


def test_success_forgets_the_failures_of_the_pair_alone(user: User) -> None:
    fail(4)
    assert log_in().status_code == 302

    assert fail(5) == [200] * 5
    found = SignInLimit.objects.values_list("scope", "failures").order_by("scope")
    assert dict(found) == {"account": 4, "address": 4, "pair": 5}


def test_success_does_not_prolong_the_failures_before_it(user: User) -> None:
    fail(4)
    soon = timezone.now() + timedelta(minutes=1)
    SignInLimit.objects.update(resets_at=soon)
    assert log_in().status_code == 302
    assert set(SignInLimit.objects.values_list("resets_at", flat=True)) == {soon}
    assert fail(1) == [200]
    # The address is familiar now, so the failure counts for the two together alone.
    assert SignInLimit.objects.filter(resets_at__gt=soon).count() == 1


@pytest.mark.django_db(transaction=True)
def test_attempts_at_the_same_time_cannot_pass_the_limit(
    together: Callable[..., list[Any]],
) -> None:
    User.objects.create_superuser("ann", password=PASSWORD)
    connection.close()
    done = together(*[partial(fail, 1)] * 12)

    assert sorted(status for [status] in done) == [200] * 5 + [429] * 7


def test_old_password_is_guessed_as_rarely(user: User, hashed: list[str]) -> None:
    client = Client(REMOTE_ADDR=HERE)
    client.force_login(user)
    new = {f"new_password{place}": "another long password" for place in (1, 2)}
    for _ in range(5):
        refused = client.post("/admin/password_change/", {"old_password": "x", **new})
        assert refused.status_code == 200
    count = len(hashed)
    answer = client.post("/admin/password_change/", {"old_password": PASSWORD, **new})

    assert (answer.status_code, len(hashed)) == (429, count)
    user.refresh_from_db()
    assert user.check_password(PASSWORD)


def test_each_attempt_is_a_line_of_the_log(user: User, caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "causeway.sign_in"):
        log_in("an\nn", password="secret one")
        client = Client(REMOTE_ADDR=HERE)
        client.post(LOGIN, {"username": "ann", "password": PASSWORD})
        client.post("/admin/logout/")

    assert [(one.levelname, one.getMessage()) for one in own_records(caplog)] == [
        ("WARNING", f"sign-in: failed, account 'an?n', address '{HERE}' (invalid_login)"),
        ("INFO", f"sign-in: signed_in, account 'ann', address '{HERE}'"),
        ("INFO", f"sign-in: signed_out, account 'ann', address '{HERE}'"),
    ]
    entries = AuditEntry.objects.filter(kind="sign_in").order_by("id")
    assert [(entry.actor, entry.action, entry.object_id) for entry in entries] == [
        (f"address {HERE}", "sign-in: failed", "an?n"),
        ("operator ann", "sign-in: signed_in", "ann"),
        ("operator ann", "sign-in: signed_out", "ann"),
    ]
    assert "secret one" not in str(list(AuditEntry.objects.values()))


@pytest.fixture
def administrator(db: None) -> Client:
    return sign_in("adam", Role.ADMINISTRATOR)


@pytest.mark.parametrize("way", ["page", "list"])
def test_an_administrator_lifts_a_lock(user: User, administrator: Client, way: str) -> None:
    fail(5)
    limit = SignInLimit.objects.get(scope="pair")
    shown = administrator.get("/admin/config/signinlimit/?state=locked").content.decode()
    assert f"/admin/config/signinlimit/{limit.pk}/change/" in shown
    if way == "page":
        press(administrator, limit, "lift")
    else:
        form = {"action": "lift_locks", "_selected_action": limit.pk, "confirmed": "yes"}
        administrator.post("/admin/config/signinlimit/", form)

    assert log_in().status_code == 302
    entry = AuditEntry.objects.filter(kind="sign_in", after__outcome="lifted").get()
    assert (entry.actor, entry.object_id) == ("operator adam", "ann")


def test_lift_of_what_is_not_locked_is_refused(user: User, administrator: Client) -> None:
    fail(4)
    limit = SignInLimit.objects.get(scope="pair")
    answer = press(administrator, limit, "lift")

    assert messages_of(answer) == ["This is not locked, so there is no lock to lift."]
    limit.refresh_from_db()
    assert limit.failures == 4


def test_audit_log_shows_sign_ins(user: User, operator: Client) -> None:
    fail(1)
    entry = AuditEntry.objects.get(kind="sign_in")
    listed = operator.get("/admin/config/auditentry/?kind=sign_in").content.decode()

    assert "sign-in ann" in listed
    assert f"address {HERE}" in operator.get(page(entry)).content.decode()


def test_old_counters_are_cleared(user: User) -> None:
    fail(1)
    log_in(address=THERE)
    SignInLimit.objects.update(resets_at=timezone.now() - timedelta(days=2))
    fail(1, "eve")

    assert clear_limits() == 3
    assert set(SignInLimit.objects.values_list("account", "network")) == {
        ("ann", THERE), ("", HERE), ("eve", ""), ("eve", HERE),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "unknown"),
        ("testclient", "unknown"),
    ],
)
def test_an_ipv6_address_counts_by_its_network(address: str, network: str) -> None:
    assert network_of(address) == network


def test_account_is_cleaned_and_cut() -> None:
    assert clean_account("a\x00b\nc" + "d" * 200) == "a?b?c" + "d" * 145
