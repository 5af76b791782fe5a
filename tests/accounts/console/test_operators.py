"""What an administrator may not do to operators: each attempt is refused and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.contrib.sessions.models import Session
from django.test import Client
from django_otp.plugins.otp_totp.models import TOTPDevice

from config.apps import Role
from config.console.sign_in import roles
from tests.support.console import SECOND_FACTOR, SUBMIT, messages_of

USERS, GROUPS = "/admin/auth/user/", "/admin/auth/group/"
PASSWORDS = {"password1": "another long password", "password2": "another long password"}
NEW = {"username": "eve", "usable_password": "true", **PASSWORDS}


@pytest.fixture
def root(db: None) -> User:
    return User.objects.create_superuser("root", "root@example.com", "a long enough password")


@pytest.fixture
def adam(root: User) -> User:
    roles.update_roles()
    user = User.objects.create_user("adam", is_staff=True)
    user.groups.add(Group.objects.get(name=Role.ADMINISTRATOR))
    return user


@pytest.fixture
def administrator(adam: User) -> Client:
    client = Client()
    client.force_login(adam)
    return client


@pytest.fixture
def sue(adam: User) -> User:
    """Returns an operator with the role Support."""
    user = User.objects.create_user("sue", is_staff=True)
    user.groups.add(Group.objects.get(name=Role.SUPPORT))
    return user


@pytest.fixture
def beyond(adam: User) -> Group:
    """Returns a group with a permission that no administrator has."""
    group = Group.objects.create(name="Beyond")
    group.permissions.add(Permission.objects.get(codename="change_session"))
    return group


def state() -> list[Any]:
    users = User.objects.order_by("pk").values(
        "pk", "username", "email", "password", "is_staff", "is_superuser", "is_active",
        "groups", "user_permissions",
    )  # fmt: skip
    groups = Group.objects.order_by("pk").values("pk", "name", "permissions")
    return [sorted(map(str, rows)) for rows in (users, groups, TOTPDevice.objects.values())]


def form_of(user: User, **changes: Any) -> dict[str, Any]:
    """Returns the fields of an operator's page that an administrator may fill in."""
    form = {
        "first_name": "", "last_name": "", "email": user.email, "is_staff": "on",
        "is_active": "on", "groups": [group.pk for group in user.groups.all()],
    }  # fmt: skip
    return {**form, **changes}


