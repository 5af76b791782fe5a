"""Creates `.venv` beside `manage.py` if the project is not installed, and runs the command there.

It checks whether the distribution `causeway-gateway` is installed: Django may be importable in an
interpreter that lacks the rest. An installation made by other means (`uv sync`, `pip install -e .`,
a container image) is left alone. Packages come from `uv.lock`, with hashes, and from whatever
package index this machine has. The file `stamp` in the environment names the lock; it is written
last, so that the next run notices and repairs an interrupted installation.

It uses the standard library only, and Python 3.8 can parse it, so that it can say which version is
needed. Every message goes to standard error: commands print JSON on standard output.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

OLDEST = (3, 11)
DISTRIBUTION = "causeway-gateway"
PROJECT = Path(__file__).resolve().parents[2]
ENVIRONMENT = PROJECT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "stamp"
INSTALLER = ENVIRONMENT / "installer"
LOCK = PROJECT / "uv.lock"
# What an environment gets of the lock: in `uv sync` too, which asks the index that the lock names.
PARTS: dict[str, tuple[str, ...]] = {
    "runtime": ("--no-dev", "--extra=bedrock", "--extra=embedded", "--extra=vertex"),
    "dev": (),
}
INSTALLER_LOCK = PROJECT / "requirements-build.lock"
REPEATED = "CAUSEWAY_BOOTSTRAPPED"


def install_command(extra: str) -> str:
    """Returns the command that adds an extra to this installation; a clone has no pip."""
    if os.path.realpath(sys.prefix) == os.path.realpath(ENVIRONMENT) and STAMP.exists():
        uv = shutil.which("uv") or INSTALLER / "bin" / "uv"
        return f"{uv} pip install --python {PYTHON} -e '{PROJECT}[{extra}]'"
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def ensure() -> None:
    """Returns if this interpreter can run the command in `sys.argv`; else starts one that can.

    `test` needs the development packages too. The other interpreter replaces this process. Exits
    with status 1 and a message if that is impossible.
    """
    if sys.version_info < OLDEST:
        _refuse_this_python()
    kind = "dev" if sys.argv[1:2] == ["test"] else "runtime"
    inside = os.path.realpath(sys.prefix) == os.path.realpath(ENVIRONMENT)
    repeated = os.environ.pop(REPEATED, None) is not None
    try:
        if inside and _is_stamped(kind):
            return
        if not (inside and STAMP.exists()) and _has_distribution():
            if kind == "dev" and importlib.util.find_spec("pytest") is None:
                _fail(
                    f"{sys.executable} has Causeway but not what its tests need; "
                    "install the development group, for instance with `uv sync`."
                )
            return
        if repeated:
            _fail(f"{ENVIRONMENT} does not take effect; remove it and run the command again.")
        if not _is_stamped(kind) and not _is_made_by_others():
            _install(kind)
    except OSError as exc:
        _fail(
            f"Causeway cannot be installed into {ENVIRONMENT}: {exc}. Run this as a user who may "
            "write there, or from a copy of the project in a folder of your own."
        )
    except KeyboardInterrupt:
        _fail("The installation was interrupted; the next run resumes it.", status=130)
    os.environ[REPEATED] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(PYTHON, [str(PYTHON), *sys.orig_argv[1:]])


def _has_distribution() -> bool:
    try:
        importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _is_made_by_others() -> bool:
    """Returns whether `.venv` holds Causeway without a stamp, so was made by another tool."""
    folder = f"{DISTRIBUTION.replace('-', '_')}-*.dist-info"
    installed = any(ENVIRONMENT.glob(f"lib/python*/site-packages/{folder}"))
    return installed and not STAMP.exists() and PYTHON.exists()


def _is_stamped(kind: str) -> bool:
    try:
        stamped = STAMP.read_text().splitlines()
    except FileNotFoundError:
        return False
    return set(stamped) >= set(_stamp_lines(kind)) and PYTHON.exists()


def _stamp_lines(kind: str) -> list[str]:
    # A copied environment still points at its first checkout, and one that is older than the name
    # of the distribution has another one installed.
    kinds = ["runtime", "dev"] if kind == "dev" else ["runtime"]
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    return [DISTRIBUTION, str(PROJECT), *(" ".join((each, *PARTS[each], digest)) for each in kinds)]


def _install(kind: str) -> None:
    with _install_lock():
        if _is_stamped(kind):
            return
        _say(f"Installing Causeway into {ENVIRONMENT} (once) ...")
        _make_environment()
        if not any(install(kind) for install in (_by_uv, _by_fetched_uv, _by_pip)):
            _fail(
                "The installation failed, see above. It needs a package index: check the network "
                "and the proxy, or name your own index in the settings of pip or uv "
                "(PIP_INDEX_URL, UV_DEFAULT_INDEX). The next run resumes it."
            )
        unfinished = STAMP.with_name("stamp.new")
        unfinished.write_text("\n".join(_stamp_lines(kind)) + "\n")
        unfinished.replace(STAMP)
        _say("Installed.")


@contextlib.contextmanager
def _install_lock() -> Iterator[None]:
    """Lets one installation run at a time; the locked file exists and need not be writable."""
    with (PROJECT / "pyproject.toml").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("Another process is installing Causeway; waiting for it ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            # Some network file systems have no locks; there, two first runs at once may collide.
            pass
        yield


def _make_environment() -> None:
    usable = PYTHON.exists() and _run(
        PYTHON, "-c", f"import sys; sys.exit(sys.version_info < {OLDEST})"
    )
    if not usable and ENVIRONMENT.exists():
        if any(ENVIRONMENT.iterdir()) and not STAMP.exists():
            _fail(
                f"{ENVIRONMENT} has no Python of version {_format_version(OLDEST)} or newer; "
                "remove it and run this again."
            )
        shutil.rmtree(ENVIRONMENT)
    ENVIRONMENT.mkdir(exist_ok=True)
    STAMP.write_text("unfinished\n")
    if not usable and not _run(sys.executable, "-m", "venv", "--without-pip", ENVIRONMENT):
        _fail(
            "A virtual environment cannot be made; "
            "install Python's venv module (Debian: python3-venv)."
        )


def _by_uv(kind: str) -> bool:
    # `uv --version` fails for the shim of a version manager that has no uv installed.
    uv = shutil.which("uv")
    return uv is not None and _run(uv, "--version", quiet=True) and _install_with_uv(uv, kind)


def _by_fetched_uv(kind: str) -> bool:
    """Installs uv with pip, and the rest with uv, which is four times as fast as pip."""
    uv = INSTALLER / "bin" / "uv"
    if not uv.exists():
        pip = _pip()
        shutil.rmtree(INSTALLER, ignore_errors=True)
        fetched = INSTALLER.with_name("installer.new")
        shutil.rmtree(fetched, ignore_errors=True)
        options = ("--quiet", "--require-hashes", "--only-binary", ":all:", "--target", fetched)
        if not pip or not _run(*pip, "install", *options, "-r", INSTALLER_LOCK):
            return False
        fetched.rename(INSTALLER)
    return _install_with_uv(uv, kind)


def _by_pip(kind: str) -> bool:
    pip = _pip()
    if not pip:
        _fail(
            "Neither uv nor pip is there to install with; "
            "install one of them (Debian: python3-venv or python3-pip)."
        )
    if not _requirements(kind).exists():
        return False
    _say("uv cannot install it here; trying pip ...")
    return _run(*pip, "install", "--quiet", "--require-hashes", "-r", _requirements(kind)) and _run(
        *pip, "install", "--quiet", "--no-deps", "-e", PROJECT
    )


def _install_with_uv(uv: str | Path, kind: str) -> bool:
    wanted = ("--quiet", "--frozen", "--no-emit-project", *PARTS[kind])
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    install = [uv, "pip", "install", *quiet, "--python", PYTHON]
    # `uv sync` would ask the index of the lock alone, which a machine behind a mirror cannot reach.
    return (
        _run(uv, "export", *wanted, "--python", PYTHON, "--output-file", _requirements(kind))
        and _run(*install, "--require-hashes", "-r", _requirements(kind))
        and _run(*install, "--no-deps", "--build-constraint", INSTALLER_LOCK, "-e", PROJECT)
    )


def _requirements(kind: str) -> Path:
    """Returns the file that has the lock's packages as pip reads them."""
    return ENVIRONMENT / f"{kind}.txt"


