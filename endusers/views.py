"""The end users that an organization registers."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from accounts.authentication import ManagementKey, caller_of
from config.openapi import errors
from endusers.models import EndUser
from endusers.serializers import CreateSerializer, EndUserResponseSerializer, EndUserSerializer


class EndUserViewSet(ViewSet):
    """Tracking strings; registering one creates no login, policy or credential."""

    permission_classes = [ManagementKey]
    schema_tag = "end-users"

    @extend_schema(
        operation_id="createEndUser",
        request=CreateSerializer,
        responses={201: EndUserResponseSerializer},
        extensions=errors(404, 409),
    )
    def create(self, request: Request) -> Response:
        """Registers a tracking string under the organization."""
        body = CreateSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        end_user = EndUser.objects.register(
            organization_id=caller_of(request).organization_id, user=body.validated_data["user"]
        )
        return Response({"data": EndUserSerializer(end_user).data}, status=201)
