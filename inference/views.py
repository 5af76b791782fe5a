"""The explanation of routing decisions."""

from __future__ import annotations

from typing import Final, cast

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from accounts.authentication import AnyKey
from accounts.models import ApiKey
from config.api.openapi import errors
from config.api.params import ChoiceParameter, read_parameter
from config.server.regions import region_of_host
from inference.admission.explain import Explainer
from inference.faces.explaining import DEFAULT, READERS, read_request
from inference.serializers import ExplanationResponseSerializer

_OPERATION: Final = ChoiceParameter(choices=READERS)
_BODY: Final = {"application/json": {"$ref": "#/components/schemas/ChatRequest"}}


class ExplanationViewSet(ViewSet):
    """Explains how a request would be routed."""

    permission_classes = [AnyKey]
    schema_tag = "routing"

    @extend_schema(
        operation_id="explainRouting",
        parameters=[
            OpenApiParameter(
                "operation",
                str,
                enum=[*READERS],
                default=DEFAULT,
                description="The path of the route that the body is for.",
            )
        ],
        request=_BODY,
        responses={200: ExplanationResponseSerializer},
        extensions=errors(404),
    )
    def create(self, request: Request) -> Response:
        """Explains the route of a request: candidates, costs and excluded endpoints.

        The body is that of the route that `operation` names: a chat completion if it is absent.
        Audio comes as JSON. Nothing is sent, held or stored. Without a
        `session_id` the router chooses at random among healthy endpoints for every request; the
        order shown is then the most probable one.
        """
        key = cast(ApiKey, request.auth)
        operation = read_parameter(request, "operation", _OPERATION) or DEFAULT
        session_id = request.headers.get("X-Session-Id")
        wanted = read_request(operation, request.body, session_id=session_id)
        region = region_of_host(request.get_host(), settings.REGION_HOSTS)
        return Response({"data": Explainer().explain(key, wanted, region=region)})
