"""The operator's pages: organizations and what is theirs, credentials included, and operators."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.widgets import AutocompleteSelect
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from rest_framework.exceptions import ValidationError as NotInCatalogue

from accounts.governance_serializers import canonical_models, known_providers
from accounts.models import (
    HOST_NAME,
    WORKSPACE_SLUG,
    ApiKey,
    ApiKeyNotFound,
    BudgetInterval,
    ByokCredential,
    Guardrail,
    KeyAssignment,
    Member,
    MemberAssignment,
    MemberNotFound,
    Organization,
    Workspace,
    WorkspaceBudget,
)
from accounts.preview import preview
from billing import grants
from billing.models import Account
from catalog import dialects
from catalog.dialects.credentials import InvalidCredential
from catalog.models import Provider
from config import console
from config.api import CONTROL_CHARACTERS, path_uuid
from config.console import ConsoleAdmin, ConsoleForm, Dialog, ModelAdmin, display
from config.regions import region_of_host
from config.secrets import Secret
from endpoints import rotation

if not TYPE_CHECKING:
    from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm


_KINDS: Final = {"management": "info"}
_KEY_STATES: Final = {
    "usable": "success", "expired": "warning", "disabled": "warning", "revoked": "danger",
}  # fmt: skip

admin.site.unregister([User, Group])


@admin.register(User)
class OperatorAdmin(DjangoUserAdmin, ModelAdmin):  # type: ignore[type-arg]
    """People who may enter the console."""

    if not TYPE_CHECKING:
        form = UserChangeForm
        add_form = UserCreationForm
        change_password_form = AdminPasswordChangeForm
    list_display = ("username", "email", "is_active", "is_staff", "is_superuser", "last_login")
    list_filter = ("is_active", "is_superuser", "groups")
    show_full_result_count = False


@admin.register(Group)
class OperatorGroupAdmin(DjangoGroupAdmin, ModelAdmin):
    """Permissions that operators share."""


class WorkspaceInline(console.ReadOnlyInline, console.TabularInline):
    model = Workspace
    fields = ("name", "slug", "is_default", "created_at")
    readonly_fields = ("created_at",)
    show_change_link = True
    ordering = ("name",)

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).filter(deleted_at=None)


class CatalogueForm(ConsoleForm):
    """A form whose lists name models and providers of the catalogue."""

    catalogue_fields: dict[str, Callable[[Any], Any]] = {
        "allowed_models": canonical_models,
        "ignored_models": canonical_models,
        "allowed_providers": known_providers,
        "ignored_providers": known_providers,
    }

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        for name, known in self.catalogue_fields.items():
            try:
                if cleaned.get(name) is not None:
                    cleaned[name] = known(cleaned[name])
            except NotInCatalogue as exc:
                self.add_error(name, [str(text) for text in cast("list[str]", exc.detail)])
        return cleaned


class DollarsField(forms.DecimalField):
    """USD, to the nano-USD."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            min_value=0,
            max_value=1_000_000_000,
            decimal_places=9,
            widget=console.TextWidget(attrs={"inputmode": "decimal"}),
            **kwargs,
        )


def _nano(dollars: Decimal | None) -> int | None:
    return None if dollars is None else int(dollars.scaleb(9))


class GrantDialog(Dialog):
    """Asks how much an organization gets, and why."""

    amount = DollarsField(label="USD", help_text="With at most nine decimals.")
    note = forms.CharField(
        required=False,
        max_length=1_000,
        widget=console.TextareaWidget(attrs={"rows": 2}),
        help_text="Why; the ledger keeps it.",
    )

    def clean_amount(self) -> Decimal:
        amount: Decimal = self.cleaned_data["amount"]
        if not amount:
            raise ValidationError("Must be more than 0.")
        return amount

    def clean_note(self) -> str:
        note = " ".join(self.cleaned_data["note"].split())
        if CONTROL_CHARACTERS.search(note):
            raise ValidationError("Must not contain control characters.")
        return note


# What an organization has, by the permission that shows it.
_THEIRS: Final = {
    "billing.transfer": "Ledger",
    "billing.grantrequest": "Grant requests",
    "billing.topup": "Top-ups",
    "accounts.apikey": "API keys",
    "accounts.workspace": "Workspaces",
    "accounts.member": "Members",
    "accounts.guardrail": "Guardrails",
    "accounts.byokcredential": "Credentials",
    "endusers.enduser": "End users",
    "endpoints.privateendpoint": "Private endpoints",
    "inference.generation": "Generations",
}