ROLES = {"role": Role.ADMINISTRATOR, "support": Role.SUPPORT, "finance": Role.FINANCE}
CONFIRMED = {"post": "yes"}
NEW_PASSWORD = {"usable_password": "true", **PASSWORDS}
# The path of each attempt, in which a name stands for its row, and the form that is sent.
ATTEMPTS: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "make a superuser": (
        "auth/user/{sue}/change/", lambda of: form_of(of["sue"], is_superuser="on")),
    "add a superuser": ("auth/user/add/", lambda of: {**NEW, "is_superuser": "on"}),
    "add an operator with a role": (
        "auth/user/add/", lambda of: {**NEW, "groups": [of["beyond"].pk]}),
    "give a permission beyond one's own": (
        "auth/user/{sue}/change/",
        lambda of: form_of(of["sue"], user_permissions=[of["session"].pk])),
    "give a group beyond one's own": (
        "auth/user/{sue}/change/", lambda of: form_of(of["sue"], groups=[of["beyond"].pk])),
    "make oneself a superuser": (
        "auth/user/{adam}/change/", lambda of: {"email": "", "is_superuser": "on"}),
    "give oneself a role": (
        "auth/user/{adam}/change/", lambda of: {"email": "", "groups": [of["finance"].pk]}),
    "give oneself a permission": (
        "auth/user/{adam}/change/",
        lambda of: {"email": "", "user_permissions": [of["session"].pk]}),
    "change a superuser's e-mail": (
        "auth/user/{root}/change/", lambda of: form_of(of["root"], email="adam@example.com")),
    "disable a superuser": ("auth/user/{root}/change/", lambda of: {"email": ""}),
    "set a superuser's password": ("auth/user/{root}/password/", lambda of: NEW_PASSWORD),
    "set the password of who has more": ("auth/user/{max}/password/", lambda of: NEW_PASSWORD),
    "change who has more and is inactive": (
        "auth/user/{max}/change/", lambda of: form_of(of["max"], groups=[])),
    "delete a superuser": ("auth/user/{root}/delete/", lambda of: CONFIRMED),
    "delete a superuser in the list": (
        "auth/user/",
        lambda of: {"action": "delete_selected", "_selected_action": of["root"].pk, **CONFIRMED}),
    "edit a superuser in the list": (
        "auth/user/?q=root",
        lambda of: {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": of["root"].pk,
                    "form-0-is_active": "", "_save": "Save"}),
    "remove a superuser's second factor": (
        "otp_totp/totpdevice/{device}/remove/", lambda of: SUBMIT),
    "delete a superuser's second factor": (
        "otp_totp/totpdevice/{device}/delete/", lambda of: CONFIRMED),
    "add a permission to one's own role": (
        "auth/group/{role}/change/",
        lambda of: {"name": "Mine", "permissions": [of["session"].pk]}),
    "add a permission beyond one's own to a role": (
        "auth/group/{support}/change/",
        lambda of: {"name": "Support", "permissions": [of["session"].pk]}),
    "create a group beyond one's own": (
        "auth/group/add/", lambda of: {"name": "Mine", "permissions": [of["session"].pk]}),
    "change a group beyond one's own": (
        "auth/group/{beyond}/change/", lambda of: {"name": "Beyond", "permissions": []}),
    "delete a group beyond one's own": ("auth/group/{beyond}/delete/", lambda of: CONFIRMED),
    "add a permission": ("auth/permission/add/", lambda of: {}),
    "import operators": ("auth/user/import/", lambda of: {}),
}  # fmt: skip
# The form comes back with an error, or there is no such page; all others are refused with 403.
STATUSES = {
    "give a permission beyond one's own": 200,
    "give a group beyond one's own": 200,
    "add a permission beyond one's own to a role": 200,
    "create a group beyond one's own": 200,
    "edit a superuser in the list": 200,
    "add a permission": 404,
    "import operators": 302,
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_an_administrator_gets_no_further(
    administrator: Client, adam: User, sue: User, root: User, beyond: Group, attempt: str
) -> None:
    high = User.objects.create_user("max", is_staff=True, is_active=False)
    high.groups.add(beyond)
    device = TOTPDevice.objects.create(user=root, name="app", key=SECOND_FACTOR)
    before = state()

    rows = {"adam": adam, "sue": sue, "root": root, "max": high, "beyond": beyond, "device": device}
    rows["session"] = Permission.objects.get(codename="add_session")
    rows |= {name: Group.objects.get(name=role) for name, role in ROLES.items()}
    path, form = ATTEMPTS[attempt]
    pks = {name: row.pk for name, row in rows.items()}
    answer = administrator.post(f"/admin/{path.format(**pks)}", form(rows))

    assert answer.status_code == STATUSES.get(attempt, 403)
    assert state() == before


def test_an_administrator_sees_a_superuser_without_a_form(
    administrator: Client, root: User
) -> None:
    text = administrator.get(f"{USERS}{root.pk}/change/").content.decode()

    assert "root@example.com" in text
    assert 'name="email"' not in text
    assert root.password not in text


def test_an_administrator_manages_operators_with_no_more_permissions(
    administrator: Client, sue: User
) -> None:
    finance = Group.objects.get(name=Role.FINANCE)
    form = form_of(sue, email="sue@example.com", groups=[finance.pk])
    assert administrator.post(f"{USERS}{sue.pk}/change/", form).status_code == 302
    set_password = {**NEW_PASSWORD, "set-password": "1"}
    assert administrator.post(f"{USERS}{sue.pk}/password/", set_password).status_code == 302
    assert administrator.post(f"{USERS}add/", NEW).status_code == 302

    sue.refresh_from_db()
    assert (sue.email, list(sue.groups.all())) == ("sue@example.com", [finance])
    assert sue.check_password("another long password")
    eve = User.objects.get(username="eve")
    assert (eve.is_staff, eve.is_superuser, eve.groups.count()) == (False, False, 0)


def test_an_administrator_offers_only_what_they_have(
    administrator: Client, sue: User, beyond: Group
) -> None:
    form = administrator.get(f"{USERS}{sue.pk}/change/").context["adminform"].form

    assert "is_superuser" not in form.fields
    names = set(form.fields["groups"].queryset.values_list("name", flat=True))
    assert names == set(Role)
    offered = set(form.fields["user_permissions"].queryset)
    role = Group.objects.get(name=Role.ADMINISTRATOR)
    assert offered == set(role.permissions.all())


def test_a_superuser_makes_a_superuser(operator: Client, sue: User) -> None:
    form = form_of(sue, is_superuser="on")
    assert operator.post(f"{USERS}{sue.pk}/change/", form).status_code == 302

    sue.refresh_from_db()
    assert sue.is_superuser


def test_name_of_an_operator_is_fixed(operator: Client, sue: User) -> None:
    operator.post(f"{USERS}{sue.pk}/change/", form_of(sue, username="ann"))

    sue.refresh_from_db()
    assert sue.username == "sue"


@pytest.mark.parametrize("prefix", ["", "0", "+", "%20"])
def test_own_password_needs_the_old_one(operator: Client, prefix: str) -> None:
    own = User.objects.get(username="operator")
    path = f"{USERS}{prefix}{own.pk}/password/"
    answer = operator.post(path, NEW_PASSWORD)

    assert answer["Location"] == "/admin/password_change/"
    own.refresh_from_db()
    assert not own.check_password("another long password")
    assert Session.objects.count() == 1


def test_own_second_factor_is_removed_with_its_code_only(operator: Client) -> None:
    own = User.objects.get(username="operator")
    device = TOTPDevice.objects.create(user=own, name="app", key=SECOND_FACTOR, confirmed=False)
    answer = operator.post(f"/admin/otp_totp/totpdevice/{device.pk}/remove/", SUBMIT)

    assert answer.status_code == 403
    assert TOTPDevice.objects.get() == device


def test_an_administrator_removes_a_lost_second_factor(administrator: Client, sue: User) -> None:
    device = TOTPDevice.objects.create(user=sue, name="app", key=SECOND_FACTOR)
    path = f"/admin/otp_totp/totpdevice/{device.pk}/remove/"
    answer = administrator.post(path, SUBMIT, follow=True)

    assert messages_of(answer) == ["The second factor of sue is removed."]
    assert not TOTPDevice.objects.exists()


def test_pages_name_permissions_shortly_and_show_no_part_of_a_hash(
    administrator: Client, sue: User
) -> None:
    sue.set_password("a long enough password")
    sue.save()
    text = administrator.get(f"{USERS}{sue.pk}/change/").content.decode()
    assert "A password is set." in text
    assert "pbkdf2" not in text
    assert not any(part in text for part in sue.password.split("$")[2:])
    group = sue.groups.get()
    for page in (text, administrator.get(f"{GROUPS}{group.pk}/change/").content.decode()):
        assert ">API key: change</option>" in page
        assert "Can change" not in page
    sue.set_unusable_password()
    sue.save()
    assert "No password set." in administrator.get(f"{USERS}{sue.pk}/change/").content.decode()
