"""The real Claude Code does a small task with tools, set up as ``docs/clients.md`` says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config.local.bootstrap import PROJECT
from inference.models import Generation
from tests.contract.clients.drivers.driver import SCHEMA
from tests.support.factories import Tenant
from tests.support.inference.site import Site
from tests.support.markdown import SHELL, read_blocks
from tests.support.upstreams.acting import Act, Actor, are_whole, calling, cutting, saying


def act(request: Any) -> dict[str, Any]:
    """Plays a model that writes a file, reads it, and says what it has read."""
    if not any(tool["function"]["name"] == "Bash" for tool in request.get("tools", ())):
        # It also asks for titles and the like.
        return saying("A title")
    results = [each["content"] for each in request["messages"] if each["role"] == "tool"]
    match len(results):
        case 0:
            command, text = "printf 'Hi there' > hello.txt", "Writes a file"
            return calling("Bash", 0, command=command, description=text)
        case 1:
            return calling("Bash", 1, command="cat hello.txt", description="Reads a file")
    return saying(f"DONE: {'Hi there' in str(results[1])}")


def read_variables(server: str, key: str, model: str = "acme/falcon") -> dict[str, str]:
    """Returns the variables that the page sets."""
    page = read_blocks(PROJECT / "docs" / "clients.md", SHELL)
    [block] = [each for each in page if "ANTHROPIC_BASE_URL" in each.text]
    text = block.text.replace("http://127.0.0.1:8000", server).replace("$KEY", key)
    found = re.findall(r"^export (\w+)=(.+)$", text.replace("causeway/echo", model), re.M)
    return {**dict(found), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


def test_claude_code_does_a_task(
    tenant: Tenant,
    play: Callable[[Act], Actor],
    run_agent: Callable[..., Any],
    server: str,
    tmp_path: Path,
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    actor = play(act)
    done = run_agent(
        *("claude", "-p", "Write 'Hi there' into hello.txt, and read it."),
        *("--allowedTools", "Bash"),
        **read_variables(server, tenant.api_key),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "DONE: True"
    assert (tmp_path / "work" / "hello.txt").read_text() == "Hi there"
    eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert len(actor.bodies) >= 3
    assert {row.status for row in Generation.objects.all()} == {"completed"}
    last = [body for body in actor.bodies if "tools" in body][-1]["messages"]
    calls = [message["tool_calls"][0]["id"] for message in last if message.get("tool_calls")]
    assert calls == ["call_0", "call_1"]


def test_claude_code_tells_an_error(
    tenant: Tenant, run_agent: Callable[..., Any], server: str
) -> None:
    variables = read_variables(server, tenant.api_key, "acme/none")
    done = run_agent("claude", "-p", "Hi", **variables)
    assert done.returncode != 0
    assert "acme/none" in done.stdout + done.stderr


def test_claude_code_may_be_left_in_the_middle(
    leave: Callable[..., Generation], site: Site
) -> None:
    left = leave("claude", "-p", "Hi", **read_variables(site.server, site.tenant.api_key))
    assert left.status == Generation.Status.CANCELLED


def test_claude_code_answers_with_a_schema(
    tenant: Tenant, play: Callable[[Act], Actor], run_agent: Callable[..., Any], server: str
) -> None:
    """It offers a tool whose arguments are the answer."""
    answer = {"body": {"sky": "blue"}}

    def act(request: Any) -> dict[str, Any]:
        offered = {tool["function"]["name"] for tool in request.get("tools", ())}
        if "StructuredOutput" not in offered or request["messages"][-1]["role"] == "tool":
            return saying("Done")
        return calling("StructuredOutput", **answer)

    play(act)
    done = run_agent(
        *("claude", "-p", "Hi", "--output-format", "json", "--json-schema", json.dumps(SCHEMA)),
        **read_variables(server, tenant.api_key),
    )
    assert json.loads(done.stdout)["structured_output"] == answer


def test_claude_code_goes_on_after_a_call_that_was_cut_off(
    tenant: Tenant, play: Callable[[Act], Actor], run_agent: Callable[..., Any], server: str
) -> None:
    """Every later request has the call in its history."""

    def act(request: Any) -> dict[str, Any]:
        if not any(tool["function"]["name"] == "Bash" for tool in request.get("tools", ())):
            return saying("A title")
        if request["messages"][-1]["role"] == "tool":
            return saying("DONE")
        return cutting("Bash", '{"command": "printf Hi')

    actor = play(act)
    done = run_agent("claude", "-p", "Hi", **read_variables(server, tenant.api_key))
    assert (done.returncode, done.stdout.strip()) == (0, "DONE"), done.stdout + done.stderr
    assert are_whole(actor.bodies[-1])


def test_claude_code_compacts_a_history_with_calls(
    tenant: Tenant, play: Callable[[Act], Actor], run_agent: Callable[..., Any], server: str
) -> None:
    """The summary is asked for with the calls; it stands for them afterwards."""

    def act(request: Any) -> dict[str, Any]:
        if len(actor.bodies) == 1:
            return calling("Bash", command="true", description="Does nothing")
        return saying("DONE")

    actor = play(act)
    variables = read_variables(server, tenant.api_key)
    asks = [("Hi", "--allowedTools", "Bash"), ("/compact", "--continue"), ("Go on", "--continue")]
    for ask in asks:
        done = run_agent("claude", "-p", *ask, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "DONE"
    *_, summary, last = actor.bodies
    assert are_whole(summary)
    assert "tool" not in [each["role"] for each in last["messages"]]
