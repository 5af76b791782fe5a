"""The page of aliases: those of the operator and those of organizations."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from accounts.admin.uploads import OrganizationField
from catalog.aliases import changes, imports
from catalog.models import ModelAlias
from config.bulk.report import Report, RowListener
from config.bulk.rows import read_lines
from config.changes.kinds import ChangeKind, FourEyes
from config.console.actions import deletion
from config.console.base import ConsoleAdmin
from config.console.forms import RECORD, ConsoleForm, part
from config.console.unfold import column, display
from config.console.uploads import BulkFile, ExportForm, Upload, UploadForm


class _OwnerField(OrganizationField):
    """Takes an organization, or nothing for the operator."""

    def __init__(self) -> None:
        super().__init__()
        self.required = False
        self.help_text = "The slug or the ID. Empty: the aliases of the operator."

    def clean(self, value: Any) -> Any:
        return super().clean(value) if value else None


class AliasUploadForm(UploadForm):
    organization = _OwnerField()
    field_order = ("organization", "file")


class AliasExportForm(ExportForm):
    organization = _OwnerField()


class AliasFile(BulkFile):
    """The aliases of the operator, or of one organization."""

    upload_form = AliasUploadForm
    export_form = AliasExportForm
    help = (
        "A file in JSON Lines with the members name and targets. Aliases that the file does not "
        "name stay as they are."
    )

    def load(self, upload: Upload, *, by: str, dry_run: bool, on_row: RowListener | None) -> Report:
        lines = read_lines(io.BytesIO(upload.content))
        return imports.apply(upload.organization_id, lines, dry_run=dry_run, on_row=on_row)

    def export(self, given: dict[str, Any]) -> tuple[str, Iterable[bytes]]:
        organization = given["organization"]
        return "aliases.jsonl", imports.export(None if organization is None else organization.pk)


class ModelAliasForm(ConsoleForm):
    refusal_fields = {
        "alias_exists": "name",
        "alias_hides_model": "name",
        "model_not_found": "targets",
    }


@admin.register(ModelAlias)
class ModelAliasAdmin(ConsoleAdmin):
    """Lists the aliases; one without an organization applies to all."""

    form = ModelAliasForm
    locks_tenant_first = True
    own_permission = "catalog.change_languagemodel"
    list_display = ("name", "owner", "models", "created_at")
    list_select_related = ("organization",)
    search_fields = ("name", "organization__name")
    uuid_search_fields = ("id", "organization_id")
    autocomplete_fields = ("organization",)
    actions_detail = ("remove",)
    empty_hint = "Add an alias, import a file, or create one with a management key."
    bulk_file = AliasFile()
    actions_list = ("import_file", "export_file")
    add_fieldsets = (part(None, "organization", "name", "targets"),)
    fieldsets = (
        part(None, "organization", "name", "targets"),
        RECORD,
    )
    fixed_fields = ("organization",)

    @display(description="Owner", ordering="organization__name")
    def owner(self, alias: ModelAlias) -> str:
        return "operator" if alias.organization is None else alias.organization.name

    models = column("Models", lambda alias: ", ".join(alias.targets))

    def create(self, request: HttpRequest, obj: Any, form: Any) -> ModelAlias:
        return changes.create_alias(
            organization_id=obj.organization_id, name=obj.name, targets=obj.targets
        )

    def change(self, request: HttpRequest, obj: Any, form: Any) -> None:
        named = {name: form.cleaned_data[name] for name in form.changed_data}
        changes.edit_alias(obj, **named)

    remove = deletion(
        "Requests that send this name are refused from now on, unless another alias or a model is "
        "called so.",
        permission="catalog.delete_modelalias",
        submit="Delete the alias",
        delete=changes.remove_alias,
        four_eyes=FourEyes((ChangeKind.DELETIONS,), "catalog.delete_modelalias"),
    )
