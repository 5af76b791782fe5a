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


Attempt = Callable[[Client, dict[str, Any]], Any]

ATTEMPTS: dict[str, Attempt] = {
    "make a superuser": lambda client, of: client.post(
        f"{USERS}{of['sue'].pk}/change/", form_of(of["sue"], is_superuser="on")
    ),
    "add a superuser": lambda client, of: client.post(
        f"{USERS}add/", {**NEW, "is_superuser": "on"}
    ),
    "add an operator with a role": lambda client, of: client.post(
        f"{USERS}add/", {**NEW, "groups": [of["beyond"].pk]}
    ),
    "give a permission beyond one's own": lambda client, of: client.post(
        f"{USERS}{of['sue'].pk}/change/",
        form_of(of["sue"], user_permissions=[Permission.objects.get(codename="add_session").pk]),
    ),
    "give a group beyond one's own": lambda client, of: client.post(
        f"{USERS}{of['sue'].pk}/change/", form_of(of["sue"], groups=[of["beyond"].pk])
    ),
    "make oneself a superuser": lambda client, of: client.post(
        f"{USERS}{of['adam'].pk}/change/", {"email": "", "is_superuser": "on"}
    ),
    "give oneself a role": lambda client, of: client.post(
        f"{USERS}{of['adam'].pk}/change/",
        {"email": "", "groups": [Group.objects.get(name=Role.FINANCE).pk]},
    ),
    "give oneself a permission": lambda client, of: client.post(
        f"{USERS}{of['adam'].pk}/change/",
        {"email": "", "user_permissions": [Permission.objects.get(codename="add_session").pk]},
    ),
    "change a superuser's e-mail": lambda client, of: client.post(
        f"{USERS}{of['root'].pk}/change/", form_of(of["root"], email="adam@example.com")
    ),
    "disable a superuser": lambda client, of: client.post(
        f"{USERS}{of['root'].pk}/change/", {"email": ""}
    ),
    "set a superuser's password": lambda client, of: client.post(
        f"{USERS}{of['root'].pk}/password/", {"usable_password": "true", **PASSWORDS}
    ),
    "set the password of who has more": lambda client, of: client.post(
        f"{USERS}{of['max'].pk}/password/", {"usable_password": "true", **PASSWORDS}
    ),
    "change who has more and is inactive": lambda client, of: client.post(
        f"{USERS}{of['max'].pk}/change/", form_of(of["max"], groups=[])
    ),
    "delete a superuser": lambda client, of: client.post(
        f"{USERS}{of['root'].pk}/delete/", {"post": "yes"}
    ),
    "delete a superuser in the list": lambda client, of: client.post(
        USERS, {"action": "delete_selected", "_selected_action": of["root"].pk, "post": "yes"}
    ),
    "edit a superuser in the list": lambda client, of: client.post(
        f"{USERS}?q=root",
        {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": of["root"].pk,
         "form-0-is_active": "", "_save": "Save"},
    ),
    "remove a superuser's second factor": lambda client, of: client.post(
        f"/admin/otp_totp/totpdevice/{of['device'].pk}/remove/", SUBMIT
    ),
    "delete a superuser's second factor": lambda client, of: client.post(
        f"/admin/otp_totp/totpdevice/{of['device'].pk}/delete/", {"post": "yes"}
    ),
    "add a permission to one's own role": lambda client, of: client.post(
        f"{GROUPS}{of['role'].pk}/change/",
        {"name": "Mine", "permissions": [Permission.objects.get(codename="add_session").pk]},
    ),
    "add a permission beyond one's own to a role": lambda client, of: client.post(
        f"{GROUPS}{Group.objects.get(name=Role.SUPPORT).pk}/change/",
        {"name": "Support", "permissions": [Permission.objects.get(codename="add_session").pk]},
    ),
    "create a group beyond one's own": lambda client, of: client.post(
        f"{GROUPS}add/",
        {"name": "Mine", "permissions": [Permission.objects.get(codename="add_session").pk]},
    ),
    "change a group beyond one's own": lambda client, of: client.post(
        f"{GROUPS}{of['beyond'].pk}/change/", {"name": "Beyond", "permissions": []}
    ),
    "delete a group beyond one's own": lambda client, of: client.post(
        f"{GROUPS}{of['beyond'].pk}/delete/", {"post": "yes"}
    ),
    "add a permission": lambda client, of: client.post("/admin/auth/permission/add/", {}),
    "import operators": lambda client, of: client.post(f"{USERS}import/", {}),
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
    role = Group.objects.get(name=Role.ADMINISTRATOR)
    before = state()

    answer = ATTEMPTS[attempt](
        administrator,
        {"adam": adam, "sue": sue, "root": root, "max": high, "beyond": beyond,
         "device": device, "role": role},
    )  # fmt: skip

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
    set_password = {"usable_password": "true", "set-password": "1", **PASSWORDS}
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
    answer = operator.post(path, {"usable_password": "true", **PASSWORDS})

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
