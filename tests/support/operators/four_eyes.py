"""Operators who propose and approve, for the tests of change sets."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.test import Client

from config.apps import Role
from config.changes.kinds import ChangeKind
from config.changes.models import ChangeRule, ChangeSet
from config.console.sign_in import roles
from tests.support.console import SUBMIT, messages_of, page

WHY = {"change_reason": "The provider asked for it."}


def demand(*kinds: ChangeKind) -> None:
    """Demands a second person for changes of these kinds."""
    for kind in kinds:
        ChangeRule.objects.get_or_create(kind=kind)[0].require()


def sign_in(name: str, role: Role = Role.ADMINISTRATOR) -> Client:
    """Returns the browser of a new operator with a role."""
    if not Group.objects.filter(name=role).exists():
        roles.update_roles()
    user = User.objects.create_user(name, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    client = Client()
    client.force_login(user)
    return client


def demote(name: str) -> None:
    """Gives an operator the role of Support alone, which replaces no secret."""
    User.objects.get(username=name).groups.set([Group.objects.get(name=Role.SUPPORT)])


def sign_in_with(name: str, *codenames: str) -> Client:
    """Returns the browser of a new operator with these permissions and no role."""
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def proposed() -> ChangeSet:
    """Returns the only change set that waits."""
    return ChangeSet.objects.get(status=ChangeSet.Status.PROPOSED)


def decide(client: Client, change_set: ChangeSet, verb: str = "approve", **fields: str) -> str:
    """Presses a button of a change set; returns the message that follows."""
    answer = client.post(page(change_set, verb), {**SUBMIT, **fields}, follow=True)
    [text] = messages_of(answer)
    change_set.refresh_from_db()
    return text


def approve(client: Client) -> tuple[ChangeSet, str]:
    """Approves the only change set that waits; returns it and the message."""
    change_set = proposed()
    return change_set, decide(client, change_set)


def press(client: Client, row: Any, verb: str, **fields: Any) -> Any:
    """Sends the dialog of an action; returns the page that follows."""
    return client.post(page(row, verb), {**SUBMIT, **fields}, follow=True)
