"""Connections that are slow, idle, too many or unread: who is closed, and who is still served."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import requests
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from config import secrets
from endusers.models import EndUser
from inference.models import Generation
from tests.support import factories
from tests.support.attack import Line, connect, counted, head_of, post_of
from tests.support.factories import Tenant
from tests.support.inference.site import CHAT, Site
from tests.support.processes import serve

BEGUN = b"POST /api/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthor"


def chat_request(site: Site, **fields: object) -> bytes:
    body = json.dumps(site.chat_body("one two", **fields)).encode()
    return post_of(CHAT, site.tenant.api_key, body)


def open_lines(stack: ExitStack, site: Site, number: int, first: bytes, source: str) -> list[Line]:
    lines = []
    for _ in range(number):
        lines.append(stack.enter_context(connect(site.server, source=source)))
        lines[-1].send_while_accepted(first)
    return lines


def test_callers_who_read_nothing_hold_no_connection_to_the_database(
    crowded: Site, neighbour: Tenant
) -> None:
    crowded.publish(model=factories.make_model("acme/long", description="x" * 8_000_000))
    with ExitStack() as lines:
        # One more than the worker has.
        for _ in range(settings.DATABASE_POOL_SIZE + 1):
            line = lines.enter_context(connect(crowded.server, buffer=4_096))
            line.send(head_of("GET", "/api/v1/models?all=true"))
            assert line.receive_head().status == 200
        key = {"Authorization": f"Bearer {neighbour.management_key}"}
        address = f"{crowded.server}/api/v1/end-users"
        created = requests.post(address, json={"user": "customer"}, headers=key, timeout=60)
        assert created.status_code == 201


def test_an_idle_new_connection_is_closed_and_a_kept_one_stays(
    guarded: Site, is_served: Callable[[], bool]
) -> None:
    guarded.publish()
    with counted(guarded.server, "idle"), connect(guarded.server) as kept:
        kept.send(chat_request(guarded))
        assert kept.receive_answer().status == 200
        with connect(guarded.server) as idle:
            assert idle.receive_rest() == b""
        # The kept connection has been idle for longer than the new one was.
        kept.send(chat_request(guarded))
        assert kept.receive_answer().status == 200
    assert is_served()


@pytest.mark.parametrize("begun", [BEGUN, b"\r\n", b"G"], ids=["a head", "an end", "a letter"])
def test_a_head_that_does_not_arrive_is_refused(guarded: Site, begun: bytes) -> None:
    with counted(guarded.server, "head_timeout"), connect(guarded.server) as line:
        line.send(begun)
        answer = line.receive_answer()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert answer.error["message"] == "The head of the request did not arrive in time."
        assert line.receive_rest() == b""
    guarded.assert_nothing_happened()


def test_a_second_head_that_does_not_arrive_is_refused(guarded: Site) -> None:
    guarded.publish()
    with counted(guarded.server, "head_timeout"), connect(guarded.server) as line:
        line.send(chat_request(guarded))
        assert line.receive_answer().status == 200
        line.send(BEGUN)
        assert line.receive_answer().status == 408


@pytest.mark.parametrize(
    ("path", "length"), [(CHAT, 5_000_000), ("/api/v1/end-users", 5_000_000), ("/admin/login/", 99)]
)
def test_a_body_that_stalls_is_refused(
    guarded: Site, is_served: Callable[[], bool], path: str, length: int
) -> None:
    guarded.publish()
    key = guarded.tenant.api_key if path == CHAT else guarded.tenant.management_key
    headers = {"Authorization": f"Bearer {key}", "Content_Length": length}
    with counted(guarded.server, "body_timeout"), connect(guarded.server) as line:
        line.send(head_of("POST", path, Content_Type="application/json", **headers) + b'{"a": "')
        assert is_served()
        answer = line.receive_answer()
    assert (answer.status, answer.error["metadata"]) == (408, {"error_type": "timeout"})
    assert answer.headers["connection"] == "close"
    assert not EndUser.objects.exists()


@pytest.mark.parametrize(
    ("path", "length", "status"),
    [
        (CHAT, 20_000_000, 401),
        (CHAT, 22_000_000, 401),
        ("/api/v1/end-users", 20_000_000, 401),
        ("/api/v1/end-users", 22_000_000, 413),
        ("/nowhere", 20_000_000, 413),
    ],
)
def test_a_refusal_reaches_a_caller_that_writes_everything_first(
    guarded: Site, path: str, length: int, status: int
) -> None:
    stranger = secrets.generate_api_key(is_management=path != CHAT).reveal()
    headers = {"Authorization": f"Bearer {stranger}", "Content_Type": "application/json"}
    with connect(guarded.server) as line:
        line.send(head_of("POST", path, Content_Length=length, **headers))
        for _ in range(length // 1_000_000):
            line.send(b"x" * 1_000_000)
        answer = line.receive_answer()
        assert answer.error["code"] == answer.status == status
        assert answer.headers["connection"] == "close"
        assert line.receive_rest() == b""
    guarded.assert_nothing_happened()


def read_status(line: Line) -> int | None:
    """Returns the status that a line got before it ended; ``None`` without an answer."""
    with suppress(ConnectionError):
        return line.receive_answer().status
    return None


def count_closed(lines: list[Line]) -> int:
    return sum(not line.is_open() for line in lines)


def test_a_flood_from_one_address_closes_its_own_connections(
    crowded: Site, is_served: Callable[[], bool]
) -> None:
    crowded.publish()
    with ExitStack() as stack:
        [known] = open_lines(stack, crowded, 1, chat_request(crowded), "127.0.0.2")
        assert known.receive_answer().status == 200
        # The known caller keeps one of the eight places.
        with counted(crowded.server, "makes_room", exactly=60 - 7):
            flood = open_lines(stack, crowded, 60, BEGUN, "127.0.0.2")
            assert is_served()
            crowded.eventually(lambda: count_closed(flood) == 60 - 7)
            assert 503 in map(read_status, (line for line in flood if not line.is_open()))
        known.send(chat_request(crowded))
        assert known.receive_answer().status == 200


def test_a_flood_of_half_open_connections_refuses_nobody_who_is_known(
    crowded: Site, is_served: Callable[[], bool]
) -> None:
    """The proxy's address has no limit of its own, so the limit of the worker is reached."""
    crowded.publish()
    with ExitStack() as stack:
        known = open_lines(stack, crowded, 4, chat_request(crowded), "127.0.0.1")
        assert [line.receive_answer().status for line in known] == [200] * 4
        # The neighbour, who came last, has made room for itself too.
        with counted(crowded.server, "makes_room", exactly=300 - 35):
            flood = []
            for _ in range(3):
                flood += open_lines(stack, crowded, 100, BEGUN, "127.0.0.1")
                assert is_served()
            crowded.eventually(lambda: count_closed(flood) == 300 - 35)
        for line in known:
            line.send(chat_request(crowded))
        assert [line.receive_answer().status for line in known] == [200] * 4


