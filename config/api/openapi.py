"""The OpenAPI document of the management routes: shared errors, filters, pages and envelopes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final, TypeVar

from drf_spectacular.drainage import set_override
from drf_spectacular.extensions import OpenApiFilterExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import build_parameter_type
from drf_spectacular.utils import OpenApiParameter, extend_schema, inline_serializer
from rest_framework import serializers

from config.api.fields import StringField
from config.apps import declaring_apps

_Method = TypeVar("_Method", bound=Callable[..., Any])


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


_COMMON_ERRORS: Final = ("401", "403", "429", "500", "503")


class Schema(AutoSchema):
    """Documents the common errors of every operation and the errors that :func:`errors` names."""

    def _get_serializer_field_meta(self, field: Any, direction: Any) -> dict[str, Any]:
        """Returns the members of a field without the name that the console gives its column."""
        describe: Any = super()._get_serializer_field_meta
        meta: dict[str, Any] = describe(field, direction)
        if direction == "request" and getattr(field, "is_absent_if_null", False):
            meta["nullable"] = True
        name = str(meta.get("title", "")).lower().replace(" ", "_")
        if name and field.field_name == f"is_{name}":
            del meta["title"]
        return meta

    def _insert_field_validators(self, field: Any, schema: Any) -> None:
        """Adds what a field checks to its schema, with the form of a text."""
        super()._insert_field_validators(field, schema)  # type: ignore[no-untyped-call]
        if isinstance(field, StringField) and field.pattern and "type" in schema:
            schema.setdefault("pattern", field.pattern)

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        operation = super().get_operation(*args, **kwargs)
        if operation is None:
            return None
        for parameter in operation.get("parameters", ()):
            if (parameter["in"], parameter["name"]) == ("path", "id"):
                parameter["schema"] = {"type": "string", "format": "uuid"}
                parameter.pop("description", None)
        own = [str(status) for status in operation.pop("x-errors", ())]
        if self.method in ("POST", "PATCH", "PUT"):
            own += ["400", "408", "413", "415"]
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

    def get_override_parameters(self) -> list[Any]:
        """Returns the parameters that the view describes for all operations that have them."""
        return [
            each
            for each in getattr(self.view, "shared_parameters", ())
            if each.location != OpenApiParameter.PATH or f"{{{each.name}}}" in self.path
        ]

    def _is_list_view(self, serializer: Any = None) -> bool:
        """Returns whether an operation has the filters and pages of a list.

        With a ``serializer`` it returns ``False``, because no response is a bare array.
        """
        is_list = getattr(self.view, "action", None) == "list"
        is_nested = self.method == "GET" and getattr(self.view, "is_list", False)
        return serializer is None and (is_list or is_nested)

    def get_summary(self) -> str | None:
        """Returns the first line of the operation's docstring."""
        return self.get_description().partition("\n")[0] or None

    def get_tags(self) -> list[str]:
        return [getattr(self.view, "schema_tag", super().get_tags()[0])]


def add_examples(
    result: dict[str, Any], generator: Any, request: Any, public: bool
) -> dict[str, Any]:
    """Adds the bodies of each app's ``examples.json``, by method and path, to the document.

    Raises :class:`KeyError` for an operation that there is not.
    """
    for operation, example in _read_rows("examples.json"):
        method, _, path = operation.partition(" ")
        for content_type, body in result["paths"][path][method.lower()]["requestBody"][
            "content"
        ].items():
            if content_type != "application/json" or "example" not in body:
                body["example"] = example
    return result


