"""The database of an earlier release migrates, and everything that worked still works."""

from __future__ import annotations

import gzip
import hmac
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import requests

from config.local.bootstrap import PROJECT
from config.local.certificates import ensure_certificates
from tests.support.processes import manage, serve
from tests.support.simulator.server import Simulator

FOLDER: Final = PROJECT / "tests" / "support" / "upgrade"
FACTS: Final[dict[str, Any]] = json.loads((FOLDER / "facts.json").read_text())
ACME, BETA, OPERATOR = FACTS["acme"], FACTS["beta"], FACTS["operator"]
HOSTS: Final = ("llm.acme.example", "models.beta.example", "spare.acme.example")


@dataclass
class Upgraded:
    """The migrated database with a service on it, and what its upstream received."""

    address: str
    changes: dict[str, str]
    upstream: Simulator

    def get(self, path: str, key: str) -> requests.Response:
        return requests.get(
            f"{self.address}/api/v1/{path}", headers={"Authorization": f"Bearer {key}"}, timeout=30
        )

    def chat(self, model: str, key: str) -> requests.Response:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "one two"}],
            "user": "ann@example.com",
        }
        return requests.post(
            f"{self.address}/api/v1/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {key}"},
            timeout=30,
        )

    def run(self, *arguments: str) -> dict[str, Any]:
        done = manage(*arguments, "--json", **self.changes)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.changes["DATABASE_URL"]) as connection:
            return connection.execute(sql, parameters).fetchall()


@pytest.fixture(scope="module")
def restored() -> Iterator[str]:
    """The address of a database with the dump; its session has just been used."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    name = f"upgrade_{os.getpid()}"
    with psycopg.connect(urlunsplit(parts), autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        url = urlunsplit(parts._replace(path=f"/{name}"))
        with psycopg.connect(url) as connection:
            connection.execute(gzip.decompress((FOLDER / "before.sql.gz").read_bytes()))
            connection.execute(
                "UPDATE public.django_session SET expire_date = now() + interval '14 days'"
            )
        yield url
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def upgraded(restored: str) -> Iterator[Upgraded]:
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls", names=HOSTS)
    with Simulator(certificates).run_in_thread() as upstream:
        changes = {
            "DATABASE_URL": restored,
            "SECRET_KEY": FACTS["secret_key"],
            "CREDENTIAL_KEYS": FACTS["credential_keys"],
            # The operator signed in when the dump was made.
            "SESSION_LIFETIME": str(10**9),
            "UPSTREAM_HOSTS": ",".join(f"{name}=127.0.0.1:{upstream.port}" for name in HOSTS),
        }
        done = manage("migrate", **changes)
        assert done.returncode == 0, done.stderr
        with serve(**changes) as served:
            yield Upgraded(served.address, changes, upstream)


def test_the_operator_is_still_signed_in(upgraded: Upgraded) -> None:
    answer = requests.get(
        f"{upgraded.address}/admin/",
        cookies={"sessionid": OPERATOR["session"]},
        allow_redirects=False,
        timeout=30,
    )
    assert answer.status_code == 200
    assert OPERATOR["username"] in answer.text
    stored = {key for [key] in upgraded.query("SELECT session_key FROM django_session")}
    assert OPERATOR["session"] not in stored


def test_the_operator_signs_in_with_a_backup_code(upgraded: Upgraded) -> None:
    page = requests.get(f"{upgraded.address}/admin/login/", timeout=30)
    [token] = set(re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text))
    answer = requests.post(
        f"{upgraded.address}/admin/login/?next=/admin/",
        {
            "username": OPERATOR["username"],
            "password": OPERATOR["password"],
            "otp_token": OPERATOR["backup_code"],
            "csrfmiddlewaretoken": token,
        },
        cookies={"csrftoken": page.cookies["csrftoken"]},
        allow_redirects=False,
        timeout=30,
    )
    assert (answer.status_code, answer.headers.get("Location")) == (302, "/admin/"), answer.text
    assert upgraded.query("SELECT count(*) FROM otp_static_statictoken") == [(9,)]


def test_keys_work_and_keep_their_public_hashes(
    upgraded: Upgraded, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    for key in (
        ACME["management_key"], ACME["api_key"], ACME["limited_key"], BETA["management_key"],
        BETA["api_key"],
    ):  # fmt: skip
        assert upgraded.get("key", key).status_code == 200
    refused = upgraded.get("key", ACME["revoked_key"])
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        401,
        "The API key is disabled.",
    )
    limited = upgraded.get(f"keys/{ACME['limited_hash']}", ACME["management_key"]).json()["data"]
    assert (limited["name"], limited["limit"], limited["limit_reset"]) == ("limited", 2, "monthly")
    stored = dict(upgraded.query("SELECT label, digest FROM accounts_apikey"))
    assert stored == FACTS["hashes"]
    # Each use has told the pepper of the key.
    eventually(lambda: upgraded.run("list_key_peppers")["waiting"] == 0)
    assert upgraded.run("list_key_peppers")["peppers"] == {"SECRET_KEY": 5}


def test_credentials_are_bound_to_the_hosts_of_their_active_endpoints(upgraded: Upgraded) -> None:
    rows = upgraded.query(
        "SELECT id::text, allowed_hosts, bound_domains FROM accounts_byokcredential"
    )
    assert {key: rest for key, *rest in rows} == {
        ACME["credential_id"]: [None, [".acme.example"]],
        ACME["unused_credential_id"]: [None, None],
        BETA["credential_id"]: [["models.beta.example"], None],
    }


@pytest.mark.parametrize(
    ("owner", "host", "secret"),
    [
        (ACME, "llm.acme.example", "test-credential-0123456789"),
        (BETA, "models.beta.example", "beta-credential-0123456789"),
    ],
    ids=["acme", "beta"],
)
def test_inference_is_served_by_the_own_endpoint_with_the_stored_credential(
    upgraded: Upgraded, owner: dict[str, str], host: str, secret: str
) -> None:
    upgraded.upstream.clear()
    answer = upgraded.chat("acme/falcon", owner["api_key"])
    assert answer.status_code == 200, answer.text
    [received] = upgraded.upstream.requests
    assert received.headers["authorization"] == f"Bearer {secret}"
    assert received.headers["host"] == host
    # The pseudonym of an end user is that of the earlier release.
    pepper = hmac.digest(FACTS["secret_key"].encode(), b"causeway.end-user", "sha256")
    text = f"{owner['organization_id']}\0ann@example.com".encode()
    assert received.body["user"] == hmac.digest(pepper, text, "sha256").hex()[:32]


def test_credits_pay_as_before_and_the_ledger_verifies(upgraded: Upgraded) -> None:
    assert upgraded.run("verify_ledger") == {"differences": []}
    # The stream that ran when the dump was made still has its hold, or is swept.
    [[held]] = upgraded.query(
        "SELECT sum(pending_debits) FROM billing_account WHERE organization_id = %s",
        BETA["organization_id"],
    )
    assert held > 0
    before = upgraded.get("key", ACME["limited_key"]).json()["data"]["usage"]
    assert before > 0
    answer = upgraded.chat("acme/hare", ACME["limited_key"])
    assert answer.status_code == 200, answer.text
    assert upgraded.run("verify_ledger") == {"differences": []}
    after = upgraded.get("key", ACME["limited_key"]).json()["data"]["usage"]
    assert after == pytest.approx(before + answer.json()["usage"]["cost"])
