"""A real receiver of webhooks over TLS, and a real mail server, both on loopback."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from email.policy import default
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from standardwebhooks import Webhook

from config.local.certificates import ensure_certificates
from tests.support.upstreams.tls import Script, Server, answering, serving

# The data of an event of the kind "key.created".
KEY = {"hash": "0" * 64, "name": "Production", "label": "sk-cw-abc…xyz", "is_management": False}
TAKEN = answering(b"ok")


def taking_after(released: threading.Event) -> Script:
    """Returns a script that takes a message when the event is set, or after a minute."""

    def hang(line: socket.socket, head: bytes, body: bytes) -> bool:
        released.wait(60)
        return TAKEN(line, head, body)

    return hang


@contextmanager
def run_receiver(script: Script = TAKEN) -> Iterator[Receiver]:
    """Runs a receiver that answers as the script does; a test may replace its ``script``."""
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    with serving(script, certificates.server_context()) as server:
        yield Receiver(server)


class Receiver:
    """A server whose ``url`` is a webhook's."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = f"https://127.0.0.1:{server.port}/hooks"

    @property
    def messages(self) -> list[tuple[dict[str, str], bytes]]:
        """The headers and the body of every request, in the order of their arrival."""
        return [(_headers(head), body) for head, body in list(self.server.requests)]

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.messages]

    def answer(self, script: Script) -> None:
        """Answers later requests as another script does."""
        self.server.script = script


def verify(secret: str, headers: dict[str, str], body: bytes) -> Any:
    """Verifies a message with the library of the standard and returns its body."""
    return Webhook(secret).verify(body, headers)


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode().split("\r\n")[1:]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


@dataclass
class Mailbox:
    """The mails that a mail server has received.

    It refuses mails with ``refusal``, and addresses with ``unknown``, if these are set.
    """

    port: int = 0
    refusal: str = ""
    unknown: str = ""
    mails: list[Message] = field(default_factory=list)

    async def handle_RCPT(  # noqa: N802
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        if self.unknown:
            return self.unknown
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        if self.refusal:
            return self.refusal
        mail = message_from_bytes(envelope.content, policy=default)
        mail["X-Recipients"] = ", ".join(envelope.rcpt_tos)
        self.mails.append(mail)
        return "250 OK"


class _FreePortController(Controller):
    """Learns the port that the system gave, to which it connects to see whether it runs."""

    def _trigger_server(self) -> None:
        assert self.server is not None
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@contextmanager
def run_mail_server() -> Iterator[Mailbox]:
    """Runs a mail server on a free port."""
    box = Mailbox()
    controller = _FreePortController(box, hostname="127.0.0.1", port=0, ready_timeout=60)
    controller.start()
    box.port = controller.port
    try:
        yield box
    finally:
        controller.stop()
