"""The shapes of an organization's members and settings."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.models import Member
from accounts.serializers.fallback import FALLBACKS, FallbackChoice
from config.api.fields import FlagField, StrictSerializer
from config.api.openapi import envelope


@extend_schema_serializer(component_name="OrganizationMember")
class MemberSerializer(serializers.ModelSerializer[Member]):
    role = serializers.SerializerMethodField()

    class Meta:
        model = Member
        fields = ("id", "email", "first_name", "last_name", "role")
        read_only_fields = fields

    @extend_schema_field(serializers.ChoiceField(choices=("org:admin", "org:member")))
    def get_role(self, member: Member) -> str:
        return f"org:{member.role}"


MemberListSerializer = envelope(
    "ListOrganizationMembersResponse",
    data=MemberSerializer(many=True),
    total_count=serializers.IntegerField(),
)


@extend_schema_serializer(component_name="UpdateOrganizationSettingsRequest")
class UpdateSettingsSerializer(StrictSerializer):
    is_filtered_model_catalog_enabled = FlagField(
        required=False,
        help_text="Model lists show the organization's keys only the models that they may use.",
    )
    fallback = FallbackChoice()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Requires a setting: the first one, as the contract says, unless there is another."""
        if not attrs:
            raise ValidationError(
                {"is_filtered_model_catalog_enabled": ["This field is required."]}
            )
        return attrs


@extend_schema_serializer(component_name="OrganizationSettings")
class SettingsSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    is_filtered_model_catalog_enabled = serializers.BooleanField()
    fallback = serializers.ChoiceField(choices=FALLBACKS, allow_null=True)


SettingsResponseSerializer = envelope("OrganizationSettingsResponse", data=SettingsSerializer())
