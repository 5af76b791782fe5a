"""The shapes of presets and their versions."""

from __future__ import annotations

import json
from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.models import Preset, PresetVersion
from config.api.fields import ChoiceField, IntegerField, StrictSerializer, StringField
from config.api.openapi import ConstantField, envelope, list_envelope


@extend_schema_serializer(component_name="PresetVersion")
class PresetVersionSerializer(serializers.ModelSerializer[PresetVersion]):
    config = serializers.SerializerMethodField(
        help_text="The fields of a chat completion that a request takes over."
    )
    preset_id = serializers.UUIDField()
    creator_id = serializers.CharField(source="created_by")

    class Meta:
        model = PresetVersion
        fields = (
            "id", "preset_id", "version", "config", "system_prompt", "creator_id", "created_at",
            "updated_at",
        )  # fmt: skip
        read_only_fields = fields

    @extend_schema_field({"type": "object", "additionalProperties": True})
    def get_config(self, version: PresetVersion) -> Any:
        return json.loads(version.config)


@extend_schema_serializer(component_name="Preset")
class PresetSerializer(serializers.ModelSerializer[Preset]):
    workspace_id = serializers.UUIDField()
    creator_user_id = ConstantField(
        None,
        {"type": ["string", "null"]},
        help_text="Always null: a key makes presets, and versions name it.",
    )
    designated_version_id = serializers.UUIDField(allow_null=True)
    status = serializers.ChoiceField(Preset.Status.choices)

    class Meta:
        model = Preset
        fields: tuple[str, ...] = (
            "id", "slug", "name", "description", "status", "workspace_id", "creator_user_id",
            "designated_version_id", "created_at", "updated_at", "status_updated_at",
        )  # fmt: skip
        read_only_fields = fields


@extend_schema_serializer(component_name="PresetWithDesignatedVersion")
class WholePresetSerializer(PresetSerializer):
    designated_version = PresetVersionSerializer(allow_null=True)

    class Meta(PresetSerializer.Meta):
        fields = (*PresetSerializer.Meta.fields, "designated_version")
        read_only_fields = fields


@extend_schema_serializer(component_name="UpdatePresetRequest")
class UpdatePresetSerializer(StrictSerializer):
    """An absent field stays unchanged."""

    name = StringField(required=False, min_length=1)
    description = StringField(max_length=4096, required=False, allow_null=True, allow_blank=True)
    status = ChoiceField(choices=Preset.Status.choices, required=False)
    designated_version = IntegerField(
        required=False, min_value=1, max_value=1_000_000, help_text="The number of a version."
    )

    def validate(self, fields: dict[str, Any]) -> dict[str, Any]:
        if not fields:
            raise ValidationError("Send at least one field.")
        return fields


PresetResponseSerializer = envelope("GetPresetResponse", data=WholePresetSerializer())
PresetListSerializer = list_envelope("ListPresetsResponse", PresetSerializer)
PresetVersionResponseSerializer = envelope(
    "GetPresetVersionResponse", data=PresetVersionSerializer()
)
PresetVersionListSerializer = list_envelope("ListPresetVersionsResponse", PresetVersionSerializer)
