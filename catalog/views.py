"""The catalogue: the models, their public endpoints and the providers."""

from __future__ import annotations

from typing import Any, ClassVar, Final, cast
from uuid import UUID

import msgspec
from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from msgspec import Raw
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.authentication import Anyone, ManagementKey, caller_or_none
from accounts.models import (
    ApiKey,
    policy_of,
)
from accounts.policy import Policy, require_ingress_region
from catalog.lists import traffic
from catalog.lists.filters import (
    FILTER_PARAMETERS,
    OUTPUT_MODALITIES_PARAMETER,
    SORT_PARAMETER,
    makes_any_of,
    output_modalities,
    sort_order,
    wanted_models,
)
from catalog.lists.listing import Shelf, Shown, Sight, Wanted, resolve
from catalog.models import ModelEndpoint, Provider
from catalog.names import ModelNotFound
from catalog.serializers import (
    EndpointListSerializer,
    ModelEndpointsResponseSerializer,
    ModelEndpointsSerializer,
    ModelListSerializer,
    ModelResponseSerializer,
    ModelsCountSerializer,
    ModelSerializer,
    ProviderListSerializer,
    ProviderSerializer,
    PublicEndpointSerializer,
)
from config.api.openapi import PAGE_PARAMETERS, errors
from config.api.params import next_link, query_integer
from config.server.regions import region_of_host

_DEFAULT_LIMIT: Final = 500
_MAXIMUM_LIMIT: Final = 1000


class _CatalogueView(APIView):
    """Sees the catalogue, of which all views of a process share one copy."""

    schema_tag = "models"
    shelf: ClassVar = Shelf()

    def public_sight(self, request: Request) -> Sight:
        """Returns what anyone may use who comes through this host."""
        return Sight(self.shelf.catalogue(), _served_in(_region(request)))

    def callers_sight(self, request: Request) -> Sight:
        """Returns what the caller's key may use through this host.

        Raises :class:`accounts.policy.RegionNotAllowed`.
        """
        key = cast(ApiKey, request.auth)
        policy, region = policy_of(key), _region(request)
        require_ingress_region(policy, region)
        return Sight(
            self.shelf.catalogue(),
            policy & _served_in(region),
            organization_id=key.organization_id,
        )


class _PublicView(_CatalogueView):
    """Open to everyone."""

    permission_classes = [Anyone]


class ModelsView(_PublicView):
    """The public catalogue."""

    @extend_schema(
        operation_id="getModels",
        parameters=[*PAGE_PARAMETERS, *FILTER_PARAMETERS, SORT_PARAMETER],
        responses=ModelListSerializer,
        extensions=errors(400),
    )
    def get(self, request: Request) -> HttpResponse:
        """Lists the models that are publicly served; without paging, all of them.

        A filter never changes what is said of a model: its price is the cheapest endpoint's.
        """
        wanted, sort = wanted_models(request), sort_order(request)
        key = cast("ApiKey | None", request.auth)
        is_filtered = key is not None and key.organization.is_filtered_model_catalog_enabled
        sight = self.callers_sight(request) if is_filtered else self.public_sight(request)
        return _models_page(request, sight.select(wanted, sort=sort))


class ModelsCountView(_PublicView):
    """How long the public catalogue is."""

    @extend_schema(
        operation_id="listModelsCount",
        parameters=[OUTPUT_MODALITIES_PARAMETER],
        responses=ModelsCountSerializer,
        extensions=errors(400),
    )
    def get(self, request: Request) -> Response:
        """Counts the models that are publicly served."""
        wanted = Wanted(models=output_modalities(request))
        return Response({"data": {"count": len(self.public_sight(request).select(wanted))}})


class EmbeddingsModelsView(_PublicView):
    """The public catalogue's models that make embeddings."""

    schema_tag = "embeddings"

    @extend_schema(
        operation_id="listEmbeddingsModels",
        parameters=[*PAGE_PARAMETERS],
        responses=ModelListSerializer,
        extensions=errors(400),
    )
    def get(self, request: Request) -> HttpResponse:
        """Lists the embedding models that are publicly served; without paging, all of them."""
        wanted = Wanted(models=(makes_any_of(("embeddings",)),))
        return _models_page(request, self.public_sight(request).select(wanted))


