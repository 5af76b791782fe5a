"""Base classes of the console's pages. They import no app.

They differ from Django's admin in two ways. A model's methods write its rows, so that a refusal
comes from the model. Every change of state is a confirmed POST; see :mod:`config.console.actions`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import flatten_fieldsets, quote, unquote
from django.contrib.admin.views.main import ERROR_FLAG
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import PermissionDenied
from django.db import DataError
from django.db.models import DateTimeField, JSONField, Q, QuerySet, URLField
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.utils.text import capfirst
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_safe

from config.api.errors import GatewayError
from config.api.text import NOT_STORABLE
from config.apps import declarations
from config.audit.triggers import audit_triggers
from config.changes.pages import GuardedPage, SecondPersonNeeded, describe_demand
from config.changes.proposals import IMPORT
from config.console.formatting import nano_dollars
from config.console.forms import ConsoleForm, EmptyJsonField
from config.console.lists.exports import export_list
from config.console.lists.filters import FormFilter
from config.console.lists.pages import BoundedPaginator, ConsoleChangeList
from config.console.lists.saved_views import address_of, build_view_bar, find_default, refuse_view
from config.console.navigation import build_bar, build_menu_bar, find_preserved_tenant, find_tenant
from config.console.unfold import ModelAdmin, PageChecks, TextareaWidget, unfold_action
from config.console.uploads import IMPORTING, BulkFile, export_file, import_file, may_import

# The suffixes that Django's list filters append to a column's name; the filter of all values of a
# column appends none.
_FILTER_SUFFIX: Final = re.compile("(?:(?:__id)?__(?:exact|in|isnull|gte|lt))?")


def _takes(part: Any, lookup: str) -> bool:
    """Returns whether an entry of ``list_filter`` reads a parameter of the list's address."""
    if isinstance(part, tuple):
        part = part[0]
    if isinstance(part, str):
        rest = lookup.removeprefix(part)
        return rest != lookup and _FILTER_SUFFIX.fullmatch(rest) is not None
    if issubclass(part, FormFilter):
        return lookup in part.names()
    return bool(lookup == part.parameter_name)


