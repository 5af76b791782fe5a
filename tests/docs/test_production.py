"""The way to production, pasted into one shell on an empty database, and again into a second.

The owner of the database is the one of the page about the perimeter.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import requests

from config.local.bootstrap import PROJECT
from tests.support.machine.ports import reserved_port
from tests.support.markdown import SHELL, Reader, read_blocks
from tests.support.processes import manage, serve

PAGE = PROJECT / "docs" / "deploy" / "index.md"


@pytest.fixture
def roles() -> Iterator[dict[str, str]]:
    """Runs the statements of the page; yields the addresses of its database for both roles."""
    suffix = f"_{secrets.token_hex(4)}"
    owner, server, name = (
        f"causeway_owner{suffix}",
        f"causeway_serve{suffix}",
        f"causeway{suffix}",
    )
    create, grant = (
        re.sub(r"\bcauseway(_owner|_serve)?\b", rf"\g<0>{suffix}", block.text)
        for block in read_blocks(PROJECT / "docs" / "perimeter.md", "sql")
    )
    parts = urlsplit(os.environ["DATABASE_URL"])

    def address(role: str) -> str:
        _, _, host = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{role}@{host}", path=f"/{name}"))

    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as superuser:
        for statement in filter(None, map(str.strip, create.split(";"))):
            superuser.execute(statement)
        try:
            with psycopg.connect(address(owner), autocommit=True) as connection:
                connection.execute(grant)
            yield {"owner": address(owner), "serve": address(server)}
        finally:
            superuser.execute(f"DROP DATABASE {name} WITH (FORCE)")
            for role in (owner, server):
                superuser.execute(f"DROP ROLE {role}")


def test_every_block_runs_twice_by_the_owner_and_serve_needs_less(roles: dict[str, str]) -> None:
    with (
        reserved_port() as service,
        reserved_port() as other,
        reserved_port() as provider,
        Reader(
            changes={"8000": f"{service}", "8001": f"{other}", "9443": f"{provider}"},
            DATABASE_URL=roles["owner"],
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
    assert_serve_needs_less(roles["serve"])


def assert_serve_needs_less(url: str) -> None:
    """Serves with the other role of the page about the perimeter, which may not change tables."""
    made = manage("create_organization", "Globex", "--json", DATABASE_URL=url)
    assert made.returncode == 0, made.stderr
    tenant = json.loads(made.stdout)
    with serve(DATABASE_URL=url) as served:
        answer = requests.post(
            f"{served.address}/api/v1/end-users",
            json={"user": "ann"},
            headers={"Authorization": f"Bearer {tenant['management_key']}"},
            timeout=30,
        )
        assert answer.status_code == 201, answer.text
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (
            "ALTER TABLE billing_transfer DISABLE TRIGGER ALL",
            "DROP TABLE billing_transfer",
            "CREATE TABLE public.another (id int)",
            "TRUNCATE billing_transfer",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
