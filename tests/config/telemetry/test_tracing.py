"""Spans as a real receiver of OTLP gets them, and requests while there is none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from config.local.bootstrap import install_command
from inference.models import Generation
from tests.support.bulkheads.counters import read_counter
from tests.support.inference.site import OPERATOR_SECRET, Site
from tests.support.processes import manage, serve
from tests.support.settings import read_settings

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
WORDS = "words-of-the-prompt"


@dataclass
class Receiver:
    """A receiver of OTLP over HTTP; ``spans`` are decoded, ``bodies`` are what was sent."""

    address: str
    bodies: list[bytes] = field(default_factory=list)
    spans: list[Any] = field(default_factory=list)

    def of_kind(self, kind: int, prefix: str = "") -> list[Any]:
        return [each for each in self.spans if each.kind == kind and each.name.startswith(prefix)]

    def requests(self) -> list[Any]:
        return self.of_kind(2)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            message = ExportTraceServiceRequest.FromString(body)
            found.bodies.append(body)
            for resource in message.resource_spans:
                for scope in resource.scope_spans:
                    found.spans.extend(scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Receiver(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


def exporting(receiver: Receiver, **settings: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.address,
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        **settings,
    }


def read(span: Any) -> dict[str, Any]:
    """Returns the attributes of a span."""
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


def send(site: Site, traceparent: str | None = None, **fields: Any) -> None:
    headers = {} if traceparent is None else {"traceparent": traceparent}
    body = site.chat_body(WORDS, **fields)
    assert site.post(body, headers=headers).status_code == 200


def test_a_request_its_attempts_and_its_statements_are_spans(
    site: Site, receiver: Receiver, tmp_path: Path
) -> None:
    failing = site.another_provider("failing")
    site.publish("sim-error:500", provider=failing)
    site.publish()
    file = tmp_path / "receiver"
    file.write_text(f"{receiver.address}\n")
    variables = exporting(
        receiver, OTEL_EXPORTER_OTLP_ENDPOINT="", OTEL_EXPORTER_OTLP_ENDPOINT_FILE=str(file)
    )
    with serve("--workers", "2", **variables) as served:
        site.server = served.address
        send(site, user="someone@example.com", provider={"order": ["failing", site.provider.slug]})
        site.eventually(lambda: len(receiver.of_kind(3)) == 5 and len(receiver.requests()) == 1)
        code, errors = served.stop()
    assert code == 0, errors
    [request] = receiver.requests()
    row = Generation.objects.get()
    found = read(request)
    assert request.name == f"chat {site.model.slug}"
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.provider.name"] == found["causeway.provider.slug"] == site.provider.slug
    assert found["gen_ai.response.model"] == row.upstream_model
    assert (found["gen_ai.request.stream"], row.streamed) == (row.streamed, row.streamed)
    assert found["gen_ai.usage.cache_write.input_tokens"] == 0
    assert found["gen_ai.response.id"] == row.pk
    assert found["gen_ai.usage.input_tokens"] == row.prompt_tokens
    assert found["gen_ai.usage.output_tokens"] == row.completion_tokens
    assert found["http.request.method"] == "POST"
    assert found["causeway.organization.id"] == str(row.organization_id)
    attempts = receiver.of_kind(3, "chat ")
    assert {each.parent_span_id for each in attempts} == {request.span_id}
    assert {each.trace_id for each in attempts} == {request.trace_id}
    errors_of = {
        read(each)["gen_ai.provider.name"]: read(each).get("error.type") for each in attempts
    }
    assert errors_of == {"failing": "provider_unavailable", site.provider.slug: None}
    for name in ("admit", "settle", "repin"):
        [batch] = receiver.of_kind(3, name)
        assert [link.span_id for link in batch.links] == [request.span_id]
    exported = b"".join(receiver.bodies)
    for secret in (WORDS, "someone@example.com", site.tenant.api_key, OPERATOR_SECRET):
        assert secret.encode() not in exported


def read_traceparent(call: Any) -> str:
    """Returns the trace and the span that an upstream was told of."""
    headers = {name.lower(): value for name, value in call.headers.items()}
    found: str = headers.get("traceparent", "")
    return found.rpartition("-")[0]


def test_neither_a_stranger_nor_an_upstream_shares_a_trace_unless_the_operator_wishes(
    site: Site, receiver: Receiver
) -> None:
    site.publish()
    site.upstream.clear()
    with serve(**exporting(receiver)) as served:
        site.server = served.address
        send(site, UNSAMPLED)
        site.eventually(lambda: len(receiver.requests()) == 1)
    [request] = receiver.requests()
    assert request.trace_id.hex() != TRACE
    assert [link.trace_id.hex() for link in request.links] == [TRACE]
    [call] = site.upstream.requests
    assert read_traceparent(call) == ""
    receiver.spans.clear()
    trusting = exporting(receiver, TRACE_CALLERS="on", TRACE_UPSTREAMS="on")
    with serve(**trusting) as served:
        site.server = served.address
        send(site, UNSAMPLED)
        send(site, SAMPLED)
        site.eventually(lambda: len(receiver.requests()) == 1)
        served.stop()
    [request] = receiver.requests()
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    told = read_traceparent(site.upstream.requests[-1])
    assert told == f"00-{TRACE}-{request.span_id.hex()}"


@pytest.mark.parametrize("is_hanging", [False, True])
def test_a_receiver_that_takes_nothing_costs_spans_and_nothing_else(
    site: Site, *, is_hanging: bool
) -> None:
    """One refuses connections; the other accepts them in its backlog, and never answers."""
    site.publish()
    nobody_there = socket.socket()
    nobody_there.bind(("127.0.0.1", 0))
    if is_hanging:
        nobody_there.listen()
    nobody = Receiver(f"http://127.0.0.1:{nobody_there.getsockname()[1]}")
    settings = exporting(nobody, OTEL_EXPORTER_OTLP_TIMEOUT="1", OTEL_BSP_MAX_QUEUE_SIZE="8",
                         OTEL_BSP_MAX_EXPORT_BATCH_SIZE="4")  # fmt: skip
    with serve(**settings) as served:
        site.server = served.address
        for _ in range(6):
            send(site)
        site.eventually(
            lambda: (
                read_counter(served.address, "causeway_telemetry_dropped_total", signal="spans")
                >= 4
            )
        )
        send(site)
        code, errors = served.stop()
    nobody_there.close()
    assert code == 0, errors
    assert "Queue full" not in errors


def test_without_the_extra_the_start_says_what_to_install(
    transactional_db: None, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['opentelemetry.sdk'] = None\n"
    )
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
        "PYTHONPATH": str(tmp_path),
    }
    result = manage("verify_ledger", **variables)
    assert result.returncode == 1
    assert "OTEL_EXPORTER_OTLP_ENDPOINT needs the extra otel" in result.stderr
    assert install_command("otel") in result.stderr
    assert manage("verify_ledger", **variables, OTEL_SDK_DISABLED="true").returncode == 0
    with pytest.raises(ImproperlyConfigured, match="OTEL_EXPORTER_OTLP_PROTOCOL must be http/prot"):
        read_settings(OTEL_EXPORTER_OTLP_ENDPOINT="http://x", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
