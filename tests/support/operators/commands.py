"""Commands of ``manage.py``, run in this process."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command


def run(*arguments: str) -> tuple[str, str]:
    """Runs a command; returns its standard output and its standard error."""
    out, err = io.StringIO(), io.StringIO()
    call_command(*arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def run_json(*arguments: str) -> tuple[dict[str, Any], str]:
    """Runs a command with ``--json``; returns the object that it prints and its standard error."""
    out, err = run(*arguments, "--json")
    found: dict[str, Any] = json.loads(out)
    return found, err


def refuse(*arguments: str) -> tuple[int, str]:
    """Runs a command that must fail; returns its exit code and its message."""
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    return caught.value.returncode, str(caught.value)
