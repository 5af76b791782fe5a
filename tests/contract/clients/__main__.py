"""Runs the table of clients, each with the version that a lock file pins, and writes it to docs.

    python -m tests.contract.clients [ENVIRONMENT …]

Without names it runs all environments; only then it writes ``docs/clients.md``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree

from tests.contract.clients.table import LOCKS, PAGE, update_page
from tests.support.upstreams.foreign import SERVERS

_PROJECT: Final = PAGE.parents[1]
_NODE: Final = _PROJECT / "tests" / "contract" / "agents"
_TABLE: Final = "tests/contract/clients/test_clients.py"
_SERVERS: Final = "tests/contract/clients/test_servers.py"
# PyTorch's builds without CUDA stand in no index of packages.
_TORCH: Final = "https://download.pytorch.org/whl/cpu/torch/"


class Environment(NamedTuple):
    """What is installed beside the development dependencies, and the tests that run with it.

    ``must_run`` says that a test that is skipped is a failure, and ``is_apart`` that the packages
    are those of processes that the tests start.
    """

    tests: tuple[str, ...]
    lock: Path | None = None
    has_node: bool = False
    must_run: bool = True
    is_apart: bool = False


_LOOSE: Final = ("-W", "ignore", "-p", "no:unraisableexception")
ENVIRONMENTS: Final = {
    "development": Environment(
        (
            _TABLE,
            "-k",
            "not pydantic and not langchain and not litellm and not any-llm and not ai-sdk",
        )
    ),
    "openrouter-next": Environment(
        (
            *(_TABLE, "-k", "openrouter"),
            "tests/contract/responses/test_openrouter_sdk.py",
            *sorted(str(path) for path in (_NODE.parent).glob("test_openrouter_*.py")),
        ),
        LOCKS / "openrouter-next.lock",
        # Some tests are for the other version.
        must_run=False,
    ),
    # They keep clients that nobody closes.
    "frameworks": Environment(
        (
            *(_TABLE, "tests/contract/responses/test_frameworks.py", *_LOOSE),
            *("-k", "pydantic or langchain or litellm or any-llm or test_frameworks"),
        ),
        LOCKS / "frameworks.lock",
    ),
    "cohere": Environment(
        ("tests/contract/clients/test_cohere_sdk.py", *_LOOSE), LOCKS / "cohere.lock"
    ),
    "servers": Environment(
        (_SERVERS, "-k", "not transformers and not infinity"), LOCKS / "servers.lock", is_apart=True
    ),
    **{
        name: Environment((_SERVERS, "-k", name), LOCKS / f"{name}.lock", is_apart=True)
        for name in ("transformers", "infinity")
    },
    "node": Environment(
        (
            *(_TABLE, "tests/contract/agents", "tests/contract/responses/test_ai_sdk.py"),
            *("-k", "ai-sdk or agents or test_ai_sdk"),
        ),
        has_node=True,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environments", nargs="*", metavar="ENVIRONMENT")
    names = parser.parse_args().environments or [*ENVIRONMENTS]
    if unknown := set(names) - ENVIRONMENTS.keys():
        parser.error(f"{unknown.pop()} is none of {', '.join(ENVIRONMENTS)}")
    failed = [name for name in names if not run(name, ENVIRONMENTS[name])]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
        return 1
    if names == [*ENVIRONMENTS]:
        update_page()
    return 0


def run(name: str, environment: Environment) -> bool:
    """Installs an environment, runs its tests, and removes it; returns whether all passed."""
    print(f"== {name}", flush=True)
    variables = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        if environment.lock is not None:
            install(environment.lock, Path(folder))
            variables[SERVERS if environment.is_apart else "PYTHONPATH"] = folder
        if environment.has_node:
            if shutil.which("npm") is None:
                print("npm is not installed", file=sys.stderr)
                return False
            npm = ("npm", "ci", "--prefix", str(_NODE), "--no-audit", "--no-fund", "--silent")
            subprocess.run(npm, check=True)
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-n", "0", f"--junitxml={report}"),
                *environment.tests,
            ],
            cwd=_PROJECT,
            env=variables,
            check=False,
        )
        has_run = not environment.must_run or not count_skipped(report)
    return done.returncode == 0 and has_run


def install(lock: Path, folder: Path) -> None:
    has_torch = "torch==" in lock.read_text()
    links = ("--find-links", os.environ.get("PIP_FIND_LINKS", _TORCH)) if has_torch else ()
    subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", *links),
            *("--require-hashes", "--target", str(folder), "-r", str(lock)),
        ],
        check=True,
    )


def count_skipped(report: Path) -> int:
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    return sum(int(suite.get("skipped", "0")) for suite in suites)


if __name__ == "__main__":
    sys.exit(main())
