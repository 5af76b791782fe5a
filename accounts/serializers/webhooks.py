"""The shapes of webhooks and of the deliveries to them."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.webhooks.models import MAX_OVERLAP, Delivery, Subscription
from config.api.fields import ChoiceField, FlagField, IntegerField, StrictSerializer, StringField
from config.api.openapi import envelope, list_envelope

_FORMS = (Subscription.Form.WEBHOOK, Subscription.Form.SLACK)
_URL_HELP = (
    "An https:// URL of a public address, without a query: a webhook is known by its signature."
)
_EVENTS_HELP = "The kinds of events to send; null for all, also those of later releases."


class _EventsField(serializers.ListField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            child=StringField(min_length=1, max_length=64),
            required=False,
            allow_null=True,
            max_length=100,
            source="kinds",
            help_text=_EVENTS_HELP,
            **kwargs,
        )


@extend_schema_serializer(component_name="CreateWebhookRequest")
class CreateWebhookSerializer(StrictSerializer):
    name = StringField(required=False, allow_blank=True)
    url = StringField(max_length=2048, min_length=1, help_text=_URL_HELP)
    form = ChoiceField(
        choices=[(form.value, form.label) for form in _FORMS],
        required=False,
        help_text="`webhook` (the default) is signed JSON; `slack` is a text that Slack and chats "
        "that are compatible with it take.",
    )
    events = _EventsField()


@extend_schema_serializer(component_name="UpdateWebhookRequest")
class UpdateWebhookSerializer(StrictSerializer):
    """An absent field stays unchanged."""

    name = StringField(required=False, allow_blank=True)
    url = StringField(max_length=2048, min_length=1, required=False, help_text=_URL_HELP)
    events = _EventsField()
    disabled = FlagField(required=False)

    def validate(self, fields: dict[str, Any]) -> dict[str, Any]:
        if not fields:
            raise ValidationError("Send at least one field.")
        return fields


@extend_schema_serializer(component_name="RotateWebhookSecretRequest")
class RotateSecretSerializer(StrictSerializer):
    overlap_seconds = IntegerField(
        required=False,
        min_value=0,
        max_value=MAX_OVERLAP,
        help_text="For so long messages are signed with the old secret too; a day if absent.",
    )


@extend_schema_serializer(component_name="Webhook")
class WebhookSerializer(serializers.ModelSerializer[Subscription]):
    form = serializers.ChoiceField(choices=[(form.value, form.label) for form in _FORMS])
    url = serializers.CharField(
        source="receiver", help_text="The URL; for a chat, whose URL is a secret, only its origin."
    )
    events = serializers.ListField(
        source="kinds", child=serializers.CharField(), allow_null=True, help_text=_EVENTS_HELP
    )
    disabled_reason = serializers.CharField()
    failing_since = serializers.DateTimeField(allow_null=True)
    previous_secret_until = serializers.DateTimeField(source="previous_until", allow_null=True)

    class Meta:
        model = Subscription
        fields = (
            "id", "form", "name", "url", "events", "disabled", "disabled_reason", "failing_since",
            "previous_secret_until", "created_at", "updated_at",
        )  # fmt: skip
        read_only_fields = fields


@extend_schema_serializer(component_name="WebhookDelivery")
class DeliverySerializer(serializers.ModelSerializer[Delivery]):
    webhook_id = serializers.UUIDField(source="subscription_id")
    event_id = serializers.UUIDField(help_text="The `webhook-id` of every attempt.")
    event = serializers.CharField(source="event.kind", help_text="The kind of event.")
    status = serializers.ChoiceField(Delivery.Status.choices)
    response_status = serializers.IntegerField(allow_null=True)
    duration_ms = serializers.IntegerField(allow_null=True)
    next_attempt_at = serializers.SerializerMethodField(help_text="Null when nothing is to come.")

    class Meta:
        model = Delivery
        fields = (
            "id", "webhook_id", "event_id", "event", "status", "attempts", "response_status",
            "error", "duration_ms", "next_attempt_at", "created_at", "delivered_at",
        )  # fmt: skip
        read_only_fields = fields

    def get_next_attempt_at(self, delivery: Delivery) -> str | None:
        if delivery.status != Delivery.Status.PENDING:
            return None
        field = serializers.DateTimeField()
        return str(field.to_representation(delivery.next_attempt_at))


_SECRET = serializers.CharField(
    allow_null=True,
    help_text="The secret that signs; no other response contains it. Null for a chat.",
)
WebhookResponseSerializer = envelope("WebhookResponse", data=WebhookSerializer())
CreatedWebhookSerializer = envelope(
    "CreateWebhookResponse", data=WebhookSerializer(), secret=_SECRET
)
WebhookListSerializer = list_envelope("ListWebhooksResponse", WebhookSerializer)
DeliveryResponseSerializer = envelope("WebhookDeliveryResponse", data=DeliverySerializer())
DeliveryListSerializer = list_envelope("ListWebhookDeliveriesResponse", DeliverySerializer)
