"""The shapes of end users."""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers

from config.api import StrictSerializer, StringField
from endusers.models import EndUser

MAX_LENGTH: Final = 256


class CreateSerializer(StrictSerializer):
    user = StringField(min_length=1, max_length=MAX_LENGTH, help_text="No control characters.")


class EndUserSerializer(serializers.ModelSerializer[EndUser]):
    class Meta:
        model = EndUser
        fields = ("user", "is_active", "created_at", "updated_at")


class EndUserResponseSerializer(serializers.Serializer[Any]):
    data = EndUserSerializer()
