"""The real Codex does a small task with tools, set up as ``docs/clients.md`` says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config.local.bootstrap import PROJECT
from inference.models import Generation
from tests.contract.clients.drivers.driver import SCHEMA
from tests.support.factories import Tenant
from tests.support.inference.site import Site
from tests.support.markdown import read_blocks
from tests.support.upstreams.acting import Act, Actor, are_whole, calling, cutting, saying

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


def set_up(home: Path, server: str, model: str = "acme/falcon") -> None:
    """Writes the configuration of the page."""
    page = read_blocks(PROJECT / "docs" / "clients.md", "text")
    [block] = [each for each in page if "model_provider" in each.text]
    text = block.text.replace("http://127.0.0.1:8000", server)
    home.mkdir()
    (home / "config.toml").write_text(text.replace("causeway/echo", model))


def test_codex_does_a_task(
    tenant: Tenant,
    play: Callable[[Act], Actor],
    run_agent: Callable[..., Any],
    server: str,
    tmp_path: Path,
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    actor = play(act)
    set_up(tmp_path / "codex", server)
    done = run_agent(
        *("codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"),
        "Write 'Hi there' into hello.txt, and read it.",
        CODEX_HOME=str(tmp_path / "codex"),
        KEY=tenant.api_key,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "DONE: True"
    assert (tmp_path / "work" / "hello.txt").read_text() == "Hi there"
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


EXEC = ("codex", "exec", "--skip-git-repo-check", "--sandbox", "read-only", "Hi")


def test_codex_tells_an_error(
    tenant: Tenant, run_agent: Callable[..., Any], server: str, tmp_path: Path
) -> None:
    set_up(tmp_path / "codex", server, "acme/none")
    done = run_agent(*EXEC, CODEX_HOME=str(tmp_path / "codex"), KEY=tenant.api_key)
    assert done.returncode != 0
    assert "There is no model 'acme/none'" in done.stdout + done.stderr


def test_codex_may_be_left_in_the_middle(
    leave: Callable[..., Generation], site: Site, tmp_path: Path
) -> None:
    set_up(tmp_path / "codex", site.server)
    left = leave(*EXEC, CODEX_HOME=str(tmp_path / "codex"), KEY=site.tenant.api_key)
    assert left.status == Generation.Status.CANCELLED


def test_codex_passes_the_schema_of_an_answer(site: Site, run_agent: Any, tmp_path: Path) -> None:
    site.publish("sim-mirror")
    set_up(tmp_path / "codex", site.server)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    done = run_agent(
        *(*EXEC, "--output-schema", str(tmp_path / "schema.json")),
        CODEX_HOME=str(tmp_path / "codex"),
        KEY=site.tenant.api_key,
    )
    wanted = json.loads(done.stdout)["body"]["response_format"]
    assert (wanted["type"], wanted["json_schema"]["schema"]) == ("json_schema", SCHEMA)


def test_codex_goes_on_after_a_call_that_was_cut_off(
    tenant: Tenant, play: Callable[[Act], Actor], run_agent: Any, server: str, tmp_path: Path
) -> None:
    """Every later request has the call in its history."""

    def act(request: Any) -> dict[str, Any]:
        if request["messages"][-1]["role"] == "tool":
            return saying("DONE")
        return cutting("exec_command", '{"cmd": "printf Hi')

    actor = play(act)
    set_up(tmp_path / "codex", server)
    done = run_agent(*EXEC, CODEX_HOME=str(tmp_path / "codex"), KEY=tenant.api_key)
    assert (done.returncode, done.stdout.strip()) == (0, "DONE"), done.stdout + done.stderr
    assert are_whole(actor.bodies[-1])


def test_codex_compacts_a_history_with_calls(
    tenant: Tenant, play: Callable[[Act], Actor], run_agent: Any, server: str, tmp_path: Path
) -> None:
    """The summary is asked for with the calls and without tools."""

    def act(request: Any) -> dict[str, Any]:
        return saying("DONE") if len(actor.bodies) > 1 else calling("exec_command", cmd="true")

    actor = play(act)
    set_up(tmp_path / "codex", server)
    done = run_agent(
        *(*EXEC, "-c", "model_auto_compact_token_limit=110"),
        CODEX_HOME=str(tmp_path / "codex"),
        KEY=tenant.api_key,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "DONE"), done.stdout + done.stderr
    first, summary, last = actor.bodies
    assert ("tools" in first, "tools" in summary, "tools" in last) == (True, False, True)
    assert are_whole(summary)
    assert "tool" not in [each["role"] for each in last["messages"]]
