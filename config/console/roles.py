"""The operators' roles: Django groups, whose permissions the apps declare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps as global_apps
from django.apps.registry import Apps
from django.db import DEFAULT_DB_ALIAS

from config.apps import Role, declarations


def permissions_of(role: Role) -> Iterator[tuple[str, str]]:
    """Yields the app and the codename of each permission of a role."""
    for label, declaration in declarations().items():
        app, model = label.split(".")
        for verb in declaration.verbs_of(role):
            yield app, f"{verb}_{model}"


def update_roles(*, using: str = DEFAULT_DB_ALIAS, apps: Apps = global_apps, **_: Any) -> None:
    """Creates the roles and adds the permissions that they lack; removes none.

    Runs at the end of every ``migrate``. A permission that an operator added to a role stays; one
    that an operator removed comes back. ``apps`` has the models as far as they are migrated.
    """
    try:
        Group: Any = apps.get_model("auth", "Group")
        Permission: Any = apps.get_model("auth", "Permission")
    except LookupError:
        return
    groups = Group.objects.using(using)
    groups.bulk_create([Group(name=role) for role in Role], ignore_conflicts=True)
    rows = Permission.objects.using(using).values_list("content_type__app_label", "codename", "pk")
    stored = {(app, codename): key for app, codename, key in rows}
    link = Group.permissions.through
    links = [
        link(group_id=group.pk, permission_id=stored[permission])
        for group in groups.filter(name__in=list(Role))
        for permission in permissions_of(Role(group.name))
        if permission in stored
    ]
    link._default_manager.using(using).bulk_create(links, ignore_conflicts=True)
