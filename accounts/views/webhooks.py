"""The webhooks of an organization, and the log of their deliveries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.authentication import ManagementKey
from accounts.models import Organization
from accounts.serializers.webhooks import (
    CreatedWebhookSerializer,
    CreateWebhookSerializer,
    DeliveryListSerializer,
    DeliveryResponseSerializer,
    DeliverySerializer,
    RotateSecretSerializer,
    UpdateWebhookSerializer,
    WebhookListSerializer,
    WebhookResponseSerializer,
    WebhookSerializer,
)
from accounts.views.creations import CreatingViewSet
from accounts.webhooks.models import Delivery, DeliveryNotFound, Subscription, SubscriptionNotFound
from config.api.openapi import creation, operation
from config.api.text import parse_uuid
from config.api.viewsets import make_destroy, make_list, make_retrieve
from config.credentials import Secret

_OVERLAP: Final = 86_400
_DELIVERY: Final = OpenApiParameter(
    "delivery", {"type": "string", "format": "uuid"}, OpenApiParameter.PATH
)


class WebhookViewSet(CreatingViewSet):
    """Webhooks, which are told of events by signed requests (Standard Webhooks)."""

    permission_classes = [ManagementKey]
    queryset = Subscription.objects.webhooks().order_by("created_at", "id")
    serializer_class = WebhookSerializer
    not_found = SubscriptionNotFound
    shared_parameters = (_DELIVERY,)
    schema_tag = "webhooks"

    list = make_list("listWebhooks", WebhookListSerializer, "Lists the webhooks, oldest first.")

    @creation(
        "createWebhook", CreateWebhookSerializer, CreatedWebhookSerializer, (400, 404, 409, 422)
    )
    def create(self, request: Request) -> Response:
        """Creates a webhook. No other response contains the secret that signs its messages.

        A repeated request with the same `Idempotency-Key` contains it for 24 hours, unless the
        secret is rotated.
        """
        webhook, secret = self.create_once(CreateWebhookSerializer, self._create)
        shown = None if secret is None else secret.reveal()
        return Response({"data": self.get_serializer(webhook).data, "secret": shown}, 201)

    def _create(self, fields: dict[str, Any]) -> tuple[Subscription, Secret | None]:
        return Subscription.objects.create_subscription(
            organization=Organization.objects.get(pk=self.organization_id),
            form=fields.pop("form", Subscription.Form.WEBHOOK),
            **fields,
        )

    retrieve = make_retrieve(
        "getWebhook", WebhookResponseSerializer, "Shows a webhook without its secret."
    )

    @operation("updateWebhook", UpdateWebhookSerializer, WebhookResponseSerializer, (400, 404, 422))
    def partial_update(self, request: Request, pk: str) -> Response:
        """Changes the fields that are sent. `disabled` stops a webhook, or starts it again."""
        webhook: Subscription = self.get_object()
        fields = self.read_body(UpdateWebhookSerializer)
        disabled = fields.pop("disabled", None)
        with transaction.atomic():
            webhook.edit(**fields)
            if disabled is not None:
                webhook.disable() if disabled else webhook.enable()
        return self.respond(webhook)

    destroy = make_destroy(
        "deleteWebhook",
        "Deletes a webhook with its secret and its log. Nothing is sent to it any more.",
    )

    @creation(
        "rotateWebhookSecret",
        RotateSecretSerializer,
        CreatedWebhookSerializer,
        (400, 404, 409, 422),
    )
    @action(detail=True, methods=["post"], url_path="rotate-secret")
    def rotate_secret(self, request: Request, pk: str) -> Response:
        """Makes a new secret. Until the overlap is over, messages have both signatures.

        A repeated request with the same `Idempotency-Key` contains the secret for 24 hours, unless
        it is rotated again.
        """
        webhook, secret = self.create_once(RotateSecretSerializer, self._rotate)
        assert secret is not None
        return Response({"data": self.get_serializer(webhook).data, "secret": secret.reveal()})

    def _rotate(self, fields: dict[str, Any]) -> tuple[Subscription, Secret]:
        webhook: Subscription = self.get_object()
        return webhook, webhook.rotate(overlap=fields.get("overlap_seconds", _OVERLAP))

    @creation("testWebhook", None, {202: DeliveryResponseSerializer}, (404, 409, 422, 429))
    @action(detail=True, methods=["post"])
    def test(self, request: Request, pk: str) -> Response:
        """Sends an event of the kind `webhook.test` soon; its delivery tells what came of it.

        An organization may send 60 tests and redeliveries a minute.
        """
        return self._send_once(lambda: self.get_object().send_test())

    @operation("listWebhookDeliveries", None, DeliveryListSerializer, (400, 404))
    @action(detail=True, serializer_class=DeliverySerializer, is_list=True)
    def deliveries(self, request: Request, pk: str) -> Response:
        """Lists the deliveries of the last 30 days, newest first."""
        rows = self.get_object().deliveries.select_related("event").order_by("-id")
        return self.respond_with_page(rows)

    @creation(
        "redeliverWebhookDelivery", None, {202: DeliveryResponseSerializer}, (404, 409, 422, 429)
    )
    @action(detail=True, methods=["post"], url_path=r"deliveries/(?P<delivery>[^/]+)/redeliver")
    def redeliver(self, request: Request, pk: str, delivery: str) -> Response:
        """Sends an event again soon, with the same `webhook-id`, whatever came of it before.

        An organization may send 60 tests and redeliveries a minute.
        """
        return self._send_once(lambda: self._redeliver(delivery))

    def _redeliver(self, delivery: str) -> Delivery:
        found: Delivery | None = self._deliveries().filter(pk=parse_uuid(delivery)).first()
        if found is None:
            raise DeliveryNotFound
        found.redeliver()
        return found

    def _deliveries(self) -> QuerySet[Any]:
        rows: QuerySet[Any] = self.get_object().deliveries
        return rows.select_related("event", "subscription")

    def _send_once(self, send: Callable[[], Delivery]) -> Response:
        delivery, _ = self.run_once({}, lambda _: (send(), None), rows=self._deliveries)
        return Response({"data": DeliverySerializer(delivery).data}, 202)