@admin.register(Organization)
class OrganizationAdmin(ConsoleAdmin):
    """The parties that own keys, endpoints and end users."""

    form = CatalogueForm
    list_display = ("name", "slug", "limit", "created_at")
    search_fields = ("name", "slug")
    ordering = ("name",)
    inlines = (WorkspaceInline,)
    actions_detail = ("grant",)
    empty_hint = "Add an organization; it gets a default workspace, and then keys and credits."
    change_form_outer_before_template = "admin/accounts/organization/summary.html"
    add_fieldsets = ((None, {"fields": ("name", "endpoint_limit")}),)
    fieldsets = (
        (None, {"fields": ("name", "slug", "endpoint_limit")}),
        (
            "Preferences",
            {
                "description": "They hold for every key. Comma lists of slugs; empty: no limit.",
                "fields": (
                    "is_filtered_model_catalog_enabled",
                    ("requires_zdr", "forbids_training"),
                    ("allowed_providers", "ignored_providers"),
                ),
            },
        ),
        (
            "Record",
            {
                "classes": ["collapse"],
                "fields": ("id", "routing_version", ("created_at", "updated_at")),
            },
        ),
    )
    readonly_fields = ("id", "slug", "routing_version", "created_at", "updated_at")

    @display(description="Endpoint limit", ordering="endpoint_limit")
    def limit(self, organization: Organization) -> str:
        limit = organization.private_endpoint_limit
        return str(limit) if organization.endpoint_limit is not None else f"{limit} (default)"

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        return self.inlines if obj else ()

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Organization:
        return Organization.objects.establish(name=obj.name, endpoint_limit=obj.endpoint_limit)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        summary = _summary(request, path_uuid(unquote(object_id))) if object_id else None
        context = {**(extra_context or {}), "summary": summary}
        return super().changeform_view(request, object_id, form_url, context)

    def has_grant_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("billing.add_transfer")

    @console.transition(
        description="Grant credits",
        question="The organization can spend them at once, or as soon as another operator approves "
        "an amount above the limit. It cannot be undone.",
        submit="Grant the credits",
        permission="grant",
        icon="add_card",
        form=GrantDialog,
    )
    def grant(self, request: HttpRequest, organization: Organization, form: Any) -> console.Said:
        given = form.cleaned_data
        nano = int(given["amount"].scaleb(9))
        amount = console.nano_dollars(nano)
        by = console.actor(request)
        if grants.give(organization.pk, nano, by=by, note=given["note"]):
            return messages.SUCCESS, f"{amount} granted to {organization}."
        return messages.WARNING, f"{amount} for {organization} wait for another operator."


def _summary(request: HttpRequest, organization_id: UUID | None) -> dict[str, Any] | None:
    """Returns what heads an organization's page: its credits, and the ways to what is theirs."""
    if organization_id is None:
        return None
    cards: list[tuple[str, str, str]] = []
    if request.user.has_perm("billing.view_account"):
        accounts = {
            account.kind: account for account in Account.objects.for_organization(organization_id)
        }
        if not accounts:
            return None
        purse = accounts[Account.Kind.CREDITS]
        # What usage cost beyond all credits was not spent; a write-off's balance is negative.
        written_off = -accounts[Account.Kind.WRITE_OFF].balance
        spent = accounts[Account.Kind.USAGE].balance - written_off
        lost = f"{console.nano_dollars(written_off)} more is written off" if written_off else ""
        cards = [
            ("Balance", console.nano_dollars(purse.balance), "granted and paid, less spent"),
            ("Available", console.nano_dollars(purse.available), "for new requests"),
            ("Held", console.nano_dollars(purse.pending_debits), "for requests under way"),
            ("Spent", console.nano_dollars(spent), lost),
        ]
    links = []
    for label, title in _THEIRS.items():
        app, model = label.split(".")
        if request.user.has_perm(f"{app}.view_{model}"):
            url = reverse(f"admin:{app}_{model}_changelist")
            links.append((title, f"{url}?organization__id__exact={organization_id}"))
    return {"cards": cards, "links": links}


