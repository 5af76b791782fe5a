"""Credits, and top-ups that are paid on a chain."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.viewsets import ViewSet

from accounts.authentication import AnyKey, ManagementKey
from billing.models import Account, TopUp, TopUpNotFound
from billing.serializers import (
    CreditsResponseSerializer,
    CreditsSerializer,
    TopUpCreateSerializer,
    TopUpResponseSerializer,
    TopUpSerializer,
    TopUpStatusResponseSerializer,
    TopUpStatusSerializer,
)
from catalog.pricing import usd
from config.api.errors import Gone
from config.api.idempotency import idempotency_key_of
from config.api.openapi import ErrorSerializer, creation, operation
from config.api.viewsets import OrganizationViewSet, make_retrieve


class CreditsViewSet(OrganizationViewSet):
    """The credits of the organization."""

    permission_classes = [ManagementKey]
    queryset = Account.objects.all()
    serializer_class = CreditsSerializer
    schema_tag = "credits"

    @operation("getCredits", None, CreditsResponseSerializer)
    def retrieve(self, request: Request) -> Response:
        """Shows all credits so far and the part of them that was used, in USD."""
        accounts = {account.kind: account for account in self.get_queryset()}
        paid = accounts[Account.Kind.CREDITS]
        # Only refunds debit the usage account.
        refunded = accounts[Account.Kind.USAGE].posted_debits
        return self.respond(
            {
                "total_credits": usd(paid.posted_credits - refunded),
                "total_usage": usd(paid.posted_debits - refunded),
            }
        )


class CryptoTopUpViewSet(OrganizationViewSet):
    """Top-ups that are paid on a chain."""

    permission_classes = [AnyKey]
    queryset = TopUp.objects.all()
    lookup_url_kwarg = "id"
    not_found = TopUpNotFound
    schema_tag = "credits"

    def get_serializer_class(self) -> type[Serializer[Any]]:
        return TopUpSerializer if self.action == "create" else TopUpStatusSerializer

    @creation(
        "createCryptoTopUp", TopUpCreateSerializer, {200: TopUpResponseSerializer}, (422, 429)
    )
    def create(self, request: Request) -> Response:
        """Requests a payment of an exact amount of a token; it is credited once it is final.

        Transfer exactly `recipient_amount` base units of the token from `sender` to `recipient`
        before `deadline`. `/pay/{id}` is a page for the person who pays.
        """
        key = idempotency_key_of(request.headers)
        fields = self.read_body(TopUpCreateSerializer)
        top_up = TopUp.objects.create_top_up(
            organization_id=self.organization_id, idempotency_key=key, by=self.actor, **fields
        )
        return self.respond(top_up)

    retrieve = make_retrieve(
        "getCryptoTopUp",
        TopUpStatusResponseSerializer,
        "Shows a top-up with its status and the confirmations of its payment.",
    )


class CoinbaseChargeViewSet(ViewSet):
    """The former way to buy credits, which OpenRouter removed as well."""

    permission_classes = [AnyKey]
    schema_tag = "credits"

    @extend_schema(
        operation_id="createCoinbaseCharge",
        request=None,
        deprecated=True,
        responses={
            410: OpenApiResponse(ErrorSerializer, description="Always: this route was removed.")
        },
    )
    def create(self, request: Request) -> Response:
        """Responds with 410. Use `POST /credits/crypto` instead."""
        raise Gone("POST /credits/coinbase was removed. Use POST /credits/crypto instead.")
