"""The models that a caller may use."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.authentication import ManagementKey, caller_of
from accounts.policy import Policy
from catalog.models import LanguageModel, ModelEndpoint
from catalog.serializers import ModelListSerializer, ModelSerializer, Offer
from catalog.visibility import EndpointFacts, exclusions
from config.api import next_link, query_integer
from config.openapi import PAGE_PARAMETERS, errors
from endpoints.models import PrivateEndpoint

MODALITIES: Final = (
    "text", "image", "embeddings", "audio", "video", "rerank", "speech", "transcription",
)  # fmt: skip
_DEFAULT_LIMIT: Final = 500
_MAXIMUM_LIMIT: Final = 1000


class UserModelsView(APIView):
    """The catalogue through the caller's eyes."""

    permission_classes = [ManagementKey]
    schema_tag = "models"

    @extend_schema(
        operation_id="listModelsUser",
        parameters=[
            *PAGE_PARAMETERS,
            OpenApiParameter(
                "output_modalities",
                str,
                description=f"A comma list of {', '.join(MODALITIES)}, or `all`. Default `text`.",
            ),
        ],
        responses=ModelListSerializer,
        extensions=errors(400, 404),
    )
    def get(self, request: Request) -> Response:
        """Lists the models that the caller may use, newest first; without paging, all of them."""
        offset = query_integer(request, "offset", minimum=0)
        limit = query_integer(request, "limit", minimum=1, maximum=_MAXIMUM_LIMIT)
        offers = visible_offers(Policy(), caller_of(request).organization_id)
        models = LanguageModel.objects.listed().filter(pk__in=offers).order_by("-created", "slug")
        if (modalities := _modalities(request)) is not None:
            models = models.filter(output_modalities__overlap=modalities)
        total_count = models.count()
        link = None
        if offset is not None or limit is not None:
            offset, limit = offset or 0, limit or _DEFAULT_LIMIT
            models = models[offset : offset + limit]
            link = next_link(request, offset=offset, limit=limit, total_count=total_count)
        page: Any = list(models)
        data = ModelSerializer(page, many=True, context={"offers": offers}).data
        return Response({"data": data, "links": {"next": link}, "total_count": total_count})


def visible_offers(policy: Policy, organization_id: UUID) -> dict[UUID, Offer]:
    """Returns, for each model that the policy leaves callable, what its first endpoint offers.

    Public endpoints come before the organization's own active ones: a list shows list prices.
    """
    offers: dict[UUID, Offer] = {}
    public = (
        ModelEndpoint.objects.routable()
        .select_related("provider", "price")
        .order_by("price__prompt", "pk")
    )
    for endpoint in public:
        provider = endpoint.provider
        facts = EndpointFacts(
            provider.slug, provider.name, endpoint.zdr, provider.trains_on_prompts
        )
        if endpoint.model_id not in offers and not exclusions(facts, policy):
            offers[endpoint.model_id] = Offer(
                price=endpoint.price.price,
                context_length=endpoint.context_length,
                max_completion_tokens=endpoint.max_completion_tokens,
                is_moderated=endpoint.is_moderated,
            )
    private = (
        PrivateEndpoint.objects.for_organization(organization_id)
        .routable()
        .select_related("model", "provider", "price")
    )
    for deployment in private:
        facts = EndpointFacts(
            deployment.provider.slug, deployment.provider_name, bool(deployment.declared_zdr), False
        )
        if deployment.model_id not in offers and not exclusions(facts, policy):
            offers[deployment.model_id] = Offer(
                price=deployment.price.price,
                context_length=deployment.model.context_length,
                max_completion_tokens=None,
                is_moderated=False,
            )
    return offers


def _modalities(request: Request) -> list[str] | None:
    """Returns the wanted output modalities, ``None`` for all; 400 for one that does not exist."""
    names = request.query_params.get("output_modalities", "text").split(",")
    unknown = [name for name in names if name not in (*MODALITIES, "all")]
    if unknown:
        raise ValidationError({"output_modalities": [f"Must be of: {', '.join(MODALITIES)}, all."]})
    return None if "all" in names else names
