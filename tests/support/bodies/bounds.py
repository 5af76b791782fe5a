"""The bounds of a body, as its schema declares them: values at n - 1, n and n + 1 for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import inspect

from inference.requests import schemas
from inference.requests.messages import native
from inference.requests.responses import conversation
from tests.support.inference.pictures import DATA_URL

Wrap = Callable[[Any], Any]
# How far beside a bound a number with a fraction is tried.
_STEP: Final = 0.001
# Texts at the bounds of a pattern: those that it takes, and those that it refuses.
_PATTERNS: Final[dict[str, tuple[list[str], list[str]]]] = {
    r"^[a-zA-Z0-9_-]+\Z": (["a", "_", "-"], ["a b", "a.b", "ä", "a\n"]),
    r"^[0-9]{1,9}(\.[0-9]{1,12})?\Z": (
        ["1", "9" * 9, f"1.{'9' * 12}"],
        ["", "9" * 10, f"1.{'9' * 13}", "1.", "-1", "1\n"],
    ),
    r"^(image/(p?jpe?g|(x-)?png|gif|webp|\*)|IMAGE/(JPE?G|PNG|GIF|WEBP)"
    r"|application/octet-stream)(;.*)?\Z": (
        [
            "image/png",
            "image/png; charset=utf-8",
            "image/x-png",
            "image/jpg",
            "image/pjpeg",
            "IMAGE/JPEG",
            "image/*",
        ],
        ["", "image/", "image/svg+xml", "text/plain", "Image/Png", "image/png\n"],
    ),
    r"^(auto|512|768|1K|1\.5K|2K|4K|[1-9][0-9]{1,4}x[1-9][0-9]{1,4})\Z": (
        ["auto", "10x10", "99999x99999"],
        ["9x10", "100000x10", "10x0", "1024", "10x10\n"],
    ),
}
# Structs whose schema is wider than what is taken.
_PLAIN: Final[dict[type, dict[str, Any]]] = {
    native._Turn: {"role": "user", "content": "one"},
    conversation.MessageItem: {"role": "user", "content": "one"},
    conversation.ItemPart: {"type": "input_text", "text": "one"},
    schemas.Plugin: {"id": "web", "enabled": False},
}
# The items of lists that a schema leaves open, by the place of the list.
_ITEMS: Final[dict[str, Callable[[int], Any]]] = {
    "input": lambda _: {"role": "user", "content": "one"},
    "tools": lambda number: {"type": "function", "name": f"f{number}"},
    "tools[0].tools": lambda number: {"type": "function", "name": f"f{number}"},
}


@dataclass(frozen=True)
class Case:
    """A value beside a bound: the field's path, the members of the body, and whether it fits."""

    place: str
    members: Any
    fits: bool

    def __str__(self) -> str:
        return f"{self.place} {'at' if self.fits else 'beyond'} its bound"

    @property
    def field(self) -> str:
        return self.place.partition(".")[0].partition("[")[0]


def find_cases(
    shape: type[msgspec.Struct], place: str = "", wrap: Wrap | None = None
) -> Iterator[Case]:
    """Yields what is at each bound of a body and what is beyond it, as members of the body.

    A struct that is no body stands at a ``place`` of one: ``wrap`` returns the members there.
    """
    kind = inspect.type_info(shape)
    if wrap is not None:
        yield from _walk(kind, place, wrap, ())
        return
    assert isinstance(kind, inspect.StructType)
    for field in kind.fields:
        name = field.encode_name
        yield from _walk(field.type, name, _name(name, {}), (shape,))


def find_shapes(shape: type[msgspec.Struct]) -> set[type]:
    """Returns the structs that a body has anywhere."""
    found: set[type] = set()

    def add(kind: Any) -> None:
        if isinstance(kind, inspect.StructType) and kind.cls not in found:
            found.add(kind.cls)
            for field in kind.fields:
                add(field.type)
        for name in ("type", "item_type", "key_type", "value_type"):
            if (inner := getattr(kind, name, None)) is not None and not isinstance(inner, str):
                add(inner)
        for inner in getattr(kind, "types", ()):
            add(inner)

    add(inspect.type_info(shape))
    return found


def has_bounds(shape: type[msgspec.Struct]) -> bool:
    """Returns whether a struct bounds a member of its own, beside those of other structs in it."""

    def bounds(kind: Any) -> bool:
        names = ("ge", "le", "gt", "lt", "min_length", "max_length", "pattern")
        if isinstance(kind, inspect.StructType):
            return False
        if any(getattr(kind, name, None) is not None for name in names):
            return True
        inner = [
            getattr(kind, name, None) for name in ("type", "item_type", "key_type", "value_type")
        ]
        return any(map(bounds, (*filter(None, inner), *getattr(kind, "types", ()))))

    try:
        kind = inspect.type_info(shape)
    except TypeError:
        return False  # nothing decodes it
    assert isinstance(kind, inspect.StructType)
    return any(bounds(field.type) for field in kind.fields)


