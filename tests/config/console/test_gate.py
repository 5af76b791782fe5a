"""How many sign-ins of a worker run at a time, and what becomes of the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from config.console.sign_in.gate import MAX_BYTES, MAX_OF_ADDRESS, MAX_OF_WORKER, PLACES, SignInGate

LOGIN = "/admin/login/"


class Console:
    """Stands for Django: answers a request when the test says so."""

    def __init__(self) -> None:
        self.running = 0
        self.bodies: list[bytes] = []
        self.release = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.running += 1
        message = await receive()
        self.bodies.append(message["body"])
        await self.release.wait()
        self.running -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})


class Request:
    """One request: its task and the messages that it got."""

    def __init__(self, gate: SignInGate, address: str, path: str, *bodies: bytes) -> None:
        self.sent: list[Any] = []
        self._parts = [
            {"type": "http.request", "body": body, "more_body": place + 1 < len(bodies)}
            for place, body in enumerate(bodies)
        ]
        scope = {"type": "http", "method": "POST", "path": path, "client": (address, 1)}
        self.task = asyncio.ensure_future(gate(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if not self._parts:
            await asyncio.Event().wait()
        return self._parts.pop(0)

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_two_sign_ins_run_and_the_others_wait() -> None:
    async def attack() -> None:
        console = Console()
        gate = SignInGate(console)
        requests = [Request(gate, f"192.0.2.{place}", LOGIN, b"form") for place in range(6)]
        await settle()
        assert console.running == PLACES
        console.release.set()
        await asyncio.gather(*(request.task for request in requests))
        assert [request.status for request in requests] == [200] * 6
        assert console.bodies == [b"form"] * 6

    asyncio.run(attack())


def test_one_address_has_few_requests_at_a_time() -> None:
    async def attack() -> None:
        console = Console()
        gate = SignInGate(console)
        requests = [Request(gate, "192.0.2.1", LOGIN, b"") for _ in range(MAX_OF_ADDRESS + 2)]
        other = Request(gate, "192.0.2.2", LOGIN, b"")
        await settle()
        refused = requests[MAX_OF_ADDRESS:]
        assert [request.status for request in refused] == [429, 429]
        assert (b"retry-after", b"5") in refused[0].sent[0]["headers"]
        assert b"Wait a few seconds" in refused[0].sent[1]["body"]
        console.release.set()
        await asyncio.gather(*(request.task for request in [*requests, other]))
        assert [request.status for request in requests[:MAX_OF_ADDRESS]] == [200] * MAX_OF_ADDRESS
        assert other.status == 200

        again = Request(gate, "192.0.2.1", LOGIN, b"")
        await again.task
        assert again.status == 200

    asyncio.run(attack())


def test_queue_of_a_worker_is_bounded() -> None:
    async def attack() -> None:
        console = Console()
        gate = SignInGate(console)
        requests = [
            Request(gate, f"192.0.2.{place}", LOGIN, b"") for place in range(MAX_OF_WORKER + 1)
        ]
        await settle()
        assert [request.status for request in requests] == [None] * MAX_OF_WORKER + [503]
        console.release.set()
        await asyncio.gather(*(request.task for request in requests))

    asyncio.run(attack())


def test_slow_bodies_keep_nobody_waiting() -> None:
    async def attack() -> None:
        console = Console()
        gate = SignInGate(console)
        slow = [Request(gate, f"192.0.2.{place}", LOGIN) for place in range(MAX_OF_WORKER + 5)]
        console.release.set()
        await settle()
        quick = Request(gate, "198.51.100.1", LOGIN, b"fo", b"rm")
        await quick.task
        assert quick.status == 200
        for request in slow:
            request.task.cancel()
        await asyncio.gather(*(request.task for request in slow), return_exceptions=True)

    asyncio.run(attack())


def test_large_form_is_refused() -> None:
    async def attack() -> None:
        console = Console()
        request = Request(SignInGate(console), "192.0.2.1", LOGIN, b"x" * MAX_BYTES, b"x", b"x")
        await request.task
        assert (request.status, console.bodies) == (413, [])

    asyncio.run(attack())


@pytest.mark.parametrize(
    ("path", "number", "running"),
    [
        *(
            (path, MAX_OF_ADDRESS + 1, MAX_OF_ADDRESS + 1)
            for path in ("/admin/", "/admin/logout/", "/admin/auth/user/7/change/")
        ),
        *(
            (f"/admin/{path}/", MAX_OF_ADDRESS, PLACES)
            for path in ("password_change", "auth/user/add", "auth/user/7/password")
        ),
    ],
)
def test_only_pages_that_hash_a_password_wait(path: str, number: int, running: int) -> None:
    async def attack() -> None:
        console = Console()
        gate = SignInGate(console)
        requests = [Request(gate, "192.0.2.1", path, b"") for _ in range(number)]
        await settle()
        assert console.running == running
        console.release.set()
        await asyncio.gather(*(request.task for request in requests))

    asyncio.run(attack())
