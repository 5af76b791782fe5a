"""Programs of PyPI that check configuration files, each in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.deploy.installation import outside_environment

# Their packages are large, and nothing else needs them, so they are not among the dependencies.
PODMAN_COMPOSE = "podman-compose==1.6.0"
KUBERNETES_VALIDATE = "kubernetes-validate==1.37.0"


def run_tool(
    package: str, *command: str, cwd: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program of a package; uv keeps the package for the next time."""
    return subprocess.run(
        [sys.executable, "-m", "uv", "run", "--quiet", "--no-project", "--with", package, *command],
        cwd=cwd,
        env={**outside_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