@admin.register(Member)
class MemberAdmin(ConsoleAdmin):
    """The people of organizations; none of them is a login."""

    list_display = ("email", "organization", "first_name", "last_name", "role", "created_at")
    list_select_related = ("organization",)
    list_filter = ("role",)
    search_fields = ("email", "last_name", "organization__name")
    uuid_search_fields = ("id", "organization_id")
    autocomplete_fields = ("organization",)
    fieldsets = (
        (None, {"fields": ("organization", "email", ("first_name", "last_name"), "role")}),
        ("Record", {"classes": ["collapse"], "fields": ("id", ("created_at", "updated_at"))}),
    )
    readonly_fields = ("id", "created_at", "updated_at")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.readonly_fields, "organization") if obj else self.readonly_fields


class BudgetInline(console.ReadOnlyInline, console.TabularInline):
    model = WorkspaceBudget
    fields = ("interval", "limit", "updated_at")
    readonly_fields = ("limit", "updated_at")
    ordering = ("interval",)

    @display(description="Limit")
    def limit(self, budget: WorkspaceBudget) -> str:
        return console.nano_dollars(budget.limit_nano)


class BudgetDialog(Dialog):
    """Asks how much, and for how long."""

    interval = forms.ChoiceField(choices=BudgetInterval.choices, widget=console.SelectWidget())
    limit = DollarsField(required=False, label="USD", help_text="Empty takes the budget away.")


class WorkspaceForm(ConsoleForm):
    def clean_slug(self) -> str:
        slug: str = self.cleaned_data["slug"]
        if not WORKSPACE_SLUG.fullmatch(slug):
            raise ValidationError("Must be lower-case letters and digits, with single hyphens.")
        return slug


@admin.register(Workspace)
class WorkspaceAdmin(ConsoleAdmin):
    """The parts of organizations."""

    form = WorkspaceForm
    inlines = (BudgetInline,)
    actions_detail = ("budget",)
    list_display = ("name", "organization", "slug", "is_default", "created_at")
    list_select_related = ("organization",)
    list_filter = ("is_default",)
    search_fields = ("name", "slug", "organization__name")
    uuid_search_fields = ("id", "organization_id")
    autocomplete_fields = ("organization",)
    prepopulated_fields = {"slug": ("name",)}
    add_fieldsets = ((None, {"fields": ("organization", "name", "slug")}),)
    fieldsets = (
        (None, {"fields": ("organization", "name", "slug", "is_default")}),
        ("Record", {"classes": ["collapse"], "fields": ("id", ("created_at", "updated_at"))}),
    )
    readonly_fields = ("id", "is_default", "created_at", "updated_at")

    def get_queryset(self, request: HttpRequest) -> Any:
        # An autocomplete shows a workspace with its organization's name.
        rows = super().get_queryset(request).filter(deleted_at=None)
        return rows.select_related("organization")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.readonly_fields, "organization") if obj else self.readonly_fields

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        return self.inlines if obj else ()

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Workspace:
        workspace: Workspace = Workspace.objects.open(
            organization_id=obj.organization_id,
            name=obj.name,
            slug=obj.slug,
            created_by=console.actor(request),
        )
        return workspace

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if not change:
            super().save_model(request, obj, form, change)
            return
        stored = Workspace.objects.get(pk=obj.pk)
        stored.edit(**{name: form.cleaned_data[name] for name in form.changed_data})

    def has_budget_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("accounts.change_workspace")

    @console.transition(
        description="Budget",
        question="What the whole workspace may spend, less than in every longer interval.",
        submit="Set the budget",
        permission="budget",
        icon="savings",
        form=BudgetDialog,
    )
    def budget(self, request: HttpRequest, workspace: Workspace, form: Any) -> console.Said:
        interval = BudgetInterval(form.cleaned_data["interval"])
        nano = _nano(form.cleaned_data["limit"])
        if nano is None:
            had = workspace.lift_budget(interval)
            said = f"The {interval} budget is gone." if had else f"There was no {interval} budget."
            return messages.SUCCESS if had else messages.INFO, said
        if nano == 0:
            return messages.ERROR, "A budget must be more than 0. Nothing was changed."
        workspace.set_budget(interval, limit_nano=nano)
        return messages.SUCCESS, f"The {interval} budget is {console.nano_dollars(nano)}."


