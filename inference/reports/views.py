"""What became of requests: one generation, activity by day, and analytics."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import close_old_connections
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.authentication import AnyKey, ManagementKey, caller_of
from accounts.models import (
    ApiKey,
    ApiKeyNotFound,
    Member,
    MemberNotFound,
    Workspace,
    WorkspaceNotFound,
)
from config.api.errors import NotFound
from config.api.openapi import ErrorSerializer, errors
from config.api.params import query_choice, query_uuid
from config.api.text import NOT_STORABLE
from inference.models import Feedback, Generation
from inference.reports.activity import ACTIVITY_DAYS, Activity, completed_days, permaslugs
from inference.reports.analytics import DIMENSIONS, METRICS, OPERATORS, Granularity, Query
from inference.reports.serializers import (
    ActivityResponseSerializer,
    ActivitySerializer,
    AnswerResponseSerializer,
    AnswerSerializer,
    FeedbackResponseSerializer,
    FeedbackSerializer,
    GenerationResponseSerializer,
    GenerationSerializer,
    MetaResponseSerializer,
    QuerySerializer,
)

_GENERATION_ID: Final = re.compile("[!-~]{1,48}")
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_DATE: Final = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_GROUPS: Final = {"workspace": "workspace_id", "end_user": "end_user"}
_DEFAULT_RANGE: Final = timedelta(days=30)
# An answer leaves some milliseconds before its settlement is stored; both in seconds.
_PATIENCE: Final = 2.0
_PAUSE: Final = 0.03
_ID: Final = OpenApiParameter("id", str, required=True, description="Of a generation, `gen-…`.")


class GenerationNotFound(NotFound):
    message = "The generation does not exist."


class GenerationUnderWay(NotFound):
    error_type = "generation_under_way"
    message = "The generation has not ended yet: ask again once its answer is complete."


class ContentNotStored(NotFound):
    error_type = "content_not_stored"
    message = "This service never stores prompts and completions: there is no content to show."


class GenerationView(APIView):
    """One generation of the organization, whichever of its keys asks."""

    permission_classes = [AnyKey]
    schema_tag = "generations"

    @extend_schema(
        operation_id="getGeneration",
        parameters=[_ID],
        responses=GenerationResponseSerializer,
        extensions=errors(400, 404),
    )
    def get(self, request: Request) -> Response:
        """Shows what a request used, cost and took, and everyone who was tried for it.

        One that is under way is waited for, for two seconds; then the answer is 404.
        """
        generation = _ended_generation(request, _wanted(request))
        tried = {UUID(attempt["endpoint_id"]) for attempt in generation.attempts}
        names = {str(endpoint_id): name for endpoint_id, name in permaslugs(tried).items()}
        data = GenerationSerializer(generation, context={"permaslugs": names}).data
        return Response({"data": data})


class GenerationContentView(APIView):
    """What was said, which is never stored."""

    permission_classes = [AnyKey]
    schema_tag = "generations"

    @extend_schema(
        operation_id="listGenerationContent",
        parameters=[_ID],
        responses={
            404: OpenApiResponse(
                ErrorSerializer, description="Always: no prompt or completion is ever stored."
            )
        },
        extensions=errors(400),
    )
    def get(self, request: Request) -> Response:
        """Answers 404, for this service never stores prompts and completions."""
        _generation(request, _wanted(request))
        raise ContentNotStored


class FeedbackView(APIView):
    """What callers say of generations."""

    permission_classes = [ManagementKey]
    schema_tag = "generations"

    @extend_schema(
        operation_id="submitGenerationFeedback",
        request=FeedbackSerializer,
        responses={200: FeedbackResponseSerializer},
        extensions=errors(404, 409),
    )
    def post(self, request: Request) -> Response:
        """Stores what was wrong with a generation, once in each category."""
        body = FeedbackSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        fields = body.validated_data
        Feedback.objects.submit(
            _generation(request, fields["generation_id"]),
            category=fields["category"],
            comment=fields.get("comment", ""),
            by=caller_of(request).actor,
        )
        return Response({"data": {"success": True}})


class ActivityView(APIView):
    """What was used, day by day."""

    permission_classes = [ManagementKey]
    schema_tag = "analytics"

    @extend_schema(
        operation_id="getUserActivity",
        parameters=[
            OpenApiParameter("date", date, description="Only this UTC day, of those days."),
            OpenApiParameter("api_key_hash", str, description="Only this key."),
            OpenApiParameter("user_id", UUID, description="Only keys that this member made."),
            OpenApiParameter("workspace_id", UUID),
            OpenApiParameter("end_user", str, description="Extension: only this tracking string."),
            OpenApiParameter(
                "group_by",
                str,
                enum=list(_GROUPS),
                description="Splits rows further; `end_user` is an extension.",
            ),
        ],
        responses=ActivityResponseSerializer,
        extensions=errors(400, 404),
    )
    def get(self, request: Request) -> Response:
        """Sums the last 30 completed UTC days: a row for each date, model and endpoint."""
        group_by = query_choice(request, "group_by", _GROUPS)
        wanted = Activity(
            organization_id=caller_of(request).organization_id,
            days=_days(request),
            api_key_id=_api_key_id(request),
            member_id=_member_id(request),
            workspace_id=_workspace_id(request),
            end_user=_end_user(request),
            group_by=None if group_by is None else _GROUPS[group_by],
        )
        rows: Any = wanted.rows()
        return Response({"data": ActivitySerializer(rows, many=True).data})


class AnalyticsMetaView(APIView):
    """The words of which questions are made."""

    permission_classes = [ManagementKey]
    schema_tag = "analytics"

    @extend_schema(operation_id="getAnalyticsMeta", responses=MetaResponseSerializer)
    def get(self, request: Request) -> Response:
        """Lists the metrics, dimensions, granularities and operators of `POST /analytics/query`."""
        return Response({"data": _META})


class AnalyticsQueryView(APIView):
    """Questions over generations."""

    permission_classes = [ManagementKey]
    schema_tag = "analytics"

    @extend_schema(
        operation_id="queryAnalytics",
        request=QuerySerializer,
        responses={200: AnswerResponseSerializer},
        extensions=errors(408),
    )
    def post(self, request: Request) -> Response:
        """Measures the generations that have ended, by dimensions and over time.

        A dimension's values are what its filters take: an API key's hash, the ids of workspaces,
        members and endpoints, names for all else. A filter on a metric drops rows of the result.
        """
        body = QuerySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        answer = _query(caller_of(request).organization_id, body.validated_data).run()
        return Response({"data": AnswerSerializer(answer).data})


_META: Final = {
    "dimensions": [
        {"display_label": dimension.label, "name": name} for name, dimension in DIMENSIONS.items()
    ],
    "granularities": [
        {"display_label": item.value.capitalize(), "name": item.value} for item in Granularity
    ],
    "metrics": [
        {
            "display_format": metric.display_format,
            "display_label": metric.label,
            "is_rate": metric.is_rate,
            "name": name,
        }
        for name, metric in METRICS.items()
    ],
    "operators": [{"name": name, "value_type": kind} for name, kind in OPERATORS.items()],
}


def _wanted(request: Request) -> str:
    wanted: str | None = request.query_params.get("id")
    if wanted is None:
        raise ValidationError({"id": ["Is required."]})
    return wanted


def _generation(request: Request, wanted: str) -> Generation:
    """Loads a generation of the caller's organization; anything else does not exist."""
    rows = Generation.objects.for_organization(caller_of(request).organization_id)
    found = rows.filter(pk=wanted).first() if _GENERATION_ID.fullmatch(wanted) else None
    if found is None:
        raise GenerationNotFound
    return found


