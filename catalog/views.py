"""The catalogue: models, their public endpoints and providers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Final, TypeVar, cast
from uuid import UUID

import msgspec
from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpResponse
from django_filters.rest_framework import DjangoFilterBackend
from drf_spectacular.utils import OpenApiParameter
from rest_framework.mixins import ListModelMixin
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from accounts.authentication import Anyone, ManagementKey, caller_or_none
from accounts.models import ApiKey, policy_of
from accounts.policy import Policy, require_ingress_region
from accounts.views.creations import CreatingViewSet, creates
from catalog.abilities import Abilities, read_settings
from catalog.aliases import changes
from catalog.aliases.names import ModelNotFound
from catalog.dialects.base import Operation
from catalog.lists import traffic
from catalog.lists.aliases import NamedCatalogue, read_own_aliases
from catalog.lists.filters import (
    CatalogueFilters,
    ModelFilters,
    OutputFilters,
    SortedFilters,
    criteria_of,
)
from catalog.lists.image_models import describe_endpoint, describe_model, find_parameters
from catalog.lists.listing import ListedModel, VisibleCatalogue, is_served, open_catalogue
from catalog.models import LanguageModel, ModelAlias, ModelEndpoint, Provider
from catalog.models.aliases import AliasNotFound
from catalog.serializers import (
    AliasListSerializer,
    AliasResponseSerializer,
    AliasSerializer,
    CreateAliasSerializer,
    EndpointListSerializer,
    ImageEndpointsSerializer,
    ImageModelListSerializer,
    ModelEndpointsResponseSerializer,
    ModelEndpointsSerializer,
    ModelListSerializer,
    ModelResponseSerializer,
    ModelsCountSerializer,
    ModelSerializer,
    OpenAIModelSerializer,
    ProviderListSerializer,
    ProviderSerializer,
    PublicEndpointSerializer,
    UpdateAliasSerializer,
)
from config.api.filters import StrictFilterSet, TextFilter
from config.api.openapi import DeletedSerializer, operation
from config.api.pagination import OffsetPagination, WholeList
from config.api.viewsets import make_list, make_retrieve
from config.changes.kinds import ChangeKind
from config.server.regions import region_of_host
from endpoints.models import PrivateEndpoint, proven_names

Models = Sequence[ListedModel]
_Operation = TypeVar("_Operation", bound=Callable[..., Any])

_ALL: Final = OpenApiParameter(
    "all",
    enum=["true"],
    description=CatalogueFilters.base_filters["all"].extra["help_text"],
)


class CataloguePagination(OffsetPagination):
    """The whole list, or one page of it when the request sends ``offset`` or ``limit``."""

    default_limit = 500
    max_limit = 1000

    def paginate_queryset(
        self, queryset: Any, request: Request, view: APIView | None = None
    ) -> list[Any]:
        self.count = len(queryset)
        offset, limit = self.get_offset(request), self.get_limit(request)
        self.next_link: str | None = None
        if request.query_params.keys().isdisjoint(("offset", "limit")):
            return list(queryset)
        end = offset + limit
        if end < self.count:
            query = request.query_params.copy()
            query["offset"], query["limit"] = str(end), str(limit)
            self.next_link = request.build_absolute_uri(f"{request.path}?{query.urlencode()}")
        return list(queryset[offset:end])

    def get_paginated_response(self, data: Sequence[Any]) -> HttpResponse:  # type: ignore[override]
        links = {"next": self.next_link}
        return _render({"data": list(data), "links": links, "total_count": self.count})


def _render(body: Any) -> HttpResponse:
    """Returns a response whose body contains models that are rendered already.

    Django REST Framework's renderer would encode them a second time.
    """
    return HttpResponse(msgspec.json.encode(body), content_type="application/json")


def _show_list(operation_id: str, body: Any) -> Callable[[_Operation], _Operation]:
    return operation(operation_id, None, body, (400,))


def _show_one(operation_id: str, body: Any) -> Callable[[_Operation], _Operation]:
    """Describes an operation on what a name means."""
    return operation(operation_id, None, body, (400, 404), parameters=[_ALL])


class _CatalogueViewSet(GenericViewSet[Any]):
    """Reads the catalogue."""

    permission_classes = [Anyone]
    queryset = LanguageModel.objects.all()
    serializer_class = ModelSerializer
    filter_backends = [DjangoFilterBackend]
    filterset_class: ClassVar[type[StrictFilterSet] | None] = None
    pagination_class: type[BasePagination] | None = CataloguePagination
    schema_tag = "models"

    @property
    def region(self) -> str | None:
        """Returns the region of the host name that the request was sent to."""
        return region_of_host(self.request.get_host(), settings.REGION_HOSTS)

    @cached_property
    def shows_all(self) -> bool:
        """Whether the catalogue is listed, and not only what the caller can call."""
        is_asked = CatalogueFilters.read(self.request)["all"] is not None
        return is_asked or settings.MODEL_LISTS == "all"

    def load_public_catalogue(self) -> VisibleCatalogue:
        """Returns what is open to everybody through this host, or what the caller's key can call.

        The key's policy does not narrow it. A caller's own models belong to it.
        """
        key = cast("ApiKey | None", self.request.auth)
        return open_catalogue(
            Policy.of(served_in=self.region),
            key=key,
            policy_of_key=None if key is None else partial(policy_of, key),
            shows_all=self.shows_all,
        )

    def load_callers_catalogue(self) -> VisibleCatalogue:
        """Returns the part of the catalogue that the caller's key may use through this host.

        Raises :class:`accounts.policy.RegionNotAllowed`.
        """
        key = cast(ApiKey, self.request.auth)
        policy = policy_of(key)
        require_ingress_region(policy, self.region)
        return open_catalogue(
            policy & Policy.of(served_in=self.region), key=key, shows_all=self.shows_all
        )

    def load_listed_catalogue(self) -> VisibleCatalogue:
        """Returns what ``GET /models`` lists; the key's policy narrows it if its owner wants."""
        key = cast("ApiKey | None", self.request.auth)
        if key is not None and key.organization.is_filtered_model_catalog_enabled:
            return self.load_callers_catalogue()
        return self.load_public_catalogue()

    def keep_callable(
        self, endpoints: Iterable[ModelEndpoint], visible: VisibleCatalogue | None = None
    ) -> Iterable[ModelEndpoint]:
        """Returns the public endpoints that the caller can call, or all of them."""
        if self.shows_all:
            return endpoints
        found = visible or self.load_public_catalogue()
        return [each for each in endpoints if found.has(each.model_id, each.pk)]

    def select(
        self, load: Callable[[], VisibleCatalogue], filters: type[StrictFilterSet]
    ) -> Models:
        """Returns the models of a catalogue that match the request's filters, in order."""
        values = filters.read(self.request)
        visible = load()
        found = visible.select(criteria_of(values), sort=values.get("sort"))
        return self.name_models(visible).add_aliases(found)

    def name_models(self, visible: VisibleCatalogue) -> NamedCatalogue:
        """Returns a catalogue with the aliases of the operator and of the caller."""
        caller = caller_or_none(self.request)
        own = read_own_aliases(None if caller is None else caller.organization_id)
        return NamedCatalogue(visible, own)

    def find_endpoints(self, name: str) -> tuple[LanguageModel, Iterable[ModelEndpoint]]:
        """Returns the model that a name means, with its public endpoints, the cheapest first.

        Raises :class:`ModelNotFound`.
        """
        visible = self.load_public_catalogue()
        found = self.name_models(visible).find(name)
        model = LanguageModel._base_manager.get(pk=found.model.pk)
        rows = _endpoints_in(self.region).filter(model=model).order_by("price__prompt", "pk")
        return model, self.keep_callable(rows, visible)

    def explain_hidden(self, slug: str) -> ModelNotFound:
        """Returns the error for a model that the catalogue has and the caller cannot call."""
        remedy = "" if self.shows_all else " The query parameter all=true shows the catalogue."
        return ModelNotFound(f"No endpoint that you may use serves the model {slug!r}.{remedy}")

    def respond_with_page(self, models: Models) -> HttpResponse:
        rows: Any = self.paginate_queryset(models)
        return self.get_paginated_response(self.get_serializer(rows, many=True).data)


