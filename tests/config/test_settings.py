"""What the settings read from the environment, and what they refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from config.local.bootstrap import PROJECT

OLD, OLDER = "o" * 32, "p" * 32


def read(expression: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Evaluates an expression over ``settings`` in a process with these variables."""
    program = f"import json; from django.conf import settings; print(json.dumps({expression}))"
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_earlier_secret_keys_are_a_list() -> None:
    done = read("settings.SECRET_KEY_FALLBACKS", SECRET_KEY_FALLBACKS=f"{OLD}, {OLDER}\n")
    assert json.loads(done.stdout) == [OLD, OLDER]


@pytest.mark.parametrize("text", [f"{OLD},short", f"{OLD},", ","])
def test_a_short_part_of_a_list_of_secrets_is_refused(text: str) -> None:
    done = read("settings.SECRET_KEY_FALLBACKS", SECRET_KEY_FALLBACKS=text)
    assert "SECRET_KEY_FALLBACKS is a comma list; each part needs at least 32" in done.stderr
    assert "o" * 32 not in done.stderr.splitlines()[-1]
