"""The settings that another environment gives, read in this process."""

from __future__ import annotations

import os
import runpy
from collections.abc import Mapping
from typing import Any, Final

import pytest

from config.environment import Environment
from config.local.bootstrap import PROJECT

_FILE: Final = str(PROJECT / "config" / "settings.py")


def read_settings(**changes: str) -> dict[str, Any]:
    """Returns the settings of this run's environment with these variables.

    Raises ``ImproperlyConfigured`` where a start would be refused.
    """
    return read_only({**os.environ, **changes})


def read_only(environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the settings of an environment that has no other variables."""
    with pytest.MonkeyPatch.context() as patch:
        # What a variable that ends in _FILE names is read once by a process.
        patch.setattr(Environment.ENVIRON, "files_cache", {})
        for name in (*os.environ,):
            patch.delenv(name)
        for name, text in environment.items():
            patch.setenv(name, text)
        return runpy.run_path(_FILE)
