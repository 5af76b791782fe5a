"""The actions of a key's page and of the list of keys."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest

from accounts.admin.forms import DollarsFormField, nano_of
from accounts.models import ApiKey, LimitReset
from accounts.rotation import rotate_key
from config.changes.kinds import ChangeKind, FourEyes
from config.changes.proposals import Difference
from config.console.actions import Message, bulk_action, report, transition
from config.console.base import ConsoleAdmin
from config.console.formatting import nano_dollars
from config.console.unfold import Dialog, SelectWidget
from inference.reports.usage.consequences import foresee_key, foresee_keys


class LimitDialog(Dialog):
    """Asks for the most that a key may spend, with the present limit filled in."""

    limit = DollarsFormField(
        label="Limit in USD", required=False, help_text="At most nine decimals; empty for no limit."
    )
    limit_reset = forms.ChoiceField(
        label="Reset",
        choices=[("", "never"), *LimitReset.choices],
        required=False,
        widget=SelectWidget(),
        help_text="At midnight UTC; weeks begin on Monday.",
    )
    include_byok_in_limit = forms.BooleanField(
        label="Include BYOK",
        required=False,
        help_text="Counts what the organization's own credentials cost, too.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        key = ApiKey.objects.filter(pk=self.object_id).first()
        if key is not None:
            present = None if key.limit_nano is None else nano_dollars(key.limit_nano)
            self.initial = {
                "limit": present and present.removeprefix("$"),
                "limit_reset": key.limit_reset or "",
                "include_byok_in_limit": key.include_byok_in_limit,
            }


class RotateKeyDialog(Dialog):
    """Asks how long the former secret works."""

    overlap = forms.ChoiceField(
        label="The former secret works for",
        choices=[
            ("3600", "an hour"),
            ("86400", "a day"),
            ("604800", "a week"),
            ("0", "no time: it has leaked"),
        ],
        widget=SelectWidget(),
    )


def _describe_rotation(key: ApiKey, form: Any) -> list[Difference]:
    return [Difference("API key", key.label, "a new secret")]


class KeyActions(ConsoleAdmin):
    """Adds the transitions of a key: limit, pause, resume and revoke, singly or for many."""

    actions = ("pause_selected", "resume_selected", "revoke_selected")
    actions_detail = (
        "limit_spending",
        "limit_rates",
        "rotate",
        "pause",
        "resume",
        "revoke",
        "delete_texts",
    )

    def offers_action(self, request: HttpRequest, obj: ApiKey, name: str) -> bool:
        if obj.successor_id is not None:
            return obj.deleted_at is None and name == "revoke"
        if name == "rotate" and obj.is_expired:
            return False
        return obj.deleted_at is None and name != ("pause" if obj.disabled else "resume")

    @transition(
        description="Rotate",
        question="Gives this key a new secret, which is shown only once. Name, limits, usage and "
        "rights stay, but as with every key that an operator has seen, it reads no stored texts.",
        submit="Rotate the key",
        # The operator sees the new secret, as that of a new key.
        permission="accounts.add_apikey",
        icon="autorenew",
        form=RotateKeyDialog,
        four_eyes=FourEyes(
            (ChangeKind.MANAGEMENT_KEYS,),
            "accounts.add_apikey",
            is_guarded=lambda key: key.is_management,
            describe=_describe_rotation,
        ),
    )
    def rotate(self, request: HttpRequest, key: ApiKey, form: Any) -> Message:
        overlap = int(form.cleaned_data["overlap"])
        _, key.issued_secret = rotate_key(key, overlap=overlap, issued_by_operator=True)  # type: ignore[attr-defined]
        # The page with the secret is the answer; see show_applied.
        request.applied = key  # type: ignore[attr-defined]
        return messages.SUCCESS, "The key is rotated."

    def has_revoke_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("accounts.change_apikey")

    @transition(
        description="Limit spending",
        question="Replaces the limit of this key. It holds from the next request on; what the key "
        "has spent in the period counts.",
        submit="Set the limit",
        permission="revoke",
        icon="paid",
        form=LimitDialog,
    )
    def limit_spending(self, request: HttpRequest, key: ApiKey, form: Any) -> Message:
        changes = {
            "limit_nano": nano_of(form.cleaned_data["limit"]),
            "limit_reset": form.cleaned_data["limit_reset"] or None,
            "include_byok_in_limit": form.cleaned_data["include_byok_in_limit"],
        }
        if key.edit(**changes):
            return messages.SUCCESS, f"The key may spend {describe_limit(key)}."
        return messages.INFO, "The limit was like this already."

    @transition(
        description="Pause",
        question="Every request with this key is refused from now on, until you resume it.",
        submit="Pause the key",
        permission="revoke",
        icon="pause",
        foresee=foresee_key,
    )
    def pause(self, request: HttpRequest, key: ApiKey, form: Any) -> Message:
        return report(key.pause(), "The key is paused.", "The key is already paused.")

    @transition(
        description="Resume",
        question="Requests with this key are served again.",
        submit="Resume the key",
        permission="revoke",
        icon="play_arrow",
    )
    def resume(self, request: HttpRequest, key: ApiKey, form: Any) -> Message:
        return report(key.resume(), "The key is resumed.", "The key is not paused.")

    @transition(
        description="Revoke",
        question="Every request with this key is refused from now on. This cannot be undone.",
        submit="Revoke the key",
        permission="revoke",
        icon="key_off",
        danger=True,
        foresee=foresee_key,
    )
    def revoke(self, request: HttpRequest, key: ApiKey, form: Any) -> Message:
        return report(key.revoke(), "The key is revoked.", "The key is already revoked.")

    @bulk_action(
        description="Pause",
        question="Pause these keys? Every request with them is refused from now on, until you "
        "resume them.",
        permission="revoke",
        foresee=foresee_keys,
    )
    def pause_selected(self, request: HttpRequest, key: ApiKey) -> None:
        key.pause()

    @bulk_action(
        description="Resume",
        question="Resume these keys? Requests with them are served again.",
        permission="revoke",
    )
    def resume_selected(self, request: HttpRequest, key: ApiKey) -> None:
        key.resume()

    @bulk_action(
        description="Revoke",
        question="Revoke these keys? Every request with them is refused from now on. This cannot "
        "be undone.",
        permission="revoke",
        foresee=foresee_keys,
    )
    def revoke_selected(self, request: HttpRequest, key: ApiKey) -> None:
        key.revoke()


def describe_limit(key: ApiKey) -> str:
    """Returns the limit in words: ``$5 a month, BYOK included``."""
    if key.limit_nano is None:
        return "without a limit"
    periods = {None: "in all", "daily": "a day", "weekly": "a week", "monthly": "a month"}
    byok = ", BYOK included" if key.include_byok_in_limit else ""
    return f"{nano_dollars(key.limit_nano)} {periods[key.limit_reset]}{byok}"
