"""The shapes of generations, activity and analytics."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from urllib.parse import urlsplit

from drf_spectacular.drainage import set_override
from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.models import Region
from catalog.dialects.base import Operation
from catalog.operations import API_TYPES, OPERATIONS
from catalog.pricing import split_cost, usd
from catalog.pricing.contract import describe_charges
from config.api.fields import (
    STORABLE,
    ChoiceField,
    FlagField,
    InstantField,
    IntegerField,
    StrictSerializer,
    StringField,
)
from config.api.openapi import ConstantField, envelope
from config.api.params import MAX_LIST
from config.api.text import CONTROL_CHARACTERS, NOT_STORABLE, parse_uuid
from inference.exchange.metadata import shown_status
from inference.models import Feedback, Generation
from inference.reports.analytics import (
    DEFAULT_LIMIT,
    DIMENSION_OPERATORS,
    DIMENSIONS,
    METRIC_OPERATORS,
    METRICS,
    OPERATORS,
    AnalyticsAnswer,
    Condition,
    Granularity,
)

_MAX_COMMENT: Final = 4096
_MAX_LIMIT: Final = 10_000
_MAX_RANGE: Final = timedelta(days=366)
# In a later year, the ids of generations would not be in the order of their time.
_FIRST_YEAR: Final = 1970
_LAST_YEAR: Final = 2285
_MAX_NUMBER: Final = 10**18
_MAX_DECIMALS: Final = 30
_SCALAR: Final = {"oneOf": [{"type": "string"}, {"type": "number"}]}


@extend_schema_serializer(component_name="ProviderResponse")
class _ProviderResponseSerializer(serializers.Serializer[Any]):
    """One attempt. Every attempt but the last failed."""

    status = serializers.IntegerField(allow_null=True)
    endpoint_id = serializers.CharField(required=False)
    is_byok = serializers.BooleanField(required=False)
    latency = serializers.IntegerField(required=False, help_text="Milliseconds.")
    model_permaslug = serializers.CharField(required=False)
    provider_name = serializers.CharField(required=False)


class _Absent(ConstantField):
    """A field that this service does not support: always null, of the type that clients know."""

    def __init__(self, kind: str) -> None:
        super().__init__(None, {"type": [kind, "null"]})


class _OptionalObject(serializers.Field[Any, Any, Any, Any]):
    """An object that ``find`` returns for a generation; absent where it returns none."""

    def __init__(self, find: Callable[[Generation], Any], **schema: Any) -> None:
        super().__init__(required=False)
        self._find = find
        set_override(self, "field", {"type": "object", **schema})

    def get_attribute(self, instance: Any) -> Any:
        if (found := self._find(instance)) is None:
            raise serializers.SkipField
        return found

    def to_representation(self, value: Any) -> Any:
        return value


@extend_schema_field({"type": "number", "format": "double"})
class _CostField(serializers.Field[Any, Any, Any, Any]):
    """An amount in nano-USD, shown in USD."""

    def __init__(self, source: str, help_text: str) -> None:
        super().__init__(source=source, help_text=help_text, read_only=True)

    def to_representation(self, value: int) -> float:
        return usd(value)


def _read_trace(generation: Generation) -> Any:
    """Returns the caller's own trace of the request."""
    return None if generation.trace is None else json.loads(generation.trace)


def _find_units(generation: Generation) -> Any:
    """Returns what was used besides tokens, for instance searches."""
    return generation.units or None


def _split_cost(generation: Generation) -> dict[str, Any] | None:
    """Returns the cost by rule of a price that has more than plain rates, and the reported one."""
    price, usage = generation.price.price, generation.usage
    details: dict[str, Any] = {}
    if usage is not None and generation.upstream_cost_nano and (price.rules or generation.units):
        costs = split_cost(price, usage, generation.instant)
        details = {
            "upstream_inference_cost": usd(costs.total),
            "upstream_inference_prompt_cost": usd(costs.prompt),
            "upstream_inference_completions_cost": usd(costs.completion),
            "rules": describe_charges(price, usage, generation.instant),
        }
    if generation.reported_cost_nano is not None:
        details["reported_cost"] = usd(generation.reported_cost_nano)
    return details or None


def _count_units(name: str) -> serializers.IntegerField:
    """Returns a field for what is no token: what was used of it, null for nothing."""
    return serializers.IntegerField(source=f"units.{name}", allow_null=True, read_only=True)


