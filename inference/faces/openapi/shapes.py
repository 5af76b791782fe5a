"""Turns types into schemas of the document: the parser's, made more exact, and those of answers.

A member that the parser keeps raw, or sends upstream unread, has no type there. ``refine`` gives it
one for the document, beside the members that the parser checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

_REFERENCE: Final = "#/components/schemas/{name}"
# What a reference to a private type begins with.
_PRIVATE: Final = _REFERENCE.format(name="_")
_TYPES: Final = {str: "string", bool: "boolean"}


# What is always refused, because the answer comes as a whole, and a text that must be empty.
WHOLE: Final = {"stream": Literal[False] | None}
NO_TEXT: Final = Annotated[str, msgspec.Meta(max_length=0)] | None


class Open(msgspec.Struct):
    """An object that may also have other members of the upstream."""


def refine(
    shape: type[msgspec.Struct],
    *,
    name: str | None = None,
    required: Mapping[str, Any] | None = None,
    optional: Mapping[str, Any] | None = None,
) -> type[msgspec.Struct]:
    """Returns a type with the members of a parser's type and those that are given here.

    The type is for the document alone. It has the ``name`` of the parser's, if none is given.
    Optional members may also be null.
    """
    return msgspec.defstruct(
        name or shape.__name__.lstrip("_"),
        [
            *(required or {}).items(),
            *((name, kind, None) for name, kind in (optional or {}).items()),
        ],
        bases=(shape,),
        namespace={"__doc__": shape.__doc__},
        kw_only=True,
    )


def tagged(name: str, tag: str, doc: str, *members: tuple[Any, ...]) -> type[msgspec.Struct]:
    """Returns the type of an open object whose ``type`` is this tag."""
    namespace = {"__doc__": doc}
    return msgspec.defstruct(
        name, members, bases=(Open,), namespace=namespace, tag_field="type", tag=tag
    )


def untagged(
    name: str, doc: str, known: Iterable[type[msgspec.Struct]], *members: tuple[Any, ...]
) -> type[msgspec.Struct]:
    """Returns the type of an open object whose ``type`` none of these tagged shapes has."""
    tags = [str(shape.__struct_config__.tag) for shape in known]
    schema = {"type": "string", "not": {"enum": tags}}
    kind = ("type", Annotated[str, msgspec.Meta(extra_json_schema=schema)])
    return msgspec.defstruct(name, (kind, *members), bases=(Open,), namespace={"__doc__": doc})


def reference(name: str) -> dict[str, str]:
    """Returns the reference to a schema."""
    return {"$ref": _REFERENCE.format(name=name)}


def any_of(*shapes: type[msgspec.Struct] | Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of a value of one of these shapes, which msgspec could not tell apart."""
    return {
        "anyOf": [
            dict(shape) if isinstance(shape, Mapping) else reference(shape.__name__)
            for shape in shapes
        ]
    }


def nullable(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of a value that may be null."""
    return {"anyOf": [*shape["anyOf"], {"type": "null"}]}


def make_schemas(types: Iterable[type[msgspec.Struct]]) -> dict[str, Any]:
    """Returns the schemas of types and of all that they refer to, by public names."""
    types = [*types]
    _, found = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    schemas = {name.lstrip("_"): _publish(shape) for name, shape in found.items()}
    for name in _name_subclasses(Open).intersection(schemas):
        # Generators make a constant of an object of constants, and cannot write one that is open.
        if any("const" not in member for member in schemas[name]["properties"].values()):
            schemas[name]["additionalProperties"] = True
    return schemas


def _name_subclasses(shape: type) -> set[str]:
    below: list[type] = shape.__subclasses__()
    return {each.__name__ for each in below}.union(*map(_name_subclasses, below))


def _publish(shape: Any) -> Any:
    """Returns a schema as other programs read it.

    The parser's private types get names without an underscore, descriptions are Markdown, patterns
    end as in JavaScript, arrays say that they may hold anything, and an enumeration of one value is
    a constant. Both name their type, or generators take any value for them, and a tag says that one
    alternative alone fits. No member has a default: generators of types would require it of
    callers.
    """
    if isinstance(shape, list):
        return [_publish(item) for item in shape]
    if not isinstance(shape, dict):
        return shape
    published = {name: _publish(inner) for name, inner in shape.items()}
    if not isinstance(published.get("default"), dict):
        published.pop("default", None)
    match published:
        case {"$ref": str(target)}:
            published["$ref"] = target.replace(_PRIVATE, _PRIVATE.removesuffix("_"))
        case {"type": "array"}:
            published.setdefault("items", {})
        case {"enum": [first, *others]}:
            published["type"] = _TYPES[type(first)]
            if not others:
                published["const"] = published.pop("enum")[0]
    if isinstance(pattern := published.get("pattern"), str):
        published["pattern"] = pattern.replace(r"\Z", "$")
    if isinstance(text := published.get("description"), str):
        published["description"] = text.replace("``", "`")
    if isinstance(title := published.get("title"), str):
        published["title"] = title.lstrip("_")
    if isinstance(kind := published.get("discriminator"), dict) and "mapping" in kind:
        published["oneOf"] = published.pop("anyOf")
        kind["mapping"] = {
            tag: target.replace(_PRIVATE, _PRIVATE.removesuffix("_"))
            for tag, target in kind["mapping"].items()
        }
    return published
