"""Reads YAML and JSON, and keeps the line at which each entry begins; pure."""

from __future__ import annotations

import codecs
import json
import re
from bisect import bisect_left
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

import yaml

_MOST_BYTES: Final = 4 * 1024 * 1024
_MOST_NODES: Final = 200_000
_TAG: Final = "tag:yaml.org,2002:"
_SCALARS: Final = yaml.constructor.SafeConstructor()


class UnreadableGateway(Exception):
    """A file that is not the configuration of its gateway; the message is safe to show."""


class Entry(dict[str, Any]):
    """An object of a file, the line at which it begins, and those of its members."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class Listed(NamedTuple):
    """An element of a list, and the line at which it begins."""

    line: int
    value: Any


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
    """Returns the object of a document; its lists have :class:`Listed` elements.

    Fractions are decimals, digit by digit. Raises :class:`UnreadableGateway`.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = None if node is None else _Reader().read(node)
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


class _Reader:
    """Turns the nodes of a document into values. What an anchor names is read once."""

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}
        self._open: set[int] = set()

    def read(self, node: yaml.Node) -> Any:
        key = id(node)
        if key in self._values:
            return self._values[key]
        line = node.start_mark.line + 1
        if key in self._open:
            raise UnreadableGateway(f"Line {line}: an anchor contains itself.")
        if len(self._values) + len(self._open) >= _MOST_NODES:
            raise UnreadableGateway(f"The file has more than {_MOST_NODES:,} values.")
        self._open.add(key)
        if isinstance(node, yaml.MappingNode):
            value: Any = self._read_mapping(node, line)
        elif isinstance(node, yaml.SequenceNode):
            value = [Listed(each.start_mark.line + 1, self.read(each)) for each in node.value]
        else:
            assert isinstance(node, yaml.ScalarNode), "there are three kinds of nodes"
            value = _read_scalar(node, line)
        self._open.discard(key)
        self._values[key] = value
        return value

    def _read_mapping(self, node: yaml.MappingNode, line: int) -> Entry:
        found, merged = Entry(line), []
        for name_node, value_node in node.value:
            at = name_node.start_mark.line + 1
            if name_node.tag == f"{_TAG}merge":
                merged += [self.read(each) for each in _list_merged(value_node)]
                continue
            if not isinstance(name_node, yaml.ScalarNode):
                raise UnreadableGateway(f"Line {at}: the name of a member must be a text.")
            if name_node.value in found:
                raise UnreadableGateway(f"Line {at}: {name_node.value!r} is named twice.")
            found[name_node.value] = self.read(value_node)
            found.lines[name_node.value] = at
        for each in merged:
            if not isinstance(each, Entry):
                raise UnreadableGateway(f"Line {line}: << must name an object.")
            for name, value in each.items():
                found.setdefault(name, value)
                found.lines.setdefault(name, each.lines[name])
        return found


def _list_merged(node: yaml.Node) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else [node]


def _read_scalar(node: yaml.ScalarNode, line: int) -> Any:
    text, kind = str(node.value), node.tag.removeprefix(_TAG)
    try:
        if kind == "null":
            return None
        if kind == "bool":
            return _SCALARS.construct_yaml_bool(node)
        # Digits with a colon are a number of seconds in YAML 1.1, and a text to everybody.
        if kind == "int" and ":" not in text and len(text) <= 64:
            return _SCALARS.construct_yaml_int(node)
        if kind == "float":
            return Decimal(text.replace("_", ""))
    except (ValueError, KeyError, InvalidOperation):
        return text
    if kind not in ("str", "int", "timestamp", "value"):
        raise UnreadableGateway(f"Line {line}: the tag {node.tag[:60]!r} is not known.")
    return text


# JSON.


def read_json_entries(text: str, names: Iterable[str]) -> list[Any]:
    """Returns the elements of a list: the whole document, or a member of one of these names.

    Each object is an :class:`Entry`. Raises :class:`UnreadableGateway`.
    """
    try:
        found = _EntryDecoder(text).decode(text)
    except json.JSONDecodeError as exc:
        raise UnreadableGateway(f"Line {exc.lineno}: not JSON: {exc.msg}.") from None
    except (RecursionError, ValueError):
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
