"""The Vercel AI SDK in Node: its models for chat and for Responses."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.contract.clients.drivers.driver import Driver, Failure

PROJECT = Path(__file__).resolve().parents[2] / "agents"


def run_job(server: str, key: str, job: str, face: str = "responses", model: str = "") -> Any:
    """Does a job of the script in Node, and returns what it prints."""
    node = shutil.which("node")
    if node is None or not (PROJECT / "node_modules" / "@ai-sdk").is_dir():
        pytest.skip("needs node, and `npm ci` in tests/contract/agents")
    done = subprocess.run(
        [node, "ai_sdk.mjs", f"{server}/api/v1", key, job, face, model or "acme/falcon"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class Chat(Driver):
    face = "chat"

    def run(self, job: str, model: str) -> Any:
        found = run_job(self.server, self.key, job, self.face, model)
        assert "error" not in found, found
        return found

    def plain(self, model: str) -> str:
        return str(self.run("plain", model)["text"])

    def stream(self, model: str) -> list[str]:
        found: list[str] = self.run("stream", model)["text"]
        return found

    def tools(self, model: str) -> list[Any]:
        found: list[Any] = self.run("tools", model)["inputs"]
        return found

    def structured(self, model: str) -> Any:
        return self.run("object", model)["object"]

    def error(self, model: str) -> Failure:
        found = run_job(self.server, self.key, "plain", self.face, model)
        return Failure(found["name"], found["status"])

    def cancel(self, model: str) -> None:
        self.run("cancel", model)


class Responses(Chat):
    face = "responses"
