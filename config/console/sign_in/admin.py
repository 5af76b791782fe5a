"""The page on which an administrator removes another operator's second factor."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest
from django_otp.plugins.otp_static.admin import StaticDevice
from django_otp.plugins.otp_totp.admin import TOTPDevice

from config.apps import declarations
from config.console.actions import Message, transition
from config.console.base import ReadOnlyAdmin
from config.console.sign_in import totp
from config.console.unfold import display

# The imports above register the package's own pages, which would show keys and codes.
admin.site.unregister([TOTPDevice, StaticDevice])


@admin.register(TOTPDevice)
class SecondFactorAdmin(ReadOnlyAdmin):
    """Lists the operators who use two-factor login; an administrator can remove a lost factor."""

    list_display = ("user", "created_at", "last_used_at")
    list_select_related = ("user",)
    search_fields = ("user__username",)
    uuid_search_fields = ()
    ordering = ("user__username",)
    fieldsets = ((None, {"fields": ("user", "codes", ("created_at", "last_used_at"))}),)
    readonly_fields = ("codes",)
    actions_detail = ("remove",)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        title = declarations()[self.opts.label_lower].title
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    @display(description="Backup codes")
    def codes(self, device: Any) -> str:
        return f"{totp.codes_left(device.user)} left"

    def has_remove_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("otp_totp.delete_totpdevice")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Allows the deletion only as part of deleting the operator, on the operator's page."""
        match = request.resolver_match
        is_operator_page = match is not None and str(match.url_name).startswith("auth_user_")
        return is_operator_page and self.has_remove_permission(request)

    @transition(
        description="Remove",
        question="The operator can then log in with the password alone. If two-factor login is "
        "required, the next login asks to set it up again.",
        submit="Remove the second factor",
        permission="remove",
        icon="phonelink_erase",
        danger=True,
    )
    def remove(self, request: HttpRequest, device: Any, form: Any) -> Message:
        totp.remove(device.user)
        return messages.SUCCESS, f"The second factor of {device.user} is removed."
