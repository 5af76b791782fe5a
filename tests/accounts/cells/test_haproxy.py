"""The shipped configuration of HAProxy, with a real one: every place of a key, and every misuse."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
import requests

from config.secrets import generate_api_key
from tests.support.cells.proxy import run_proxy
from tests.support.machine.ports import reserved_port

HERE, NORTH, MOVED = "00k3f9a2", "01abcdef", "00m0v3d0"

pytestmark = pytest.mark.skipif(
    shutil.which("haproxy") is None, reason="haproxy is missing: apt-get install haproxy"
)


def key_of(code: str) -> str:
    return generate_api_key(is_management=False, code=code).reveal()


@contextlib.contextmanager
def run_cell(name: str) -> Iterator[int]:
    """A cell that answers each request with its own name."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(name)))
            self.end_headers()
            self.wfile.write(name.encode())

        def log_message(self, *args: Any) -> None:
            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture(scope="module")
def proxy() -> Iterator[int]:
    lines = f"00 home\n01 north\n{MOVED} north\n"
    with (
        run_cell("home") as home,
        run_cell("north") as north,
        run_proxy(home, north, lines) as running,
    ):
        yield running.port


def ask(port: int, *headers: tuple[str, str]) -> str:
    """Returns the cell that answers; the headers go out one by one, repeated ones too."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest("GET", "/api/v1/key")
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse().read().decode()
    connection.close()
    return answer


@pytest.mark.parametrize(
    ("code", "cell"),
    [(HERE, "home"), (NORTH, "north"), (MOVED, "north"), ("", "home"), ("zzzzzzzz", "home")],
)
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("Authorization", "Bearer {}"),
        ("authorization", "bearer {}"),
        ("AUTHORIZATION", "BEARER {}"),
        ("x-api-key", "{}"),
        ("X-Api-Key", "{}"),
    ],
)
def test_a_key_goes_to_its_cell(proxy: int, code: str, cell: str, name: str, form: str) -> None:
    assert ask(proxy, (name, form.format(key_of(code)))) == cell
    management = generate_api_key(is_management=True, code=code).reveal()
    assert ask(proxy, (name, form.format(management))) == cell


@pytest.mark.parametrize(
    "value",
    [
        "", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "Bearer -", "Bearer sk-cw-", "Bearer ---",
        "Bearer sk-proj-01abcdefgh", "Bearer sk-cw-01ABCDEF-x", "Bearer sk-ant-01", "\xff\xfe-\xff",
        "Bearer sk-cw-01" + "a" * 47, "Bearer " + "a-" * 2000, "Bearer sk-cw-../../../-x",
        "Bearer sk-cw-01abcdeé-x", "Negotiate " + "A" * 4000,
    ],
)  # fmt: skip
def test_what_is_no_code_goes_home(proxy: int, value: str) -> None:
    assert ask(proxy, ("Authorization", value)) == "home"


def test_two_headers_go_where_the_first_says(proxy: int) -> None:
    first, second = f"Bearer {key_of(NORTH)}", f"Bearer {key_of(HERE)}"
    assert ask(proxy, ("Authorization", first), ("Authorization", second)) == "north"
    assert ask(proxy, ("Authorization", second), ("Authorization", first)) == "home"
    assert ask(proxy, ("Authorization", f"{first}, {second}")) == "north"
    assert ask(proxy, ("x-api-key", key_of(HERE)), ("Authorization", first)) == "north"
    assert ask(proxy, ("x-api-key", key_of(NORTH)), ("Authorization", "Bearer x")) == "north"


def test_a_cell_that_is_down_takes_no_other_with_it() -> None:
    with (
        run_cell("home") as home,
        reserved_port() as north,
        run_proxy(home, north, "00 home\n01 north\n") as running,
    ):
        answer = requests.get(
            f"http://127.0.0.1:{running.port}/api/v1/key",
            headers={"Authorization": f"Bearer {key_of(NORTH)}"},
            timeout=30,
        )
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        assert answer.json()["error"]["code"] == 503
        assert ask(running.port, ("Authorization", f"Bearer {key_of(HERE)}")) == "home"
