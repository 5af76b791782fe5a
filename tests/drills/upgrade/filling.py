"""What stands in the database before the upgrade: made by running the earlier release."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import requests

from tests.drills.upgrade.releases import Release, Running, serve
from tests.support.chains.nodes import Contract

SENDER: Final = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
OPERATOR: Final = "operator"
SECRET: Final = "upstream-credential-0123456789"
CREDITS: Final = "1000"
# Behaviours of the simulated provider, by the model that callers name.
MODELS: Final = {
    "sim/echo": "sim-echo",
    "sim/slow": "sim-slow:0,0.05",
    "sim/long": "sim-slow:0,0.2",
    "sim/broken": "sim-status-500",
}
# Lists whose rows must read the same after the upgrade, for an organization that is not used
# meanwhile.
LISTS: Final = (
    "keys", "byok", "workspaces", "aliases", "guardrails", "presets", "end-users",
    "private-endpoints", "organization/members", "credits", "key",
)  # fmt: skip
_SECONDS: Final = 60.0


@dataclass
class Tenant:
    """An organization, its keys, and the generations that it had before the upgrade."""

    organization_id: str
    workspace_id: str
    management_key: str
    api_key: str
    generations: list[str] = field(default_factory=list)
    top_up: str = ""


@dataclass
class World:
    """All that the earlier release has made."""

    password: str
    quiet: Tenant
    busy: Tenant
    private: Tenant
    before: dict[str, Any] = field(default_factory=dict)


def call(
    address: str, key: str, method: str, path: str, body: Any = None, status: int = 200
) -> Any:
    """Sends a request and returns the answer's JSON; requires a status."""
    answer = requests.request(
        method,
        f"{address}/api/v1/{path}",
        json=body,
        headers={"Authorization": f"Bearer {key}"},
        timeout=_SECONDS,
    )
    if answer.status_code != status:
        raise AssertionError(f"{method} {path}: {answer.status_code} {answer.text}")
    return answer.json()


def fill(old: Release, logs: Path, upstream: str, token: Contract, scale: str) -> World:
    """Fills the database of a release that was just migrated, by its commands and its API."""
    filled = old.run("-m", "tests.bench.fill", "--scale", scale)
    assert filled.returncode == 0, filled.stderr
    old.manage_json("import_catalog", "-", data=make_catalogue(upstream))
    old.manage("set_provider_credential", "simulator", data=SECRET)
    password = secrets.token_urlsafe(18)
    old.settings["DJANGO_SUPERUSER_PASSWORD"] = password
    old.manage("createsuperuser", "--noinput", "--username", OPERATOR, "--email", "a@example.com")
    quiet, busy, private = (create_tenant(old, name) for name in ("Quiet", "Busy", "Private"))
    world = World(password, quiet, busy, private)
    # It must have read the chain before anybody can pay.
    old.manage("work", "--once")
    with serve(old, logs) as running:
        for tenant in (quiet, private):
            _govern(running.address, tenant, upstream)
        token.pay(open_top_up(running.address, quiet, token))
        _use(running.address, quiet)
        _await_payment(old, running.address, quiet)
        world.before = read(running.address, quiet)
        _abandon_stream(running, busy)
    return world


def read(address: str, tenant: Tenant) -> dict[str, Any]:
    """Returns every list of an organization, its top-up and its generations, by path."""
    paths = [
        *LISTS,
        f"credits/crypto/{tenant.top_up}",
        *(f"generation?id={each}" for each in tenant.generations),
    ]
    keys = {"key": tenant.api_key, "credits/crypto": tenant.api_key}
    return {
        path: call(
            address,
            tenant.api_key if path.startswith(("generation", *keys)) and path != "keys"
            else tenant.management_key,
            "GET",
            path,
        )
        for path in paths
    }  # fmt: skip


def create_tenant(release: Release, name: str) -> Tenant:
    """Creates an organization with credits."""
    made = release.manage_json("create_organization", name)
    release.manage_json("grant_credits", made["organization_id"], CREDITS)
    return Tenant(**made)


def _await_payment(old: Release, address: str, tenant: Tenant) -> None:
    """Runs `work` until it has seen the payment: each release has its own pause between looks."""
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        old.manage("work", "--once")
        paid = call(address, tenant.api_key, "GET", f"credits/crypto/{tenant.top_up}")
        if paid["data"]["status"] == "confirmed":
            return
        time.sleep(1)
    raise AssertionError(paid)


