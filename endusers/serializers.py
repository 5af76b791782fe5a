"""The shapes of end users."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.serializers.rate_limits import (
    RateLimitedListSerializer,
    RateLimitsSerializer,
    ShownRateLimits,
)
from config.api.fields import FlagField, StrictSerializer, StringField, TrackingField
from config.api.openapi import envelope
from endusers.models import EndUser

MAX_LENGTH: Final = 256


@extend_schema_serializer(component_name="CreateEndUserRequest")
class EndUserCreateSerializer(StrictSerializer):
    user = StringField(
        min_length=1, max_length=MAX_LENGTH, allow_space=True, help_text="No control characters."
    )
    rate_limits = RateLimitsSerializer(required=False, allow_null=True)


@extend_schema_serializer(component_name="CreateExternalUserRequest")
class CreateExternalSerializer(StrictSerializer):
    user = TrackingField(help_text="No NUL; no white space at the beginning or the end.")
    rate_limits = RateLimitsSerializer(required=False, allow_null=True)


@extend_schema_serializer(component_name="UpdateEndUserRequest")
class EndUserUpdateSerializer(StrictSerializer):
    """An absent field stays unchanged; one of the fields is required."""

    is_active = FlagField(required=False)
    rate_limits = RateLimitsSerializer(
        required=False, allow_null=True, help_text="Null removes all of them."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise ValidationError({"is_active": ["This field is required."]})
        return attrs


@extend_schema_serializer(component_name="EndUser")
class EndUserSerializer(serializers.ModelSerializer[EndUser]):
    rate_limits = ShownRateLimits()

    class Meta:
        model = EndUser
        list_serializer_class = RateLimitedListSerializer
        fields = ("user", "is_active", "rate_limits", "created_at", "updated_at")
        read_only_fields = fields


EndUserResponseSerializer = envelope("EndUserResponse", data=EndUserSerializer())


EndUserListSerializer = envelope(
    "ListEndUsersResponse",
    data=EndUserSerializer(many=True),
    total_count=serializers.IntegerField(help_text="Number of matches on all pages."),
)
