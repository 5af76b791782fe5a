"""The pages of operators and of their groups, which are the roles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User

from config.console.base import StrictList
from config.console.unfold import ModelAdmin

if not TYPE_CHECKING:
    from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

admin.site.unregister([User, Group])


@admin.register(User)
class OperatorAdmin(StrictList, DjangoUserAdmin, ModelAdmin):  # type: ignore[type-arg]
    """Lists the people who may log in to the console."""

    if not TYPE_CHECKING:
        form = UserChangeForm
        add_form = UserCreationForm
        change_password_form = AdminPasswordChangeForm
    list_display = ("username", "email", "is_active", "is_staff", "is_superuser", "last_login")
    list_filter = ("is_active", "is_superuser", "groups")
    show_full_result_count = False


@admin.register(Group)
class OperatorGroupAdmin(StrictList, DjangoGroupAdmin, ModelAdmin):
    """Lists the groups; an operator has the permissions of every group."""
