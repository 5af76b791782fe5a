"""The shapes of private endpoints in responses and in requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from django.core.validators import ProhibitNullCharactersValidator
from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.fields import SkipField
from rest_framework.validators import ProhibitSurrogateCharactersValidator

from accounts.models import Region
from accounts.serializers.fallback import FallbackChoice
from catalog.abilities import DECLARABLE, EndpointSettings
from catalog.models import LanguageModel
from catalog.pricing import Price
from catalog.pricing.contract import DECIMAL, InvalidPricing
from catalog.serializers import LineSerializer, LinesField, OverrideSerializer
from config.api.fields import (
    ChoiceField,
    FlagField,
    IntegerField,
    StrictSerializer,
    StringField,
    UUIDField,
    make_serializer,
)
from config.api.openapi import envelope, list_envelope
from config.egress.rules import SETTING_OF, TimeLimits
from endpoints.models import NewModel, PrivateEndpoint, PrivateProvider, Proof, show_settings
from endpoints.models.providers import NAME, SLUG
from endpoints.pricing import decode_endpoint_price, render_endpoint_pricing
from endpoints.validation import KINDS, Reason

_DECIMAL_SHAPE: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")


class RateField(StringField):
    """USD per token as a decimal string, such as 0.0000005."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=64, min_length=1, pattern=f"^{DECIMAL.pattern}$", **kwargs)

    def to_internal_value(self, data: Any) -> str:
        text = super().to_internal_value(data)
        if not _DECIMAL_SHAPE.fullmatch(text):
            raise ValidationError("Must be a decimal such as 0.0000005.")
        if not DECIMAL.fullmatch(text):
            raise ValidationError("Must be below 1000000, with at most 30 decimals.")
        return text


class _RawField(serializers.Field[Any, Any, Any, Any]):
    """A member that :mod:`endpoints.pricing` checks."""

    def to_internal_value(self, data: Any) -> Any:
        return data

    def to_representation(self, value: Any) -> Any:
        return value


@extend_schema_field(OverrideSerializer(many=True))
class _OverridesField(_RawField):
    """The ``overrides`` of a pricing object."""


@extend_schema_field(LineSerializer(many=True))
class _LinesField(_RawField):
    """The ``lines`` of a price."""


@extend_schema_field({"type": "number", "minimum": 0, "maximum": 1})
class _DiscountField(_RawField):
    """The share that is taken off every rate."""


@extend_schema_serializer(component_name="PrivateEndpointPricing")
class PricingSerializer(StrictSerializer):
    """Negotiated rates; all but two are optional.

    On creation, an absent cache rate is derived from the prompt rate, in the proportion of the
    provider's public rates. Without a public cache rate, cached tokens cost the prompt rate.
    """

    prompt = RateField()
    completion = RateField()
    cache_read = RateField(required=False)
    cache_write = RateField(required=False)
    image = RateField(required=False)
    request = RateField(required=False)
    input_cache_read = RateField(required=False)
    input_cache_write = RateField(required=False)
    input_cache_write_1h = RateField(required=False)
    internal_reasoning = RateField(required=False)
    audio = RateField(required=False)
    audio_output = RateField(required=False)
    input_audio_cache = RateField(required=False)
    image_token = RateField(required=False)
    image_output = RateField(required=False)
    web_search = RateField(required=False)
    discount = _DiscountField(required=False, allow_null=True)
    overrides = _OverridesField(required=False, allow_null=True)
    lines = _LinesField(required=False, allow_null=True, write_only=True)

    def to_internal_value(self, data: Any) -> Price:
        given = dict(super().to_internal_value(data))
        lines = given.pop("lines", None)
        try:
            return decode_endpoint_price(given, lines)
        except InvalidPricing as exc:
            raise ValidationError(
                {path.removeprefix("pricing."): [text] for path, text in exc.problems}
            ) from None

    def to_representation(self, instance: Price) -> dict[str, Any]:
        return render_endpoint_pricing(instance)


class _PricedSerializer(StrictSerializer):
    """A body with a price, whose ``lines`` may stand beside the pricing object or in it."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("lines") is None:
            return _without_lines(super().to_internal_value(data))
        pricing = data.get("pricing")
        if not isinstance(pricing, Mapping):
            raise ValidationError({"lines": ["Needs the pricing object beside it."]})
        if pricing.get("lines") is not None:
            raise ValidationError({"lines": ["Is in pricing too; leave one of them out."]})
        try:
            return _without_lines(
                super().to_internal_value(
                    {**data, "lines": None, "pricing": {**pricing, "lines": data["lines"]}}
                )
            )
        except ValidationError as exc:
            raise ValidationError(_move_lines(exc.detail)) from None


def _without_lines(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a body, in which the lines stand in the price."""
    return {name: value for name, value in fields.items() if name != "lines"}


def _move_lines(detail: Any) -> Any:
    """Returns problems in which those of the lines stand beside those of the pricing object."""
    problems = detail.get("pricing") if isinstance(detail, Mapping) else None
    if not isinstance(problems, Mapping):
        return detail
    lines = {name: text for name, text in problems.items() if name.startswith("lines")}
    rest = {name: text for name, text in problems.items() if name not in lines}
    moved = {name: text for name, text in detail.items() if name != "pricing"} | lines
    return moved | {"pricing": rest} if rest else moved


class _SecondsField(IntegerField):
    """A number of seconds, at most the operator's limit of the same name."""

    def to_internal_value(self, data: Any) -> int:
        seconds: int = super().to_internal_value(data)
        setting = SETTING_OF[str(self.field_name)]
        most = getattr(settings, setting)
        if not 1 <= seconds <= most:
            raise ValidationError(f"Must be from 1 to {most:g}, the operator's {setting}.")
        return seconds


class _LimitField(_SecondsField):
    """An optional limit of time."""

    def __init__(self, text: str) -> None:
        super().__init__(required=False, allow_null=True, help_text=text)


@extend_schema_serializer(component_name="PrivateEndpointTimeouts")
class TimeoutsSerializer(StrictSerializer):
    """Limits of time in seconds; the operator's apply where one is absent or null."""

    connect = _LimitField("For the name, the connection and TLS.")
    headers = _LimitField("Until the headers of a stream.")
    first_event = _LimitField("Until the first event of a stream.")
    idle = _LimitField("Of silence after the first event of a stream.")
    total = _LimitField("For a whole answer, plain or streamed.")

    def get_attribute(self, instance: Any) -> TimeLimits:
        limits: TimeLimits = instance.time_limits
        if not limits.stated():
            raise SkipField
        return limits

    def to_internal_value(self, data: Any) -> TimeLimits:
        return TimeLimits(**super().to_internal_value(data))

    def to_representation(self, instance: TimeLimits) -> dict[str, int]:
        return instance.stated()


class SettingsSerializer(
    make_serializer(  # type: ignore[misc]
        EndpointSettings, "PrivateEndpointSettings", {"fallback": FallbackChoice()}
    )
):
    """Settings that routing goes by; in a request, only the members that are sent change."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        # What the rest means depends on the settings that are stored.
        given = dict(super().to_internal_value(data))
        found = {"fallback": given.pop("fallback")} if "fallback" in given else {}
        return {**found, "settings": given} if given else found

    def to_representation(self, instance: PrivateEndpoint) -> dict[str, Any]:
        return {**show_settings(instance.settings), "fallback": instance.fallback}


@extend_schema_serializer(component_name="PrivateEndpointActivation")
class ActivationSerializer(StrictSerializer):
    workspace_id = UUIDField()
    probe_parameters = FlagField(
        required=False,
        allow_null=True,
        help_text="Try which parameters the deployment honours, by calls that cost money. By "
        "default, where they cost no more than `VALIDATION_SPEND_LIMIT`.",
    )


@extend_schema_serializer(component_name="ValidatePrivateEndpointRequest")
class ValidationRequestSerializer(ActivationSerializer):
    """The body of a request that validates an endpoint by live calls."""

    again = FlagField(
        required=False,
        allow_null=True,
        help_text="Extension: validate an active or disabled endpoint instead of a draft. If it "
        "passes, later watches compare with it, and a drift ends. Otherwise the endpoint stays as "
        "it is; an answer that differs is a drift of an active one.",
    )


class _DeclaredField(serializers.ListField):
    """The parameters that the owner says the deployment supports."""

    child = ChoiceField(choices=DECLARABLE)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=len(DECLARABLE), **kwargs)


class _BaseModelField(StringField):
    def __init__(self) -> None:
        super().__init__(
            min_length=1,
            required=False,
            allow_null=True,
            help_text="The model from which context, modalities, tokenizer and parameters are "
            "taken; without one, those of a plain text model.",
        )


@extend_schema_serializer(component_name="NewPrivateModel")
class _NewModelSerializer(StrictSerializer):
    """A model to make together with its endpoint."""

    name = StringField(min_length=1)
    base_model = _BaseModelField()

    def to_internal_value(self, data: Any) -> NewModel:
        return NewModel(**super().to_internal_value(data))


class _AddressField(StringField):
    """A ``base_url``: all that is wrong about its value is told by :class:`InvalidBaseURL`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            min_length=1, max_length=2048, required=False, allow_null=True, pattern="", **kwargs
        )
        kinds = ProhibitNullCharactersValidator | ProhibitSurrogateCharactersValidator
        self.validators = [each for each in self.validators if not isinstance(each, kinds)]

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return data


@extend_schema_serializer(component_name="CreatePrivateEndpointRequest")
class CreateSerializer(_PricedSerializer):
    model_permaslug = StringField(min_length=1)
    provider_slug = StringField(min_length=1)
    upstream_model_id = StringField(min_length=1)
    base_url = _AddressField()
    declared_region = ChoiceField(choices=Region.choices, required=False, allow_null=True)
    declared_zdr = FlagField(required=False, allow_null=True)
    pricing = PricingSerializer(source="price", required=False)
    lines = _LinesField(required=False, allow_null=True)
    timeouts = TimeoutsSerializer(source="time_limits", required=False, allow_null=True)
    settings = SettingsSerializer(required=False, allow_null=True)
    declared_parameters = _DeclaredField(required=False)
    model = _NewModelSerializer(
        required=False,
        allow_null=True,
        help_text="Extension: makes the private model of `model_permaslug` too.",
    )
    activate = ActivationSerializer(required=False)


@extend_schema_serializer(component_name="UpdatePrivateEndpointRequest")
class UpdateSerializer(_PricedSerializer):
    """Changes the members that are sent, all or none.

    Upstream fields need `activate`, unless the endpoint is a draft.
    """

    upstream_model_id = StringField(min_length=1, required=False)
    base_url = _AddressField(help_text="Null: that of the private provider, or of the credential.")
    declared_region = ChoiceField(choices=Region.choices, required=False, allow_null=True)
    declared_zdr = FlagField(required=False, allow_null=True)
    pricing = PricingSerializer(source="price", required=False)
    lines = _LinesField(required=False, allow_null=True)
    timeouts = TimeoutsSerializer(source="time_limits", required=False, allow_null=True)
    settings = SettingsSerializer(required=False, allow_null=True)
    declared_parameters = _DeclaredField(required=False)
    activate = ActivationSerializer(
        required=False,
        help_text="Extension: validates the changed upstream of an active endpoint by live calls, "
        "and makes all changes at once if they pass.",
    )


@extend_schema_serializer(component_name="UpdatePrivateEndpointTimeoutsRequest")
class UpdateTimeoutsSerializer(StrictSerializer):
    timeouts = TimeoutsSerializer(source="time_limits", allow_null=True)


@extend_schema_serializer(component_name="UpdatePrivateEndpointParametersRequest")
class UpdateParametersSerializer(StrictSerializer):
    declared_parameters = _DeclaredField()


@extend_schema_serializer(component_name="UpdatePrivateEndpointPricingRequest")
class UpdatePricingSerializer(_PricedSerializer):
    pricing = PricingSerializer()
    lines = _LinesField(required=False, allow_null=True)


class _NamedSerializer(serializers.Serializer[PrivateEndpoint]):
    id = serializers.UUIDField()
    status = serializers.ChoiceField(choices=PrivateEndpoint.Status.choices)
    model_permaslug = serializers.CharField()
    model_slug = serializers.CharField(allow_null=True)
    model_name = serializers.CharField(allow_null=True)
    provider_name = serializers.CharField()


@extend_schema_serializer(component_name="PrivateEndpointSummary")
class SummarySerializer(_NamedSerializer):
    """An endpoint in a list."""

    created_at = serializers.DateTimeField()


@extend_schema_serializer(component_name="ManagedPrivateEndpoint")
class ManagedSerializer(SummarySerializer):
    """An endpoint after create, activate, enable or disable."""

    declared_zdr = serializers.BooleanField(allow_null=True)
    declared_region = serializers.ChoiceField(choices=Region.choices, allow_null=True)
    max_completion_tokens = serializers.IntegerField(
        required=False, help_text="The setting of that name; absent without a limit."
    )

    def to_representation(self, instance: PrivateEndpoint) -> dict[str, Any]:
        shape = super().to_representation(instance)
        if shape["max_completion_tokens"] is None:
            del shape["max_completion_tokens"]
        return shape


@extend_schema_serializer(component_name="PrivateEndpoint")
class FullSerializer(_NamedSerializer):
    """An endpoint with its configuration and price; the only shape without ``created_at``."""

    provider_slug = serializers.CharField(allow_null=True)
    upstream_model_id = serializers.CharField()
    base_url = serializers.CharField(allow_null=True)
    declared_zdr = serializers.BooleanField(allow_null=True)
    declared_region = serializers.ChoiceField(choices=Region.choices, allow_null=True)
    pricing = PricingSerializer(source="price.price")
    lines = LinesField(required=False)
    timeouts = TimeoutsSerializer(source="time_limits", required=False)
    settings = SettingsSerializer(source="*")
    declared_parameters = serializers.ListField(child=serializers.CharField())
    tested_parameters = serializers.ListField(
        child=serializers.CharField(), help_text="Those that validations have proven."
    )
    max_completion_tokens = serializers.IntegerField(
        allow_null=True, help_text="The setting of that name."
    )
    supported_parameters = serializers.ListField(
        child=serializers.CharField(),
        source="offered_parameters",
        help_text="Those of the model, those tested and those declared, less those that were "
        "disproved or are excluded.",
    )


@extend_schema_serializer(component_name="PrivateEndpointCheck")
class CheckSerializer(serializers.Serializer[dict[str, Any]]):
    name = serializers.CharField()
    passed = serializers.BooleanField()
    reason = serializers.ChoiceField(choices=[str(reason) for reason in Reason], required=False)
    upstream_status = serializers.IntegerField(required=False, min_value=400, max_value=599)
    upstream_message = serializers.CharField(required=False, allow_null=True)
    actual_model = serializers.CharField(required=False, allow_null=True)
    kind = serializers.ChoiceField(
        KINDS,
        required=False,
        help_text="Extension: why the deployment could not be reached, or its answer not be read.",
    )
    notes = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text="What the gateway repairs in the answers of the deployment; absent if nothing.",
    )

    def to_representation(self, instance: dict[str, Any]) -> dict[str, Any]:
        shape = super().to_representation(instance)
        return {name: value for name, value in shape.items() if value is not None}


@extend_schema_serializer(component_name="PrivateEndpointParameterCheck")
class ParameterCheckSerializer(serializers.Serializer[Any]):
    parameter = serializers.CharField()
    supported = serializers.BooleanField()


@extend_schema_serializer(component_name="PrivateEndpointValidation")
class ValidationSerializer(serializers.Serializer[Any]):
    passed = serializers.BooleanField()
    checks = CheckSerializer(many=True)
    operations = serializers.DictField(
        child=serializers.ChoiceField(choices=[str(Proof.PROVEN), str(Proof.REFUSED)]),
        required=False,
        help_text="Which operations of a model that has several the deployment serves; absent of a "
        "model that has one. Nothing is routed to one that it has refused.",
    )
    parameters = ParameterCheckSerializer(
        many=True,
        required=False,
        source="parameter_checks",
        help_text="Whether each parameter that was tried is supported; absent if none was to be "
        "tried, and empty if all of them were proven before.",
    )
    proofs = serializers.DictField(
        child=serializers.ChoiceField(choices=Proof.choices),
        required=False,
        source="parameters",
        help_text="Extension: what the answers have shown about each of them, and about pictures.",
    )

    def to_representation(self, instance: Any) -> dict[str, Any]:
        shape = super().to_representation(instance)
        if len(shape.get("operations") or ()) < 2:
            shape["operations"] = None
        return {name: value for name, value in shape.items() if value is not None}


@extend_schema_field(
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "field": {"type": "string"},
                "was": {},
                "is": {},
                "difference": {"type": "integer", "description": "Of two integers."},
            },
            "required": ["field", "was", "is"],
        },
    }
)
class _DifferencesField(_RawField):
    """What has changed, or what a watch has found different."""


@extend_schema_serializer(component_name="PrivateEndpointAttestation")
class AttestationSerializer(serializers.Serializer[Any]):
    declared_zdr = serializers.BooleanField(allow_null=True)
    declared_region = serializers.ChoiceField(choices=Region.choices, allow_null=True)


@extend_schema_serializer(component_name="PrivateEndpointHistoryEntry")
class HistorySerializer(serializers.Serializer[Any]):
    """Extension: something that happened to an endpoint; absent members do not apply."""

    at = serializers.DateTimeField()
    kind = serializers.ChoiceField(
        choices=["created", "changed", "attested", "validated", "watched"]
    )
    by = serializers.CharField(allow_null=True, help_text="Null if nobody is recorded.")
    changes = _DifferencesField(
        help_text="What has changed; of a validation, what differs from that of the activation."
    )
    drift = serializers.BooleanField(
        required=False, help_text="Whether a watch has found another deployment."
    )
    validation = ValidationSerializer(required=False)
    attestation = AttestationSerializer(required=False)

    def to_representation(self, instance: Any) -> dict[str, Any]:
        shape = super().to_representation(instance)
        return {name: value for name, value in shape.items() if value is not None or name == "by"}


@extend_schema_serializer(component_name="PrivateProvider")
class PrivateProviderSerializer(serializers.Serializer[PrivateProvider]):
    """An organization's own provider; its endpoints keep and train on nothing."""

    name = serializers.CharField()
    slug = serializers.CharField()
    display_name = serializers.CharField()
    base_url = serializers.CharField(allow_null=True)
    created_at = serializers.DateTimeField()
    keyless = serializers.BooleanField(
        source="is_keyless", help_text="Extension: its servers are sent no credential."
    )


@extend_schema_serializer(component_name="CreatePrivateProviderRequest")
class CreateProviderSerializer(StrictSerializer):
    name = StringField(max_length=64, pattern=f"^{NAME.pattern}$", help_text="Never changes.")
    slug = StringField(
        max_length=64,
        pattern=f"^{SLUG.pattern}$".replace(r"\Z", "$"),
        required=False,
        help_text="Never changes. By default the name in lower case, with hyphens.",
    )
    display_name = StringField(min_length=1, required=False)
    base_url = _AddressField(help_text="Of endpoints that have none of their own.")
    keyless = FlagField(source="is_keyless", required=False)


@extend_schema_serializer(component_name="UpdatePrivateProviderRequest")
class UpdateProviderSerializer(StrictSerializer):
    display_name = StringField(min_length=1, required=False)
    base_url = _AddressField()
    keyless = FlagField(source="is_keyless", required=False)


@extend_schema_serializer(component_name="DeletedPrivateProvider")
class _DeletedProviderSerializer(serializers.Serializer[Any]):
    slug = serializers.CharField()


