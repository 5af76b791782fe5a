"""The OpenAPI document: ``schema`` describes the operations, ``document`` serves it."""

from __future__ import annotations

from config.api.openapi.schema import DeletedSerializer, ErrorSerializer, Schema, envelope, errors

__all__ = ["DeletedSerializer", "ErrorSerializer", "Schema", "envelope", "errors"]
