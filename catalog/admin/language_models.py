"""The page of models."""

from __future__ import annotations

from datetime import UTC, datetime

from django.contrib import admin
from django.core.exceptions import ValidationError

from catalog.admin.uploads import CatalogueAdmin, CatalogueRowForm
from catalog.models import LanguageModel
from catalog.rows import LATEST
from config.console.forms import RECORD, part
from config.console.unfold import display
from inference.reports.usage import subjects
from inference.reports.usage.panel import show_usage


class LanguageModelForm(CatalogueRowForm):
    class Meta:
        labels = {"is_listed": "Listed"}

    def _get_validation_exclusions(self) -> set[str]:
        # Slugs are unique among the models without an organization, as all on this page are.
        excluded: set[str] = super()._get_validation_exclusions()  # type: ignore[misc]
        return excluded - {"organization"}

    def clean_created(self) -> int:
        created: int = self.cleaned_data["created"]
        if not 0 <= created <= LATEST:
            raise ValidationError("Must be a Unix time in seconds, not in milliseconds.")
        return created


@admin.register(LanguageModel)
class LanguageModelAdmin(CatalogueAdmin):
    """Lists the models, each with its public names and abilities."""

    form = LanguageModelForm
    list_display = ("name", "slug", "modality", "context", "published", "listing")
    list_filter = ("is_listed",)
    search_fields = ("name", "slug", "canonical_slug")
    fieldsets = (
        part(None, "name", ("slug", "canonical_slug"), "description", "is_listed"),
        part(
            "Abilities",
            ("context_length", "tokenizer"),
            ("input_modalities", "output_modalities"),
            ("modality", "instruct_type"),
            "supported_parameters",
            "supported_voices",
        ),
        part(
            "Wire format",
            ("native_format", "thinking"),
            ("thinks_between_tools", "combines_sampling"),
            note="How requests for the model are written. The name of the model decides nothing.",
        ),
        part("Defaults", "default_parameters", "per_request_limits"),
        part("Dates", ("created", "published"), ("knowledge_cutoff", "expiration_date")),
        RECORD,
    )
    # A published canonical slug never changes.
    fixed_fields = ("canonical_slug", "is_listed")
    panels = {"usage": show_usage(subjects.of_model)}

    @display(description="Context", ordering="context_length")
    def context(self, model: LanguageModel) -> str:
        return "" if model.context_length is None else f"{model.context_length:,}"

    @display(description="Published", ordering="created")
    def published(self, model: LanguageModel) -> str:
        if not model.created:
            return ""
        if not 0 < model.created <= LATEST:
            return f"{model.created} (not a time in seconds)"
        return f"{datetime.fromtimestamp(model.created, UTC):%Y-%m-%d}"
