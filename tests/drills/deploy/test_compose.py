"""The installation by compose: its file, as a parser reads it, and the script that starts it."""

from __future__ import annotations

import base64
import os
import re
import subprocess
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.core.management import load_command_class

from accounts.webhooks.delivering import LIMITS as DELIVERIES
from config.environment import find_misspelt
from config.local.bootstrap import PROJECT
from config.settings import env
from inference.broadcast.sender import LIMITS as BROADCASTS
from tests.support.deploy.packages import PODMAN_COMPOSE, run_tool

FOLDER = PROJECT / "docs" / "deploy" / "compose"
OURS = ("migrate", "serve", "work")
SECRETS = ("credential_keys", "database_password", "database_url", "metrics_token", "secret_key")


def parse(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Returns the file as podman-compose understands it: merged, with the variables filled in."""
    # The parser asks Podman for its version, and for nothing else.
    podman = tmp_path / "podman"
    podman.write_text("#!/bin/sh\necho 'podman version 5.4.0'\n")
    podman.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    return run_tool(
        PODMAN_COMPOSE, "podman-compose", "-f", str(FOLDER / "compose.yaml"), "config",
        cwd=tmp_path, PATH=path, **variables,
    )  # fmt: skip


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if "CAUSEWAY_TEST_OFFLINE" in os.environ:
        pytest.skip("needs a package index")
    done = parse(tmp_path_factory.mktemp("podman"), CAUSEWAY_HOST="llm.example.com")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return found


def test_the_parts_start_in_order(composed: dict[str, Any]) -> None:
    services = composed["services"]
    waits = {
        name: {other: how["condition"] for other, how in one.get("depends_on", {}).items()}
        for name, one in services.items()
    }
    healthy, done = "service_healthy", "service_completed_successfully"
    assert waits == {
        "db": {},
        "migrate": {"db": healthy},
        "serve": {"db": healthy, "migrate": done},
        "work": {"db": healthy, "migrate": done},
        "certificates": {},
        "caddy": {"serve": healthy, "certificates": done},
    }
    checked = {name for name, one in services.items() if "test" in one.get("healthcheck", {})}
    awaited = {other for one in waits.values() for other, how in one.items() if how == healthy}
    assert awaited <= checked


def test_every_container_is_hardened(composed: dict[str, Any]) -> None:
    for name, one in composed["services"].items():
        assert one["read_only"] is True, name
        assert one["cap_drop"] == ["ALL"], name
        assert one["security_opt"] == ["no-new-privileges:true"], name
        assert set(one["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}, name
    users = {name: one["user"] for name, one in composed["services"].items()}
    # The one that ends at once gives a new volume to Caddy's account.
    assert [name for name, user in users.items() if user.startswith("0")] == ["certificates"]
    assert composed["services"]["certificates"]["network_mode"] == "none"


def test_secrets_are_files_and_stand_in_no_environment(composed: dict[str, Any]) -> None:
    assert sorted(composed["secrets"]) == sorted(SECRETS)
    for name in OURS:
        one = composed["services"][name]
        assert sorted(one["secrets"]) == [
            "credential_keys", "database_url", "metrics_token", "secret_key",
        ]  # fmt: skip
        for secret in one["secrets"]:
            assert one["environment"][f"{secret.upper()}_FILE"] == f"/run/secrets/{secret}"
            assert secret.upper() not in one["environment"]
    assert composed["services"]["caddy"].get("secrets", []) == []


def test_the_services_read_settings_that_exist(composed: dict[str, Any]) -> None:
    for name in OURS:
        for variable in composed["services"][name]["environment"]:
            assert variable.removesuffix("_FILE") in env.names
        assert find_misspelt(composed["services"][name]["environment"], env.names, foreign=()) == {}


def test_own_settings_authorities_and_servers_of_the_host_reach_the_services(
    composed: dict[str, Any],
) -> None:
    for name in OURS:
        one = composed["services"][name]
        assert one["env_file"] == ["causeway.env"]
        assert one["volumes"] == ["./ca:/etc/causeway/ca:ro"]
        assert one["extra_hosts"] == ["host.docker.internal:host-gateway"]


def test_the_services_start_commands_that_exist(composed: dict[str, Any]) -> None:
    for name in OURS:
        command, *arguments = composed["services"][name]["command"]
        app = "django.core" if command == "migrate" else "config"
        load_command_class(app, command).create_parser("causeway", command).parse_args(arguments)


def test_only_caddy_can_be_reached_and_it_alone_is_believed(
    composed: dict[str, Any],
) -> None:
    services = composed["services"]
    assert [name for name, one in services.items() if "ports" in one] == ["caddy"]
    [network] = composed["networks"]["front"]["ipam"]["config"]
    address = services["caddy"]["networks"]["front"]["ipv4_address"]
    assert services["serve"]["environment"]["FORWARDED_ALLOW_IPS"] == address
    assert ip_address(address) in ip_network(network["subnet"])
    # An engine gives the first free address of the range to what starts first.
    assert ip_network(network["ip_range"]).subnet_of(ip_network(network["subnet"]))
    assert ip_address(address) not in ip_network(network["ip_range"])
    in_front = {name for name, one in services.items() if "front" in one.get("networks", [])}
    assert in_front == {"serve", "caddy"}
    assert services["db"]["networks"] == ["back"]


def test_the_console_is_kept_for_private_networks_and_a_second_factor(
    composed: dict[str, Any],
) -> None:
    given = composed["services"]["serve"]["environment"]
    assert given["ADMIN_REQUIRES_TOTP"] == "on"
    # Those of one link are left out: nobody signs in from there.
    links = {"169.254.0.0/16", "fe80::/10"}
    networks = given["CONSOLE_NETWORKS"].split(",")
    assert sorted(networks) == sorted({*settings.CONSOLE_NETWORKS} - links)


def test_open_streams_may_finish(composed: dict[str, Any]) -> None:
    needed = 900 + settings.DRAIN_SECONDS + 20
    for name in ("serve", "caddy"):
        assert int(composed["services"][name]["stop_grace_period"].rstrip("s")) >= needed


def test_without_a_host_nothing_starts(tmp_path: Path) -> None:
    if "CAUSEWAY_TEST_OFFLINE" in os.environ:
        pytest.skip("needs a package index")
    done = parse(tmp_path)
    assert done.returncode != 0
    assert "run ./start" in done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the folder, and a compose program that writes down how it was called."""
    folder = tmp_path / "compose"
    folder.mkdir()
    for name in ("start", "compose.yaml", "Caddyfile"):
        (folder / name).write_bytes((FOLDER / name).read_bytes())
    (folder / "start").chmod(0o755)
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "$PWD: $*" >> "$CALLS"\n')
    program.chmod(0o755)
    return folder


def start(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [folder / "start", *arguments],
        cwd="/",
        env={
            "PATH": os.environ["PATH"],
            "COMPOSE": str(folder.parent / "program"),
            "CALLS": str(folder.parent / "calls"),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_script_makes_secrets_once_and_starts_everything(copy: Path) -> None:
    assert start(copy, "llm.example.com").returncode == 0
    made = {path.name: path.read_text() for path in (copy / "secrets").iterdir()}
    assert sorted(made) == sorted(SECRETS)
    assert (copy / "secrets").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (copy / "secrets").iterdir()} == {0o644}
    assert len(base64.b64decode(made["credential_keys"], validate=True)) == 32
    assert len(base64.b64decode(made["secret_key"], validate=True)) == 48
    password = made["database_password"]
    assert password.isalnum()
    assert len(password) > 40
    assert made["database_url"] == f"postgres://causeway:{password}@db/causeway"
    assert (copy / ".env").read_text() == "CAUSEWAY_HOST=llm.example.com\n"

    assert (copy / "ca").is_dir()
    (copy / "causeway.env").write_text("BYOK_FEE_PERCENT=5\n")

    assert start(copy).returncode == 0
    assert (copy / "causeway.env").read_text() == "BYOK_FEE_PERCENT=5\n"
    assert {path.name: path.read_text() for path in (copy / "secrets").iterdir()} == made
    calls = (copy.parent / "calls").read_text().splitlines()
    assert calls == [f"{copy}: up --detach --build"] * 2


def test_another_host_keeps_the_other_lines(copy: Path) -> None:
    (copy / ".env").write_text("CONSOLE_NETWORKS=192.0.2.0/24\nCAUSEWAY_HOST=a.example\n")
    assert start(copy, "b.example").returncode == 0
    lines = (copy / ".env").read_text().splitlines()
    assert lines == ["CAUSEWAY_HOST=b.example", "CONSOLE_NETWORKS=192.0.2.0/24"]


def test_the_script_refuses_settings_that_would_do_nothing(
    copy: Path, composed: dict[str, Any]
) -> None:
    given = composed["services"]["serve"]["environment"]
    for name in (name for name in given if not name.endswith("_FILE")):
        (copy / "causeway.env").write_text(f"BYOK_FEE_PERCENT=5\n{name}=x\n")
        done = start(copy, "b.example")
        assert (done.returncode, done.stdout) == (2, f"{name}=x\n")
        assert "compose.yaml sets it" in done.stderr
    assert not (copy / "secrets").exists()
    assert not (copy.parent / "calls").exists()


def test_work_has_room_for_all_deliveries(composed: dict[str, Any]) -> None:
    """Each may have a timer and a lookup of a name beside it."""
    threads = 3 * (DELIVERIES.total + BROADCASTS.total)
    assert composed["services"]["work"]["deploy"]["resources"]["limits"]["pids"] > 2 * threads
    unit = (FOLDER.parent / "systemd" / "causeway-work.service").read_text()
    [most] = re.findall(r"^TasksMax=(\d+)$", unit, re.MULTILINE)
    assert int(most) > 2 * threads


def test_the_script_asks_for_a_host_and_makes_nothing_without_one(copy: Path) -> None:
    done = start(copy)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ")
    assert not (copy / "secrets").exists()
    assert not (copy.parent / "calls").exists()


def test_the_secrets_stay_out_of_version_control() -> None:
    ignored = (PROJECT / ".gitignore").read_text().splitlines()
    assert {"docs/deploy/compose/.env", "docs/deploy/compose/secrets/"} <= set(ignored)
