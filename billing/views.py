"""Credits: what there is, how to pay for more, and the page of the person who pays."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final
from uuid import UUID

import segno
from csp.decorators import csp_replace
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.safestring import mark_safe
from django.views.decorators.csrf import csrf_exempt
from drf_spectacular.utils import OpenApiParameter, extend_schema
from prometheus_client import CollectorRegistry, generate_latest
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.authentication import AnyKey, ManagementKey, caller_of
from billing.metrics import TopUpCollector
from billing.models import Account, TopUp, chain_name
from billing.serializers import (
    CreateSerializer,
    CreditsResponseSerializer,
    CreditsSerializer,
    TopUpResponseSerializer,
    TopUpSerializer,
    TopUpStatusResponseSerializer,
    TopUpStatusSerializer,
)
from catalog.pricing import usd
from config.api.errors import MethodNotAllowed, NotFound
from config.api.handler import error_response
from config.api.idempotency import idempotency_key_of
from config.api.openapi import errors
from config.api.text import parse_uuid
from config.server import health

_PAGE_POLICY: Final = {
    "default-src": ["'none'"],
    "style-src": ["'self'"],
    "script-src": ["'self'"],
    "connect-src": ["'self'"],
    "img-src": ["'self'"],
    "base-uri": ["'none'"],
    "form-action": ["'none'"],
    "frame-ancestors": ["'none'"],
}
_SAID: Final = {
    TopUp.Status.OPEN: "Waiting for the payment",
    TopUp.Status.SEEN: "Payment seen, waiting until it is final",
    TopUp.Status.CONFIRMED: "Paid and credited",
    TopUp.Status.EXPIRED: "Expired: do not pay any more",
    TopUp.Status.REVIEW: "Another amount came in: a person looks at it",
}


class TopUpNotFound(NotFound):
    error_type = "top_up_not_found"
    message = "The top-up does not exist."


class CreditsView(APIView):
    """The credits of the organization."""

    permission_classes = [ManagementKey]
    schema_tag = "credits"

    @extend_schema(operation_id="getCredits", responses=CreditsResponseSerializer)
    def get(self, request: Request) -> Response:
        """Shows all credits so far and what was used of them, in USD."""
        accounts = {
            account.kind: account
            for account in Account.objects.for_organization(caller_of(request).organization_id)
        }
        paid = accounts[Account.Kind.CREDITS]
        # Nothing but a refund takes from usage.
        refunded = accounts[Account.Kind.USAGE].posted_debits
        totals = {
            "total_credits": usd(paid.posted_credits - refunded),
            "total_usage": usd(paid.posted_debits - refunded),
        }
        return Response({"data": CreditsSerializer(totals).data})


class CryptoTopUpsView(APIView):
    """Top-ups that are paid on a chain."""

    permission_classes = [AnyKey]
    schema_tag = "credits"

    @extend_schema(
        operation_id="createCryptoTopUp",
        request=CreateSerializer,
        parameters=[
            OpenApiParameter(
                "Idempotency-Key",
                {"type": "string", "minLength": 1, "maxLength": 255},
                OpenApiParameter.HEADER,
                description="A repeated request with the same key answers with the first top-up.",
            )
        ],
        responses=TopUpResponseSerializer,
        extensions=errors(422, 429),
    )
    def post(self, request: Request) -> Response:
        """Asks for a payment: an exact amount of a token, which is credited once it is final.

        Transfer exactly `recipient_amount` base units of the token from `sender` to `recipient`
        before `deadline`. `/pay/{id}` is a page for the person who pays.
        """
        key = idempotency_key_of(request.headers)
        body = CreateSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        top_up = TopUp.objects.create_top_up(
            organization_id=caller_of(request).organization_id,
            chain_id=body.validated_data["chain_id"],
            usd_cents=body.validated_data["amount"],
            sender=body.validated_data["sender"],
            idempotency_key=key,
            by=caller_of(request).actor,
        )
        return Response({"data": TopUpSerializer(top_up).data})


class CryptoTopUpView(APIView):
    """One top-up."""

    permission_classes = [AnyKey]
    schema_tag = "credits"

    @extend_schema(
        operation_id="getCryptoTopUp",
        responses=TopUpStatusResponseSerializer,
        extensions=errors(404),
    )
    def get(self, request: Request, id: str) -> Response:  # noqa: A002
        """Shows a top-up with its status and the confirmations of its payment."""
        top_up = (
            TopUp.objects.for_organization(caller_of(request).organization_id)
            .filter(pk=parse_uuid(id))
            .first()
        )
        if top_up is None:
            raise TopUpNotFound
        data = TopUpStatusSerializer(top_up, context={"request": request}).data
        return Response({"data": data})


def _page(view: Callable[[HttpRequest, UUID], HttpResponse]) -> Callable[..., HttpResponse]:
    """Answers GET and HEAD; the address is the only secret, so that nothing may keep or send it."""

    @wraps(view)
    def answer(request: HttpRequest, pk: UUID) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return error_response(MethodNotAllowed(headers={"Allow": "GET, HEAD"}))
        response = view(request, pk)
        response["Cache-Control"] = "no-store"
        response["Referrer-Policy"] = "no-referrer"
        response["X-Robots-Tag"] = "noindex"
        return response

    policed: Any = csp_replace(_PAGE_POLICY)(answer)  # type: ignore[arg-type]
    # Nothing is written here: another method is refused as one, not for want of a token.
    exempt: Callable[..., HttpResponse] = csrf_exempt(policed)
    return exempt


@_page
def pay(request: HttpRequest, pk: UUID) -> HttpResponse:
    """The page of the person who pays: no key, no login, and nothing of the organization."""
    top_up = TopUp.objects.filter(pk=pk).first()
    if top_up is None:
        return render(request, "billing/pay_unknown.html", status=404)
    code = segno.make(top_up.payment_uri, error="m", micro=False)
    svg = code.svg_inline(border=4, dark="#000", light="#fff", omitsize=True, svgclass="code")
    context = {
        "top_up": top_up,
        "amount": top_up.amount_text.rpartition(" ")[0],
        "chain": chain_name(top_up.chain_id),
        "code": mark_safe(svg),  # noqa: S308
        **_state(top_up),
    }
    return render(request, "billing/pay.html", context)


@_page
def pay_status(request: HttpRequest, pk: UUID) -> HttpResponse:
    """What the page asks for again and again."""
    top_up = TopUp.objects.filter(pk=pk).first()
    if top_up is None:
        return error_response(TopUpNotFound())
    return JsonResponse(_state(top_up))


def _state(top_up: TopUp) -> dict[str, Any]:
    """Returns what changes on the page; an open top-up that has run out is expired already."""
    now = timezone.now()
    status = top_up.status
    if status == TopUp.Status.OPEN and top_up.expires_at <= now:
        status = TopUp.Status.EXPIRED
    return {
        "status": str(status),
        "said": _SAID[TopUp.Status(status)],
        "confirmations": top_up.confirmations,
        "seconds_left": max(int((top_up.expires_at - now).total_seconds()), 0),
        "is_final": status == TopUp.Status.CONFIRMED,
    }


def metrics(request: HttpRequest) -> HttpResponse:
    """The probe's metrics, and beside them what the database knows of chains and deposits."""
    response = health.metrics(request)
    if response.status_code == 200:
        registry = CollectorRegistry()
        registry.register(TopUpCollector())
        response.content += generate_latest(registry)
    return response
