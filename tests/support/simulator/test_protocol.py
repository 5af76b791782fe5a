"""The simulator as an HTTP server."""

import asyncio
import contextlib
import http.client
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import pytest

from config.local.certificates import Certificates
from tests.support.simulator.server import Simulator
from tests.support.upstreams.simulated import CHAT, ask, asking, connect, receive, request_bytes


def test_a_request_is_recorded_as_it_arrived(simulator: Simulator) -> None:
    before = time.monotonic()
    ask(simulator, "sim-echo")
    [request] = simulator.requests
    assert (request.method, request.path, request.kind) == ("POST", CHAT, "chat")
    assert request.headers["authorization"] == "Bearer key"
    assert request.body == asking("sim-echo", stream=False) == json.loads(request.raw)
    assert request.client_closed_at is None
    assert request.finished_at is not None
    assert before < request.received_at < request.finished_at
    assert (simulator.connections, simulator.handshakes, simulator.total_requests) == (1, 1, 1)


def test_clear_removes_the_records(simulator: Simulator) -> None:
    ask(simulator, "sim-echo")
    simulator.clear()
    assert simulator.requests == []
    assert (simulator.connections, simulator.handshakes, simulator.total_requests) == (0, 0, 0)


@pytest.mark.parametrize("model", ["sim-stall", "sim-gated", "sim-endless", "sim-slow:60"])
def test_a_disconnected_client_is_recorded(simulator: Simulator, model: str) -> None:
    with connect(simulator) as sock:
        sock.sendall(request_bytes(asking(model, stream=True)))
        assert simulator.wait_until(lambda: len(simulator.requests) == 1)
        left = time.monotonic()
    [request] = simulator.requests
    assert simulator.wait_until(lambda: request.client_closed_at is not None)
    assert request.finished_at is None
    assert request.client_closed_at is not None
    # The close is noticed before the slow behaviour writes again.
    assert left <= request.client_closed_at < left + 50


def test_an_endless_answer_waits_for_its_reader(simulator: Simulator) -> None:
    with connect(simulator) as sock:
        sock.sendall(request_bytes(asking("sim-endless", stream=True)))
        sent = -1
        while not simulator.requests or sent != simulator.requests[0].sent_bytes:
            sent = simulator.requests[0].sent_bytes if simulator.requests else -1
            time.sleep(0.2)
        assert len(sock.recv(1000)) == 1000
        # Other clients are served meanwhile.
        assert ask(simulator, "sim-echo").status == 200


def test_release_lets_one_event_pass_at_a_time(simulator: Simulator) -> None:
    with connect(simulator) as sock:
        sock.sendall(request_bytes(asking("sim-gated", stream=True)))
        response = http.client.HTTPResponse(sock)
        response.begin()
        seen = []
        for _ in range(6):
            line = response.readline()
            assert response.readline() == b"\n"
            seen.append(json.loads(line.removeprefix(b"data: "))["choices"][0]["delta"])
            assert simulator.requests[0].finished_at is None
            simulator.release()
        assert response.read() == b"data: [DONE]\n\n"
    assert [delta.get("content") for delta in seen] == ["", "You", " said:", " say", " it", None]


def test_release_may_come_before_the_request(simulator: Simulator) -> None:
    simulator.release(2)
    assert [ask(simulator, "sim-held").status for _ in range(2)] == [200, 200]
    assert ask(simulator, "sim-held", timeout=0.2).ending == "silence"


def test_a_release_that_nobody_used_ends_even_if_it_was_not_counted_yet(
    simulator: Simulator,
) -> None:
    is_idle = threading.Event()
    simulator.loop.call_soon_threadsafe(is_idle.wait)
    simulator.release(2)
    with ThreadPoolExecutor(1) as pool:
        cleared = pool.submit(simulator.clear)
        is_idle.set()
        cleared.result()
    assert ask(simulator, "sim-held", timeout=0.2).ending == "silence"


def test_a_stream_that_an_earlier_test_left_open_takes_no_release(simulator: Simulator) -> None:
    with connect(simulator) as sock:
        sock.sendall(request_bytes(asking("sim-held")))
        assert simulator.wait_until(lambda: bool(simulator.requests))
        simulator.clear()
        simulator.release()
        assert ask(simulator, "sim-held").status == 200


