"""The catalogue: the models, their public endpoints and the providers."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from django.db.models import Q
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.authentication import Anyone, ManagementKey, caller_of, caller_or_none
from accounts.policy import Policy
from catalog import traffic
from catalog.filters import (
    FILTER_PARAMETERS,
    OUTPUT_MODALITIES_PARAMETER,
    SORT_PARAMETER,
    output_modalities,
    sort_order,
    wanted_models,
)
from catalog.listing import Offers, Wanted, resolve, select, visible_offers
from catalog.models import LanguageModel, ModelEndpoint, Provider
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
from config.api import next_link, query_integer
from config.openapi import PAGE_PARAMETERS, errors
from endpoints.models import ModelNotFound

_DEFAULT_LIMIT: Final = 500
_MAXIMUM_LIMIT: Final = 1000


class _PublicView(APIView):
    """Open to everyone."""

    permission_classes = [Anyone]
    schema_tag = "models"


class ModelsView(_PublicView):
    """The public catalogue."""

    @extend_schema(
        operation_id="getModels",
        parameters=[*PAGE_PARAMETERS, *FILTER_PARAMETERS, SORT_PARAMETER],
        responses=ModelListSerializer,
        extensions=errors(400),
    )
    def get(self, request: Request) -> Response:
        """Lists the models that are publicly served; without paging, all of them.

        A filter never changes what is said of a model: its price is the cheapest endpoint's.
        """
        wanted, sort = wanted_models(request), sort_order(request)
        return _models_page(request, wanted, visible_offers(Policy()), sort=sort)


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
        return Response({"data": {"count": len(select(wanted, visible_offers(Policy())))}})


class EmbeddingsModelsView(_PublicView):
    """The public catalogue's models that make embeddings."""

    schema_tag = "embeddings"

    @extend_schema(
        operation_id="listEmbeddingsModels",
        parameters=[*PAGE_PARAMETERS],
        responses=ModelListSerializer,
        extensions=errors(400),
    )
    def get(self, request: Request) -> Response:
        """Lists the embedding models that are publicly served; without paging, all of them."""
        wanted = Wanted(models=Q(output_modalities__contains=["embeddings"]))
        return _models_page(request, wanted, visible_offers(Policy()), sort=None)


class UserModelsView(APIView):
    """The catalogue through the caller's eyes."""

    permission_classes = [ManagementKey]
    schema_tag = "models"

    @extend_schema(
        operation_id="listModelsUser",
        parameters=[*PAGE_PARAMETERS, OUTPUT_MODALITIES_PARAMETER, SORT_PARAMETER],
        responses=ModelListSerializer,
        extensions=errors(400, 404),
    )
    def get(self, request: Request) -> Response:
        """Lists the models that the caller may use; without paging, all of them."""
        wanted, sort = Wanted(models=output_modalities(request)), sort_order(request)
        offers = visible_offers(Policy(), organization_id=caller_of(request).organization_id)
        return _models_page(request, wanted, offers, sort=sort)


class ModelView(_PublicView):
    """One model of the public catalogue."""

    @extend_schema(
        operation_id="getModel", responses=ModelResponseSerializer, extensions=errors(404)
    )
    def get(self, request: Request, author: str, slug: str) -> Response:
        """Shows a publicly served model, by public or canonical slug, a variant suffix or not."""
        model = resolve(author, slug)
        offers = visible_offers(Policy(), model=model)
        if model.pk not in offers:
            raise ModelNotFound(f"Nobody serves {model.slug!r} publicly.")
        return Response({"data": ModelSerializer(model, context={"offers": offers}).data})


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
        endpoints = (
            ModelEndpoint.objects.routable()
            .filter(model=model)
            .select_related("model", "provider", "price")
            .order_by("price__prompt", "pk")
        )
        context = {"endpoints": endpoints, "figures": _figures(request)}
        return Response({"data": ModelEndpointsSerializer(model, context=context).data})


class ZdrEndpointsView(_PublicView):
    """The public endpoints that remain under zero data retention."""

    @extend_schema(operation_id="listEndpointsZdr", responses=EndpointListSerializer)
    def get(self, request: Request) -> Response:
        """Lists public endpoints that keep no data; latency and uptime need a key."""
        endpoints: Any = (
            ModelEndpoint.objects.routable()
            .filter(zdr=True)
            .select_related("model", "provider", "price")
            .order_by("model__slug", "price__prompt", "pk")
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


def _figures(request: Request) -> dict[UUID, traffic.Figures]:
    """Returns what only callers with a key are shown."""
    return {} if caller_or_none(request) is None else traffic.figures()


def _models_page(request: Request, wanted: Wanted, offers: Offers, *, sort: str | None) -> Response:
    """Answers with the page of the list that the request asks for, or with all of it."""
    offset = query_integer(request, "offset", minimum=0)
    limit = query_integer(request, "limit", minimum=1, maximum=_MAXIMUM_LIMIT)
    keys = select(wanted, offers, sort=sort)
    total_count = len(keys)
    link = None
    if offset is not None or limit is not None:
        offset, limit = offset or 0, limit or _DEFAULT_LIMIT
        keys = keys[offset : offset + limit]
        link = next_link(request, offset=offset, limit=limit, total_count=total_count)
    models = LanguageModel.objects.in_bulk(keys)
    page: Any = [models[key] for key in keys if key in models]
    data = ModelSerializer(page, many=True, context={"offers": offers}).data
    return Response({"data": data, "links": {"next": link}, "total_count": total_count})
