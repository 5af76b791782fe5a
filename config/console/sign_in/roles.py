"""The operators' roles: Django groups, whose permissions the apps declare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from django.apps import apps as global_apps
from django.apps.registry import Apps
from django.db import DEFAULT_DB_ALIAS

from config.apps import Role, declarations

Stored: TypeAlias = Mapping[tuple[str, str], int]
"""The keys of the stored permissions by app and codename."""


def permissions_of(role: Role) -> Iterator[tuple[str, str]]:
    """Yields the app and the codename of each permission of a role."""
    for label, declaration in declarations().items():
        app, model = label.split(".")
        for verb in declaration.verbs_of(role):
            yield app, f"{verb}_{model}"


class RoleKeeper:
    """Creates and fills the roles at ``migrate``, and adds the permissions of new models to them.

    A role is filled when its group is created. Afterwards it gets only permissions that this
    ``migrate`` has created, so that one that an operator removed stays removed.
    """

    def __init__(self) -> None:
        # The permissions before the migrations; None outside of ``migrate``, as in ``flush``.
        self._before: Stored | None = None

    def remember_permissions(
        self, *, using: str = DEFAULT_DB_ALIAS, apps: Apps = global_apps, **_: Any
    ) -> None:
        """Remembers the stored permissions; runs before the first migration."""
        self._before = _find_permissions(using=using, apps=apps)

    def update_roles(
        self, *, using: str = DEFAULT_DB_ALIAS, apps: Apps = global_apps, **_: Any
    ) -> None:
        """Updates the roles; runs after the last migration."""
        before, self._before = self._before, None
        update_roles(before=before, using=using, apps=apps)


def update_roles(
    *, before: Stored | None = None, using: str = DEFAULT_DB_ALIAS, apps: Apps = global_apps
) -> None:
    """Creates and fills the missing roles; gives the others what ``before`` does not contain.

    ``apps`` has the models as far as they are migrated.
    """
    stored = _find_permissions(using=using, apps=apps)
    if not stored:
        return
    Group: Any = apps.get_model("auth", "Group")
    groups = Group.objects.using(using)
    present = set(groups.filter(name__in=list(Role)).values_list("name", flat=True))
    groups.bulk_create([Group(name=role) for role in Role], ignore_conflicts=True)
    known = stored if before is None else before
    link = Group.permissions.through
    links = [
        link(group_id=group.pk, permission_id=stored[permission])
        for group in groups.filter(name__in=list(Role))
        for permission in permissions_of(Role(group.name))
        if permission in stored and (group.name not in present or permission not in known)
    ]
    link._default_manager.using(using).bulk_create(links, ignore_conflicts=True)


def _find_permissions(*, using: str, apps: Apps) -> Stored:
    """Returns the stored permissions; none before the tables of Django's auth exist."""
    try:
        Permission: Any = apps.get_model("auth", "Permission")
    except LookupError:
        return {}
    rows = Permission.objects.using(using).values_list("content_type__app_label", "codename", "pk")
    return {(app, codename): key for app, codename, key in rows}