def test_a_connection_is_kept_for_further_requests(simulator: Simulator) -> None:
    assert simulator.certificates
    context = simulator.certificates.client_context()
    client = http.client.HTTPSConnection("127.0.0.1", simulator.port, timeout=60, context=context)
    statuses = []
    with contextlib.closing(client):
        for body in (asking("m"), asking("m", stream=True), asking("sim-status-500"), asking("m")):
            headers = {"Authorization": "Bearer key"}
            client.request("POST", CHAT, json.dumps(body), headers)
            response = client.getresponse()
            response.read()
            statuses.append(response.status)
    assert statuses == [200, 200, 500, 200]
    assert simulator.connections == 1


def test_pipelined_requests_are_answered_in_order(simulator: Simulator) -> None:
    data = request_bytes(asking("m", "one")).replace(b"connection: close\r\n", b"")
    data += request_bytes(asking("m", "two"))
    with connect(simulator) as sock:
        for at in range(0, len(data), 7):
            sock.sendall(data[at : at + 7])
        raw = receive(sock).raw
    assert re.findall(rb'"content":"([^"]+)"', raw) == [b"You said: one", b"You said: two"]


def test_a_chunked_request_with_expectation_is_understood(simulator: Simulator) -> None:
    body = json.dumps(asking("m", "x" * 100)).encode()
    head = request_bytes({}).partition(b"content-length")[0]
    head += b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
    with connect(simulator) as sock:
        sock.sendall(head)
        assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        for part in (body[:10], body[10:], b""):
            sock.sendall(b"%x\r\n%b\r\n" % (len(part), part))
        assert receive(sock).text == "You said: " + "x" * 100


@pytest.mark.parametrize("data", [b"rubbish\r\n\r\n", b"A" * 70_000])
def test_malformed_requests_are_refused(simulator: Simulator, data: bytes) -> None:
    with connect(simulator) as sock:
        sock.sendall(data)
        assert receive(sock).status == 400


async def _many(server: Simulator) -> set[tuple[int, str]]:
    assert server.certificates
    connector = aiohttp.TCPConnector(ssl=server.certificates.client_context(), limit=20)
    headers = {"Authorization": "Bearer key"}
    found = []
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def one(number: int) -> None:
            body = asking("m", f"number {number}", stream=number % 2 == 0)
            async with session.post(f"{server.base_url}/chat/completions", json=body) as response:
                found.append((response.status, await response.text()))

        await asyncio.gather(*(one(number) for number in range(200)))
    return {(status, text[-14:-2] if "[DONE]" in text else text[-1]) for status, text in found}


def test_many_clients_are_served_concurrently(simulator: Simulator) -> None:
    assert asyncio.run(_many(simulator)) == {(200, "data: [DONE]"), (200, "}")}
    assert simulator.total_requests == 200


def test_simulator_without_tls_speaks_plain_http() -> None:
    with Simulator(tls=False).run_in_thread() as server:
        assert server.base_url == f"http://127.0.0.1:{server.port}/v1"
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        with contextlib.closing(client):
            headers = {"Authorization": "Bearer key"}
            client.request("POST", CHAT, json.dumps(asking("m")), headers)
            assert client.getresponse().status == 200


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "https://localhost:8443/v1"),
        ("::1", "https://[::1]:8443/v1"),
        ("localhost", "https://localhost:8443/v1"),
    ],
)
def test_base_url_is_a_valid_url_for_every_host(
    certificates: Certificates, host: str, url: str
) -> None:
    assert Simulator(certificates, host, 8443).base_url == url


def test_run_in_thread_reports_a_port_in_use(simulator: Simulator) -> None:
    with (
        pytest.raises(OSError, match="address already in use"),
        Simulator(simulator.certificates, port=simulator.port).run_in_thread(),
    ):
        pass


def test_simulator_requires_certificates_for_tls() -> None:
    with pytest.raises(ValueError, match="certificates are needed unless tls=False"):
        Simulator()


def test_stop_closes_waiting_connections(certificates: Certificates) -> None:
    with Simulator(certificates).run_in_thread() as server:
        sock = connect(server)
        sock.sendall(request_bytes(asking("sim-stall")))
        assert server.wait_until(lambda: len(server.requests) == 1)
    with sock:
        assert receive(sock).raw == b""
    assert (server.open_connections, server.requests[0].client_closed_at) == (0, None)
