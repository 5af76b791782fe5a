"""The shapes of keys and provider credentials."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.models import HOST_NAME, ApiKey, ByokCredential, LimitReset, Member, Region
from catalog import dialects
from catalog.dialects.shared.credentials import InvalidCredential
from catalog.models import Provider
from config.api.fields import (
    ChoiceField,
    DollarsField,
    FlagField,
    InstantField,
    StrictSerializer,
    StringField,
    TrackingField,
    UUIDField,
)
from config.api.openapi import envelope
from config.api.text import parse_uuid
from config.credentials import MAX_CREDENTIAL_LENGTH, NotACredential, Secret, parse_credential


@extend_schema_field({"type": "string", "writeOnly": True, "maxLength": MAX_CREDENTIAL_LENGTH})
class SecretField(serializers.Field[Secret, str, str, Any]):
    """A provider's secret: one bare key, or the text of one JSON object; never shown again."""

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
    """What a credential is created with and may be changed in later."""

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
        help_text="Extension: the only hosts to which this credential may be sent.",
    )
    declared_region = ChoiceField(choices=Region.choices, required=False, allow_null=True)
    declared_zdr = FlagField(required=False, allow_null=True)

    def validate_allowed_hosts(self, hosts: list[str] | None) -> list[str] | None:
        if hosts is not None and any(not HOST_NAME.fullmatch(host) for host in hosts):
            raise ValidationError("Must be lower-case host names without port or path.")
        return hosts

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("is_fallback") and attrs.get("is_byok_only"):
            raise ValidationError({"is_fallback": ["Cannot be combined with is_byok_only."]})
        if "key" in attrs:
            _check_secret(self.provider_of(attrs), attrs["key"])
        hashes = set(attrs.get("allowed_api_key_hashes") or ())
        organization_id = self.context["organization_id"]
        own = ApiKey.objects.for_organization(organization_id).filter(digest__in=hashes).count()
        if own != len(hashes):
            raise ValidationError({"allowed_api_key_hashes": ["Names a key that is not yours."]})
        members = {parse_uuid(text) for text in attrs.get("allowed_user_ids") or ()}
        people = Member.objects.for_organization(organization_id)
        if people.filter(pk__in=list(filter(None, members))).count() != len(members):
            raise ValidationError({"allowed_user_ids": ["Names a member who is not yours."]})
        return attrs

    def provider_of(self, attrs: dict[str, Any]) -> Provider | None:
        """Returns the provider whose rules a new secret has to follow."""
        raise NotImplementedError


def _check_secret(provider: Provider | None, secret: Secret) -> None:
    if provider is None:
        return
    try:
        dialects.check_credential(provider.dialect, secret)
    except InvalidCredential as exc:
        raise ValidationError({"key": [str(exc)]}) from None


@extend_schema_serializer(component_name="CreateBYOKKeyRequest")
class CreateByokSerializer(_ByokFields):
    provider = StringField(min_length=1)
    key = SecretField()
    workspace_id = UUIDField(required=False)

    def provider_of(self, attrs: dict[str, Any]) -> Provider:
        provider = Provider.objects.filter(slug=attrs["provider"], is_listed=True).first()
        if provider is None:
            raise ValidationError({"provider": ["Is not a provider of the catalogue."]})
        return provider


@extend_schema_serializer(component_name="UpdateBYOKKeyRequest")
class UpdateByokSerializer(_ByokFields):
    """What is left out stays as it is; `null` clears."""

    key = SecretField(required=False)

    def provider_of(self, attrs: dict[str, Any]) -> Provider | None:
        # A provider that left the catalogue does not keep anybody from rotating.
        return Provider.objects.filter(slug=self.context["provider_slug"]).first()


@extend_schema_serializer(component_name="BYOKKey")
class ByokSerializer(serializers.ModelSerializer[ByokCredential]):
    provider = serializers.CharField(source="provider_slug")
    workspace_id = serializers.UUIDField(allow_null=True)
    declared_region = serializers.ChoiceField(choices=Region.choices, allow_null=True)

    class Meta:
        model = ByokCredential
        fields = (
            "id",
            "provider",
            "workspace_id",
            "name",
            "label",
            "sort_order",
            "disabled",
            "is_fallback",
            "is_required",
            "is_byok_only",
            "allowed_models",
            "allowed_api_key_hashes",
            "allowed_user_ids",
            "allowed_hosts",
            "declared_region",
            "declared_zdr",
            "created_at",
        )
        read_only_fields = fields


ByokResponseSerializer = envelope("BYOKKeyResponse", data=ByokSerializer())


ByokListSerializer = envelope(
    "ListBYOKKeysResponse", data=ByokSerializer(many=True), total_count=serializers.IntegerField()
)


DeletedSerializer = envelope("Deleted", deleted=serializers.BooleanField(help_text="Always true."))


class _KeyLimitFields(StrictSerializer):
    limit = DollarsField(
        source="limit_nano", required=False, allow_null=True, help_text="USD; null for no limit."
    )
    limit_reset = ChoiceField(
        choices=LimitReset.choices,
        required=False,
        allow_null=True,
        help_text="When spending counts from zero again, at midnight UTC; null for never.",
    )
    include_byok_in_limit = FlagField(required=False)


