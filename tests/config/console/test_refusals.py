"""The page that an operator gets instead of a page that is not theirs, and its line in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from config.apps import Role
from config.console.sign_in import roles
from tests.support.machine.logs import own_records

PAGE = "/admin/auth/user/"


@pytest.fixture
def support(db: None) -> Client:
    roles.update_roles()
    user = User.objects.create_user("sue", is_staff=True)
    user.groups.add(Group.objects.get(name=Role.SUPPORT))
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    return client


def lines(caplog: Any) -> list[tuple[str, str, bool]]:
    return [(one.levelname, one.getMessage(), bool(one.exc_info)) for one in own_records(caplog)]


def test_refused_page_is_english_and_one_line_of_the_log(support: Client, caplog: Any) -> None:
    with caplog.at_level(logging.INFO):
        answer = support.get(PAGE)

    text = " ".join(answer.content.decode().split())
    assert (answer.status_code, answer["Content-Type"]) == (403, "text/html; charset=utf-8")
    assert "Your account may not open this page or do this. Nothing was changed." in text
    assert "Your roles: Support. Ask an administrator if you need another one." in text
    assert lines(caplog) == [
        ("WARNING", f"refused GET {PAGE}: no permission (operator 'sue')", False)
    ]


def test_form_without_a_token_is_refused_in_english(support: Client, caplog: Any) -> None:
    with caplog.at_level(logging.INFO):
        answer = support.post("/admin/two-factor/", {"otp_token": "000000"})

    text = " ".join(answer.content.decode().split())
    assert (answer.status_code, answer["Content-Type"]) == (403, "text/html; charset=utf-8")
    assert "Go back, reload the page and send the form again." in text
    [(level, line, has_traceback)] = lines(caplog)
    assert (level, has_traceback) == ("WARNING", False)
    assert (
        line == "refused POST /admin/two-factor/: CSRF check: CSRF cookie not set. (operator 'sue')"
    )


@pytest.mark.parametrize("path", ["/admin/nothing/", "/admin/accounts/nothing/", "/admin/r/1/2/"])
def test_missing_page_of_the_console_is_english(support: Client, path: str, caplog: Any) -> None:
    answer = support.get(path)

    assert (answer.status_code, answer["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "There is no such page" in answer.content.decode()
    assert [line for level, line, _ in lines(caplog) if level == "ERROR"] == []


def test_missing_page_of_the_console_shows_strangers_the_login(db: None) -> None:
    answer = Client().get("/admin/nothing/")

    assert (answer.status_code, answer["Location"]) == (302, "/admin/login/?next=/admin/nothing/")
