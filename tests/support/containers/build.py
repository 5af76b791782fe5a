"""The steps of a Containerfile, and what a container engine does with them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Step:
    """One instruction of a Containerfile, and the number of its stage."""

    stage: int
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        return list(json.loads(self.text)) if self.text.startswith("[") else self.text.split()


def read_steps(text: str) -> list[Step]:
    """Returns the instructions in order; those before the first stage have the number 0."""
    steps: list[Step] = []
    stage = 0
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            stage += name == "FROM"
            steps.append(Step(stage, name, rest.strip()))
    return steps


class Build:
    """Runs the steps of a Containerfile in a folder that stands for the root of the image.

    It changes the absolute paths of the steps, and no more: commands run on this machine. Creating
    users is left out.
    """

    def __init__(self, context: set[str], root: Path, *, python: Path) -> None:
        self._context = context
        self._root = root
        self._python = python
        self.variables: dict[str, str] = {}

    def run(self, steps: list[Step], environment: Mapping[str, str]) -> None:
        folder = self._root
        for step in steps:
            match step.name:
                case "WORKDIR":
                    folder = self.place(step.text)
                    folder.mkdir(parents=True, exist_ok=True)
                case "ENV":
                    for item in step.words:
                        name, _, value = item.partition("=")
                        self.variables[name] = self._move(value)
                case "COPY" if not step.text.startswith("--from"):
                    self._copy(step.words[:-1], folder / step.words[-1])
                case "RUN" if not step.text.startswith("useradd"):
                    path = f"{self._python.parent}:{environment['PATH']}"
                    subprocess.run(
                        ["sh", "-c", self._move(step.text)],
                        cwd=folder,
                        env={**environment, **self.variables, "PATH": path},
                        check=True,
                        timeout=600,
                    )

    def place(self, path: str) -> Path:
        """Returns where a path of the image lies on this machine."""
        return self._root / path.lstrip("/")

    def _move(self, text: str) -> str:
        return re.sub(r"(?<![\w.])/(?=(?:opt|srv)/)", f"{self._root}/", text)

    def _copy(self, sources: list[str], target: Path) -> None:
        for source, path in self._sent(sources):
            is_folder = len(sources) > 1 or path != source
            place = target / (Path(path).relative_to(source) if path != source else path)
            place = place if is_folder else target
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / path, place)

    def _sent(self, sources: list[str]) -> Iterator[tuple[str, str]]:
        """Yields each source with the paths of its files in the context."""
        for source in sources:
            found = [p for p in self._context if p == source or p.startswith(f"{source}/")]
            assert found, f"{source} is not in the context"
            yield from ((source, path) for path in sorted(found))
