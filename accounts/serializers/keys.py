"""The shapes of API keys."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, cast

from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.models import ApiKey, LimitReset, Region, policy_of
from accounts.serializers.rate_limits import (
    RateLimitedListSerializer,
    RateLimitsSerializer,
    describe_row,
)
from accounts.webhooks.models import MAX_OVERLAP
from billing.budgets import Budget, spent_nano
from billing.models import Meter
from catalog.pricing import usd
from config.api.fields import (
    ChoiceField,
    DollarsField,
    FlagField,
    InstantField,
    IntegerField,
    StrictSerializer,
    StringField,
    TrackingField,
    UUIDField,
)
from config.api.openapi import envelope
from config.clocks.clock import clock
from inference.admission.governance import budgets_of, limit_of


class _KeyLimitFields(StrictSerializer):
    limit = DollarsField(
        source="limit_nano", required=False, allow_null=True, help_text="USD; null for no limit."
    )
    limit_reset = ChoiceField(
        choices=LimitReset.choices,
        required=False,
        allow_null=True,
        help_text="The interval after which spending is reset, at midnight UTC; null for never.",
    )
    include_byok_in_limit = FlagField(required=False)
    rate_limits = RateLimitsSerializer(
        required=False, allow_null=True, help_text="Null removes all of them."
    )


@extend_schema_serializer(component_name="CreateKeyExternal")
class _ExternalSerializer(StrictSerializer):
    """The external owner of a key. This service generates every key; `api_key` is refused."""

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
        help_text="The member who creates the key; the member's guardrail applies to it.",
    )

    def validate_expires_at(self, moment: datetime | None) -> datetime | None:
        if moment is not None and moment <= clock.now():
            raise ValidationError("Must be in the future.")
        return moment

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        external = attrs.pop("external", None)
        return attrs if external is None else {**attrs, "external_user": external["user"]}


@extend_schema_serializer(
    component_name="UpdateKeysRequest",
    examples=[
        OpenApiExample(
            "Rate limits",
            value={
                "rate_limits": {
                    "requests_per_minute": 60,
                    "concurrent_requests": None,
                    "models": {"acme/falcon-9": {"tokens_per_minute": 20000}},
                }
            },
            request_only=True,
        )
    ],
)
class UpdateKeySerializer(_KeyLimitFields):
    """An absent field stays unchanged."""

    name = StringField(required=False, min_length=1)
    disabled = FlagField(required=False)
    workspace_id = UUIDField(
        required=False, help_text="Moves the key to another workspace; the secret stays the same."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise ValidationError("No update fields were provided.")
        return attrs


@extend_schema_serializer(
    component_name="RotateKeyRequest",
    examples=[OpenApiExample("A day", value={"overlap_seconds": 86400}, request_only=True)],
)
class RotateKeySerializer(StrictSerializer):
    overlap_seconds = IntegerField(
        required=False,
        min_value=0,
        max_value=MAX_OVERLAP,
        help_text="For so long the old secret works too; an hour if absent.",
    )


class _UsageSerializer(serializers.Serializer[Any]):
    usage = serializers.FloatField()
    usage_daily = serializers.FloatField()
    usage_weekly = serializers.FloatField()
    usage_monthly = serializers.FloatField()
    byok_usage = serializers.FloatField()
    byok_usage_daily = serializers.FloatField()
    byok_usage_weekly = serializers.FloatField()
    byok_usage_monthly = serializers.FloatField()


class _KeyListSerializer(RateLimitedListSerializer):
    """Renders keys with one query for the usage of all of them, and one for their rate limits."""

    def to_representation(self, data: Any) -> Any:
        cast("dict[str, Any]", self.context)["meters"] = Meter.objects.in_bulk(
            [key.subject_id for key in data]
        )
        return super().to_representation(data)


@extend_schema_serializer(component_name="APIKey")
class KeySerializer(_UsageSerializer):
    """An inference key without its secret; amounts are USD."""

    hash = serializers.CharField()
    number = serializers.IntegerField(
        help_text="Names the key in `io_logging_api_key_ids` of a workspace."
    )
    rotated_to = serializers.CharField(
        allow_null=True,
        help_text="Extension: of a former secret, the hash of its key, whose usage the row "
        "repeats; else null.",
    )
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
    rate_limits = RateLimitsSerializer()
    expires_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()

    class Meta:
        list_serializer_class = _KeyListSerializer

    def to_representation(self, instance: ApiKey) -> Any:
        meters = self.context.get("meters") or Meter.objects.in_bulk([instance.subject_id])
        meter = meters[instance.subject_id]
        return super().to_representation(
            {
                "hash": instance.digest,
                "number": instance.number,
                "rotated_to": instance.successor.digest if instance.successor else None,
                "name": instance.name,
                "label": instance.label,
                "workspace_id": instance.workspace_id,
                "creator_user_id": instance.creator_id,
                "external_user": instance.external_user,
                "disabled": instance.disabled,
                **_describe_limit(instance, meter),
                "rate_limits": describe_row(instance, self.context),
                "expires_at": instance.expires_at,
                "last_used_at": meter.last_used_at,
                "created_at": instance.created_at,
                "updated_at": instance.updated_at,
            }
        )


KeyResponseSerializer = envelope("APIKeyResponse", data=KeySerializer())


KeyListSerializer = envelope("ListKeysResponse", data=KeySerializer(many=True))


CreatedKeySerializer = envelope(
    "CreateKeysResponse",
    data=KeySerializer(),
    key=serializers.CharField(help_text="The key itself; no other response contains it."),
)


RotatedKeySerializer = envelope(
    "RotateKeyResponse",
    data=KeySerializer(),
    key=serializers.CharField(help_text="The key itself; no other response contains it."),
    expires_at=serializers.DateTimeField(help_text="Until then the old secret works."),
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

    hash = serializers.CharField(help_text="Names the key in `/keys/{hash}/rotate`.")
    label = serializers.CharField()  # type: ignore[assignment]
    organization_id = serializers.UUIDField(allow_null=True)
    workspace_id = serializers.UUIDField(allow_null=True)
    creator_user_id = serializers.CharField(allow_null=True)
    is_management_key = serializers.BooleanField()
    is_provisioning_key = serializers.BooleanField(
        help_text="Deprecated: equals `is_management_key`."
    )
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

    def to_representation(self, instance: ApiKey) -> Any:
        limiting = budgets_of(instance)
        meters = Meter.objects.in_bulk({instance.pk, *(budget.subject_id for budget in limiting)})
        budgets = [_describe_budget(budget, meters[budget.subject_id]) for budget in limiting]
        ingress_regions = policy_of(instance).ingress_regions
        workspace = instance.workspace
        return super().to_representation(
            {
                "hash": instance.digest,
                "label": instance.label,
                "organization_id": instance.organization_id,
                "workspace_id": workspace.pk if workspace.deleted_at is None else None,
                "creator_user_id": instance.creator_id,
                "is_management_key": instance.is_management,
                "is_provisioning_key": instance.is_management,
                "is_free_tier": False,
                "expires_at": instance.expires_at,
                **_describe_limit(instance, meters[instance.pk]),
                "budgets": budgets,
                "effective_budget": min(
                    budgets, key=lambda budget: float(budget["remaining_usd"]), default=None
                ),
                "allowed_data_regions": [
                    region
                    for region in Region.values
                    if ingress_regions is None or region in ingress_regions
                ],
                "free_model_daily_requests": {"limit": 0, "remaining": 0, "used": 0},
                "rate_limit": {
                    "requests": -1,
                    "interval": "10s",
                    "note": "This field is deprecated and safe to ignore.",
                },
            }
        )


CurrentKeyResponseSerializer = envelope("GetCurrentKeyResponse", data=CurrentKeySerializer())


def _describe_limit(key: ApiKey, meter: Meter) -> dict[str, Any]:
    """Returns a key's limit, its remaining limit and its usage, in USD."""
    today = clock.now().date()
    limit = limit_of(key)
    rest = None if limit is None else usd(limit.limit_nano - limit.spent_nano(meter, today))
    return {
        "limit": None if limit is None else usd(limit.limit_nano),
        "limit_remaining": rest,
        "limit_reset": key.limit_reset,
        "include_byok_in_limit": key.include_byok_in_limit,
        **_describe_usage(meter, today),
    }


def _describe_usage(meter: Meter, today: date) -> dict[str, float]:
    """Returns the spending from credits and by BYOK credentials, in total and by period."""
    used = {"usage": usd(meter.cost), "byok_usage": usd(meter.byok)}
    for reset in LimitReset:
        cost = spent_nano(meter, reset, today, byok=False)
        used[f"usage_{reset}"] = usd(cost)
        used[f"byok_usage_{reset}"] = usd(spent_nano(meter, reset, today, byok=True) - cost)
    return used


def _describe_budget(budget: Budget, meter: Meter) -> dict[str, Any]:
    now = clock.now()
    spending = budget.spent_nano(meter, now.date())
    return {
        "scope": budget.scope.value,
        "budget_id": budget.budget_id,
        "guardrail_id": budget.guardrail_id,
        "include_byok": budget.include_byok,
        "limit_usd": usd(budget.limit_nano),
        "spend_usd": usd(spending),
        "remaining_usd": usd(budget.limit_nano - spending),
        "reset_interval": budget.reset,
        "resets_at": budget.resets_at(now),
    }
