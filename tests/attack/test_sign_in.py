"""Attacks on operators' sign-ins: guesses, stolen sessions, and an administrator who wants more."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pytest
import requests
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Group, Permission, User
from django.contrib.sessions.models import Session
from django.utils import timezone

from config.apps import Role
from config.audit.entries import AuditEntry
from config.console.sign_in import roles
from config.console.sign_in.models import SignInLimit
from config.console.sign_in.sessions import SIGNED_IN_AT, SessionStore
from tests.support.attack import attack
from tests.support.bulkheads.counters import read_counter
from tests.support.inference.site import Site
from tests.support.processes import Served

PASSWORD: Final = "a long enough password"
LOGIN: Final = "/admin/login/?next=/admin/"
HERE, THERE, ELSEWHERE = "10.0.113.7", "172.16.100.9", "192.168.2.1"
# What services in processes of their own know: a password costs as much as in production.
COSTLY: Final = "pbkdf2_sha256"
OUTCOMES: Final = ("signed_in", "failed", "refused", "busy", "locked", "lifted")


@dataclass
class Browser:
    """A person at the console, behind a proxy on loopback that names their address."""

    server: str
    address: str = HERE
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, path: str) -> requests.Response:
        return self.send("GET", path)

    def post(self, path: str, form: dict[str, Any]) -> requests.Response:
        if "csrftoken" not in self.cookies:
            self.get(LOGIN)
        token = self.cookies["csrftoken"]
        return self.send("POST", path, data={"csrfmiddlewaretoken": token, **form})

    def sign_in(self, account: str, password: str = PASSWORD) -> requests.Response:
        return self.post(LOGIN, {"username": account, "password": password, "otp_token": ""})

    def is_inside(self) -> bool:
        return self.get("/admin/").status_code == 200

    def send(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {
            "Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items()),
            "X-Forwarded-For": self.address,
        }
        answer = requests.request(
            method,
            self.server + path,
            headers=headers,
            allow_redirects=False,
            timeout=60,
            **options,
        )
        self.cookies.update(answer.cookies.get_dict())
        return answer


def make_operator(name: str, *, role: Role | None = None, hasher: str = "default") -> User:
    """Creates an operator; without a role, a superuser."""
    roles.update_roles()
    user = User.objects.create(
        username=name,
        password=make_password(PASSWORD, hasher=hasher),
        is_staff=True,
        is_superuser=role is None,
    )
    if role is not None:
        user.groups.add(Group.objects.get(name=role))
    return user


def count(server: str) -> Counter[str]:
    name = "causeway_sign_ins_total"
    return Counter({each: int(read_counter(server, name, outcome=each)) for each in OUTCOMES})


def test_parallel_guesses_do_not_touch_the_api(
    service: Site, is_served: Callable[[], bool]
) -> None:
    make_operator("ann", hasher=COSTLY)
    before = count(service.server)
    reader = Browser(service.server)
    reader.get(LOGIN)
    guessers = [Browser(service.server, cookies=dict(reader.cookies)) for _ in range(40)]
    start = threading.Barrier(len(guessers))

    def guess(guesser: Browser) -> int:
        start.wait(30)
        return guesser.sign_in("ann", "wrong").status_code

    statuses = Counter(attack([partial(guess, guesser) for guesser in guessers], is_served))

    assert statuses.keys() <= {200, 429, 503}
    counted = count(service.server) - before
    # Each guess that was hashed failed; the rest was refused before that.
    assert 1 <= statuses[200] <= 5
    assert counted["failed"] == statuses[200]
    assert counted["refused"] + counted["busy"] == 40 - statuses[200]
    assert counted["signed_in"] == 0
    entries = AuditEntry.objects.filter(kind="sign_in", after__outcome="failed")
    assert entries.count() == statuses[200]


def test_a_lock_holds_in_all_workers_for_one_address_and_an_administrator_lifts_it(
    service: Site,
) -> None:
    make_operator("ann", hasher=COSTLY)
    make_operator("adam", role=Role.ADMINISTRATOR, hasher=COSTLY)
    before = count(service.server)
    for _ in range(5):
        assert Browser(service.server).sign_in("ann", "wrong").status_code == 200
    locked = [Browser(service.server).sign_in("ann") for _ in range(4)]

    assert [answer.status_code for answer in locked] == [429] * 4
    assert all(800 < int(answer.headers["Retry-After"]) <= 900 for answer in locked)
    assert "Too many attempts have failed." in locked[0].text
    assert Browser(service.server, THERE).sign_in("ann").status_code == 302

    administrator = Browser(service.server, ELSEWHERE)
    administrator.sign_in("adam")
    limit = SignInLimit.objects.get(scope="pair", account="ann", network=HERE)
    administrator.post(f"/admin/config/signinlimit/{limit.pk}/lift/", {"_form_submitted": "True"})

    owner = Browser(service.server)
    assert owner.sign_in("ann").status_code == 302
    assert owner.is_inside()
    assert count(service.server) - before == Counter(
        failed=5, locked=1, refused=4, signed_in=3, lifted=1
    )
    found = AuditEntry.objects.filter(kind="sign_in").order_by("id")
    assert [entry.after["outcome"] for entry in found] == [
        *["failed"] * 5, "locked", "signed_in", "signed_in", "lifted", "signed_in",
    ]  # fmt: skip


def test_unknown_accounts_are_locked_alike(site: Site) -> None:
    answers = [Browser(site.server).sign_in("nobody", "wrong") for _ in range(6)]

    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    assert not User.objects.filter(username="nobody").exists()


def test_a_dump_of_the_sessions_is_no_sign_in(site: Site) -> None:
    make_operator("ann")
    ann = Browser(site.server)
    ann.sign_in("ann")
    row = Session.objects.get()

    for value in (row.session_key, row.session_key[:32], row.session_data):
        assert not Browser(site.server, cookies={"sessionid": value}).is_inside()
    assert Browser(site.server, cookies={"sessionid": ann.cookies["sessionid"]}).is_inside()


def test_the_server_ends_sessions(site: Site) -> None:
    make_operator("ann")
    for end in ("idle", "old"):
        ann = Browser(site.server)
        ann.sign_in("ann")
        assert ann.is_inside()
        row = Session.objects.get()
        if end == "idle":
            Session.objects.update(expire_date=timezone.now() - timedelta(seconds=30))
        else:
            data = SessionStore().decode(row.session_data)
            data[SIGNED_IN_AT] -= 43_200
            Session.objects.update(session_data=SessionStore().encode(data))
        assert not ann.is_inside()
        assert ann.get("/admin/").headers["Location"] == LOGIN
        Session.objects.all().delete()


def test_a_signed_out_session_is_worth_nothing(site: Site) -> None:
    make_operator("ann")
    ann = Browser(site.server)
    ann.sign_in("ann")
    kept = dict(ann.cookies)
    assert ann.post("/admin/logout/", {}).status_code == 200

    assert not Browser(site.server, cookies=kept).is_inside()
    assert not Session.objects.exists()


def privileges() -> list[Any]:
    columns = ("username", "email", "password", "is_staff", "is_superuser", "is_active",
               "groups", "user_permissions")  # fmt: skip
    rows = User.objects.order_by("pk", "groups", "user_permissions").values_list(*columns)
    groups = Group.objects.order_by("pk", "permissions").values_list("name", "permissions")
    return [*rows, *groups]


@pytest.fixture
def attempts(site: Site) -> list[tuple[str, dict[str, Any]]]:
    """Returns the forms by which the administrator adam could try to become a superuser."""
    root = make_operator("root")
    adam = make_operator("adam", role=Role.ADMINISTRATOR)
    sue = make_operator("sue", role=Role.SUPPORT)
    own = Group.objects.get(name=Role.ADMINISTRATOR).pk
    support = Group.objects.get(name=Role.SUPPORT).pk
    beyond = Permission.objects.get(codename="change_session").pk
    password = {"password1": "another long password", "password2": "another long password",
                "usable_password": "true", "set-password": "Set"}  # fmt: skip
    users, groups = "/admin/auth/user", "/admin/auth/group"
    active = {"is_staff": "on", "is_active": "on"}
    return [
        (f"{users}/add/", {"username": "eve", "is_superuser": "on", **password}),
        (f"{users}/{adam.pk}/change/", {**active, "is_superuser": "on"}),
        (f"{users}/{adam.pk}/change/", {"groups": [own, support]}),
        (f"{users}/{adam.pk}/change/", {"user_permissions": [beyond]}),
        (f"{users}/{adam.pk}/password/", password),
        (f"{users}/{sue.pk}/change/", {**active, "is_superuser": "on"}),
        (f"{users}/{sue.pk}/change/", {**active, "user_permissions": [beyond]}),
        (f"{users}/{root.pk}/change/", {**active, "email": "adam@example.com"}),
        (f"{users}/{root.pk}/password/", password),
        (f"{users}/{root.pk}/delete/", {"post": "yes"}),
        (f"{users}/", {"action": "delete_selected", "_selected_action": root.pk, "post": "yes"}),
        (f"{groups}/{own}/change/", {"name": "Administrator", "permissions": [beyond]}),
        (f"{groups}/{own}/delete/", {"post": "yes"}),
        (f"{groups}/{support}/change/", {"name": "Support", "permissions": [beyond]}),
        (f"{groups}/add/", {"name": "Mine", "permissions": [beyond]}),
    ]


def test_an_administrator_cannot_become_a_superuser(
    site: Site, attempts: list[tuple[str, dict[str, Any]]]
) -> None:
    adam = Browser(site.server)
    adam.sign_in("adam")
    before = privileges()
    for path, form in attempts:
        answer = adam.post(path, form)
        # The own password is changed on a page that asks for the old one.
        is_elsewhere = answer.headers.get("Location") == "/admin/password_change/"
        assert answer.status_code in (200, 403) or is_elsewhere, path
        assert privileges() == before, path
    assert adam.is_inside()


def test_a_refused_page_is_one_line_of_the_log(service: Site, running_service: Served) -> None:
    make_operator("sue", role=Role.SUPPORT, hasher=COSTLY)
    begin = len(running_service.log)
    sue = Browser(service.server)
    sue.sign_in("sue")
    answer = sue.get("/admin/auth/user/")
    forged = sue.send("POST", "/admin/two-factor/", data={"otp_token": "1"})
    causes = ("no permission", "CSRF check")
    service.eventually(lambda: all(each in running_service.log[begin:] for each in causes))
    log = running_service.log[begin:]

    assert (answer.status_code, answer.headers["Content-Type"]) == (403, "text/html; charset=utf-8")
    assert "Your account may not open this page or do this." in answer.text
    assert (forged.status_code, "reload the page" in forged.text) == (403, True)
    [page, form] = [line for line in log.splitlines() if "refused" in line and "/admin/" in line]
    assert "refused GET /admin/auth/user/: no permission (operator 'sue')" in page
    assert "refused POST /admin/two-factor/: CSRF check" in form
    assert "Traceback" not in log
    assert PASSWORD not in log
