"""Traces: whether spans are made, and the span of the present request.

The packages of OpenTelemetry are an extra. Without an endpoint in the settings there is no tracer,
and a request costs one test of an attribute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol

Attributes = Mapping[str, str | int | float | Sequence[str]]
# The schema that OpenTelemetry's own package of generative AI names for its spans.
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.37.0"
NO_ATTRIBUTES: Final[Attributes] = {}


class Tracer(Protocol):
    """Makes spans and exports them; :class:`config.telemetry.otlp.OtlpTracer`."""

    def start_request(self, name: str, traceparent: str | None, attributes: Attributes) -> Any:
        """Starts the span of a request; ``traceparent`` is the caller's header."""

    def end_request(self, span: Any, attributes: Attributes, error_type: str | None) -> None:
        """Ends the span of a request."""

    def record_attempt(
        self,
        parent: Any,
        name: str,
        seconds: float,
        attributes: Attributes,
        error_type: str | None,
    ) -> None:
        """Makes the span of an attempt that ends now and has taken so many seconds."""

    def record_batch(self, name: str, seconds: float, requests: Sequence[Any]) -> None:
        """Makes the span of a statement that ends now, with links to the spans of its requests."""

    def traceparent_of(self, span: Any) -> Mapping[str, str]:
        """Returns the header that makes an upstream's spans children of a request's."""

    def close(self) -> None:
        """Exports what waits; takes some seconds if nobody takes it."""


class Tracing:
    """The tracer of this process, if there is one."""

    def __init__(self) -> None:
        self.tracer: Tracer | None = None


tracing: Final = Tracing()
request_span: ContextVar[Any] = ContextVar("request_span", default=None)