class ModelViewSet(_CatalogueViewSet):
    """The public catalogue."""

    filterset_class = ModelFilters

    @_show_list("getModels", ModelListSerializer)
    def list(self, request: Request) -> HttpResponse:
        """Lists the models that can be called; without paging, all of them.

        Without a key, these are the publicly served models for which the operator has a credential;
        with a key, those that it can call, also with a credential or at a private endpoint of its
        organization. The operator may list the whole catalogue to everybody.

        Behind a model stand its aliases, with an `alias_target`: `~author/family-latest`, those of
        the operator, and with a key those of its organization. One with a `*` is not listed.

        A filter never changes the description of a model: its price is the cheapest endpoint's.
        """
        return self.respond_with_page(self.select(self.load_listed_catalogue, ModelFilters))

    @_show_one("getModel", ModelResponseSerializer)
    def retrieve(self, request: Request, author: str, slug: str) -> HttpResponse:
        """Shows a model that can be called, by any of its names; a variant is ignored.

        An alias is shown as a model with an `alias_target`.
        """
        visible = self.load_public_catalogue()
        found = self.name_models(visible).find(f"{author}/{slug}")
        if (shown := found.list_in(visible)) is None:
            raise self.explain_hidden(found.model.slug)
        [data] = self.get_serializer([shown], many=True).data
        return _render({"data": data})

    @_show_one("retrieveModel", OpenAIModelSerializer)
    def describe(self, request: Request, author: str, slug: str) -> HttpResponse:
        """Shows a model as clients of OpenAI read it: without an envelope.

        A key also finds the models that only its own organization serves, and its aliases.
        """
        return self._respond_with_model(f"{author}/{slug}")

    @_show_one("retrieveModelByBareName", OpenAIModelSerializer)
    def describe_bare(self, request: Request, name: str) -> HttpResponse:
        """Shows the model that a name without an author means, such as an alias or a bare name."""
        return self._respond_with_model(name)

    def _respond_with_model(self, name: str) -> HttpResponse:
        visible = self.load_public_catalogue()
        found = self.name_models(visible).find(name)
        shown = found.list_in(visible)
        if shown is None and self.request.auth is not None:
            shown = found.list_in(self.load_callers_catalogue())
        if shown is None:
            raise self.explain_hidden(found.model.slug)
        return _render(OpenAIModelSerializer().to_representation(shown))

    @_show_one("listEndpoints", ModelEndpointsResponseSerializer)
    def endpoints(self, request: Request, author: str, slug: str) -> Response:
        """Lists a model's public endpoints, the cheapest first; latency and uptime need a key.

        Those are left out that the caller has no credential for.

        An endpoint whose provider has no wire format for the model's operations is left out. Of a
        private model, they are the active endpoints of its organization.
        """
        model, found = self.find_endpoints(f"{author}/{slug}")
        endpoints = list(filter(is_served, found))
        if model.organization_id is not None:
            own = map(_show_as_public, PrivateEndpoint.objects.shown().filter(model=model))
            endpoints = list(self.keep_callable(own))
        context = {"endpoints": endpoints, "figures": _figures_for(request)}
        return Response({"data": ModelEndpointsSerializer(model, context=context).data})


