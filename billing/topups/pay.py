"""The public page on which a person pays a top-up; it shows nothing of the organization."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final
from uuid import UUID

import segno
from csp.decorators import csp_replace
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.safestring import mark_safe
from django.views.decorators.csrf import csrf_exempt

from billing.models import TopUp, TopUpNotFound, chain_name
from config.api.errors import MethodNotAllowed
from config.clocks.clock import clock
from config.server.health import error_response

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
_SENTENCES: Final = {
    TopUp.Status.OPEN: "Waiting for the payment",
    TopUp.Status.SEEN: "Payment seen, waiting until it is final",
    TopUp.Status.CONFIRMED: "Paid and credited",
    TopUp.Status.EXPIRED: "Expired: do not pay any more",
    TopUp.Status.REVIEW: "The payment is late or of another amount: a person looks at it",
}
# Of a chain that has left the settings.
_UNREAD_SENTENCES: Final = {
    TopUp.Status.OPEN: "This service does not read the chain any more: do not pay",
    TopUp.Status.SEEN: "Payment seen; it is credited once this service reads the chain again",
}


def _read_only_page(
    view: Callable[[HttpRequest, UUID], HttpResponse],
) -> Callable[..., HttpResponse]:
    """Refuses all methods except GET and HEAD, and adds headers to the response.

    The page's address is its only secret, so browsers must neither store it nor send it elsewhere.
    """

    @wraps(view)
    def respond(request: HttpRequest, pk: UUID) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return error_response(MethodNotAllowed(headers={"Allow": "GET, HEAD"}))
        response = view(request, pk)
        response["Cache-Control"] = "no-store"
        response["Referrer-Policy"] = "no-referrer"
        response["X-Robots-Tag"] = "noindex"
        return response

    policed: Any = csp_replace(_PAGE_POLICY)(respond)  # type: ignore[arg-type]
    # The page writes nothing, and a POST must be refused as 405, not for a missing CSRF token.
    return csrf_exempt(policed)


@_read_only_page
def show_page(request: HttpRequest, pk: UUID) -> HttpResponse:
    """Shows the amount, the addresses and the QR code of one top-up."""
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
        **_describe_progress(top_up),
    }
    return render(request, "billing/pay.html", context)


@_read_only_page
def show_status(request: HttpRequest, pk: UUID) -> HttpResponse:
    """Returns the progress of the payment as JSON, which the page polls."""
    top_up = TopUp.objects.filter(pk=pk).first()
    if top_up is None:
        return error_response(TopUpNotFound())
    return JsonResponse(_describe_progress(top_up))


def _describe_progress(top_up: TopUp) -> dict[str, Any]:
    """Returns the changing part of the page; ``seconds_left`` is 0 if nothing may be paid."""
    status = top_up.shown_status
    said = _SENTENCES[status]
    if not top_up.is_chain_read:
        said = _UNREAD_SENTENCES.get(TopUp.Status(top_up.status), said)
    left = top_up.expires_at - clock.now()
    is_expired = status == TopUp.Status.EXPIRED
    return {
        "status": str(status),
        "said": said,
        "confirmations": top_up.confirmations,
        "seconds_left": 0 if is_expired else max(int(left.total_seconds()), 0),
        "is_final": status == TopUp.Status.CONFIRMED,
    }