@extend_schema_serializer(component_name="CreateKeyExternal")
class _ExternalSerializer(StrictSerializer):
    """Whose key it is. Every key is made here: an `api_key` brought along is refused."""

    user = TrackingField()


@extend_schema_serializer(component_name="CreateKeysRequest")
class CreateKeySerializer(_KeyLimitFields):
    name = StringField(min_length=1)
    workspace_id = UUIDField(required=False)
    expires_at = InstantField(required=False, allow_null=True, help_text="In the future.")
    external = _ExternalSerializer(required=False)
    creator_user_id = UUIDField(
        required=False,
        allow_null=True,
        help_text="The member who makes it, and under whose guardrail it falls.",
    )

    def validate_expires_at(self, moment: datetime | None) -> datetime | None:
        if moment is not None and moment <= timezone.now():
            raise ValidationError("Must be in the future.")
        return moment

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        external = attrs.pop("external", None)
        return attrs if external is None else {**attrs, "external_user": external["user"]}


@extend_schema_serializer(component_name="UpdateKeysRequest")
class UpdateKeySerializer(_KeyLimitFields):
    """What is left out stays as it is."""

    name = StringField(required=False, min_length=1)
    disabled = FlagField(required=False)
    workspace_id = UUIDField(required=False, help_text="Moves the key; its value stays.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise ValidationError("No update fields were provided.")
        return attrs


class _UsageSerializer(serializers.Serializer[Any]):
    usage = serializers.FloatField()
    usage_daily = serializers.FloatField()
    usage_weekly = serializers.FloatField()
    usage_monthly = serializers.FloatField()
    byok_usage = serializers.FloatField()
    byok_usage_daily = serializers.FloatField()
    byok_usage_weekly = serializers.FloatField()
    byok_usage_monthly = serializers.FloatField()


@extend_schema_serializer(component_name="APIKey")
class KeySerializer(_UsageSerializer):
    """An inference key; amounts are USD. The key itself is not among them."""

    hash = serializers.CharField()
    name = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment]
    workspace_id = serializers.UUIDField()
    creator_user_id = serializers.CharField(allow_null=True)
    external_user = serializers.CharField(allow_null=True)
    disabled = serializers.BooleanField()
    limit = serializers.FloatField(allow_null=True)
    limit_remaining = serializers.FloatField(allow_null=True)
    limit_reset = serializers.CharField(allow_null=True)
    include_byok_in_limit = serializers.BooleanField()
    expires_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


KeyResponseSerializer = envelope("APIKeyResponse", data=KeySerializer())


KeyListSerializer = envelope("ListKeysResponse", data=KeySerializer(many=True))


CreatedKeySerializer = envelope(
    "CreateKeysResponse",
    data=KeySerializer(),
    key=serializers.CharField(help_text="The key itself, this once."),
)


@extend_schema_serializer(component_name="RateLimit")
class _RateLimitSerializer(serializers.Serializer[Any]):
    requests = serializers.IntegerField()
    interval = serializers.CharField()
    note = serializers.CharField()


@extend_schema_serializer(component_name="FreeModelDailyRequests")
class _FreeRequestsSerializer(serializers.Serializer[Any]):
    limit = serializers.IntegerField()
    remaining = serializers.IntegerField()
    used = serializers.IntegerField()


@extend_schema_serializer(component_name="KeyBudget")
class KeyBudgetSerializer(serializers.Serializer[Any]):
    scope = serializers.CharField()
    budget_id = serializers.CharField(allow_null=True)
    guardrail_id = serializers.CharField(allow_null=True)
    include_byok = serializers.BooleanField()
    limit_usd = serializers.FloatField()
    spend_usd = serializers.FloatField()
    remaining_usd = serializers.FloatField()
    reset_interval = serializers.CharField(allow_null=True)
    resets_at = serializers.DateTimeField(allow_null=True)


@extend_schema_serializer(component_name="CurrentKey")
class CurrentKeySerializer(_UsageSerializer):
    """The key that made the request; amounts are USD."""

    label = serializers.CharField()  # type: ignore[assignment]
    organization_id = serializers.UUIDField(allow_null=True)
    workspace_id = serializers.UUIDField(allow_null=True)
    creator_user_id = serializers.CharField(allow_null=True)
    is_management_key = serializers.BooleanField()
    is_provisioning_key = serializers.BooleanField(help_text="Deprecated mirror.")
    is_free_tier = serializers.BooleanField()
    expires_at = serializers.DateTimeField(allow_null=True)
    limit = serializers.FloatField(allow_null=True)
    limit_remaining = serializers.FloatField(allow_null=True)
    limit_reset = serializers.CharField(allow_null=True)
    include_byok_in_limit = serializers.BooleanField()
    budgets = KeyBudgetSerializer(many=True)
    effective_budget = KeyBudgetSerializer(allow_null=True)
    allowed_data_regions = serializers.ListField(child=serializers.CharField())
    free_model_daily_requests = _FreeRequestsSerializer()
    rate_limit = _RateLimitSerializer(help_text="Deprecated; always -1.")


CurrentKeyResponseSerializer = envelope("GetCurrentKeyResponse", data=CurrentKeySerializer())