class StrictList(GuardedPage, ModelAdmin):
    """A list that accepts only the lookups of its filters and of links on other pages.

    Django accepts every lookup of every column, for instance a regular expression over a table
    that grows, and fails on values that PostgreSQL cannot store.
    """

    checks_class = PageChecks
    linked_lookups: tuple[str, ...] = ("organization__id__exact", "created_at__gte")
    # Pages beside the list, by their places; each gets this page and the request.
    views: ClassVar[Mapping[str, Callable[[Any, HttpRequest], HttpResponse]]] = {}
    # The parameters of filters of a table that grows without an index for them.
    walked_lookups: ClassVar[frozenset[str]] = frozenset()
    # The bar of a tenant's tabs, and the operator's saved views.
    list_before_template = "admin/list_head.html"
    change_form_outer_before_template = "admin/tabs.html"
    paginator = BoundedPaginator
    show_full_result_count = False
    # Counts beside each filter would each read the whole table.
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        if NOT_STORABLE.search(value):
            return False
        parts = self.list_filter if request is None else self.get_list_filter(request)
        return lookup in self.linked_lookups or any(_takes(part, lookup) for part in parts)

    def has_walked_filter(self, params: Mapping[str, Any]) -> bool:
        """Returns whether PostgreSQL must read the rows of the list to find those of its filters.

        What is pending is found through another table.
        """
        return params.get("status__exact") != ["pending"] and any(
            value != "" for name in self.walked_lookups & params.keys() for value in params[name]
        )

    def read_columns(self, request: HttpRequest, rows: list[Any]) -> None:
        """Stores on the rows what their columns show; a subclass calls ``super`` and adds its own.

        Sends the same number of queries for any number of rows.
        """

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = dict(extra_context or {})
        tenant_id = find_tenant(request, self.opts.label_lower)
        context["tab_bar"] = (
            build_menu_bar(request)
            if tenant_id is None
            else build_bar(request, tenant_id, self.opts.label_lower)
        )
        match = request.resolver_match
        is_list = match is not None and str(match.url_name).endswith("_changelist")
        if not is_list or request.method != "GET" or "_popup" in request.GET:
            return super().changelist_view(request, context)
        bar = build_view_bar(request, self.opts.label_lower)
        if (default := find_default(request, bar)) is not None:
            return HttpResponseRedirect(address_of(default))
        response = super().changelist_view(request, {**context, "view_bar": bar})
        if bar.asked is not None and isinstance(response, HttpResponseRedirect):
            # Django sends an address with a wrong filter to the whole list.
            return refuse_view(request, bar.asked)
        return response

    def response_action(  # type: ignore[override]
        self, request: HttpRequest, queryset: QuerySet[Any]
    ) -> Any:
        try:
            answer = super().response_action(request, queryset)
        except SecondPersonNeeded as needed:
            return self.propose_deletions(request, needed)
        self.ask_for_reason(answer)
        return answer

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        obj = kwargs.get("obj")
        label = self.opts.label_lower
        if obj is None:
            tenant_id = find_preserved_tenant(request, label)
        else:
            tenant_id = getattr(obj, "organization_id", None) if self.is_tab else None
        if tenant_id is not None:
            tenant = getattr(obj, "organization", None)
            context["tab_bar"] = build_bar(request, tenant_id, label, tenant=tenant)
        form = context["adminform"].form
        context.update(describe_demand(self, request, obj, form))
        return super().render_change_form(request, context, *args, **kwargs)

    @property
    def is_tab(self) -> bool:
        """Whether the list is a tab of a tenant."""
        return declarations()[self.opts.label_lower].tab is not None

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        initial = super().get_changeform_initial_data(request)
        tenant_id = find_preserved_tenant(request, self.opts.label_lower)
        return initial if tenant_id is None else {**self.initial_for(tenant_id), **initial}

    def initial_for(self, tenant_id: uuid.UUID) -> dict[str, Any]:
        """Returns the values of the form that adds a row for a tenant."""
        return {"organization": tenant_id}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ConsoleChangeList]:
        # A page beside the list may show its rows in another way.
        return getattr(request, "list_class", ConsoleChangeList)

    def get_urls(self) -> list[Any]:
        name, wrap = f"{self.opts.app_label}_{self.opts.model_name}", self.admin_site.admin_view
        beside = [
            path(
                f"{place}/",
                wrap(require_safe(partial(view, self))),
                name=f"{name}_{place.replace('/', '_')}",
            )
            for place, view in self.views.items()
        ]
        export = path("export-csv/", wrap(self.export_view), name=f"{name}_export_csv")
        return [export, *beside, *super().get_urls()]

    def export_view(self, request: HttpRequest) -> HttpResponseBase:
        """Streams the rows that the list shows as CSV."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        try:
            return export_list(request, self.get_changelist_instance(request))
        except IncorrectLookupParameters:
            name = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
            return HttpResponseRedirect(f"{reverse(name)}?{ERROR_FLAG}=1")

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        try:
            return super().get_changelist_instance(request)
        except (DataError, OverflowError, DisallowedModelAdminLookup) as exc:
            raise IncorrectLookupParameters from exc

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Returns an object; reads it once for a page, which asks for it for each of its parts."""
        if NOT_STORABLE.search(object_id):
            return None
        if request.method != "GET":
            return super().get_object(request, object_id, from_field)
        read: dict[Any, Any] = request.__dict__.setdefault("objects_read", {})
        name = (self.opts.label_lower, object_id, from_field)
        if name not in read:
            read[name] = super().get_object(request, object_id, from_field)
            if read[name] is not None:
                # Its page shows it as it is now; see :func:`config.console.unfold.display`.
                read[name].computed_fields = {}
        return read[name]

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        context = {
            "show_history": self.opts.label_lower in audit_triggers(),
            **(extra_context or {}),
        }
        return super().change_view(request, object_id, form_url, context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirects to the object's entries in the audit log."""
        obj = self.get_object(request, unquote(object_id))
        if obj is None:
            return self.redirect_to_index(request, object_id)
        if not self.has_view_or_change_permission(request, obj):
            raise PermissionDenied
        query = {"kind": self.opts.label_lower, "object_id__exact": unquote(object_id)}
        url = reverse("admin:config_auditentry_changelist")
        return HttpResponseRedirect(f"{url}?{urlencode(query)}")

    def redirect_to_index(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Redirects to the first page with the message that the object does not exist."""
        admin: Any = self
        return admin._get_obj_does_not_exist_redirect(request, self.opts, object_id)

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Writes nothing: the triggers of the audit log record every change."""

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Writes nothing: the triggers of the audit log record every change."""

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        """Writes nothing: the triggers of the audit log record every change."""


@method_decorator(sensitive_post_parameters(), name="changeform_view")
class ConsoleAdmin(StrictList):
    """A page of the console over one model. Rows cannot be deleted; secrets are never rendered.

    A subclass creates rows in :meth:`create`. A change writes the changed columns only. Rows of a
    page that ``is_read_only`` can neither be added nor edited. ``panels`` are what the page of an
    object shows beside its fields, by the variables of its templates.
    """

    is_read_only: ClassVar[bool] = False
    # The column that says when a row was deleted; the console has no deleted rows.
    deletion_stamp: ClassVar[str] = ""
    # What an operator chooses when a row is added, and no more afterwards.
    fixed_fields: ClassVar[tuple[str, ...]] = ()
    # The file that the actions ``import_file`` and ``export_file`` read and write.
    bulk_file: ClassVar[BulkFile | None] = None
    other_operations = {IMPORT: IMPORTING}
    panels: ClassVar[Mapping[str, Callable[[HttpRequest, Any], Any]]] = {}
    change_form_outer_after_template: str | None = "admin/usage.html"

    form = ConsoleForm
    formfield_overrides = {
        ArrayField: {"widget": TextareaWidget(attrs={"rows": 2})},
        JSONField: {"form_class": EmptyJsonField},
        URLField: {"assume_scheme": "https"},
    }
    uuid_search_fields: tuple[str, ...] = ("id",)
    # The column of an amount in nano-USD that dialogs show.
    dialog_amount: str = ""

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Says of a time that it is entered in UTC."""
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if field is not None and isinstance(db_field, DateTimeField):
            field.help_text = f"{field.help_text} In UTC.".strip()
        return field

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        return rows.filter(**{self.deletion_stamp: None}) if self.deletion_stamp else rows

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Returns what the page shows and no form writes, and the fixed fields of a stored row."""
        columns = {field.name for field in self.opts.fields if field.editable}
        written = {*columns, *self.form.declared_fields}
        names = flatten_fieldsets(self.fieldsets or ())
        shown = (name for name in names if name not in written)
        return (*self.readonly_fields, *shown, *(self.fixed_fields if obj else ()))

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        """Shows the rows of other tables on the page of a stored row."""
        return self.inlines if obj else ()

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Any:
        """Stores a row from a valid form and returns it; may raise GatewayError."""
        obj.save(force_insert=True)
        return obj

    def change(self, request: HttpRequest, obj: Any, form: Any) -> None:
        """Writes the changed columns of a row, which has their new values."""
        stored = {field.name for field in self.opts.concrete_fields}
        names = [name for name in form.changed_data if name in stored]
        if names:
            obj.save_fields(*names)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return not self.is_read_only and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        may_change = not self.is_read_only and super().has_change_permission(request, obj)
        return may_change and (obj is None or self.may_touch(request, obj))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_import_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may_import(self, request)

    @unfold_action(
        description="Import file", permissions=["import"], url_path="import", icon="upload"
    )
    def import_file(self, request: HttpRequest) -> HttpResponse:
        return import_file(self, request)

    @unfold_action(
        description="Export file", permissions=["view"], url_path="export", icon="download"
    )
    def export_file(self, request: HttpRequest) -> HttpResponseBase:
        return export_file(self, request)

    def _filter_actions_by_permissions(self, request: HttpRequest, actions: Any) -> Any:
        return [
            action
            for action in actions
            if self.has_permissions(request, getattr(action[0], "allowed_permissions", ()))
        ]

    def offers_action(self, request: HttpRequest, obj: Any, name: str) -> bool:
        """Returns whether an object's page shows an action now; the model checks it again."""
        return True

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> Any:
        actions = super().get_actions_detail(request, object_id)  # type: ignore[misc]
        offers_all = type(self).offers_action is ConsoleAdmin.offers_action
        if not actions or (offers_all and not self.own_permission):
            # Most pages offer all of them, and need not read the object for that.
            return actions
        obj = self.get_object(request, unquote(str(object_id)))
        if obj is not None and not self.may_touch(request, obj):
            return []
        prefix = f"{self.opts.app_label}_{self.opts.model_name}_"
        return [
            action
            for action in actions
            if obj is not None
            and self.offers_action(request, obj, action.action_name.removeprefix(prefix))
        ]

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        try:
            try:
                return super().changeform_view(request, object_id, form_url, extra_context)
            except SecondPersonNeeded as needed:
                return self.propose(request, *needed.proposals)
        except GatewayError as exc:
            # The transaction was rolled back. The second call shows the form with the refusal.
            request.refusal = exc  # type: ignore[attr-defined]
            return super().changeform_view(request, object_id, form_url, extra_context)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form: Any = super().get_form(request, obj, change=change, **kwargs)
        form.refusal = getattr(request, "refusal", None)
        return form

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        obj = kwargs.get("obj")
        if obj is not None and "_popup" not in request.GET:
            built = {name: build(request, obj) for name, build in self.panels.items()}
            context |= {name: panel for name, panel in built.items() if panel is not None}
        return super().render_change_form(request, context, *args, **kwargs)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if not change:
            self.require_touch(request, obj)
            # Django keeps the form's instance, so it takes over the stored row's attributes.
            obj.__dict__.update(self.create(request, obj, form).__dict__)
            return
        self.change(request, obj, form)

    def response_post_save_add(self, request: HttpRequest, obj: Any) -> Any:
        """Leads to the page of what was made, where the next step is."""
        return self.redirect(request, self.url_of(request, obj))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        try:
            key = uuid.UUID(search_term.strip())
        except ValueError:
            key = None
        if key is None or not self.uuid_search_fields:
            return super().get_search_results(request, queryset, search_term)
        fields = [(name, key) for name in self.uuid_search_fields]
        return queryset.filter(Q(*fields, _connector=Q.OR)), False

    def redirect(self, request: HttpRequest, url: str) -> Any:
        """Redirects the browser; htmx, which sends dialogs, reads the target from a header."""
        if "HX-Request" in request.headers:
            return HttpResponse(headers={"HX-Redirect": url})
        return HttpResponseRedirect(url)

    def facts_of(self, obj: Any) -> list[tuple[str, str]]:
        """Returns the titles and the values by which the dialogs of an object name it."""
        facts = [(capfirst(str(self.opts.verbose_name)), str(obj))]
        if (organization := getattr(obj, "organization", None)) is not None:
            facts.append(("Organization", str(organization)))
        if self.dialog_amount and (amount := getattr(obj, self.dialog_amount)) is not None:
            facts.append(("Amount", nano_dollars(amount)))
        return facts

    def url_of(self, request: HttpRequest, obj: Any) -> str:
        """Returns the address of an object's page, or of the list once its page is gone."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}"
        if self.get_object(request, str(obj.pk)) is None:
            return reverse(f"{name}_changelist")
        return reverse(f"{name}_change", args=[quote(str(obj.pk))])


class ReadOnlyInline:
    """Makes an inline read-only and shows five of its rows at a time."""

    extra: int = 0
    max_num: int | None = 0
    per_page = 5
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission
