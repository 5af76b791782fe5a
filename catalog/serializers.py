"""The shapes of models, public endpoints and providers."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from drf_spectacular.utils import extend_schema_field, extend_schema_serializer, inline_serializer
from msgspec import Raw
from msgspec.json import encode
from rest_framework import serializers

from catalog import dialects
from catalog.abilities import Abilities, ToolChoice, read_abilities
from catalog.lists.listing import ListedModel
from catalog.lists.traffic import PERCENTILES, UNKNOWN, TrafficFigures
from catalog.models import LanguageModel, ModelAlias, ModelEndpoint, Provider
from catalog.models.aliases import MAX_TARGETS
from catalog.pricing import Price
from catalog.pricing.contract import render_lines, render_pricing
from config.api.fields import StrictSerializer, StringField, make_serializer
from config.api.openapi import ConstantField, envelope


def _texts(**kwargs: Any) -> serializers.ListField:
    return serializers.ListField(child=serializers.CharField(), **kwargs)


def _modalities() -> dict[str, Any]:
    return {"input_modalities": _texts(), "output_modalities": _texts()}


def _architecture(name: str, *, may_lack_tokenizer: bool) -> Any:
    """Returns the field with the architecture of a model, a component of this name."""
    members = {
        **_modalities(),
        "modality": serializers.CharField(allow_null=True),
        "tokenizer": serializers.CharField(allow_null=may_lack_tokenizer),
        "instruct_type": serializers.CharField(allow_null=True),
    }
    return inline_serializer(name, members, source="*")


@extend_schema_serializer(component_name="PricingOverride")
class OverrideSerializer(serializers.Serializer[Any]):
    """Rates under conditions, which must all hold; of several overrides, a later one wins."""

    min_prompt_tokens = serializers.IntegerField(required=False, help_text="Must be exceeded.")
    utc_start = serializers.IntegerField(required=False, help_text="400 means 04:00.")
    utc_end = serializers.IntegerField(required=False)
    utc_days = _texts(required=False)
    prompt = serializers.CharField(required=False)
    completion = serializers.CharField(required=False)
    input_cache_read = serializers.CharField(required=False)
    input_cache_write = serializers.CharField(required=False)
    input_cache_write_1h = serializers.CharField(required=False)
    audio = serializers.CharField(required=False)
    input_audio_cache = serializers.CharField(required=False)


@extend_schema_serializer(component_name="PriceLine")
class LineSerializer(serializers.Serializer[Any]):
    """A rate that the pricing object cannot say."""

    billable = serializers.CharField()
    unit = serializers.CharField()
    variant = serializers.CharField(required=False)
    price = serializers.CharField()
    most = serializers.IntegerField(
        required=False, help_text="The most units of one answer, where no request bounds them."
    )
    conditions = serializers.DictField(required=False)


@extend_schema_field(LineSerializer(many=True))
class LinesField(serializers.Field[Any, Any, Any, Any]):
    """The rates of an endpoint that its pricing object cannot say; absent if there are none."""

    def get_attribute(self, instance: Any) -> Any:
        if not (lines := render_lines(instance.price.price)):
            raise serializers.SkipField
        return lines

    def to_representation(self, value: Any) -> Any:
        return value


@extend_schema_serializer(component_name="PublicPricing")
class PublicPricingSerializer(serializers.Serializer[Price]):
    """USD per unit, as decimal strings."""

    prompt = serializers.CharField()
    completion = serializers.CharField()
    image = serializers.CharField(help_text="Per image of the prompt.")
    request = serializers.CharField()
    input_cache_read = serializers.CharField(required=False)
    input_cache_write = serializers.CharField(required=False)
    input_cache_write_1h = serializers.CharField(required=False)
    internal_reasoning = serializers.CharField(required=False)
    audio = serializers.CharField(required=False)
    audio_output = serializers.CharField(required=False)
    input_audio_cache = serializers.CharField(required=False)
    image_token = serializers.CharField(required=False, help_text="Per token of an image.")
    image_output = serializers.CharField(required=False, help_text="Per generated image.")
    web_search = serializers.CharField(required=False)
    discount = serializers.FloatField(required=False, help_text="Taken off every rate.")
    overrides = OverrideSerializer(many=True, required=False)

    def to_representation(self, instance: Price) -> dict[str, Any]:
        return render_pricing(instance)


_TOP_PROVIDER: Final[dict[str, Any]] = {
    "context_length": serializers.IntegerField(allow_null=True),
    "is_moderated": serializers.BooleanField(),
    "max_completion_tokens": serializers.IntegerField(allow_null=True),
}
_TARGET: Final[dict[str, Any]] = {"name": serializers.CharField(), "slug": serializers.CharField()}


@extend_schema_field({"type": "object"})
class _ObjectField(serializers.JSONField):
    """A stored JSON object, or null."""


@extend_schema_serializer(component_name="Model")
class ModelSerializer(serializers.Serializer[ListedModel]):
    """A model, with the price and limits of the offer that it is shown with."""

    id = serializers.CharField(source="slug")
    canonical_slug = serializers.CharField()
    name = serializers.CharField()
    created = serializers.IntegerField()
    description = serializers.CharField()
    context_length = serializers.IntegerField(allow_null=True)
    architecture = _architecture("ModelArchitecture", may_lack_tokenizer=False)
    pricing = PublicPricingSerializer(read_only=True)
    lines = LineSerializer(
        many=True, required=False, help_text="The rates that `pricing` cannot say, if any."
    )
    top_provider = inline_serializer("TopProviderInfo", _TOP_PROVIDER, read_only=True)
    supported_parameters = _texts()
    links = inline_serializer("ModelLinks", {"details": serializers.CharField()}, read_only=True)
    default_parameters = _ObjectField(allow_null=True)
    expiration_date = serializers.DateField(allow_null=True)
    knowledge_cutoff = serializers.DateField(allow_null=True)
    per_request_limits = _ObjectField(allow_null=True)
    supported_voices = _texts(allow_null=True)
    alias_target = inline_serializer(
        "ModelAliasTarget",
        _TARGET,
        required=False,
        help_text="The model that an alias stands for; absent for a model.",
    )

    def to_representation(self, instance: ListedModel) -> Any:
        # The fields only document the shape: a list has thousands of models, rendered in advance.
        model, offer, alias = instance
        if alias is None:
            return Raw(model.head + offer.terms)
        own = b'{"id":' + encode(model.slug)
        target = encode({"name": model.name, "slug": model.slug})
        return Raw(
            b'{"id":' + encode(alias) + model.head[len(own) :] + offer.terms[:-1]
            + b',"alias_target":' + target + b"}"
        )  # fmt: skip


@extend_schema_serializer(component_name="OpenAIModel")
class OpenAIModelSerializer(ModelSerializer):
    """A model with the two members that clients of OpenAI require besides."""

    object = serializers.ChoiceField(choices=("model",))
    owned_by = serializers.CharField(help_text="The author, which is the first part of the id.")

    def to_representation(self, instance: ListedModel) -> Any:
        author = instance.model.slug.partition("/")[0]
        members = encode({"object": "model", "owned_by": author})
        return Raw(members[:-1] + b"," + bytes(super().to_representation(instance))[1:])


ModelListSerializer = envelope(
    "ModelsListResponse",
    data=ModelSerializer(many=True),
    links=envelope("ModelsListResponseLinks", next=serializers.CharField(allow_null=True)),
    total_count=serializers.IntegerField(),
)

ModelResponseSerializer = envelope("ModelResponse", data=ModelSerializer())


ModelsCountSerializer = envelope(
    "ModelsCountResponse",
    data=envelope("ModelsCountResponseData", count=serializers.IntegerField()),
)


_PERCENTILES: Final = inline_serializer(
    "PercentileStats",
    {name: serializers.FloatField() for name in PERCENTILES},
    allow_null=True,
)
_TOOL_CHOICES: Final = envelope(
    "ToolChoiceSupport",
    **{name: serializers.BooleanField() for name in ToolChoice.__struct_fields__},
)


@extend_schema_serializer(component_name="PublicEndpoint")
class PublicEndpointSerializer(serializers.Serializer[ModelEndpoint]):
    """A public endpoint of the catalogue, with its recent figures.

    Latency, throughput and uptime are null for callers without a key and without enough traffic.
    The catalogue does not record native tools, service tier, implicit caching and diarization, so
    these are absent. `provider.only` and `provider.order` of an inference request accept `tag`.
    """

    name = serializers.SerializerMethodField()
    model_id = serializers.CharField(source="model.canonical_slug")
    model_name = serializers.CharField(source="model.name")
    provider_name = serializers.CharField(source="provider.name")
    tag = serializers.CharField(source="provider.slug")
    context_length = serializers.SerializerMethodField()
    max_completion_tokens = serializers.IntegerField(allow_null=True)
    max_prompt_tokens = serializers.SerializerMethodField()
    pricing = PublicPricingSerializer(source="price.price")
    lines = LinesField(required=False)
    quantization = serializers.CharField(allow_null=True)
    service_tier = ConstantField(None, {"type": ["string", "null"]})
    supported_parameters = serializers.SerializerMethodField(
        help_text="Its own list, or its model's where it has none, without what its format lacks."
    )
    supports_tool_choice = serializers.SerializerMethodField()
    abilities = make_serializer(Abilities, "EndpointAbilities")(
        required=False, help_text="Extension: what the endpoint states besides; absent of most."
    )
    supports_implicit_caching = ConstantField(False, {"type": "boolean"})
    supports_diarization = ConstantField(False, {"type": "boolean"})
    native_tools = ConstantField(
        {}, serializers.DictField(child=envelope("NativeTool", type=serializers.CharField()))
    )
    latency_last_30m = serializers.SerializerMethodField(help_text="Milliseconds; streams only.")
    throughput_last_30m = serializers.SerializerMethodField(help_text="Tokens per second.")
    uptime_last_5m = serializers.SerializerMethodField(help_text="Percent.")
    uptime_last_30m = serializers.SerializerMethodField(help_text="Percent.")
    uptime_last_1d = serializers.SerializerMethodField(help_text="Percent.")

    def to_representation(self, instance: ModelEndpoint) -> dict[str, Any]:
        shown = super().to_representation(instance)
        # Only what is stated, as it is stored.
        del shown["abilities"]
        return {**shown, "abilities": instance.abilities} if instance.abilities else shown

    def _figures(self, endpoint: ModelEndpoint) -> TrafficFigures:
        """Returns the figures of the endpoint from the context."""
        return self.context["figures"].get(endpoint.pk, UNKNOWN)

    def get_name(self, endpoint: ModelEndpoint) -> str:
        return f"{endpoint.provider.name} | {endpoint.model.canonical_slug}"

    def get_context_length(self, endpoint: ModelEndpoint) -> int:
        return endpoint.context_length or endpoint.model.context_length or 0

    def get_max_prompt_tokens(self, endpoint: ModelEndpoint) -> int | None:
        return read_abilities(endpoint.abilities).max_prompt_tokens

    def get_supported_parameters(self, endpoint: ModelEndpoint) -> list[str]:
        capabilities, listed = endpoint.model.capabilities, endpoint.listed_parameters
        return dialects.keep_sent(endpoint.provider.dialect, capabilities, listed)

    @extend_schema_field(_TOOL_CHOICES)
    def get_supports_tool_choice(self, endpoint: ModelEndpoint) -> Any:
        supported = self.get_supported_parameters(endpoint)
        is_chosen = "tool_choice" in supported
        stated = read_abilities(endpoint.abilities).tool_choice
        # Without a tool choice, the model decides whether to use the tools.
        listed = {"auto": is_chosen or "tools" in supported}
        return {
            name: listed.get(name, is_chosen) if value is None else value
            for name, value in msgspec.structs.asdict(stated).items()
        }

    @extend_schema_field(_PERCENTILES)
    def get_latency_last_30m(self, endpoint: ModelEndpoint) -> Any:
        return self._figures(endpoint).latency

    @extend_schema_field(_PERCENTILES)
    def get_throughput_last_30m(self, endpoint: ModelEndpoint) -> Any:
        return self._figures(endpoint).throughput

    def get_uptime_last_5m(self, endpoint: ModelEndpoint) -> float | None:
        return self._figures(endpoint).uptime_5m

    def get_uptime_last_30m(self, endpoint: ModelEndpoint) -> float | None:
        return self._figures(endpoint).uptime_30m

    def get_uptime_last_1d(self, endpoint: ModelEndpoint) -> float | None:
        return self._figures(endpoint).uptime_1d


EndpointListSerializer = envelope(
    "ListEndpointsZdrResponse", data=PublicEndpointSerializer(many=True)
)


@extend_schema_serializer(component_name="ModelEndpoints")
class ModelEndpointsSerializer(serializers.Serializer[LanguageModel]):
    """A model and its public endpoints."""

    id = serializers.CharField(source="slug")
    name = serializers.CharField()
    created = serializers.IntegerField()
    description = serializers.CharField()
    architecture = _architecture("ModelEndpointsArchitecture", may_lack_tokenizer=True)
    endpoints = serializers.SerializerMethodField()

    @extend_schema_field(PublicEndpointSerializer(many=True))
    def get_endpoints(self, model: LanguageModel) -> Any:
        endpoints: Any = self.context["endpoints"]
        return PublicEndpointSerializer(endpoints, many=True, context=self.context).data


ModelEndpointsResponseSerializer = envelope(
    "ListEndpointsEnvelope", data=ModelEndpointsSerializer()
)


@extend_schema_serializer(component_name="ListProvidersData")
class ProviderSerializer(serializers.Serializer[Provider]):
    """The public attributes of a provider."""

    name = serializers.CharField()
    slug = serializers.CharField()
    privacy_policy_url = serializers.CharField(allow_null=True)
    terms_of_service_url = serializers.CharField(allow_null=True)
    status_page_url = serializers.CharField(allow_null=True)
    headquarters = serializers.CharField(allow_null=True)
    datacenters = _texts()


ProviderListSerializer = envelope("ListProvidersResponse", data=ProviderSerializer(many=True))


@extend_schema_serializer(component_name="CapabilityDescriptor")
class _DescriptorSerializer(serializers.Serializer[Any]):
    """The values of a parameter (`enum`), its range, or only that it is accepted (`boolean`)."""

    type = serializers.ChoiceField(["enum", "range", "boolean"])
    values = _texts(required=False)
    min = serializers.FloatField(required=False)
    max = serializers.FloatField(required=False)


@extend_schema_serializer(component_name="ImageModelListItem")
class _ImageModelSerializer(serializers.Serializer[Any]):
    """A model that makes images, with the parameters that at least one endpoint supports."""

    id = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    created = serializers.IntegerField()
    architecture = inline_serializer("ImageModelArchitecture", _modalities())
    endpoints = serializers.CharField(help_text="The path of the list of its endpoints.")
    supported_parameters = serializers.DictField(child=_DescriptorSerializer())
    supports_streaming = serializers.BooleanField()


ImageModelListSerializer = envelope(
    "ImageModelsListResponse", data=_ImageModelSerializer(many=True)
)


@extend_schema_serializer(component_name="ImagePricingEntry")
class _ImagePriceSerializer(serializers.Serializer[Any]):
    billable = serializers.CharField()
    unit = serializers.CharField()
    variant = serializers.CharField(required=False, help_text="Size and quality of the image.")
    cost_usd = serializers.FloatField()


@extend_schema_serializer(component_name="ImageEndpoint")
class _ImageEndpointSerializer(serializers.Serializer[Any]):
    """An endpoint that makes images; rates under conditions are left out of its prices."""

    provider_name = serializers.CharField()
    provider_slug = serializers.CharField()
    provider_tag = serializers.CharField()
    supported_parameters = serializers.DictField(child=_DescriptorSerializer())
    supports_streaming = serializers.BooleanField()
    allowed_passthrough_parameters = _texts()
    pricing = _ImagePriceSerializer(many=True)


@extend_schema_serializer(component_name="ImageModelEndpointsResponse")
class ImageEndpointsSerializer(serializers.Serializer[Any]):
    """The public endpoints of an image model."""

    id = serializers.CharField()
    endpoints = _ImageEndpointSerializer(many=True)


_NAME_HELP: Final = "The name that callers send. One `*` stands for any text."
_TARGETS_HELP: Final = (
    "Names of models, with or without a variant. The first one is tried first, the others when it "
    "fails."
)


def _targets(**kwargs: Any) -> serializers.ListField:
    return serializers.ListField(
        child=StringField(min_length=1),
        min_length=1,
        max_length=MAX_TARGETS,
        help_text=_TARGETS_HELP,
        **kwargs,
    )


@extend_schema_serializer(component_name="CreateAliasRequest")
class CreateAliasSerializer(StrictSerializer):
    name = StringField(min_length=1, help_text=_NAME_HELP)
    targets = _targets()


@extend_schema_serializer(component_name="UpdateAliasRequest")
class UpdateAliasSerializer(StrictSerializer):
    """An absent field stays unchanged, and a list replaces the old list."""

    name = StringField(required=False, min_length=1, help_text=_NAME_HELP)
    targets = _targets(required=False)


@extend_schema_serializer(component_name="Alias")
class AliasSerializer(serializers.ModelSerializer[ModelAlias]):
    """Another name for a model, or for several that are tried in order."""

    targets = _texts(help_text=_TARGETS_HELP)

    class Meta:
        model = ModelAlias
        fields = ("id", "name", "targets", "created_at", "updated_at")


AliasResponseSerializer = envelope("AliasResponse", data=AliasSerializer())
AliasListSerializer = envelope(
    "AliasListResponse", data=AliasSerializer(many=True), total_count=serializers.IntegerField()
)