class ModelsCountViewSet(_CatalogueViewSet):
    """The length of the public catalogue."""

    filterset_class = OutputFilters
    pagination_class = None

    @_show_list("listModelsCount", ModelsCountSerializer)
    def list(self, request: Request) -> Response:
        """Counts the models that `GET /models` lists."""
        return Response(
            {"data": {"count": len(self.select(self.load_listed_catalogue, OutputFilters))}}
        )


class EmbeddingsModelViewSet(_CatalogueViewSet):
    """The embedding models of the public catalogue."""

    filterset_class = CatalogueFilters
    schema_tag = "embeddings"

    @_show_list("listEmbeddingsModels", ModelListSerializer)
    def list(self, request: Request) -> HttpResponse:
        """Lists the publicly served embedding models; without paging, all of them."""
        criteria = criteria_of({"output_modalities": ["embeddings"]})
        visible = self.load_public_catalogue()
        models = self.name_models(visible).add_aliases(visible.select(criteria))
        return self.respond_with_page(models)


class ImageModelViewSet(_CatalogueViewSet):
    """The image models of the public catalogue, as clients of `POST /images` read them."""

    filterset_class = CatalogueFilters
    pagination_class = None
    schema_tag = "images"

    @_show_list("listImageModels", ImageModelListSerializer)
    def list(self, request: Request) -> Response:
        """Lists the publicly served models that make images, with the parameters of a request.

        With a key, also those that private endpoints of its organization serve.
        """
        visible = self.load_public_catalogue()
        found: dict[LanguageModel, set[str]] = {}
        endpoints = _endpoints_in(self.region).filter(model__output_modalities__contains=["image"])
        own = self._list_own(model__output_modalities__contains=["image"])
        for endpoint in self.keep_callable([*endpoints, *own], visible):
            names = find_parameters(endpoint)
            if names is not None and visible.find(endpoint.model_id) is not None:
                found.setdefault(endpoint.model, set()).update(names)
        models = sorted(found, key=lambda model: (-model.created, model.slug))
        return Response({"data": [describe_model(model, found[model]) for model in models]})

    def _list_own(self, **only: Any) -> Iterator[ModelEndpoint]:
        """Returns the active private endpoints of the caller to which requests for images may go.

        They are shown as public ones are.
        """
        if (caller := caller_or_none(self.request)) is None:
            return iter(())
        rows = PrivateEndpoint.objects.for_organization(caller.organization_id).shown()
        return map(_show_as_public, filter(_may_make_images, rows.filter(**only)))

    @_show_one("listImageModelEndpoints", ImageEndpointsSerializer)
    def endpoints(self, request: Request, author: str, slug: str) -> Response:
        """Lists the public endpoints that make images with a model, the cheapest first."""
        model, found = self.find_endpoints(f"{author}/{slug}")
        if model.organization_id is not None:
            found = self.keep_callable(self._list_own(model=model))
        rows = [
            describe_endpoint(endpoint, names)
            for endpoint in found
            if (names := find_parameters(endpoint)) is not None
        ]
        if not rows:
            raise ModelNotFound(f"No public endpoint makes images with the model {model.slug!r}.")
        return Response({"id": model.slug, "endpoints": rows})


