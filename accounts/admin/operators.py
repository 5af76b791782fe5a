"""The pages of operators and of their groups, which are the roles.

An operator who is no superuser can give only what they have, change only accounts that have no more
than that, and change no privilege of their own; see :mod:`config.console.sign_in.privileges`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets, unquote
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, Permission, User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse

from config.changes.kinds import ChangeKind, FourEyes
from config.console.base import StrictList
from config.console.sign_in.privileges import (
    grantable_groups,
    grantable_permissions,
    may_change_group,
    may_change_operator,
)
from config.console.unfold import ModelAdmin

if not TYPE_CHECKING:
    from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

admin.site.unregister([User, Group])

_PRIVILEGES: Final = ("is_active", "is_staff", "is_superuser", "groups", "user_permissions")


@admin.register(User)
class OperatorAdmin(StrictList, DjangoUserAdmin, ModelAdmin):  # type: ignore[type-arg]
    """Lists the people who may log in to the console."""

    if not TYPE_CHECKING:
        form = UserChangeForm
        add_form = UserCreationForm
        change_password_form = AdminPasswordChangeForm
    list_display = ("username", "email", "is_active", "is_staff", "is_superuser", "last_login")
    list_filter = ("is_active", "is_superuser", "groups")
    deletion_guard = FourEyes((ChangeKind.DELETIONS,))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        may_change: bool = super().has_change_permission(request, obj)
        return may_change and (obj is None or may_change_operator(_operator_of(request), obj))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        may_delete: bool = super().has_delete_permission(request, obj)
        return may_delete and (obj is None or may_change_operator(_operator_of(request), obj))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Returns also the name, because the audit log and grant requests name operators by it."""
        fields = [*super().get_readonly_fields(request, obj), "last_login", "date_joined"]
        if obj is not None:
            fields.append("username")
        if not _operator_of(request).is_superuser:
            fields += _PRIVILEGES if obj == request.user else ("is_superuser",)
        return fields

    def formfield_for_manytomany(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        field = super().formfield_for_manytomany(db_field, request, **kwargs)
        if field is not None and db_field.name == "groups":
            field.queryset = grantable_groups(_operator_of(request))
        if field is not None and db_field.name == "user_permissions":
            _offer_permissions(field, _operator_of(request))
        return field

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Refuses a privilege that the page does not offer, which Django would ignore."""
        if request.method == "POST":
            obj = None if object_id is None else self.get_object(request, object_id)
            offered = set(self._offered_fields(request, obj))
            if any(name in request.POST for name in _PRIVILEGES if name not in offered):
                raise PermissionDenied
        return super().changeform_view(request, object_id, form_url, extra_context)

    def _offered_fields(self, request: HttpRequest, obj: Any) -> list[str]:
        """Returns the names of the fields that the operator may fill in."""
        names = flatten_fieldsets(self.get_fieldsets(request, obj))
        fixed = self.get_readonly_fields(request, obj)
        return [str(name) for name in names if name not in fixed]

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> Any:  # noqa: A002
        """Sets another operator's password; an own one needs the old one, on a page of its own."""
        # Several texts name the same row, such as "7" and "07".
        if self.get_object(request, unquote(id)) == request.user:
            return HttpResponseRedirect(reverse("admin:password_change"))
        return super().user_change_password(request, id, form_url)


@admin.register(Group)
class OperatorGroupAdmin(StrictList, DjangoGroupAdmin, ModelAdmin):
    """Lists the groups; an operator has the permissions of every group."""

    deletion_guard = FourEyes((ChangeKind.DELETIONS,))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        may_change: bool = super().has_change_permission(request, obj)
        return may_change and (obj is None or may_change_group(_operator_of(request), obj))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        may_delete: bool = super().has_delete_permission(request, obj)
        return may_delete and (obj is None or may_change_group(_operator_of(request), obj))

    def formfield_for_manytomany(self, db_field: Any, request: Any = None, **kwargs: Any) -> Any:
        field = super().formfield_for_manytomany(db_field, request, **kwargs)
        if field is not None and db_field.name == "permissions":
            _offer_permissions(field, _operator_of(request))
        return field


def _offer_permissions(field: Any, operator: User) -> None:
    """Offers the permissions that an operator may give, by names that differ at their beginnings.

    Django's begin with the app and name the model twice, so that the verb is cut off.
    """
    field.queryset = grantable_permissions(operator).select_related("content_type")
    field.label_from_instance = _name_permission


def _name_permission(permission: Permission) -> str:
    kind = permission.content_type.name
    verb = permission.name.removeprefix("Can ").removesuffix(f" {kind}")
    return f"{kind}: {verb}"


def _operator_of(request: HttpRequest) -> User:
    return cast(User, request.user)
