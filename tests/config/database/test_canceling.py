"""A statement that is cancelled while its server hangs stops no other thread of the worker."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from config.database import patience
from config.database.patience import CommitUnknown, PatientConnection
from config.database.pooled import PooledConnection

# The login is accepted, the key is 7 and 9, and no transaction runs.
_READY = struct.pack("!cii", b"R", 8, 0) + struct.pack("!ciii", b"K", 12, 7, 9)
_READY += struct.pack("!cic", b"Z", 5, b"I")
_CANCEL = struct.pack("!iiii", 16, 80877102, 7, 9)


class HangingServer:
    """Speaks PostgreSQL's protocol until a session is open, and nothing more."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.session: socket.socket | None = None

    def open(self, kind: Any) -> Any:
        """Returns a session; a call of libpq that stops all threads ends by its time limit."""
        port = self._listener.getsockname()[1]
        given = f"host=127.0.0.1 port={port} user=u sslmode=disable gssencmode=disable"
        found: list[Any] = []

        def connect() -> None:
            found.append(kind.connect(f"{given} connect_timeout=10", autocommit=True))

        opening = threading.Thread(target=connect)
        opening.start()
        self.session, _ = self._listener.accept()
        self.session.recv(1024)
        self.session.sendall(_READY)
        opening.join()
        return found[0]

    def answer_cancel(self) -> None:
        """Reads an order to cancel, looks that its sender still waits, and lets it go on."""
        peer, _ = self._listener.accept()
        with peer:
            assert peer.recv(16, socket.MSG_WAITALL) == _CANCEL
            with pytest.raises(BlockingIOError):
                peer.recv(1, socket.MSG_DONTWAIT)


@pytest.fixture
def server() -> Iterator[HangingServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = HangingServer(listener)
        yield found
        if found.session is not None:
            found.session.close()


def test_the_control_planes_statement_is_cancelled_beside_other_threads(
    server: HangingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_CANCEL_SECONDS", 30.0)
    session = server.open(PatientConnection)
    caught: list[BaseException] = []

    def write() -> None:
        try:
            with session.limiting(0.1):
                session.execute("UPDATE kept SET number = 1")
        except psycopg.Error as exc:
            caught.append(exc)

    writing = threading.Thread(target=write)
    writing.start()
    server.answer_cancel()
    # The server is gone, so nobody knows whether it has stored the row.
    assert server.session is not None
    server.session.close()
    writing.join()
    assert [type(exc) for exc in caught] == [CommitUnknown]
    assert session.closed


def test_a_statement_through_a_pooler_is_cancelled_beside_other_threads(
    server: HangingServer,
) -> None:
    session = server.open(psycopg.Connection)
    session.pgconn.send_query(b"SELECT 1")
    PooledConnection(session).terminate()
    server.answer_cancel()
    assert session.closed
