"""Hosts whose clocks are wrong: processes with a wall clock that is ahead or behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pytest

_SOURCE: Final = Path(__file__).with_name("wrong_clock.c")
HAS_COMPILER: Final = shutil.which("cc") is not None

needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler is installed")


def shifted(hours: int) -> dict[str, str]:
    """Returns the environment of a process whose clock is ahead by these hours."""
    return {"LD_PRELOAD": str(_compile()), "WRONG_CLOCK_SECONDS": str(hours * 3600)}


@cache
def _compile() -> Path:
    """Returns the library that shifts the clock; each process of the tests compiles its own."""
    library = Path(os.environ["CAUSEWAY_TEST_DIR"]) / f"wrong_clock.{os.getpid()}.so"
    arguments = ["cc", "-Wall", "-Werror", "-O2", "-shared", "-fPIC", "-o", library, _SOURCE]
    subprocess.run(arguments, check=True, timeout=60)
    return library
