"""The explanation of routing decisions."""

from __future__ import annotations

from typing import Final, cast

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from accounts.authentication import AnyKey
from accounts.models import ApiKey
from catalog.dialects.base import Operation
from config.api.openapi import errors
from config.server.regions import region_of_host
from inference.admission.explain import explain
from inference.requests.parsing import parse
from inference.serializers import ExplanationResponseSerializer

_BODY: Final = {"application/json": {"$ref": "#/components/schemas/ChatRequest"}}


class ExplanationViewSet(ViewSet):
    """Explains how a request would be routed."""

    permission_classes = [AnyKey]
    schema_tag = "routing"

    @extend_schema(
        operation_id="explainRouting",
        request=_BODY,
        responses={200: ExplanationResponseSerializer},
        extensions=errors(404),
    )
    def create(self, request: Request) -> Response:
        """Explains the route of a chat completion: candidates, costs and excluded endpoints.

        The body is that of a chat completion. Nothing is sent, held or stored. Without a
        `session_id` the router chooses at random among healthy endpoints for every request; the
        order shown is then the most probable one.
        """
        key = cast(ApiKey, request.auth)
        wanted = parse(Operation.CHAT, request.body, session_id=request.headers.get("X-Session-Id"))
        region = region_of_host(request.get_host(), settings.REGION_HOSTS)
        return Response({"data": explain(key, wanted, region=region)})
