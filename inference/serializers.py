"""The shapes of routing explanations."""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers

from catalog.aliases.resolution import Origin
from config.api.openapi import envelope
from inference.routing.health import HealthState
from inference.texts.rules import Obstacle

HEALTH_STATES: Final = [state.value for state in HealthState]


class _PriceSerializer(serializers.Serializer[Any]):
    prompt = serializers.CharField(help_text="USD per token.")
    completion = serializers.CharField(help_text="USD per token.")
    request = serializers.CharField(help_text="USD per request.")
    image = serializers.CharField(help_text="USD per image.")


class _HealthSerializer(serializers.Serializer[Any]):
    state = serializers.ChoiceField(HEALTH_STATES)
    failure_share = serializers.FloatField(help_text="Share of failures in the last minute.")
    latency = serializers.DictField(
        child=serializers.FloatField(), allow_null=True, help_text="Percentiles, in milliseconds."
    )
    throughput = serializers.DictField(
        child=serializers.FloatField(), allow_null=True, help_text="In tokens per second."
    )


class _PoolSerializer(serializers.Serializer[Any]):
    priority = serializers.IntegerField(help_text="The highest serves first.")
    weight = serializers.IntegerField()
    share = serializers.FloatField(
        help_text="The weight, of the weights of all candidates of this priority; 0 if excluded."
    )
    in_flight = serializers.IntegerField(help_text="Requests that run there now, over all workers.")
    max_in_flight = serializers.IntegerField(allow_null=True)


class _BoundSerializer(serializers.Serializer[Any]):
    """The most that a request may use, in tokens; the hold is this at the highest rates."""

    tokenizer = serializers.CharField(help_text="The row of the table of tokenizers.")
    text = serializers.IntegerField(help_text="Of the request's own text, tools among it.")
    added = serializers.IntegerField(help_text="What the provider adds to it.")
    media = serializers.IntegerField()
    results = serializers.IntegerField(help_text="Of searches, which join the prompt.")
    choices = serializers.IntegerField(help_text="How many answers there are.")
    answer = serializers.IntegerField(help_text="Of each.")
    thought = serializers.IntegerField(help_text="Of each, beside its answer.")
    units = serializers.DictField(
        child=serializers.IntegerField(), help_text="What is not counted in tokens."
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
    bound = _BoundSerializer(help_text="Extension: what the worst case consists of.")
    health = _HealthSerializer()
    pool = _PoolSerializer(
        required=False, help_text="Extension: of a private endpoint that states `routing`."
    )
    drifted_at = serializers.DateTimeField(
        required=False, help_text="Extension: since when a private endpoint answers otherwise."
    )


class _ExcludedSerializer(serializers.Serializer[Any]):
    provider = serializers.CharField()
    private = serializers.BooleanField()
    model = serializers.CharField()
    excluded_by = serializers.ListField(child=serializers.CharField())
    pool = _PoolSerializer(required=False)


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


class _BroadcastSerializer(serializers.Serializer[Any]):
    """A destination of the workspace that takes the generations of the key and the region."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    type = serializers.CharField()
    host = serializers.CharField()
    sampling_rate = serializers.FloatField()
    is_filtered = serializers.BooleanField(
        help_text="Filter rules decide, once the generation has ended."
    )


class _LoggingSerializer(serializers.Serializer[Any]):
    """Whether the input and the output of such a request would be stored."""

    is_logged = serializers.BooleanField(
        help_text="True also if only a sample of such requests is stored."
    )
    reason = serializers.ChoiceField(
        [reason.value for reason in Obstacle],
        allow_null=True,
        help_text="Why they are not stored.",
    )
    sampling_rate = serializers.FloatField(help_text="The part of them that is stored.")
    retention_days = serializers.IntegerField(
        help_text="After this many days a stored text is deleted."
    )


class _ShadowSerializer(serializers.Serializer[Any]):
    guardrail_id = serializers.CharField()
    would_refuse = serializers.CharField(
        allow_null=True,
        help_text="Such as `budget` or `provider_ignored`; null if it would not refuse.",
    )


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
    shadows = _ShadowSerializer(
        many=True, help_text="The shadows of guardrails, which count what they would refuse."
    )
    policy = _PolicySerializer()
    broadcast = _BroadcastSerializer(
        many=True, help_text="Who may be sent the metadata of the request, never its texts."
    )
    io_logging = _LoggingSerializer()


ExplanationResponseSerializer = envelope("ExplanationResponse", data=ExplanationSerializer())
