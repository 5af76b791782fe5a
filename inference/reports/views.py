"""Reports on requests: single generations, activity by day, and analytics."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Final, cast
from uuid import UUID

from django.core.exceptions import ValidationError as InvalidParameter
from django.db import close_old_connections
from django.db.models import QuerySet
from django.db.models.functions import Coalesce
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import ValidationError
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.authentication import AnyKey, ManagementKey, caller_of, judge_again
from accounts.models import (
    ApiKey,
    ApiKeyNotFound,
    Member,
    MemberNotFound,
    Workspace,
    WorkspaceNotFound,
)
from config.api.errors import Forbidden, NotFound
from config.api.filters import (
    ChoiceFilter,
    StrictFilter,
    StrictFilterSet,
    TrackingFilter,
    UUIDFilter,
)
from config.api.openapi import operation
from config.api.pagination import WholeList
from config.api.params import QueryParameter, require_single
from config.api.text import NOT_STORABLE
from config.api.viewsets import OrganizationViewSet
from config.audit.context import record_reading
from config.clocks.clock import clock
from inference.models import Feedback, Generation
from inference.reports.activity import ACTIVITY_DAYS, Activity, completed_days, permaslugs
from inference.reports.analytics import (
    DIMENSIONS,
    METRICS,
    OPERATORS,
    Granularity,
    Query,
    limit_statements,
)
from inference.reports.serializers import (
    ActivityResponseSerializer,
    ActivitySerializer,
    AnswerResponseSerializer,
    AnswerSerializer,
    ContentDeletedSerializer,
    ContentResponseSerializer,
    FeedbackResponseSerializer,
    FeedbackSerializer,
    GenerationResponseSerializer,
    GenerationSerializer,
    MetaResponseSerializer,
    QuerySerializer,
)
from inference.texts.deleting import delete_texts
from inference.texts.lookup import find_content

_DATE: Final = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_GROUPS: Final = {"workspace": "workspace_id", "end_user": "end_user"}
_DEFAULT_RANGE: Final = timedelta(days=30)
# A settlement is stored some milliseconds after the caller gets its reply, so a read waits for it.
_WAIT_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.03
_LONG_PAUSE_SECONDS: Final = 0.1
# A text that is not stored by then was not logged, or its worker waits for the database.
_STORED_WITHIN: Final = timedelta(seconds=5)
_ID: Final = OpenApiParameter(
    "id", str, required=True, description="The id of a generation, `gen-…`."
)


class GenerationNotFound(NotFound):
    message = "The generation does not exist."


class GenerationUnderWay(NotFound):
    error_type = "generation_under_way"
    message = "The generation has not ended yet: ask again once its answer is complete."


class ContentForbidden(Forbidden):
    error_type = "stored_texts_forbidden"
    message = (
        "This key reads no stored texts, because an operator issued it, or it was made with such a "
        "key. Use the keys that the organization was created with, or one that they made."
    )


class ContentNotStored(NotFound):
    error_type = "content_not_stored"
    message = (
        "No input and output of this generation is stored: its workspace does not log them, the "
        "request was not logged, or they were deleted. POST /routing/explain says what is logged."
    )


class GenerationViewSet(OrganizationViewSet):
    """The generations of the organization; any of its keys may read all of them."""

    permission_classes = [AnyKey]
    queryset = Generation.objects.select_related("price", "attestation")
    serializer_class = GenerationSerializer
    lookup_field = "id"
    not_found = GenerationNotFound
    schema_tag = "generations"

    def get_object(self) -> Generation:
        """Returns the generation that the query parameter ``id`` names."""
        require_single(self.request.query_params, ["id"])
        text = self.request.query_params.get("id")
        if text is None:
            raise ValidationError({"id": ["Is required."]})
        return self.find(text)

    @operation("getGeneration", None, GenerationResponseSerializer, (400, 404), parameters=[_ID])
    def retrieve(self, request: Request) -> Response:
        """Shows the usage, cost and timing of a request, and every endpoint that was tried.

        Waits up to two seconds for a generation that is still running, then responds with 404.
        """
        generation = self._wait_until_ended()
        tried = {UUID(attempt["endpoint_id"]) for attempt in generation.attempts}
        names = {str(endpoint_id): name for endpoint_id, name in permaslugs(tried).items()}
        data = GenerationSerializer(generation, context={"permaslugs": names}).data
        return Response({"data": data})

    def _wait_until_ended(self) -> Generation:
        """Returns the generation once it has ended; raises :class:`GenerationUnderWay`.

        Holds no connection to the database while it waits.
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        has_waited = False
        while (found := self.get_object()).status == Generation.Status.PENDING:
            if time.monotonic() >= deadline:
                raise GenerationUnderWay
            close_old_connections()
            time.sleep(_PAUSE_SECONDS)
            has_waited = True
        if has_waited:
            judge_again(self.request)
        return found


