"""A real server of the S3 protocol over TLS on loopback, and one that lies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.support.upstreams.tls import Authority

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_COMPLETED = (
    b'<?xml version="1.0"?><CompleteMultipartUploadResult><Bucket>archive</Bucket><Key>x</Key>'
    b'<ETag>"0"</ETag></CompleteMultipartUploadResult>'
)


class _Quiet(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        pass


def forgetting(inner: Application) -> Application:
    """Answers that each upload is complete, and stores none."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        query = parse_qs(environ["QUERY_STRING"])
        if environ["REQUEST_METHOD"] == "POST" and "uploadId" in query:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("200 OK", [("Content-Type", "application/xml")])
            return [_COMPLETED]
        return inner(environ, start)

    return answer


def failing(inner: Application) -> Application:
    """Refuses every part of an upload."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "PUT" and "partNumber" in environ["QUERY_STRING"]:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("507 Insufficient Storage", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InsufficientStorage</Code><Message>full</Message></Error>"]
        return inner(environ, start)

    return answer


@contextmanager
def serve_buckets(
    authority: Authority, around: Callable[[Application], Application] | None = None
) -> Iterator[str]:
    """Serves buckets over TLS; the value is the address of the endpoint."""
    application: Any = DomainDispatcherApplication(create_backend_app)
    server = make_server(
        "127.0.0.1",
        0,
        around(application) if around else application,
        threaded=True,
        request_handler=_Quiet,
        ssl_context=authority.server_context("localhost", "127.0.0.1"),
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://localhost:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