class UserModelsView(_CatalogueView):
    """The catalogue through the caller's eyes."""

    permission_classes = [ManagementKey]

    @extend_schema(
        operation_id="listModelsUser",
        parameters=[*PAGE_PARAMETERS, OUTPUT_MODALITIES_PARAMETER, SORT_PARAMETER],
        responses=ModelListSerializer,
        extensions=errors(400, 404),
    )
    def get(self, request: Request) -> HttpResponse:
        """Lists the models that the caller may use; without paging, all of them."""
        wanted, sort = Wanted(models=output_modalities(request)), sort_order(request)
        return _models_page(request, self.callers_sight(request).select(wanted, sort=sort))


class ModelView(_PublicView):
    """One model of the public catalogue."""

    @extend_schema(
        operation_id="getModel", responses=ModelResponseSerializer, extensions=errors(404)
    )
    def get(self, request: Request, author: str, slug: str) -> HttpResponse:
        """Shows a publicly served model, by public or canonical slug, a variant suffix or not."""
        model = resolve(author, slug)
        shown = self.public_sight(request).find(model.pk)
        if shown is None:
            raise ModelNotFound(f"Nobody serves {model.slug!r} publicly.")
        return _rendered({"data": _models([shown])[0]})


class ModelEndpointsView(_PublicView):
    """The public endpoints of one model."""

    @extend_schema(
        operation_id="listEndpoints",
        responses=ModelEndpointsResponseSerializer,
        extensions=errors(404),
    )
    def get(self, request: Request, author: str, slug: str) -> Response:
        """Lists a model's public endpoints, the cheapest first; latency and uptime need a key."""
        model = resolve(author, slug)
        endpoints = _endpoints(request).filter(model=model).order_by("price__prompt", "pk")
        context = {"endpoints": endpoints, "figures": _figures(request)}
        return Response({"data": ModelEndpointsSerializer(model, context=context).data})


class ZdrEndpointsView(_PublicView):
    """The public endpoints that remain under zero data retention."""

    @extend_schema(operation_id="listEndpointsZdr", responses=EndpointListSerializer)
    def get(self, request: Request) -> Response:
        """Lists public endpoints that keep no data; latency and uptime need a key."""
        endpoints: Any = (
            _endpoints(request).filter(zdr=True).order_by("model__slug", "price__prompt", "pk")
        )
        context = {"figures": _figures(request)}
        return Response(
            {"data": PublicEndpointSerializer(endpoints, many=True, context=context).data}
        )


class ProvidersView(_PublicView):
    """The providers of the catalogue."""

    schema_tag = "providers"

    @extend_schema(operation_id="listProviders", responses=ProviderListSerializer)
    def get(self, request: Request) -> Response:
        """Lists the providers, all of them, by slug."""
        providers: Any = Provider.objects.filter(is_listed=True).order_by("slug")
        return Response({"data": ProviderSerializer(providers, many=True).data})


def _region(request: Request) -> str | None:
    return region_of_host(request.get_host(), settings.REGION_HOSTS)


def _served_in(region: str | None) -> Policy:
    return Policy.of(served_in=region)


def _endpoints(request: Request) -> QuerySet[ModelEndpoint]:
    """Returns the public endpoints that may serve what comes through this host."""
    endpoints = ModelEndpoint.objects.routable().select_related("model", "provider", "price")
    region = _region(request)
    return endpoints if region is None else endpoints.filter(region=region)


def _figures(request: Request) -> dict[UUID, traffic.Figures]:
    """Returns what only callers with a key are shown."""
    return {} if caller_or_none(request) is None else traffic.figures()


def _models_page(request: Request, found: list[Shown]) -> HttpResponse:
    """Answers with the page of the list that the request asks for, or with all of it."""
    offset = query_integer(request, "offset", minimum=0)
    limit = query_integer(request, "limit", minimum=1, maximum=_MAXIMUM_LIMIT)
    total_count = len(found)
    link = None
    if offset is not None or limit is not None:
        offset, limit = offset or 0, limit or _DEFAULT_LIMIT
        found = found[offset : offset + limit]
        link = next_link(request, offset=offset, limit=limit, total_count=total_count)
    return _rendered({"data": _models(found), "links": {"next": link}, "total_count": total_count})


def _models(found: list[Shown]) -> list[Raw]:
    offers = {entry.pk: offer for entry, offer in found}
    entries: Any = [entry for entry, _ in found]
    return list(ModelSerializer(entries, many=True, context={"offers": offers}).data)


def _rendered(body: dict[str, Any]) -> HttpResponse:
    """Answers with a body whose models are rendered, which the usual renderer would do again."""
    return HttpResponse(msgspec.json.encode(body), content_type="application/json")
