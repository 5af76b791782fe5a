"""The page of BYOK credentials: organizations' own secrets at providers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AutocompleteSelect
from django.core.exceptions import ValidationError
from django.db.models import Count, Max
from django.http import HttpRequest
from django.utils.html import format_html_join

from accounts.admin.forms import CatalogueForm
from accounts.admin.pickers import (
    SubjectPickers,
    make_keys_field,
    make_members_field,
    point_pickers,
)
from accounts.hosts import HostRule
from accounts.models import HOST_NAME, ApiKey, ByokCredential, Member, Organization
from accounts.serializers.credentials import find_problem, find_provider, require_models
from catalog.models import DialectName, Provider
from config.api.errors import Unprocessable
from config.api.text import parse_uuid, spell_ids
from config.changes.kinds import ChangeKind, FourEyes
from config.changes.proposals import Difference
from config.clocks.writing import write_time
from config.console.actions import Message, deletion, transition
from config.console.forms import RECORD, SecretFormField, part
from config.console.unfold import Dialog, SelectWidget, display
from config.credentials import Secret
from endpoints import rotation
from endpoints.models import PrivateProvider, Validation
from inference.reports.usage.consequences import foresee_credential

_HOSTS_SHOWN: Final = 20


class ByokForm(CatalogueForm):
    """Takes the columns of a credential except the secret."""

    catalogue_fields = {"allowed_models": require_models}
    refusal_fields = {"secret_required": "allowed_hosts"}

    allowed_api_key_hashes = make_keys_field()
    allowed_user_ids = make_members_field()

    class Meta:
        labels = {
            "is_fallback": "Fallback",
            "is_required": "Required",
            "is_byok_only": "BYOK only",
            "allowed_api_key_hashes": "Allowed keys",
            "allowed_user_ids": "Allowed members",
            "declared_zdr": "Declared ZDR",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        point_pickers(self, allowed_api_key_hashes="keys", allowed_user_ids="members")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if cleaned.get("is_fallback") and cleaned.get("is_byok_only"):
            self.add_error("is_fallback", "Cannot be combined with is_byok_only.")
        if any(not HOST_NAME.fullmatch(host) for host in cleaned.get("allowed_hosts") or ()):
            self.add_error(
                "allowed_hosts", "Each entry must be a lower-case host name without port or path."
            )
        organization = cleaned.get("owner") or getattr(self.instance, "organization", None)
        hashes = self._new_entries(cleaned, "allowed_api_key_hashes")
        if hashes and organization is not None:
            own = ApiKey.objects.for_organization(organization.pk).filter(digest__in=hashes)
            if own.count() != len(hashes):
                self.add_error(
                    "allowed_api_key_hashes", "One of the keys does not belong to the organization."
                )
        self._check_members(organization, self._new_entries(cleaned, "allowed_user_ids"))
        if cleaned.get("allowed_user_ids"):
            cleaned["allowed_user_ids"] = spell_ids(cleaned["allowed_user_ids"])
        return cleaned

    def _new_entries(self, cleaned: dict[str, Any], name: str) -> set[str]:
        """Returns the new entries of a list; stored ones may name a key that was revoked later."""
        return set(cleaned.get(name) or ()) - set(self.initial.get(name) or ())

    def _check_secret(
        self, provider: PrivateProvider | Provider | None, secret: Secret | None
    ) -> None:
        if secret is not None and (problem := find_problem(provider, secret)) is not None:
            self.add_error("secret", problem)

    def _check_members(self, organization: Organization | None, texts: set[str]) -> None:
        members = {parse_uuid(text) for text in texts}
        if members and organization is not None:
            people = Member.objects.for_organization(organization.pk)
            if people.filter(pk__in=list(filter(None, members))).count() != len(members):
                self.add_error(
                    "allowed_user_ids", "One of the members does not belong to the organization."
                )


class ByokChangeForm(ByokForm):
    """Takes the secret too: more allowed hosts need it."""

    secret = SecretFormField(
        required=False,
        help_text="Needed for more allowed hosts, or to clear them: the stored secret, or a new "
        "one that replaces it. With an empty list, the next use binds the credential again.",
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        self._check_secret(_provider_of(self.instance), cleaned.get("secret"))
        return cleaned


class ByokAddForm(ByokForm):
    # The field cannot be named "organization": Django refuses a field that the model marks as not
    # editable.
    owner = forms.ModelChoiceField(
        label="Organization",
        queryset=Organization.objects.all(),
        widget=AutocompleteSelect(ByokCredential._meta.get_field("organization"), admin.site),
    )
    provider = forms.ModelChoiceField(
        queryset=Provider.objects.filter(is_listed=True, is_keyless=False), widget=SelectWidget()
    )
    secret = SecretFormField(
        help_text="An API key, or a JSON object if the provider needs several values. It is "
        "never shown again."
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        workspace, organization = cleaned.get("workspace"), cleaned.get("owner")
        if workspace and organization and workspace.organization_id != organization.pk:
            self.add_error(
                "workspace", ValidationError("The workspace belongs to another organization.")
            )
        self._check_secret(cleaned.get("provider"), cleaned.get("secret"))
        return cleaned


class RotateDialog(Dialog):
    """Asks for the new secret and whether to test it before it replaces the old one."""

    secret = SecretFormField(label="New secret", help_text="It is never shown again.")
    revalidate = forms.BooleanField(
        required=False,
        label="Validate the dependent endpoints first",
        help_text="Replaces the secret only if every endpoint that uses it passes with the new "
        "one. The endpoints then stay validated.",
    )


_BYOK_FLAGS: Final = (
    "disabled", "is_fallback", "is_required", "is_byok_only",
)  # fmt: skip
_BYOK_LIMITS: Final = ("allowed_models", "allowed_hosts")
_BYOK_SUBJECTS: Final = ("allowed_api_key_hashes", "allowed_user_ids")
_SUBJECTS_LATER: Final = (
    " Keys and members are chosen on the page of the credential. Add it disabled if only some of "
    "them may use it."
)
_LIMITS_HELP: Final = (
    "Separate entries by commas. An empty list does not limit, except for hosts: then the secret "
    "goes to its provider's hosts and to the host of its first use."
)
_BYOK_DECLARED: Final = ("declared_region", "declared_zdr")


def _describe_rotation(credential: ByokCredential, form: Any) -> list[Difference]:
    given = form.cleaned_data
    secret = Difference("Secret", credential.label, f"a new secret, {given['secret'].label}")
    after = (
        "validated with the new secret at the approval; if one fails, nothing changes"
        if given["revalidate"]
        else "their validations become stale"
    )
    count = rotation.dependants(credential).count()
    return [secret, Difference("Dependent endpoints", str(count), after)]


def _try_new_secret(credential: ByokCredential, form: Any) -> Any:
    """Validates the dependent endpoints, where the dialog asks for it."""
    given = form.cleaned_data
    if not given["revalidate"]:
        return []
    _require_usable(credential, given["secret"])
    return rotation.try_dependants(credential, given["secret"])


def _require_usable(credential: ByokCredential, secret: Secret) -> None:
    """Raises :class:`Unprocessable` unless the provider can use a secret."""
    if (problem := find_problem(_provider_of(credential), secret)) is not None:
        raise Unprocessable(f"{problem} Nothing was changed.")


def _provider_of(credential: ByokCredential) -> PrivateProvider | Provider | None:
    return find_provider(credential.organization_id, credential.provider_slug)


@admin.register(ByokCredential)
class ByokCredentialAdmin(SubjectPickers):
    """Lists the credentials of organizations; a secret can be written but not read."""

    form = ByokForm
    form_guard = FourEyes((ChangeKind.CREDENTIALS,), guards_new_rows=True)
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
        part(None, "owner", "workspace", "provider", "secret", "name"),
        part("Use", *_BYOK_FLAGS),
        part("Limits", *_BYOK_LIMITS, note=_LIMITS_HELP + _SUBJECTS_LATER),
        part("Declarations", *_BYOK_DECLARED),
    )
    fieldsets = (
        part(None, "name", ("label", "version"), "dependants"),
        part("Scope", "organization", "workspace", "provider_slug", "sort_order"),
        part("Use", *_BYOK_FLAGS),
        part("Hosts", "destinations", "past_destinations"),
        part("Limits", *_BYOK_LIMITS, *_BYOK_SUBJECTS, note=_LIMITS_HELP),
        part("Declarations", *_BYOK_DECLARED),
        RECORD,
    )

    # The ciphertext is bound to these columns; a change would make it undecryptable.
    deletion_stamp = "deleted_at"
    fixed_fields = ("workspace", "provider_slug")

    def initial_for(self, tenant_id: UUID) -> dict[str, Any]:
        return {"owner": tenant_id}

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
        return credential.workspace.name if credential.workspace else "all workspaces"

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        if obj is None:
            kwargs["form"] = ByokAddForm
        elif self.has_change_permission(request, obj):
            kwargs["form"] = ByokChangeForm
        return super().get_form(request, obj, change=change, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Shows the field of the secret beside the limits to operators who may use it."""
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None or not self.has_change_permission(request, obj):
            return fieldsets
        return [
            (name, {**options, "fields": (*options["fields"], "secret")})
            if name == "Limits"
            else (name, options)
            for name, options in fieldsets
        ]

    def change(self, request: HttpRequest, obj: Any, form: Any) -> None:
        given = form.cleaned_data
        secret = given["secret"]
        names = {*form.changed_data, *(() if secret is None else ("allowed_hosts",))} - {"secret"}
        obj.edit(secret=secret, **{name: given[name] for name in names})

    def create(self, request: HttpRequest, obj: Any, form: Any) -> ByokCredential:
        given = form.cleaned_data
        return ByokCredential.objects.create_credential(
            organization=given["owner"],
            workspace=given["workspace"],
            provider_slug=given["provider"].slug,
            secret=given["secret"],
            **{
                name: given[name] for name in ("name", *_BYOK_FLAGS, *_BYOK_LIMITS, *_BYOK_DECLARED)
            },
        )

    remove = deletion(
        "The secret is erased and no request uses it any more. This cannot be undone.",
        permission="accounts.delete_byokcredential",
        submit="Delete the credential",
        foresee=foresee_credential,
        four_eyes=FourEyes((ChangeKind.DELETIONS,), "accounts.delete_byokcredential"),
    )

    @transition(
        "Rotate",
        foresee=foresee_credential,
        submit="Replace the secret",
        permission="accounts.change_byokcredential",
        icon="autorenew",
        form=RotateDialog,
        prepare=_try_new_secret,
        four_eyes=FourEyes(
            (ChangeKind.CREDENTIALS,), "accounts.change_byokcredential", describe=_describe_rotation
        ),
    )
    def rotate(self, request: HttpRequest, credential: ByokCredential, form: Any) -> Message:
        """Replaces the secret. Validations with the old secret become stale."""
        secret = form.cleaned_data["secret"]
        _require_usable(credential, secret)
        validated = rotation.replace_secret(credential, secret, form.prepared)
        return (
            messages.SUCCESS,
            f"The secret is replaced. Endpoints validated with it: {len(validated)}.",
        )

    @display(description="Dependent endpoints")
    def dependants(self, credential: ByokCredential) -> str:
        return ", ".join(map(str, rotation.dependants(credential)[:20])) or "none"

    @display(description="May be sent to")
    def destinations(self, credential: ByokCredential) -> str:
        return format_html_join(
            "", "<div>{}</div>", ((line,) for line in _destinations(credential))
        )

    @display(description="Was sent to")
    def past_destinations(self, credential: ByokCredential) -> str:
        """Returns the hosts to which validations have sent the secret, latest first."""
        rows = (
            Validation.objects.filter(credential=credential)
            .exclude(host="")
            .values_list("host")
            .annotate(last=Max("created_at"), count=Count("pk"))
            .order_by("-last")[:_HOSTS_SHOWN]
        )
        lines = ((host, write_time(last), count) for host, last, count in rows)
        return (
            format_html_join("", "<div>{}, last at {} (validations: {})</div>", lines)
            or "no host yet"
        )


def _destinations(credential: ByokCredential) -> Iterator[str]:
    provider = _provider_of(credential)
    if provider is not None:
        yield from (f"{host} (of the provider)" for host in sorted(provider.own_hosts()))
        if DialectName(provider.dialect).has_url_in_credential:
            yield "the host that the secret names"
            return
    limits = credential.host_limits()
    if limits.allowed_hosts is not None:
        yield from (f"{host} (allowed host)" for host in sorted(limits.allowed_hosts))
    elif limits.rule is HostRule.OFF:
        yield "any other host, because CREDENTIALS_REQUIRE_HOSTS is off"
    elif limits.is_open:
        yield "the host of its first use"
    elif limits.rule is HostRule.FIRST_USE:
        yield from (f"{host} (first use)" for host in limits.bound_domains or ())
