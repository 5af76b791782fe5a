"""CORS: the allowed origins, their request headers and the response headers they may read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from config.asgi import Application, with_cors

ORIGIN = "https://app.example.com"
DOCUMENTED = [
    "authorization", "content-type", "http-referer", "idempotency-key", "x-openrouter-categories",
    "x-openrouter-experimental-metadata", "x-openrouter-metadata", "x-openrouter-title",
    "x-request-id", "x-session-id", "x-stainless-arch", "x-stainless-retry-count", "x-title",
]  # fmt: skip


def asked(method: str, path: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Sends a request without a body through the application; returns the status and headers."""
    sent: list[Any] = []
    pending = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        return pending.pop() if pending else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    names = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), *names],
    }
    asyncio.run(with_cors(Application())(scope, receive, send))
    begun = sent[0]
    return begun["status"], {name.decode(): text.decode() for name, text in begun["headers"]}


def preflight(path: str, *, origin: str = ORIGIN, wanted: list[str]) -> tuple[int, dict[str, str]]:
    return asked(
        "OPTIONS",
        path,
        origin=origin,
        access_control_request_method="POST",
        access_control_request_headers=",".join(wanted),
    )


@pytest.mark.parametrize("path", ["/api/v1/chat/completions", "/api/v1/keys"])
def test_a_configured_origin_may_send_every_documented_header(settings: Any, path: str) -> None:
    settings.CORS_ALLOWED_ORIGINS = [ORIGIN]
    status, headers = preflight(path, wanted=DOCUMENTED)
    assert status == 200
    assert headers["access-control-allow-origin"] == ORIGIN
    assert headers["access-control-allow-headers"] == ",".join(DOCUMENTED)
    assert "access-control-allow-credentials" not in headers


def test_another_origin_may_not_call(settings: Any) -> None:
    settings.CORS_ALLOWED_ORIGINS = [ORIGIN]
    status, headers = preflight(
        "/api/v1/keys", origin="https://evil.example", wanted=["authorization"]
    )
    assert status == 400
    assert "access-control-allow-origin" not in headers


def test_a_browser_may_read_retry_after_and_the_ids(settings: Any) -> None:
    settings.CORS_ALLOWED_ORIGINS = [ORIGIN]
    status, headers = asked("GET", "/healthz", origin=ORIGIN)
    assert status == 200
    assert headers["access-control-allow-origin"] == ORIGIN
    exposed = set(headers["access-control-expose-headers"].split(", "))
    assert {"retry-after", "x-generation-id", "x-request-id"} < exposed
    # Anthropic's clients read the id from a header of their own.
    assert "request-id" in exposed
    assert {"x-ratelimit-remaining-requests", "x-ratelimit-reset-tokens"} < exposed


def test_without_the_setting_no_origin_is_allowed(settings: Any) -> None:
    settings.CORS_ALLOWED_ORIGINS = []
    status, headers = asked("GET", "/healthz", origin=ORIGIN)
    assert status == 200
    assert not [name for name in headers if name.startswith("access-control")]
