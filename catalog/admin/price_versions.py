"""The page of price versions."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.html import format_html

from catalog.admin.rates import render_rules
from catalog.models import PriceVersion
from catalog.pricing import RATES
from config.console.base import ConsoleAdmin
from config.console.formatting import dollars, per_million
from config.console.unfold import display


@admin.register(PriceVersion)
class PriceVersionAdmin(ConsoleAdmin):
    """Lists all price versions, newest first; the subject is the priced endpoint."""

    is_read_only = True
    list_display = (
        "id", "subject_id", "prompt_price", "completion_price", "cache_read_price", "created_at",
    )  # fmt: skip
    uuid_search_fields = ("subject_id",)
    search_fields = ("=id",)
    search_help_text = "The number of a version, or the ID of an endpoint."
    sortable_by = ()
    fieldsets = (
        (None, {"fields": ("id", "subject_id", "created_at")}),
        ("Rates", {"fields": (*(f"{name}_rate" for name in RATES), "rules")}),
    )
    readonly_fields = (*(f"{name}_rate" for name in RATES), "rules")

    @display(description="Prompt / M")
    def prompt_price(self, version: PriceVersion) -> str | None:
        return per_million(version.prompt)

    @display(description="Completion / M")
    def completion_price(self, version: PriceVersion) -> str | None:
        return per_million(version.completion)

    @display(description="Cache read / M")
    def cache_read_price(self, version: PriceVersion) -> str | None:
        return per_million(version.cache_read)

    @display(description="Prompt")
    def prompt_rate(self, version: PriceVersion) -> str:
        return _per_token(version.prompt)

    @display(description="Completion")
    def completion_rate(self, version: PriceVersion) -> str:
        return _per_token(version.completion)

    @display(description="Image")
    def image_rate(self, version: PriceVersion) -> str:
        return f"{dollars(version.image)} per image"

    @display(description="Request")
    def request_rate(self, version: PriceVersion) -> str:
        return f"{dollars(version.request)} per request"

    @display(description="Cache read")
    def cache_read_rate(self, version: PriceVersion) -> str:
        return _per_token(version.cache_read)

    @display(description="Cache write")
    def cache_write_rate(self, version: PriceVersion) -> str:
        return _per_token(version.cache_write)

    @display(description="Generated image")
    def image_output_rate(self, version: PriceVersion) -> str:
        return _per_token(version.image_output, otherwise="the completion rate")

    @display(description="Further rates")
    def rules(self, version: PriceVersion) -> str:
        return render_rules(version.price)


def _per_token(rate: Any, otherwise: str = "the prompt rate") -> str:
    if rate is None:
        return otherwise
    return format_html("{} per token ({} per million)", dollars(rate), per_million(rate))
