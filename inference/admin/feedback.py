"""The page of feedback."""

from __future__ import annotations

from django.contrib import admin

from config.console.base import BoundedPaginator, ReadOnlyAdmin
from inference.models import Feedback


@admin.register(Feedback)
class FeedbackAdmin(ReadOnlyAdmin):
    """Lists the callers' feedback on generations, newest first."""

    list_display = ("created_at", "category", "generation", "created_by")
    list_filter = ("category",)
    search_fields = ("generation__id__startswith",)
    search_help_text = "The beginning of a generation's ID."
    paginator = BoundedPaginator
    ordering = ("-id",)
    sortable_by = ()
    fields = (("category", "generation"), "comment", ("created_by", "created_at"))
