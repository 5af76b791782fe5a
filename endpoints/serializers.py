"""The shapes of private endpoints in responses and in requests."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.models import Region
from catalog.pricing import Price, decimal_text
from config.api.fields import ChoiceField, FlagField, StrictSerializer, StringField, UUIDField
from config.api.openapi import envelope
from endpoints.models import PrivateEndpoint, Proof, offered_parameters
from endpoints.validation import Reason

_DECIMAL: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,30})?")
_DECIMAL_SHAPE: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")


class RateField(StringField):
    """USD per token as a decimal string, such as 0.0000005."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=64, min_length=1, **kwargs)

    def to_internal_value(self, data: Any) -> str:
        text = super().to_internal_value(data)
        if not _DECIMAL_SHAPE.fullmatch(text):
            raise ValidationError("Must be a decimal such as 0.0000005.")
        if not _DECIMAL.fullmatch(text):
            raise ValidationError("Must be below 1000000, with at most 30 decimals.")
        return text


@extend_schema_serializer(component_name="PrivateEndpointPricing")
class PricingSerializer(StrictSerializer):
    """Negotiated rates; the cache rates are optional.

    On creation, an absent cache rate is derived from the prompt rate, in the proportion of the
    provider's public rates. Without a public cache rate, cached tokens cost the prompt rate.
    """

    prompt = RateField()
    completion = RateField()
    cache_read = RateField(required=False)
    cache_write = RateField(required=False)

    def to_internal_value(self, data: Any) -> Price:
        rates = super().to_internal_value(data)
        return Price(**{name: Decimal(text) for name, text in rates.items()})

    def to_representation(self, instance: Price) -> dict[str, str]:
        rates = {
            "prompt": decimal_text(instance.prompt),
            "completion": decimal_text(instance.completion),
        }
        if instance.cache_read is not None:
            rates["cache_read"] = decimal_text(instance.cache_read)
        if instance.cache_write is not None:
            rates["cache_write"] = decimal_text(instance.cache_write)
        return rates


@extend_schema_serializer(component_name="PrivateEndpointActivation")
class ActivationSerializer(StrictSerializer):
    workspace_id = UUIDField()
    probe_parameters = FlagField(
        required=False,
        allow_null=True,
        help_text="Try which parameters the deployment honours, by calls that cost money. "
        "`VALIDATION_PROBES_PARAMETERS` by default.",
    )


@extend_schema_serializer(component_name="CreatePrivateEndpointRequest")
class CreateSerializer(StrictSerializer):
    model_permaslug = StringField(min_length=1)
    provider_slug = StringField(min_length=1)
    upstream_model_id = StringField(min_length=1)
    base_url = StringField(min_length=1, max_length=2048, required=False, allow_null=True)
    declared_region = ChoiceField(choices=Region.choices, required=False, allow_null=True)
    declared_zdr = FlagField(required=False, allow_null=True)
    pricing = PricingSerializer(source="price", required=False)
    activate = ActivationSerializer(required=False)


@extend_schema_serializer(component_name="UpdatePrivateEndpointRequest")
class UpdateSerializer(StrictSerializer):
    upstream_model_id = StringField(min_length=1)
    base_url = StringField(min_length=1, max_length=2048, required=False)
    declared_region = ChoiceField(choices=Region.choices, required=False, allow_null=True)
    declared_zdr = FlagField(required=False, allow_null=True)


@extend_schema_serializer(component_name="UpdatePrivateEndpointPricingRequest")
class UpdatePricingSerializer(StrictSerializer):
    pricing = PricingSerializer()


@extend_schema_serializer(component_name="PrivateEndpointSummary")
class SummarySerializer(serializers.Serializer[PrivateEndpoint]):
    """An endpoint in a list."""

    id = serializers.UUIDField()
    status = serializers.ChoiceField(choices=PrivateEndpoint.Status.choices)
    model_permaslug = serializers.CharField()
    model_slug = serializers.CharField(allow_null=True)
    model_name = serializers.CharField(allow_null=True)
    provider_name = serializers.CharField()
    created_at = serializers.DateTimeField()


