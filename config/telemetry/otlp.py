"""Exports spans by OTLP over HTTP; needs the extra ``otel``.

The variables ``OTEL_*`` mean what they mean everywhere: the packages read them themselves, but for
the receiver's URL, which may stand in a file.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from config.telemetry.drops import DROPPED
from config.telemetry.tracing import SCHEMA_URL, Attributes

_HEADER: Final = "traceparent"
# The links of a batch; one statement stores 256 items at most.
_MOST_LINKS: Final = 128
_dropped: Final = DROPPED.labels("spans")
_propagator: Final = TraceContextTextMapPropagator()


class _Exporter(SpanExporter):
    """Counts the spans that the receiver does not take."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            _dropped.inc(len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _Processor(BatchSpanProcessor):
    """Drops spans while the queue is full, and counts them.

    The library would log a line for each.
    """

    def on_end(self, span: ReadableSpan) -> None:
        batch = self._batch_processor
        if len(batch._queue) >= batch._max_queue_size:
            _dropped.inc()
        else:
            super().on_end(span)


class OtlpTracer:
    """Makes spans in the event loop; a thread exports them to the receiver at ``url``.

    ``trusts_callers`` makes a request's span a child of the caller's, which then decides whether it
    is sampled. Otherwise it starts a trace of its own, with a link to the caller's.
    """

    def __init__(self, url: str, *, trusts_callers: bool, version: str) -> None:
        self._trusts_callers = trusts_callers
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come before the name given here.
        resource = Resource({SERVICE_NAME: "causeway"}).merge(Resource.create())
        if resource.attributes[SERVICE_NAME] == "unknown_service":
            resource = resource.merge(Resource({SERVICE_NAME: "causeway"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(_Processor(_Exporter(OTLPSpanExporter(url))))
        self._tracer = self._provider.get_tracer("causeway", version, SCHEMA_URL)

    def start_request(self, name: str, traceparent: str | None, attributes: Attributes) -> Span:
        context, links = Context(), []
        if traceparent is not None:
            caller = _propagator.extract({_HEADER: traceparent}, Context())
            if self._trusts_callers:
                context = caller
            elif (found := trace.get_current_span(caller).get_span_context()).is_valid:
                links.append(Link(found))
        return self._tracer.start_span(
            name, context, kind=SpanKind.SERVER, attributes=attributes, links=links
        )

    def end_request(self, span: Span, attributes: Attributes, error_type: str | None) -> None:
        span.set_attributes(attributes)
        if name := attributes.get("gen_ai.operation.name"):
            span.update_name(f"{name} {attributes['gen_ai.request.model']}")
        _note_error(span, error_type)
        span.end()

    def record_attempt(
        self,
        parent: Span,
        name: str,
        seconds: float,
        attributes: Attributes,
        error_type: str | None,
    ) -> None:
        span = self._tracer.start_span(
            name,
            trace.set_span_in_context(parent, Context()),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=_ago(seconds),
        )
        _note_error(span, error_type)
        span.end()

    def record_batch(self, name: str, seconds: float, requests: Sequence[Span | None]) -> None:
        links = [
            Link(request.get_span_context())
            for request in requests[:_MOST_LINKS]
            if request is not None and request.get_span_context().trace_flags.sampled
        ]
        if links:
            attributes: Attributes = {
                "db.system.name": "postgresql", "db.operation.batch.size": len(requests)
            }  # fmt: skip
            self._tracer.start_span(
                name, Context(), kind=SpanKind.CLIENT, attributes=attributes, links=links,
                start_time=_ago(seconds),
            ).end()  # fmt: skip

    def traceparent_of(self, span: Span | None) -> Mapping[str, str]:
        headers: dict[str, str] = {}
        if span is not None:
            _propagator.inject(headers, trace.set_span_in_context(span, Context()))
        return headers

    def close(self) -> None:
        self._provider.shutdown()


def _note_error(span: Span, error_type: str | None) -> None:
    if error_type is not None:
        span.set_attribute("error.type", error_type)
        span.set_status(Status(StatusCode.ERROR))


def _ago(seconds: float) -> int:
    """Returns the host's time so long ago; spans have the times of the host that makes them."""
    return time.time_ns() - int(seconds * 1e9)  # noqa: TID251
