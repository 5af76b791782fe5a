"""Ports of servers that cannot say which one they have chosen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yields a port on which only a server that is told so can listen until the block ends.

    A socket stays bound to it without listening: connections to the port are refused, the system
    gives it to nobody, and a server with ``SO_REUSEADDR`` may listen there, and again after a stop.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
