"""The shapes of routing explanations."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from catalog.aliases.resolution import Origin
from config.api.openapi import envelope
from inference.routing.health import HealthState


class _PriceSerializer(serializers.Serializer[Any]):
    prompt = serializers.CharField(help_text="USD per token.")
    completion = serializers.CharField(help_text="USD per token.")
    request = serializers.CharField(help_text="USD per request.")
    image = serializers.CharField(help_text="USD per image.")


class _HealthSerializer(serializers.Serializer[Any]):
    state = serializers.ChoiceField([state.value for state in HealthState])
    failure_share = serializers.FloatField(help_text="Share of failures in the last minute.")
    latency = serializers.DictField(
        child=serializers.FloatField(), allow_null=True, help_text="Percentiles, in milliseconds."
    )
    throughput = serializers.DictField(
        child=serializers.FloatField(), allow_null=True, help_text="In tokens per second."
    )


class _CandidateSerializer(serializers.Serializer[Any]):
    order = serializers.IntegerField(help_text="From 1, the candidate that is tried first.")
    provider = serializers.CharField()
    endpoint_id = serializers.UUIDField()
    private = serializers.BooleanField()
    model = serializers.CharField()
    is_byok = serializers.BooleanField()
    price = _PriceSerializer()
    worst_case_cost = serializers.FloatField(help_text="At this price, in USD.")
    health = _HealthSerializer()


class _ExcludedSerializer(serializers.Serializer[Any]):
    provider = serializers.CharField()
    private = serializers.BooleanField()
    model = serializers.CharField()
    excluded_by = serializers.ListField(child=serializers.CharField())


class _NeedsSerializer(serializers.Serializer[Any]):
    input_modalities = serializers.ListField(
        child=serializers.CharField(), help_text="Of the prompt's media; text is not named."
    )
    output_modalities = serializers.ListField(
        child=serializers.CharField(), help_text="The request's `modalities`."
    )
    least_prompt_tokens = serializers.IntegerField(
        help_text="A low estimate: an endpoint with a shorter context is excluded."
    )
    max_tokens = serializers.IntegerField(allow_null=True)


class _PolicySerializer(serializers.Serializer[Any]):
    allowed_providers = serializers.ListField(child=serializers.CharField(), allow_null=True)
    ignored_providers = serializers.ListField(child=serializers.CharField())
    allowed_models = serializers.ListField(child=serializers.CharField(), allow_null=True)
    ignored_models = serializers.ListField(child=serializers.CharField())
    zdr = serializers.ListField(
        child=serializers.CharField(),
        help_text="Model families whose endpoints must not retain data.",
    )
    data_collection = serializers.ChoiceField(["allow", "deny"])
    served_in = serializers.ListField(child=serializers.CharField(), allow_null=True)


class _ResolutionSerializer(serializers.Serializer[Any]):
    """The meaning of a name that is no model's own."""

    origin = serializers.ChoiceField(
        [origin.value for origin in Origin],
        help_text="An alias of the organization or of the operator, the newest model of a family, "
        "or another spelling.",
    )
    alias = serializers.CharField(allow_null=True, help_text="Null for a spelling.")
    targets = serializers.ListField(child=serializers.CharField())


class ExplanationSerializer(serializers.Serializer[Any]):
    """The route of a request, and the reasons why other endpoints are excluded."""

    requested = serializers.CharField(help_text="The first name of the request.")
    model = serializers.CharField(help_text="The model that would be tried first.")
    resolution = _ResolutionSerializer(
        allow_null=True, help_text="Null if `requested` is the name of a model."
    )
    candidates = _CandidateSerializer(many=True)
    excluded = _ExcludedSerializer(many=True)
    needs = _NeedsSerializer(help_text="What an endpoint must support to serve the request.")
    budget = serializers.DictField(
        allow_null=True, help_text="The budget or the balance that would refuse the request."
    )
    policy = _PolicySerializer()


ExplanationResponseSerializer = envelope("ExplanationResponse", data=ExplanationSerializer())
