"""The page of presets and their versions."""

from __future__ import annotations

import json
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest

from accounts.admin.forms import initial_workspace
from accounts.models import Preset, PresetVersion
from config.audit.context import actor_of
from config.changes.kinds import ChangeKind, FourEyes
from config.console.actions import Message, deletion, transition
from config.console.base import ConsoleAdmin, ReadOnlyInline
from config.console.forms import RECORD, ConsoleForm, part
from config.console.unfold import Dialog, SelectWidget, TabularInline, TextareaWidget
from inference.faces.presets import read_preset
from inference.reports.usage.consequences import foresee_preset

_CHANGE: Final = "accounts.change_preset"

_FIELDS_HELP = (
    'The body of a chat completion as JSON, for example {"model": "author/model", "temperature": '
    "0.2}. Messages of the system that stand first become the system prompt; other messages are "
    "left out."
)


class PresetForm(ConsoleForm):
    body = forms.CharField(
        required=False,
        label="Fields",
        widget=TextareaWidget(attrs={"rows": 8}),
        help_text=_FIELDS_HELP,
    )


class VersionDialog(Dialog):
    """Asks for the fields of a new version."""

    body = forms.CharField(
        label="Fields", widget=TextareaWidget(attrs={"rows": 8}), help_text=_FIELDS_HELP
    )


class DesignateDialog(Dialog):
    """Asks for the number of a version."""

    version = forms.IntegerField(min_value=1, max_value=1_000_000)


class StatusDialog(Dialog):
    """Asks for the new status."""

    status = forms.ChoiceField(choices=Preset.Status.choices, widget=SelectWidget())


class VersionInline(ReadOnlyInline, TabularInline):
    model = PresetVersion
    fields = ("version", "shown_config", "system_prompt", "created_by", "created_at")
    readonly_fields = ("shown_config", "created_at")
    ordering = ("-version",)

    @admin.display(description="Fields")
    def shown_config(self, version: PresetVersion) -> str:
        text = json.dumps(json.loads(version.config), ensure_ascii=False, indent=1)
        return text if len(text) <= 2_000 else f"{text[:2_000]}…"


@admin.register(Preset)
class PresetAdmin(ConsoleAdmin):
    """Lists the presets of workspaces; a request takes one over by naming it."""

    form = PresetForm
    list_display = ("slug", "name", "organization", "workspace", "status", "created_at")
    list_select_related = ("organization", "workspace__organization")
    list_filter = ("status",)
    search_fields = ("slug", "name", "organization__name")
    uuid_search_fields = ("id", "organization_id", "workspace_id")
    autocomplete_fields = ("workspace",)
    inlines = (VersionInline,)
    actions_detail = ("add_version", "designate", "change_status", "remove")
    empty_hint = "Add one here, or send a body to /api/v1/presets/SLUG/chat/completions."
    add_fieldsets = (part(None, "workspace", "slug", "body"),)
    fieldsets = (
        part(
            None,
            ("slug", "status"),
            "name",
            "description",
            ("organization", "workspace"),
            "designated_version",
        ),
        RECORD,
    )
    deletion_stamp = "workspace__deleted_at"
    fixed_fields = ("slug", "workspace", "status")
    initial_for = staticmethod(initial_workspace)

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Preset:
        return _store(request, obj.workspace, obj.slug, form.cleaned_data["body"])

    def change(self, request: HttpRequest, obj: Any, form: Any) -> None:
        names = {"name", "description"}.intersection(form.changed_data)
        Preset.objects.get(pk=obj.pk).edit(**{name: form.cleaned_data[name] for name in names})

    @transition("New version", submit="Store", permission=_CHANGE, icon="add", form=VersionDialog)
    def add_version(self, request: HttpRequest, preset: Preset, form: Any) -> Message:
        """Stores a version, which applies to the next request."""
        stored = _store(request, preset.workspace, preset.slug, form.cleaned_data["body"])
        assert stored.designated_version is not None
        return messages.SUCCESS, f"Version {stored.designated_version.version} applies now."

    @transition(
        "Choose a version",
        submit="Choose",
        permission=_CHANGE,
        icon="history",
        form=DesignateDialog,
    )
    def designate(self, request: HttpRequest, preset: Preset, form: Any) -> Message:
        """Makes a stored version apply to the next request."""
        number = form.cleaned_data["version"]
        if preset.designate(number):
            return messages.SUCCESS, f"Version {number} applies now."
        return messages.INFO, f"Version {number} applies already."

    @transition(
        "Status", submit="Set the status", permission=_CHANGE, icon="toggle_on", form=StatusDialog
    )
    def change_status(self, request: HttpRequest, preset: Preset, form: Any) -> Message:
        """Requests that name a preset are refused unless it is active."""
        status = form.cleaned_data["status"]
        preset.change(status=status)
        return messages.SUCCESS, f"The preset is {status}."

    remove = deletion(
        "Deletes the preset with its versions. Requests that name it are refused.",
        permission="accounts.delete_preset",
        done="The preset is deleted.",
        foresee=foresee_preset,
        four_eyes=FourEyes((ChangeKind.DELETIONS,), "accounts.delete_preset"),
    )


def _store(request: HttpRequest, workspace: Any, slug: str, body: str) -> Preset:
    """Stores a version of a preset from the text of a form; raises :class:`InvalidRequest`."""
    config, system_prompt = read_preset("chat/completions", body.encode())
    return Preset.objects.store_version(
        workspace, slug, config=config, system_prompt=system_prompt, by=actor_of(request)
    )
