"""The page of price versions."""

from __future__ import annotations

from django.contrib import admin

from catalog.admin.rates import render_rates, render_rules
from catalog.models import PriceVersion
from config.console.base import ConsoleAdmin
from config.console.formatting import per_million
from config.console.forms import part
from config.console.unfold import column


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
        part(None, "id", "subject_id", "created_at"),
        part("Price", "rates", "rules"),
    )

    prompt_price = column("Prompt / M", lambda version: per_million(version.prompt))
    completion_price = column("Completion / M", lambda version: per_million(version.completion))
    cache_read_price = column("Cache read / M", lambda version: per_million(version.cache_read))
    rates = column("Rates", render_rates)
    rules = column("Further rates", lambda version: render_rules(version.price))
