"""The way to production, pasted into one shell on an empty database, and again into a second."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from config.local.bootstrap import PROJECT
from tests.support.machine.ports import reserved_port
from tests.support.markdown import SHELL, Reader, read_blocks

PAGE = PROJECT / "docs" / "deploy" / "index.md"


@pytest.fixture
def empty_database() -> Iterator[str]:
    """The address of a database of its own, beside that of the tests."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    name = f"docs_{secrets.token_hex(4)}"
    with psycopg.connect(urlunsplit(parts), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield urlunsplit(parts._replace(path=f"/{name}"))
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.slow
def test_every_block_runs_twice(empty_database: str) -> None:
    with (
        reserved_port() as service,
        reserved_port() as other,
        reserved_port() as provider,
        Reader(
            changes={"8000": f"{service}", "8001": f"{other}", "9443": f"{provider}"},
            DATABASE_URL=empty_database,
        ) as reader,
    ):
        # The catalogue file names the simulated provider's port as well.
        catalogue = reader.home / "simulator.json"
        catalogue.write_text(reader.change((PAGE.parent / "simulator.json").read_text()))
        reader.changes["docs/deploy/simulator.json"] = str(catalogue)
        blocks = read_blocks(PAGE, SHELL)
        [asking] = [block for block in blocks if "chat/completions" in block.text]
        config = reader.home / ".config" / "causeway"
        for _ in ("first", "second"):
            output = reader.run(blocks)[asking.line]
            assert "You said: Are you there?" in output
            assert "The ledger is in order." in output
        assert (config / "env").stat().st_mode & 0o777 == 0o600
        assert set(json.loads((config / "acme.json").read_text())) >= {"api_key", "management_key"}
