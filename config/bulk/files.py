"""Opens the files of imports and exports; ``-`` stands for standard input or output."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sized
from pathlib import Path
from typing import IO, Final, NoReturn, TypeVar

from django.core.management.base import CommandError, OutputWrapper

from config.bulk.rows import read_lines

_Line = TypeVar("_Line", bound=Sized)

_PROGRESS_INTERVAL: Final = 0.5
_CLEAR_LINE: Final = "\r\x1b[K"


def refuse(message: str) -> NoReturn:
    """Ends a command with exit code 1: its input is refused, and nothing was changed."""
    raise CommandError(message, returncode=1)


def read_input(name: str) -> bytes:
    """Returns the content of the file of that name, or of standard input for ``-``."""
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as exc:
        refuse(f"{name}: {exc.strerror}")


def read_text(name: str) -> str:
    """Returns the content of a file, or of standard input for ``-``, without a byte order mark."""
    try:
        return read_input(name).decode("utf-8-sig")
    except UnicodeDecodeError:
        refuse(f"{'standard input' if name == '-' else name}: not UTF-8")


@contextlib.contextmanager
def open_lines(name: str, terminal: OutputWrapper) -> Iterator[Iterator[bytes]]:
    """Opens the file of that name, or standard input for ``-``, to be read line by line."""
    with contextlib.ExitStack() as stack:
        file: IO[bytes] = sys.stdin.buffer
        if name != "-":
            try:
                file = stack.enter_context(Path(name).open("rb"))
            except OSError as exc:
                refuse(f"{name}: {exc.strerror}")
        yield with_progress(read_lines(file), terminal, size=_size_of(file))


def write_output(name: str, rows: Iterable[bytes], *, header: bytes = b"") -> int:
    """Writes rows to the file of that name, or to standard output for ``-``; returns their number.

    Only its owner can read a new file, because it may contain customers' data. The first row is
    read before the file is opened: what fails until then leaves an existing file as it is.
    """
    count = 0
    rest = iter(rows)
    try:
        with contextlib.ExitStack() as stack:
            if isinstance(rest, Generator):
                # A transaction that the rows hold open ends here, whatever fails.
                stack.enter_context(contextlib.closing(rest))
            first = list(itertools.islice(rest, 1))
            if name == "-":
                file: IO[bytes] = sys.stdout.buffer
            else:
                file = stack.enter_context(open(name, "wb", opener=_open_private))
            file.write(header)
            for row in itertools.chain(first, rest):
                file.write(row)
                count += 1
            file.flush()
    except OSError as exc:
        refuse(f"{name}: {exc.strerror}")
    return count


def _open_private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def with_progress(
    lines: Iterable[_Line], terminal: OutputWrapper, *, size: int | None = None
) -> Iterator[_Line]:
    """Yields the lines or rows, and writes their number, rate and remaining time to a terminal.

    Writes nothing to a file or pipe. The remaining time needs ``size``, the length in bytes.
    """
    if not terminal.isatty():
        yield from lines
        return
    start = shown_at = time.monotonic()
    count = done = 0
    for line in lines:
        yield line
        count += 1
        done += len(line)
        now = time.monotonic()
        if now - shown_at >= _PROGRESS_INTERVAL:
            shown_at = now
            text = f"{count} lines, {count / (now - start):.0f}/s"
            if size:
                text += f", {(now - start) * max(size - done, 0) / done:.0f} s left"
            terminal.write(_CLEAR_LINE + text, str, ending="")
            terminal.flush()
    terminal.write(f"{_CLEAR_LINE}{count} lines in {time.monotonic() - start:.1f} s", str)


def _size_of(file: IO[bytes]) -> int | None:
    """Returns the length of a regular file in bytes, or ``None`` for a pipe."""
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
