"""A receiver of traces over HTTPS on loopback, which can fail, hang and recover."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.upstreams.tls import Script, Server, answering, serving, trusted_context

TAKEN = answering(b"{}", headers=("Content-Type: application/json",))


class TraceReceiver:
    """Records what arrives. ``scripts`` answer the next requests; then everything is taken.

    While ``gate`` is not set, a request waits before its answer.
    """

    def __init__(self) -> None:
        self.scripts: list[Script] = []
        self.gate = threading.Event()
        self.gate.set()
        self.server: Server

    def answer(self, line: socket.socket, head: bytes, body: bytes) -> bool:
        self.gate.wait(30)
        script = self.scripts.pop(0) if self.scripts else TAKEN
        return script(line, head, body)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server.port}/v1/traces"

    @property
    def heads(self) -> list[str]:
        return [head.decode() for head, _ in self.server.requests]

    def batches(self) -> list[list[Span]]:
        """The spans of each request, decoded by the packages of OpenTelemetry."""
        return [decode(body) for _, body in list(self.server.requests)]

    def spans(self) -> list[Span]:
        return [span for batch in self.batches() for span in batch]

    def ids(self) -> list[str]:
        """The ids of the generations, in the order in which they arrived."""
        return [str(attributes(span)["gen_ai.response.id"]) for span in self.spans()]


@contextmanager
def receiving() -> Iterator[TraceReceiver]:
    receiver = TraceReceiver()
    with serving(receiver.answer, trusted_context()) as server:
        receiver.server = server
        try:
            yield receiver
        finally:
            receiver.gate.set()


def decode(body: bytes) -> list[Span]:
    """Returns the spans of a body. OTLP writes ids in hexadecimal, and protobuf in Base64."""
    data: Any = json.loads(body)
    for resource in data["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    if name in span:
                        span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    request = json_format.ParseDict(data, ExportTraceServiceRequest())
    return [
        span
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def attributes(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        if kind == "array_value":
            value = [item.string_value for item in value.values]
        found[each.key] = value
    return found
