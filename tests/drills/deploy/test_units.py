"""The units of systemd: what they start, what they may do, and how they end."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from django.conf import settings
from django.core.management import load_command_class

from config.local.bootstrap import PROJECT
from config.settings import env

OBSERVABILITY = PROJECT / "docs" / "deploy" / "observability"
UNITS = sorted((PROJECT / "docs" / "deploy" / "systemd").glob("*.service"))
PROGRAM = "/opt/causeway/bin/causeway"
ANALYZE = shutil.which("systemd-analyze")
# Of 100; what is left is what a service of the network needs.
MAX_EXPOSURE = 20

analyzed = pytest.mark.skipif(ANALYZE is None, reason="needs systemd: apt-get install systemd")


def read(unit: Path) -> dict[str, str]:
    """Returns the settings of a unit, the last one of each name."""
    lines = [line for line in unit.read_text().splitlines() if "=" in line and line[0] != "#"]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.fixture
def installed(tmp_path: Path) -> list[Path]:
    """The units, with a program that this machine has."""
    program = Path(sys.executable).with_name("causeway")
    copies = []
    for unit in UNITS:
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace(PROGRAM, str(program)))
        copies.append(copy)
    return copies


@analyzed
def test_systemd_understands_every_line(installed: list[Path]) -> None:
    assert ANALYZE is not None
    done = subprocess.run(
        [ANALYZE, "verify", "--man=no", *installed], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@analyzed
def test_the_services_may_do_little(installed: list[Path]) -> None:
    assert ANALYZE is not None
    for unit in installed:
        done = subprocess.run(
            [ANALYZE, "security", "--offline=yes", f"--threshold={MAX_EXPOSURE}", unit],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_the_units_start_commands_that_exist() -> None:
    started = []
    for unit in UNITS:
        program, name, *arguments = shlex.split(read(unit)["ExecStart"])
        assert program == PROGRAM
        app = "django.core" if name == "migrate" else "config"
        load_command_class(app, name).create_parser("causeway", name).parse_args(arguments)
        started.append(name)
    assert started == ["migrate", "serve", "work"]


def test_secrets_reach_the_services_as_credentials() -> None:
    for unit in UNITS:
        loaded = dict(
            line.removeprefix("LoadCredential=").split(":")
            for line in unit.read_text().splitlines()
            if line.startswith("LoadCredential=")
        )
        given = dict(
            line.removeprefix("Environment=").split("=")
            for line in unit.read_text().splitlines()
            if line.startswith("Environment=")
        )
        given.pop("METRICS_PORT", None)
        given.pop("ADMIN_REQUIRES_TOTP", None)
        assert given == {f"{name.upper()}_FILE": f"%d/{name}" for name in loaded}
        assert {name.upper() for name in loaded} == {
            *("DATABASE_URL", "SECRET_KEY", "CREDENTIAL_KEYS", "METRICS_TOKEN")
        }
        assert {name.upper() for name in loaded} <= env.names


def test_each_service_has_the_port_that_prometheus_asks() -> None:
    prometheus = yaml.safe_load((OBSERVABILITY / "prometheus.yml").read_text())
    asked = {
        job["job_name"]: {target.rpartition(":")[2] for target in each["targets"]}
        for job in prometheus["scrape_configs"]
        for each in job["static_configs"]
    }
    ports = {
        unit.stem: set(
            re.findall(r"^Environment=METRICS_PORT=(\d+)$", unit.read_text(), re.MULTILINE)
        )
        for unit in UNITS
    }
    assert ports.pop("causeway-migrate") == set()
    assert asked == ports
    assert len(set.union(*ports.values())) == len(ports)


def test_open_streams_may_finish() -> None:
    [serve] = [read(unit) for unit in UNITS if unit.stem == "causeway-serve"]
    default_hold = 900
    assert int(serve["TimeoutStopSec"]) > default_hold + settings.DRAIN_SECONDS + 20
    assert (serve["KillMode"], serve["KillSignal"]) == ("mixed", "SIGTERM")
    # Twice the default of MAX_CONNECTIONS and 512, for each of the workers.
    assert int(serve["LimitNOFILE"]) >= 2 * 10_000 + 512


def test_a_missing_database_at_the_start_keeps_no_service_down() -> None:
    """After `Requires=`, systemd would not start a service again whose migration had failed."""
    for unit in UNITS:
        assert "\nRequires=" not in unit.read_text()
        assert read(unit)["Restart"] in ("always", "on-failure")
