"""The upload and download forms for files with the rows of one organization."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from accounts.models import Organization
from config.api.text import parse_uuid
from config.console.unfold import TextWidget
from config.console.uploads import ExportForm, UploadForm


class OrganizationField(forms.CharField):
    """Takes an organization by its slug or its id."""

    def __init__(self, *, required: bool = True, help_text: str = "The slug or the ID.") -> None:
        super().__init__(
            required=required,
            max_length=64,
            label="Organization",
            help_text=help_text,
            widget=TextWidget(attrs={"spellcheck": "false", "autocapitalize": "none"}),
        )

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        wanted = parse_uuid(text)
        rows = (
            Organization.objects.filter(slug=text)
            if wanted is None
            else (Organization.objects.filter(pk=wanted))
        )
        found = rows.first()
        if found is None:
            raise ValidationError("No organization has this slug or ID.")
        return found


class OrganizationUploadForm(UploadForm):
    """Asks for a file and for the organization that owns its rows."""

    organization = OrganizationField()
    field_order = ("organization", "file")


class OrganizationExportForm(ExportForm):
    """Asks for the organization whose rows are exported."""

    organization = OrganizationField()
