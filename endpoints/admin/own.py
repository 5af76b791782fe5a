"""The pages of the models and of the providers that organizations have of their own."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from django import forms
from django.contrib import admin
from django.http import HttpRequest

from accounts.admin.forms import may_point_secrets
from accounts.models import Organization
from config.api.errors import GatewayError
from config.api.fields import StrictSerializer
from config.changes.kinds import ChangeKind, FourEyes
from config.console.actions import deletion
from config.console.base import ConsoleAdmin
from config.console.forms import RECORD, ConsoleForm, part
from config.console.unfold import TextWidget, display
from endpoints.models import (
    OwnModel,
    PrivateProvider,
    create_own_model,
    edit_own_model,
    remove_own_model,
)
from endpoints.serializers import (
    CreateOwnModelSerializer,
    CreateProviderSerializer,
    UpdateOwnModelSerializer,
    UpdateProviderSerializer,
)


class OwnForm(ConsoleForm):
    """Checks what is entered as the API does.

    ``created_by`` and ``updated_by`` are the serializers of its bodies, ``api_names`` the names of
    its members that have others here, and ``members`` what they have read.
    """

    created_by: ClassVar[type[StrictSerializer]]
    updated_by: ClassVar[type[StrictSerializer]]
    api_names: ClassVar[dict[str, str]] = {}
    members: dict[str, Any]

    def _get_validation_exclusions(self) -> set[str]:
        # The model refuses a taken name in its own words.
        excluded: set[str] = super()._get_validation_exclusions()  # type: ignore[misc]
        return excluded | {"organization", "name", "slug"}

    def find_place(self, refusal: GatewayError) -> str | None:
        named: dict[str, str] = refusal.metadata.get("fields", {})
        return super().find_place(refusal) or next(iter(named), None)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        is_new = self.instance._state.adding
        kind = self.created_by if is_new else self.updated_by
        names = {self.api_names.get(name, name): name for name in self.fields}
        # The API keeps what is not sent.
        sent = {
            api: cleaned.get(name)
            for api, name in names.items()
            if name in self.changed_data and name != "organization"
        }
        serializer = kind(data={api: sent[api] for api in sent if sent[api] or not is_new})
        if not serializer.is_valid():
            for api, texts in serializer.errors.items():
                if names[api] not in self.errors:
                    self.add_error(names[api], [str(text) for text in texts])
        self.members = serializer.validated_data
        return cleaned


class PrivateProviderForm(OwnForm):
    created_by, updated_by = CreateProviderSerializer, UpdateProviderSerializer
    api_names: ClassVar = {"is_keyless": "keyless"}
    refusal_fields = {
        "provider_exists": "name",
        "provider_in_use": "base_url",
        "invalid_base_url": "base_url",
    }

    class Meta:
        labels = {"base_url": "Base URL"}
        help_texts = {
            "name": "What activity and logs show. Never changes.",
            "slug": "What requests and endpoints name. By default the name in lower case, with "
            "hyphens. Never changes.",
            "display_name": "By default the name.",
            "base_url": "An OpenAI-compatible HTTPS API, for endpoints without one of their own.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in {"slug", "display_name"} & self.fields.keys():
            self.fields[name].required = name == "display_name" and not self.instance._state.adding
        if "base_url" in self.fields:
            self.fields["base_url"].empty_value = None  # type: ignore[attr-defined]


@admin.register(PrivateProvider)
class PrivateProviderAdmin(ConsoleAdmin):
    """Lists the names under which organizations register servers of their own."""

    form = PrivateProviderForm
    form_guard = FourEyes(
        (ChangeKind.CREDENTIALS,), fields=("base_url", "is_keyless"), guards_new_rows=True
    )
    locks_tenant_first = True
    list_display = ("display_name", "slug", "organization", "base_url", "is_keyless", "created_at")
    list_select_related = ("organization",)
    list_filter = ("is_keyless",)
    search_fields = ("name", "slug", "organization__name")
    uuid_search_fields = ("id", "organization_id")
    autocomplete_fields = ("organization",)
    actions_detail = ("remove",)
    empty_hint = (
        "Add a provider here or by POST /api/v1/private-providers. Endpoints name its slug."
    )
    fieldsets = (
        part(None, "organization", ("name", "slug"), "display_name", "base_url", "is_keyless"),
        RECORD,
    )
    deletion_stamp = "deleted_at"
    fixed_fields = ("organization", "name", "slug")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fixed = super().get_readonly_fields(request, obj)
        # The secrets of the organization go to the address, of a new provider too: its slug may be
        # that of a former one.
        return fixed if may_point_secrets(request) else (*fixed, "base_url")

    def create(self, request: HttpRequest, obj: Any, form: Any) -> PrivateProvider:
        create = PrivateProvider.objects.create_provider
        return create(organization_id=obj.organization_id, **form.members)

    def change(self, request: HttpRequest, obj: Any, form: Any) -> None:
        PrivateProvider.objects.get(pk=obj.pk).edit(**form.members)

    remove = deletion(
        "The provider disappears from every list, and its name and slug are free again. "
        "Its endpoints must be deleted before. This cannot be undone.",
        permission="endpoints.delete_privateprovider",
        submit="Delete the provider",
    )


class OwnModelForm(OwnForm):
    created_by, updated_by = CreateOwnModelSerializer, UpdateOwnModelSerializer
    api_names: ClassVar = {"made_from": "base_model"}
    refusal_fields = {
        "model_exists": "slug",
        "model_not_found": "made_from",
        "model_in_use": "made_from",
    }

    made_from = forms.CharField(
        label="Base model",
        max_length=255,
        required=False,
        empty_value=None,
        widget=TextWidget(),
        help_text="The slug of the model from which everything else is taken: context, modalities, "
        "tokenizer, parameters. Empty: a plain text model.",
    )

    class Meta:
        help_texts = {
            "slug": "The slug of the organization, a slash and a name, such as acme/support-7b. "
            "Never changes."
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.instance._state.adding:
            self.initial.setdefault("made_from", self.instance.base_model)

    def clean_slug(self) -> str:
        """Finds the organization, which the slug names."""
        slug: str = self.cleaned_data["slug"]
        owner = Organization.objects.filter(slug=slug.partition("/")[0]).first()
        if owner is None:
            raise forms.ValidationError("Must begin with the slug of an organization, and a slash.")
        self.instance.organization = owner
        return slug


@admin.register(OwnModel)
class OwnModelAdmin(ConsoleAdmin):
    """Lists the models that only their organizations see and call."""

    own_permission = "catalog.change_languagemodel"
    form = OwnModelForm
    list_display = ("name", "slug", "organization", "base_model", "context", "created_at")
    list_select_related = ("organization",)
    search_fields = ("name", "slug", "organization__name")
    uuid_search_fields = ("id", "organization_id")
    actions_detail = ("remove",)
    empty_hint = (
        "Add a model here or by POST /api/v1/private-models, then an endpoint that serves it."
    )
    fieldsets = (
        part(None, "slug", "name", "made_from"),
        part(
            "Taken from the base model",
            ("context_length", "tokenizer"),
            ("input_modalities", "output_modalities"),
            "supported_parameters",
        ),
        RECORD,
    )
    add_fieldsets = (fieldsets[0],)
    fixed_fields = (
        "slug",
        "context_length",
        "tokenizer",
        "input_modalities",
        "output_modalities",
        "supported_parameters",
    )

    @display(description="Context", ordering="context_length")
    def context(self, model: OwnModel) -> str:
        return "" if model.context_length is None else f"{model.context_length:,}"

    def initial_for(self, tenant_id: UUID) -> dict[str, Any]:
        owner = Organization.objects.filter(pk=tenant_id).first()
        return {} if owner is None else {"slug": f"{owner.slug}/"}

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Any:
        return create_own_model(obj.organization_id, **form.members)

    def change(self, request: HttpRequest, obj: Any, form: Any) -> None:
        edit_own_model(OwnModel.objects.get(pk=obj.pk), **form.members)

    remove = deletion(
        "The model disappears from every list, and requests for it are refused. Its "
        "endpoints must be deleted before. This cannot be undone.",
        permission="endpoints.delete_ownmodel",
        submit="Delete the model",
        delete=remove_own_model,
    )
