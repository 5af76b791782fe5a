"""What is asked of the router without sending anything."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

from asgiref.sync import async_to_sync
from django.conf import settings
from django.db import connection
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.authentication import AnyKey
from accounts.models import ApiKey, Organization
from accounts.policy import Policy, require_entrance
from billing.budgets import Budget, Reading
from billing.models import Account, Meter
from catalog.dialects.base import Operation
from catalog.models import CatalogVersion
from catalog.pricing import usd
from config.errors import PaymentRequired
from config.openapi import errors
from config.regions import region_of_host
from inference import health
from inference.admission import budgets_of
from inference.estimate import worst_case_nano
from inference.health import HealthBoard
from inference.purses import LimitSpent, Purses
from inference.routing import Candidate, Defaults, Plan, consider
from inference.schemas import InferenceRequest, parse
from inference.serializers import ExplanationResponseSerializer
from inference.snapshots import Snapshots

_BODY: Final = {"application/json": {"$ref": "#/components/schemas/ChatRequest"}}


class ExplainView(APIView):
    """Where a request would go."""

    permission_classes = [AnyKey]
    schema_tag = "routing"

    @extend_schema(
        operation_id="explainRouting",
        request=_BODY,
        responses=ExplanationResponseSerializer,
        extensions=errors(404),
    )
    def post(self, request: Request) -> Response:
        """Tells where a chat completion would go, what it may cost, and what else is left out why.

        The body is that of a chat completion. Nothing is sent, held or stored. Without a
        `session_id` every request draws anew among healthy endpoints; the order shown is then the
        likeliest one.
        """
        wanted = parse(
            Operation.CHAT, request.body, session_id=request.headers.get("X-Session-Id")
        )
        explanation = _Explanation(
            cast(ApiKey, request.auth), wanted, region_of_host(request.get_host())
        )
        return Response({"data": explanation.body()})
