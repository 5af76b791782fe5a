"""The perimeter: Django's checks for production, settings for HTTPS, and the database's roles."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import requests

from config.local.bootstrap import PROJECT
from tests.support.markdown import read_blocks
from tests.support.processes import manage, serve


def check(**changes: str) -> subprocess.CompletedProcess[str]:
    """Runs the checks with the environment of the page about deployment, and nothing else."""
    environment = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": "postgres://causeway:secret@127.0.0.1/causeway",
        "SECRET_KEY": secrets.token_urlsafe(48),
        "CREDENTIAL_KEYS": base64.b64encode(secrets.token_bytes(32)).decode(),
        "ALLOWED_HOSTS": "127.0.0.1,llm.example.com",
        "CSRF_TRUSTED_ORIGINS": "https://llm.example.com",
        "METRICS_TOKEN": secrets.token_hex(24),
        "ADMIN_REQUIRES_TOTP": "on",
        **changes,
    }
    return subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_checks_for_production_find_nothing() -> None:
    done = check(SECURE_HSTS_SECONDS="31536000", SECURE_SSL_REDIRECT="on")
    assert (done.returncode, "no issues" in done.stdout) == (0, True), done.stderr


def test_the_checks_ask_for_https() -> None:
    done = check()
    assert done.returncode == 1
    assert {"(security.W004)", "(security.W008)"} <= set(done.stderr.split())


def test_the_checks_find_an_open_console_and_metrics_without_a_token() -> None:
    done = check(
        METRICS_TOKEN="",
        ADMIN_REQUIRES_TOTP="off",
        CONSOLE_NETWORKS="0.0.0.0/0,::1/128",
        FORWARDED_ALLOW_IPS="127.0.0.1,10.0.0.0/8",
        SECURE_HSTS_SECONDS="31536000",
        SECURE_SSL_REDIRECT="on",
    )
    assert done.returncode == 1
    found = re.findall(r"\((console\.W\d+)\)", done.stderr)
    assert sorted(found) == ["console.W001", "console.W002", "console.W003", "console.W004"]


def test_pages_go_to_https_and_probes_do_not(django_db_setup: None, db: None) -> None:
    changes = {"SECURE_HSTS_SECONDS": "3600", "SECURE_SSL_REDIRECT": "on"}
    with serve(**changes) as served:
        plain = requests.get(f"{served.address}/admin/", allow_redirects=False, timeout=30)
        assert plain.status_code == 301
        assert plain.headers["Location"] == f"{served.address.replace('http', 'https', 1)}/admin/"
        assert requests.get(f"{served.address}/readyz", timeout=30).status_code == 200
        proxied = requests.get(
            f"{served.address}/admin/login/",
            headers={"X-Forwarded-Proto": "https"},
            timeout=30,
        )
        assert proxied.status_code == 200
        assert proxied.headers["Strict-Transport-Security"] == "max-age=3600"


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


def test_serve_needs_less_than_migrate_and_work(roles: dict[str, str]) -> None:
    assert manage("migrate", DATABASE_URL=roles["owner"]).returncode == 0
    assert manage("work", "--once", DATABASE_URL=roles["owner"]).returncode == 0
    made = manage("create_organization", "Acme", "--json", DATABASE_URL=roles["serve"])
    assert made.returncode == 0, made.stderr
    tenant = json.loads(made.stdout)
    with serve(DATABASE_URL=roles["serve"]) as served:
        answer = requests.post(
            f"{served.address}/api/v1/end-users",
            json={"user": "ann"},
            headers={"Authorization": f"Bearer {tenant['management_key']}"},
            timeout=30,
        )
        assert answer.status_code == 201, answer.text
    with psycopg.connect(roles["serve"], autocommit=True) as connection:
        for statement in (
            "ALTER TABLE billing_transfer DISABLE TRIGGER ALL",
            "DROP TABLE billing_transfer",
            "CREATE TABLE public.another (id int)",
            "TRUNCATE billing_transfer",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
