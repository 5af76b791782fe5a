"""Makes one attempt to deliver an event. It runs in a thread, and touches no database."""

from __future__ import annotations

import smtplib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from django.conf import settings
from django.core.mail import EmailMessage, get_connection

from accounts.webhooks import signing
from accounts.webhooks.messages import Message, render_chat, render_mail, render_webhook
from config.clocks.clock import clock
from config.credentials import Secret
from config.egress import EgressError, OutboundRequest
from config.egress.fetch import fetch
from config.egress.retry_after import read_retry_after

ATTEMPT_SECONDS: Final = 10.0
# What a receiver answers is not read; a longer answer is a mistake of the receiver.
_MAX_ANSWER: Final = 64 * 1024
GONE: Final = 410


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an attempt; ``error`` is empty if the receiver has taken the event.

    ``is_ours`` says that the mail server of the settings failed, and not the receiver.
    ``retry_after`` has the seconds for which a receiver asks to be left alone, of any length.
    """

    error: str = ""
    status: int | None = None
    duration_ms: int = 0
    is_ours: bool = False
    retry_after: float = 0.0

    @property
    def is_gone(self) -> bool:
        return self.status == GONE


@dataclass(frozen=True, slots=True)
class Attempt:
    """An event and its receiver: a URL with the secrets that sign, or a mail address."""

    message: Message
    form: str
    url: str = field(default="", repr=False)
    secrets: Sequence[Secret] = ()
    address: str = ""

    def make(self) -> Outcome:
        """Sends the event once; what fails at the receiver or on the way is an outcome."""
        began = time.monotonic()
        outcome = self._send_mail() if self.form == "email" else self._post()
        return replace(outcome, duration_ms=round((time.monotonic() - began) * 1000))

    def _post(self) -> Outcome:
        headers = {"Content-Type": "application/json"}
        if self.form == "slack":
            body = render_chat(self.message)
        else:
            body = render_webhook(self.message)
            stamp = int(clock.now().timestamp())
            headers |= signing.sign(
                self.secrets, message_id=self.message.id, timestamp=stamp, body=body
            )
        policy = replace(settings.EGRESS_POLICY, max_response_bytes=_MAX_ANSWER)
        try:
            status, answered, _ = fetch(
                OutboundRequest("POST", self.url, headers, body), policy, ATTEMPT_SECONDS
            )
        except EgressError as exc:
            # The public text tells no stranger what is inside the network.
            return Outcome(exc.public.replace("upstream", "receiver"))
        if 200 <= status < 300:
            return Outcome(status=status)
        return Outcome(
            f"The receiver answered {status}.",
            status,
            retry_after=read_retry_after(answered, clock.time()) or 0.0,
        )

    def _send_mail(self) -> Outcome:
        if not settings.EMAIL_HOST:
            return Outcome("EMAIL_URL is not set, so no mail can be sent.", is_ours=True)
        subject, text = render_mail(self.message)
        # The same Message-ID in each attempt: mail programs show a repeated mail once.
        identity = f"<{self.message.id}@causeway.{self.address.rpartition('@')[2]}>"
        mail = EmailMessage(
            subject,
            text,
            to=[self.address],
            headers={"Message-ID": identity, "Auto-Submitted": "auto-generated"},
            connection=get_connection(timeout=ATTEMPT_SECONDS),
        )
        try:
            mail.send()
        except smtplib.SMTPResponseException as exc:
            return Outcome(f"The mail server answered {exc.smtp_code}.", is_ours=True)
        except smtplib.SMTPRecipientsRefused as exc:
            codes = sorted({code for code, _ in exc.recipients.values()})
            return Outcome(f"The mail server refused the address: {codes[0]}.")
        except (smtplib.SMTPException, OSError, ValueError):
            return Outcome("The mail server could not be reached.", is_ours=True)
        return Outcome()
