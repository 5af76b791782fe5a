"""The page of private endpoints."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html_join
from django.utils.timesince import timesince

from accounts.admin.forms import POINTS_SECRETS, may_point_secrets
from accounts.admin.uploads import OrganizationExportForm, OrganizationUploadForm
from accounts.models import ByokCredential
from billing.admin.excesses import UnderReviewFilter, count_reviews, reviews_of
from catalog.admin.prices import PRICING, edit_price
from catalog.admin.rates import render_rates
from catalog.models import LanguageModel
from config.api.text import parse_uuid
from config.audit.context import actor_of
from config.bulk.report import Report, RowListener
from config.bulk.rows import read_lines
from config.changes.kinds import ChangeKind, FourEyes
from config.changes.proposals import PRICE, Difference
from config.clocks.clock import clock
from config.console.actions import Message, bulk_action, report, transition
from config.console.base import ConsoleAdmin
from config.console.formatting import label_renderer, per_million
from config.console.forms import part
from config.console.lists.filters import make_filter
from config.console.unfold import column, display
from config.console.uploads import BulkFile, Upload
from config.models import TIME_COLUMNS
from endpoints import imports
from endpoints.activation import describe_failure, validate_and_replace, validate_only
from endpoints.admin.forms import (
    RATES,
    DisableDialog,
    EditDialog,
    FallbackDialog,
    PoolDialog,
    PrivateEndpointForm,
    RemoveDialog,
    ReplaceDialog,
    TimesDialog,
    ValidateDialog,
)
from endpoints.admin.validations import OUTCOMES
from endpoints.history import SHOWN, events, render_operations, render_proofs
from endpoints.models import PrivateEndpoint, Validation
from endpoints.validation import Asker, HostScope
from inference.reports.usage import subjects
from inference.reports.usage.consequences import foresee_endpoint, foresee_endpoints
from inference.reports.usage.panel import show_usage

_KEPT: Final = "deleted, stays private until released"
_STATES: Final = {
    "draft": "info", "active": "success", "disabled": "warning", _KEPT: "warning",
}  # fmt: skip
_DRIFT: Final = {"drifted": "danger"}


class PrivateEndpointFile(BulkFile):
    """The private endpoints of an organization."""

    upload_form = OrganizationUploadForm
    export_form = OrganizationExportForm
    help = (
        'A file in JSON Lines: each line is a create request without "activate". A new endpoint '
        "becomes a draft, which you then validate and activate. A line may name an endpoint that "
        "was ever activated only if it changes nothing."
    )
    # A line may have a price and a fallback.
    kinds = (ChangeKind.PRICES, ChangeKind.GUARDRAILS)

    def load(self, upload: Upload, *, by: str, dry_run: bool, on_row: RowListener | None) -> Report:
        assert upload.organization_id is not None
        lines = read_lines(io.BytesIO(upload.content))
        return imports.apply(upload.organization_id, lines, by=by, dry_run=dry_run, on_row=on_row)

    def export(self, given: dict[str, Any]) -> tuple[str, Iterable[bytes]]:
        return "private-endpoints.jsonl", imports.export(given["organization"].pk)


Status = PrivateEndpoint.Status
_BY_STATUS: Final[dict[str, set[str]]] = {
    Status.DRAFT: {
        "edit", "edit_price", "limit_time", "limit_fallback", "place_in_pool", "validate",
        "activate", "remove",
    },
    Status.ACTIVE: {
        "replace_deployment", "edit_price", "limit_time", "limit_fallback", "place_in_pool",
        "validate_again", "disable", "remove",
    },
    Status.DISABLED: {
        "edit_price", "limit_time", "limit_fallback", "place_in_pool", "validate_again", "enable",
        "remove",
    },
}  # fmt: skip


def _with_status(status: str) -> Callable[[Any], Any]:
    return lambda rows: rows.filter(status=status, deleted_at=None)


# A deleted row keeps its status and its drift, which count no more.
EndpointStatusFilter = make_filter(
    "status",
    "status__exact",
    {
        **{str(status): (str(status.label), _with_status(status)) for status in Status},
        "deleted": (_KEPT, lambda rows: rows.exclude(deleted_at=None)),
    },
)
DriftFilter = make_filter(
    "drift",
    "drifted_at__isnull",
    {"False": ("drifted", lambda rows: rows.filter(drifted_at__isnull=False, deleted_at=None))},
)
_OPERATE: Final = "endpoints.change_privateendpoint"
_REMOVE: Final = "endpoints.delete_privateendpoint"
_DELETION: Final = FourEyes((ChangeKind.DELETIONS,), _REMOVE)
_RELEASE: Final = FourEyes(
    (ChangeKind.DELETIONS,),
    _REMOVE,
    describe=lambda row, form: [Difference("Model", str(row.model), "not private any more")],
)
# The dialog says which level it was, and which it will be.
_LEVEL: Final = FourEyes((ChangeKind.GUARDRAILS,), _OPERATE, describe=lambda row, form: ())
_EDITED: Final = frozenset(("upstream_model_id", "base_url", "declared_region", "declared_zdr"))


@admin.register(PrivateEndpoint)
class PrivateEndpointAdmin(ConsoleAdmin):
    """Lists the endpoints of organizations; only the actions change an endpoint's status."""

    actions = ("activate_selected", "disable_selected", "enable_selected", "remove_selected")
    actions_detail = (
        "edit", "replace_deployment", "edit_price", "limit_time", "limit_fallback",
        "place_in_pool", "validate", "validate_again", "activate", "disable", "enable", "remove",
        "release",
    )  # fmt: skip
    form = PrivateEndpointForm
    list_display = (
        "model", "provider_name", "state", "validated", "validated_ago", "drift", "organization",
        "region", "zdr", "price_text", "reviews",
    )  # fmt: skip
    list_select_related = (
        "organization",
        "model",
        "provider",
        "private_provider",
        "price",
        "validation",
    )
    list_filter = (
        EndpointStatusFilter, DriftFilter, UnderReviewFilter, "declared_region", "provider",
    )  # fmt: skip
    search_fields = ("model__name", "model__slug", "provider_name", "upstream_model_id")
    uuid_search_fields = ("id", "organization_id")
    ordering = ("-created_at", "-id")
    autocomplete_fields = ("organization", "model", "provider")
    empty_hint = (
        "Add an endpoint or import a file. Then open the endpoint, validate it and activate it."
    )
    form_guard = FourEyes((ChangeKind.PRICES,), fields=RATES, guards_new_rows=True)
    bulk_file = PrivateEndpointFile()
    actions_list = ("import_file", "export_file")
    edit_price = edit_price
    other_operations = {**ConsoleAdmin.other_operations, PRICE: PRICING}
    reviews = reviews_of
    panels = {"usage": show_usage(subjects.of_private_endpoint)}
    add_fieldsets = (
        part(
            None,
            "organization",
            ("model", "provider"),
            "upstream_model_id",
            "base_url",
            note="A new endpoint is a draft: validate it with a live call, then "
            "activate it. The base URL is an HTTPS address that ends with the version, such as "
            "https://llm.example.com/v1. Leave it empty if the credential contains it.",
        ),
        part(
            "More",
            "own_model",
            "own_model_name",
            "declared_region",
            "declared_zdr",
            *RATES,
            *TIME_COLUMNS,
            note="Leave all four rates empty to charge the public list price. Empty limits of "
            "time, and longer ones, mean those of the settings.",
            folded=True,
        ),
    )
    fieldsets = (
        part(None, ("state", "validated", "drift"), ("model", "provider"), "organization"),
        part("Upstream", "base_url", "upstream_model_id", "credentials"),
        part("Declarations", ("declared_region", "declared_zdr"), "fallback"),
        part("Price", ("rates", "reviews")),
        part("Limits of time", *TIME_COLUMNS, folded=True),
        part("Operations and parameters", "operations", "proofs"),
        part("History", "history"),
        part(
            "Record",
            ("activated_at", "activated_by"),
            ("disabled_at", "disabled_by"),
            "disabled_reason",
            ("deleted_at", "deleted_by"),
            ("released_at", "released_by"),
            ("watched_at", "drifted_at"),
            ("created_at", "updated_at"),
            "id",
            "idempotency_key",
            folded=True,
        ),
    )

    readonly_preprocess_fields = {
        "state": label_renderer(_STATES),
        "validated": label_renderer(OUTCOMES),
        "drift": label_renderer(_DRIFT),
    }

    state = column(
        "Status",
        lambda endpoint: str(endpoint.status) if endpoint.deleted_at is None else _KEPT,
        ordering="status",
        label=_STATES,
    )

    @display(description="Validation", label=OUTCOMES)
    def validated(self, endpoint: PrivateEndpoint) -> str:
        if endpoint.validation is None:
            return "none"
        return str(Validation.Outcome(endpoint.validation.outcome).label)

    @display(description="Validated")
    def validated_ago(self, endpoint: PrivateEndpoint) -> str:
        """Returns the age of the validation of the current configuration."""
        if endpoint.validation is None:
            return "never"
        return f"{timesince(endpoint.validation.created_at, clock.now(), depth=1)}\xa0ago"

    region = column("Region", lambda endpoint: endpoint.declared_region or "")

    @display(description="ZDR", label={"declared": "success", "denied": "warning"})
    def zdr(self, endpoint: PrivateEndpoint) -> str:
        if endpoint.declared_zdr is None:
            return ""
        return "declared" if endpoint.declared_zdr else "denied"

    @display(description="Events, latest first")
    def history(self, endpoint: PrivateEndpoint) -> str:
        return render_to_string(
            "admin/endpoints/history.html", {"events": events(endpoint), "shown": SHOWN}
        )

    @display(description="Credentials, in order of trial")
    def credentials(self, endpoint: PrivateEndpoint) -> str:
        """Returns the credentials of the provider, and whether their secrets travel to the host."""
        rows = (
            ByokCredential.objects.for_organization(endpoint.organization_id)
            .filter(provider_slug=endpoint.upstream_provider.slug, disabled=False)
            .select_related("workspace")
            .order_by("is_fallback", "sort_order", "created_at")[:SHOWN]
        )
        lines = (
            (
                credential,
                credential.workspace.name if credential.workspace else "all workspaces",
                _describe_travel(endpoint, credential),
            )
            for credential in rows
        )
        return format_html_join("", "<div>{} in {}: {}</div>", lines) or "none"

    drift = column("Drift", lambda row: "drifted" if row.drifted_at else "", label=_DRIFT)
    price_text = column(
        "Price / M",
        lambda row: f"{per_million(row.price.prompt)} / {per_million(row.price.completion)}",
    )

    @display(description="Operations")
    def operations(self, endpoint: PrivateEndpoint) -> str:
        return "" if endpoint.validation is None else render_operations(endpoint.validation)

    @display(description="What a validation has shown")
    def proofs(self, endpoint: PrivateEndpoint) -> str:
        return "" if endpoint.validation is None else render_proofs(endpoint.validation)

    rates = column("Rates", lambda endpoint: render_rates(endpoint.price))

    def read_columns(self, request: HttpRequest, rows: list[Any]) -> None:
        super().read_columns(request, rows)
        count_reviews(rows)

    def get_queryset(self, request: HttpRequest) -> Any:
        # The model of a deleted endpoint can still be released.
        kept = Q(deleted_at=None) | Q(activated_at__isnull=False, released_at=None)
        rows = super().get_queryset(request).filter(kept)
        # The list names what it needs. A page names these too.
        match = request.resolver_match
        if match is None or str(match.url_name).endswith("_changelist"):
            return rows
        return rows.select_related(*self.list_select_related)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Searches model names in the table of models, because there are far fewer models."""
        if parse_uuid(search_term.strip()) is not None:
            return super().get_search_results(request, queryset, search_term)
        for word in search_term.split():
            models = LanguageModel.objects.of_everybody().filter(
                Q(name__icontains=word) | Q(slug__icontains=word)
            )
            queryset = queryset.filter(
                Q(model__in=list(models.values_list("pk", flat=True)))
                | Q(provider_name__icontains=word)
                | Q(upstream_model_id__icontains=word)
            )
        return queryset, False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def create(self, request: HttpRequest, obj: Any, form: Any) -> PrivateEndpoint:
        endpoint, _ = PrivateEndpoint.objects.create_draft(
            organization_id=obj.organization_id,
            **form.named_model,
            provider_slug=obj.provider.slug,
            upstream_model_id=obj.upstream_model_id,
            base_url=obj.base_url,
            declared_region=obj.declared_region,
            declared_zdr=obj.declared_zdr,
            price=form.negotiated_price,
            time_limits=obj.time_limits,
            by=actor_of(request),
        )
        return endpoint

    def has_reprice_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(_OPERATE)

    def offers_action(self, request: HttpRequest, obj: PrivateEndpoint, name: str) -> bool:
        if obj.deleted_at is not None:
            return name == "release"
        return name in _BY_STATUS[obj.status]

    @transition("Edit", submit="Save the draft", permission=_OPERATE, icon="edit", form=EditDialog)
    def edit(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        """A changed draft must be validated again before it can be activated."""
        endpoint.edit(by=actor_of(request), **_read_upstream(request, form))
        return messages.SUCCESS, "The draft is saved."

    @transition(
        "Replace the deployment",
        submit="Validate and replace",
        permission=_OPERATE,
        icon="swap_horiz",
        form=ReplaceDialog,
    )
    def replace_deployment(
        self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any
    ) -> Message:
        """Sends a plain and a streamed request to the new deployment. If it passes, later requests
        go there, and running ones end where they began; else nothing is changed.
        """
        validate_and_replace(
            endpoint,
            _read_upstream(request, form),
            workspace_id=form.cleaned_data["workspace"].pk,
            by=actor_of(request),
            asker=self._asker_of(request),
        )
        return messages.SUCCESS, "The endpoint has the new deployment."

    @transition(
        "Limit time", submit="Save the limits", permission=_OPERATE, icon="timer", form=TimesDialog
    )
    def limit_time(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        """The limits apply to later requests. Nothing needs to be validated again."""
        endpoint.limit_time(form.limits)
        return messages.SUCCESS, "The limits of time are saved."

    @transition(
        "Fallback",
        submit="Save the fallback",
        permission=_OPERATE,
        icon="alt_route",
        form=FallbackDialog,
        four_eyes=_LEVEL,
    )
    def limit_fallback(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        """Says where later requests for the model may go besides private endpoints."""
        endpoint.edit(by=actor_of(request), fallback=form.cleaned_data["fallback"])
        return messages.SUCCESS, "The fallback is saved."

    @transition(
        "Pool", submit="Save the place", permission=_OPERATE, icon="account_tree", form=PoolDialog
    )
    def place_in_pool(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        """Says which of the later requests for the model the endpoint serves."""
        endpoint.edit(by=actor_of(request), settings={"routing": form.routing})
        return messages.SUCCESS, "The place in the pool is saved."

    @transition(
        "Validate",
        submit="Validate now",
        permission=_OPERATE,
        icon="fact_check",
        form=ValidateDialog,
    )
    def validate(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        """Sends a plain and a streamed request with the BYOK credential of a workspace."""
        return self._validate(request, endpoint, form, again=False)

    @transition(
        "Validate again",
        submit="Validate now",
        permission=_OPERATE,
        icon="fact_check",
        form=ValidateDialog,
    )
    def validate_again(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        """Sends a plain and a streamed request with the BYOK credential of a workspace. If they
        pass, later watches compare with them, and a drift ends. The endpoint stays as it is.
        """
        return self._validate(request, endpoint, form, again=True)

    @transition("Activate", submit="Activate", permission=_OPERATE, icon="play_arrow")
    def activate(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        """Requests of the organization are routed to this endpoint from now on."""
        endpoint.activate(by=actor_of(request))
        return messages.SUCCESS, "The endpoint is active."

    @transition(
        "Disable",
        submit="Disable",
        permission=_OPERATE,
        icon="pause",
        form=DisableDialog,
        foresee=foresee_endpoint,
    )
    def disable(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        """No request is routed to this endpoint from now on. Its model stays private: public
        endpoints serve only what lists them, or may fall back to any.
        """
        endpoint.disable(by=actor_of(request), reason=form.cleaned_data["reason"])
        return messages.SUCCESS, "The endpoint is disabled."

    @transition("Enable", submit="Enable", permission=_OPERATE, icon="play_arrow")
    def enable(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        """Requests of the organization are routed to this endpoint again."""
        endpoint.enable(by=actor_of(request))
        return messages.SUCCESS, "The endpoint is active again."

    @transition(
        "Delete",
        submit="Delete the endpoint",
        permission=_REMOVE,
        icon="delete",
        danger=True,
        form=RemoveDialog,
        foresee=foresee_endpoint,
        four_eyes=_DELETION,
    )
    def remove(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        """The endpoint disappears from every list and no request is routed to it. Its generations
        stay. If it was ever active, its model stays private until it is released. This cannot be
        undone.
        """
        endpoint.remove(by=actor_of(request), release=form.cleaned_data["release"])
        return messages.SUCCESS, f"{endpoint} is deleted."

    @transition(
        "Release",
        submit="Release the model",
        permission=_REMOVE,
        icon="lock_open",
        danger=True,
        four_eyes=_RELEASE,
    )
    def release(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        """Requests for the model go to public endpoints again, from the next one on. The model
        becomes private again when an endpoint of it is activated.
        """
        done = f"{endpoint.model} is not private any more."
        return report(endpoint.release(by=actor_of(request)), done, "It was released before.")

    def _validate(
        self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any, *, again: bool
    ) -> Message:
        result = validate_only(
            endpoint,
            workspace_id=form.cleaned_data["workspace"].pk,
            again=again,
            asker=self._asker_of(request),
        )
        if result.passed:
            return messages.SUCCESS, "The validation passed."
        return messages.WARNING, describe_failure(result)

    def _asker_of(self, request: HttpRequest) -> Asker:
        """Returns the operator, who keeps the power to bind for as long as a validation runs."""
        scope = _scope_of(request)
        names = (_OPERATE,) if scope is HostScope.IN_USE else (_OPERATE, POINTS_SECRETS)
        return Asker(partial(self.judge_again, request, *names), scope)

    @bulk_action("Activate", permission=_OPERATE)
    def activate_selected(self, request: HttpRequest, endpoint: PrivateEndpoint) -> None:
        """Activate these endpoints?"""
        endpoint.activate(by=actor_of(request))

    @bulk_action("Disable", permission=_OPERATE, foresee=foresee_endpoints)
    def disable_selected(self, request: HttpRequest, endpoint: PrivateEndpoint) -> None:
        """Disable these endpoints? No request is routed to them from now on."""
        endpoint.disable(by=actor_of(request))

    @bulk_action("Enable", permission=_OPERATE)
    def enable_selected(self, request: HttpRequest, endpoint: PrivateEndpoint) -> None:
        """Enable these endpoints?"""
        endpoint.enable(by=actor_of(request))

    @bulk_action("Delete", permission=_REMOVE, foresee=foresee_endpoints, four_eyes=_DELETION)
    def remove_selected(self, request: HttpRequest, endpoint: PrivateEndpoint) -> None:
        """Delete these endpoints? They disappear from every list and no request is routed to them.
        This cannot be undone.
        """
        endpoint.remove(by=actor_of(request))


def _scope_of(request: HttpRequest) -> HostScope:
    if not may_point_secrets(request):
        return HostScope.IN_USE
    is_alone = FourEyes((ChangeKind.CREDENTIALS,)).find_demand(None) is not None
    return HostScope.NAMED if is_alone else HostScope.PERMITTED


def _read_upstream(request: HttpRequest, form: Any) -> dict[str, Any]:
    """Returns the upstream and the declarations of a form.

    For who may not point secrets, the form has refused another URL than the one that it showed.
    """
    names = _EDITED if may_point_secrets(request) else _EDITED - {"base_url"}
    return {name: form.cleaned_data[name] for name in names}


def _describe_travel(endpoint: PrivateEndpoint, credential: ByokCredential) -> str:
    if endpoint.upstream_url is None:
        return "is sent to the host that it names"
    limits = credential.host_limits(endpoint.upstream_provider.own_hosts())
    if (reason := limits.refusal(endpoint.host)) is not None:
        return f"is not sent. {reason}"
    if limits.is_open:
        return f"is sent to {endpoint.host}, which binds it"
    return f"is sent to {endpoint.host}"
