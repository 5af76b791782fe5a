"""Walks from a fresh copy of the project to a team of thirty whose keys call its own model.

``python -m tests.drills.walk`` does with commands what the pages *Connect your models* and *Your
team* say: it installs and starts the demo, connects a server, creates an organization with members,
keys and limits, sends a completion with each key to the own model and one to a model with a price,
and reads the cost. It prints what it does with the seconds since the beginning, and fails when the
whole takes more than ten minutes.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import requests

from tests.drills.upgrade.releases import copy_present
from tests.support.machine.ports import reserved_port
from tests.support.machine.waiting import wait_until
from tests.support.upstreams.listing import OLLAMA, answer_models
from tests.support.upstreams.tls import serving

MINUTES: Final = 10
TEAM: Final = 30
_OWN, _PRICED = "ollama/llama3.2-3b", "causeway/echo"
# What some of a newcomer's variables would change.
_KEPT: Final = ("PATH", "HOME", "LANG", "TMPDIR", "UV_CACHE_DIR", "PIP_CONFIG_FILE")


class Walk:
    """A person with a fresh copy of the project in a folder, and a clock."""

    def __init__(self, folder: Path, port: int) -> None:
        self.began = time.monotonic()
        self.folder = folder
        self.api = f"http://127.0.0.1:{port}/api/v1"
        names = (*_KEPT, *(name for name in os.environ if name.startswith(("PIP_", "UV_"))))
        self.environment = {name: os.environ[name] for name in names if name in os.environ}
        self.environment["DRAIN_SECONDS"] = "0"

    def say(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self.began:6.1f} s  {text}\n")
        sys.stdout.flush()

    def run(self, *arguments: str) -> str:
        """Runs a command of ``manage.py``, and returns what it prints."""
        done = subprocess.run(
            ["python3", "manage.py", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}:\n{done.stdout}{done.stderr}"
        self.say(f"manage.py {' '.join(arguments)}".replace(f"{self.folder}/", ""))
        return done.stdout

    @contextmanager
    def demo(self, port: int) -> Iterator[None]:
        """Installs and starts the demo until the end of the block."""
        log = self.folder / "demo.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["python3", "manage.py", "demo", "--port", str(port)],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:

            def is_serving() -> bool:
                assert process.poll() is None, log.read_text()
                return "Serving until Ctrl-C." in log.read_text()

            wait_until(is_serving, seconds=60 * MINUTES)
            self.say(f"manage.py demo --port {port}")
            yield
        finally:
            process.terminate()
            process.wait(60)

    def write_rows(self, name: str, header: str, rows: list[str]) -> str:
        path = self.folder / name
        path.write_text("\n".join([header, *rows, ""]))
        return str(path)

    def ask(self, key: str, model: str) -> requests.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "What is a causeway?"}]}
        headers = {"Authorization": f"Bearer {key}"}
        return requests.post(f"{self.api}/chat/completions", json=body, headers=headers, timeout=60)


def walk(folder: Path, port: int) -> None:
    """Does the whole way; every step is checked by what comes back."""
    copy_present(folder, {})
    person = Walk(folder, port)
    with person.demo(port), serving(answer_models(OLLAMA)) as server:
        person.run("connect", f"http://127.0.0.1:{server.port}/v1", "--allow")
        made = json.loads(person.run("create_organization", "Team", "--json"))
        owner = made["organization_id"]
        person.run("grant_credits", owner, "50", "--note", "The first month")
        keys = _make_team(person, owner)
        person.say(f"{len(keys)} keys")

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda key: person.ask(key, _OWN), keys))
        assert [answer.status_code for answer in answers] == [200] * TEAM, answers[0].text
        assert {answer.json()["usage"]["cost"] for answer in answers} == {0}
        person.say(f"{TEAM} completions of {_OWN}, one with each key")

        _check_cost(person, keys, made["management_key"])
    spent = time.monotonic() - person.began
    assert spent < 60 * MINUTES, f"The walk took {spent:.0f} s."
    person.say("done")


def _make_team(person: Walk, owner: str) -> list[str]:
    """Creates thirty members and their keys with limits; the last one may spend nearly nothing."""
    names = [f"person{number}@example.com" for number in range(TEAM)]
    members = person.write_rows("members.csv", "email,name", [f"{each},Pat Doe" for each in names])
    assert person.run("import_members", owner, members).startswith(f"created: {TEAM} members")
    rows = [f"laptop of {each},{each},20" for each in names[:-1]]
    rows_of_last = [f"laptop of {names[-1]},{names[-1]},0.000000001"]
    made = str(person.folder / "new-keys.csv")
    for command, name, lines in (
        (("import_keys", owner), "keys.csv", rows),
        (("create_api_key", owner, "--for-each"), "more-keys.csv", rows_of_last),
    ):
        path = person.write_rows(name, "name,email,limit", lines)
        person.run(*command, path, "--output", made)
    with Path(made).open() as file:
        return [row["key"] for row in csv.DictReader(file)]


def _check_cost(person: Walk, keys: list[str], management_key: str) -> None:
    """Calls a model with a price: the cost is on the key and in all; a limit refuses its key."""
    answer = person.ask(keys[0], _PRICED)
    assert answer.status_code == 200, answer.text
    refused = person.ask(keys[-1], _PRICED)
    assert refused.status_code == 402, refused.text
    cost = Decimal(str(answer.json()["usage"]["cost"]))
    assert cost > 0

    def read(path: str, key: str) -> Any:
        headers = {"Authorization": f"Bearer {key}"}
        return requests.get(f"{person.api}{path}", headers=headers, timeout=60).json()["data"]

    # An answer does not wait for its settlement.
    wait_until(lambda: Decimal(str(read("/key", keys[0])["usage"])) == cost)
    assert Decimal(str(read("/credits", management_key)["total_usage"])) == cost
    person.say(f"1 completion of {_PRICED} for ${cost}, and one that the limit of its key refuses")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="causeway-walk-") as home, reserved_port() as port:
        # PostgreSQL runs as an unprivileged user.
        Path(home).chmod(0o711)
        walk(Path(home) / "causeway", port)
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m tests.drills.walk", description=__doc__).parse_args()
    sys.exit(main())