def _ended_generation(request: Request, wanted: str) -> Generation:
    """Loads a generation once it has ended; raises :class:`GenerationUnderWay` if that is not soon.

    Nobody's connection to the database is kept meanwhile.
    """
    deadline = time.monotonic() + _PATIENCE
    while (found := _generation(request, wanted)).status == Generation.Status.PENDING:
        if time.monotonic() >= deadline:
            raise GenerationUnderWay
        close_old_connections()
        time.sleep(_PAUSE)
    return found


def _days(request: Request) -> list[date]:
    days = completed_days()
    text = request.query_params.get("date")
    if text is None:
        return days
    for day in days:
        if text == day.isoformat():
            return [day]
    if not _DATE.fullmatch(text):
        raise ValidationError({"date": ["Must be a date such as 2030-01-31."]})
    raise ValidationError({"date": [f"Must be one of the last {ACTIVITY_DAYS} completed days."]})


def _api_key_id(request: Request) -> UUID | None:
    """Finds a key of the organization by its hash; what a deleted one used stays used."""
    digest = request.query_params.get("api_key_hash")
    if digest is None:
        return None
    keys = ApiKey.objects.filter(organization=caller_of(request).organization_id)
    found: ApiKey | None = keys.filter(digest=digest).first() if _DIGEST.fullmatch(digest) else None
    if found is None:
        raise ApiKeyNotFound
    return found.pk


def _member_id(request: Request) -> UUID | None:
    wanted: UUID | None = query_uuid(request, "user_id")
    members = Member.objects.for_organization(caller_of(request).organization_id)
    if wanted is not None and not members.filter(pk=wanted).exists():
        raise MemberNotFound
    return wanted


def _workspace_id(request: Request) -> UUID | None:
    """Finds a workspace of the organization, a deleted one too."""
    wanted: UUID | None = query_uuid(request, "workspace_id")
    workspaces = Workspace.objects.filter(organization=caller_of(request).organization_id)
    if wanted is not None and not workspaces.filter(pk=wanted).exists():
        raise WorkspaceNotFound
    return wanted


def _end_user(request: Request) -> str | None:
    user: str | None = request.query_params.get("end_user")
    if user is not None and NOT_STORABLE.search(user):
        raise ValidationError({"end_user": ["Must not contain NUL."]})
    return user


def _query(organization_id: UUID, body: Mapping[str, Any]) -> Query:
    now = timezone.now()
    span = body.get("time_range", {"start": now - _DEFAULT_RANGE, "end": now})
    order = body.get("order_by", {})
    granularity = body.get("granularity")
    return Query(
        organization_id=organization_id,
        start=span["start"],
        end=span["end"],
        metrics=body["metrics"],
        dimensions=body.get("dimensions", ()),
        granularity=None if granularity is None else Granularity(granularity),
        filters=body.get("filters", ()),
        order_by=order.get("field"),
        is_descending=order.get("direction") == "desc",
        limit=body["limit"],
        group_limit=body.get("group_limit"),
    )
