"""The transitions that suspend an organization and resume it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest

from accounts.models import Organization
from accounts.models.organizations import MAX_REASON
from config.console.actions import Message, transition
from config.console.base import actor_of
from config.console.forms import NoteField
from config.console.unfold import Dialog
from inference.reports.usage.consequences import foresee_suspension


class SuspensionDialog(Dialog):
    """Asks for the reason, which every refused caller reads."""

    reason = NoteField(
        max_length=MAX_REASON,
        help_text="One sentence that says why, and whom to ask. Every refused caller reads it.",
    )


class SuspensionActions(admin.ModelAdmin):  # type: ignore[type-arg]
    """Adds the actions ``suspend`` and ``resume``, of which a page offers one."""

    def offers_action(self, request: HttpRequest, obj: Organization, name: str) -> bool:
        if name in ("suspend", "resume"):
            return (name == "resume") == obj.is_suspended
        return super().offers_action(request, obj, name)  # type: ignore[misc,no-any-return]

    def has_suspend_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("accounts.change_organization")

    @transition(
        description="Suspend",
        question="Every inference request of the organization is refused with 403 and the reason "
        "from now on. Running requests end as usual and are billed. Keys stay as they are, and "
        "management keys still work.",
        submit="Suspend the organization",
        permission="suspend",
        icon="block",
        danger=True,
        form=SuspensionDialog,
        foresee=foresee_suspension,
    )
    def suspend(self, request: HttpRequest, organization: Organization, form: Any) -> Message:
        if organization.suspend(reason=form.cleaned_data["reason"], by=actor_of(request)):
            return messages.SUCCESS, f"{organization} is suspended."
        return messages.INFO, f"{organization} is suspended already; nothing was changed."

    @transition(
        description="Resume",
        question="Inference requests of the organization are served again.",
        submit="Resume the organization",
        permission="suspend",
        icon="play_arrow",
    )
    def resume(self, request: HttpRequest, organization: Organization, form: Any) -> Message:
        if organization.resume():
            return messages.SUCCESS, f"{organization} is served again."
        return messages.INFO, f"{organization} is not suspended; nothing was changed."