def _govern(address: str, tenant: Tenant, upstream: str) -> None:
    """Gives an organization one of each thing that its management key can make."""

    def make(path: str, status: int = 201, **body: Any) -> Any:
        return call(address, tenant.management_key, "POST", path, body, status)

    make("byok", provider="simulator", key=SECRET, name="own")
    endpoint = make(
        "private-endpoints",
        model_permaslug="sim/echo-1",
        provider_slug="simulator",
        upstream_model_id="sim-echo",
        base_url=upstream,
        declared_region="global",
        declared_zdr=True,
        pricing={"prompt": "0.0000004", "completion": "0.0000012"},
        activate={"workspace_id": tenant.workspace_id},
    )
    assert endpoint["data"]["status"] == "active", endpoint
    make(
        "private-endpoints",
        model_permaslug="sim/slow-1",
        provider_slug="simulator",
        upstream_model_id="sim-echo",
        base_url=upstream,
    )
    limited = make("keys", name="limited", limit=2, limit_reset="monthly")
    make("workspaces", name="Staging", slug="staging")
    make("aliases", name="house", targets=["sim/echo"])
    guardrail = make("guardrails", name="Careful", limit_usd=50, reset_interval="monthly")
    make(
        f"guardrails/{guardrail['data']['id']}/assignments/keys",
        200,
        key_hashes=[limited["data"]["hash"]],
    )
    for user in ("ann@example.com", "ben@example.com"):
        make("end-users", user=user)


def open_top_up(address: str, tenant: Tenant, token: Contract) -> int:
    """Opens a top-up and returns how many units of the token pay it."""
    body = {
        "amount": 25,
        "sender": token.payers[0],
        "chain_id": int(token.node.rpc("eth_chainId"), 16),
    }
    made = call(address, tenant.api_key, "POST", "credits/crypto", body)["data"]
    tenant.top_up = made["id"]
    return int(made["web3_data"]["transfer_intent"]["call_data"]["recipient_amount"])


def _use(address: str, tenant: Tenant) -> None:
    """Makes generations of several kinds and ends, and a preset from one of them."""

    def chat(status: int = 200, **fields: Any) -> None:
        body = {"messages": [{"role": "user", "content": "one two"}], **fields}
        answer = requests.post(
            f"{address}/api/v1/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {tenant.api_key}"},
            timeout=_SECONDS,
        )
        assert answer.status_code == status, answer.text
        tenant.generations.append(answer.headers["X-Generation-Id"])

    chat(model="sim/echo", user="ann@example.com")
    chat(model="house")
    chat(model="sim/slow", stream=True)
    chat(502, model="sim/broken")
    call(
        address,
        tenant.management_key,
        "POST",
        "presets/support/chat/completions",
        {"model": "sim/echo", "messages": [{"role": "system", "content": "Be brief."}]},
    )
    deadline = time.monotonic() + _SECONDS
    for each in tenant.generations:
        while True:
            answer = requests.get(
                f"{address}/api/v1/generation?id={each}",
                headers={"Authorization": f"Bearer {tenant.api_key}"},
                timeout=_SECONDS,
            )
            if answer.status_code == 200:
                break
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.1)


def _abandon_stream(running: Running, tenant: Tenant) -> None:
    """Kills a service in the middle of a stream: its hold waits for a sweeper."""
    body = {
        "model": "sim/long",
        "messages": [{"role": "user", "content": " ".join(["word"] * 200)}],
        "stream": True,
    }
    with requests.post(
        f"{running.address}/api/v1/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {tenant.api_key}"},
        stream=True,
        timeout=_SECONDS,
    ) as answer:
        assert answer.status_code == 200, answer.text
        tenant.generations.append(answer.headers["X-Generation-Id"])
        next(line for line in answer.iter_lines() if b"word" in line)
        # The journal is written once a second, so that the sweeper finds something to bill.
        time.sleep(2)
        running.kill()


def make_catalogue(upstream: str) -> str:
    """Returns a catalogue file with :data:`MODELS` at the simulated provider."""
    policy = {"training": False, "retains_prompts": False}
    catalogue = {
        "providers": [
            {
                "slug": "simulator",
                "name": "Simulator",
                "dialect": "openai",
                "base_url": upstream,
                "data_policy": policy,
            }
        ],
        "models": [
            {
                "id": name,
                "canonical_slug": f"{name}-1",
                "name": name,
                "created": 1780272000,
                "description": "",
                "context_length": 8192,
                "architecture": {
                    "input_modalities": ["text"],
                    "output_modalities": ["text"],
                    "modality": "text->text",
                    "tokenizer": "Other",
                    "instruct_type": None,
                },
                "supported_parameters": ["max_tokens"],
            }
            for name in MODELS
        ],
        "endpoints": [
            {
                "model": f"{name}-1",
                "provider": "simulator",
                "upstream_model_id": behaviour,
                "pricing": {"prompt": "0.0000005", "completion": "0.0000015"},
                "context_length": 8192,
                "max_completion_tokens": 4096,
                "zdr": True,
                "supported_parameters": ["max_tokens"],
            }
            for name, behaviour in MODELS.items()
        ],
    }
    return json.dumps(catalogue)
