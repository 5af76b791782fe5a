"""What bulk imports share: lines of a bounded length, faults of a bounded number, one report."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any, Final, NoReturn, Protocol, TypeVar

import msgspec

_Row = TypeVar("_Row")

MAX_LINE: Final = 64 * 1024
MAX_SHOWN: Final = 100
_MAX_TEXT: Final = 300


class ImportRefused(Exception):
    """The file cannot be imported, and nothing changed.

    ``problems`` has a line for each fault; of more than a hundred, the last one counts the others.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Problems:
    """Collects the faults of a file; of any number of them it keeps a hundred."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._count = 0

    def add(self, line: int, text: str) -> None:
        """Adds a fault; what it quotes from the file is cut, and harmless to a terminal."""
        self.add_at(f"line {line}", text)

    def add_at(self, place: str, text: str) -> None:
        """Adds a fault of a file that has places other than lines."""
        clean = "".join(char if char.isprintable() else "\ufffd" for char in text[:_MAX_TEXT])
        self.add_many([f"{place}: {clean}"], 1)

    def add_many(self, texts: Iterable[str], count: int) -> None:
        """Adds ``count`` faults, of which ``texts`` has at least as many as can still be shown."""
        self._count += count
        for text in texts:
            if len(self._shown) == MAX_SHOWN:
                break
            self._shown.append(text)

    @property
    def room(self) -> int:
        """How many more faults would be shown."""
        return MAX_SHOWN - len(self._shown)

    def refuse_any(self) -> None:
        """Raises :class:`ImportRefused` when there is a fault."""
        if self._count:
            raise self._refusal()

    def stop(self, line: int, text: str) -> NoReturn:
        """Raises :class:`ImportRefused` at a fault after which nothing can be read."""
        self.add(line, f"{text}; what follows was not read")
        raise self._refusal()

    def _refusal(self) -> ImportRefused:
        hidden = self._count - len(self._shown)
        return ImportRefused([*self._shown, *([f"… and {hidden} more"] if hidden else [])])


class Fate(StrEnum):
    """What becomes of a row."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"


class Plan(Protocol):
    """Is told the fate of each row of a file, in the file's order."""

    def __call__(self, kind: str, row: str, fate: Fate) -> None: ...


@dataclass(slots=True)
class Report:
    """How many rows of each kind an import created, updated and left as they were."""

    created: dict[str, int]
    updated: dict[str, int]
    unchanged: dict[str, int]
    dry_run: bool

    @classmethod
    def on(cls, *kinds: str, dry_run: bool) -> Report:
        """Returns a report that has counted nothing yet."""
        none = dict.fromkeys(kinds, 0)
        return cls(dict(none), dict(none), dict(none), dry_run)

    def counting(self, plan: Plan | None) -> Plan:
        """Returns what counts the fates that it is told, and passes them on to ``plan``."""
        counts = {
            Fate.CREATE: self.created,
            Fate.UPDATE: self.updated,
            Fate.UNCHANGED: self.unchanged,
        }

        def tell(kind: str, row: str, fate: Fate) -> None:
            counts[fate][kind] += 1
            if plan is not None:
                plan(kind, row, fate)

        return tell


def read_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yields the lines of a file, each cut where it becomes too long for :func:`decoded`."""
    while line := file.readline(MAX_LINE + 1):
        yield line


def decoded(lines: Iterable[bytes], problems: Problems) -> Iterator[str]:
    """Yields the lines as text, without the byte order mark that the first may have.

    Raises :class:`ImportRefused` at a line that is not UTF-8, or longer than 64 KiB.
    """
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE:
            problems.stop(number, f"longer than {MAX_LINE} bytes")
        try:
            text = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode()
        except UnicodeDecodeError:
            problems.stop(number, "not UTF-8")
        yield text


def json_rows(
    texts: Iterable[str], shape: type[_Row], problems: Problems
) -> Iterator[tuple[int, _Row]]:
    """Yields the objects of JSON lines with their line numbers; blank lines are none."""
    for number, text in enumerate(texts, 1):
        if text.isspace():
            continue
        try:
            row = msgspec.convert(_DECODER.decode(text.rstrip("\r\n")), shape)
        except json.JSONDecodeError as exc:
            problems.add(number, f"not JSON: {exc.msg} (column {exc.colno})")
        except RecursionError:
            problems.add(number, "nested too deeply")
        except ValueError as exc:
            problems.add(number, str(exc))
        else:
            yield number, row


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key is named twice in one object")
    return members


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique_keys)
