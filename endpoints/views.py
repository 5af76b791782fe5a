"""The private endpoints, providers and models of the caller's organization."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Final, cast

from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer

from accounts.authentication import (
    ManagementKey,
    judge_again,
    needs_second_person,
    require_one_person,
)
from accounts.models import workspace_for
from accounts.views.creations import CreatingViewSet, creates
from catalog.models import LanguageModel
from config.api.fields import StrictSerializer
from config.api.filters import ChoiceFilter, MatchFilter, StrictFilterSet
from config.api.idempotency import idempotency_key_of
from config.api.openapi import ErrorSerializer, creation, operation
from config.api.pagination import OffsetPagination, WholeList
from config.api.params import FlagParameter, read_parameter
from config.api.text import parse_uuid
from config.api.viewsets import OrganizationViewSet, make_list, make_retrieve
from config.changes.kinds import ChangeKind
from config.egress.rules import NO_OWN_LIMITS
from endpoints.activation import (
    NotActivated,
    validate_and_activate,
    validate_and_replace,
    validate_only,
)
from endpoints.history import find_moments, read_entries
from endpoints.models import (
    EndpointNotFound,
    OwnModelNotFound,
    PrivateEndpoint,
    PrivateProvider,
    PrivateProviderNotFound,
    ValidationSlot,
    create_own_model,
    edit_own_model,
    remove_own_model,
)
from endpoints.serializers import (
    CreatedResponseSerializer,
    CreateOwnModelSerializer,
    CreateProviderSerializer,
    CreateSerializer,
    DeletedOwnModelResponseSerializer,
    DeletedProviderResponseSerializer,
    DeletedResponseSerializer,
    DisabledResponseSerializer,
    FailureDataSerializer,
    FullResponseSerializer,
    FullSerializer,
    HistoryResponseSerializer,
    HistorySerializer,
    ManagedResponseSerializer,
    ManagedSerializer,
    OwnModelListSerializer,
    OwnModelResponseSerializer,
    OwnModelSerializer,
    PrivateProviderSerializer,
    ProviderListSerializer,
    ProviderResponseSerializer,
    SummaryListSerializer,
    SummarySerializer,
    UpdatedResponseSerializer,
    UpdateOwnModelSerializer,
    UpdateParametersSerializer,
    UpdatePricingSerializer,
    UpdateProviderSerializer,
    UpdateSerializer,
    UpdateTimeoutsSerializer,
    ValidationFailedSerializer,
    ValidationRequestSerializer,
    ValidationResponseSerializer,
    ValidationSerializer,
)
from endpoints.validation import Asker, HostScope
from inference.reports.usage.consequences import describe_end

_ERROR_OR_DRAFT: Final = PolymorphicProxySerializer(
    component_name="PrivateEndpointCreateError",
    serializers=[ValidationFailedSerializer, ErrorSerializer],
    resource_type_field_name=None,
)
# The shape of each action's response; the others respond with FullSerializer.
_SHAPES: Final[dict[str, type[Serializer[Any]]]] = {
    "list": SummarySerializer,
    "history": HistorySerializer,
    "create": ManagedSerializer,
    "validate": ValidationSerializer,
    "activate": ManagedSerializer,
    "enable": ManagedSerializer,
    "disable": ManagedSerializer,
}
_WRITE_ERRORS: Final = (400, 404, 408, 409, 422, 502)


class PrivateEndpointFilters(StrictFilterSet):
    """Extensions: the filters of the list of private endpoints."""

    status = ChoiceFilter(choices=PrivateEndpoint.Status.values)
    model = MatchFilter(
        "model__canonical_slug", "model__slug", help_text="The slug or the permanent slug."
    )
    provider = MatchFilter(
        "provider__slug", "private_provider__slug", help_text="The slug of the provider."
    )


class PrivateEndpointViewSet(OrganizationViewSet):
    """Creates, validates, activates and manages private endpoints."""

    permission_classes = [ManagementKey]
    four_eyes: ClassVar = {
        "pricing": (ChangeKind.PRICES,),
        "destroy": (ChangeKind.DELETIONS,),
    }
    queryset = PrivateEndpoint.objects.select_related(
        "model", "provider", "private_provider", "price", "validation"
    )
    filterset_class = PrivateEndpointFilters
    pagination_class = WholeList
    not_found = EndpointNotFound
    schema_tag = "private-endpoints"

    def get_serializer_class(self) -> type[Serializer[Any]]:
        return _SHAPES.get(self.action, FullSerializer)

    def handle_exception(self, exc: Exception) -> Response:
        """Shows the kept draft and its validation beside the error of a failed activation."""
        if isinstance(exc, NotActivated):
            exc.details = {"data": FailureDataSerializer(exc).data}
        return super().handle_exception(exc)

    list = make_list(
        "listPrivateEndpoints",
        SummaryListSerializer,
        "Lists every private endpoint of the organization, drafts included.",
    )

    @creation(
        "createPrivateEndpoint",
        CreateSerializer,
        {
            201: CreatedResponseSerializer,
            **dict.fromkeys((404, 409, 422, 500, 502), _ERROR_OR_DRAFT),
        },
        (400, 408, 429),
    )
    def create(self, request: Request) -> Response:
        """Creates a draft; with `activate`, also validates it by a live call and activates it.

        With `model`, it also creates the private model of `model_permaslug`, or neither of them.
        A repeated request whose activation still runs is answered with the draft and with
        `activation: running`.
        """
        key = idempotency_key_of(request.headers)
        fields = {"base_url": None, **self.read_body(CreateSerializer)}
        _require_one_person_for_prices(request)
        fields |= fields.pop("settings", None) or {}
        # A first level may allow more than the one that other endpoints of the model inherit.
        if fields.get("fallback") is not None:
            require_one_person(request, ChangeKind.GUARDRAILS)
        activation = fields.pop("activate", None)
        slot = None if activation is None else ValidationSlot(organization_id=self.organization_id)
        endpoint, is_new = PrivateEndpoint.objects.create_draft(
            organization_id=self.organization_id,
            idempotency_key=key,
            slot=slot,
            by=self.actor,
            **fields,
        )
        if is_new and slot is not None:
            asker = _asker_of(request)
            validate_and_activate(endpoint, slot=slot, by=self.actor, asker=asker, **activation)
        body = {"data": self.get_serializer(endpoint).data}
        if not is_new and endpoint.is_activating:
            body["activation"] = "running"
        return Response(body, status=201)

    retrieve = make_retrieve(
        "getPrivateEndpoint",
        FullResponseSerializer,
        "Shows one private endpoint with its upstream configuration and price.",
    )

    @operation(
        "updatePrivateEndpoint",
        UpdateSerializer,
        {
            200: UpdatedResponseSerializer,
            **dict.fromkeys((404, 409, 422, 500, 502), _ERROR_OR_DRAFT),
        },
        (400, 408, 429),
    )
    def partial_update(self, request: Request, pk: str) -> Response:
        """Changes what is named; a change of a draft's upstream clears its validation.

        Everything is optional, and all is checked before anything is written. A change of the
        upstream clears declarations that it does not name; the answer says so. Prices, parameters,
        limits of time and settings can be changed of an active endpoint too, for later requests.
        Its upstream can with `activate`: the changed endpoint is validated first. If that fails,
        nothing is changed.
        """
        fields = self.read_body(UpdateSerializer)
        _require_one_person_for_prices(request)
        fields |= fields.pop("settings", None) or {}
        activation = fields.pop("activate", None)
        endpoint = self.get_object()
        declared = endpoint.declarations
        with transaction.atomic():
            _guard_fallback(request, endpoint, fields)
            if activation is None:
                endpoint.edit(by=self.actor, **fields)
        if activation is not None:
            asker = _asker_of(request)
            validate_and_replace(endpoint, fields, by=self.actor, asker=asker, **activation)
        body = {"data": self.get_serializer(endpoint).data}
        cleared = [name for name in declared if name not in endpoint.declarations]
        return Response({**body, "cleared": cleared} if cleared else body)

    @operation(
        "deletePrivateEndpoint",
        None,
        {200: DeletedResponseSerializer},
        _WRITE_ERRORS,
        parameters=[
            OpenApiParameter(
                "draft_only", bool, description="Refuse once the endpoint has been activated."
            ),
            OpenApiParameter(
                "release",
                bool,
                description="Extension: let requests for the model go to public endpoints again. "
                "Releases the model of an endpoint that is deleted already, too.",
            ),
        ],
    )
    def destroy(self, request: Request, pk: str) -> Response:
        """Deletes a private endpoint; nothing is routed to it any more.

        If it was ever active, its model stays private: requests for it are refused unless another
        private endpoint serves them, they list a public provider, or they may fall back.
        """
        draft_only = read_parameter(request, "draft_only", FlagParameter())
        release = read_parameter(request, "release", FlagParameter())
        endpoint = self._find_deleted(pk) if release and not draft_only else None
        if endpoint is not None:
            endpoint.release(by=self.actor)
        else:
            endpoint = self.get_object()
            endpoint.remove(draft_only=draft_only, release=release, by=self.actor)
        return Response({"data": {"id": str(endpoint.pk)}, "traffic": describe_end(endpoint)})

    def _find_deleted(self, pk: str) -> PrivateEndpoint | None:
        return (
            self.queryset.filter(organization_id=self.organization_id, pk=parse_uuid(pk))
            .exclude(deleted_at=None)
            .first()
        )

    @operation(
        "validatePrivateEndpoint",
        ValidationRequestSerializer,
        ValidationResponseSerializer,
        (*_WRITE_ERRORS, 429),
    )
    @action(detail=True, methods=["post"])
    def validate(self, request: Request, pk: str) -> Response:
        """Makes a live plain and a streamed call with the workspace's BYOK credential.

        It is for drafts, and with `again` for active and disabled endpoints. Unless
        `probe_parameters` is false, it also tries which parameters the deployment honours, which
        costs up to 15 more calls. At most two validations of an organization run at a time.
        """
        fields = self.read_body(ValidationRequestSerializer)
        endpoint = self.get_object()
        workspace = workspace_for(self.organization_id, fields["workspace_id"])
        result = validate_only(
            endpoint,
            workspace_id=workspace.pk,
            again=bool(fields.get("again")),
            asker=_asker_of(request),
            probe_parameters=fields.get("probe_parameters"),
        )
        return self.respond(result)

    @operation("activatePrivateEndpoint", None, ManagedResponseSerializer, _WRITE_ERRORS)
    @action(detail=True, methods=["post"])
    def activate(self, request: Request, pk: str) -> Response:
        """Activates a draft whose validation passed and is current."""
        self.read_body(StrictSerializer)
        endpoint = self.get_object()
        endpoint.activate(by=self.actor)
        return self.respond(endpoint)

    @operation("enablePrivateEndpoint", None, ManagedResponseSerializer, _WRITE_ERRORS)
    @action(detail=True, methods=["post"])
    def enable(self, request: Request, pk: str) -> Response:
        """Routes to a disabled endpoint again.

        If its provider or its model has changed meanwhile, it must be validated with `again` first.
        """
        self.read_body(StrictSerializer)
        endpoint = self.get_object()
        endpoint.enable(by=self.actor)
        return self.respond(endpoint)

    @operation("disablePrivateEndpoint", None, DisabledResponseSerializer, _WRITE_ERRORS)
    @action(detail=True, methods=["post"])
    def disable(self, request: Request, pk: str) -> Response:
        """Stops routing to an active endpoint and keeps it; its model stays private."""
        self.read_body(StrictSerializer)
        endpoint = self.get_object()
        endpoint.disable(by=self.actor)
        data = self.get_serializer(endpoint).data
        return Response({"data": data, "traffic": describe_end(endpoint)})

    @operation("getPrivateEndpointHistory", None, HistoryResponseSerializer, (400, 404))
    @action(detail=True, pagination_class=OffsetPagination, filterset_class=None, is_list=True)
    def history(self, request: Request, pk: str) -> Response:
        """Extension: lists what happened to an endpoint, latest first, and who did it.

        Validations, what each watch has found and how much of it differs, attestations, and changes
        of state, upstream, prices and settings.
        """
        endpoint = self.get_object()
        moments = self.paginate_queryset(find_moments(endpoint)) or ()
        entries: Any = read_entries(endpoint, moments)
        return self.get_paginated_response(HistorySerializer(entries, many=True).data)

    @operation(
        "updatePrivateEndpointPricing",
        UpdatePricingSerializer,
        FullResponseSerializer,
        _WRITE_ERRORS,
    )
    @action(detail=True, methods=["put"])
    def pricing(self, request: Request, pk: str) -> Response:
        """Replaces the negotiated rates, for later requests only."""
        fields = self.read_body(UpdatePricingSerializer)
        endpoint = self.get_object()
        endpoint.reprice(fields["pricing"])
        return self.respond(endpoint)

    @operation(
        "updatePrivateEndpointParameters",
        UpdateParametersSerializer,
        FullResponseSerializer,
        _WRITE_ERRORS,
    )
    @action(detail=True, methods=["put"])
    def parameters(self, request: Request, pk: str) -> Response:
        """Replaces the declared parameters, for later requests only."""
        fields = self.read_body(UpdateParametersSerializer)
        endpoint = self.get_object()
        endpoint.edit(by=self.actor, **fields)
        return self.respond(endpoint)

    @operation(
        "updatePrivateEndpointTimeouts",
        UpdateTimeoutsSerializer,
        FullResponseSerializer,
        _WRITE_ERRORS,
    )
    @action(detail=True, methods=["put"])
    def timeouts(self, request: Request, pk: str) -> Response:
        """Replaces the limits of time, for later requests only; null for the operator's."""
        fields = self.read_body(UpdateTimeoutsSerializer)
        endpoint = self.get_object()
        endpoint.limit_time(fields["time_limits"] or NO_OWN_LIMITS)
        return self.respond(endpoint)


