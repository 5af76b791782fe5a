"""The page of a guardrail as operators see it who may not change it."""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest

from accounts.admin.guardrails.shadows import show_limit
from accounts.models import Guardrail
from config.console.base import ConsoleAdmin
from config.console.unfold import display

READ_ONLY: Final = ("budget", "shown_builtins", "shown_patterns")
"""The texts that stand for fields which only a form has."""


class ReadersPage(ConsoleAdmin):
    """Shows texts in place of the fields that only a form has."""

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Returns the parts of the page; a reader gets texts in place of what only a form has."""
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return fieldsets
        texts = {
            "Budget": ("budget", "include_byok_in_budgets"),
            "Content filters": ("shown_builtins", "shown_patterns"),
        }
        return [
            (title, {**options, "fields": texts.get(str(title), options["fields"])})
            for title, options in fieldsets
            if title != "Backtest"
        ]

    @display(description="Built-in patterns")
    def shown_builtins(self, guardrail: Guardrail) -> str:
        return show_limit("content_filter_builtins", guardrail.content_filter_builtins)

    @display(description="Own patterns")
    def shown_patterns(self, guardrail: Guardrail) -> str:
        return show_limit("content_filters", guardrail.content_filters)
