"""The Vercel AI SDK's default model of OpenAI, in Node; `.ci/run` installs it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from config.local.simulator.server import Simulator
from tests.support.contract.clients import Serve
from tests.support.factories import Tenant

PROJECT = Path(__file__).resolve().parents[1] / "agents"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(
    NODE is None or not (PROJECT / "node_modules" / "@ai-sdk").is_dir(),
    reason="needs node, and `npm ci` in tests/contract/agents; see .ci/run",
)

WORDS = "You said: one two"
Run = Callable[[str, str], Any]


@pytest.fixture
def run(server: str, tenant: Tenant, serve: Serve) -> Run:
    """Returns a function that does a job of the script with a behaviour of the simulator."""

    def run(job: str, behaviour: str = "sim-echo") -> Any:
        serve(behaviour)
        assert NODE is not None
        done = subprocess.run(
            [NODE, "ai_sdk.mjs", f"{server}/api/v1", tenant.api_key, job],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_it_answers(run: Run) -> None:
    assert run("plain", "sim-echo") == {"text": WORDS, "tokens": 6}


def test_it_streams_text_and_reasoning(run: Run) -> None:
    found = run("stream", "sim-reasoning")
    assert "".join(found["text"]) == WORDS
    assert (found["finish"], found["reasoning"]) == ("stop", "Let me think.")


@pytest.mark.parametrize("job", ["tools", "toolStream"])
def test_it_calls_tools_and_sends_their_results(run: Run, simulator: Simulator, job: str) -> None:
    found = run(job, "sim-tools:2")
    assert found == {"steps": 2, "results": ["12 degrees in Zürich"] * 2}
    roles = [message["role"] for message in simulator.requests[-1].body["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]


def test_it_sends_earlier_turns(run: Run) -> None:
    assert run("turns", "sim-reasoning") == {"text": "You said: three"}


def test_structured_output_reaches_the_model(run: Run) -> None:
    assert run("object", "sim-mirror") == {"format": "json_schema"}


def test_a_reference_to_a_stored_item_says_what_to_set(run: Run) -> None:
    found = run("references", "sim-echo")
    assert found["status"] == 400
    assert "item_reference" in found["error"]
    assert "'store' to false" in found["error"]


@pytest.mark.parametrize(("behaviour", "status"), [("sim-status-400", 400), ("sim-html", 502)])
def test_an_error_has_its_status_and_message(run: Run, behaviour: str, status: int) -> None:
    found = run("error", behaviour)
    assert found["status"] == status
    assert found["error"]


def test_a_cancelled_stream_ends_the_upstream(run: Run, simulator: Simulator) -> None:
    simulator.clear()
    simulator.release(3)
    assert run("cancel", "sim-gated") == {}
    [request] = simulator.requests
    assert simulator.wait_until(lambda: request.client_closed_at is not None)
