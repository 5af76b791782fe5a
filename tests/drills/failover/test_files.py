"""The published files of the cluster: their programs accept them, and they agree with the code."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from django.conf import settings

from config.api.errors import Unavailable
from tests.support.clusters.patroni import FILES, read_environment

needs_haproxy = pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is missing")
needs_patroni = pytest.mark.skipif(shutil.which("patroni") is None, reason="patroni is missing")


@needs_haproxy
def test_haproxy_accepts_its_file(tmp_path: Path) -> None:
    text = (FILES / "haproxy.cfg").read_text()
    path = tmp_path / "haproxy.cfg"
    path.write_text(re.sub(r"\w+\.internal", "127.0.0.1", text))
    shown = subprocess.run(["haproxy", "-c", "-f", path], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "WARNING" not in shown.stderr


def test_haproxy_refuses_in_our_words() -> None:
    [text] = re.findall(r'string "(.*)"$', (FILES / "haproxy.cfg").read_text(), re.MULTILINE)
    assert json.loads(text.replace('\\"', '"')) == Unavailable().body()


def test_haproxy_lets_the_longest_generation_end() -> None:
    found = re.findall(r"timeout (?:client|server) (\d+)m", (FILES / "haproxy.cfg").read_text())
    assert found == ["16", "16"]
    assert int(found[0]) * 60 > settings.HOLD_TIMEOUT


@needs_patroni
def test_patroni_accepts_its_file(tmp_path: Path) -> None:
    """Its check misses only two parts that may be left out, and the names of other machines."""
    shutil.copy(FILES / "patroni.yml", tmp_path)
    environment = {**os.environ, **read_environment("patroni.env")}
    shown = subprocess.run(
        ["patroni", "--validate-config", "patroni.yml"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    problems = [
        re.sub(r"\s+", " ", line)
        for line in (shown.stdout + shown.stderr).splitlines()
        if line.strip() and ".internal" not in line
    ]
    assert problems == [
        "bootstrap.pg_hba is not defined.",
        "postgresql.authentication.rewind is not defined.",
    ]


def test_the_key_of_a_dead_primary_expires_as_the_page_says() -> None:
    text = (FILES / "patroni.yml").read_text()
    ttl, pause, retry = (
        int(re.search(rf"^    {name}: (\d+)$", text, re.MULTILINE)[1])  # type: ignore[index]
        for name in ("ttl", "loop_wait", "retry_timeout")
    )
    assert ttl == 20
    assert ttl >= pause + 2 * retry


def test_causeway_goes_through_the_proxy_of_its_host() -> None:
    [port] = re.findall(
        r"^listen primary\n.*\n +bind 127.0.0.1:(\d+)$",
        (FILES / "haproxy.cfg").read_text(),
        re.MULTILINE,
    )
    assert f"@127.0.0.1:{port}/" in read_environment("causeway.env")["DATABASE_URL"]
