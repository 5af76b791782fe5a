"""The shapes of end users."""

from __future__ import annotations

from typing import Final

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from config.api.fields import FlagField, StrictSerializer, StringField, TrackingField
from config.api.openapi import envelope
from endusers.models import EndUser

MAX_LENGTH: Final = 256


@extend_schema_serializer(component_name="CreateEndUserRequest")
class CreateSerializer(StrictSerializer):
    user = StringField(min_length=1, max_length=MAX_LENGTH, help_text="No control characters.")


@extend_schema_serializer(component_name="CreateExternalUserRequest")
class CreateExternalSerializer(StrictSerializer):
    user = TrackingField(help_text="No NUL; no white space at the beginning or the end.")


@extend_schema_serializer(component_name="UpdateEndUserRequest")
class UpdateSerializer(StrictSerializer):
    is_active = FlagField()


@extend_schema_serializer(component_name="EndUser")
class EndUserSerializer(serializers.ModelSerializer[EndUser]):
    class Meta:
        model = EndUser
        fields = ("user", "is_active", "created_at", "updated_at")
        read_only_fields = fields


EndUserResponseSerializer = envelope("EndUserResponse", data=EndUserSerializer())


EndUserListSerializer = envelope(
    "ListEndUsersResponse",
    data=EndUserSerializer(many=True),
    total_count=serializers.IntegerField(help_text="Number of matches on all pages."),
)
