"""The page of feedback."""

from __future__ import annotations

from django.contrib import admin

from config.console.base import ConsoleAdmin
from config.console.unfold import display
from inference.models import Feedback


@admin.register(Feedback)
class FeedbackAdmin(ConsoleAdmin):
    """Lists the callers' feedback on generations, newest first.

    It shows ids: a generation may have been archived.
    """

    is_read_only = True
    list_display = ("created_at", "category", "about", "created_by")
    list_filter = ("category",)
    search_fields = ("generation__id__startswith",)
    search_help_text = "The beginning of a generation's ID."
    ordering = ("-id",)
    sortable_by = ()
    fields = (("category", "about"), "comment", ("created_by", "created_at"))
    readonly_fields = ("category", "about", "comment", "created_by", "created_at")

    @display(description="Generation")
    def about(self, feedback: Feedback) -> str:
        return feedback.generation_id
