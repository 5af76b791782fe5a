"""The shapes of an organization's members and settings."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from accounts.models import Member
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
        help_text="Model lists show the organization's keys only the models that they may use."
    )


@extend_schema_serializer(component_name="OrganizationSettings")
class SettingsSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    is_filtered_model_catalog_enabled = serializers.BooleanField()


SettingsResponseSerializer = envelope("OrganizationSettingsResponse", data=SettingsSerializer())
