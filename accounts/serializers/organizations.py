"""The shapes of an organization's members and settings."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError as InvalidAddress
from django.core.validators import validate_email
from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.models import Member
from accounts.models.members import WRITTEN_ROLES
from accounts.serializers.fallback import FALLBACKS, FallbackChoice
from config.api.fields import ChoiceField, FlagField, StrictSerializer, StringField, UUIDField
from config.api.openapi import envelope, list_envelope


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


class _MemberFields(StrictSerializer):
    first_name = StringField(required=False, allow_null=True, min_length=1)
    last_name = StringField(required=False, allow_null=True, min_length=1)
    role = ChoiceField(choices=WRITTEN_ROLES, required=False)

    def validate_role(self, role: str) -> str:
        return role.removeprefix("org:")


@extend_schema_serializer(component_name="CreateOrganizationMemberRequest")
class CreateMemberSerializer(_MemberFields):
    email = StringField(min_length=3, max_length=254)
    workspace_ids = serializers.ListField(
        child=UUIDField(),
        required=False,
        max_length=100,
        help_text="Workspaces that the member joins; everybody is in the default one.",
    )

    def validate_email(self, email: str) -> str:
        try:
            validate_email(email)
        except InvalidAddress:
            raise ValidationError("Must be an email address.") from None
        return email


@extend_schema_serializer(component_name="UpdateOrganizationMemberRequest")
class UpdateMemberSerializer(_MemberFields):
    """An absent field stays unchanged."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise ValidationError("No update fields were provided.")
        return attrs


MemberResponseSerializer = envelope("OrganizationMemberResponse", data=MemberSerializer())
MemberListSerializer = list_envelope("ListOrganizationMembersResponse", MemberSerializer)


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
class OrganizationSettingsSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    is_filtered_model_catalog_enabled = serializers.BooleanField()
    fallback = serializers.ChoiceField(choices=FALLBACKS, allow_null=True)


SettingsResponseSerializer = envelope(
    "OrganizationSettingsResponse", data=OrganizationSettingsSerializer()
)
