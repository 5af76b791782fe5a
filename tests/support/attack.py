"""Raw sockets and counters: how the attack tests speak to a running service."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from django.contrib.auth.models import User
from django.test import Client

from tests.support.bulkheads.counters import read_counter

_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Answer:
    """One response, as it came over the socket; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error of the envelope."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Returns the status and the headers of a response."""
    start, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(start.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


class Line:
    """One TCP connection to a service; `sent` counts the bytes that the kernel accepted."""

    def __init__(self, address: str, *, source: str = "127.0.0.1", buffer: int | None = None):
        """Connects from ``source``; ``buffer`` is the size of the socket's own buffers."""
        target = urlsplit(address)
        self.socket = socket.socket()
        if buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(_SECONDS)
        self.socket.bind((source, 0))
        self.socket.connect((target.hostname, target.port))
        self.sent = 0

    def send(self, data: bytes) -> None:
        """Sends all bytes; raises `OSError` if the service closes or does not read for 20 s."""
        view = memoryview(data)
        while view:
            count = self.socket.send(view)
            self.sent += count
            view = view[count:]

    def send_while_accepted(self, data: bytes) -> None:
        """Sends until all is sent, the connection breaks, or an answer or its end has arrived."""
        view = memoryview(data)
        self.socket.setblocking(False)
        with suppress(ConnectionError):
            while view and not self._has_answer():
                try:
                    count = self.socket.send(view)
                except BlockingIOError:
                    continue
                self.sent += count
                view = view[count:]
        self.socket.settimeout(_SECONDS)

    def receive_answer(self) -> Answer:
        """Reads one response with a Content-Length, or up to the end of the connection."""
        head = b""
        while b"\r\n\r\n" not in head:
            data = self.socket.recv(65_536)
            if not data:
                raise ConnectionError(f"the connection ended after {head!r}")
            head += data
        head, _, body = head.partition(b"\r\n\r\n")
        status, headers = parse_head(head)
        length = int(headers["content-length"]) if "content-length" in headers else None
        while length is None or len(body) < length:
            data = self.socket.recv(65_536)
            if not data:
                break
            body += data
        return Answer(status, headers, body)

    def receive_head(self) -> Answer:
        """Reads the head of a response alone; the bytes that follow it stay in the socket."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            data = self.socket.recv(1)
            if not data:
                raise ConnectionError(f"the connection ended after {head!r}")
            head += data
        return Answer(*parse_head(head.removesuffix(b"\r\n\r\n")), b"")

    def receive_until(self, end: bytes) -> bytes:
        """Reads until these bytes have arrived."""
        data = b""
        while end not in data:
            piece = self.socket.recv(65_536)
            if not piece:
                raise ConnectionError(f"the connection ended after {data[-200:]!r}")
            data += piece
        return data

    def receive_rest(self) -> bytes:
        """Reads until the service closes the connection; raises `TimeoutError` after 20 s."""
        data = b""
        with suppress(ConnectionResetError):
            while piece := self.socket.recv(65_536):
                data += piece
        return data

    def peek(self) -> bytes:
        """Returns what has arrived, at most 64 KiB, which stays in the socket."""
        self.socket.setblocking(False)
        try:
            return self.socket.recv(65_536, socket.MSG_PEEK)
        except (BlockingIOError, ConnectionError):
            return b""
        finally:
            self.socket.settimeout(_SECONDS)

    def is_open(self) -> bool:
        """Returns whether the service has neither answered nor closed the connection."""
        self.socket.setblocking(False)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        finally:
            self.socket.settimeout(_SECONDS)
        return False

    def close(self) -> None:
        self.socket.close()

    def _has_answer(self) -> bool:
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        return True


@contextmanager
def connect(address: str, **options: Any) -> Iterator[Line]:
    """Opens one connection and closes it at the end; the options are those of `Line`."""
    line = Line(address, **options)
    try:
        yield line
    finally:
        line.close()


def split_answers(data: bytes) -> list[Answer]:
    """Returns the responses with a Content-Length that stand one after another in the bytes."""
    answers = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        status, headers = parse_head(head)
        length = int(headers["content-length"])
        answers.append(Answer(status, headers, data[:length]))
        data = data[length:]
    return answers


def head_of(method: str, path: str, **headers: str | int) -> bytes:
    """Returns a request head with ``Host: localhost``; underscores in names become hyphens."""
    fields = {"Host": "localhost", **{name.replace("_", "-"): headers[name] for name in headers}}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def post_of(path: str, key: str, body: bytes, **headers: str | int) -> bytes:
    """Returns a whole request that posts a body with a key."""
    length = {"Content_Length": len(body)}
    return head_of("POST", path, Authorization=f"Bearer {key}", **headers, **length) + body


def attack(calls: Sequence[Callable[[], Any]], is_served: Callable[[], bool]) -> list[Any]:
    """Makes the calls at once and returns their results; a neighbour is served all the time."""
    served = []
    with ThreadPoolExecutor(len(calls)) as pool:
        pending = [pool.submit(call) for call in calls]
        while not all(each.done() for each in pending):
            served.append(is_served())
    assert served
    assert all(served)
    return [each.result() for each in pending]


@contextmanager
def counted(address: str, reason: str, exactly: int | None = None) -> Iterator[None]:
    """Checks that the server itself counts refusals with this reason meanwhile."""
    name = "causeway_refused_connections_total"
    before = read_counter(address, name, reason=reason)
    yield
    found = read_counter(address, name, reason=reason) - before
    assert found == exactly if exactly is not None else found > 0, found


class Browser:
    """An operator's browser at a running service, already signed in; it sends real requests."""

    def __init__(self, address: str, user: User):
        client = Client()
        client.force_login(user)
        session = client.cookies["sessionid"].value
        token = "a" * 32
        self._address = address
        # A jar would not send cookies that are marked as secure over plain HTTP.
        self._headers = {"Cookie": f"sessionid={session}; csrftoken={token}", "X-CSRFToken": token}

    def post(self, path: str, **form: str) -> str:
        """Submits a form and returns the page that the service answers with in the end."""
        response = requests.post(
            f"{self._address}{path}",
            data=form,
            headers=self._headers,
            timeout=_SECONDS,
            allow_redirects=False,
        )
        if response.is_redirect:
            response = self._get(response.headers["Location"], response.cookies.get_dict())
        assert response.status_code == 200, response.text
        return response.text

    def _get(self, path: str, cookies: dict[str, str]) -> requests.Response:
        added = [f"{name}={value}" for name, value in cookies.items() if name == "messages"]
        headers = {**self._headers, "Cookie": "; ".join([self._headers["Cookie"], *added])}
        return requests.get(f"{self._address}{path}", headers=headers, timeout=_SECONDS)
