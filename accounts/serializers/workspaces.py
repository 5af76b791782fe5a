"""The shapes of workspaces, their members and their budgets."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.models import WORKSPACE_SLUG, LimitReset, Workspace, WorkspaceBudget, WorkspaceMember
from accounts.serializers.fallback import FallbackChoice
from accounts.serializers.rate_limits import (
    RateLimitedListSerializer,
    RateLimitsSerializer,
    ShownRateLimits,
)
from config.api.fields import (
    ChoiceField,
    DollarsField,
    FlagField,
    IntegerField,
    StrictSerializer,
    StringField,
)
from config.api.openapi import envelope, list_envelope

SERVER_TOOLS: Final = tuple(
    f"openrouter:{name}"
    for name in (
        "advisor", "apply_patch", "bash", "datetime", "experimental__search_models", "fusion",
        "image_generation", "shell", "subagent", "tool_search", "web_fetch", "web_search",
    )
)  # fmt: skip
_MAX_LIST: Final = 1000
_MAX_DESCRIPTION: Final = 4096
_MAX_BIGINT: Final = 2**63 - 1
_MAX_DAYS: Final = 32_767


@extend_schema_field({"type": "number", "minimum": 0.0001, "maximum": 1})
class SamplingRateField(serializers.Field[Decimal, Any, float, Any]):
    """A JSON number from 0.0001 to 1, with four decimals at most."""

    def to_internal_value(self, data: Any) -> Decimal:
        if not isinstance(data, int | Decimal) or isinstance(data, bool):
            raise ValidationError("Must be a number.")
        if not Decimal("0.0001") <= data <= 1:
            raise ValidationError("Must be from 0.0001 to 1.")
        rate = Decimal(data).quantize(Decimal("0.0001"))
        if rate != data:
            raise ValidationError("Must have at most 4 decimals.")
        return rate

    def to_representation(self, value: Decimal) -> float:
        return float(value)


class _SlugField(StringField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=64, pattern=f"^{WORKSPACE_SLUG.pattern}$", **kwargs)

    def to_internal_value(self, data: Any) -> str:
        slug = super().to_internal_value(data)
        if not WORKSPACE_SLUG.fullmatch(slug):
            raise ValidationError("Must be lower-case letters and digits, with single hyphens.")
        return slug


class _WorkspaceFields(StrictSerializer):
    description = StringField(
        max_length=_MAX_DESCRIPTION, required=False, allow_null=True, allow_blank=True
    )
    default_text_model = StringField(required=False, allow_null=True, min_length=1)
    default_image_model = StringField(required=False, allow_null=True, min_length=1)
    default_provider_sort = ChoiceField(
        choices=Workspace.ProviderSort.choices, required=False, allow_null=True
    )
    disabled_server_tools = serializers.ListField(
        child=ChoiceField(choices=SERVER_TOOLS),
        max_length=_MAX_LIST,
        required=False,
        allow_null=True,
        help_text="Requests that name one of these are refused; an empty list or null clears it.",
    )
    fallback = FallbackChoice()
    io_logging_api_key_ids = serializers.ListField(
        child=IntegerField(min_value=0, max_value=_MAX_BIGINT),
        max_length=_MAX_LIST,
        required=False,
        allow_null=True,
        help_text="Only requests with these keys, by their `number`, are logged; null for all, an "
        "empty list for none.",
    )
    io_logging_sampling_rate = SamplingRateField(
        required=False, help_text="The part of the requests that is logged."
    )
    io_logging_retention_days = IntegerField(
        min_value=1,
        max_value=_MAX_DAYS,
        required=False,
        allow_null=True,
        help_text="Extension: logged texts are deleted after this many days; null for as many as "
        "the operator allows.",
    )
    is_data_discount_logging_enabled = FlagField(required=False)
    is_observability_broadcast_enabled = FlagField(required=False)
    is_observability_io_logging_enabled = FlagField(
        required=False,
        help_text="Stores prompts and completions, encrypted and for a limited time, for "
        "`GET /generation/content`; never those of requests under zero data retention.",
    )
    is_answer_storage_enabled = FlagField(
        required=False,
        help_text="Keeps answers, encrypted and for a limited time, for requests that are sent "
        "again with their `Idempotency-Key`. Answers under zero data retention are never kept.",
    )
    is_response_caching_enabled = FlagField(
        required=False,
        help_text="Requests use the response cache unless their header `X-OpenRouter-Cache` is "
        "`false`. Needs `is_answer_storage_enabled`.",
    )
    rate_limits = RateLimitsSerializer(
        required=False, allow_null=True, help_text="Null removes all of them."
    )

    def validate_disabled_server_tools(self, names: list[str] | None) -> list[str] | None:
        return names or None


@extend_schema_serializer(component_name="CreateWorkspaceRequest")
class CreateWorkspaceSerializer(_WorkspaceFields):
    name = StringField(min_length=1)
    slug = _SlugField(help_text="Lower-case letters and digits, with single hyphens.")


@extend_schema_serializer(component_name="UpdateWorkspaceRequest")
class UpdateWorkspaceSerializer(_WorkspaceFields):
    """An absent field stays unchanged; `null` clears a field."""

    name = StringField(required=False, min_length=1)
    slug = _SlugField(required=False)


@extend_schema_serializer(component_name="Workspace")
class WorkspaceSerializer(serializers.ModelSerializer[Workspace]):
    default_guardrail_id = serializers.UUIDField(
        help_text="Applies to the whole workspace; the first change creates it."
    )
    default_provider_sort = serializers.CharField(allow_null=True)
    io_logging_sampling_rate = serializers.FloatField()
    rate_limits = ShownRateLimits()

    class Meta:
        model = Workspace
        list_serializer_class = RateLimitedListSerializer
        fields = (
            "id", "name", "slug", "description", "default_guardrail_id", "default_text_model",
            "default_image_model", "default_provider_sort", "disabled_server_tools", "fallback",
            "include_byok_in_budgets", "is_answer_storage_enabled", "io_logging_api_key_ids",
            "io_logging_retention_days", "io_logging_sampling_rate",
            "is_data_discount_logging_enabled", "is_observability_broadcast_enabled",
            "is_observability_io_logging_enabled", "is_response_caching_enabled", "rate_limits",
            "created_by", "created_at", "updated_at",
        )  # fmt: skip
        read_only_fields = fields


WorkspaceResponseSerializer = envelope("WorkspaceResponse", data=WorkspaceSerializer())


WorkspaceListSerializer = list_envelope("ListWorkspacesResponse", WorkspaceSerializer)


@extend_schema_serializer(component_name="WorkspaceMembersRequest")
class WorkspaceMembersSerializer(StrictSerializer):
    user_ids = serializers.ListField(
        child=StringField(min_length=1),
        max_length=_MAX_LIST,
        help_text="Members of the organization.",
    )


@extend_schema_serializer(component_name="WorkspaceMember")
class WorkspaceMemberSerializer(serializers.ModelSerializer[WorkspaceMember]):
    user_id = serializers.UUIDField(source="member_id")
    workspace_id = serializers.UUIDField()

    class Meta:
        model = WorkspaceMember
        fields = ("id", "workspace_id", "user_id", "role", "created_at")
        read_only_fields = fields


WorkspaceMemberListSerializer = list_envelope(
    "ListWorkspaceMembersResponse", WorkspaceMemberSerializer
)


AddedMembersSerializer = envelope(
    "BulkAddWorkspaceMembersResponse",
    data=WorkspaceMemberSerializer(many=True),
    added_count=serializers.IntegerField(help_text="Number of those that were not members before."),
)


RemovedMembersSerializer = envelope(
    "BulkRemoveWorkspaceMembersResponse", removed_count=serializers.IntegerField()
)


@extend_schema_serializer(component_name="UpsertWorkspaceBudgetRequest")
class SetBudgetSerializer(StrictSerializer):
    limit_usd = DollarsField(source="limit_nano", help_text="USD; more than 0.")
    include_byok_in_budgets = FlagField(
        required=False, help_text="Applies to all budgets of the workspace."
    )

    def validate_limit_usd(self, limit_nano: int) -> int:
        if limit_nano == 0:
            raise ValidationError("Must be more than 0.")
        return limit_nano


@extend_schema_serializer(component_name="WorkspaceBudget")
class BudgetSerializer(serializers.ModelSerializer[WorkspaceBudget]):
    workspace_id = serializers.UUIDField()
    limit_usd = DollarsField(source="limit_nano")
    reset_interval = serializers.SerializerMethodField()

    class Meta:
        model = WorkspaceBudget
        fields = ("id", "workspace_id", "limit_usd", "reset_interval", "created_at", "updated_at")
        read_only_fields = fields

    @extend_schema_field(
        serializers.ChoiceField(
            choices=LimitReset.choices, allow_null=True, help_text="Null for a lifetime budget."
        )
    )
    def get_reset_interval(self, budget: WorkspaceBudget) -> str | None:
        return budget.interval if budget.interval in LimitReset.values else None


BudgetResponseSerializer = envelope(
    "WorkspaceBudgetResponse",
    data=BudgetSerializer(),
    include_byok_in_budgets=serializers.BooleanField(),
)


BudgetListSerializer = envelope(
    "ListWorkspaceBudgetsResponse",
    data=BudgetSerializer(many=True),
    include_byok_in_budgets=serializers.BooleanField(),
)
