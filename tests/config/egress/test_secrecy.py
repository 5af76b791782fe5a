"""Credentials, proxies and cookies never leave the request."""

import asyncio
import socket
import ssl
import traceback
from pathlib import Path

import pytest

from config import egress
from config.egress import EgressError, EgressPolicy, UnsendableRequest
from tests.support.egress import (
    KEY,
    PATIENCE,
    Client,
    assert_untouched,
    post,
    silent,
    through,
    upstream,
)
from tests.support.upstreams.tls import answering, sending, serving


def test_environment_proxies_and_netrc_are_ignored(
    client: Client,
    policy: EgressPolicy,
    context: ssl.SSLContext,
    canary: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    proxy = f"http://127.0.0.1:{canary.getsockname()[1]}"
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    netrc = tmp_path / "netrc"
    netrc.write_text("machine upstream.test login user password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with serving(answering(), context) as server:
        assert client(post(upstream(server), headers={}), policy)[2] == b"hello"
        assert b"authorization" not in server.requests[0][0].lower()
    assert_untouched(canary)


def test_cookies_are_not_kept(policy: EgressPolicy, context: ssl.SSLContext) -> None:
    async def run(url: str) -> None:
        async with through(policy) as egress_client:
            for _ in range(2):
                response = await egress_client.send(
                    post(url), first_byte_timeout=20, idle_timeout=20
                )
                await response.read()

    with serving(answering(headers=("Set-Cookie: a=b",)), context) as server:
        asyncio.run(run(upstream(server)))
        assert b"cookie" not in server.requests[1][0].lower()


@pytest.mark.parametrize(
    "value",
    [f"Bearer {KEY}\r\nX: y", f"Bearer {KEY}\n", f"Bearer {KEY}\x00", f"{KEY}\ud800", f"{KEY}é"],
)
def test_an_invalid_header_is_refused_before_it_is_sent(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext, value: str
) -> None:
    with serving(answering(), context) as server:
        with pytest.raises(UnsendableRequest) as caught:
            client(post(upstream(server), headers={"Authorization": value}), policy)
        assert server.requests == []
    assert_no_secret(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 2_000_000,
        f"HTTP/1.1 200 OK\r\nX-Echo: {KEY}\r\nContent-Encoding: {KEY}\r\n\r\n".encode(),
        f"{KEY}\r\n\r\n".encode(),
        None,
    ],
)
def test_an_error_holds_no_credential(
    client: Client, policy: EgressPolicy, context: ssl.SSLContext, answer: bytes | None
) -> None:
    script, patience = (silent, 0.5) if answer is None else (sending(answer), PATIENCE)
    with serving(script, context) as server, pytest.raises(EgressError) as caught:
        client(post(upstream(server), f'{{"key":"{KEY}"}}'.encode()), policy, patience=patience)
    assert_no_secret(caught.value)


def assert_no_secret(error: EgressError) -> None:
    assert (error.__cause__, error.__context__) == (None, None)
    seen = [str(error), repr(error), repr(error.args), error.public]
    seen += traceback.format_exception(error)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.startswith(str(Path(egress.__file__).parent)):
            seen += [repr(value) for value in frame.f_locals.values()]
    assert not [text for text in seen if KEY in text]


def test_a_request_shows_its_method_alone() -> None:
    request = post("https://example.com?key=secret", b"prompt")
    assert repr(request) == "OutboundRequest(method='POST')"
