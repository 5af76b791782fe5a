"""The shapes of provider credentials."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.models import HOST_NAME, ApiKey, ByokCredential, Member, Region
from accounts.serializers.guardrails import canonical_models
from catalog import dialects
from catalog.dialects.shared.credentials import InvalidCredential
from catalog.models import Provider
from config.api.fields import ChoiceField, FlagField, StrictSerializer, StringField, UUIDField
from config.api.openapi import envelope, list_envelope
from config.api.text import parse_uuid, spell_ids
from config.credentials import MAX_CREDENTIAL_LENGTH, NotACredential, Secret, parse_credential
from endpoints.models import PrivateProvider


@extend_schema_field({"type": "string", "writeOnly": True, "maxLength": MAX_CREDENTIAL_LENGTH})
class SecretField(serializers.Field[Secret, str, str, Any]):
    """A provider's secret: a bare key, or the text of a JSON object. No response contains it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(write_only=True, **kwargs)

    def to_internal_value(self, data: Any) -> Secret:
        if not isinstance(data, str):
            raise ValidationError("Must be a string.")
        if len(data) > MAX_CREDENTIAL_LENGTH:
            raise ValidationError(f"Must have at most {MAX_CREDENTIAL_LENGTH} characters.")
        try:
            return parse_credential(data)
        except NotACredential as exc:
            raise ValidationError(str(exc)) from None


class _ByokFields(StrictSerializer):
    """The fields that both creation and update accept."""

    name = StringField(required=False, allow_null=True, min_length=1)
    disabled = FlagField(required=False)
    is_fallback = FlagField(required=False)
    is_required = FlagField(required=False)
    is_byok_only = FlagField(required=False)
    allowed_models = serializers.ListField(
        child=StringField(min_length=1), required=False, allow_null=True, max_length=1000
    )
    allowed_api_key_hashes = serializers.ListField(
        child=StringField(min_length=64, max_length=64),
        required=False,
        allow_null=True,
        allow_empty=False,
        max_length=1000,
    )
    allowed_user_ids = serializers.ListField(
        child=StringField(min_length=1), required=False, allow_null=True, max_length=1000
    )
    allowed_hosts = serializers.ListField(
        child=StringField(max_length=253),
        required=False,
        allow_null=True,
        allow_empty=False,
        max_length=100,
        help_text="Extension: the hosts to which the secret may be sent besides those of the "
        "provider; `null`: the host of its first use. In an update, more hosts than now or "
        "`null` need `key` in the same request.",
    )
    declared_region = ChoiceField(choices=Region.choices, required=False, allow_null=True)
    declared_zdr = FlagField(required=False, allow_null=True)

    def validate_allowed_models(self, names: list[str] | None) -> list[str] | None:
        require_models(self.new_entries("allowed_models", names), self.context["organization_id"])
        return names

    def validate_allowed_hosts(self, hosts: list[str] | None) -> list[str] | None:
        if hosts is not None and any(not HOST_NAME.fullmatch(host) for host in hosts):
            raise ValidationError("Must be lower-case host names without port or path.")
        return hosts

    def validate_allowed_api_key_hashes(self, hashes: list[str] | None) -> list[str] | None:
        new = self.new_entries("allowed_api_key_hashes", hashes)
        require_keys(new, self.context["organization_id"])
        return hashes

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("is_fallback") and attrs.get("is_byok_only"):
            raise ValidationError({"is_fallback": ["Cannot be combined with is_byok_only."]})
        if "key" in attrs and (problem := find_problem(self.provider_of(attrs), attrs["key"])):
            raise ValidationError({"key": [problem]})
        if attrs.get("allowed_user_ids"):
            new = self.new_entries("allowed_user_ids", attrs["allowed_user_ids"])
            members = {text: parse_uuid(text) for text in new}
            people = Member.objects.for_organization(self.context["organization_id"])
            found = people.filter(pk__in=list(filter(None, members.values())))
            known = set(found.values_list("pk", flat=True))
            if unknown := [text for text, key in members.items() if key not in known]:
                problem = f"{unknown[0]} is no member of the organization."
                raise ValidationError({"allowed_user_ids": [problem]})
            attrs["allowed_user_ids"] = spell_ids(attrs["allowed_user_ids"])
        return attrs

    def provider_of(self, attrs: dict[str, Any]) -> PrivateProvider | Provider | None:
        """Returns the provider, whose dialect defines the format of a new secret."""
        raise NotImplementedError