def _pip() -> list[str | Path]:
    """Returns the command of a pip that installs into the environment; empty if there is none."""
    if _run(PYTHON, "-m", "pip", "--version", quiet=True):
        return [PYTHON, "-m", "pip"]
    if _run(sys.executable, "-m", "pip", "--version", quiet=True):
        return [sys.executable, "-m", "pip", "--python", PYTHON]
    # This takes three seconds, so it comes last.
    if _run(PYTHON, "-m", "ensurepip", "--default-pip", quiet=True):
        return [PYTHON, "-m", "pip"]
    return []


def _run(*command: str | Path, quiet: bool = False) -> bool:
    """Runs a command, its output on standard error; returns whether it succeeded."""
    environment = dict(os.environ)
    # These variables would make the tools install somewhere else.
    for name in (
        "UV_SYSTEM_PYTHON",
        "UV_PYTHON",
        "UV_TARGET",
        "UV_PREFIX",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_PYTHON",
    ):
        environment.pop(name, None)
    environment.update({"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"})
    environment.setdefault("UV_SYSTEM_CERTS", "1")
    environment.setdefault("UV_PYTHON_DOWNLOADS", "never")
    environment.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    environment.setdefault("PIP_RETRIES", "2")
    if not os.access(Path("~").expanduser(), os.W_OK):
        environment.setdefault("UV_NO_CACHE", "1")
    errors = subprocess.DEVNULL if quiet else None
    # Standard output belongs to the command.
    output = subprocess.DEVNULL if quiet else sys.stderr
    arguments = [str(part) for part in command]
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environment,
            cwd=PROJECT,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0


def _refuse_this_python() -> NoReturn:
    names = ("python3.14", "python3.13", "python3.12", "python3.11")
    newer = next((name for name in names if _run(name, "--version", quiet=True)), None)
    advice = f"run `{newer} {' '.join(sys.argv)}`." if newer else "install a newer one."
    _fail(
        f"Causeway needs Python {_format_version(OLDEST)} or newer, "
        f"this is {_format_version(sys.version_info[:2])}: {advice}"
    )


def _format_version(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _fail(message: str, *, status: int = 1) -> NoReturn:
    _say(message)
    sys.exit(status)
