"""The pages of second factors and of locks: an administrator removes the one, lifts the other."""

from __future__ import annotations

from typing import Any, Final, cast

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import Exists, OuterRef
from django.http import HttpRequest
from django_otp.plugins.otp_static.admin import StaticDevice
from django_otp.plugins.otp_totp.admin import TOTPDevice

from config.apps import declarations
from config.console.actions import Message, bulk_action, transition
from config.console.base import ConsoleAdmin
from config.console.formatting import label_renderer
from config.console.forms import part
from config.console.lists.filters import make_filter
from config.console.sign_in import events, totp
from config.console.sign_in.models import SignInLimit
from config.console.sign_in.privileges import may_change_operator
from config.console.sign_in.throttle import address_of
from config.console.unfold import column

_STATES: Final = {"locked": "danger", "open": "success"}

# The imports above register the package's own pages, which would show keys and codes.
admin.site.unregister([TOTPDevice, StaticDevice])


@admin.register(TOTPDevice)
class SecondFactorAdmin(ConsoleAdmin):
    """Lists the operators who use two-factor login; an administrator can remove a lost factor."""

    is_read_only = True
    list_display = ("user", "created_at", "last_used_at")
    list_select_related = ("user",)
    search_fields = ("user__username",)
    uuid_search_fields = ()
    ordering = ("user__username",)
    fieldsets = (part(None, "user", "codes", ("created_at", "last_used_at")),)
    actions_detail = ("remove",)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        title = declarations()[self.opts.label_lower].title
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    codes = column("Backup codes", lambda device: f"{totp.codes_left(device.user)} left")

    def has_remove_permission(self, request: HttpRequest, key: Any = None) -> bool:
        """Returns whether the operator may remove a factor: not of who outranks them, nor an own.

        An own factor is removed on a page that asks for its code.
        """
        if not request.user.has_perm("otp_totp.delete_totpdevice"):
            return False
        device = None if key is None else self.get_object(request, str(getattr(key, "pk", key)))
        return device is None or (
            device.user != request.user
            and may_change_operator(cast(User, request.user), device.user)
        )

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Allows the deletion only as part of deleting the operator, on the operator's page."""
        match = request.resolver_match
        is_operator_page = match is not None and str(match.url_name).startswith("auth_user_")
        return is_operator_page and self.has_remove_permission(request, obj)

    @transition(
        "Remove",
        submit="Remove the second factor",
        permission="remove",
        icon="phonelink_erase",
        danger=True,
    )
    def remove(self, request: HttpRequest, device: Any, form: Any) -> Message:
        """The operator can then log in with the password alone. If two-factor login is required,
        the next login asks to set it up again.
        """
        totp.remove(device.user)
        return messages.SUCCESS, f"The second factor of {device.user} is removed."


LockFilter = make_filter("state", "state", {"locked": ("locked", lambda rows: rows.locked())})


@admin.register(SignInLimit)
class SignInLimitAdmin(ConsoleAdmin):
    """Lists failed sign-ins by account and address; an administrator can lift a lock."""

    is_read_only = True
    list_display = ("account", "network", "scope", "state", "failures", "resets_at", "signed_in_at")
    list_display_links = ("account", "network")
    list_filter = (LockFilter, "scope")
    search_fields = ("account", "network")
    uuid_search_fields = ()
    ordering = ("-resets_at",)
    empty_hint = "Nobody has tried to sign in yet."
    fieldsets = (
        part(None, ("account", "network"), ("scope", "state")),
        part("Attempts", ("failures", "resets_at"), "signed_in_at"),
    )
    readonly_preprocess_fields = {"state": label_renderer(_STATES)}
    actions = ("lift_locks",)
    actions_detail = ("lift",)

    def get_queryset(self, request: HttpRequest) -> Any:
        locked = SignInLimit.objects.locked().filter(pk=OuterRef("pk"))
        return super().get_queryset(request).annotate(is_locked=Exists(locked))

    state = column("State", lambda limit: "locked" if limit.is_locked else "open", label=_STATES)

    @transition(
        "Lift the lock",
        submit="Lift the lock",
        permission="config.change_signinlimit",
        icon="lock_open",
    )
    def lift(self, request: HttpRequest, limit: SignInLimit, form: Any) -> Message:
        """Sign-ins are allowed again at once, and the failures are forgotten. Make sure that it was
        the operator who mistyped the password.
        """
        self._lift(request, limit)
        return messages.SUCCESS, f"The lock of {limit} is lifted."

    @bulk_action("Lift the locks", permission="config.change_signinlimit")
    def lift_locks(self, request: HttpRequest, limit: SignInLimit) -> None:
        """Sign-ins are allowed again at once, and the failures are forgotten."""
        self._lift(request, limit)

    def _lift(self, request: HttpRequest, limit: SignInLimit) -> None:
        limit.lift()
        events.record(
            events.LIFTED,
            account=limit.account or limit.network,
            address=address_of(request),
            detail=f"the lock of {limit}",
            operator=request.user.get_username(),
        )
