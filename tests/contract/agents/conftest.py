"""A model that real agents can work with: an upstream that plays one by a script."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from config.credentials import Secret
from config.local.simulator.certificates import ensure_certificates
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.upstreams.acting import Act, Actor
from tests.support.upstreams.tls import serving

INSTALLED = Path(__file__).parent / "node_modules" / ".bin"


@pytest.fixture
def play(tenant: Tenant) -> Iterator[Callable[[Act], Actor]]:
    """Returns a function that publishes `acme/falcon`, a model that plays by a script."""
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    made = Actor(lambda request: {})
    with serving(made, certificates.server_context()) as made.server:
        provider = factories.make_provider("acme", name="Acme AI", base_url=made.base_url)
        provider.set_credential(Secret("operator-credential-0123456789"))
        factories.make_endpoint(
            factories.make_model("acme/falcon"), provider, price=factories.make_price()
        )

        def play(act: Act) -> Actor:
            made.act = act
            return made

        yield play


@pytest.fixture
def run_agent(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Returns a function that runs an agent in an empty folder, with a home of its own."""

    def run(program: str, *arguments: str, **environment: str) -> Any:
        path = INSTALLED / program
        if not path.exists():
            pytest.skip("needs `npm ci` in tests/contract/agents; see .ci/run")
        work = tmp_path / "work"
        work.mkdir()
        return subprocess.run(
            [str(path), *arguments],
            cwd=work,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    return run
