"""A plain client of the simulator."""

import io
import json
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any

from tests.support.simulator.server import Simulator

CHAT = "/v1/chat/completions"


@dataclass
class Answer:
    """Stores a response: its decoded body and how it ended."""

    raw: bytes
    ending: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        message = self.json["choices"][0]["message"]["content"]
        assert isinstance(message, str)
        return message

    @property
    def events(self) -> list[Any]:
        """The events' data of a stream in the plainest form, `[DONE]` as text."""
        blocks = self.body.decode().split("\n\n")
        assert blocks.pop() == ""
        assert all(block.startswith("data: ") for block in blocks)
        data = [block.removeprefix("data: ") for block in blocks]
        return [item if item == "[DONE]" else json.loads(item) for item in data]

    @property
    def deltas(self) -> list[Any]:
        return [choice["delta"] for event in self.events if event != "[DONE]"
                for choice in event.get("choices", ())]  # fmt: skip


def connect(server: Simulator, timeout: float = 5) -> ssl.SSLSocket:
    assert server.certificates
    sock = socket.create_connection((server.host, server.port), timeout)
    return server.certificates.client_context().wrap_socket(
        sock, server_hostname="localhost", suppress_ragged_eofs=False
    )


def request_bytes(body: Any, path: str = CHAT, key: str = "key", method: str = "POST") -> bytes:
    data = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


def asking(model: str, text: str = "say it", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def receive(sock: ssl.SSLSocket, enough: int = 1 << 30) -> Answer:
    raw, ending = b"", "enough"
    try:
        while len(raw) < enough:
            data = sock.recv(65536)
            if not data:
                ending = "closed"
                break
            raw += data
    except (ssl.SSLEOFError, ConnectionResetError):
        ending = "cut"
    except TimeoutError:
        ending = "silence"
    head, separator, rest = raw.partition(b"\r\n\r\n")
    if not separator:
        return Answer(raw, ending)
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    answer = Answer(raw, ending, int(first.split(" ")[1]), headers, rest)
    if "content-length" in headers:
        answer.complete = len(rest) == int(headers["content-length"])
        return answer
    stream, answer.body = io.BytesIO(rest), b""
    while line := stream.readline():
        size = int(line, 16)
        answer.complete = size == 0
        answer.body += stream.read(size)
        stream.readline()
    return answer


def send(server: Simulator, data: bytes) -> Answer:
    with connect(server) as sock:
        sock.sendall(data)
        return receive(sock)


def ask(
    server: Simulator, model: str, *, stream: bool = False, timeout: float = 5, **more: Any
) -> Answer:
    with connect(server, timeout) as sock:
        sock.sendall(request_bytes(asking(model, stream=stream, **more)))
        return receive(sock, enough=400_000 if "endless" in model else 1 << 30)
