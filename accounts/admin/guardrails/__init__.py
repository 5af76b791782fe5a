"""The page of guardrails and of their assignments to keys and members."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from accounts.admin import pickers
from accounts.admin.forms import initial_workspace
from accounts.admin.guardrails.backtest import answer_backtest
from accounts.admin.guardrails.forms import GuardrailForm, KeysDialog, MembersDialog
from accounts.admin.guardrails.shadows import (
    describe_enforcement,
    foresee_enforcement,
    render_shadow,
    require_shadow,
    shadow_of,
    show_limit,
)
from accounts.admin.guardrails.trial import try_filters
from accounts.admin.pickers import SubjectPickers
from accounts.models import (
    LIMITS,
    ApiKey,
    Guardrail,
    GuardrailShadow,
    KeyAssignment,
    MemberAssignment,
)
from config.api.errors import InvalidRequest
from config.audit.context import actor_of
from config.changes.kinds import ChangeKind, FourEyes
from config.console.actions import SEES_REQUESTS, Message, deletion, transition
from config.console.base import ReadOnlyInline
from config.console.formatting import digest, nano_dollars
from config.console.forms import RECORD, ConsoleForm, part
from config.console.unfold import TabularInline, display
from inference.reports.usage.consequences import foresee_guardrail

_CHANGE: Final = "accounts.change_guardrail"
_POSTED: Final = (require_POST, sensitive_post_parameters())


def applies_to_all(guardrail: Guardrail) -> bool:
    """Returns whether a guardrail limits a whole workspace."""
    workspace = guardrail.workspace
    return workspace is not None and workspace.default_guardrail_id == guardrail.pk


class _RemovalGuard(FourEyes):
    """Guards each deletion as one, and that of a whole workspace's guardrail as its change too."""

    def find_demand(self, obj: Any) -> ChangeKind | None:
        kind = super().find_demand(obj)
        if kind is None and obj is not None:
            kind = FORM.find_demand(obj)
        return kind


FORM: Final = FourEyes((ChangeKind.GUARDRAILS,), is_guarded=applies_to_all)
ENFORCEMENT: Final = FourEyes(
    (ChangeKind.GUARDRAILS,),
    _CHANGE,
    is_guarded=applies_to_all,
    describe=describe_enforcement,
)
REMOVAL: Final = _RemovalGuard((ChangeKind.DELETIONS,), "accounts.delete_guardrail")


class KeyAssignmentForm(ConsoleForm):
    class Meta:
        labels = {"api_key": "API key"}


class KeyAssignmentInline(ReadOnlyInline, TabularInline):
    model = KeyAssignment
    verbose_name_plural = "keys"
    form = KeyAssignmentForm
    fields = ("api_key", "assigned_by", "created_at")
    readonly_fields = ("created_at", "assigned_by")

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request).filter(api_key__deleted_at=None)
        return rows.select_related("api_key")


class MemberAssignmentInline(ReadOnlyInline, TabularInline):
    model = MemberAssignment
    verbose_name_plural = "members"
    fields = ("member", "assigned_by", "created_at")
    readonly_fields = ("created_at", "assigned_by")

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).select_related("member")


_LISTS: Final = (
    ("allowed_models", "ignored_models"), ("allowed_providers", "ignored_providers"),
    "allowed_data_regions",
)  # fmt: skip
_SWITCHES: Final = (
    ("enforce_zdr_anthropic", "enforce_zdr_google"),
    ("enforce_zdr_openai", "enforce_zdr_xai"),
    ("enforce_zdr_other", "enforce_zdr"),
    ("allow_safety_retention_google", "allow_safety_retention_other"),
    ("enable_paid_model_training", "enable_free_model_training"),
    ("enable_free_model_publication", "require_private"),
)  # fmt: skip


def _take_limits(fields: dict[str, Any]) -> dict[str, Any]:
    """Removes the limits from changed fields, and returns them."""
    return {name: fields.pop(name) for name in LIMITS if name in fields}


