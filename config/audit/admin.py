"""The page of the audit log."""

from __future__ import annotations

import json
from typing import Any, Final
from uuid import UUID

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db import connection
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html

from config.apps import ModelDeclaration, declarations
from config.audit import context as audit
from config.audit.entries import AuditEntry
from config.audit.triggers import audit_triggers
from config.changes.deciding import hidden_pages, shown_numbers
from config.console.base import ConsoleAdmin
from config.console.formatting import label_renderer
from config.console.forms import part
from config.console.lists.tenants import annotate_organization, name_organization, tenants
from config.console.unfold import column, display

_CHANGES: Final = {
    "created": "success", "changed": "info", "deleted": "danger", "recorded": "info",
}  # fmt: skip
# The kinds of entries that are no rows of a table, and their names.
_EVENTS: Final = {audit.IMPORT: "import", audit.READING: "reading", audit.SIGN_IN: "sign-in"}
# The kinds of the accounts of operators, and of what they sign in with, begin so.
_OF_OPERATORS: Final = ("auth.", "otp_")
# The list names at most this many changed columns, and a search matches at most this many actors.
_MAX_COLUMNS: Final = 4
_MAX_ACTORS: Final = 100
# Each step looks up the next actor in the index: the cost depends on the number of actors, not on
# the number of entries.
_ACTORS_LIKE: Final = """
WITH RECURSIVE actors AS (
    (SELECT actor FROM config_auditentry ORDER BY actor LIMIT 1)
    UNION ALL
    SELECT (SELECT e.actor FROM config_auditentry e WHERE e.actor > a.actor
            ORDER BY e.actor LIMIT 1)
    FROM actors a WHERE a.actor IS NOT NULL
)
SELECT actor FROM actors WHERE strpos(lower(actor), lower(%s)) > 0 LIMIT %s
"""


class KindFilter(admin.SimpleListFilter):
    """Filters by model; lists all audited models, because a DISTINCT would read the whole log."""

    title = "kind"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        may_see, hidden = _may_see_operators(request), hidden_pages(request)
        kinds = (
            kind
            for kind in (*audit_triggers(), *_EVENTS)
            if kind not in hidden and (may_see or not _names_one(kind))
        )
        return sorted(((kind, _kind_title(kind)) for kind in kinds), key=lambda pair: pair[1])

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        kind = self.value()
        return queryset.filter(kind=kind) if kind else queryset


@admin.register(AuditEntry)
class AuditEntryAdmin(ConsoleAdmin):
    """Shows every recorded change, newest first."""

    is_read_only = True
    # The foot of the list counts entries, not logs.
    rows_name = "audit entries"
    list_display = ("at", "actor", "change", "what", "columns", "organization", "action")
    list_display_links = ("at",)
    list_filter = (KindFilter, "at")
    search_fields = ("actor", "=object_id")
    search_help_text = "An actor, the ID of an object, or the ID or name of an organization."
    uuid_search_fields = ("organization_id",)
    # The history of a row links to its entries.
    linked_lookups = ("object_id__exact", "organization_id__exact")
    ordering = ("-id",)
    sortable_by = ()
    fieldsets = (
        part(None, ("change", "what"), ("at", "actor"), ("action", "request_id")),
        part("Object", ("object", "organization")),
        part("Columns", "diff"),
    )
    readonly_preprocess_fields = {"change": label_renderer(_CHANGES)}

    change = column("Change", lambda entry: entry.change, label=_CHANGES)

    @display(description="Object")
    def what(self, entry: AuditEntry) -> str:
        columns = {**(entry.before or {}), **(entry.after or {})}
        declaration = declarations().get(entry.kind, ModelDeclaration())
        titles = (str(columns[name]) for name in declaration.title_columns if columns.get(name))
        return f"{_kind_title(entry.kind)} {next(titles, entry.object_id[:8])}".rstrip()

    @display(description="Columns")
    def columns(self, entry: AuditEntry) -> str:
        if entry.before is None or entry.after is None:
            return ""
        names = sorted(entry.after)
        more = len(names) - _MAX_COLUMNS
        return ", ".join(names[:_MAX_COLUMNS]) + (f" and {more} more" if more > 0 else "")

    organization = column("Organization", lambda entry: name_organization(entry))

    @display(description="Object ID")
    def object(self, entry: AuditEntry) -> str:
        name = f"admin:{entry.kind.replace('.', '_')}_change"
        try:
            url = reverse(name, args=[quote(entry.object_id)])
        except NoReverseMatch:
            return entry.object_id
        return format_html('<a class="underline" href="{}">{}</a>', url, entry.object_id)

    @display(description="Before and after")
    def diff(self, entry: AuditEntry) -> str:
        before, after = entry.before or {}, entry.after or {}
        rows = [
            (name, _format(before.get(name)), _format(after.get(name)))
            for name in sorted({**before, **after})
        ]
        return render_to_string(
            "admin/config/diff.html", {"headers": ("Column", "Before", "After"), "rows": rows}
        )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Returns the entries, without those that repeat what hidden pages have."""
        rows = annotate_organization(super().get_queryset(request))
        if hidden := hidden_pages(request):
            is_shown = ~Q(kind="config.changeset") | Q(object_id__in=shown_numbers(request))
            rows = rows.exclude(kind__in=hidden).filter(is_shown)
        if _may_see_operators(request):
            return rows
        of_operators = Q(kind=audit.SIGN_IN)
        for beginning in _OF_OPERATORS:
            of_operators |= Q(kind__startswith=beginning)
        return rows.exclude(of_operators)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            key = UUID(term)
        except ValueError:
            owners = tenants().filter(name__icontains=term).values_list("pk", flat=True)
            return queryset.filter(
                Q(actor__in=_actors_like(term))
                | Q(object_id=term)
                | Q(organization_id__in=list(owners))
            ), False
        return queryset.filter(Q(object_id=str(key)) | Q(organization_id=key)), False


def _may_see_operators(request: HttpRequest) -> bool:
    return bool(request.user.has_perm("auth.view_user"))


def _names_one(kind: str) -> bool:
    """Returns whether entries of a kind are about operators themselves."""
    return kind == audit.SIGN_IN or kind.startswith(_OF_OPERATORS)


def _actors_like(term: str) -> list[str]:
    """Returns the first actors whose names contain a text."""
    with connection.cursor() as cursor:
        cursor.execute(_ACTORS_LIKE, [term, _MAX_ACTORS])
        return [actor for (actor,) in cursor.fetchall()]


def _kind_title(kind: str) -> str:
    """Returns the name of a kind of entry, which is the label of a model or an event.

    A later release may have written kinds that this one does not know.
    """
    if (event := _EVENTS.get(kind)) is not None:
        return event
    try:
        return str(apps.get_model(kind)._meta.verbose_name)
    except (LookupError, ValueError):
        return kind


def _format(value: Any) -> str:
    """Formats the value of a column; text as it is, anything else as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)