@extend_schema_serializer(component_name="GenerationAttestation")
class _AttestationSerializer(serializers.Serializer[Any]):
    """The organization's declarations about the private endpoint at the time of the request."""

    declared_zdr = serializers.BooleanField(allow_null=True)
    declared_region = serializers.ChoiceField(choices=Region.choices, allow_null=True)
    stated_at = serializers.DateTimeField()

    def get_attribute(self, instance: Any) -> Any:
        if instance.attestation is None or not instance.attestation.is_stated:
            raise serializers.SkipField
        return instance.attestation


@extend_schema_serializer(component_name="GenerationResponseData")
class GenerationSerializer(serializers.Serializer[Generation]):
    """The result of a request that has ended, without its text.

    Amounts are in USD, times in milliseconds; an unknown value is null. The context must contain
    ``permaslugs``, the models of the tried endpoints.
    """

    api_type = serializers.SerializerMethodField()
    app_id = _Absent("integer")
    cache_discount = _Absent("number")
    cancelled = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField()
    data_region = serializers.ChoiceField(Region.choices, source="region")
    external_user = serializers.CharField(source="end_user", allow_null=True)
    finish_reason = serializers.CharField(allow_null=True)
    generation_time = serializers.IntegerField(source="duration_ms", allow_null=True)
    http_referer = serializers.CharField(allow_null=True)
    id = serializers.CharField()
    is_byok = serializers.BooleanField()
    latency = serializers.IntegerField(source="latency_ms", allow_null=True)
    model = serializers.CharField()
    moderation_latency = _Absent("number")
    native_finish_reason = serializers.CharField(allow_null=True)
    native_tokens_cached = serializers.IntegerField(source="cached_tokens", allow_null=True)
    native_tokens_completion = serializers.IntegerField(source="completion_tokens", allow_null=True)
    native_tokens_completion_images = _count_units("image_output")
    native_tokens_prompt = serializers.IntegerField(source="prompt_tokens", allow_null=True)
    native_tokens_reasoning = serializers.IntegerField(source="reasoning_tokens", allow_null=True)
    num_fetches = _Absent("integer")
    num_input_audio_prompt = _Absent("integer")
    num_media_completion = _count_units("output_images")
    num_media_prompt = _count_units("images")
    num_search_results = _Absent("integer")
    origin = serializers.SerializerMethodField(help_text="The origin of the referer, or empty.")
    preset_id = serializers.CharField(allow_null=True)
    provider_name = serializers.CharField(allow_null=True)
    provider_responses = serializers.SerializerMethodField()
    router = _Absent("string")
    service_tier = _Absent("string")
    streamed = serializers.BooleanField(allow_null=True)
    tokens_completion = serializers.IntegerField(source="completion_tokens", allow_null=True)
    tokens_prompt = serializers.IntegerField(source="prompt_tokens", allow_null=True)
    total_cost = _CostField("cost_nano", "The amount that credits paid.")
    upstream_id = serializers.CharField(allow_null=True)
    upstream_inference_cost = _CostField(
        "upstream_cost_nano",
        "The cost of the usage at the endpoint's price, whether or not credits paid it.",
    )
    usage = _CostField("cost_nano", "Equals `total_cost`.")
    user_agent = serializers.CharField(allow_null=True)
    web_search_engine = _Absent("string")
    workspace_id = serializers.CharField(allow_null=True)
    request_id = serializers.SerializerMethodField()
    response_cache_source_id = serializers.CharField(
        source="cached_from",
        allow_null=True,
        help_text="The generation whose answer was given again, from the response cache.",
    )
    retry_of = serializers.CharField(
        allow_null=True,
        help_text="The generation that the caller's SDK has sent again, as far as a worker knows.",
    )
    session_id = serializers.CharField(allow_null=True)
    trace = _OptionalObject(_read_trace, additionalProperties=True)
    units = _OptionalObject(_find_units)
    cost_details = _OptionalObject(_split_cost)
    attestation = _AttestationSerializer(required=False)

    @extend_schema_field({"type": "string", "enum": [*API_TYPES]})
    def get_api_type(self, generation: Generation) -> str:
        return OPERATIONS[Operation(generation.operation)].api_type

    def get_cancelled(self, generation: Generation) -> bool:
        return generation.status == Generation.Status.CANCELLED

    def get_origin(self, generation: Generation) -> str:
        return _origin(generation.http_referer or "")

    @extend_schema_field(_ProviderResponseSerializer(many=True))
    def get_provider_responses(self, generation: Generation) -> list[dict[str, Any]]:
        return [self._attempt(attempt) for attempt in generation.attempts]

    def get_request_id(self, generation: Generation) -> str | None:
        return generation.request_id or None

    def _attempt(self, attempt: dict[str, Any]) -> dict[str, Any]:
        shown = {
            "status": shown_status(attempt),
            "endpoint_id": attempt["endpoint_id"],
            "is_byok": attempt["is_byok"],
            "latency": attempt["latency_ms"],
            "provider_name": attempt["provider"],
        }
        # The endpoint may be gone from the catalogue, and clients refuse null in an optional field.
        if name := self.context["permaslugs"].get(attempt["endpoint_id"]):
            shown["model_permaslug"] = name
        return shown