def find_provider(
    organization_id: UUID, slug: str, **listed: bool
) -> PrivateProvider | Provider | None:
    """Returns a provider: the organization's own, else the catalogue's."""
    own = PrivateProvider.objects.for_organization(organization_id)
    found: PrivateProvider | Provider | None = own.filter(slug=slug).first()
    return found or Provider.objects.filter(slug=slug, **listed).first()


def require_provider(organization_id: UUID, slug: str) -> PrivateProvider | Provider:
    """Returns a provider for which an organization can store a new credential, or refuses."""
    provider = find_provider(organization_id, slug, is_listed=True)
    if provider is None:
        raise ValidationError({"provider": ["Must be the slug of a provider in the catalogue."]})
    return provider


def require_keys(hashes: list[str], organization_id: UUID) -> None:
    """Refuses a hash that no key of the organization has."""
    rows = ApiKey.objects.for_organization(organization_id).filter(digest__in=hashes)
    known = set(rows.values_list("digest", flat=True))
    if unknown := [each for each in hashes if each not in known]:
        raise ValidationError(f"{unknown[0]} is the hash of no key of the organization.")


def require_models(names: list[str], organization_id: UUID | None) -> list[str]:
    """Returns the names of models, as they are; refuses what is no public or canonical slug.

    Any other text matches no request, and credits would pay for what the credential is meant for.
    """
    if patterns := [name for name in names if name.endswith("/*")]:
        raise ValidationError(f"{patterns[0]} is no model: name each model of the author.")
    canonical_models(names, organization_id)
    return names


def find_problem(provider: PrivateProvider | Provider | None, secret: Secret) -> str | None:
    """Returns why a provider cannot use a secret; ``None`` if it can, or is not known any more."""
    if provider is None:
        return None
    if provider.is_keyless:
        return "The provider's servers take no key, and are sent none."
    try:
        dialects.check_credential(provider.dialect, secret)
    except InvalidCredential as exc:
        return str(exc)
    return None


@extend_schema_serializer(component_name="CreateBYOKKeyRequest")
class CreateByokSerializer(_ByokFields):
    provider = StringField(min_length=1)
    key = SecretField()
    workspace_id = UUIDField(required=False)

    def provider_of(self, attrs: dict[str, Any]) -> PrivateProvider | Provider:
        return require_provider(self.context["organization_id"], attrs["provider"])


@extend_schema_serializer(component_name="UpdateBYOKKeyRequest")
class UpdateByokSerializer(_ByokFields):
    """An absent field stays unchanged; `null` clears a field."""

    key = SecretField(required=False)

    def provider_of(self, attrs: dict[str, Any]) -> PrivateProvider | Provider | None:
        # A secret can be rotated even after its provider left the catalogue.
        return find_provider(self.context["organization_id"], self.context["provider_slug"])


@extend_schema_serializer(component_name="BYOKKeyHealth")
class CredentialHealthSerializer(serializers.Serializer[Any]):
    state = serializers.ChoiceField(["working", "resting"])
    since = serializers.DateTimeField(allow_null=True)
    upstream_status = serializers.IntegerField(allow_null=True)


@extend_schema_serializer(component_name="BYOKKey")
class ByokSerializer(serializers.ModelSerializer[ByokCredential]):
    provider = serializers.CharField(source="provider_slug")
    workspace_id = serializers.UUIDField(allow_null=True)
    declared_region = serializers.ChoiceField(choices=Region.choices, allow_null=True)
    health = CredentialHealthSerializer(
        read_only=True,
        help_text="Extension: a credential that its provider refuses (401, 402, 403) rests for a "
        "minute, in which others are tried first.",
    )

    class Meta:
        model = ByokCredential
        fields = (
            "id", "provider", "workspace_id", "name", "label", "sort_order", "disabled",
            "is_fallback", "is_required", "is_byok_only", "allowed_models",
            "allowed_api_key_hashes", "allowed_user_ids", "allowed_hosts", "declared_region",
            "declared_zdr", "created_at", "health",
        )  # fmt: skip
        read_only_fields = fields


ByokResponseSerializer = envelope("BYOKKeyResponse", data=ByokSerializer())


ByokListSerializer = list_envelope("ListBYOKKeysResponse", ByokSerializer)