class ApiKeyStatusFilter(admin.SimpleListFilter):
    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state, state) for state in _KEY_STATES]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        expired = queryset.filter(disabled=False, expires_at__lte=timezone.now())
        match self.value():
            case "revoked":
                return queryset.exclude(deleted_at=None)
            case "disabled":
                return queryset.filter(disabled=True, deleted_at=None)
            case "expired":
                return expired
            case "usable":
                return queryset.filter(disabled=False).exclude(expires_at__lte=timezone.now())
            case _:
                return queryset


class ApiKeyForm(ConsoleForm):
    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        workspace, creator = cleaned.get("workspace"), cleaned.get("creator")
        if workspace and creator and workspace.organization_id != creator.organization_id:
            self.add_error("creator", "Belongs to another organization.")
        return cleaned


@admin.register(ApiKey)
class ApiKeyAdmin(ConsoleAdmin):
    """Bearer keys; the key itself is on the page that answers its creation, and nowhere else."""

    list_display = (
        "name", "label", "kind", "status", "organization", "workspace_name", "expires_at",
        "created_at",
    )  # fmt: skip
    list_select_related = ("organization", "workspace")
    form = ApiKeyForm
    list_filter = (ApiKeyStatusFilter, "is_management")
    search_fields = ("name", "label", "digest__exact")
    uuid_search_fields = ("id", "organization_id", "workspace_id")
    autocomplete_fields = ("workspace", "creator")
    actions = ("revoke_selected",)
    actions_detail = ("revoke",)
    empty_hint = "Add a key: choose its workspace, and copy what is shown once."
    change_form_outer_after_template = "admin/accounts/apikey/preview.html"
    add_fieldsets = (
        (None, {"fields": ("workspace", "name", "is_management", "expires_at", "creator")}),
    )
    fieldsets = (
        (None, {"fields": ("name", "expires_at")}),
        ("Key", {"fields": (("label", "kind", "status"), ("organization", "workspace"))}),
        (
            "Use",
            {
                "fields": (
                    ("limit", "limit_reset", "include_byok_in_limit"),
                    ("external_user", "creator"),
                )
            },
        ),
        (
            "Record",
            {"classes": ["collapse"], "fields": ("id", "digest", ("created_at", "updated_at"))},
        ),
    )
    readonly_fields = (
        "label", "kind", "status", "organization", "limit", "limit_reset", "include_byok_in_limit",
        "external_user", "id", "digest", "created_at", "updated_at",
    )  # fmt: skip

    readonly_preprocess_fields = {
        "kind": console.chips(_KINDS),
        "status": console.chips(_KEY_STATES),
    }

    @display(description="Type", ordering="is_management", label=_KINDS)
    def kind(self, key: ApiKey) -> str:
        return "management" if key.is_management else "inference"

    @display(description="Status", label=_KEY_STATES)
    def status(self, key: ApiKey) -> str:
        if key.deleted_at is not None:
            return "revoked"
        if key.disabled:
            return "disabled"
        return "usable" if key.is_usable else "expired"

    @display(description="Limit")
    def limit(self, key: ApiKey) -> str | None:
        return None if key.limit_nano is None else console.nano_dollars(key.limit_nano)

    @display(description="Workspace", ordering="workspace__name")
    def workspace_name(self, key: ApiKey) -> str:
        return key.workspace.name

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.readonly_fields, "workspace", "creator") if obj else self.readonly_fields

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        context = dict(extra_context or {})
        if object_id and request.method == "GET":
            key = self.get_object(request, unquote(object_id))
            if key is not None and key.deleted_at is None and not key.is_management:
                region = region_of_host(request.get_host())
                context["preview"] = preview(key, request.GET, region=region)
        return super().changeform_view(request, object_id, form_url, context)

    def has_revoke_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("accounts.change_apikey")

    def create(self, request: HttpRequest, obj: Any, form: Any) -> ApiKey:
        key, secret = ApiKey.objects.issue(
            workspace=obj.workspace,
            name=obj.name,
            is_management=obj.is_management,
            expires_at=obj.expires_at,
            creator=obj.creator,
        )
        # The answer to this very request is the only page that has it; see response_add.
        obj.issued_secret = secret
        return key

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        # A message would put the secret into a cookie or a session row, and a redirect needs one.
        secret: Secret = obj.__dict__.pop("issued_secret")
        context = {
            **self.admin_site.each_context(request),
            "title": "API key created",
            "opts": self.opts,
            "key": obj,
            "kind": "Management" if obj.is_management else "Inference",
            "secret": secret.reveal(),
            "next": self.page_of(request, obj),
        }
        return TemplateResponse(
            request,
            "admin/accounts/apikey/issued.html",
            context,
            headers={"Cache-Control": "no-store"},
        )

    @console.transition(
        description="Revoke",
        question="Every request with this key is refused from now on. It cannot be undone.",
        submit="Revoke the key",
        permission="revoke",
        icon="key_off",
        danger=True,
    )
    def revoke(self, request: HttpRequest, key: ApiKey, form: Any) -> console.Said:
        if key.revoke():
            return messages.SUCCESS, "The key is revoked."
        return messages.INFO, "The key was revoked already."

    @console.bulk(
        description="Revoke",
        question="Revoke these keys? Every request with them is refused from now on.",
        permission="revoke",
    )
    def revoke_selected(self, request: HttpRequest, key: ApiKey) -> None:
        key.revoke()

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> Any:
        actions = super().get_actions_detail(request, object_id)  # type: ignore[misc]
        key = self.get_object(request, str(object_id))
        return [] if key is None or key.deleted_at is not None else actions