@extend_schema_serializer(component_name="ManagedPrivateEndpoint")
class ManagedSerializer(SummarySerializer):
    """An endpoint after create, activate, enable or disable."""

    declared_zdr = serializers.BooleanField(allow_null=True)
    declared_region = serializers.ChoiceField(choices=Region.choices, allow_null=True)


@extend_schema_serializer(component_name="PrivateEndpoint")
class FullSerializer(serializers.Serializer[PrivateEndpoint]):
    """An endpoint with its configuration and price; the only shape without ``created_at``."""

    id = serializers.UUIDField()
    status = serializers.ChoiceField(choices=PrivateEndpoint.Status.choices)
    model_permaslug = serializers.CharField()
    model_slug = serializers.CharField(allow_null=True)
    model_name = serializers.CharField(allow_null=True)
    provider_name = serializers.CharField()
    provider_slug = serializers.CharField(allow_null=True)
    upstream_model_id = serializers.CharField()
    base_url = serializers.CharField(allow_null=True)
    declared_zdr = serializers.BooleanField(allow_null=True)
    declared_region = serializers.ChoiceField(choices=Region.choices, allow_null=True)
    pricing = PricingSerializer(source="price.price")
    supported_parameters = serializers.SerializerMethodField(
        help_text="Those of the model that were not disproved, and those that were proven."
    )

    def get_supported_parameters(self, endpoint: PrivateEndpoint) -> list[str]:
        proofs = None if endpoint.validation is None else endpoint.validation.parameters
        return offered_parameters(endpoint.model.supported_parameters, proofs)


@extend_schema_serializer(component_name="PrivateEndpointCheck")
class CheckSerializer(serializers.Serializer[dict[str, Any]]):
    name = serializers.CharField()
    passed = serializers.BooleanField()
    reason = serializers.ChoiceField(choices=[str(reason) for reason in Reason], required=False)
    upstream_status = serializers.IntegerField(required=False, min_value=400, max_value=599)
    upstream_message = serializers.CharField(required=False, allow_null=True)
    actual_model = serializers.CharField(required=False, allow_null=True)

    def to_representation(self, instance: dict[str, Any]) -> dict[str, Any]:
        shape = super().to_representation(instance)
        return {name: value for name, value in shape.items() if value is not None}


@extend_schema_serializer(component_name="PrivateEndpointValidation")
class ValidationSerializer(serializers.Serializer[Any]):
    passed = serializers.BooleanField()
    checks = CheckSerializer(many=True)
    parameters = serializers.DictField(
        child=serializers.ChoiceField(choices=Proof.choices),
        required=False,
        help_text="What was tried, and what the answers have shown; absent if nothing was tried.",
    )

    def to_representation(self, instance: Any) -> dict[str, Any]:
        shape = super().to_representation(instance)
        return {name: value for name, value in shape.items() if value is not None}


SummaryListSerializer = envelope("ListPrivateEndpointsResponse", data=SummarySerializer(many=True))


ManagedResponseSerializer = envelope("ManagedPrivateEndpointResponse", data=ManagedSerializer())


FullResponseSerializer = envelope("PrivateEndpointResponse", data=FullSerializer())


ValidationResponseSerializer = envelope(
    "PrivateEndpointValidationResponse", data=ValidationSerializer()
)


@extend_schema_serializer(component_name="DeletedPrivateEndpoint")
class DeletedSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()


DeletedResponseSerializer = envelope("DeletePrivateEndpointResponse", data=DeletedSerializer())


@extend_schema_serializer(component_name="CreatePrivateEndpointFailure")
class _FailureSerializer(serializers.Serializer[Any]):
    code = serializers.IntegerField()
    message = serializers.CharField()


@extend_schema_serializer(component_name="CreatePrivateEndpointFailureData")
class FailureDataSerializer(serializers.Serializer[Any]):
    endpoint = ManagedSerializer()
    validation = ValidationSerializer(allow_null=True)


ValidationFailedSerializer = envelope(
    "CreatePrivateEndpointValidationFailed",
    error=_FailureSerializer(),
    data=FailureDataSerializer(),
)