def add_descriptions(
    result: dict[str, Any], generator: Any, request: Any, public: bool
) -> dict[str, Any]:
    """Describes parameters and the members of bodies by each app's ``descriptions.json``.

    A row is for a member of a schema, ``ChatRequest.n``, for all members of a name, or for all
    parameters of a name, ``<id>``. Bodies share many members, whose types are declared in several
    places. What describes itself is left alone.
    Raises :class:`ValueError` for two rows of a name, and for one that describes nothing.
    """
    rows = [*_read_rows("descriptions.json")]
    found = _Describer(dict(rows), result["components"]["schemas"])
    for path, operations in result["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                found.add(parameter, (path, f"<{parameter['name']}>"))
            for body in operation.get("requestBody", {}).get("content", {}).values():
                found.describe(body["schema"], (), frozenset())
    names = [name for name, _ in rows]
    if odd := {name for name in names if name not in found.used or names.count(name) > 1}:
        raise ValueError(f"These rows of descriptions.json have no member, or occur twice: {odd}")
    return result


def _read_rows(name: str) -> Iterator[tuple[str, Any]]:
    for app in declaring_apps():
        file = Path(app.path) / name
        if file.exists():
            yield from json.loads(file.read_bytes()).items()


class _Describer:
    """Adds descriptions to the members of schemas; ``used`` has the names of the rows it needed."""

    def __init__(self, rows: Mapping[str, str], schemas: Mapping[str, Any]) -> None:
        self._rows = rows
        self._schemas = schemas
        self.used: set[str] = set()

    def describe(self, schema: dict[str, Any], path: tuple[str, ...], above: Set[str]) -> None:
        """Describes the members of a schema, and theirs; ``path`` begins with a schema's name."""
        if target := schema.get("$ref"):
            name = target.rpartition("/")[2]
            if name not in above:
                self.describe(self._schemas[name], (name,), above | {name})
            return
        for inner in self._list_parts(schema):
            self.describe(inner, path, above)
        for name, member in schema.get("properties", {}).items():
            place = (*path, name)
            self.add(member, place)
            self.describe(member, place, above)

    @staticmethod
    def _list_parts(schema: dict[str, Any]) -> list[dict[str, Any]]:
        parts = [each for kind in ("allOf", "anyOf", "oneOf") for each in schema.get(kind, ())]
        inner = (schema.get("items"), schema.get("additionalProperties"))
        return [*parts, *(each for each in inner if isinstance(each, dict))]

    def add(self, member: dict[str, Any], place: tuple[str, ...]) -> None:
        names = [".".join(place), ".".join(place[1:]), place[-1]]
        row = next((name for name in names if name in self._rows), None)
        if row is None or "description" in member:
            return
        self.used.add(row)
        member["description"] = self._rows[row]
        if "$ref" in member:
            # Many readers ignore what stands beside a reference.
            member["allOf"] = [{"$ref": member.pop("$ref")}]


class FilterSetExtension(OpenApiFilterExtension):  # type: ignore[no-untyped-call]
    """Documents the filters of a list by the schemas and help texts of its query parameters."""

    target_class = "django_filters.rest_framework.DjangoFilterBackend"
    match_subclasses = True
    # A higher priority than drf-spectacular's extension, which guesses a schema from the model.
    priority = 1

    def get_schema_operation_parameters(
        self, auto_schema: AutoSchema, *args: Any, **kwargs: Any
    ) -> list[dict[str, Any]]:
        filterset = getattr(auto_schema.view, "filterset_class", None)
        filters = {} if filterset is None else filterset.base_filters
        return [
            build_parameter_type(
                name=name,
                schema=found.field.schema,
                location=OpenApiParameter.QUERY,
                description=found.field.help_text,
                enum=getattr(found.field, "choices", None),
            )
            for name, found in filters.items()
        ]


# Of requests that create.
IDEMPOTENCY_KEY: Final = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
    OpenApiParameter.HEADER,
    description="A repeated request with the same key creates nothing, and is answered with what "
    "the first one created.",
)


def errors(*statuses: int) -> dict[str, Sequence[int]]:
    """Names the error statuses of an operation, for ``@extend_schema(extensions=…)``."""
    return {"x-errors": statuses}


def operation(
    name: str, request: Any, response: Any, statuses: Sequence[int] = (), **options: Any
) -> Callable[[_Method], _Method]:
    """Documents an operation: its ID, the shapes of its bodies, and the statuses of its errors."""
    return extend_schema(
        operation_id=name,
        request=request,
        responses=response,
        extensions=errors(*statuses),
        **options,
    )


def creation(
    name: str, request: Any, response: Any, statuses: Sequence[int] = ()
) -> Callable[[_Method], _Method]:
    """Documents an operation that a repeated ``Idempotency-Key`` does not do again."""
    return operation(name, request, response, statuses, parameters=[IDEMPOTENCY_KEY])


class ConstantField(serializers.ReadOnlyField):
    """A member with the same value in each answer; ``schema`` describes it."""

    def __init__(self, value: Any, schema: Any, **options: Any) -> None:
        super().__init__(**options)
        self._value = value
        set_override(self, "field", schema)

    def get_attribute(self, instance: Any) -> Any:
        return self._value


def envelope(name: str, **fields: serializers.Field[Any, Any, Any, Any]) -> Any:
    """Returns the serializer of a response body with the given members."""
    return inline_serializer(name, dict(fields))


def list_envelope(name: str, shape: type[serializers.BaseSerializer[Any]]) -> Any:
    """Returns the serializer of a page of rows with the count of all of them."""
    return envelope(name, data=shape(many=True), total_count=serializers.IntegerField())


DeletedSerializer = envelope("Deleted", deleted=serializers.BooleanField(help_text="Always true."))
