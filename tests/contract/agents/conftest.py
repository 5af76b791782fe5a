"""A model that real agents can work with: an upstream that plays one by a script."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config.credentials import Secret
from config.local.certificates import ensure_certificates
from inference.models import Generation
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.inference.site import Site
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
def start_agent(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Returns a function that starts an agent in a folder and a home of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        path = INSTALLED / program
        if not path.exists():
            pytest.skip("needs `npm ci` in tests/contract/agents")
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [str(path), *arguments],
            cwd=work,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # The agents are scripts that start programs; they end together.
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        end_agent(process)


def end_agent(process: subprocess.Popen[str]) -> None:
    """Kills an agent and the programs that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture
def run_agent(
    start_agent: Callable[..., subprocess.Popen[str]],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Returns a function that runs an agent to its end."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = start_agent(*arguments, **environment)
        output, errors = process.communicate(timeout=180)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    return run


@pytest.fixture
def leave(
    site: Site, start_agent: Callable[..., subprocess.Popen[str]]
) -> Callable[..., Generation]:
    """Returns a function that ends an agent in the middle of a stream.

    It waits until the call of the provider has ended and returns its generation.
    """

    def leave(*arguments: str, **environment: str) -> Generation:
        site.publish("sim-gated")
        site.upstream.release(3)
        process = start_agent(*arguments, **environment)
        assert site.upstream.wait_until(lambda: bool(site.upstream.requests), timeout=120)
        end_agent(process)
        [request, *_] = site.upstream.requests
        assert site.upstream.wait_until(lambda: request.client_closed_at is not None)
        site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
        return Generation.objects.order_by("created_at")[0]

    return leave