class GuardrailForm(CatalogueForm):
    """What a guardrail limits; its content filters are written through the API alone."""

    limit = DollarsField(required=False, label="Budget, USD", help_text="Per key or member.")

    class Meta:
        labels = {"enforce_zdr": "Enforce ZDR (deprecated)"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        nano = self.instance.limit_nano
        if nano is not None and "limit" in self.fields:
            self.initial["limit"] = console.plain_digits(Decimal(nano).scaleb(-9))

    @property
    def changes(self) -> dict[str, Any]:
        """The fields of the model that the form changes."""
        named = {name: self.cleaned_data[name] for name in self.changed_data}
        if "limit" in named:
            named["limit_nano"] = _nano(named.pop("limit"))
        return named


class KeyAssignmentInline(console.ReadOnlyInline, console.TabularInline):
    model = KeyAssignment
    verbose_name_plural = "keys"
    fields = ("api_key", "assigned_by", "created_at")
    readonly_fields = ("created_at", "assigned_by")

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request).filter(api_key__deleted_at=None)
        return rows.select_related("api_key")


class MemberAssignmentInline(console.ReadOnlyInline, console.TabularInline):
    model = MemberAssignment
    verbose_name_plural = "members"
    fields = ("member", "assigned_by", "created_at")
    readonly_fields = ("created_at", "assigned_by")

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).select_related("member")


class _SubjectsDialog(Dialog):
    """Asks of whom, and whether they get the guardrail or lose it."""

    verb = forms.ChoiceField(
        choices=(("assign", "Assign"), ("unassign", "Take away")),
        widget=console.SelectWidget(),
        label="What to do",
    )


class KeysDialog(_SubjectsDialog):
    keys = forms.CharField(
        label="Hashes of API keys",
        widget=console.TextareaWidget(attrs={"rows": 4}),
        help_text="Separated by white space. A key has one guardrail: any other is replaced.",
    )


class MembersDialog(_SubjectsDialog):
    members = forms.CharField(
        label="Addresses of members",
        widget=console.TextareaWidget(attrs={"rows": 4}),
        help_text="Separated by white space. A member has one guardrail: any other is replaced.",
    )


_GUARDRAIL_LISTS: Final = (
    ("allowed_models", "ignored_models"), ("allowed_providers", "ignored_providers"),
    "allowed_data_regions",
)  # fmt: skip
_GUARDRAIL_SWITCHES: Final = (
    ("enforce_zdr", "enforce_zdr_anthropic", "enforce_zdr_google"),
    ("enforce_zdr_openai", "enforce_zdr_xai", "enforce_zdr_other"),
    ("allow_safety_retention_google", "allow_safety_retention_other"),
    ("enable_free_model_publication", "enable_free_model_training", "enable_paid_model_training"),
)  # fmt: skip


