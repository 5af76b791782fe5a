"""The perimeter: checks for production, HTTPS, and what is shipped."""

from __future__ import annotations

import base64
import inspect
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path

import pytest
import requests
import yaml
from django.conf import settings
from django.core import checks
from django.test import override_settings

from config.local.bootstrap import PROJECT
from config.management.commands import rotate_credential_keys
from tests.support.markdown import read_tables
from tests.support.processes import serve
from tests.support.settings import read_only

# The checks for a deployment look at the top-ups of chains that left the settings.
pytestmark = pytest.mark.django_db

FILES = PROJECT / "docs" / "deploy"
# What is filled in: a default of the file, or what `./start` writes.
DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")
# What SECURITY.md calls the rows that `CREDENTIAL_KEYS` encrypt.
PROTECTED = {
    "ByokCredential": "credentials",
    "Provider": "provider credentials",
    "SecondFactor": "second factors",
    "Subscription": "the secrets of webhooks, URLs of chats",
    "BroadcastDestination": "headers of broadcast destinations",
    "TextKey": "logged texts",
    "ChangeSet": "change sets",
    "Creation": "for 24 hours the secrets of new keys",
}
WRITTEN = re.compile(r"\$\{CAUSEWAY_HOST:\?[^}]*\}")


def run_checks(environment: dict[str, str]) -> list[str]:
    """Returns what the checks for a deployment find in an environment, in order."""
    found = read_only(environment)
    plain = (bool, int, float, str, list, tuple)
    changes = {
        name: value
        for name, value in found.items()
        if name.isupper() and isinstance(value, plain) and value != getattr(settings, name)
    }
    with override_settings(**changes):
        messages = checks.run_checks(include_deployment_checks=True)
    return sorted(str(message.id) for message in messages if not message.is_silenced())


def make_environment(**changes: str) -> dict[str, str]:
    """Returns the environment of the page about deployment, and nothing else."""
    return {
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


def test_the_checks_for_production_find_nothing() -> None:
    environment = make_environment(SECURE_HSTS_SECONDS="31536000", SECURE_SSL_REDIRECT="on")
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, "no issues" in done.stdout) == (0, True), done.stderr
    assert run_checks(environment) == []


def test_the_checks_ask_for_https() -> None:
    assert run_checks(make_environment()) == ["security.W004", "security.W008"]


def test_the_checks_find_an_open_console_and_metrics_without_a_token() -> None:
    environment = make_environment(
        METRICS_TOKEN="",
        ADMIN_REQUIRES_TOTP="off",
        CONSOLE_NETWORKS="0.0.0.0/1,128.0.0.0/1,::1/128",
        FORWARDED_ALLOW_IPS="127.0.0.1,10.0.0.0/28,10.42.0.0/28",
        SECURE_HSTS_SECONDS="31536000",
        SECURE_SSL_REDIRECT="on",
    )
    found = ["console.W001", "console.W002", "console.W003", "console.W004"]
    assert run_checks(environment) == found


def test_the_checks_find_a_token_that_can_be_guessed() -> None:
    environment = make_environment(METRICS_TOKEN="metrics", CONSOLE_NETWORKS="::/1")
    found = ["console.W002", "console.W005", "security.W004", "security.W008"]
    assert run_checks(environment) == found


def test_pages_go_to_https_and_probes_do_not(django_db_setup: None) -> None:
    changes = {"SECURE_HSTS_SECONDS": "3600", "SECURE_SSL_REDIRECT": "on"}
    with serve(**changes) as served:
        plain = requests.get(f"{served.address}/admin/", allow_redirects=False, timeout=30)
        assert plain.status_code == 301
        assert plain.headers["Location"] == f"{served.address.replace('http', 'https', 1)}/admin/"
        assert requests.get(f"{served.address}/readyz", timeout=30).status_code == 200
        proxied = requests.get(
            f"{served.address}/admin/login/",
            headers={"X-Forwarded-Proto": "https", "X-Forwarded-For": "10.0.0.1"},
            timeout=30,
        )
        assert proxied.status_code == 200
        assert proxied.headers["Strict-Transport-Security"] == "max-age=3600"


def read_lines(text: str) -> dict[str, str]:
    pairs = [line.partition("=") for line in text.splitlines() if "=" in line and line[0] != "#"]
    return {name: value for name, _, value in pairs}


