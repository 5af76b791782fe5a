"""Judges whether one operator may approve what another asked for.

The audit log tells who made an account and when it got a permission, by the database's time. What
happened without an entry, such as ``createsuperuser``, was done by somebody with access to the
server.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.contrib.auth.models import Group, Permission, User
from django.db.models import Q, QuerySet

from config.audit.entries import AuditEntry

_PREFIX: Final = "operator "
# The entries by which an account begins, or begins again.
_BEGINNING: Final = Q(before__isnull=True) | Q(after__is_active=True)
_MISSING: Final = "Only an operator of the console can approve this."
_TOO_NEW: Final = (
    "Your account was created or enabled after this was asked for. An operator who was there "
    "before must approve it, or it must be asked for again."
)
_ROLE_TOO_NEW: Final = (
    "You received the permission to approve after this was asked for. An operator who had it "
    "before must approve it, or it must be asked for again."
)
_MADE: Final = (
    "One of the two accounts was created by the other, or got its password from it, directly or "
    "through further accounts. An operator with an independent account must approve this."
)


def find_objection(
    approver: str, *, requester: str, permission: str, since: datetime
) -> str | None:
    """Returns why one actor may not approve what the other asked for at a time, or ``None``.

    Both are named as in the audit log; ``permission`` is one such as ``billing.add_transfer``.
    """
    name = approver.removeprefix(_PREFIX)
    user = User.objects.filter(username=name).first()
    if user is None or name == approver:
        return _MISSING
    own = AuditEntry.objects.filter(kind="auth.user", object_id=str(user.pk), at__gte=since)
    if user.date_joined >= since or own.filter(_BEGINNING).exists():
        return _TOO_NEW
    if not _had_permission(user, permission, since):
        return _ROLE_TOO_NEW
    other = requester.removeprefix(_PREFIX)
    if other != requester and (other in _makers_of(name) or name in _makers_of(other)):
        return _MADE
    return None


def _had_permission(user: User, permission: str, since: datetime) -> bool:
    """Returns whether an operator has a permission by something older than a time."""
    app, _, codename = permission.partition(".")
    row = Permission.objects.get(content_type__app_label=app, codename=codename)
    recent = AuditEntry.objects.filter(at__gte=since)
    own = recent.filter(object_id=str(user.pk))
    is_new_superuser = own.filter(kind="auth.user", after__is_superuser=True).exists()
    if user.is_superuser and not is_new_superuser:
        return True
    links = own.filter(kind="auth.user_user_permissions", before__isnull=True)
    if (
        user.user_permissions.filter(pk=row.pk).exists()
        and not links.filter(after__permission_id=row.pk).exists()
    ):
        return True
    return any(
        not own.filter(
            kind="auth.user_groups", before__isnull=True, after__group_id=group.pk
        ).exists()
        and not recent.filter(
            kind="auth.group_permissions",
            object_id=str(group.pk),
            before__isnull=True,
            after__permission_id=row.pk,
        ).exists()
        for group in Group.objects.filter(user=user, permissions=row)
    )


def _makers_of(name: str) -> set[str]:
    """Returns the operators who made an account, the accounts of these, and so on.

    The maker of an account is the operator who created it, and the one other than the owner who
    last set its password. That operator can sign in as the owner and replace the password.
    """
    found: set[str] = set()
    left = [name]
    while left:
        for maker in _direct_makers_of(left.pop()) - found - {name}:
            found.add(maker)
            left.append(maker)
    return found


def _direct_makers_of(name: str) -> set[str]:
    accounts = AuditEntry.objects.filter(kind="auth.user")
    creations: QuerySet[Any] = accounts.filter(before__isnull=True, after__username=name)
    actors = set(creations.values_list("actor", flat=True))
    keys = set(creations.values_list("object_id", flat=True))
    keys |= {str(key) for key in User.objects.filter(username=name).values_list("pk", flat=True)}
    for key in keys:
        changes = accounts.filter(
            ~Q(actor=f"{_PREFIX}{name}"),
            object_id=key,
            before__isnull=False,
            after__has_key="password",
        )
        actors |= set(changes.order_by("-id").values_list("actor", flat=True)[:1])
    return {actor.removeprefix(_PREFIX) for actor in actors if actor.startswith(_PREFIX)}