def _walk(kind: Any, place: str, wrap: Wrap, seen: tuple[type, ...]) -> Iterator[Case]:
    match kind:
        case inspect.Metadata():
            yield from _walk(kind.type, place, wrap, seen)
        case inspect.UnionType():
            for each in kind.types:
                yield from _walk(each, place, wrap, seen)
        case inspect.StructType() if kind.cls not in seen:
            for field in kind.fields:
                rest = _sample_struct(kind, without=field.encode_name)
                inner = _compose(wrap, _name(field.encode_name, rest))
                yield from _walk(
                    field.type, f"{place}.{field.encode_name}", inner, (*seen, kind.cls)
                )
        case inspect.ListType():
            yield from _list_cases(kind, place, wrap)
            least = [sample(kind.item_type)] * ((kind.min_length or 1) - 1)
            item = _compose(wrap, lambda value: [value, *least])
            yield from _walk(kind.item_type, f"{place}[0]", item, seen)
        case inspect.DictType():
            if kind.max_length is not None:
                for count in (kind.max_length - 1, kind.max_length, kind.max_length + 1):
                    members = {f"k{number}": sample(kind.value_type) for number in range(count)}
                    yield Case(place, wrap(members), count <= kind.max_length)
            value = sample(kind.value_type)
            key = _compose(wrap, lambda name: {name: value})
            yield from _walk(kind.key_type, place, key, seen)
            yield from _walk(kind.value_type, place, _compose(wrap, lambda each: {"k": each}), seen)
        case inspect.StrType():
            yield from _text_cases(kind, place, wrap)
        case inspect.IntType() | inspect.FloatType():
            yield from _number_cases(kind, place, wrap)


def _name(name: str, rest: dict[str, Any]) -> Wrap:
    return lambda value: {**rest, name: value}


def _compose(outer: Wrap, inner: Wrap) -> Wrap:
    return lambda value: outer(inner(value))


def _list_cases(kind: inspect.ListType, place: str, wrap: Wrap) -> Iterator[Case]:
    for bound, way in ((kind.min_length, -1), (kind.max_length, 1)):
        if bound:
            yield Case(place, wrap(_list_items(kind, place, bound - way)), True)
            yield Case(place, wrap(_list_items(kind, place, bound)), True)
            yield Case(place, wrap(_list_items(kind, place, bound + way)), False)


def _list_items(kind: inspect.ListType, place: str, count: int) -> list[Any]:
    if isinstance(kind.item_type, inspect.RawType):
        make = _ITEMS[place]
        return [make(number) for number in range(count)]
    return [sample(kind.item_type)] * count


def _text_cases(kind: inspect.StrType, place: str, wrap: Wrap) -> Iterator[Case]:
    for bound, way in ((kind.min_length, -1), (kind.max_length, 1)):
        if bound:
            yield Case(place, wrap("x" * (bound - way)), True)
            yield Case(place, wrap("x" * bound), True)
            yield Case(place, wrap("x" * (bound + way)), False)
    if kind.pattern is not None:
        good, bad = _PATTERNS[kind.pattern]
        yield from (Case(place, wrap(text), True) for text in good)
        yield from (Case(place, wrap(text), False) for text in bad)


def _number_cases(
    kind: inspect.IntType | inspect.FloatType, place: str, wrap: Wrap
) -> Iterator[Case]:
    assert (kind.gt, kind.lt) == (None, None)
    step = 1 if isinstance(kind, inspect.IntType) else _STEP
    for bound, way in ((kind.ge, -1), (kind.le, 1)):
        if bound is None:
            continue
        bound = int(bound) if isinstance(kind, inspect.IntType) else bound
        yield Case(place, wrap(bound - way * step), True)
        yield Case(place, wrap(bound), True)
        yield Case(place, wrap(bound + way * step), False)


def sample(kind: Any) -> Any:
    """Returns the plainest value of a type."""
    match kind:
        case inspect.Metadata(type=inspect.RawType()):
            return _sample_raw(kind.extra_json_schema or {})
        case inspect.Metadata():
            return sample(kind.type)
        case inspect.UnionType():
            return sample(
                next(each for each in kind.types if not isinstance(each, inspect.NoneType))
            )
        case inspect.StructType():
            return _sample_struct(kind)
        case inspect.ListType():
            return [sample(kind.item_type)] * (kind.min_length or 0)
        case inspect.DictType():
            return {}
        case inspect.StrType(pattern=None):
            return "x" * (kind.min_length or 1)
        case inspect.StrType():
            return _PATTERNS[kind.pattern or ""][0][0]
        case inspect.IntType() | inspect.FloatType():
            return 1 if kind.ge is None else max(1, kind.ge)
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.BoolType():
            return True
    return "x"


def _sample_raw(schema: dict[str, Any]) -> Any:
    # A string whose schema says nothing more is the URL of an image.
    return DATA_URL if schema == {"type": "string"} else "x"


def _sample_struct(kind: inspect.StructType, *, without: str = "") -> dict[str, Any]:
    if kind.cls in _PLAIN:
        return {name: value for name, value in _PLAIN[kind.cls].items() if name != without}
    required = {
        field.encode_name: sample(field.type)
        for field in kind.fields
        if field.required and field.encode_name != without
    }
    tag = {} if kind.tag_field is None else {kind.tag_field: kind.tag}
    return tag | required
