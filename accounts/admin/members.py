"""The page of members."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from accounts.admin.forms import may_point_secrets
from accounts.models import Member, create_member, edit_member, remove_member
from config.console.actions import deletion
from config.console.base import ConsoleAdmin
from config.console.forms import RECORD, ConsoleForm, part


class MemberForm(ConsoleForm):
    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        # Django does not check the unique constraint when the organization is not on the form.
        organization_id = getattr(cleaned.get("organization"), "pk", self.instance.organization_id)
        others = Member.objects.for_organization(organization_id).exclude(pk=self.instance.pk)
        if "email" in cleaned and others.filter(email__iexact=cleaned["email"]).exists():
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
        part(None, "organization", "email", ("first_name", "last_name"), "role"),
        RECORD,
    )

    deletion_stamp = "deleted_at"
    fixed_fields = ("organization",)
    actions_detail = ("remove",)

    remove = deletion(
        "The member leaves every workspace and gets no mail any more. Reports still name "
        "the member. Keys of the member must be revoked before. This cannot be undone.",
        permission="accounts.delete_member",
        submit="Delete the member",
        delete=remove_member,
    )

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Member:
        given = dict(form.cleaned_data)
        return create_member(given.pop("organization").pk, **given)

    def change(self, request: HttpRequest, obj: Any, form: Any) -> None:
        edit_member(obj, **{name: form.cleaned_data[name] for name in form.changed_data})

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fixed = super().get_readonly_fields(request, obj)
        if obj is None or may_point_secrets(request) or not obj.subscriptions.exists():
            return fixed
        # Events are mailed to the address.
        return (*fixed, "email")
