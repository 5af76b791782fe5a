"""The shapes of credits and top-ups."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any, Final

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from billing.models import TopUp
from billing.topups.chains import MAX_CHAIN_ID, parse_address
from catalog.pricing import usd
from config.api.fields import IntegerField, StrictSerializer, StringField
from config.api.openapi import envelope

MIN_DOLLARS: Final = 1
MAX_DOLLARS: Final = 100_000
_CENT: Final = Decimal("0.01")
_MONEY: Final = Context(prec=40)


@extend_schema_field(
    {"type": "number", "minimum": MIN_DOLLARS, "maximum": MAX_DOLLARS, "multipleOf": 0.01}
)
class AmountField(serializers.Field[int, Any, float, Any]):
    """Converts a JSON number of USD to integer cents; refuses more than two decimals."""

    def to_internal_value(self, data: Any) -> int:
        if not isinstance(data, int | Decimal) or isinstance(data, bool):
            raise ValidationError("Must be a number.")
        if not MIN_DOLLARS <= data <= MAX_DOLLARS:
            raise ValidationError(f"Must be from {MIN_DOLLARS} to {MAX_DOLLARS}.")
        cents = Decimal(data).quantize(_CENT, context=_MONEY)
        if cents != data:
            raise ValidationError("Must have at most 2 decimals.")
        return int(cents.scaleb(2, context=_MONEY))


@extend_schema_field({"type": "string", "pattern": "^0x[0-9A-Fa-f]{40}$"})
class AddressField(StringField):
    """Takes an EVM address; an address in mixed case must have a valid checksum."""

    def to_internal_value(self, data: Any) -> str:
        try:
            address = parse_address(super().to_internal_value(data))
        except ValueError as exc:
            raise ValidationError(f"Is not an address: {exc}.") from None
        if not int(address, 16):
            raise ValidationError("The zero address belongs to nobody.")
        return address


@extend_schema_serializer(component_name="CreateCryptoTopUpRequest")
class TopUpCreateSerializer(StrictSerializer):
    amount = AmountField(source="usd_cents", help_text="In USD, at most two decimals.")
    sender = AddressField(help_text="The address of the payer, which owns the tokens.")
    chain_id = IntegerField(
        min_value=1, max_value=MAX_CHAIN_ID, help_text="A chain that is configured here."
    )


class CallDataSerializer(serializers.Serializer[Any]):
    deadline = serializers.DateTimeField(help_text="The same as `expires_at`.")
    fee_amount = serializers.CharField(help_text="Always 0.")
    id = serializers.CharField(help_text="The top-up's id as 16 bytes in hexadecimal digits.")
    operator = serializers.CharField(help_text="The same as `recipient`.")
    prefix = serializers.CharField(help_text="Always 0x: nothing is signed.")
    recipient = serializers.CharField(help_text="The address to which the tokens are transferred.")
    recipient_amount = serializers.CharField(
        help_text="The exact amount in base units; its last digits identify the payment."
    )
    recipient_currency = serializers.CharField(help_text="The token's contract.")
    refund_destination = serializers.CharField(help_text="The same as `sender`.")
    signature = serializers.CharField(help_text="Always 0x: nothing is signed.")


class TransferMetadataSerializer(serializers.Serializer[Any]):
    chain_id = serializers.IntegerField()
    contract_address = serializers.CharField(
        source="token", help_text="The token's contract, on which `transfer` is called."
    )
    sender = serializers.CharField()


class TransferIntentSerializer(serializers.Serializer[Any]):
    call_data = CallDataSerializer()
    metadata = TransferMetadataSerializer(source="*")


class Web3DataSerializer(serializers.Serializer[Any]):
    transfer_intent = TransferIntentSerializer(source="*")


class TopUpSerializer(serializers.Serializer[Any]):
    """A requested payment."""

    id = serializers.UUIDField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    web3_data = Web3DataSerializer(source="*")


class TopUpStatusSerializer(TopUpSerializer):
    """A requested payment and its status."""

    status = serializers.ChoiceField(source="shown_status", choices=TopUp.Status.choices)
    confirmations = serializers.IntegerField(
        help_text="Number of blocks since the payment, its own included; 0 before it is mined."
    )
    transaction_hash = serializers.SerializerMethodField()
    credited_at = serializers.DateTimeField(source="confirmed_at", allow_null=True)
    amount = serializers.SerializerMethodField(help_text="The requested amount, in USD.")
    payment_url = serializers.SerializerMethodField(
        help_text="A page for the person who pays; it needs no key."
    )

    def get_transaction_hash(self, top_up: TopUp) -> str | None:
        return top_up.tx_hash or None

    def get_amount(self, top_up: TopUp) -> float:
        return usd(top_up.amount_nano)

    def get_payment_url(self, top_up: TopUp) -> str:
        return self.context["request"].build_absolute_uri(f"/pay/{top_up.pk}")


TopUpResponseSerializer = envelope("CreateCryptoTopUpResponse", data=TopUpSerializer())
TopUpStatusResponseSerializer = envelope("CryptoTopUpResponse", data=TopUpStatusSerializer())


class CreditsSerializer(serializers.Serializer[Any]):
    total_credits = serializers.FloatField(help_text="All credits so far, in USD.")
    total_usage = serializers.FloatField(help_text="The used part of the credits, in USD.")


CreditsResponseSerializer = envelope("GetCreditsResponse", data=CreditsSerializer())
