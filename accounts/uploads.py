"""The forms of files that have the rows of one organization."""

from __future__ import annotations

from django import forms

from accounts.models import Organization
from config import console
from config.uploads import ExportForm, UploadForm


def _field() -> forms.ModelChoiceField[Organization]:
    return forms.ModelChoiceField(
        queryset=Organization.objects.all(),
        widget=console.TextWidget(attrs={"spellcheck": "false"}),
        label="Organization ID",
        error_messages={"invalid_choice": "There is no such organization."},
    )


class OrganizationUploadForm(UploadForm):
    """Asks for a file, and whose it is."""

    organization = _field()
    field_order = ("organization", "file")


class OrganizationExportForm(ExportForm):
    """Asks whose rows are exported."""

    organization = _field()
