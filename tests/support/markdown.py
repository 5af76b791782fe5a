"""Fenced blocks of the documentation, and a runner that executes them as a reader would."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from config.local.bootstrap import PROJECT

PAGES = (*sorted(PROJECT.glob("*.md")), *sorted((PROJECT / "docs").rglob("*.md")))
SHELL = "sh"
PYTHON = "python"
_FENCE = re.compile(r"^( *)```([a-z]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_MARK = "===== end of the block in line {line} ====="


@dataclass(frozen=True)
class Block:
    """One fenced block: its page, the line of its fence, its language and its text."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    """Returns the path of a page in the project."""
    return page.relative_to(PROJECT).as_posix()


def read_blocks(page: Path, *languages: str) -> list[Block]:
    """Returns the fenced blocks of a page in order, of the given languages if any is given."""
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            found[2],
            re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE),
        )
        for found in _FENCE.finditer(text)
        if not languages or found[2] in languages
    ]


def read_tables(page: Path) -> list[list[str]]:
    """Returns the cells of every table row of a page, without heads and rules."""
    lines = page.read_text().splitlines()
    rows = []
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        is_rule = re.fullmatch(r"\|[-:| ]+\|", line) is not None
        is_head = re.fullmatch(r"\|[-:| ]+\|", after) is not None
        if line.startswith("|") and before.startswith("|") and not is_rule and not is_head:
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            rows.append([cell.strip().replace("\\|", "|") for cell in cells])
    return rows


class Reader:
    """A person with a checkout of the project, a home of their own and no other environment.

    ``changes`` are what differs on this machine from what the pages say: ports that are free here.
    """

    def __init__(self, *, changes: Mapping[str, str], **variables: str) -> None:
        # Below a directory of pytest's, which is private, PostgreSQL could not run as `nobody`.
        self.home = home = Path(tempfile.mkdtemp(prefix="causeway-reader-"))
        home.chmod(0o711)
        self.folder = home / "causeway"
        self.changes = changes
        self.folder.mkdir()
        for entry in PROJECT.iterdir():
            if entry.name != ".data":
                (self.folder / entry.name).symlink_to(entry)
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "DATA_DIR": str(self.folder / ".data"),
            "LANG": "C.UTF-8",
            # No proxy has to notice that a service ends.
            "DRAIN_SECONDS": "0",
            **variables,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    def change(self, text: str) -> str:
        """Returns the text of a page as it must read on this machine."""
        for wanted, found in self.changes.items():
            text = re.sub(rf"(?<![\w.]){wanted}(?![\w.])", found, text)
        return text

    def run(self, blocks: Iterable[Block], *, timeout: float = 120) -> dict[int, str]:
        """Runs shell and Python blocks in order in one shell; returns the output by line.

        The shell ends at the first command that fails. What a block leaves in the background ends
        with the shell.
        """
        blocks = list(blocks)
        with self.shell(blocks) as (process, output):
            try:
                code: int | None = process.wait(timeout)
            except subprocess.TimeoutExpired:
                code = None
            text = output.read_text()
        assert code == 0, f"{blocks[0].page.name} ended with {code}:\n{text}"
        return _split(text, blocks)

    @contextmanager
    def shell(self, blocks: Iterable[Block]) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """Starts a shell that runs the blocks; ends it, and what it started, at the end."""
        script = ["set -eu -o pipefail"]
        for block in blocks:
            text = self.change(block.text)
            if block.language == PYTHON:
                path = self.home / f"{block.page.stem}-{block.line}.py"
                path.write_text(text)
                text = f"python3 {path}\n"
            script.append(f"{text}\nprintf '\\n%s\\n' '{_MARK.format(line=block.line)}'")
        output = self.home / f"output-{time.monotonic_ns()}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", "\n".join(script)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                # A group of its own, so that what runs in the background can be ended with it.
                start_new_session=True,
            )
        try:
            yield process, output
        finally:
            _end_group(process)


def _split(text: str, blocks: list[Block]) -> dict[int, str]:
    outputs = {}
    for block in blocks:
        outputs[block.line], _, text = text.partition(_MARK.format(line=block.line))
    return outputs


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Stops a shell and all that it left in the background."""
    for number, seconds in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + seconds
        try:
            os.killpg(process.pid, number)
            while time.monotonic() < deadline:
                process.poll()
                time.sleep(0.05)
                os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
