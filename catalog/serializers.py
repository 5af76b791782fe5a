"""The shapes of models in lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from catalog.models import LanguageModel
from catalog.pricing import Price
from config.openapi import envelope


@dataclass(frozen=True, slots=True)
class Offer:
    """What the first endpoint that a caller may use offers for a model."""

    price: Price
    context_length: int | None
    max_completion_tokens: int | None
    is_moderated: bool


@extend_schema_serializer(component_name="ModelArchitecture")
class _ArchitectureSerializer(serializers.Serializer[Any]):
    input_modalities = serializers.ListField(child=serializers.CharField())
    output_modalities = serializers.ListField(child=serializers.CharField())
    modality = serializers.CharField(allow_null=True)
    tokenizer = serializers.CharField()
    instruct_type = serializers.CharField(allow_null=True)

    def to_representation(self, instance: Any) -> dict[str, Any]:
        shape = super().to_representation(instance)
        # Public clients refuse null here, and have this name for a tokenizer that is not known.
        return {**shape, "tokenizer": shape["tokenizer"] or "Other"}


@extend_schema_serializer(component_name="PublicPricing")
class PublicPricingSerializer(serializers.Serializer[Price]):
    """USD per unit, as decimal strings."""

    prompt = serializers.CharField()
    completion = serializers.CharField()
    image = serializers.CharField()
    request = serializers.CharField()
    input_cache_read = serializers.CharField(required=False)
    input_cache_write = serializers.CharField(required=False)

    def to_representation(self, instance: Price) -> dict[str, str]:
        rates = {
            "prompt": instance.text("prompt"),
            "completion": instance.text("completion"),
            "image": instance.text("image"),
            "request": instance.text("request"),
        }
        if instance.cache_read is not None:
            rates["input_cache_read"] = instance.text("cache_read")
        if instance.cache_write is not None:
            rates["input_cache_write"] = instance.text("cache_write")
        return rates


@extend_schema_serializer(component_name="TopProviderInfo")
class _TopProviderSerializer(serializers.Serializer[Offer]):
    context_length = serializers.IntegerField(allow_null=True)
    is_moderated = serializers.BooleanField()
    max_completion_tokens = serializers.IntegerField(allow_null=True)


@extend_schema_serializer(component_name="ModelLinks")
class _LinksSerializer(serializers.Serializer[Any]):
    details = serializers.CharField()


@extend_schema_field({"type": "object"})
class _ObjectField(serializers.JSONField):
    """A JSON object as it is stored, or null."""


@extend_schema_serializer(component_name="Model")
class ModelSerializer(serializers.Serializer[LanguageModel]):
    """A model as the caller sees it: with the price and limits of the first :class:`Offer`.

    Needs ``offers`` in its context: an offer for each model's key.
    """

    id = serializers.CharField(source="slug")
    canonical_slug = serializers.CharField()
    name = serializers.CharField()
    created = serializers.IntegerField()
    description = serializers.CharField()
    context_length = serializers.IntegerField(allow_null=True)
    architecture = _ArchitectureSerializer(source="*")
    pricing = serializers.SerializerMethodField()
    top_provider = serializers.SerializerMethodField()
    supported_parameters = serializers.ListField(child=serializers.CharField())
    links = serializers.SerializerMethodField()
    default_parameters = _ObjectField(allow_null=True)
    expiration_date = serializers.DateField(allow_null=True)
    knowledge_cutoff = serializers.DateField(allow_null=True)
    per_request_limits = _ObjectField(allow_null=True)
    supported_voices = serializers.ListField(child=serializers.CharField(), allow_null=True)

    def _offer(self, model: LanguageModel) -> Offer:
        offer: Offer = self.context["offers"][model.pk]
        return offer

    @extend_schema_field(PublicPricingSerializer)
    def get_pricing(self, model: LanguageModel) -> Any:
        return PublicPricingSerializer(self._offer(model).price).data

    @extend_schema_field(_TopProviderSerializer)
    def get_top_provider(self, model: LanguageModel) -> Any:
        return _TopProviderSerializer(self._offer(model)).data

    @extend_schema_field(_LinksSerializer)
    def get_links(self, model: LanguageModel) -> Any:
        return {"details": f"/api/v1/models/{model.canonical_slug}/endpoints"}


@extend_schema_serializer(component_name="ModelsListResponseLinks")
class _PageLinksSerializer(serializers.Serializer[Any]):
    next = serializers.CharField(allow_null=True)


ModelListSerializer = envelope(
    "ModelsListResponse",
    data=ModelSerializer(many=True),
    links=_PageLinksSerializer(),
    total_count=serializers.IntegerField(),
)