class UserModelViewSet(_CatalogueViewSet):
    """The catalogue as the caller may use it."""

    permission_classes = [ManagementKey]
    filterset_class = SortedFilters

    @operation("listModelsUser", None, ModelListSerializer, (400, 404))
    def list(self, request: Request) -> HttpResponse:
        """Lists the models that the caller may use; without paging, all of them."""
        return self.respond_with_page(self.select(self.load_callers_catalogue, SortedFilters))


class ZdrEndpointViewSet(_CatalogueViewSet):
    """The public endpoints with zero data retention."""

    filterset_class = CatalogueFilters
    pagination_class = None

    @_show_list("listEndpointsZdr", EndpointListSerializer)
    def list(self, request: Request) -> Response:
        """Lists the public endpoints that keep no data; latency and uptime need a key."""
        found = (
            _endpoints_in(self.region)
            .filter(zdr=True)
            .order_by("model__slug", "price__prompt", "pk")
        )
        endpoints: Any = list(filter(is_served, self.keep_callable(found)))
        context = {"figures": _figures_for(request)}
        data = PublicEndpointSerializer(endpoints, many=True, context=context).data
        return Response({"data": data})


class ProviderViewSet(ListModelMixin, GenericViewSet[Provider]):
    """The providers of the catalogue."""

    permission_classes = [Anyone]
    queryset = Provider.objects.filter(is_listed=True).order_by("slug")
    serializer_class = ProviderSerializer
    pagination_class = WholeList
    schema_tag = "providers"

    @operation("listProviders", None, ProviderListSerializer)
    def list(self, request: Request) -> Response:
        """Lists all providers, by slug."""
        return super().list(request)


