"""Collects the problems of an imported file, each with its line number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NoReturn

MAX_SHOWN: Final = 100
_MAX_TEXT: Final = 300


class ImportRefused(Exception):
    """The file cannot be imported, and nothing changed.

    ``problems`` holds one text per problem, at most 100; if there are more, a last text counts the
    rest.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Problems:
    """Counts the problems of a file and keeps the first 100 of their texts."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._count = 0

    def add(self, line: int, text: str) -> None:
        """Adds a problem; cuts its text at 300 characters and replaces control characters."""
        self.add_at(f"line {line}", text)

    def add_at(self, place: str, text: str) -> None:
        """Adds a problem at a place that is not a line."""
        clean = "".join(char if char.isprintable() else "\ufffd" for char in text[:_MAX_TEXT])
        self.add_many([f"{place}: {clean}"], 1)

    def add_many(self, texts: Iterable[str], count: int) -> None:
        """Adds ``count`` problems; ``texts`` needs at most :attr:`room` of their texts."""
        self._count += count
        for text in texts:
            if len(self._shown) == MAX_SHOWN:
                break
            self._shown.append(text)

    @property
    def room(self) -> int:
        """The number of problems that would still be shown."""
        return MAX_SHOWN - len(self._shown)

    def raise_if_any(self) -> None:
        """Raises :class:`ImportRefused` if there is a problem."""
        if self._count:
            raise self._refusal()

    def stop(self, line: int, text: str) -> NoReturn:
        """Raises :class:`ImportRefused` for a problem that ends the reading of the file."""
        self.add(line, f"{text}; what follows was not read")
        raise self._refusal()

    def _refusal(self) -> ImportRefused:
        hidden = self._count - len(self._shown)
        return ImportRefused([*self._shown, *([f"… and {hidden} more"] if hidden else [])])