@admin.register(Guardrail)
class GuardrailAdmin(ConsoleAdmin):
    """What limits the keys and members that it is assigned to, or a whole workspace."""

    form = GuardrailForm
    list_display = ("name", "organization", "workspace_name", "holds_for", "budget", "created_at")
    list_select_related = ("organization", "workspace")
    search_fields = ("name", "organization__name")
    uuid_search_fields = ("id", "organization_id", "workspace_id")
    autocomplete_fields = ("workspace",)
    inlines = (KeyAssignmentInline, MemberAssignmentInline)
    actions_detail = ("assign_keys", "assign_members", "remove")
    _limits = (
        ("Lists", {"fields": _GUARDRAIL_LISTS, "description": "Comma lists; empty: no limit."}),
        ("Switches", {"fields": _GUARDRAIL_SWITCHES}),
        ("Budget", {"fields": (("limit", "reset_interval"), "include_byok_in_budgets")}),
    )
    add_fieldsets = ((None, {"fields": ("workspace", "name", "description")}), *_limits)
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("name", "description", ("organization", "workspace", "holds_for"))}),
        *_limits,
        ("Content filters", {"fields": ("content_filters", "content_filter_builtins")}),
        ("Record", {"classes": ["collapse"], "fields": ("id", ("created_at", "updated_at"))}),
    )
    readonly_fields = (
        "organization", "holds_for", "content_filters", "content_filter_builtins", "id",
        "created_at", "updated_at",
    )  # fmt: skip

    @display(description="Workspace", ordering="workspace__name")
    def workspace_name(self, guardrail: Guardrail) -> str | None:
        return guardrail.workspace.name if guardrail.workspace else None

    @display(description="Holds for")
    def holds_for(self, guardrail: Guardrail) -> str:
        workspace = guardrail.workspace
        is_default = workspace is not None and workspace.default_guardrail_id == guardrail.pk
        return "its whole workspace" if is_default else "those assigned"

    @display(description="Budget")
    def budget(self, guardrail: Guardrail) -> str | None:
        if guardrail.limit_nano is None:
            return None
        return f"{console.nano_dollars(guardrail.limit_nano)} {guardrail.reset_interval}"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.readonly_fields, "workspace") if obj else self.readonly_fields

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        return self.inlines if obj else ()

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        if "workspace" in form.base_fields:
            form.base_fields["workspace"].required = True
        return form

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Guardrail:
        fields = form.changes
        guardrail: Guardrail = Guardrail.objects.establish(
            workspace=fields.pop("workspace"), name=fields.pop("name"), **fields
        )
        return guardrail

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if not change:
            super().save_model(request, obj, form, change)
            return
        Guardrail.objects.get(pk=obj.pk).edit(**form.changes)

    def has_assign_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("accounts.change_guardrail")

    @console.transition(
        description="Keys",
        question="The guardrail holds for these inference keys, from their next request on.",
        submit="Do so",
        permission="assign",
        icon="key",
        form=KeysDialog,
    )
    def assign_keys(self, request: HttpRequest, guardrail: Guardrail, form: Any) -> console.Said:
        wanted = set(form.cleaned_data["keys"].split())
        rows = ApiKey.objects.for_organization(guardrail.organization_id).for_inference()
        keys = list(rows.filter(digest__in=wanted))
        if len(keys) != len(wanted):
            raise ApiKeyNotFound("One of them is no inference key of the organization.")
        if form.cleaned_data["verb"] == "assign":
            changed = guardrail.assign_keys(keys, by=console.actor(request))
            return messages.SUCCESS, f"{changed} keys have got the guardrail."
        return messages.SUCCESS, f"{guardrail.unassign_keys(keys)} keys have lost the guardrail."

    @console.transition(
        description="Members",
        question="The guardrail holds for every key that these members made.",
        submit="Do so",
        permission="assign",
        icon="group",
        form=MembersDialog,
    )
    def assign_members(self, request: HttpRequest, guardrail: Guardrail, form: Any) -> console.Said:
        wanted = set(form.cleaned_data["members"].split())
        rows = Member.objects.for_organization(guardrail.organization_id)
        members = list(rows.filter(email__in=wanted))
        if len(members) != len(wanted):
            raise MemberNotFound("One of them is no member of the organization.")
        if form.cleaned_data["verb"] == "assign":
            changed = guardrail.assign_members(members, by=console.actor(request))
            return messages.SUCCESS, f"{changed} members have got the guardrail."
        lost = guardrail.unassign_members(members)
        return messages.SUCCESS, f"{lost} members have lost the guardrail."

    def has_remove_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("accounts.delete_guardrail")

    @console.transition(
        description="Delete",
        question="It goes with its assignments: what it governed is governed no more.",
        submit="Delete the guardrail",
        permission="remove",
        icon="delete",
        danger=True,
    )
    def remove(self, request: HttpRequest, guardrail: Guardrail, form: Any) -> console.Said:
        text = f"{guardrail} is deleted."
        # The page looks for the row afterwards, by the key that a deleted instance loses.
        Guardrail.objects.get(pk=guardrail.pk).remove()
        return messages.SUCCESS, text