class AliasFilters(StrictFilterSet):
    name = TextFilter(help_text="Exactly this name.")


class AliasViewSet(CreatingViewSet):
    """Other names for models, which the organization's own requests may send."""

    permission_classes = [ManagementKey]
    four_eyes: ClassVar = {"destroy": (ChangeKind.DELETIONS,)}
    queryset = ModelAlias.objects.order_by("created_at", "id")
    serializer_class = AliasSerializer
    filterset_class = AliasFilters
    not_found = AliasNotFound
    schema_tag = "aliases"

    list = make_list(
        "listAliases",
        AliasListSerializer,
        "Lists the organization's aliases, oldest first; those of the operator are not listed.",
    )

    @creates("createAlias", CreateAliasSerializer, AliasResponseSerializer, (404, 409, 422))
    def create(self, fields: dict[str, Any]) -> ModelAlias:
        """Creates an alias, which holds from the next request on.

        It wins over an alias of the operator and over every built-in name, but never over the name
        of a model.
        """
        return changes.create_alias(organization_id=self.organization_id, **fields)

    retrieve = make_retrieve("getAlias", AliasResponseSerializer, "Shows an alias.")

    @operation("updateAlias", UpdateAliasSerializer, AliasResponseSerializer, (404, 409, 422))
    def partial_update(self, request: Request, pk: str) -> Response:
        """Changes the fields that are sent; a list replaces the old one."""
        fields = self.read_body(UpdateAliasSerializer)
        alias = self.get_object()
        changes.edit_alias(alias, **fields)
        return self.respond(alias)

    @operation("deleteAlias", None, {200: DeletedSerializer}, (404,))
    def destroy(self, request: Request, pk: str) -> Response:
        """Deletes an alias; the next request no longer knows the name."""
        changes.remove_alias(self.get_object())
        return Response({"deleted": True})


def _may_make_images(endpoint: PrivateEndpoint) -> bool:
    """Returns whether the validation of an endpoint has not found that images are refused."""
    validation = endpoint.validation
    proven = None if validation is None else proven_names(validation.operations)
    return proven is None or Operation.IMAGES in proven


def _show_as_public(endpoint: PrivateEndpoint) -> ModelEndpoint:
    """Returns the row, which is not stored, by which a private endpoint is shown like others."""
    settings = read_settings(endpoint.settings)
    provider = endpoint.upstream_provider
    stated = endpoint.settings.items()
    shown = ModelEndpoint(
        pk=endpoint.pk,
        model=endpoint.model,
        provider=Provider(
            slug=provider.slug, name=endpoint.provider_name, dialect=provider.dialect
        ),
        price=endpoint.price,
        context_length=settings.context_length,
        max_completion_tokens=settings.max_completion_tokens,
        quantization=settings.quantization,
        supported_parameters=endpoint.offered_parameters,
        abilities={name: value for name, value in stated if name in Abilities.__struct_fields__},
    )
    # If all are excluded, it supports none, whatever its model lists.
    shown.listed_parameters = shown.supported_parameters
    return shown


def _endpoints_in(region: str | None) -> QuerySet[ModelEndpoint]:
    """Returns the public endpoints that may serve requests of an ingress region."""
    endpoints = ModelEndpoint.objects.routable().select_related("model", "provider", "price")
    return endpoints if region is None else endpoints.filter(region=region)


def _figures_for(request: Request) -> dict[UUID, traffic.TrafficFigures]:
    """Returns the recent figures of all endpoints, none for a caller without a key."""
    return {} if caller_or_none(request) is None else traffic.figures()
