"""The command line: its version, wrong usage, and one-sentence errors."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import environ
import pytest
from django.conf import settings
from django.test import Client

from config.local import postgres
from config.management.cli import describe_database
from tests.support.database.migrated import own_server
from tests.support.processes import POOLER_ADDRESS, manage

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_pyproject_command_line_and_console_show_the_same_version(operator: Client) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    asked = run("--version")
    assert (asked.stdout, asked.stderr) == (f"{version}\n", "")
    assert version == settings.VERSION
    assert f"LLM gateway {version}" in operator.get("/admin/").content.decode()


def test_the_change_log_and_the_manifests_name_the_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert released[0] == settings.VERSION
    example = ROOT / "docs/deploy/kubernetes/overlays/example/kustomization.yaml"
    assert f"newTag: {settings.VERSION}\n" in example.read_text()


def test_the_document_has_the_version_of_the_interface(client: Client) -> None:
    assert client.get("/api/v1/openapi.json").json()["info"]["version"] == "1.0.0"


@pytest.mark.parametrize("arguments", [("bogus",), ("migrate", "--bogus")])
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "bogus" in done.stderr


def test_wrong_settings_are_reported_in_one_sentence() -> None:
    done = run("migrate", SECRET_KEY="short")
    assert done.returncode == 1
    assert done.stderr.startswith("Causeway cannot start: SECRET_KEY is too short: it needs")
    assert done.stderr.count("\n") == 1


def test_commands_without_a_database_start_no_embedded_server(tmp_path: Path) -> None:
    environment = {"DATABASE_URL": "embedded", "DATA_DIR": str(tmp_path / "data")}
    listed = run("simulate_upstream", "--list", **environment)
    assert listed.returncode == 0
    assert "sim-echo" in listed.stdout
    assert "Database: " not in listed.stderr
    assert not (tmp_path / "data" / "postgres").exists()


def test_the_first_connection_starts_the_embedded_server() -> None:
    with own_server() as (directory, _):
        postgres.stop(directory)
        done = run("verify_ledger", "--json", DATABASE_URL="embedded", DATA_DIR=str(directory))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["differences"] == []
    assert done.stderr.splitlines()[0] == f"Database: embedded, in {directory}"


@pytest.mark.parametrize(
    ("url", "description"),
    [
        ("postgres://u:hidden@db.example.com/gateway", "gateway on db.example.com, port 5432"),
        ("postgres://u:hidden@db.example.com:6000/gateway?sslmode=require",
         "gateway on db.example.com, port 6000"),
        ("postgres://u@/gateway?host=/run/pg&port=6001", "gateway on /run/pg, port 6001"),
        ("postgres:///gateway", "gateway on the local socket, port 5432"),
        ("postgres://?service=books", "service books"),
    ],
)  # fmt: skip
def test_the_name_of_a_database_has_its_host_and_port_and_no_password(
    url: str, description: str
) -> None:
    assert describe_database(environ.Env.db_url_config(url)) == description


_IN_TURN: Final = """
import contextlib, io, json, sys, traceback
from config.local import entry
found = []
for arguments in json.loads(sys.argv[1]):
    output, errors, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            entry.run(["manage.py", *arguments])
        except SystemExit as exc:
            code = exc.code
            if isinstance(code, str):
                # The interpreter prints it at its end.
                code = print(code, file=errors) or 1
        except Exception:
            code = 1
            traceback.print_exc()
    found.append([code, output.getvalue(), errors.getvalue()])
print(json.dumps(found))
"""


def test_a_command_names_its_database_before_it_fails() -> None:
    """The port is closed, so whatever a command does with the database fails afterwards."""
    commands = [
        ["migrate"],
        ["migrate", "--check"],
        ["createsuperuser", "--noinput", "--username", "anna", "--email", ""],
        ["changepassword", "anna"],
        ["showmigrations"],
        ["shell", "--verbosity", "0", "-c", "pass"],
        ["create_organization", "Acme", "--json"],
        ["verify_ledger", "--json"],
        ["work", "--once"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", _IN_TURN, json.dumps(commands)],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": "postgres://causeway:hidden@127.0.0.1:1/gateway"},
        capture_output=True,
        text=True,
        check=True,
    )
    for arguments, (code, output, errors) in zip(commands, json.loads(done.stdout), strict=True):
        assert errors.splitlines()[0] == "Database: gateway on 127.0.0.1, port 1", arguments
        assert (output, "hidden" in errors) == ("", False), arguments
        assert code == (0 if arguments[0] == "shell" else 1), arguments
        if code:
            said = errors.splitlines()[1:]
            assert re.match(r"(CommandError: )?The database cannot be (reached|used): ", said[0])
            assert len(said) == 1, arguments


@pytest.mark.parametrize("arguments", [("create_organization", "Acme"), ("work", "--once")])
def test_a_command_says_that_the_database_is_read_only(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    # A pooler passes no options on.
    monkeypatch.delenv(POOLER_ADDRESS, raising=False)
    refused = manage(*arguments, PGOPTIONS="-c default_transaction_read_only=on")
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False), refused.stderr
    assert re.fullmatch(
        r"(CommandError: )?The database cannot be used: cannot execute .+ in a read-only "
        r"transaction\. It is a standby or a demoted primary: find the primary\.",
        refused.stderr.splitlines()[-1],
    )


_LOADED: Final = """
import contextlib, runpy, sys
arguments = sys.argv[1:]
for command in arguments[0].split(","):
    sys.argv = ["manage.py", command, *arguments[1:]]
    with contextlib.suppress(SystemExit):
        runpy.run_path("manage.py", run_name="__main__")
print(*sorted({%s} & set(sys.modules)), file=sys.stderr)
"""
HEAVY: Final = (
    "accounts.admin", "accounts.views", "asyncpg", "botocore", "config.egress.client",
    "config.egress.fetch", "config.urls", "cryptography", "drf_spectacular.openapi",
    "google.auth", "requests", "rest_framework.serializers", "segno",
    "unfold.admin", "unittest", "uvicorn",
)  # fmt: skip


def load(*arguments: str) -> set[str]:
    """Runs commands, which stand with commas between them; returns what heavy modules they import.

    None of them names a database.
    """
    done = subprocess.run(
        [sys.executable, "-c", _LOADED % ", ".join(map(repr, HEAVY)), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Database: " not in done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_a_command_loads_neither_the_routes_nor_the_clients_of_providers() -> None:
    assert load("create_organization,grant_credits,migrate,verify_ledger", "--help") == set()


def test_the_system_checks_load_the_pages_of_the_console() -> None:
    """No other check needs to have loaded the routes, which register the pages."""
    assert {"accounts.admin", "unfold.admin"} <= load("check", "--tag", "admin")


def test_a_worker_loads_the_control_plane_when_it_is_asked_for() -> None:
    names = {
        "accounts.admin", "accounts.views", "config.urls", "requests", "segno", "unfold.admin",
        "starlette.middleware.cors", "cryptography.x509",
        "cryptography.hazmat.primitives.serialization",
    }  # fmt: skip
    program = (
        "import sys, config.asgi; print(*sys.modules)\n"
        "config.asgi.control_plane.load(); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    before, after = (names & set(line.split()) for line in done.stdout.splitlines())
    assert before == set()
    assert {"accounts.admin", "accounts.views", "config.urls"} <= after