class PrivateProviderViewSet(CreatingViewSet):
    """Names under which the organization registers servers of its own."""

    permission_classes = [ManagementKey]
    four_eyes: ClassVar = dict.fromkeys(("create", "partial_update"), (ChangeKind.CREDENTIALS,))
    queryset = PrivateProvider.objects.order_by("created_at", "id")
    serializer_class = PrivateProviderSerializer
    pagination_class = WholeList
    lookup_field = "slug"
    not_found = PrivateProviderNotFound
    schema_tag = "private-providers"

    list = make_list(
        "listPrivateProviders",
        ProviderListSerializer,
        "Lists the private providers of the organization, oldest first.",
        (),
    )

    @creates(
        "createPrivateProvider",
        CreateProviderSerializer,
        ProviderResponseSerializer,
        (400, 409, 422),
    )
    def create(self, fields: dict[str, Any]) -> PrivateProvider:
        """Creates a private provider: a name and an OpenAI-compatible API.

        Its slug is what `provider_slug` of a private endpoint, `provider` of a BYOK key, and
        `provider.order`, `only` and `ignore` of a request take.
        """
        return PrivateProvider.objects.create_provider(
            organization_id=self.organization_id, **fields
        )

    retrieve = make_retrieve(
        "getPrivateProvider", ProviderResponseSerializer, "Shows a private provider."
    )

    @operation(
        "updatePrivateProvider",
        UpdateProviderSerializer,
        ProviderResponseSerializer,
        (400, 404, 409, 422),
    )
    def partial_update(self, request: Request, slug: str) -> Response:
        """Changes the members that are sent; name and slug never change.

        An active endpoint that inherits the address, or was validated with the old use of keys, is
        disabled first.
        """
        fields = self.read_body(UpdateProviderSerializer)
        provider = self.get_object()
        provider.edit(**fields)
        return self.respond(provider)

    @operation("deletePrivateProvider", None, {200: DeletedProviderResponseSerializer}, (404, 409))
    def destroy(self, request: Request, slug: str) -> Response:
        """Deletes a private provider under which no endpoint runs."""
        provider = self.get_object()
        provider.remove()
        return Response({"data": {"slug": provider.slug}})


