"""The program that reads PDF files in a process of its own, which knows its input and no more.

It imports nothing of this project. The input is a line of JSON with the limits and the sizes of the
files, and then the files. The output is one line of JSON when it is ready and one for each file, in
their order, up to the first that cannot be read.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from typing import Any, Final

import pypdf
from pypdf.errors import LimitReachedError

# All control characters but tabs and line feeds, and halves of characters.
_UNREADABLE: Final = re.compile("[\0-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_SCORE: Final = "/proc/self/oom_score_adj"


class PdfRefused(Exception):
    """A file that is not read: the name of the problem."""


def limit_process(memory: int, seconds: int) -> None:
    """Limits what this process may take; the kernel ends it at the limit of time."""
    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 0),
    ):
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(kind, (most, most))
    # A worker that is killed cannot end this process; thrice its time of CPU does.
    signal.alarm(3 * seconds)
    os.nice(5)
    if os.path.exists(_SCORE):
        # A machine without memory ends this process before any other one.
        descriptor = os.open(_SCORE, os.O_WRONLY)
        try:
            os.write(descriptor, b"1000")
        except OSError:
            pass
        finally:
            os.close(descriptor)


def main() -> None:
    """Reads the files of the standard input, up to the first that cannot be read."""
    source = sys.stdin.buffer
    order: dict[str, Any] = json.loads(source.readline())
    limit_process(order["memory"], order["seconds"])
    logging.disable()
    # All of it is taken before anything is written: the other side writes first, then reads.
    files = [source.read(length) for length in order["lengths"]]
    pages, size = order["pages"], order["text_bytes"]
    tell({"ready": True})
    for file in files:
        texts: list[str] = []
        try:
            for text in read_pages(io.BytesIO(file), pages):
                size -= len(text.encode())
                if size < 0:
                    raise PdfRefused("text")
                texts.append(text)
        except PdfRefused as problem:
            tell({"problem": str(problem)})
            return
        except (MemoryError, LimitReachedError):
            del texts
            tell({"problem": "memory"})
            return
        except Exception:
            # The library raises errors of any kind for a broken file.
            tell({"problem": "broken"})
            return
        pages -= len(texts)
        tell({"pages": texts})


def read_pages(file: io.BytesIO, most: int) -> Iterator[str]:
    """Yields the text of each page; raises :class:`PdfRefused`, or any error of the library."""
    reader = pypdf.PdfReader(file)
    if reader.is_encrypted and not reader.decrypt(""):
        raise PdfRefused("encrypted")
    if len(reader.pages) > most:
        raise PdfRefused("pages")
    for page in reader.pages:
        yield _UNREADABLE.sub("", page.extract_text()).strip()


def tell(line: dict[str, Any]) -> None:
    """Writes a line of the output."""
    sys.stdout.buffer.write(json.dumps(line).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