class ContentViewSet(GenerationViewSet):
    """The stored inputs and outputs of generations."""

    def get_permissions(self) -> Sequence[Any]:
        return [ManagementKey()] if self.action == "delete_content" else super().get_permissions()

    def get_queryset(self) -> QuerySet[Any]:
        """Returns the generations whose content the key may read: its own, or all of them."""
        rows, caller = super().get_queryset(), caller_of(self.request)
        return rows if caller.is_management else rows.filter(api_key_id=caller.key_id)

    @operation(
        "listGenerationContent", None, ContentResponseSerializer, (400, 403, 404), parameters=[_ID]
    )
    def content(self, request: Request) -> Response:
        """Shows the stored input and output of a request, if its workspace logs them.

        Only the key that made the request, and the organization's management keys, may read them;
        a key that an operator issued may not. The audit log names the key each time. A text is
        stored within seconds after the answer, so this waits for it for up to two seconds.
        """
        if cast(ApiKey, request.auth).issued_by_operator:
            raise ContentForbidden
        generation = self.get_object()
        content = self._wait_for_content(generation)
        if content is None:
            raise ContentNotStored
        # The entry comes first: nothing is shown that the log does not have.
        record_reading(
            self.actor,
            f"{request.method} {request.path}",
            object_id=generation.pk,
            organization_id=generation.organization_id,
            outcome="shown",
        )
        return Response({"data": content})

    @operation(
        "deleteGenerationContent",
        None,
        {200: ContentDeletedSerializer},
        (400, 403, 404),
        parameters=[_ID],
    )
    def delete_content(self, request: Request) -> Response:
        """Deletes the stored input and output of a request; an extension for management keys.

        An answer that is kept for repeats is deleted with them. A text that is not stored yet is
        not stored afterwards. Repeating it changes nothing.
        """
        generation = self.get_object()
        delete_texts(self.organization_id, generation_id=generation.pk, by=self.actor)
        return Response({"deleted": True})

    def _wait_for_content(self, generation: Generation) -> dict[str, Any] | None:
        """Returns the content; waits for that of a generation that has just ended."""
        deadline = time.monotonic() + _WAIT_SECONDS
        has_waited = False
        while True:
            content = find_content(self.organization_id, generation.pk)
            ended = generation.created_at + timedelta(milliseconds=generation.duration_ms or 0)
            may_come = (
                clock.now() - ended <= _STORED_WITHIN
                and time.monotonic() < deadline
                and generation.workspace.is_observability_io_logging_enabled
            )
            if content is not None or not may_come:
                if has_waited:
                    judge_again(self.request)
                return content
            close_old_connections()
            time.sleep(_LONG_PAUSE_SECONDS)
            has_waited = True
            generation = self.get_object()


class FeedbackViewSet(OrganizationViewSet):
    """Feedback on generations."""

    permission_classes = [ManagementKey]
    queryset = Generation.objects.all()
    serializer_class = FeedbackSerializer
    lookup_field = "id"
    not_found = GenerationNotFound
    schema_tag = "generations"

    @operation(
        "submitGenerationFeedback",
        FeedbackSerializer,
        {200: FeedbackResponseSerializer},
        (404, 409),
    )
    def create(self, request: Request) -> Response:
        """Stores feedback on a generation, once in each category."""
        fields = self.read_body(FeedbackSerializer)
        generation = self.find(fields["generation_id"])
        Feedback.objects.submit(
            generation,
            category=fields["category"],
            comment=fields.get("comment", ""),
            by=self.actor,
        )
        return Response({"data": {"success": True}})


