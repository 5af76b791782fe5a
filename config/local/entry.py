"""Runs a command of Causeway: by `manage.py` in a clone, by `causeway` in an installation.

It uses the standard library only, because `manage.py` imports it before anything is installed.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from pathlib import Path
from typing import Final

from config.local import demo

ROOT: Final = Path(__file__).resolve().parents[2]
IS_CLONE: Final = (ROOT / "manage.py").is_file()
# What a person types before the name of a command, and what a process starts.
PROGRAM: Final = "python3 manage.py" if IS_CLONE else "causeway"
COMMAND: Final = (
    (sys.executable, str(ROOT / "manage.py"))
    if IS_CLONE
    else (sys.executable, "-P", "-m", "causeway_gateway")
)


def run(argv: list[str]) -> None:
    """Runs the command in `argv`; a demo gets its environment first."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    if argv[1:2] == ["demo"]:
        demo.prepare_environment(argv[2:], default_data_dir())
    # What is imported stays, so the collector would look through it again and again for nothing.
    gc.disable()
    # This module needs Django, which the bootstrap of a clone installs first.
    importlib.import_module("config.management.cli").main(argv)


def default_data_dir() -> Path:
    """Returns `.data` in a clone; in an installation, a folder of the user's own."""
    if IS_CLONE:
        return ROOT / ".data"
    base = os.environ.get("XDG_DATA_HOME", "")
    return Path(base if os.path.isabs(base) else "~/.local/share").expanduser() / "causeway"
