"""The shapes of broadcast destinations."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django.conf import settings
from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.destinations.models import BroadcastDestination
from accounts.destinations.receivers import (
    METHODS,
    URL_MEMBERS,
    InvalidReceiver,
    Receiver,
    read_receiver,
)
from accounts.destinations.rules import NUMBERS, OPERATORS, TEXTS, InvalidRules, check_rules
from accounts.models import Region
from accounts.serializers.credentials import require_keys
from accounts.serializers.workspaces import SamplingRateField
from config.api.fields import ChoiceField, FlagField, StrictSerializer, StringField, UUIDField
from config.api.openapi import ConstantField, envelope, list_envelope

# The other types of the interface.
_ELSEWHERE: Final = frozenset(
    [
        "arize", "braintrust", "clickhouse", "datadog", "grafana", "langfuse", "langsmith",
        "newrelic", "opik", "posthog", "ramp", "s3", "sentry", "snowflake", "weave",
    ]
)  # fmt: skip
_HEADERS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_CONFIG: Final = {
    "type": "object",
    "properties": {
        "endpoint": {"type": "string", "description": "Of an `otel-collector`: the URL of traces."},
        "url": {"type": "string", "description": "Of a `webhook`."},
        "method": {"type": "string", "enum": [*METHODS], "description": "Of a `webhook`."},
        "headers": {**_HEADERS, "description": "Their values are masked in answers."},
    },
}
_RULE: Final = {
    "type": "object",
    "required": ["field", "operator"],
    "properties": {
        "field": {"type": "string", "enum": sorted(TEXTS | NUMBERS)},
        "operator": {"type": "string", "enum": [*OPERATORS]},
        "value": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    },
}
_GROUP: Final = {
    "type": "object",
    "required": ["rules"],
    "properties": {
        "logic": {"type": "string", "enum": ["and", "or"], "default": "and"},
        "rules": {"type": "array", "items": _RULE},
    },
}
_RULES: Final = {
    "type": "object",
    "nullable": True,
    "required": ["groups"],
    "properties": {
        "enabled": {"type": "boolean", "default": True},
        "groups": {"type": "array", "items": _GROUP},
    },
}


@extend_schema_field({"type": "string"})
class _TypeField(ChoiceField):
    """The type of a destination; a known type that is not served is refused by its name."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, str) and data in _ELSEWHERE:
            raise ValidationError(
                f"This service does not send to {data}. It sends OTLP over HTTP to "
                "otel-collector and webhook: use one of these if your receiver takes it."
            )
        return super().to_internal_value(data)


@extend_schema_field(_CONFIG)
class _ConfigField(serializers.Field[Any, Any, Any, Any]):
    """The configuration of a receiver, whose members depend on the type."""

    def to_internal_value(self, data: Any) -> Any:
        return data


