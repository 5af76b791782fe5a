"""The real Codex does a small task with tools, set up as ``docs/clients.md`` says."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from config.credentials import Secret
from config.local.bootstrap import PROJECT
from config.local.simulator.certificates import ensure_certificates
from inference.models import Generation
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.markdown import read_blocks
from tests.support.upstreams.acting import Actor, calling, saying
from tests.support.upstreams.tls import serving

INSTALLED = Path(__file__).resolve().parents[1] / "agents" / "node_modules" / ".bin"
CODEX = shutil.which("codex", path=f"{INSTALLED}{os.pathsep}{os.environ['PATH']}")
pytestmark = pytest.mark.skipif(
    CODEX is None, reason="needs `npm ci` in tests/contract/agents; see .ci/run"
)

THOUGHT = {
    "type": "reasoning.text",
    "text": "A file is needed.",
    "signature": "c2lnbmF0dXJl+/==",
    "format": "anthropic-claude-v1",
    "index": 0,
}


def act(request: Any) -> dict[str, Any]:
    """Plays a model that thinks, writes a file, reads it, and says what it has read."""
    results = [each["content"] for each in request["messages"] if each["role"] == "tool"]
    match len(results):
        case 0:
            call = calling("exec_command", 0, cmd="printf 'Hi there' > hello.txt")
            return {**call, "reasoning_details": [THOUGHT]}
        case 1:
            return calling("exec_command", 1, cmd="cat hello.txt")
    return saying(f"DONE: {'Hi there' in str(results[1])}")


@pytest.fixture
def actor() -> Iterator[Actor]:
    made = Actor(act)
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    with serving(made, certificates.server_context()) as made.server:
        provider = factories.make_provider("acme", name="Acme AI", base_url=made.base_url)
        provider.set_credential(Secret("operator-credential-0123456789"))
        factories.make_endpoint(
            factories.make_model("acme/falcon"), provider, price=factories.make_price()
        )
        yield made


def set_up(home: Path, server: str) -> None:
    """Writes the configuration of the page."""
    page = read_blocks(PROJECT / "docs" / "clients.md", "text")
    [block] = [each for each in page if "model_provider" in each.text]
    text = block.text.replace("http://127.0.0.1:8000", server)
    home.mkdir()
    (home / "config.toml").write_text(text.replace("causeway/echo", "acme/falcon"))


def test_codex_does_a_task(
    tenant: Tenant,
    actor: Actor,
    server: str,
    tmp_path: Path,
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    set_up(tmp_path / "codex", server)
    work = tmp_path / "work"
    work.mkdir()
    assert CODEX is not None
    done = subprocess.run(
        [
            *(CODEX, "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"),
            "Write 'Hi there' into hello.txt, and read it.",
        ],
        cwd=work,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "CODEX_HOME": str(tmp_path / "codex"),
            "KEY": tenant.api_key,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "DONE: True"
    assert (work / "hello.txt").read_text() == "Hi there"
    eventually(lambda: not Generation.objects.filter(status="pending").exists())
    rows = Generation.objects.all()
    # Codex repeats a request whose stream does not end as it expects.
    assert len(rows) == len(actor.bodies) == 3
    assert {row.status for row in rows} == {"completed"}
    assert all("codex" in row.user_agent for row in rows)
    last = actor.bodies[-1]["messages"]
    answers = [message for message in last if message["role"] == "assistant"]
    # The signed reasoning came back as it was.
    assert answers[0]["reasoning_details"] == [THOUGHT]
    assert [message["tool_calls"][0]["id"] for message in answers] == ["call_0", "call_1"]
