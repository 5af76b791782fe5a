"""The published files of the cluster: their programs accept them, and they agree with the code."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from django.conf import settings

from config.api.errors import GatewayError, Unavailable, UpstreamTimeout
from tests.support.clusters.patroni import FILES, read_environment
from tests.support.clusters.programs import PATRONI, find_missing_patroni

needs_haproxy = pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is missing")
needs_patroni = pytest.mark.skipif(not PATRONI.exists(), reason=find_missing_patroni())


@needs_haproxy
def test_haproxy_accepts_its_file(tmp_path: Path) -> None:
    text = (FILES / "haproxy.cfg").read_text()
    path = tmp_path / "haproxy.cfg"
    path.write_text(re.sub(r"\w+\.internal", "127.0.0.1", text))
    shown = subprocess.run(["haproxy", "-c", "-f", path], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "WARNING" not in shown.stderr


def test_haproxy_refuses_in_our_words() -> None:
    text = (FILES / "haproxy.cfg").read_text()
    found = re.findall(r'http-error status (\d+) .*string "(.*)"$', text, re.MULTILINE)
    bodies = {int(status): json.loads(body.replace('\\"', '"')) for status, body in found}
    assert bodies[503] == Unavailable().body()
    assert {status: body["error"]["code"] for status, body in bodies.items()} == {
        502: 502,
        503: 503,
        504: 504,
    }
    types = {status: body["error"]["metadata"] for status, body in bodies.items()}
    assert types == {
        502: {"error_type": GatewayError.error_type},
        503: {"error_type": Unavailable.error_type},
        504: {"error_type": UpstreamTimeout.error_type},
    }


@needs_haproxy
@pytest.mark.parametrize("files", [1024, 4096, 20_000])
def test_haproxy_starts_under_a_limit_of_open_files(tmp_path: Path, files: int) -> None:
    text = re.sub(r"\w+\.internal", "127.0.0.1", (FILES / "haproxy.cfg").read_text())
    # Sockets in a directory: no port is free for sure.
    text = re.sub(r"bind \S*:(\d+)", rf"bind {tmp_path}/\1", text)
    path = tmp_path / "haproxy.cfg"
    path.write_text(text)
    with subprocess.Popen(
        ["haproxy", "-db", "-d", "-f", path],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        # It says so once it has its limits, and exits before that if they do not suffice.
        assert any("Using epoll()" in line for line in lines)
        process.kill()


def test_haproxy_lets_the_longest_generation_end() -> None:
    found = re.findall(r"timeout (?:client|server) (\d+)m", (FILES / "haproxy.cfg").read_text())
    assert found == ["16", "16"]
    assert int(found[0]) * 60 > settings.HOLD_TIMEOUT


@needs_patroni
def test_patroni_accepts_its_file(tmp_path: Path) -> None:
    """Its check misses only the names of other machines."""
    shutil.copy(FILES / "patroni.yml", tmp_path)
    environment = {**os.environ, **read_environment("patroni.env")}
    shown = subprocess.run(
        [PATRONI, "--validate-config", "patroni.yml"],
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
    assert problems == []


@pytest.mark.parametrize(("version", "code"), [("3.0.2", 1), ("3.0.3", 0), ("4.1.5", 0)])
def test_the_unit_refuses_a_patroni_that_loses_history(
    tmp_path: Path, version: str, code: int
) -> None:
    program = tmp_path / "patroni"
    program.write_text(f"#!/bin/sh\necho patroni {version}\n")
    program.chmod(0o755)
    unit = (FILES / "patroni.service").read_text()
    [check] = re.findall(r"^ExecStartPre=/bin/sh -c '(.*)'$", unit, re.MULTILINE)
    check = check.replace("/opt/patroni/bin/patroni", str(program))
    done = subprocess.run(["/bin/sh", "-c", check], capture_output=True, text=True)
    assert (done.returncode, "loses history" in done.stderr) == (code, bool(code))


def test_the_page_installs_the_version_that_was_tried() -> None:
    [wanted] = re.findall(r"patroni\[etcd3,psycopg3\]==([\d.]+)", (FILES / "index.md").read_text())
    assert wanted == "4.1.5"
    if PATRONI.exists():
        shown = subprocess.run([PATRONI, "--version"], capture_output=True, text=True, check=True)
        assert shown.stdout.split()[1] == wanted


def test_pgbouncer_connects_again_soon() -> None:
    lines = (FILES / "pgbouncer.ini").read_text().splitlines()
    assert {"server_login_retry = 1", "pool_mode = transaction"} <= set(lines)


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
    text = (FILES / "causeway.env").read_text()
    assert re.findall(r"^# postgres://\S+@([\d.:]+)/", text, re.MULTILINE) == [f"127.0.0.1:{port}"]


def test_the_units_serve_where_the_proxies_ask_and_keep_their_own_secrets() -> None:
    units = FILES.parent / "systemd"
    for unit in ("causeway-serve.service", "causeway-work.service"):
        text = (units / unit).read_text()
        own = {
            name.removesuffix("_FILE")
            for name in re.findall(r"^Environment=(\w+)=", text, re.MULTILINE)
        }
        given = {name.removesuffix("_FILE") for name in read_environment("causeway.env")}
        assert own & given == set()
    asked = re.findall(
        r"^    server \w+ (\w+\.internal):(\d+)$", (FILES / "haproxy.cfg").read_text(), re.MULTILINE
    )
    text = (FILES / "causeway-serve.conf").read_text()
    [none, started] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    [before] = re.findall(
        r"^ExecStart=(.*)$", (units / "causeway-serve.service").read_text(), re.MULTILINE
    )
    assert (none, started) == ("", before.replace("--host 127.0.0.1", "--host 0.0.0.0"))
    assert {port for _, port in asked if f"--port {port} " in started} == {"8000"}
    assert [name for name, _ in asked] == ["serve1.internal", "serve2.internal"]