class ByokForm(ConsoleForm):
    """What may be changed of a stored credential; its secret is replaced by a rotation."""

    class Meta:
        labels = {
            "is_fallback": "Fallback",
            "is_required": "Required",
            "is_byok_only": "BYOK only",
            "allowed_api_key_hashes": "Allowed API key hashes",
            "allowed_user_ids": "Allowed user IDs",
            "declared_zdr": "Declared ZDR",
        }

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if cleaned.get("is_fallback") and cleaned.get("is_byok_only"):
            self.add_error("is_fallback", "Cannot go with is_byok_only.")
        if any(not HOST_NAME.fullmatch(host) for host in cleaned.get("allowed_hosts") or ()):
            self.add_error("allowed_hosts", "Must be lower-case host names without port or path.")
        organization = cleaned.get("owner") or getattr(self.instance, "organization", None)
        hashes = set(cleaned.get("allowed_api_key_hashes") or ())
        if hashes and organization is not None:
            own = ApiKey.objects.for_organization(organization.pk).filter(digest__in=hashes)
            if own.count() != len(hashes):
                self.add_error(
                    "allowed_api_key_hashes", "Names a key that is not the organization's."
                )
        self._check_members(organization, set(cleaned.get("allowed_user_ids") or ()))
        return cleaned

    def _check_members(self, organization: Organization | None, texts: set[str]) -> None:
        members = {path_uuid(text) for text in texts}
        if members and organization is not None:
            people = Member.objects.for_organization(organization.pk)
            if people.filter(pk__in=list(filter(None, members))).count() != len(members):
                self.add_error("allowed_user_ids", "Names a member who is not the organization's.")