@extend_schema_field(_RULES)
class _RulesField(serializers.Field[dict[str, Any], Any, Any, Any]):
    """Filter rules: groups of rules over the metadata of a generation."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        try:
            return check_rules(data, self.context.get("organization_id"))
        except InvalidRules as exc:
            raise ValidationError({exc.path: [exc.why]} if exc.path else exc.why) from None

    def to_representation(self, value: dict[str, Any]) -> Any:
        return value


class _RegionField(ChoiceField):
    """A region; ``eu`` is another name of ``europe``."""

    def to_internal_value(self, data: Any) -> Any:
        return super().to_internal_value("europe" if data == "eu" else data)


class _DestinationFields(StrictSerializer):
    """The fields that both creation and update accept."""

    enabled = FlagField(source="is_enabled", required=False)
    sampling_rate = SamplingRateField(
        required=False,
        help_text="The share of sessions that is sent; a generation without one counts as one.",
    )
    api_key_hashes = serializers.ListField(
        child=StringField(min_length=64, max_length=64),
        required=False,
        allow_null=True,
        allow_empty=False,
        max_length=1000,
        help_text="Only the generations of these keys are sent; `null`: those of all keys.",
    )
    regions = serializers.ListField(
        child=_RegionField(choices=Region.choices),
        required=False,
        allow_empty=False,
        max_length=10,
        help_text="Only generations that were served in one of these regions are sent: `global`, "
        "`europe` (or `eu`), `us`.",
    )
    filter_rules = _RulesField(
        required=False,
        allow_null=True,
        help_text="A generation is sent if it matches any group; `null`: all are sent.",
    )
    privacy_mode = FlagField(
        required=False,
        help_text="Must be true, which is the default: prompts and answers are never sent.",
    )
    broadcast_generation_cost = FlagField(
        source="has_cost", required=False, help_text="Sends costs and what they are made of."
    )
    broadcast_generation_identity = FlagField(
        source="has_identity",
        required=False,
        help_text="Sends the end user, the API key, its creator and the application.",
    )
    broadcast_generation_request_context = FlagField(
        source="has_request_context",
        required=False,
        help_text="Sends the route, the attempts, the region, the request's id and the user agent.",
    )
    broadcast_generation_cost_allocation = FlagField(
        required=False, help_text="Must be false: costs are not divided by kinds of tokens."
    )

    def validate_privacy_mode(self, is_private: bool) -> bool:
        if not is_private:
            raise ValidationError(
                "Must be true: this service sends metadata alone, never prompts or answers."
            )
        return is_private

    def validate_broadcast_generation_cost_allocation(self, is_divided: bool) -> bool:
        if is_divided:
            raise ValidationError("This service does not divide costs by kinds of tokens.")
        return is_divided

    def validate_regions(self, regions: list[str]) -> list[str]:
        return list(dict.fromkeys(regions))

    def validate_api_key_hashes(self, hashes: list[str] | None) -> list[str] | None:
        new = self.new_entries("api_key_hashes", hashes)
        require_keys(new, self.context["organization_id"])
        return hashes

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs.pop("privacy_mode", None)
        attrs.pop("broadcast_generation_cost_allocation", None)
        return attrs


def _read_config(kind: str, config: Any, stored: Receiver | None) -> Receiver:
    try:
        return read_receiver(kind, config, settings.EGRESS_POLICY, stored=stored)
    except InvalidReceiver as exc:
        raise ValidationError(
            {"config": {exc.path: [exc.why]} if exc.path else [exc.why]}
        ) from None


@extend_schema_serializer(component_name="CreateObservabilityDestinationRequest")
class CreateDestinationSerializer(_DestinationFields):
    name = StringField(min_length=1)
    type = _TypeField(
        choices=BroadcastDestination.Kind.choices,
        source="kind",
        help_text="`otel-collector` or `webhook`. Both get OTLP over HTTP as JSON.",
    )
    config = _ConfigField()
    workspace_id = UUIDField(required=False, help_text="The default workspace if absent.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs.setdefault("regions", [Region.GLOBAL.value])
        attrs["receiver"] = _read_config(attrs["kind"], attrs.pop("config"), None)
        return super().validate(attrs)


@extend_schema_serializer(component_name="UpdateObservabilityDestinationRequest")
class UpdateDestinationSerializer(_DestinationFields):
    """An absent field stays unchanged. Members of ``config`` that are absent stay too."""

    name = StringField(required=False, min_length=1)
    config = _ConfigField(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "config" in attrs:
            kind = self.context["destination"].kind
            attrs["find_receiver"] = partial(_read_config, kind, attrs.pop("config"))
        return super().validate(attrs)


class _DeliverySerializer(serializers.Serializer[Any]):
    """The progress of a destination: an extension of this service."""

    state = serializers.CharField(help_text="`delivering`, or `failing` since the last request.")
    sent = serializers.IntegerField(help_text="Generations that the receiver has taken.")
    skipped = serializers.IntegerField(
        help_text="Generations that the receiver refused, or did not take for a day."
    )
    served_until = serializers.DateTimeField(
        source="cursor_at", help_text="Generations that were admitted earlier are done, or wait."
    )
    succeeded_at = serializers.DateTimeField(allow_null=True)
    failing_since = serializers.DateTimeField(allow_null=True)
    next_try_at = serializers.DateTimeField(source="retry_at", allow_null=True)
    last_error = serializers.SerializerMethodField()

    def get_last_error(self, progress: Any) -> str | None:
        return progress.last_error or None


@extend_schema_serializer(component_name="ObservabilityDestination")
class DestinationSerializer(serializers.ModelSerializer[BroadcastDestination]):
    type = serializers.CharField(source="kind")
    enabled = serializers.BooleanField(source="is_enabled")
    config = serializers.SerializerMethodField(help_text="The values of headers are masked.")
    workspace_id = serializers.UUIDField()
    sampling_rate = serializers.FloatField()
    filter_rules = _RulesField(allow_null=True)
    privacy_mode = ConstantField(True, {"type": "boolean"})
    broadcast_generation_cost = serializers.BooleanField(source="has_cost")
    broadcast_generation_identity = serializers.BooleanField(source="has_identity")
    broadcast_generation_request_context = serializers.BooleanField(source="has_request_context")
    broadcast_generation_cost_allocation = ConstantField(False, {"type": "boolean"})
    delivery = _DeliverySerializer(source="progress", help_text="Extension.")

    class Meta:
        model = BroadcastDestination
        fields = (
            "id",
            "name",
            "type",
            "workspace_id",
            "enabled",
            "config",
            "sampling_rate",
            "regions",
            "api_key_hashes",
            "filter_rules",
            "privacy_mode",
            "broadcast_generation_cost",
            "broadcast_generation_cost_allocation",
            "broadcast_generation_identity",
            "broadcast_generation_request_context",
            "delivery",
            "created_at",
            "updated_at",
        )
        read_only_fields = fields

    @extend_schema_field(_CONFIG)
    def get_config(self, destination: BroadcastDestination) -> dict[str, Any]:
        config: dict[str, Any] = {URL_MEMBERS[destination.kind]: destination.url}
        if destination.kind == BroadcastDestination.Kind.WEBHOOK:
            config["method"] = destination.method
        if destination.header_names:
            config["headers"] = destination.shown_headers
        return config


DestinationResponseSerializer = envelope(
    "ObservabilityDestinationResponse", data=DestinationSerializer()
)


DestinationListSerializer = list_envelope(
    "ListObservabilityDestinationsResponse", DestinationSerializer
)
