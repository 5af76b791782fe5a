"""The operator's pages for what belongs to no application: second factors and the audit log."""

from __future__ import annotations

import json
from typing import Any, Final
from uuid import UUID

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.db import connection
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django_otp.plugins.otp_static.admin import StaticDevice
from django_otp.plugins.otp_totp.admin import TOTPDevice

from accounts.models import Organization
from config.audit import context as audit
from config.audit.entries import AuditEntry
from config.audit.triggers import audit_triggers
from config.console import totp
from config.console.actions import Message, transition
from config.console.base import BoundedPaginator, ReadOnlyAdmin
from config.console.formatting import label_renderer
from config.console.unfold import display

_CHANGES: Final = {"created": "success", "changed": "info", "deleted": "danger"}
_NAMES: Final = ("name", "username", "email", "user", "slug", "label")
_SHOWN: Final = 4
_ACTORS: Final = 100
# Each step looks up the next name in the index, however many entries there are of each.
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

# The package's own pages, which the imports above register, show keys and codes.
admin.site.unregister([TOTPDevice, StaticDevice])


@admin.register(TOTPDevice)
class SecondFactorAdmin(ReadOnlyAdmin):
    """Who has set up two-factor login, to take it away from who has lost it."""

    list_display = ("user", "created_at", "last_used_at")
    list_select_related = ("user",)
    search_fields = ("user__username",)
    uuid_search_fields = ()
    ordering = ("user__username",)
    fieldsets = ((None, {"fields": ("user", "codes", ("created_at", "last_used_at"))}),)
    readonly_fields = ("codes",)
    actions_detail = ("remove",)

    @display(description="Backup codes")
    def codes(self, device: Any) -> str:
        return f"{totp.codes_left(device.user)} left"

    def has_remove_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("otp_totp.delete_totpdevice")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """It goes with its operator, who is deleted on a page of their own."""
        match = request.resolver_match
        is_of_operator = match is not None and str(match.url_name).startswith("auth_user_")
        return is_of_operator and self.has_remove_permission(request)

    @transition(
        description="Remove",
        question="The operator logs in with the password alone, and has to set up a new app where "
        "one is required.",
        submit="Remove the second factor",
        permission="remove",
        icon="phonelink_erase",
        danger=True,
    )
    def remove(self, request: HttpRequest, device: Any, form: Any) -> Message:
        totp.remove(device.user)
        return messages.SUCCESS, f"The second factor of {device.user} is removed."


class KindFilter(admin.SimpleListFilter):
    """The kinds of rows that the triggers watch; asking the log itself would read all of it."""

    title = "kind"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return sorted(
            ((kind, _title(kind)) for kind in (*audit_triggers(), audit.IMPORT)),
            key=lambda pair: pair[1],
        )

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        kind = self.value()
        return queryset.filter(kind=kind) if kind else queryset


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """Who changed what, newest first."""

    list_display = ("at", "actor", "change", "what", "columns", "organization", "action")
    list_display_links = ("at",)
    list_filter = (KindFilter, "at")
    search_fields = ("actor", "=object_id")
    search_help_text = "An actor, or the id of an object or an organization, or its name."
    uuid_search_fields = ("organization_id",)
    # The history of a row links to its entries.
    linked_lookups = ("object_id__exact",)
    paginator = BoundedPaginator
    ordering = ("-id",)
    sortable_by = ()
    fieldsets = (
        (None, {"fields": (("change", "what"), ("at", "actor"), ("action", "request_id"))}),
        ("Object", {"fields": (("object", "organization"),)}),
        ("Columns", {"fields": ("diff",)}),
    )
    readonly_fields = ("change", "what", "object", "organization", "diff")
    readonly_preprocess_fields = {"change": label_renderer(_CHANGES)}

    @display(description="Change", label=_CHANGES)
    def change(self, entry: AuditEntry) -> str:
        return entry.change

    @display(description="What")
    def what(self, entry: AuditEntry) -> str:
        columns = {**(entry.before or {}), **(entry.after or {})}
        names = (str(columns[name]) for name in _NAMES if columns.get(name))
        return f"{_title(entry.kind)} {next(names, entry.object_id[:8])}".rstrip()

    @display(description="Columns")
    def columns(self, entry: AuditEntry) -> str:
        if entry.before is None or entry.after is None:
            return ""
        names = sorted(entry.after)
        more = len(names) - _SHOWN
        return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")

    @display(description="Organization")
    def organization(self, entry: AuditEntry) -> str:
        if entry.organization_id is None:
            return ""
        name: str | None = getattr(entry, "organization_name", None)
        return name or str(entry.organization_id)

    @display(description="Object")
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
            (name, _shown(before.get(name)), _shown(after.get(name)))
            for name in sorted({**before, **after})
        ]
        return render_to_string(
            "admin/config/diff.html", {"headers": ("Column", "Before", "After"), "rows": rows}
        )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        names = Organization.objects.filter(pk=OuterRef("organization_id")).values("name")
        rows: QuerySet[Any] = super().get_queryset(request)
        named: QuerySet[Any] = rows.annotate(organization_name=Subquery(names))
        return named

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            wanted = UUID(term)
        except ValueError:
            owners = Organization.objects.filter(name__icontains=term).values_list("pk", flat=True)
            return queryset.filter(
                Q(actor__in=_actors_like(term))
                | Q(object_id=term)
                | Q(organization_id__in=list(owners))
            ), False
        return queryset.filter(Q(object_id=str(wanted)) | Q(organization_id=wanted)), False


def _actors_like(term: str) -> list[str]:
    """Returns the first actors whose names contain a text."""
    with connection.cursor() as cursor:
        cursor.execute(_ACTORS_LIKE, [term, _ACTORS])
        return [actor for (actor,) in cursor.fetchall()]


def _title(kind: str) -> str:
    return kind if kind == audit.IMPORT else str(apps.get_model(kind)._meta.verbose_name)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)
