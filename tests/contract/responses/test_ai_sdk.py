"""What the Vercel AI SDK does with Responses beyond the table of clients, which installs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.clients.drivers.ai_sdk import run_job
from tests.support.contract.clients import Serve
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator

WORDS = "You said: one two"
Run = Callable[[str, str], Any]


@pytest.fixture
def run(server: str, tenant: Tenant, serve: Serve) -> Run:
    """Returns a function that does a job of the script with a behaviour of the simulator."""

    def run(job: str, behaviour: str = "sim-echo") -> Any:
        serve(behaviour)
        return run_job(server, tenant.api_key, job)

    return run


def test_it_streams_text_and_reasoning(run: Run) -> None:
    found = run("stream", "sim-reasoning")
    assert "".join(found["text"]) == WORDS
    assert (found["finish"], found["reasoning"]) == ("stop", "Let me think.")


def test_it_streams_calls_of_tools_and_sends_their_results(run: Run, simulator: Simulator) -> None:
    found = run("toolStream", "sim-tools:2")
    assert found == {"steps": 2, "results": ["12 degrees in Zürich"] * 2}
    roles = [message["role"] for message in simulator.requests[-1].body["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]


def test_it_sends_earlier_turns(run: Run) -> None:
    assert run("turns", "sim-reasoning") == {"text": "You said: three"}


def test_a_reference_to_a_stored_item_says_what_to_set(run: Run) -> None:
    found = run("references", "sim-echo")
    assert found["status"] == 400
    assert "item_reference" in found["error"]
    assert "'store' to false" in found["error"]
