"""Runs the program that reads PDF files: a process without secrets, and with limits."""

from __future__ import annotations

import io
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec
from prometheus_client import Counter

from config.api.errors import Unavailable

logger = logging.getLogger(__name__)

# The most that the files of one request may take. A text of 4 MiB is about a million tokens.
MAX_FILES: Final = 32
MAX_PAGES: Final = 2_000
MAX_TEXT_BYTES: Final = 4 * 1024 * 1024
CPU_SECONDS: Final = 10
MEMORY_BYTES: Final = 256 * 1024 * 1024
# A busy machine gives the process its seconds of CPU in up to thrice the time.
_SECONDS: Final = 3 * CPU_SECONDS
# A character takes up to six bytes of the answer's JSON.
_MAX_ANSWER_BYTES: Final = 6 * MAX_TEXT_BYTES + 64 * MAX_PAGES
_PART_BYTES: Final = 65_536
_PROGRAM: Final = Path(__file__).with_name("pdf_text.py")
_COMMAND: Final = (sys.executable, "-I", "-B", str(_PROGRAM))
# How the kernel ends a process at its limits of time.
_ENDED_BY_TIME: Final = frozenset((-signal.SIGALRM, -signal.SIGXCPU, -signal.SIGKILL))
PROBLEMS: Final = {
    "broken": "The PDF is broken, and has no text that could be read.",
    "encrypted": "The PDF is encrypted. Send it without a password.",
    "pages": f"The PDFs of a request may have {MAX_PAGES:,} pages in all. Send fewer.",
    "text": f"The PDFs of a request may have {MAX_TEXT_BYTES:,} bytes of text in all. Send fewer.",
    "memory": "The PDF takes more memory than the reading of a file may. Send it in parts.",
    "time": f"The PDFs take more than {CPU_SECONDS} seconds to read. Send fewer, or in parts.",
    "empty": "The PDF has no text, perhaps only pictures. The engine 'native' leaves it to models.",
}
_READ: Final = Counter(
    "causeway_pdf_readings_total",
    "Requests whose PDF files were read, by the outcome: read, or the problem.",
    ("outcome",),
)


class UnreadablePdf(Exception):
    """One of the files is not read: its index, and one of :data:`PROBLEMS`."""

    def __init__(self, index: int, problem: str) -> None:
        self.index = index
        self.problem = problem
        super().__init__(problem)


class _Line(msgspec.Struct):
    """A line of the program's answer: it is ready, or what became of a file."""

    ready: bool = False
    pages: list[str] | None = None
    problem: str | None = None


_decode = msgspec.json.Decoder(_Line).decode


def read_pdfs(files: Sequence[bytes]) -> list[list[str]]:
    """Returns the texts of the pages of each file.

    It takes up to thirty seconds, so a thread calls it. Raises :class:`UnreadablePdf` for the first
    file that cannot be read, and :class:`Unavailable` if the program does not run.
    """
    try:
        texts = _read(files)
    except UnreadablePdf as exc:
        _READ.labels(exc.problem).inc()
        raise
    except Unavailable:
        _READ.labels("unavailable").inc()
        raise
    _READ.labels("read").inc()
    return texts


def _read(files: Sequence[bytes]) -> list[list[str]]:
    answer, status, has_expired = _run(files)
    lines = [_decode(line) for line in answer if line.endswith(b"}\n")]
    answer.close()
    if not lines or not lines[0].ready:
        logger.error("the program that reads PDF files does not run: it ended with %d", status)
        raise Unavailable("PDF files cannot be read now. Try again shortly.")
    texts: list[list[str]] = []
    for index in range(len(files)):
        line = lines[index + 1] if index + 1 < len(lines) else None
        if line is None:
            problem = "time" if has_expired or status in _ENDED_BY_TIME else "memory"
            logger.warning(
                "the reading of a PDF file of %d bytes was ended (status %d): %s",
                len(files[index]),
                status,
                problem,
            )
            raise UnreadablePdf(index, problem)
        if line.problem is not None:
            raise UnreadablePdf(index, line.problem if line.problem in PROBLEMS else "broken")
        pages = line.pages or []
        if not any(pages):
            raise UnreadablePdf(index, "empty")
        texts.append(pages)
    return texts


def _run(files: Sequence[bytes]) -> tuple[io.BytesIO, int, bool]:
    """Runs the program; returns its answer, its status, and whether it was ended for its time."""
    order: dict[str, Any] = {
        "memory": MEMORY_BYTES + 2 * sum(map(len, files)),
        "seconds": CPU_SECONDS,
        "pages": MAX_PAGES,
        "text_bytes": MAX_TEXT_BYTES,
        "lengths": [len(file) for file in files],
    }
    try:
        process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
        )
    except OSError as exc:
        logger.error("the program that reads PDF files cannot be started: %s", exc)
        raise Unavailable("PDF files cannot be read now. Try again shortly.") from None
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        process.kill()

    timer = threading.Timer(_SECONDS, expire)
    timer.daemon = True
    timer.start()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        # The program takes its whole input before it writes.
        _send(process.stdin, [msgspec.json.encode(order) + b"\n", *files])
        answer = _receive(process.stdout)
    finally:
        process.kill()
        timer.cancel()
        process.stdout.close()
        status = process.wait()
    return answer, status, expired.is_set()


def _send(pipe: IO[bytes], pieces: Sequence[bytes]) -> None:
    """Writes the input of the program, which may have ended."""
    try:
        with pipe:
            for piece in pieces:
                pipe.write(piece)
    except BrokenPipeError:
        pass


def _receive(pipe: IO[bytes]) -> io.BytesIO:
    """Returns the output of the program as a file; what is longer than any answer is left out."""
    answer = io.BytesIO()
    while answer.tell() < _MAX_ANSWER_BYTES and (part := pipe.read(_PART_BYTES)):
        answer.write(part)
    answer.seek(0)
    return answer
