"""The page of broadcast destinations."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django import forms
from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest

from accounts.admin.forms import initial_workspace
from accounts.admin.pickers import SubjectPickers, make_keys_field, point_pickers
from accounts.destinations.models import BroadcastDestination, DestinationNotFound
from accounts.destinations.receivers import (
    MASK,
    METHODS,
    URL_MEMBERS,
    InvalidReceiver,
    Receiver,
    read_receiver,
)
from accounts.destinations.rules import InvalidRules, check_rules
from accounts.models import ApiKey, Region
from accounts.models.edits import refusal
from config.changes.kinds import ChangeKind, FourEyes
from config.console.actions import deletion
from config.console.forms import RECORD, ConsoleForm, EmptyJsonField, part
from config.console.unfold import SelectWidget, TextareaWidget, column, display

_DELIVERY = ("status", "sent", "skipped", "served_until", "mean_ms", "last_error")
_RECEIVER: Final = ("url", "method", "headers")
_STATES: Final = {"delivering": "success", "failing": "danger", "off": "warning"}


class DestinationForm(ConsoleForm):
    """Takes a destination; the values of its headers are written, and never shown."""

    refusal_fields = {"too_many_destinations": "kind"}

    headers = forms.CharField(
        required=False,
        widget=TextareaWidget(attrs={"rows": 4, "autocomplete": "off", "spellcheck": "false"}),
        help_text="A header a line, such as Authorization: Bearer TOKEN. A stored value is shown "
        f"as {MASK}; leave it so to keep it. A new host needs every value again.",
    )
    regions = forms.MultipleChoiceField(
        choices=Region.choices,
        initial=[Region.GLOBAL.value],
        widget=forms.CheckboxSelectMultiple(),
        help_text="Generations that were served in one of these regions are sent.",
    )
    method = forms.ChoiceField(
        choices=[(name, name) for name in METHODS],
        widget=SelectWidget(),
        required=False,
        help_text="OpenTelemetry collectors take POST alone.",
    )

    api_key_hashes = make_keys_field()
    filter_rules = EmptyJsonField(
        required=False,
        widget=TextareaWidget(attrs={"rows": 6, "spellcheck": "false"}),
        help_text="Rules as JSON, as the API takes them. Empty: no rule.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "headers" in self.fields:
            lines = (f"{name}: {MASK}" for name in self.instance.header_names)
            self.initial["headers"] = "\n".join(lines)
        point_pickers(self, api_key_hashes="keys")

    def clean_sampling_rate(self) -> Any:
        rate = self.cleaned_data["sampling_rate"]
        if not 0 < rate <= 1:
            raise forms.ValidationError("Must be from 0.0001 to 1.")
        return rate

    def clean_filter_rules(self) -> Any:
        rules = self.cleaned_data["filter_rules"]
        try:
            return None if rules is None else check_rules(rules)
        except InvalidRules as exc:
            raise forms.ValidationError(str(exc)) from None

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        self._check_keys(cleaned)
        kind = cleaned.get("kind") or self.instance.kind
        if kind and "url" in cleaned and "headers" in cleaned:
            cleaned["receiver"] = self._read_receiver(kind, cleaned)
        return cleaned

    def _check_keys(self, cleaned: dict[str, Any]) -> None:
        workspace = cleaned.get("workspace") or getattr(self.instance, "workspace", None)
        hashes = set(cleaned.get("api_key_hashes") or ())
        # A stored one may name a key that was revoked later.
        hashes -= set(self.initial.get("api_key_hashes") or ())
        if hashes and workspace is not None:
            own = ApiKey.objects.for_organization(workspace.organization_id)
            if own.filter(digest__in=hashes).count() != len(hashes):
                self.add_error(
                    "api_key_hashes", "One of the keys does not belong to the organization."
                )

    def _read_receiver(self, kind: str, cleaned: dict[str, Any]) -> Receiver | None:
        headers = {}
        for line in filter(None, map(str.strip, cleaned["headers"].splitlines())):
            name, _, value = line.partition(":")
            headers[name.strip()] = value.strip()
        config = {URL_MEMBERS[kind]: cleaned["url"], "headers": headers}
        if kind == BroadcastDestination.Kind.WEBHOOK:
            config["method"] = cleaned.get("method") or "POST"
        elif cleaned.get("method") not in ("", None, "POST"):
            self.add_error("method", "An OpenTelemetry collector takes POST alone.")
        self.find_receiver = partial(_find_receiver, kind, config)
        stored = None
        if not self.instance._state.adding:
            try:
                stored = BroadcastDestination.objects.get(pk=self.instance.pk).known_receiver()
            except BroadcastDestination.DoesNotExist:
                raise DestinationNotFound from None
        try:
            return read_receiver(kind, config, settings.EGRESS_POLICY, stored=stored)
        except InvalidReceiver as exc:
            name = exc.path.partition(".")[0]
            place = name if name in _RECEIVER else "url"
            self.add_error(place, f"{exc.path}: {exc.why}" if "." in exc.path else exc.why)
            return None


def _find_receiver(kind: str, config: Any, stored: Receiver | None) -> Receiver:
    """Returns the receiver of a checked form; its stored one may have changed since the check."""
    try:
        return read_receiver(kind, config, settings.EGRESS_POLICY, stored=stored)
    except InvalidReceiver as exc:
        raise refusal(exc.path or "headers", exc.why) from None


_CONTENT: Final = ("has_cost", "has_identity", "has_request_context")
_SELECTION: Final = ("sampling_rate", "regions", "filter_rules")
_CREATED: Final = ("name", "is_enabled", *_SELECTION, *_CONTENT)
_EDITED: Final = (*_CREATED, "api_key_hashes")
_KEYS_LATER: Final = (
    "Keys are chosen on the page of the destination. Add it switched off if only the generations "
    "of some keys may be sent."
)


@admin.register(BroadcastDestination)
class DestinationAdmin(SubjectPickers):
    """Lists where organizations have the metadata of their generations sent."""

    form = DestinationForm
    picked = ("keys",)
    list_display = (
        "name", "kind", "host", "status", "organization", "workspace", "sent", "created_at",
    )  # fmt: skip
    list_select_related = ("organization", "workspace__organization", "progress")
    list_filter = ("is_enabled", "kind")
    search_fields = ("name", "url", "organization__name")
    uuid_search_fields = ("id", "organization_id", "workspace_id")
    autocomplete_fields = ("workspace",)
    actions_detail = ("remove",)
    locks_tenant_first = True
    empty_hint = "A destination is sent the metadata of a workspace's generations, never texts."
    add_fieldsets = (
        part(None, "workspace", "name", "kind", "is_enabled"),
        part("Receiver", *_RECEIVER),
        part("Content", *_CONTENT),
        part("Selection", *_SELECTION, note=_KEYS_LATER),
    )
    fieldsets = (
        part(None, ("name", "kind"), ("organization", "workspace"), "is_enabled"),
        part("Delivery", *_DELIVERY),
        part("Receiver", *_RECEIVER),
        part("Content", *_CONTENT),
        part("Selection", *_SELECTION, "api_key_hashes"),
        RECORD,
    )
    # The ciphertext is bound to the workspace, and the members of a configuration to the type.
    deletion_stamp = "workspace__deleted_at"
    fixed_fields = ("workspace", "kind")
    initial_for = staticmethod(initial_workspace)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Shows the names of the headers to operators who may not change them."""
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return fieldsets
        shown = {"fields": ("url", "method", "header_names")}
        return [(name, shown if name == "Receiver" else rest) for name, rest in fieldsets]

    def create(self, request: HttpRequest, obj: Any, form: Any) -> BroadcastDestination:
        given = form.cleaned_data
        return BroadcastDestination.objects.create_destination(
            given["workspace"],
            kind=given["kind"],
            receiver=given["receiver"],
            **{name: given[name] for name in _CREATED},
        )

    def change(self, request: HttpRequest, obj: Any, form: Any) -> None:
        given = form.cleaned_data
        stored = BroadcastDestination.objects.select_related("progress").get(pk=obj.pk)
        names = [name for name in form.changed_data if name in _EDITED]
        stored.edit(find_receiver=form.find_receiver, **{name: given[name] for name in names})

    @display(description="Status", label=_STATES)
    def status(self, destination: BroadcastDestination) -> str:
        return destination.progress.state if destination.is_enabled else "off"

    @display(description="Sent", ordering="progress__sent")
    def sent(self, destination: BroadcastDestination) -> str:
        return f"{destination.progress.sent:,}"

    skipped = column("Given up", lambda destination: f"{destination.progress.skipped:,}")
    served_until = column("Served until", lambda destination: destination.progress.cursor_at)
    mean_ms = column("Mean duration", lambda destination: f"{destination.progress.mean_ms:,} ms")
    last_error = column("Last error", lambda destination: destination.progress.last_error or "none")

    remove = deletion(
        "The headers are erased and nothing more is sent. This cannot be undone.",
        permission="accounts.delete_broadcastdestination",
        submit="Delete the destination",
        four_eyes=FourEyes((ChangeKind.DELETIONS,), "accounts.delete_broadcastdestination"),
    )