def test_running_requests_of_an_address_are_not_closed_for_another(
    crowded: Site, is_served: Callable[[], bool]
) -> None:
    crowded.publish("sim-gated")
    with ExitStack() as stack:
        with counted(crowded.server, "address_limit"):
            lines = []
            refused: list[Line] = []
            while not refused:
                [line] = open_lines(
                    stack, crowded, 1, chat_request(crowded, stream=True), "127.0.0.3"
                )
                answer = line.receive_head()
                if answer.status == 200:
                    lines.append(line)
                else:
                    refused.append(line)
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert len(lines) == 8
        crowded.upstream.release(200)
        for line in lines:
            assert line.receive_until(b"data: [DONE]\n\n")
    crowded.eventually(lambda: Generation.objects.filter(status="completed").count() == len(lines))


def test_an_idle_connection_of_a_known_caller_makes_room_before_anybody_is_refused(
    crowded: Site,
) -> None:
    crowded.publish()
    with ExitStack() as stack, counted(crowded.server, "makes_room"):
        for _ in range(9):
            [line] = open_lines(stack, crowded, 1, chat_request(crowded), "127.0.0.4")
            assert line.receive_answer().status == 200
        [late] = open_lines(stack, crowded, 1, chat_request(crowded), "127.0.0.4")
        assert late.receive_answer().status == 200


def test_callers_of_the_management_routes_and_operators_are_known_too(
    crowded: Site, is_served: Callable[[], bool]
) -> None:
    crowded.publish()
    operator = Client()
    operator.force_login(User.objects.create_superuser("operator"))
    cookie = f"sessionid={operator.cookies['sessionid'].value}"
    key = f"Bearer {crowded.tenant.management_key}"
    requests = {
        "127.0.0.5": head_of("GET", "/api/v1/end-users", Authorization=key),
        "127.0.0.6": head_of("GET", "/admin/password_change/", Cookie=cookie),
    }
    with ExitStack() as stack:
        known = []
        for source, request in requests.items():
            known += open_lines(stack, crowded, 1, request, source)
            assert known[-1].receive_answer().status == 200
        for source in requests:
            open_lines(stack, crowded, 60, BEGUN, source)
        assert is_served()
        for line, request in zip(known, requests.values(), strict=True):
            line.send(request)
            assert line.receive_answer().status == 200


def test_a_worker_without_open_files_serves_again(site: Site) -> None:
    """Connections that cannot be opened are dropped, and the listener stays."""
    site.publish()
    with serve("--workers", "2") as served:
        site.server = served.address
        for worker in find_children(served.process.pid):
            limit = len(os.listdir(f"/proc/{worker}/fd")) + 8
            resource.prlimit(worker, resource.RLIMIT_NOFILE, (limit, limit))
        with ExitStack() as stack:
            lines = open_lines(stack, site, 100, BEGUN, "127.0.0.1")
            site.eventually(lambda: not all(line.is_open() for line in lines))
        site.eventually(lambda: site.chat().status_code == 200)


def find_children(process: int) -> list[int]:
    return [
        int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]
