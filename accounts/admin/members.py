"""The page of members."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest

from accounts.admin.forms import may_point_secrets
from accounts.models import Member, remove_member
from config.console.actions import Message, transition
from config.console.base import ConsoleAdmin
from config.console.forms import ConsoleForm


class MemberForm(ConsoleForm):
    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        # Django does not check the unique constraint when the organization is not on the form.
        organization_id = getattr(cleaned.get("organization"), "pk", self.instance.organization_id)
        others = Member.objects.for_organization(organization_id).exclude(pk=self.instance.pk)
        if "email" in cleaned and others.filter(email=cleaned["email"]).exists():
            self.add_error("email", "Another member of the organization has this address.")
        return cleaned


@admin.register(Member)
class MemberAdmin(ConsoleAdmin):
    """Lists the members of organizations; a member cannot log in."""

    form = MemberForm
    list_display = ("email", "organization", "first_name", "last_name", "role", "created_at")
    list_select_related = ("organization",)
    list_filter = ("role",)
    search_fields = ("email", "last_name", "organization__name")
    uuid_search_fields = ("id", "organization_id")
    autocomplete_fields = ("organization",)
    fieldsets = (
        (None, {"fields": ("organization", "email", ("first_name", "last_name"), "role")}),
        ("Record", {"classes": ["collapse"], "fields": ("id", ("created_at", "updated_at"))}),
    )
    readonly_fields = ("id", "created_at", "updated_at")

    actions_detail = ("remove",)

    def has_remove_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("accounts.delete_member")

    @transition(
        description="Delete",
        question="The member leaves every workspace and gets no mail any more. Reports still name "
        "the member. Keys of the member must be revoked before. This cannot be undone.",
        submit="Delete the member",
        permission="remove",
        icon="delete",
        danger=True,
    )
    def remove(self, request: HttpRequest, member: Member, form: Any) -> Message:
        email = member.email
        remove_member(member)
        return messages.SUCCESS, f"{email} is deleted."

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).filter(deleted_at=None)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return self.readonly_fields
        fixed = (*self.readonly_fields, "organization")
        # Events are mailed to the address.
        is_receiver = not may_point_secrets(request) and obj.subscriptions.exists()
        return (*fixed, "email") if is_receiver else fixed