class ByokAddForm(ByokForm):
    # Not "organization": Django refuses the name of a field that the model calls not editable.
    owner = forms.ModelChoiceField(
        label="Organization",
        queryset=Organization.objects.all(),
        widget=AutocompleteSelect(ByokCredential._meta.get_field("organization"), admin.site),
    )
    provider = forms.ModelChoiceField(
        queryset=Provider.objects.filter(is_listed=True), widget=console.SelectWidget()
    )
    secret = console.SecretField(
        help_text="One bare key, or one JSON object where the provider needs more; never shown."
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        workspace, organization = cleaned.get("workspace"), cleaned.get("owner")
        if workspace and organization and workspace.organization_id != organization.pk:
            self.add_error("workspace", ValidationError("Belongs to another organization."))
        if cleaned.get("secret") and cleaned.get("provider"):
            try:
                dialects.check_credential(cleaned["provider"].dialect, cleaned["secret"])
            except InvalidCredential as exc:
                self.add_error("secret", str(exc))
        return cleaned


class RotateDialog(Dialog):
    """Asks for the new secret, and whether to try it first."""

    secret = console.SecretField(label="New secret", help_text="It is never shown again.")
    revalidate = forms.BooleanField(
        required=False,
        label="Try it on the dependent endpoints first",
        help_text="Nothing changes unless all of them pass; they stay validated.",
    )


_BYOK_FLAGS: Final = (
    "disabled", "is_fallback", "is_required", "is_byok_only",
)  # fmt: skip
_BYOK_LIMITS: Final = (
    "allowed_models", "allowed_api_key_hashes", "allowed_user_ids", "allowed_hosts",
)  # fmt: skip
_BYOK_DECLARED: Final = ("declared_region", "declared_zdr")


@admin.register(ByokCredential)
class ByokCredentialAdmin(ConsoleAdmin):
    """Organizations' own credentials at providers; a secret goes in and never comes out."""

    form = ByokForm
    list_display = (
        "provider_slug", "name", "label", "status", "organization", "scope", "use",
        "sort_order", "created_at",
    )  # fmt: skip
    list_select_related = ("organization", "workspace")
    list_filter = ("disabled", "is_fallback")
    search_fields = ("provider_slug", "name", "organization__name")
    uuid_search_fields = ("id", "organization_id", "workspace_id")
    autocomplete_fields = ("workspace",)
    actions_detail = ("rotate", "remove")
    add_fieldsets = (
        (None, {"fields": ("owner", "workspace", "provider", "secret", "name")}),
        ("Use", {"fields": _BYOK_FLAGS}),
        ("Limits", {"fields": _BYOK_LIMITS, "description": "Comma lists; empty: no limit."}),
        ("Declarations", {"fields": _BYOK_DECLARED}),
    )
    fieldsets = (
        (None, {"fields": ("name", ("label", "version"), "dependants")}),
        ("Place", {"fields": ("organization", "workspace", "provider_slug", "sort_order")}),
        ("Use", {"fields": _BYOK_FLAGS}),
        ("Limits", {"fields": _BYOK_LIMITS, "description": "Comma lists; empty: no limit."}),
        ("Declarations", {"fields": _BYOK_DECLARED}),
        ("Record", {"classes": ["collapse"], "fields": ("id", ("created_at", "updated_at"))}),
    )
    readonly_fields = ("label", "version", "dependants", "id", "created_at", "updated_at")

    @display(
        description="Status", ordering="disabled", label={"in use": "success", "off": "warning"}
    )
    def status(self, credential: ByokCredential) -> str:
        return "off" if credential.disabled else "in use"

    @display(description="Use", label=True)
    def use(self, credential: ByokCredential) -> list[str]:
        flags = ("is_fallback", "is_required", "is_byok_only")
        return [name.removeprefix("is_") for name in flags if getattr(credential, name)]

    @display(description="Workspace", ordering="workspace__name")
    def scope(self, credential: ByokCredential) -> str:
        return credential.workspace.name if credential.workspace else "every workspace"

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).filter(deleted_at=None)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return self.readonly_fields
        # What the ciphertext is bound to cannot move from under it.
        return (*self.readonly_fields, "organization", "workspace", "provider_slug")

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        if obj is None:
            kwargs["form"] = ByokAddForm
        return super().get_form(request, obj, change=change, **kwargs)

    def create(self, request: HttpRequest, obj: Any, form: Any) -> ByokCredential:
        given = form.cleaned_data
        return ByokCredential.objects.store(
            organization=given["owner"],
            workspace=given["workspace"],
            provider_slug=given["provider"].slug,
            secret=given["secret"],
            **{
                name: given[name] for name in ("name", *_BYOK_FLAGS, *_BYOK_LIMITS, *_BYOK_DECLARED)
            },
        )

    def has_remove_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("accounts.delete_byokcredential")

    @console.transition(
        description="Delete",
        question="The secret is wiped, and nothing is sent with it any more. It cannot be undone.",
        submit="Delete the credential",
        permission="remove",
        icon="delete",
        danger=True,
    )
    def remove(self, request: HttpRequest, credential: ByokCredential, form: Any) -> console.Said:
        credential.remove()
        return messages.SUCCESS, f"{credential} is deleted."

    def has_rotate_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("accounts.change_byokcredential")

    @console.transition(
        description="Rotate",
        question="Replaces the secret. Validations made with the old one become stale.",
        submit="Replace the secret",
        permission="rotate",
        icon="autorenew",
        form=RotateDialog,
    )
    def rotate(self, request: HttpRequest, credential: ByokCredential, form: Any) -> console.Said:
        secret = form.cleaned_data["secret"]
        provider = Provider.objects.filter(slug=credential.provider_slug).first()
        if provider is not None:
            try:
                dialects.check_credential(provider.dialect, secret)
            except InvalidCredential as exc:
                return messages.ERROR, f"{exc} Nothing was changed."
        made = rotation.rotate(credential, secret, revalidate=form.cleaned_data["revalidate"])
        return messages.SUCCESS, f"The secret is replaced; {len(made)} endpoints passed with it."

    @display(description="Dependent endpoints")
    def dependants(self, credential: ByokCredential) -> str:
        return ", ".join(map(str, rotation.dependants(credential)[:20])) or "none"
