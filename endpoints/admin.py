"""The operator's pages for private endpoints and their validations."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.timesince import timesince

from accounts.admin.uploads import OrganizationExportForm, OrganizationUploadForm
from accounts.models import Region, Workspace
from catalog.models import LanguageModel
from catalog.pricing import Price
from config.api.text import parse_uuid
from config.bulk.report import Report, RowListener
from config.bulk.rows import read_lines
from config.console.actions import Message, bulk_action, transition
from config.console.base import BoundedPaginator, ReadOnlyAdmin, actor_of
from config.console.formatting import dollars, label_renderer, nano_dollars, per_million
from config.console.forms import ConsoleForm, NoteField, RateField
from config.console.unfold import Dialog, SelectWidget, TextWidget, display
from config.console.uploads import Upload, UploadsAdmin
from endpoints import imports
from endpoints import validation as live
from endpoints.history import SHOWN, events, render_checks
from endpoints.models import (
    InvalidBaseURL,
    PrivateEndpoint,
    Validation,
    canonical_base_url,
    require_base_url,
)

Status = PrivateEndpoint.Status
_OUTCOMES: Final = {
    "passed": "success",
    "failed": "danger",
    "unreachable": "danger",
    "timed out": "warning",
    "broken": "danger",
}
_STATES: Final = {"draft": "info", "active": "success", "disabled": "warning"}
_DRIFT: Final = {"drifted": "danger"}
_ACTIONS: Final[dict[str, set[str]]] = {
    Status.DRAFT: {"edit", "validate", "activate", "remove"},
    Status.ACTIVE: {"disable", "remove"},
    Status.DISABLED: {"enable", "remove"},
}
_EDITED: Final = ("upstream_model_id", "base_url", "declared_region", "declared_zdr")
_RATES: Final = ("prompt", "completion", "cache_read", "cache_write")


class ChecksMixin:
    """How a validation shows itself."""

    @display(description="Outcome", ordering="outcome", label=_OUTCOMES)
    def result(self, validation: Validation) -> str:
        return str(Validation.Outcome(validation.outcome).label)

    @display(description="Cost")
    def cost(self, validation: Validation) -> str:
        return nano_dollars(validation.cost_nano)

    @display(description="Duration")
    def duration(self, validation: Validation) -> str:
        return f"{validation.duration_ms} ms"

    @display(description="Checks")
    def checks_table(self, validation: Validation) -> str:
        return render_checks(validation)


class ValidateDialog(Dialog):
    """Asks whose credential the calls are made with."""

    workspace = forms.ModelChoiceField(
        queryset=Workspace.objects.none(), widget=SelectWidget(), empty_label=None
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["workspace"]
        try:
            endpoint_id = uuid.UUID(self.object_id)
        except ValueError:
            return
        rows = Workspace.objects.filter(organization__private_endpoints=endpoint_id)
        field.queryset = rows.order_by("-is_default", "name")
        field.label_from_instance = lambda workspace: workspace.name


class EditDialog(Dialog):
    """Shows a draft's upstream and declarations as they are, to be put right."""

    upstream_model_id = forms.CharField(
        label="Upstream model ID", max_length=255, widget=TextWidget()
    )
    base_url = forms.CharField(
        label="Base URL",
        max_length=2048,
        required=False,
        empty_value=None,
        widget=TextWidget(attrs={"inputmode": "url"}),
        help_text="HTTPS up to the version; empty where the credential has it.",
    )
    declared_region = forms.TypedChoiceField(
        choices=(("", "Not declared"), *Region.choices),
        required=False,
        empty_value=None,
        widget=SelectWidget(),
    )
    declared_zdr = forms.TypedChoiceField(
        label="Declared ZDR",
        choices=(("", "Not declared"), ("true", "Yes"), ("false", "No")),
        coerce=lambda text: text == "true",
        required=False,
        empty_value=None,
        widget=SelectWidget(),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rows = PrivateEndpoint.objects.filter(deleted_at=None).select_related("provider")
        try:
            self._endpoint = rows.filter(pk=uuid.UUID(self.object_id)).first()
        except ValueError:
            self._endpoint = None
        if self._endpoint is not None:
            zdr = {None: "", True: "true", False: "false"}[self._endpoint.declared_zdr]
            self.initial = {
                name: getattr(self._endpoint, name)
                for name in ("upstream_model_id", "base_url", "declared_region")
            } | {"declared_zdr": zdr}

    def clean_base_url(self) -> str | None:
        text: str | None = self.cleaned_data["base_url"]
        if self._endpoint is None:
            return text
        try:
            base_url = canonical_base_url(text)
            require_base_url(base_url, self._endpoint.provider)
        except InvalidBaseURL as exc:
            raise forms.ValidationError(exc.message) from None
        return base_url


class DisableDialog(Dialog):
    """Asks why, where there is something to say."""

    reason = NoteField(required=False, max_length=255, help_text="The endpoint's history keeps it.")


class PrivateEndpointForm(ConsoleForm):
    """What makes a draft; without rates it takes the public list price."""

    refusal_fields = {
        "invalid_base_url": "base_url",
        "model_not_found": "model",
        "provider_not_found": "provider",
        "endpoint_limit_reached": "organization",
    }

    class Meta:
        labels = {"upstream_model_id": "Upstream model ID", "base_url": "Base URL"}

    prompt = RateField(required=False, help_text="USD per token.")
    completion = RateField(required=False, help_text="USD per token.")
    cache_read = RateField(required=False, help_text="USD per token.")
    cache_write = RateField(required=False, help_text="USD per token.")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        given = {name for name in _RATES if cleaned.get(name) is not None}
        for name in ("prompt", "completion"):
            if given and name not in given and name not in self.errors:
                self.add_error(name, "A negotiated price needs both prompt and completion.")
        return cleaned

    @property
    def negotiated(self) -> Price | None:
        rates = {name: self.cleaned_data[name] for name in _RATES}
        return None if rates["prompt"] is None else Price(**rates)


@admin.register(PrivateEndpoint)
class PrivateEndpointAdmin(UploadsAdmin):
    """Organizations' own deployments; every change of state is one of the actions."""

    form = PrivateEndpointForm
    list_display = (
        "model", "provider_name", "state", "validated", "validated_ago", "drift", "organization",
        "region", "zdr", "price_text",
    )  # fmt: skip
    list_select_related = ("organization", "model", "provider", "price", "validation")
    list_filter = ("status", "declared_region", "provider")
    linked_lookups = (*UploadsAdmin.linked_lookups, "drifted_at__isnull")
    search_fields = ("model__name", "model__slug", "provider_name", "upstream_model_id")
    uuid_search_fields = ("id", "organization_id")
    paginator = BoundedPaginator
    ordering = ("-created_at", "-id")
    autocomplete_fields = ("organization", "model", "provider")
    actions = ("activate_selected", "disable_selected", "enable_selected", "remove_selected")
    actions_detail = ("edit", "validate", "activate", "disable", "enable", "remove")
    empty_hint = (
        "Add an endpoint, or import a file of them; then validate it on its page and activate it."
    )
    upload_form = OrganizationUploadForm
    upload_help = (
        "JSON lines of the create request, without activate. What is new becomes a draft, to be "
        "validated and activated; what was ever activated may only be named as it is."
    )
    export_form = OrganizationExportForm
    add_fieldsets = (
        (
            None,
            {
                "fields": (
                    "organization", ("model", "provider"), "upstream_model_id", "base_url",
                ),
                "description": "It begins as a draft: validate it with a live call, then "
                "activate it. The base URL is HTTPS up to the version, such as "
                "https://llm.example.com/v1; leave it out where the credential has it.",
            },
        ),
        ("Declarations", {"fields": (("declared_region", "declared_zdr"),)}),
        (
            "Negotiated price",
            {
                "fields": (("prompt", "completion"), ("cache_read", "cache_write")),
                "description": "Empty: the public list price.",
            },
        ),
    )  # fmt: skip
    fieldsets = (
        (
            None,
            {"fields": (("state", "validated", "drift"), ("model", "provider"), "organization")},
        ),
        ("Upstream", {"fields": ("base_url", "upstream_model_id")}),
        ("Declarations", {"fields": (("declared_region", "declared_zdr"),)}),
        ("Price", {"fields": ("rates",)}),
        ("History", {"fields": ("history",)}),
        (
            "Record",
            {
                "classes": ["collapse"],
                "fields": (
                    ("activated_at", "activated_by"),
                    ("disabled_at", "disabled_by"),
                    "disabled_reason",
                    ("watched_at", "drifted_at"),
                    ("created_at", "updated_at"),
                    "id",
                    "idempotency_key",
                ),
            },
        ),
    )
    readonly_fields = (
        "state", "validated", "drift", "rates", "history", "activated_at", "activated_by",
        "disabled_at", "disabled_by", "disabled_reason", "watched_at", "drifted_at", "created_at",
        "updated_at", "id", "idempotency_key",
    )  # fmt: skip
    readonly_preprocess_fields = {
        "state": label_renderer(_STATES),
        "validated": label_renderer(_OUTCOMES),
        "drift": label_renderer(_DRIFT),
    }

    @display(
        description="Status",
        ordering="status",
        label=_STATES,
    )
    def state(self, endpoint: PrivateEndpoint) -> str:
        return str(endpoint.status)

    @display(description="Validation", label=_OUTCOMES)
    def validated(self, endpoint: PrivateEndpoint) -> str:
        if endpoint.validation is None:
            return "none"
        return str(Validation.Outcome(endpoint.validation.outcome).label)

    @display(description="Validated")
    def validated_ago(self, endpoint: PrivateEndpoint) -> str:
        """How old the validation is that speaks of the endpoint as it is."""
        if endpoint.validation is None:
            return "never"
        return f"{timesince(endpoint.validation.created_at, timezone.now(), depth=1)}\xa0ago"

    @display(description="Region")
    def region(self, endpoint: PrivateEndpoint) -> str:
        return endpoint.declared_region or ""

    @display(description="ZDR", label={"declared": "success", "denied": "warning"})
    def zdr(self, endpoint: PrivateEndpoint) -> str:
        if endpoint.declared_zdr is None:
            return ""
        return "declared" if endpoint.declared_zdr else "denied"

    @display(description="Latest first")
    def history(self, endpoint: PrivateEndpoint) -> str:
        return render_to_string(
            "admin/endpoints/history.html", {"events": events(endpoint), "shown": SHOWN}
        )

    @display(description="Drift", label=_DRIFT)
    def drift(self, endpoint: PrivateEndpoint) -> str:
        return "" if endpoint.drifted_at is None else "drifted"

    @display(description="Price / M")
    def price_text(self, endpoint: PrivateEndpoint) -> str:
        prompt, completion = endpoint.price.prompt, endpoint.price.completion
        return f"{per_million(prompt)} / {per_million(completion)}"

    @display(description="Rates")
    def rates(self, endpoint: PrivateEndpoint) -> str:
        rows = (
            (name.replace("_", " "), dollars(rate), per_million(rate))
            for name in _RATES
            if (rate := getattr(endpoint.price, name)) is not None
        )
        return format_html_join("", "<div>{}: {} per token ({} per million)</div>", rows)

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).filter(deleted_at=None)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Looks for the names of models among the models, which are far fewer than endpoints."""
        if parse_uuid(search_term.strip()) is not None:
            return super().get_search_results(request, queryset, search_term)
        for word in search_term.split():
            models = LanguageModel.objects.filter(Q(name__icontains=word) | Q(slug__icontains=word))
            queryset = queryset.filter(
                Q(model__in=list(models.values_list("pk", flat=True)))
                | Q(provider_name__icontains=word)
                | Q(upstream_model_id__icontains=word)
            )
        return queryset, False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("endpoints.change_privateendpoint")

    def has_remove_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("endpoints.delete_privateendpoint")

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> Any:
        """Offers what the endpoint's state allows; the model decides once more."""
        actions = super().get_actions_detail(request, object_id)  # type: ignore[misc]
        endpoint = self.get_object(request, str(object_id))
        names = set() if endpoint is None else _ACTIONS[endpoint.status]
        prefix = f"{self.opts.app_label}_{self.opts.model_name}_"
        return [action for action in actions if action.action_name.removeprefix(prefix) in names]

    def create(self, request: HttpRequest, obj: Any, form: Any) -> PrivateEndpoint:
        endpoint, _ = PrivateEndpoint.objects.create_draft(
            organization_id=obj.organization_id,
            model_permaslug=obj.model.canonical_slug,
            provider_slug=obj.provider.slug,
            upstream_model_id=obj.upstream_model_id,
            base_url=obj.base_url,
            declared_region=obj.declared_region,
            declared_zdr=obj.declared_zdr,
            price=form.negotiated,
            by=actor_of(request),
        )
        return endpoint

    def load(self, upload: Upload, *, by: str, dry_run: bool, on_row: RowListener | None) -> Report:
        assert upload.organization_id is not None
        lines = read_lines(io.BytesIO(upload.content))
        return imports.apply(upload.organization_id, lines, by=by, dry_run=dry_run, on_row=on_row)

    def export(self, given: dict[str, Any]) -> tuple[str, Iterable[bytes]]:
        return "private-endpoints.jsonl", imports.export(given["organization"].pk)

    def response_post_save_add(self, request: HttpRequest, obj: Any) -> Any:
        # The next step stands on the draft's own page.
        return self.redirect(request, self.url_of(request, obj))

    @transition(
        description="Edit",
        question="What is changed has to be validated anew.",
        submit="Save the draft",
        permission="operate",
        icon="edit",
        form=EditDialog,
    )
    def edit(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        endpoint.edit(by=actor_of(request), **{name: form.cleaned_data[name] for name in _EDITED})
        return messages.SUCCESS, "The draft is saved."

    @transition(
        description="Validate",
        question="Makes a live plain and a streamed call with the workspace's BYOK credential.",
        submit="Validate now",
        permission="operate",
        icon="fact_check",
        form=ValidateDialog,
    )
    def validate(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        endpoint.require_status(Status.DRAFT)
        result = live.run(endpoint, workspace_id=form.cleaned_data["workspace"].pk)
        if result.passed:
            return messages.SUCCESS, "The validation passed."
        check = next(check for check in result.checks if not check["passed"])
        return messages.WARNING, f"The validation failed: {check['name']} ({check['reason']})."

    @transition(
        description="Activate",
        question="Requests of the organization are routed to it from now on.",
        submit="Activate",
        permission="operate",
        icon="play_arrow",
    )
    def activate(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        endpoint.activate(by=actor_of(request))
        return messages.SUCCESS, "The endpoint is active."

    @transition(
        description="Disable",
        question="Nothing is routed to it from the next request on.",
        submit="Disable",
        permission="operate",
        icon="pause",
        form=DisableDialog,
    )
    def disable(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        endpoint.disable(by=actor_of(request), reason=form.cleaned_data["reason"])
        return messages.SUCCESS, "The endpoint is disabled."

    @transition(
        description="Enable",
        question="Requests are routed to it again.",
        submit="Enable",
        permission="operate",
        icon="play_arrow",
    )
    def enable(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        endpoint.enable(by=actor_of(request))
        return messages.SUCCESS, "The endpoint is active again."

    @transition(
        description="Delete",
        question="Nothing shows it or routes to it any more. Its generations stay.",
        submit="Delete the endpoint",
        permission="remove",
        icon="delete",
        danger=True,
    )
    def remove(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        endpoint.remove(by=actor_of(request))
        return messages.SUCCESS, f"{endpoint} is deleted."

    @bulk_action(description="Activate", question="Activate these endpoints?", permission="operate")
    def activate_selected(self, request: HttpRequest, endpoint: PrivateEndpoint) -> None:
        endpoint.activate(by=actor_of(request))

    @bulk_action(
        description="Disable",
        question="Disable these endpoints? Nothing is routed to them from the next request on.",
        permission="operate",
    )
    def disable_selected(self, request: HttpRequest, endpoint: PrivateEndpoint) -> None:
        endpoint.disable(by=actor_of(request))

    @bulk_action(description="Enable", question="Enable these endpoints?", permission="operate")
    def enable_selected(self, request: HttpRequest, endpoint: PrivateEndpoint) -> None:
        endpoint.enable(by=actor_of(request))

    @bulk_action(
        description="Delete",
        question="Delete these endpoints? Nothing shows them or routes to them any more.",
        permission="remove",
    )
    def remove_selected(self, request: HttpRequest, endpoint: PrivateEndpoint) -> None:
        endpoint.remove(by=actor_of(request))


@admin.register(Validation)
class ValidationAdmin(ChecksMixin, ReadOnlyAdmin):
    """Live validations of every endpoint, latest first."""

    list_display = (
        "created_at", "result", "purpose", "endpoint_name", "organization", "cost", "duration",
    )  # fmt: skip
    list_select_related = ("endpoint__model", "endpoint__organization")
    list_filter = ("outcome", "purpose")
    search_fields = ("endpoint__upstream_model_id",)
    uuid_search_fields = ("id", "endpoint_id")
    paginator = BoundedPaginator
    ordering = ("-created_at", "-id")
    sortable_by = ()
    fieldsets = (
        (None, {"fields": (("result", "purpose", "cost", "duration"), "endpoint")}),
        ("Made with", {"fields": (("workspace", "credential", "credential_version"),)}),
        ("Checks", {"fields": ("checks_table",)}),
        ("What it showed of itself", {"fields": ("evidence", "changes")}),
        (
            "Record",
            {
                "classes": ["collapse"],
                "fields": ("id", "configuration", ("created_at", "updated_at")),
            },
        ),
    )
    readonly_fields = (
        "result", "cost", "duration", "checks_table", "id", "created_at", "updated_at",
    )  # fmt: skip
    readonly_preprocess_fields = {"result": label_renderer(_OUTCOMES)}

    @display(description="Endpoint")
    def endpoint_name(self, validation: Validation) -> str:
        return str(validation.endpoint)

    @display(description="Organization")
    def organization(self, validation: Validation) -> str:
        return validation.endpoint.organization.name
