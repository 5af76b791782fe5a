"""An installation of the wheel, in an environment of its own, far from the project's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from config.local.bootstrap import PARTS, PROJECT

# What a person's shell has; the tests' own settings must not reach the installation.
_KEPT = ("PATH", "LANG", "HOME", "TMPDIR")


def outside_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.lower().endswith("_proxy") or name.startswith(("PIP_", "UV_"))
    } | {"UV_SYSTEM_CERTS": "1"}


def build_wheel(folder: Path) -> Path:
    """Builds the wheel of this checkout into a folder."""
    _uv(
        "build", "--wheel", "--build-constraint", str(PROJECT / "requirements-build.lock"),
        "--out-dir", str(folder), str(PROJECT),
    )  # fmt: skip
    [wheel] = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Installation:
    """An environment with the wheel and the extras that were asked for."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, wheel: Path, *extras: str) -> Installation:
        """Installs the wheel with the versions of the lock file."""
        _uv("venv", "--python", sys.executable, str(folder))
        wanted = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
        # As constraints, the hashes of the lock file would be asked of the wheel too.
        pins = folder / "pins.txt"
        _uv(
            "export", "--project", str(PROJECT), "--frozen", "--no-emit-project", "--no-hashes",
            "--no-annotate", "--output-file", str(pins), *PARTS["runtime"],
        )  # fmt: skip
        _uv(
            "pip", "install", "--python", str(folder / "bin" / "python"),
            "--constraint", str(pins), wanted,
        )  # fmt: skip
        return cls(folder)

    @property
    def program(self) -> Path:
        return self.folder / "bin" / "causeway"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        [found] = self.folder.glob("lib/python*/site-packages")
        return found

    def run(
        self, *arguments: str, stdin: str = "", cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs ``causeway`` in a folder that has nothing to do with it."""
        return subprocess.run(
            [self.program, *arguments],
            cwd=cwd or self.folder,
            env={**outside_environment(), **variables},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def _uv(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "uv", "--quiet", *arguments],
        cwd="/",
        env=outside_environment(),
        check=True,
        timeout=600,
    )