GenerationResponseSerializer = envelope("GenerationResponse", data=GenerationSerializer())


@extend_schema_serializer(component_name="GenerationContentErrorAttempt")
class _FailureSerializer(serializers.Serializer[Any]):
    """The error of a candidate that was tried before."""

    code = serializers.IntegerField()
    message = serializers.CharField()
    provider_name = serializers.CharField(allow_null=True)
    raw = serializers.CharField(allow_null=True, help_text="Always null.")


@extend_schema_serializer(component_name="GenerationContentError")
class _ContentErrorSerializer(serializers.Serializer[Any]):
    status = serializers.IntegerField(allow_null=True)
    message = serializers.CharField(allow_null=True)
    provider_name = serializers.CharField(allow_null=True)
    raw = serializers.CharField(allow_null=True, help_text="Always null.")
    previous_errors = _FailureSerializer(many=True)


@extend_schema_serializer(component_name="GenerationContentDataOutput")
class _OutputSerializer(serializers.Serializer[Any]):
    completion = serializers.CharField(allow_null=True)
    reasoning = serializers.CharField(allow_null=True)
    tool_calls = serializers.ListField(
        child=serializers.DictField(),
        required=False,
        help_text="Extension: the calls of tools, if there are any.",
    )


@extend_schema_serializer(component_name="GenerationContentData")
class _ContentSerializer(serializers.Serializer[Any]):
    """What is stored of a request and of its answer."""

    input = serializers.DictField(help_text="Has `prompt`, or `messages`.")
    output = _OutputSerializer()
    error = _ContentErrorSerializer(allow_null=True, help_text="Null for a success.")
    is_truncated = serializers.BooleanField(
        help_text="Extension: a side is longer than the 1 MiB that is stored."
    )


ContentResponseSerializer = envelope("GenerationContentResponse", data=_ContentSerializer())
ContentDeletedSerializer = envelope(
    "GenerationContentDeleted", deleted=serializers.BooleanField(help_text="Always true.")
)


