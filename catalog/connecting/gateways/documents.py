"""Reads YAML and JSON, and keeps the line at which each entry begins; pure."""

from __future__ import annotations

import codecs
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import yaml

_MOST_BYTES: Final = 4 * 1024 * 1024
_TAG: Final = "tag:yaml.org,2002:"


class UnreadableGateway(Exception):
    """A file that is not the configuration of its gateway; the message is safe to show."""


class Entry(dict[str, Any]):
    """An object of a file, the line at which it begins, and those of its members."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class Items(list[Any]):
    """A list of a file, and the lines at which its elements begin."""

    def __init__(self, values: Iterable[Any], lines: Iterable[int]) -> None:
        super().__init__(values)
        self._lines = tuple(lines)

    def lined(self) -> Iterator[tuple[int, Any]]:
        """Yields each element after its line."""
        return zip(self._lines, self, strict=True)


def decode(data: bytes) -> str:
    """Returns the text of a file; raises :class:`UnreadableGateway`."""
    if len(data) > _MOST_BYTES:
        raise UnreadableGateway(f"The file has more than {_MOST_BYTES:,} bytes.")
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise UnreadableGateway(f"Line {line}: not UTF-8.") from None


# YAML.


def read_yaml(text: str) -> Entry:
    """Returns the object of a document; its lists are :class:`Items`.

    Fractions are decimals, digit by digit. Raises :class:`UnreadableGateway`.
    """
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - it makes nothing but plain values
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line = 1 if mark is None else mark.line + 1
        raise UnreadableGateway(f"Line {line}: not YAML: {exc.problem or exc.context}.") from None
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise UnreadableGateway(f"Line {line}: a character that YAML does not allow.") from None
    except RecursionError:
        raise UnreadableGateway("The file is nested too deeply.") from None
    if not isinstance(value, Entry):
        raise UnreadableGateway("Line 1: the file must be an object with model_list.")
    return value


class _Loader(yaml.SafeLoader):
    """Makes plain values; objects and lists have their lines, and fractions all their digits."""


def _read_entry(loader: _Loader, node: yaml.MappingNode) -> Entry:
    entry = Entry(node.start_mark.line + 1)
    merged: list[yaml.Node] = []
    for name, value in node.value:
        line = name.start_mark.line + 1
        if name.tag == f"{_TAG}merge":
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        elif not isinstance(name, yaml.ScalarNode):
            raise UnreadableGateway(f"Line {line}: the name of a member must be a text.")
        elif name.value in entry:
            raise UnreadableGateway(f"Line {line}: {name.value!r} is named twice.")
        else:
            entry[name.value] = loader.construct_object(value, deep=True)
            entry.lines[name.value] = line
    for each in (loader.construct_object(value, deep=True) for value in merged):
        if not isinstance(each, Entry):
            raise UnreadableGateway(f"Line {entry.line}: << must name an object.")
        for name, value in each.items():
            entry.setdefault(name, value)
            entry.lines.setdefault(name, each.lines[name])
    return entry


def _read_items(loader: _Loader, node: yaml.SequenceNode) -> Items:
    values = (loader.construct_object(each, deep=True) for each in node.value)
    return Items(values, (each.start_mark.line + 1 for each in node.value))


def _read_number(loader: _Loader, node: yaml.ScalarNode) -> Any:
    text = str(node.value)
    try:
        if node.tag == f"{_TAG}float":
            return Decimal(text.replace("_", ""))
        # Digits with a colon are a number of seconds in YAML 1.1, and a text to everybody.
        if ":" not in text and len(text) <= 64:
            return loader.construct_yaml_int(node)
    except (ValueError, InvalidOperation):
        pass
    return text


_Loader.yaml_constructors = {
    **{
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag in (None, f"{_TAG}null", f"{_TAG}bool", f"{_TAG}str")
    },
    f"{_TAG}map": _read_entry,
    f"{_TAG}seq": _read_items,
    # A time is no number, and stays a text.
    **{f"{_TAG}{kind}": _read_number for kind in ("int", "float", "timestamp", "value")},
}


# JSON.


def read_json_entries(text: str, names: Iterable[str]) -> list[Any]:
    """Returns the elements of a list: the whole document, or a member of one of these names.

    Each object is an :class:`Entry`. Raises :class:`UnreadableGateway`.
    """
    try:
        found = _EntryDecoder(text).decode(text)
    except json.JSONDecodeError as exc:
        raise UnreadableGateway(f"Line {exc.lineno}: not JSON: {exc.msg}.") from None
    except (RecursionError, ValueError, InvalidOperation):
        raise UnreadableGateway("The file is nested too deeply, or has a huge number.") from None
    while isinstance(found, Entry):
        found = next((found[name] for name in names if found.get(name) is not None), None)
    if not isinstance(found, list):
        wanted = " or ".join(names)
        raise UnreadableGateway(
            f"Line 1: the file must be a list of channels, or have one as {wanted}."
        )
    return found


class _EntryDecoder(json.JSONDecoder):
    """Decodes JSON and tells each object the line at which it begins."""

    def __init__(self, text: str) -> None:
        super().__init__(parse_float=Decimal)
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self.parse_object = self._read_object
        # The scanner in C asks nobody where an object begins.
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def _read_object(
        self, place: tuple[str, int], strict: bool, scan: Any, *_: Any
    ) -> tuple[Entry, int]:
        text, start = place
        pairs, end = json.decoder.JSONObject(place, strict, scan, None, list)  # type: ignore[attr-defined]
        entry = Entry(bisect_left(self._ends, start) + 1)
        entry.update(pairs)
        if len(entry) != len(pairs):
            raise json.JSONDecodeError("a member is named twice in an object", text, start)
        return entry, end
