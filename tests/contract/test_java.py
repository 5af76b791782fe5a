"""The HTTP client of the JDK, which offers ``h2c`` with each request over plain HTTP."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.inference.site import CHAT, Site

PROGRAM = Path(__file__).with_name("Chat.java")


def test_the_client_of_the_jdk_is_served(site: Site) -> None:
    if (java := shutil.which("java")) is None:
        pytest.skip("needs a JDK")
    site.publish()
    body = json.dumps(site.chat_body())
    done = subprocess.run(
        [java, str(PROGRAM), f"{site.server}{CHAT}", site.tenant.api_key, body],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert [answer[:2] for answer in answers] == [["200", "HTTP_1_1"]] * 3
    for _, _, text in answers:
        assert json.loads(text)["choices"][0]["message"]["content"] == "You said: one two"
