"""Whose account and which group an operator may change, and what they may give.

Nobody but a superuser gives anybody a permission that they lack themselves, or changes the account
of somebody who has one: with its password they would have it too.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.db.models import Q, QuerySet


def grantable_permissions(operator: User) -> QuerySet[Permission]:
    """Returns the permissions that an operator has and may therefore give to others."""
    rows = Permission.objects.all()
    return rows if operator.is_superuser else rows.filter(pk__in=_granted_to(operator))


def grantable_groups(operator: User) -> QuerySet[Group]:
    """Returns the groups without a permission that an operator lacks."""
    lacking = Permission.objects.exclude(pk__in=grantable_permissions(operator).values("pk"))
    return Group.objects.exclude(permissions__in=lacking)


def may_change_operator(operator: User, other: User) -> bool:
    """Returns whether an operator may change the account of another, or their own."""
    if operator.is_superuser:
        return True
    return not other.is_superuser and set(_granted_to(other)) <= set(_granted_to(operator))


def may_change_group(operator: User, group: Group) -> bool:
    """Returns whether an operator may change a group; an own one only as a superuser."""
    if operator.is_superuser:
        return True
    is_own = operator.groups.filter(pk=group.pk).exists()
    return not is_own and grantable_groups(operator).filter(pk=group.pk).exists()


def _granted_to(operator: User) -> QuerySet[Any, int]:
    """Returns the keys of an operator's permissions, also while the account is inactive."""
    rows = Permission.objects.filter(Q(user=operator) | Q(group__user=operator))
    return rows.values_list("pk", flat=True)
