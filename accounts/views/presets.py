"""The presets of a workspace, and their versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeAlias

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.authentication import ManagementKey
from accounts.models import Preset, PresetNotFound, PresetVersion, Workspace, workspace_for
from accounts.serializers.presets import (
    PresetListSerializer,
    PresetResponseSerializer,
    PresetSerializer,
    PresetVersionListSerializer,
    PresetVersionResponseSerializer,
    PresetVersionSerializer,
    UpdatePresetSerializer,
    WholePresetSerializer,
)
from accounts.views.creations import CreatingViewSet
from config.api.openapi import creation, operation
from config.api.params import UUIDParameter, read_parameter
from config.api.viewsets import make_destroy, make_list, make_retrieve
from config.changes.kinds import ChangeKind
from inference.faces.presets import read_preset

_Handler: TypeAlias = Callable[..., Response]
_WORKSPACE: Final = OpenApiParameter(
    "workspace_id", {**UUIDParameter.schema}, description="The default workspace if absent."
)
_BODIES: Final = {
    "chat/completions": "ChatRequest",
    "messages": "MessagesRequest",
    "responses": "ResponsesRequest",
}


def _stores(face: str) -> Callable[[_Handler], _Handler]:
    """Documents an operation that stores a preset from the body of a face."""
    name = "".join(part.title() for part in face.split("/"))
    body = {"application/json": {"$ref": f"#/components/schemas/{_BODIES[face]}"}}
    shape = {200: PresetResponseSerializer}
    return creation(f"createPresets{name}", body, shape, (400, 404, 409, 422))


class PresetViewSet(CreatingViewSet):
    """Defaults of requests, which a request takes over by naming the preset."""

    permission_classes = [ManagementKey]
    four_eyes: ClassVar = {"destroy": (ChangeKind.DELETIONS,)}
    queryset = Preset.objects.order_by("created_at", "id")
    serializer_class: type[PresetSerializer] = WholePresetSerializer
    lookup_field = "slug"
    not_found = PresetNotFound
    own_parameters = ("workspace_id",)
    shared_parameters = (_WORKSPACE,)
    schema_tag = "presets"

    def get_serializer_class(self) -> Any:
        return PresetSerializer if self.action == "list" else super().get_serializer_class()

    def get_queryset(self) -> QuerySet[Any]:
        return super().get_queryset().filter(workspace=self._workspace())

    list = make_list(
        "listPresets",
        PresetListSerializer,
        "Lists the presets of one workspace, oldest first.",
        (400, 404),
    )

    retrieve = make_retrieve(
        "getPreset",
        PresetResponseSerializer,
        "Shows a preset with the version that applies.",
        (400, 404),
    )

    @operation("updatePreset", UpdatePresetSerializer, PresetResponseSerializer, (400, 404))
    def partial_update(self, request: Request, slug: str) -> Response:
        """Changes the name, the description, the status, or the version that applies."""
        fields = self.read_body(UpdatePresetSerializer)
        preset: Preset = self.get_object()
        preset.change(**fields)
        return self.respond(preset)

    destroy = make_destroy(
        "deletePreset",
        "Deletes a preset with its versions. Requests that name it are refused from now on.",
        (400, 404),
    )

    @operation("listPresetVersions", None, PresetVersionListSerializer, (400, 404))
    @action(detail=True, serializer_class=PresetVersionSerializer, is_list=True)
    def versions(self, request: Request, slug: str) -> Response:
        """Lists the versions of a preset, newest first."""
        return self.respond_with_page(self.get_object().versions.order_by("-version"))

    @operation(
        "getPresetVersion",
        None,
        PresetVersionResponseSerializer,
        (400, 404),
        parameters=[OpenApiParameter("version", str, OpenApiParameter.PATH)],
    )
    @action(
        detail=True,
        url_path=r"versions/(?P<version>[^/]+)",
        serializer_class=PresetVersionSerializer,
    )
    def version(self, request: Request, slug: str, version: str) -> Response:
        """Shows one version of a preset."""
        preset: Preset = self.get_object()
        is_number = version.isascii() and version.isdigit() and len(version) < 8
        number = int(version) if is_number else 0
        found: PresetVersion | None = None
        if 0 < number <= 1_000_000:
            found = preset.versions.filter(version=number).first()
        if found is None:
            raise PresetNotFound("The preset has no version of this number.")
        return self.respond(found)

    @_stores("chat/completions")
    @action(detail=True, methods=["post"], url_path="chat/completions")
    def store_chat(self, request: Request, slug: str) -> Response:
        """Creates a preset, or a new version of it, from a chat completion. Nothing is sent."""
        return self._store("chat/completions", slug)

    @_stores("messages")
    @action(detail=True, methods=["post"], url_path="messages")
    def store_messages(self, request: Request, slug: str) -> Response:
        """Creates a preset, or a new version of it, from an Anthropic message. Nothing is sent."""
        return self._store("messages", slug)

    @_stores("responses")
    @action(detail=True, methods=["post"], url_path="responses")
    def store_responses(self, request: Request, slug: str) -> Response:
        """Creates a preset, or a new version of it, from a response's body. Nothing is sent."""
        return self._store("responses", slug)

    def _store(self, face: str, slug: str) -> Response:
        workspace = self._workspace()
        config, system_prompt = read_preset(face, self.request.body)
        stated = {"workspace": workspace.pk, "config": config, "system_prompt": system_prompt}
        preset, _ = self.run_once(
            stated,
            lambda _: (
                Preset.objects.store_version(
                    workspace, slug, config=config, system_prompt=system_prompt, by=self.actor
                ),
                None,
            ),
        )
        return self.respond(preset)

    def _workspace(self) -> Workspace:
        return workspace_for(
            self.organization_id, read_parameter(self.request, "workspace_id", UUIDParameter())
        )