class _CommentField(StringField):
    """A text that may have several lines."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        if NOT_STORABLE.search(data):
            raise ValidationError("Must not contain NUL or lone surrogates.")
        return data


@extend_schema_serializer(component_name="SubmitGenerationFeedbackRequest")
class FeedbackSerializer(StrictSerializer):
    category = ChoiceField(choices=Feedback.Category.choices)
    generation_id = StringField()
    comment = _CommentField(
        required=False, allow_blank=True, max_length=_MAX_COMMENT, pattern=STORABLE
    )


@extend_schema_serializer(component_name="SubmitGenerationFeedbackResponseData")
class _FeedbackResultSerializer(serializers.Serializer[Any]):
    success = serializers.BooleanField()


FeedbackResponseSerializer = envelope(
    "SubmitGenerationFeedbackResponse", data=_FeedbackResultSerializer()
)


@extend_schema_serializer(component_name="ActivityItem")
class ActivitySerializer(serializers.Serializer[dict[str, Any]]):
    """The usage of one model at one endpoint on one UTC day; amounts are in USD."""

    byok_usage_inference = _CostField("byok_nano", "Spent by own credentials.")
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    date = serializers.DateField()
    endpoint_id = serializers.CharField()
    model = serializers.CharField()
    model_permaslug = serializers.CharField()
    prompt_tokens = serializers.IntegerField()
    provider_name = serializers.CharField()
    reasoning_tokens = serializers.IntegerField()
    requests = serializers.IntegerField()
    usage = _CostField("cost_nano", "Credits spent.")
    workspace_id = serializers.CharField(
        required=False, help_text="Only with `group_by=workspace`."
    )
    external_user = serializers.CharField(
        source="end_user",
        required=False,
        allow_null=True,
        help_text="Only with `group_by=end_user`, an extension.",
    )

    def to_representation(self, instance: dict[str, Any]) -> Any:
        shown = super().to_representation(instance)
        if "end_user" not in instance:
            del shown["external_user"]
        return shown


ActivityResponseSerializer = envelope("ActivityResponse", data=ActivitySerializer(many=True))


@extend_schema_serializer(component_name="AnalyticsDimension")
class _DimensionSerializer(serializers.Serializer[Any]):
    display_label = serializers.CharField()
    name = serializers.CharField()


@extend_schema_serializer(component_name="AnalyticsGranularity")
class _GranularitySerializer(_DimensionSerializer):
    pass


@extend_schema_serializer(component_name="AnalyticsMetric")
class _MetricSerializer(serializers.Serializer[Any]):
    display_format = serializers.CharField()
    display_label = serializers.CharField()
    is_rate = serializers.BooleanField()
    name = serializers.CharField()


@extend_schema_serializer(component_name="AnalyticsOperator")
class _OperatorSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    value_type = serializers.CharField()


@extend_schema_serializer(component_name="GetAnalyticsMetaData")
class MetaSerializer(serializers.Serializer[Any]):
    dimensions = _DimensionSerializer(many=True)
    granularities = _GranularitySerializer(many=True)
    metrics = _MetricSerializer(many=True)
    operators = _OperatorSerializer(many=True)


MetaResponseSerializer = envelope("GetAnalyticsMetaResponse", data=MetaSerializer())


@extend_schema_field({"oneOf": [*_SCALAR["oneOf"], {"type": "array", "items": _SCALAR}]})
class _ValueField(serializers.Field[Any, Any, Any, Any]):
    """A string, a number or a list of them, as the operator of the filter requires."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, list):
            if not 1 <= len(data) <= MAX_LIST:
                raise ValidationError(f"Must have 1 to {MAX_LIST} items.")
            return [self._scalar(item) for item in data]
        return self._scalar(data)

    def _scalar(self, data: Any) -> str | Decimal:
        if isinstance(data, str):
            if len(data) > 512 or NOT_STORABLE.search(data):
                raise ValidationError("Must be a text of at most 512 characters, without NUL.")
            return data
        if isinstance(data, int | Decimal) and not isinstance(data, bool):
            number = Decimal(data)
            exponent = number.as_tuple().exponent
            is_small = -_MAX_NUMBER <= number <= _MAX_NUMBER
            if not is_small or not isinstance(exponent, int):
                raise ValidationError(f"Must be from {-_MAX_NUMBER} to {_MAX_NUMBER}.")
            if exponent < -_MAX_DECIMALS:
                raise ValidationError(f"Must have at most {_MAX_DECIMALS} decimals.")
            # A zero may have any exponent.
            return number or Decimal(0)
        raise ValidationError("Must be a string, a number or a list of them.")


@extend_schema_serializer(component_name="AnalyticsFilter")
class _FilterSerializer(StrictSerializer):
    """A condition on a dimension of generations, or on a metric of the rows of the result."""

    field = ChoiceField(choices=[*DIMENSIONS, *METRICS])
    operator = ChoiceField(choices=list(OPERATORS))
    value = _ValueField()
    include_unset = FlagField(
        required=False,
        help_text="With `in` and `not_in` on a dimension: also rows without a value.",
    )

    def validate(self, attrs: dict[str, Any]) -> Any:
        found = Condition(**attrs)
        is_metric = found.field in METRICS
        allowed = METRIC_OPERATORS if is_metric else DIMENSION_OPERATORS
        if found.operator not in allowed:
            raise ValidationError({"operator": f"For this field, use {', '.join(allowed)}."})
        if isinstance(found.value, list) != (OPERATORS[found.operator] == "array"):
            raise ValidationError(
                {"value": f"Must be {_describe_value(found.operator)} for this operator."}
            )
        values = found.value if isinstance(found.value, list) else [found.value]
        kind, name = (Decimal, "a number") if is_metric else (str, "text")
        if not all(isinstance(value, kind) for value in values):
            raise ValidationError({"value": f"Must be {name} for this field."})
        is_uuid = not is_metric and DIMENSIONS[found.field].is_uuid
        if is_uuid and not all(map(parse_uuid, values)):
            raise ValidationError({"value": "Must be a UUID for this field."})
        if found.include_unset and found.operator not in ("in", "not_in"):
            raise ValidationError({"include_unset": "Needs the operator in or not_in."})
        return found


