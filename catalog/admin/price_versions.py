"""The page of price versions."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from django.contrib import admin
from django.utils.html import format_html

from catalog.admin.rates import render_rules
from catalog.models import PriceVersion
from catalog.pricing import RATES
from config.console.base import ConsoleAdmin
from config.console.formatting import dollars, per_million
from config.console.forms import part
from config.console.unfold import column


def _per_token(rate: Decimal | None) -> str:
    if rate is None:
        return "the prompt rate"
    return format_html("{} per token ({} per million)", dollars(rate), per_million(rate))


def _show_rate(label: str, rate: str, write: Callable[[Any], str | None]) -> Any:
    """Returns a column with a rate of a version."""
    return column(label, lambda version: write(getattr(version, rate)))


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
        part("Rates", *(f"{name}_rate" for name in RATES), "rules"),
    )

    prompt_price = _show_rate("Prompt / M", "prompt", per_million)
    completion_price = _show_rate("Completion / M", "completion", per_million)
    cache_read_price = _show_rate("Cache read / M", "cache_read", per_million)
    prompt_rate = _show_rate("Prompt", "prompt", _per_token)
    completion_rate = _show_rate("Completion", "completion", _per_token)
    image_rate = _show_rate("Image", "image", lambda rate: f"{dollars(rate)} per image")
    request_rate = _show_rate("Request", "request", lambda rate: f"{dollars(rate)} per request")
    cache_read_rate = _show_rate("Cache read", "cache_read", _per_token)
    cache_write_rate = _show_rate("Cache write", "cache_write", _per_token)
    image_output_rate = _show_rate(
        "Generated image",
        "image_output",
        lambda rate: "the completion rate" if rate is None else _per_token(rate),
    )

    rules = column("Further rates", lambda version: render_rules(version.price))
