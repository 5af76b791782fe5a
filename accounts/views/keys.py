"""The caller's own key, and the organization's API keys."""

from __future__ import annotations

from typing import Any, Final, cast

from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from accounts.authentication import AnyKey, ManagementKey, require_one_person
from accounts.models import ApiKey, ApiKeyNotFound, Member, workspace_for
from accounts.rotation import rotate_key
from accounts.serializers.keys import (
    CreatedKeySerializer,
    CreateKeySerializer,
    CurrentKeyResponseSerializer,
    CurrentKeySerializer,
    KeyListSerializer,
    KeyResponseSerializer,
    KeySerializer,
    RotatedKeySerializer,
    RotateKeySerializer,
    UpdateKeySerializer,
)
from accounts.views.creations import CreatingViewSet
from accounts.views.filters import WorkspaceFilter
from config.api.filters import FlagFilter, StrictFilterSet
from config.api.openapi import DeletedSerializer, creation, operation
from config.api.pagination import UncountedPagination
from config.api.viewsets import make_list, make_retrieve
from config.changes.kinds import ChangeKind
from config.credentials import Secret

_OVERLAP: Final = 3600
_HASH: Final = OpenApiParameter(
    "hash", {"type": "string", "pattern": "^[0-9a-f]{64}$"}, OpenApiParameter.PATH
)


class CurrentKeyViewSet(ViewSet):
    """The key that makes the request."""

    permission_classes = [AnyKey]
    schema_tag = "api-keys"

    @operation("getCurrentKey", None, CurrentKeyResponseSerializer)
    def retrieve(self, request: Request) -> Response:
        """Shows the key of this request: its limits and its usage."""
        return Response({"data": CurrentKeySerializer(cast(ApiKey, request.auth)).data})


class KeyFilters(StrictFilterSet):
    include_disabled = FlagFilter(unless_set="enabled", help_text="Disabled keys too.")
    include_expired = FlagFilter(unless_set="unexpired", help_text="Expired keys too.")
    workspace_id = WorkspaceFilter(
        takes_deleted=True, help_text="The default workspace if absent; also a deleted one."
    )


class KeyViewSet(CreatingViewSet):
    """The organization's inference keys; management keys are rotated here and else managed by
    operators."""

    permission_classes = [ManagementKey]
    queryset = (
        ApiKey.objects.for_inference().select_related("successor").order_by("-created_at", "id")
    )
    serializer_class = KeySerializer
    filterset_class = KeyFilters
    pagination_class = UncountedPagination
    lookup_field = "digest"
    lookup_url_kwarg = "hash"
    not_found = ApiKeyNotFound
    shared_parameters = (_HASH,)
    schema_tag = "api-keys"

    def get_queryset(self) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset()
        if self.action == "rotate":
            # Keys of both types; a revoked one is refused by name.
            rows = ApiKey.objects.filter(organization=self.organization_id)
        return rows

    list = make_list(
        "listKeys",
        KeyListSerializer,
        "Lists at most 100 keys of one workspace, latest first, with their usage.",
        (400, 404),
    )

    @creation("createKeys", CreateKeySerializer, CreatedKeySerializer, (404, 409, 422))
    def create(self, request: Request) -> Response:
        """Creates an inference key. No other response ever contains the key itself.

        It reads stored texts only if the key of this request does. A repeated request with the same
        `Idempotency-Key` contains the key for 24 hours, unless it is deleted or rotated.
        """
        key, secret = self.create_once(CreateKeySerializer, self._create)
        assert secret is not None
        return Response({"data": self.get_serializer(key).data, "key": secret.reveal()}, 201)

    def _create(self, fields: dict[str, Any]) -> tuple[ApiKey, Secret]:
        workspace = workspace_for(self.organization_id, fields.pop("workspace_id", None))
        creator = None
        if (creator_id := fields.pop("creator_user_id", None)) is not None:
            members = Member.objects.for_organization(self.organization_id)
            [creator] = members.find_all([str(creator_id)])
        asking = cast(ApiKey, self.request.auth)
        return ApiKey.objects.create_key(
            workspace=workspace,
            creator=creator,
            issued_by_operator=asking.issued_by_operator,
            **fields,
        )

    retrieve = make_retrieve(
        "getKey", KeyResponseSerializer, "Shows a key by its hash, with its usage."
    )

    @operation("updateKeys", UpdateKeySerializer, KeyResponseSerializer, (404, 409, 422))
    def partial_update(self, request: Request, hash: str) -> Response:  # noqa: A002
        """Changes the fields that are sent, from the next request on."""
        fields = self.read_body(UpdateKeySerializer, find_row=self.get_object)
        key = self.get_object()
        if "workspace_id" in fields:
            workspace_for(self.organization_id, fields["workspace_id"])
        with transaction.atomic():
            key.lock()
            if fields.get("workspace_id", key.workspace_id) != key.workspace_id:
                # The guardrail of a workspace stays behind.
                require_one_person(request, ChangeKind.GUARDRAILS)
            key.edit(**fields)
        return self.respond(key)

    @operation("deleteKeys", None, {200: DeletedSerializer}, (404,))
    def destroy(self, request: Request, hash: str) -> Response:  # noqa: A002
        """Deletes a key for good: it is refused from the next request on."""
        if not self.get_object().revoke():
            raise ApiKeyNotFound
        return Response({"deleted": True})

    @creation("rotateKey", RotateKeySerializer, {201: RotatedKeySerializer}, (404, 409, 422))
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, hash: str) -> Response:  # noqa: A002
        """Gives a key, of either type, a new secret and a new hash.

        Name, limits, usage, rights and expiry stay. Until the overlap is over, the old secret works
        too, and spends from the same limits. `DELETE` of its hash ends it at once. A management
        key may rotate itself. A key that may not read stored texts takes that right from a key
        that it rotates. A repeated request with the same `Idempotency-Key` contains the new secret
        for 24 hours, unless the key is deleted or rotated again.
        """
        key, secret = self.create_once(RotateKeySerializer, self._rotate)
        assert secret is not None
        body = {"data": self.get_serializer(key).data, "key": secret.reveal()}
        return Response({**body, "expires_at": key.former.get(digest=hash).expires_at}, 201)

    def _rotate(self, fields: dict[str, Any]) -> tuple[ApiKey, Secret]:
        key: ApiKey = self.get_object()
        if key.is_management:
            require_one_person(self.request, ChangeKind.MANAGEMENT_KEYS)
        _, secret = rotate_key(
            key,
            overlap=fields.get("overlap_seconds", _OVERLAP),
            issued_by_operator=cast(ApiKey, self.request.auth).issued_by_operator,
        )
        return key, secret