def _describe_value(operator: str) -> str:
    return "a list" if OPERATORS[operator] == "array" else "one value"


class _NamesField(serializers.ListField):
    """Some of these names, each at most once."""

    def __init__(self, names: list[str], **options: Any) -> None:
        super().__init__(child=ChoiceField(choices=names), max_length=len(names), **options)

    def run_validation(self, data: Any = serializers.empty) -> Any:
        given = super().run_validation(data)
        if len(set(given)) != len(given):
            raise ValidationError("Must not name one twice.")
        return given


@extend_schema_serializer(component_name="AnalyticsOrderBy")
class _OrderSerializer(StrictSerializer):
    """Sorts by a requested metric or dimension, `request_count`, or `date` with a granularity."""

    direction = ChoiceField(choices=["asc", "desc"])
    field = StringField()


class _MomentField(InstantField):
    """A moment at which there can be generations."""

    def to_internal_value(self, value: Any) -> datetime:
        moment = super().to_internal_value(value)
        if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
            raise ValidationError(f"Must be in a year from {_FIRST_YEAR} to {_LAST_YEAR}.")
        return moment


@extend_schema_serializer(component_name="AnalyticsTimeRange")
class _TimeRangeSerializer(StrictSerializer):
    """At most 366 days."""

    end = _MomentField(help_text="Exclusive.")
    start = _MomentField()

    def validate(self, attrs: dict[str, Any]) -> Any:
        if not timedelta() < attrs["end"] - attrs["start"] <= _MAX_RANGE:
            raise ValidationError(
                {"end": f"Must be after start, by {_MAX_RANGE.days} days at most."}
            )
        return attrs


@extend_schema_serializer(component_name="QueryAnalyticsRequestBody")
class QuerySerializer(StrictSerializer):
    """A query. `GET /analytics/meta` lists the names; the default range is the last 30 days."""

    metrics = _NamesField(list(METRICS), allow_empty=False)
    dimensions = _NamesField(list(DIMENSIONS), required=False)
    filters = serializers.ListField(child=_FilterSerializer(), required=False, max_length=MAX_LIST)
    granularity = ChoiceField(choices=[item.value for item in Granularity], required=False)
    group_limit = IntegerField(
        required=False,
        min_value=1,
        max_value=_MAX_LIMIT,
        help_text="The largest number of rows for each combination of dimensions.",
    )
    limit = IntegerField(required=False, default=DEFAULT_LIMIT, min_value=1, max_value=_MAX_LIMIT)
    order_by = _OrderSerializer(required=False)
    time_range = _TimeRangeSerializer(required=False)

    def validate(self, attrs: dict[str, Any]) -> Any:
        if (order := attrs.get("order_by")) is not None:
            choices = {*attrs["metrics"], *attrs.get("dimensions", ()), "request_count"}
            if "granularity" in attrs:
                choices.add("date")
            if order["field"] not in choices:
                raise ValidationError(
                    {
                        "order_by": {
                            "field": "Must be a requested metric or dimension, request_count, or "
                            "date where there is a granularity."
                        }
                    }
                )
        return attrs


def _origin(referer: str) -> str:
    """Returns the scheme and the host of a URL, an empty text for anything else."""
    if CONTROL_CHARACTERS.search(referer):
        return ""
    try:
        parts = urlsplit(referer)
    except ValueError:
        return ""
    # A name and a password in the URL must not be shown.
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}" if parts.scheme and host else ""


@extend_schema_serializer(component_name="AnalyticsQueryMetadata")
class _MetadataSerializer(serializers.Serializer[Any]):
    query_time_ms = serializers.FloatField()
    row_count = serializers.IntegerField()
    truncated = serializers.BooleanField()


@extend_schema_serializer(component_name="AnalyticsResult")
class AnswerSerializer(serializers.Serializer[AnalyticsAnswer]):
    """Rows with a member for each metric and dimension, and `date` with a granularity."""

    data = serializers.ListField(child=serializers.DictField())  # type: ignore[assignment]
    metadata = _MetadataSerializer()
    warnings = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="What the rows lack."
    )

    def to_representation(self, instance: AnalyticsAnswer) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "data": instance.rows,
            "metadata": {
                "query_time_ms": instance.query_time_ms,
                "row_count": len(instance.rows),
                "truncated": instance.is_truncated,
            },
        }
        return {**shown, "warnings": instance.warnings} if instance.warnings else shown


AnswerResponseSerializer = envelope("QueryAnalyticsResponse", data=AnswerSerializer())