class OwnModelViewSet(CreatingViewSet):
    """Models that only their organization sees and calls."""

    permission_classes = [ManagementKey]
    queryset = LanguageModel.objects.none()
    serializer_class = OwnModelSerializer
    pagination_class = WholeList
    lookup_field = "slug"
    not_found = OwnModelNotFound
    schema_tag = "private-models"

    def get_queryset(self) -> QuerySet[Any]:
        rows: Any = LanguageModel.objects.owned_by(self.organization_id)
        return cast("QuerySet[Any]", rows.order_by("created_at", "id"))

    def get_object(self) -> Any:
        return self.find("{author}/{slug}".format(**self.kwargs))

    list = make_list(
        "listPrivateModels",
        OwnModelListSerializer,
        "Lists the private models of the organization, oldest first.",
        (),
    )

    @creates(
        "createPrivateModel",
        CreateOwnModelSerializer,
        OwnModelResponseSerializer,
        (400, 404, 409, 422),
    )
    def create(self, fields: dict[str, Any]) -> LanguageModel:
        """Creates a private model; its endpoints are private endpoints that name its slug."""
        return create_own_model(self.organization_id, **fields)

    retrieve = make_retrieve(
        "getPrivateModel", OwnModelResponseSerializer, "Shows a private model."
    )

    @operation(
        "updatePrivateModel", UpdateOwnModelSerializer, OwnModelResponseSerializer, (400, 404, 409)
    )
    def partial_update(self, request: Request, author: str, slug: str) -> Response:
        """Changes the members that are sent; another base model changes all that is taken from it.

        The base stays while an endpoint is active. A change makes validations of drafts stale.
        """
        fields = self.read_body(UpdateOwnModelSerializer)
        model = self.get_object()
        edit_own_model(model, **fields)
        return self.respond(model)

    @operation("deletePrivateModel", None, {200: DeletedOwnModelResponseSerializer}, (404, 409))
    def destroy(self, request: Request, author: str, slug: str) -> Response:
        """Deletes a private model all of whose endpoints are deleted."""
        model = self.get_object()
        remove_own_model(model)
        return Response({"data": {"slug": model.slug}})


def _asker_of(request: Request) -> Asker:
    """Returns who asks for a validation; an operator's key alone names no host."""
    is_alone = needs_second_person(request, ChangeKind.CREDENTIALS)
    scope = HostScope.NAMED if is_alone else HostScope.PERMITTED
    return Asker(partial(judge_again, request), scope)


def _guard_fallback(request: Request, endpoint: PrivateEndpoint, fields: dict[str, Any]) -> None:
    """Raises :class:`AnotherOperatorNeeded` if the fields change the level of an endpoint.

    Locks the endpoint until the transaction ends. A level that stays is left out of the fields: its
    owner may set another one while a validation runs.
    """
    if "fallback" not in fields:
        return
    endpoint.lock_present()
    if fields["fallback"] == endpoint.fallback:
        del fields["fallback"]
    else:
        require_one_person(request, ChangeKind.GUARDRAILS)


def _require_one_person_for_prices(request: Request) -> None:
    """Raises :class:`AnotherOperatorNeeded` if the body, which is valid, has a price."""
    if cast("dict[str, Any]", request.data).get("pricing") is not None:
        require_one_person(request, ChangeKind.PRICES)