class _DayParameter(QueryParameter):
    """One of the days of the report."""

    schema = {"type": "string", "format": "date"}

    def parse(self, text: str) -> date:
        for day in completed_days():
            if text == day.isoformat():
                return day
        if not _DATE.fullmatch(text):
            raise InvalidParameter("Must be a date such as 2030-01-31.")
        raise InvalidParameter(f"Must be one of the last {ACTIVITY_DAYS} completed days.")


class _HashParameter(QueryParameter):
    """The hash of a key; accepts any text, because the lookup answers 404 for any other text."""

    def parse(self, text: str) -> str:
        return text


class DayFilter(StrictFilter):
    field_class = _DayParameter


class HashFilter(StrictFilter):
    field_class = _HashParameter


class ActivityFilters(StrictFilterSet):
    date = DayFilter(help_text="Only this UTC day, of those days.")
    api_key_hash = HashFilter(help_text="Only this key.")
    user_id = UUIDFilter(help_text="Only keys that this member created.")
    workspace_id = UUIDFilter()
    end_user = TrackingFilter(help_text="Extension: only this tracking string.")
    group_by = ChoiceFilter(
        choices=tuple(_GROUPS), help_text="Splits rows further; `end_user` is an extension."
    )

    class Meta:
        model = Generation
        fields = ()


class ActivityViewSet(ListModelMixin, OrganizationViewSet):
    """The usage of the organization, day by day."""

    permission_classes = [ManagementKey]
    queryset = Generation.objects.all()
    serializer_class = ActivitySerializer
    filterset_class = ActivityFilters
    pagination_class = WholeList
    schema_tag = "analytics"

    @operation("getUserActivity", None, ActivityResponseSerializer, (400, 404, 408))
    def list(self, request: Request) -> Response:
        """Sums the last 30 completed UTC days: a row for each date, model and endpoint."""
        values = ActivityFilters.read(request)
        # The usage of deleted keys and workspaces is still reported.
        owned = {"organization": self.organization_id}
        activity = Activity(
            organization_id=self.organization_id,
            days=completed_days() if values["date"] is None else [values["date"]],
            api_key_id=_find_pk(
                ApiKey.objects.filter(**owned),
                "digest",
                values["api_key_hash"],
                ApiKeyNotFound,
                # The requests of a former secret are those of its key.
                Coalesce("successor_id", "pk"),
            ),
            member_id=_find_pk(
                Member.objects.filter(**owned), "pk", values["user_id"], MemberNotFound
            ),
            workspace_id=_find_pk(
                Workspace.objects.filter(**owned), "pk", values["workspace_id"], WorkspaceNotFound
            ),
            end_user=values["end_user"],
            group_by=_GROUPS.get(values["group_by"]),
        )
        with limit_statements():
            rows = activity.rows()
        return self.respond_with_page(rows)


class AnalyticsViewSet(OrganizationViewSet):
    """Queries over generations."""

    permission_classes = [ManagementKey]
    queryset = Generation.objects.all()
    serializer_class = AnswerSerializer
    schema_tag = "analytics"

    @operation("getAnalyticsMeta", None, MetaResponseSerializer)
    def meta(self, request: Request) -> Response:
        """Lists the metrics, dimensions, granularities and operators of `POST /analytics/query`."""
        return Response({"data": _META})

    @operation("queryAnalytics", QuerySerializer, AnswerResponseSerializer, (408,))
    def query(self, request: Request) -> Response:
        """Measures the generations that have ended, by dimensions and over time.

        The filters of a dimension take its values: an API key's hash; the ids of workspaces,
        members and endpoints; the names of everything else. A filter on a metric removes rows from
        the result.
        """
        query = _build_query(self.organization_id, self.read_body(QuerySerializer))
        return self.respond(query.run())


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


def _find_pk(
    rows: QuerySet[Any],
    column: str,
    value: str | UUID | None,
    not_found: type[NotFound],
    shown: Any = "pk",
) -> UUID | None:
    """Returns the primary key of the row whose ``column`` has a value; ``None`` for no value.

    ``shown`` is what it returns instead. Raises ``not_found`` if there is no such row.
    """
    if value is None:
        return None
    if NOT_STORABLE.search(str(value)):
        raise not_found
    pk: UUID | None = rows.filter(**{column: value}).values_list(shown, flat=True).first()
    if pk is None:
        raise not_found
    return pk


def _build_query(organization_id: UUID, body: Mapping[str, Any]) -> Query:
    now = clock.now()
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