ProviderListSerializer = envelope(
    "ListPrivateProvidersResponse", data=PrivateProviderSerializer(many=True)
)
ProviderResponseSerializer = envelope("PrivateProviderResponse", data=PrivateProviderSerializer())
DeletedProviderResponseSerializer = envelope(
    "DeletePrivateProviderResponse", data=_DeletedProviderSerializer()
)


@extend_schema_serializer(component_name="PrivateModel")
class OwnModelSerializer(serializers.Serializer[LanguageModel]):
    """Extension: a model that only its organization sees and calls."""

    slug = serializers.CharField()
    name = serializers.CharField()
    base_model = serializers.SerializerMethodField(
        help_text="The permanent slug of the model that it was made from."
    )
    context_length = serializers.IntegerField(allow_null=True)
    input_modalities = serializers.ListField(child=serializers.CharField())
    output_modalities = serializers.ListField(child=serializers.CharField())
    tokenizer = serializers.CharField(allow_null=True)
    supported_parameters = serializers.ListField(child=serializers.CharField())
    created_at = serializers.DateTimeField()

    def get_base_model(self, model: LanguageModel) -> str | None:
        return model.base_model or None


@extend_schema_serializer(component_name="CreatePrivateModelRequest")
class CreateOwnModelSerializer(StrictSerializer):
    slug = StringField(
        min_length=1,
        help_text="The organization's slug, a slash and a name. Never changes.",
    )
    name = StringField(min_length=1)
    base_model = _BaseModelField()


@extend_schema_serializer(component_name="UpdatePrivateModelRequest")
class UpdateOwnModelSerializer(StrictSerializer):
    name = StringField(required=False, min_length=1)
    base_model = _BaseModelField()


@extend_schema_serializer(component_name="DeletedPrivateModel")
class _DeletedOwnModelSerializer(serializers.Serializer[Any]):
    slug = serializers.CharField()


OwnModelListSerializer = envelope("ListPrivateModelsResponse", data=OwnModelSerializer(many=True))
OwnModelResponseSerializer = envelope("PrivateModelResponse", data=OwnModelSerializer())
DeletedOwnModelResponseSerializer = envelope(
    "DeletePrivateModelResponse", data=_DeletedOwnModelSerializer()
)


SummaryListSerializer = envelope("ListPrivateEndpointsResponse", data=SummarySerializer(many=True))


ManagedResponseSerializer = envelope("ManagedPrivateEndpointResponse", data=ManagedSerializer())
CreatedResponseSerializer = envelope(
    "CreatePrivateEndpointResponse",
    data=ManagedSerializer(),
    activation=serializers.ChoiceField(
        ["running"],
        required=False,
        help_text="Extension: the activation that the first request asked for still runs.",
    ),
)


@extend_schema_serializer(component_name="PrivateEndpointTraffic")
class TrafficSerializer(serializers.Serializer[Any]):
    """Extension: what happens to the traffic of an endpoint that serves no longer."""

    requests_last_hour = serializers.IntegerField(
        allow_null=True, help_text="Null if they cannot be counted in two seconds."
    )
    then = serializers.CharField(help_text="Where such requests go from now on, in sentences.")


DisabledResponseSerializer = envelope(
    "DisablePrivateEndpointResponse", data=ManagedSerializer(), traffic=TrafficSerializer()
)


FullResponseSerializer = envelope("PrivateEndpointResponse", data=FullSerializer())
UpdatedResponseSerializer = envelope(
    "UpdatePrivateEndpointResponse",
    data=FullSerializer(),
    cleared=serializers.ListField(
        child=serializers.ChoiceField(["declared_region", "declared_zdr"]),
        required=False,
        help_text="Extension: the declarations that the change has cleared; absent without any.",
    ),
)


HistoryResponseSerializer = list_envelope("PrivateEndpointHistoryResponse", HistorySerializer)


ValidationResponseSerializer = envelope(
    "PrivateEndpointValidationResponse", data=ValidationSerializer()
)


@extend_schema_serializer(component_name="DeletedPrivateEndpoint")
class DeletedSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()


DeletedResponseSerializer = envelope(
    "DeletePrivateEndpointResponse", data=DeletedSerializer(), traffic=TrafficSerializer()
)


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
