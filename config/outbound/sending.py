"""Sends one request or one mail, and says what became of it. It touches no database."""

from __future__ import annotations

import logging
import smtplib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from django.conf import settings
from django.core.mail import EmailMessage, get_connection

from config.clocks.clock import clock
from config.egress import EgressError, OutboundRequest
from config.egress.fetch import fetch
from config.egress.retry_after import read_retry_after

logger = logging.getLogger("causeway.work")

ATTEMPT_SECONDS: Final = 10.0
# Receivers answer with a few bytes; a longer answer is a mistake of theirs.
_MAX_ANSWER: Final = 64 * 1024
# The receiver refuses what it was sent, not who sends it.
_BODY_REFUSED: Final = frozenset([400, 413, 422])


@dataclass(frozen=True, slots=True)
class SendingOutcome:
    """The result of an attempt; ``error`` is empty if the receiver has taken what it was sent.

    ``error`` is for the owner of the receiver, ``detail`` for our log. ``is_ours`` says that the
    mail server of the settings failed, and not the receiver. ``retry_after`` has the seconds for
    which a receiver asks to be left alone, of any length.
    """

    error: str = ""
    status: int | None = None
    duration_ms: int = 0
    is_ours: bool = False
    retry_after: float = 0.0
    detail: str = ""
    body: bytes = field(default=b"", repr=False)

    @property
    def is_gone(self) -> bool:
        return self.status == 410

    @property
    def is_body_refused(self) -> bool:
        return self.status in _BODY_REFUSED


def post(
    url: str, headers: Mapping[str, str], body: bytes, *, method: str = "POST"
) -> SendingOutcome:
    """Sends a body of JSON through the egress policy."""
    headers = {**headers, "Content-Type": "application/json"}
    policy = replace(settings.EGRESS_POLICY, max_response_bytes=_MAX_ANSWER)
    try:
        status, answered, text = fetch(
            OutboundRequest(method, url, headers, body), policy, ATTEMPT_SECONDS
        )
    except EgressError as exc:
        # The public text tells no stranger what is inside the network.
        return SendingOutcome(exc.public.replace("upstream", "receiver"), detail=str(exc))
    except Exception as exc:
        # The text of a library's exception may have the headers, which are secrets.
        logger.error("a request failed: %s", type(exc).__name__)
        return SendingOutcome("The request failed.", detail=type(exc).__name__)
    if 200 <= status < 300:
        return SendingOutcome(status=status, body=text)
    return SendingOutcome(
        f"The receiver answered {status}.",
        status,
        retry_after=read_retry_after(answered, clock.time()) or 0.0,
        detail=f"HTTP {status}",
    )


def mail(address: str, subject: str, text: str, *, message_id: str) -> SendingOutcome:
    """Sends a mail by the server of the settings.

    The same Message-ID in each attempt lets mail programs show a repeated mail once.
    """
    if not settings.EMAIL_HOST:
        return SendingOutcome("EMAIL_URL is not set, so no mail can be sent.", is_ours=True)
    message = EmailMessage(
        subject,
        text,
        to=[address],
        headers={"Message-ID": message_id, "Auto-Submitted": "auto-generated"},
        connection=get_connection(timeout=ATTEMPT_SECONDS),
    )
    try:
        message.send()
    except smtplib.SMTPResponseException as exc:
        return SendingOutcome(f"The mail server answered {exc.smtp_code}.", is_ours=True)
    except smtplib.SMTPRecipientsRefused as exc:
        codes = sorted({code for code, _ in exc.recipients.values()})
        return SendingOutcome(f"The mail server refused the address: {codes[0]}.")
    except (smtplib.SMTPException, OSError, ValueError):
        return SendingOutcome("The mail server could not be reached.", is_ours=True)
    return SendingOutcome()
