"""Requests that wait on one connection behind another one."""

from __future__ import annotations

from typing import Any

from config.server import logs
from tests.support.attack import connect, head_of
from tests.support.bulkheads.serving import serve_in_thread


async def tell_ids(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the ids that the context of a request has at first, and then sets them."""
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    found = f"{logs.request_id.get()}{logs.generation_id.get()}.".encode()
    logs.request_id.set("request")
    logs.generation_id.set("generation")
    headers = [(b"content-length", str(len(found)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": found})


def test_a_request_that_waited_has_no_id_of_the_one_before() -> None:
    with serve_in_thread(tell_ids) as address, connect(address) as line:
        line.send(head_of("GET", "/") * 2 + head_of("GET", "/", Connection="close"))
        answers = line.receive_rest()
    assert answers.count(b"HTTP/1.1 200") == answers.count(b"\r\n\r\n.") == 3
