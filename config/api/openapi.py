"""How the management routes are documented: the shared errors, once, for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, inline_serializer
from rest_framework import serializers


class ErrorDetailSerializer(serializers.Serializer[Any]):
    code = serializers.IntegerField(help_text="Equals the HTTP status.")
    message = serializers.CharField()
    metadata = serializers.DictField(
        required=False,
        help_text="`error_type` is the symbolic name of the error; `fields` names refused fields.",
    )


class ErrorSerializer(serializers.Serializer[Any]):
    """The one error envelope."""

    error = ErrorDetailSerializer()


PAGE_PARAMETERS: Final = (
    OpenApiParameter("offset", int, description="Records to skip; at least 0."),
    OpenApiParameter("limit", int, description="Records to return at most."),
)

_COMMON_ERRORS: Final = ("401", "403", "500", "503")


class Schema(AutoSchema):
    """Documents the errors that every operation shares, beside those which it names itself.

    ``@extend_schema(extensions={"x-errors": (404, …)})`` is turned into documented responses, so
    that a view names only statuses, never the envelope's shape again.
    """

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        operation = super().get_operation(*args, **kwargs)
        if operation is None:
            return None
        for parameter in operation.get("parameters", ()):
            if (parameter["in"], parameter["name"]) == ("path", "id"):
                parameter["schema"] = {"type": "string", "format": "uuid"}
        own = [str(status) for status in operation.pop("x-errors", ())]
        if self.method in ("POST", "PATCH", "PUT"):
            own += ["400", "413", "415"]
        reference = {
            "content": {
                "application/json": {
                    "schema": self.resolve_serializer(ErrorSerializer, "response").ref
                }
            },
            "description": "An error, in the one envelope.",
        }
        for status in sorted({*own, *_COMMON_ERRORS}):
            operation["responses"].setdefault(status, reference)
        operation["responses"] = dict(sorted(operation["responses"].items()))
        return operation

    def _is_list_view(self, serializer: Any = None) -> bool:
        """Every list stands in an envelope, which its serializer describes."""
        return False

    def get_summary(self) -> str | None:
        """Titles an operation by the first line of its docstring."""
        return self.get_description().partition("\n")[0] or None

    def get_tags(self) -> list[str]:
        return [getattr(self.view, "schema_tag", super().get_tags()[0])]


def errors(*statuses: int) -> dict[str, Sequence[int]]:
    """Names the error statuses of an operation, for ``extend_schema(extensions=…)``."""
    return {"x-errors": statuses}


def envelope(name: str, **fields: serializers.Field[Any, Any, Any, Any]) -> Any:
    """Describes a body whose members are the given fields, ``data`` first of all."""
    return inline_serializer(name, dict(fields))
