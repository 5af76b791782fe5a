"""The shape of rate limits, which keys, workspaces and end users share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db.models import Q
from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.models import MOST_RATE, RateLimit
from catalog.models import LanguageModel
from config.api.fields import IntegerField, StrictSerializer

_MOST_MODELS: Final = 1000


def _rate_field(text: str) -> IntegerField:
    return IntegerField(
        min_value=1,
        max_value=MOST_RATE,
        required=False,
        allow_null=True,
        help_text=f"{text} Null for no limit.",
    )


@extend_schema_serializer(component_name="ModelRateLimits")
class ModelRateLimitsSerializer(StrictSerializer):
    """The limits of the requests to one model."""

    requests_per_minute = _rate_field("Requests that begin in a minute of the clock.")
    tokens_per_minute = _rate_field("Prompt and completion tokens in a minute of the clock.")
    requests_per_day = _rate_field("Requests that begin on a day in UTC.")
    concurrent_requests = _rate_field("Requests that run at the same time.")


@extend_schema_serializer(component_name="RateLimits")
class RateLimitsSerializer(ModelRateLimitsSerializer):
    """The limits of all requests, and of those to single models by slug.

    In a request, an absent member stays unchanged and `null` removes a limit. The operator may have
    set a highest value for a limit: a higher one is refused with 422, and `null` returns to it.
    """

    models = serializers.DictField(
        child=ModelRateLimitsSerializer(allow_null=True),
        required=False,
        allow_null=True,
        help_text="Limits of the requests to one model; null instead of an object removes them.",
    )

    def validate_models(self, models: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Refuses names that no model has, because such a limit would limit nothing."""
        if not models:
            return models
        if len(models) > _MOST_MODELS:
            raise ValidationError(f"Must name at most {_MOST_MODELS:,} models.")
        added = {name for name, limits in models.items() if limits is not None}
        visible = LanguageModel.objects.visible_to(self.context.get("organization_id"))
        listed = visible.filter(Q(slug__in=added) | Q(canonical_slug__in=added))
        known = {name for names in listed.values_list("slug", "canonical_slug") for name in names}
        unknown = added - known
        if unknown and (find_row := self.context.get("find_row")) is not None:
            # What has limits already may have left the catalogue since.
            owner = find_row().limit_owner
            unknown.difference_update(RateLimit.objects.describe([owner])[owner]["models"])
        if unknown:
            raise ValidationError(
                {name[:100]: ["No model has this slug."] for name in sorted(unknown)[:10]}
            )
        return models


class RateLimitedListSerializer(serializers.ListSerializer[Any]):
    """Renders rows with one query for the rate limits of all of them."""

    def to_representation(self, data: Any) -> Any:
        rows = list(data)
        self.context["rate_limits"] = RateLimit.objects.describe(row.limit_owner for row in rows)  # type: ignore[index]
        return super().to_representation(rows)


@extend_schema_field(RateLimitsSerializer)
class ShownRateLimits(serializers.SerializerMethodField):
    """The rate limits of a row, which its own serializer or that of its list has read."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("help_text", "Those of the operator and others may be lower.")
        super().__init__(**kwargs)

    def to_representation(self, value: Any) -> dict[str, Any]:
        return describe_row(value, self.context)


def describe_row(row: Any, context: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rate limits of a key, workspace or end user."""
    owner = row.limit_owner
    found = context.get("rate_limits")
    return (found or RateLimit.objects.describe([owner]))[owner]
