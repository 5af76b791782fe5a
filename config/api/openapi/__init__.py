"""The OpenAPI document: ``schema`` describes the operations, ``document`` serves it."""

from __future__ import annotations

from config.api.openapi.schema import (
    IDEMPOTENCY_KEY,
    DeletedSerializer,
    ErrorSerializer,
    Schema,
    envelope,
    errors,
)

__all__ = [
    "IDEMPOTENCY_KEY",
    "DeletedSerializer",
    "ErrorSerializer",
    "Schema",
    "envelope",
    "errors",
]
