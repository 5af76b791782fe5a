"""Ports and the password of a cluster, which must be known before the settings are read."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from typing import Final

PASSWORD: Final = "a-password-of-the-trial"
_reserved: Final[set[int]] = set()


def reserve() -> int:
    """Returns a port that nobody uses, and that the system gives to no connection."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _reserved:
                _reserved.add(port)
                return port
