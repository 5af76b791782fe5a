"""Requests as bytes, and connections of a caller's own that carry them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.support.inference.site import CHAT, Site


def post_bytes(
    site: Site, body: Any, *headers: str, path: str = CHAT, host: str = "localhost"
) -> bytes:
    """Returns a request with the tenant's key; ``headers`` are further lines of its head."""
    data = json.dumps(body).encode()
    head = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        f"Content-Length: {len(data)}",
        f"Authorization: Bearer {site.tenant.api_key}",
        *headers,
    ]
    return "\r\n".join([*head, "", ""]).encode() + data


@contextmanager
def dial(site: Site, sent: bytes, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """Yields a connection that has sent these bytes and has read nothing yet."""
    address = urlsplit(site.server)
    with socket.socket() as line:
        if receive_buffer is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        line.settimeout(60)
        line.connect((address.hostname, address.port))
        line.sendall(sent)
        yield line