@admin.register(Guardrail)
class GuardrailAdmin(SubjectPickers):
    """Lists the guardrails; one limits its keys and members, or a whole workspace."""

    form = GuardrailForm
    form_guard = FORM
    locks_tenant_first = True
    list_display = (
        "name", "organization", "workspace_name", "applies_to", "budget", "shadow_since",
        "created_at",
    )  # fmt: skip
    list_select_related = ("organization", "workspace", "shadow")
    search_fields = ("name", "organization__name")
    uuid_search_fields = ("id", "organization_id", "workspace_id")
    autocomplete_fields = ("workspace",)
    inlines = (KeyAssignmentInline, MemberAssignmentInline)
    actions_detail = ("assign_keys", "assign_members", "enforce", "withdraw", "remove")
    _limits = (
        part("Models, providers and regions", *_LISTS, note="An empty list does not limit."),
        part(
            "Data",
            *_SWITCHES,
            note="Inherit leaves the decision to the organization and to other "
            "guardrails. A guardrail can tighten their rules, never relax them.",
        ),
        part("Budget", ("limit", "reset_interval"), "include_byok_in_budgets"),
        part(
            "Content filters",
            "content_filter_builtins",
            "content_filters",
            "trial",
            note="They read a request before anything is held or sent.",
        ),
        part("Backtest", "backtest"),
    )
    add_fieldsets = (part(None, "workspace", "name", "description"), *_limits)
    fieldsets: ClassVar[Any] = (
        part(
            None, "name", "description", ("organization", "workspace"), "applies_to", "shadow_state"
        ),
        *_limits,
        RECORD,
    )

    fixed_fields = ("workspace",)
    initial_for = staticmethod(initial_workspace)

    class Media:
        js = ("accounts/guardrails.js",)

    @display(description="Workspace", ordering="workspace__name")
    def workspace_name(self, guardrail: Guardrail) -> str | None:
        return guardrail.workspace.name if guardrail.workspace else None

    @display(description="Applies to")
    def applies_to(self, guardrail: Guardrail) -> str:
        return "the whole workspace" if applies_to_all(guardrail) else "assigned keys and members"

    @display(description="Budget")
    def budget(self, guardrail: Guardrail) -> str | None:
        if guardrail.limit_nano is None:
            return None
        return f"{nano_dollars(guardrail.limit_nano)} {guardrail.reset_interval}"

    @display(description="Shadow")
    def shadow_since(self, guardrail: Guardrail) -> str | None:
        shadow = shadow_of(guardrail)
        return None if shadow is None else f"since {shadow.created_at:%Y-%m-%d\xa0%H:%M}\xa0UTC"

    @display(description="Shadow")
    def shadow_state(self, guardrail: Guardrail) -> str | None:
        shadow = shadow_of(guardrail)
        sees = getattr(guardrail, "shows_requests", False)
        return None if shadow is None else render_shadow(shadow, with_counts=sees)

    @display(description="Built-in patterns")
    def shown_builtins(self, guardrail: Guardrail) -> str:
        return show_limit("content_filter_builtins", guardrail.content_filter_builtins)

    @display(description="Own patterns")
    def shown_patterns(self, guardrail: Guardrail) -> str:
        return show_limit("content_filters", guardrail.content_filters)

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Returns a guardrail, which knows whether what its shadow has counted may be shown."""
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            found.shows_requests = request.user.has_perm(SEES_REQUESTS)
        return found

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Returns the parts of the page; a reader gets texts in place of what only a form has."""
        fieldsets = super().get_fieldsets(request, obj)
        if not request.user.has_perm(SEES_REQUESTS):
            fieldsets = [each for each in fieldsets if each[0] != "Backtest"]
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

    def offers_action(self, request: HttpRequest, obj: Guardrail, name: str) -> bool:
        return name not in ("enforce", "withdraw") or shadow_of(obj) is not None

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        if "workspace" in form.base_fields:
            form.base_fields["workspace"].required = True
        return form

    def find_demand_of_form(self, form: Any, *, change: bool) -> ChangeKind | None:
        """Returns the kind by which a form needs a second person; a shadow refuses nothing.

        Raises :class:`InvalidRequest` for a shadow together with a change that must wait.
        """
        kind = super().find_demand_of_form(form, change=change)
        if kind is None or not form.is_shadow:
            return kind
        if not form.changes.keys() <= set(LIMITS):
            raise InvalidRequest(
                "Another operator must approve a new name or description, and a shadow does not "
                "wait. Save the name and the description first, then the shadow."
            )
        return None

    def read_change_state(self, operation: str, row: Any) -> dict[str, str]:
        state = super().read_change_state(operation, row)
        if operation != "enforce" or row is None:
            return state
        # The limits of a shadow never change: a new one replaces it.
        shadow = shadow_of(row)
        return {**state, "shadow": digest(None if shadow is None else shadow.pk)}

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Guardrail:
        fields = form.changes
        workspace, name = fields.pop("workspace"), fields.pop("name")
        limits = _take_limits(fields) if form.is_shadow else {}
        guardrail: Guardrail = Guardrail.objects.create_guardrail(
            workspace=workspace, name=name, **fields
        )
        if form.is_shadow:
            GuardrailShadow.objects.start(guardrail, by=actor_of(request), **limits)
        return guardrail

    def change(self, request: HttpRequest, obj: Any, form: Any) -> None:
        guardrail, fields = Guardrail.objects.get(pk=obj.pk), form.changes
        if form.is_shadow:
            limits = _take_limits(fields)
            GuardrailShadow.objects.start(guardrail, by=actor_of(request), **limits)
        guardrail.edit(**fields)

    @transition("Keys", submit="Apply", permission=_CHANGE, icon="key", form=KeysDialog)
    def assign_keys(self, request: HttpRequest, guardrail: Guardrail, form: Any) -> Message:
        """Assigns the guardrail to inference keys, or removes it from them. It takes effect with
        their next request. A new guardrail replaces the current one of a key.
        """
        keys = list(form.cleaned_data["keys"])
        if form.cleaned_data["verb"] == "assign":
            changed = guardrail.assign_keys(keys, by=actor_of(request))
            return messages.SUCCESS, f"Keys that were assigned: {changed}."
        return messages.SUCCESS, f"Keys that were removed: {guardrail.unassign_keys(keys)}."

    @transition("Members", submit="Apply", permission=_CHANGE, icon="group", form=MembersDialog)
    def assign_members(self, request: HttpRequest, guardrail: Guardrail, form: Any) -> Message:
        """Assigns the guardrail to members, or removes it from them. It applies to every key that a
        member created. A new guardrail replaces the current one of a member.
        """
        members = list(form.cleaned_data["members"])
        if form.cleaned_data["verb"] == "assign":
            changed = guardrail.assign_members(members, by=actor_of(request))
            return messages.SUCCESS, f"Members that were assigned: {changed}."
        removed = guardrail.unassign_members(members)
        return messages.SUCCESS, f"Members that were removed: {removed}."

    @transition(
        "Enforce the shadow",
        submit="Enforce",
        permission=_CHANGE,
        icon="gavel",
        foresee=foresee_enforcement,
        four_eyes=ENFORCEMENT,
    )
    def enforce(self, request: HttpRequest, guardrail: Guardrail, form: Any) -> Message:
        """The guardrail gets the limits of its shadow. They refuse requests from the next one
        on.
        """
        require_shadow(guardrail).enforce()
        return messages.SUCCESS, "The limits of the shadow are enforced."

    @transition("Withdraw the shadow", submit="Withdraw", permission=_CHANGE, icon="visibility_off")
    def withdraw(self, request: HttpRequest, guardrail: Guardrail, form: Any) -> Message:
        """The shadow and its counts are deleted. The guardrail stays as it is."""
        require_shadow(guardrail).withdraw()
        return messages.SUCCESS, "The shadow is withdrawn."

    remove = deletion(
        "The guardrail and its assignments are deleted and limit nothing any more. This "
        "cannot be undone.",
        permission="accounts.delete_guardrail",
        submit="Delete the guardrail",
        # Deletes a second instance: deletion clears the primary key, which the page still needs.
        delete=lambda guardrail: Guardrail.objects.get(pk=guardrail.pk).remove(),
        four_eyes=REMOVAL,
        foresee=foresee_guardrail,
    )

    # The requests of the form before it is saved store nothing.

    def value_of(self, key: ApiKey) -> str:
        return str(key.pk)

    def get_urls(self) -> list[Any]:
        return [
            path(part, self.admin_site.admin_view(view), name=f"accounts_guardrail_{name}")
            for part, name, view in (
                ("choices/models/", "models", self.models_view),
                ("choices/providers/", "providers", self.providers_view),
                ("try-filters/", "try_filters", self.try_view),
                ("backtest/", "backtest_new", self.backtest_new_view),
                ("<path:object_id>/backtest/", "backtest", self.backtest_view),
            )
        ] + super().get_urls()

    def models_view(self, request: HttpRequest) -> HttpResponse:
        self._require_editor(request)
        return pickers.search_models(request)

    def providers_view(self, request: HttpRequest) -> HttpResponse:
        self._require_editor(request)
        return pickers.search_providers(request)

    @method_decorator(_POSTED)
    def try_view(self, request: HttpRequest) -> HttpResponse:
        """Shows what the filters of a form do to a text; neither is stored."""
        self._require_editor(request)
        return try_filters(request)

    @method_decorator(_POSTED)
    def backtest_new_view(self, request: HttpRequest) -> HttpResponse:
        """Shows what the form of a new guardrail would have refused."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = self.get_form(request)(request.POST, instance=Guardrail())
        return answer_backtest(request, form, None)

    @method_decorator(_POSTED)
    def backtest_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Shows what the changed form of a guardrail would have refused."""
        guardrail = self.require_row(request, object_id)
        # A bound form writes into its instance.
        instance = self.get_object(request, object_id)
        form = self.get_form(request, guardrail, change=True)(request.POST, instance=instance)
        return answer_backtest(request, form, guardrail)

    def _require_editor(self, request: HttpRequest) -> None:
        """Raises :class:`PermissionDenied` for an operator who fills in no form of a guardrail."""
        if not (self.has_add_permission(request) or self.has_change_permission(request)):
            raise PermissionDenied