def read_compose() -> dict[str, str]:
    given = yaml.safe_load((FILES / "compose" / "compose.yaml").read_text())
    environment = given["services"]["serve"]["environment"]
    return {
        name: DEFAULT.sub(r"\1", WRITTEN.sub("llm.example.com", value))
        for name, value in environment.items()
    }


def read_kubernetes() -> dict[str, str]:
    folder = FILES / "kubernetes"
    data: dict[str, str] = {}
    for name in ("base", "overlays/example"):
        data |= yaml.safe_load((folder / name / "settings.yaml").read_text())["data"]
    serve = yaml.safe_load((folder / "base" / "serve.yaml").read_text())
    [container] = serve["spec"]["template"]["spec"]["containers"]
    return data | {each["name"]: each["value"] for each in container["env"]}


def read_hosts() -> dict[str, str]:
    unit = (FILES / "systemd" / "causeway-serve.service").read_text()
    lines = [line.removeprefix("Environment=") for line in unit.splitlines()]
    given = read_lines("\n".join(line for line in lines if re.match(r"[A-Z_]+=", line)))
    return given | read_lines((FILES / "ha" / "causeway.env").read_text())


SHIPPED = pytest.mark.parametrize(
    ("read", "found"),
    [
        (read_compose, set()),
        # The ingress redirects to HTTPS.
        (read_kubernetes, {"security.W008"}),
        # Whoever ends TLS sets both.
        (read_hosts, {"security.W004", "security.W008"}),
    ],
    ids=["compose", "kubernetes", "hosts"],
)


@SHIPPED
def test_the_checks_find_nothing_else_in_what_is_shipped(
    read: Callable[[], dict[str, str]], found: set[str], tmp_path: Path
) -> None:
    given = {"PATH": "/usr/bin:/bin", "ALLOWED_HOSTS": "llm.example.com"} | read()
    texts = {
        "DATABASE_URL_FILE": "postgres://causeway:secret@127.0.0.1/causeway",
        "CREDENTIAL_KEYS_FILE": "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY=",
    }
    for name in given:
        if name.endswith("_FILE"):
            path = tmp_path / name
            path.write_text(texts.get(name, secrets.token_urlsafe(48)))
            given[name] = str(path)
    assert set(run_checks(given)) == found


@SHIPPED
def test_only_single_proxies_are_believed(
    read: Callable[[], dict[str, str]], found: set[str]
) -> None:
    networks = [ip_network(each) for each in read()["FORWARDED_ALLOW_IPS"].split(",")]
    assert [each.num_addresses for each in networks] == [1] * len(networks)


def test_the_proxies_replace_what_callers_claim() -> None:
    """Caddy does so by itself, save the newer header; nginx of the ingress too."""
    assert "header_up -Forwarded" in (FILES / "compose" / "Caddyfile").read_text()
    lines = [line.strip() for line in (FILES / "ha" / "haproxy.cfg").read_text().splitlines()]
    assert "http-request set-header X-Forwarded-For %[src]" in lines
    assert "http-request del-header Forwarded" in lines
    assert "option forwardfor" not in lines
    scheme = [line for line in lines if "X-Forwarded-Proto" in line]
    assert scheme == [
        "http-request set-header X-Forwarded-Proto http",
        "http-request set-header X-Forwarded-Proto https if { ssl_fc }",
    ]


def test_compose_publishes_no_port_that_hides_its_callers() -> None:
    """Docker passes connections by IPv6 on from an address of its own, which is private."""
    given = yaml.safe_load((FILES / "compose" / "compose.yaml").read_text())
    ports = [port for one in given["services"].values() for port in one.get("ports", ())]
    assert ports
    assert [port for port in ports if not port.startswith("0.0.0.0:")] == []


def test_all_that_the_credential_keys_protect_is_listed() -> None:
    """`rotate_credential_keys` encrypts all of it again."""
    source = inspect.getsource(rotate_credential_keys)
    assert set(re.findall(r"in (\w+)\.objects", source)) == PROTECTED.keys()
    [row] = [row for row in read_tables(PROJECT / "SECURITY.md") if row[0] == "`CREDENTIAL_KEYS`"]
    assert {name: text for name, text in PROTECTED.items() if text not in row[1]} == {}


@pytest.mark.parametrize("path", ["SECURITY.md", "docs/perimeter.md"])
def test_the_pages_say_where_a_used_credential_goes(path: str) -> None:
    text = " ".join((PROJECT / path).read_text().split())
    assert "very host" in text
    assert "domain of its first use" not in text
