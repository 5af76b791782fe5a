from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import CommandError, CommandParser

from accounts.models import ApiKey, ByokCredential, Organization, Workspace, workspace_for
from billing import ledger
from catalog import imports
from catalog.models import Provider
from catalog.pricing import NANO
from config.bulk.commands import JSONCommand
from config.bulk.files import refuse
from config.credentials import Secret
from config.egress import EgressError, EgressPolicy, OutboundRequest
from config.egress.client import EgressClient
from config.egress.fetch import fetch
from config.local.certificates import ensure_certificates
from config.local.demo import SIMULATOR_DIR
from config.local.entry import COMMAND, default_data_dir
from config.local.upstream import serve_upstream
from config.management.commands.serve import listen, port_number
from config.secrets import KeyDigests
from endpoints.models import PrivateEndpoint
from endusers.models import EndUser

Answer = TypeVar("Answer")

HOST: Final = "127.0.0.1"
MODEL: Final = "causeway/echo"
PERMASLUG: Final = "causeway/echo-1"
ADMIN: Final = "admin"
END_USERS: Final = ("alice@example.com", "bob@example.com", "customer-42")
# The provider pauses between events, so that a person can watch them arrive.
UPSTREAM_MODEL: Final = "sim-slow"
QUESTION: Final = "Hello! What happens to my request on its way through a gateway?"
_LOOPBACK: Final = EgressPolicy(allowed_networks=(ip_network("127.0.0.0/8"),))
_START_SECONDS: Final = 30.0
# How long a service that answers 503 is asked again.
_BUSY_SECONDS: Final = 30.0
_PR_SET_PDEATHSIG: Final = 1


class Command(JSONCommand):
    # It runs migrations, which cannot run inside the transaction of an audited command.
    is_audited = False
    help = "Runs the whole service on this machine, with a simulated upstream provider."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--host",
            choices=(HOST, "0.0.0.0"),
            default=HOST,
            help=f"the address to listen on (default {HOST}); 0.0.0.0 in a container",
        )
        parser.add_argument(
            "--port",
            type=port_number,
            default=8000,
            metavar="N",
            help="the port of the console and the API (default 8000); 0 takes a free one",
        )
        parser.add_argument(
            "--data-dir",
            metavar="DIR",
            help=f"the data directory (default {default_data_dir()})",
        )
        parser.add_argument("--once", action="store_true", help="stop after the sample run")
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        host: str = options["host"]
        listener = listen(host, options["port"])
        port: int = listener.getsockname()[1]
        listener.close()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupt)
        try:
            with _lock(settings.DATA_DIR):
                self._run(host, port, as_json=options["json"], once=options["once"])
        except KeyboardInterrupt:
            self.note("\nStopped. Everything is kept; the next start reuses it.")
            if options["once"]:
                sys.exit(130)

    def _run(self, host: str, port: int, *, as_json: bool, once: bool) -> None:
        self.note("Preparing the database …")
        with _hide_progress():
            call_command("migrate", verbosity=0, interactive=False)
        imports.apply(imports.parse(imports.BUNDLED.read_bytes()))
        state = _State.load(settings.DATA_DIR / "demo.json")
        with self._run_provider(state) as upstream:
            tenant = _Tenant.ensure(state)
            state.save()
            _offer_simulated_model(upstream)
            _ensure_operator(state)
            with self._run_server(host, port) as base_url:
                completion = None
                try:
                    self._ensure_endpoint(base_url, tenant, upstream, state)
                    completion = self._run_sample(base_url, tenant)
                except CommandError as refusal:
                    # The console may have stopped it, and stands where that is undone.
                    if once:
                        raise
                    self.note(f"{refusal}\n")
                self._print_result(port, state, tenant, completion, as_json=as_json)
                if not once:
                    self.note("\nServing until Ctrl-C.")
                    signal.pause()

    @contextmanager
    def _run_provider(self, state: _State) -> Iterator[str]:
        """Runs the provider on its last port, or on another one if that is taken."""
        certificates = ensure_certificates(settings.DATA_DIR / SIMULATOR_DIR)
        with serve_upstream(certificates, HOST, _free_port(state.simulator_port)) as (url, port):
            state.simulator_port = port
            yield url

    @contextmanager
    def _run_server(self, host: str, port: int) -> Iterator[str]:
        """Runs ``serve`` in a separate process; yields its base URL once it is ready."""
        command = [*COMMAND, "serve"]
        log = settings.DATA_DIR / "serve.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*command, "--host", host, "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C must reach only this process, which then stops the server cleanly.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        try:
            self.note("Starting the server …")
            _await_ready(process, f"http://{HOST}:{port}", log)
            yield f"http://{HOST}:{port}/api/v1"
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()

    def _ensure_endpoint(
        self, base_url: str, tenant: _Tenant, upstream: str, state: _State
    ) -> None:
        """Activates a private endpoint of the demo, unless the last one can be used."""
        mine = PrivateEndpoint.objects.for_organization(UUID(tenant.organization_id)).filter(
            pk=state.endpoint_id or None
        )
        if mine.routable().filter(base_url=upstream).exists():
            self.note("The private endpoint of the last start is active.")
            return
        # The provider now listens on another port: endpoints with the old port are useless.
        for endpoint in mine:
            endpoint.remove(by="demo")
        self.note("Creating, validating and activating a private endpoint …")
        _ask_patiently(lambda: _activate_endpoint(base_url, tenant, upstream, state))

    def _run_sample(self, base_url: str, tenant: _Tenant) -> dict[str, Any]:
        """Streams a completion, says what it cost and returns it."""
        self.note(f"Streaming a chat completion through it:\n\n> {QUESTION}\n")
        completion = _ask_patiently(lambda: asyncio.run(self._stream(base_url, tenant.api_key)))
        usage = completion["usage"]
        upstream_cost = usage["cost_details"]["upstream_inference_cost"]
        self.note(
            f"\n{usage['prompt_tokens']} prompt and {usage['completion_tokens']} completion "
            f"tokens: {upstream_cost:.9f} USD at the endpoint's price, paid to the provider "
            f"directly; {usage['cost']:.9f} USD of credits.\n"
        )
        return completion

    async def _stream(self, base_url: str, api_key: str) -> dict[str, Any]:
        """Prints a completion as it arrives and returns its id, text and usage."""
        request = OutboundRequest(
            "POST",
            f"{base_url}/chat/completions",
            {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"},
            json.dumps(
                {
                    "model": MODEL,
                    "messages": [{"role": "user", "content": QUESTION}],
                    "user": END_USERS[0],
                    "stream": True,
                }
            ).encode(),
        )
        result: dict[str, Any] = {"id": None, "text": "", "usage": None}
        async with EgressClient(_LOOPBACK) as egress_client:
            response = await egress_client.send(request, first_byte_timeout=30, idle_timeout=30)
            if response.status != 200:
                _refuse_answer("The completion failed", response.status, await response.read())
            buffer = b""
            async for data in response.iter_chunks():
                buffer += data
                *events, buffer = buffer.split(b"\n\n")
                for event in events:
                    if event.startswith(b"data: {"):
                        self._print_chunk(json.loads(event[6:]), result)
            response.close()
        self.stderr.write("")
        return result

    def _print_chunk(self, chunk: dict[str, Any], result: dict[str, Any]) -> None:
        result["id"] = chunk["id"]
        result["usage"] = chunk.get("usage") or result["usage"]
        for choice in chunk["choices"]:
            text = choice["delta"].get("content") or ""
            result["text"] += text
            self.stderr.write(text, ending="")
            self.stderr.flush()
        if "error" in chunk:
            refuse(f"The completion failed: {chunk['error']['message']}")

    def _print_result(
        self,
        port: int,
        state: _State,
        tenant: _Tenant,
        completion: dict[str, Any] | None,
        *,
        as_json: bool,
    ) -> None:
        base_url = f"http://{HOST}:{port}"
        if as_json:
            result = {
                "base_url": f"{base_url}/api/v1",
                "admin_url": f"{base_url}/admin/",
                "admin_username": ADMIN,
                "admin_password": state.admin_password,
                "organization_id": tenant.organization_id,
                "workspace_id": tenant.workspace_id,
                "management_key": tenant.management_key,
                "api_key": tenant.api_key,
                "private_endpoint_id": state.endpoint_id,
                "model": MODEL,
                "completion": completion,
            }
            self.stdout.write(json.dumps(result))
            self.stdout.flush()
            return
        self.stdout.write(
            f"""\
Admin            {base_url}/admin/   {ADMIN} / {state.admin_password}
API reference    {base_url}/docs
Guides           {base_url}/docs/guide
Log of requests  {settings.DATA_DIR / "serve.log"}
Management key   {tenant.management_key}
Inference key    {tenant.api_key}
Organization     {tenant.organization_id}
Workspace        {tenant.workspace_id}
Private endpoint {state.endpoint_id}

Try it:

curl -N {base_url}/api/v1/chat/completions \\
  -H "Authorization: Bearer {tenant.api_key}" -H "Content-Type: application/json" \\
  -d '{{"model": "{MODEL}", "stream": true, "messages": [{{"role": "user", "content": "Hi!"}}]}}'

curl {base_url}/api/v1/private-endpoints -H "Authorization: Bearer {tenant.management_key}"
"""
        )
        self.stdout.flush()


class _State:
    """The state that a demo keeps for its next start, in a file that only its owner can read."""

    def __init__(self, path: Path, members: dict[str, Any]) -> None:
        self._path = path
        self.admin_password: str = members.get("admin_password") or secrets.token_urlsafe(12)
        self.management_key: str = members.get("management_key", "")
        self.api_key: str = members.get("api_key", "")
        self.simulator_port: int = members.get("simulator_port", 0)
        self.endpoint_id: str = members.get("endpoint_id", "")

    @classmethod
    def load(cls, path: Path) -> _State:
        try:
            return cls(path, json.loads(path.read_text()))
        except (FileNotFoundError, ValueError):
            return cls(path, {})

    def save(self) -> None:
        members = {name: value for name, value in vars(self).items() if name != "_path"}
        partial = self._path.with_suffix(".partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(members, file)
        partial.replace(self._path)


class _Tenant:
    """The demo's organization and its two keys."""

    def __init__(self, organization: Organization, state: _State) -> None:
        self.organization_id = str(organization.pk)
        self.workspace_id = str(workspace_for(organization.pk, None).pk)
        self.management_key = state.management_key
        self.api_key = state.api_key

    @classmethod
    def ensure(cls, state: _State) -> _Tenant:
        """Returns the tenant of the last start, or creates one with end users and a credential.

        It has new keys in place of those that have ended.
        """
        known = _find_key(state.management_key)
        organization = (
            known.organization
            if known is not None
            else Organization.objects.create_organization(name="Demo")
        )
        workspace = workspace_for(organization.pk, None)
        state.management_key = _ensure_key(
            state.management_key, workspace, name="Demo management", is_management=True
        )
        state.api_key = _ensure_key(state.api_key, workspace, name="Demo inference")
        if known is not None:
            return cls(organization, state)
        ledger.grant(organization.pk, 10 * NANO, actor="demo", note="Demo credits")
        for user in END_USERS:
            EndUser.objects.register(organization_id=organization.pk, user=user)
        ByokCredential.objects.create_credential(
            organization=organization,
            workspace=workspace,
            provider_slug="simulator",
            secret=Secret(f"simulated-{secrets.token_hex(16)}"),
            name="Simulated provider",
        )
        return cls(organization, state)


def _find_key(secret: str) -> ApiKey | None:
    return ApiKey.objects.filter(digests__digest__in=[*KeyDigests(secret)]).first()


def _ensure_key(secret: str, workspace: Workspace, **fields: Any) -> str:
    """Returns the secret of a key, or that of a new one if the key has ended for good."""
    key = _find_key(secret)
    if key is not None and key.deleted_at is None and not key.is_expired:
        return secret
    _, made = ApiKey.objects.create_key(workspace=workspace, **fields)
    return made.reveal()


def _offer_simulated_model(base_url: str) -> None:
    """Adds the simulated provider and its model to the catalogue, with an operator credential."""
    imports.apply(imports.parse(json.dumps(_build_catalogue(base_url)).encode()))
    provider = Provider.objects.get(slug="simulator")
    if not provider.has_credential:
        provider.set_credential(Secret(f"simulated-{secrets.token_hex(16)}"))


def _build_catalogue(base_url: str) -> dict[str, Any]:
    return {
        "providers": [
            {
                "slug": "simulator",
                "name": "Simulator",
                "dialect": "openai",
                "base_url": base_url,
                "data_policy": {"training": False, "retains_prompts": False},
            }
        ],
        "models": [
            {
                "id": MODEL,
                "canonical_slug": PERMASLUG,
                "name": "Causeway: Echo",
                "created": 1780272000,
                "description": "A simulated model that answers from the words of the question.",
                "context_length": 8192,
                "architecture": {
                    "input_modalities": ["text"],
                    "output_modalities": ["text"],
                    "modality": "text->text",
                    "tokenizer": "Other",
                    "instruct_type": None,
                },
                "supported_parameters": ["max_tokens", "stop", "temperature"],
            }
        ],
        "endpoints": [
            {
                "model": PERMASLUG,
                "provider": "simulator",
                "upstream_model_id": UPSTREAM_MODEL,
                "pricing": {"prompt": "0.0000005", "completion": "0.0000015"},
                "context_length": 8192,
                "max_completion_tokens": 1024,
                "zdr": True,
                "supported_parameters": ["max_tokens", "stop", "temperature"],
            }
        ],
    }


def _ensure_operator(state: _State) -> None:
    users = get_user_model()._default_manager
    operator, _ = users.get_or_create(
        username=ADMIN, defaults={"is_staff": True, "is_superuser": True}
    )
    if not operator.check_password(state.admin_password):
        operator.set_password(state.admin_password)
        operator.save(update_fields=["password"])


def _activate_endpoint(base_url: str, tenant: _Tenant, upstream: str, state: _State) -> None:
    """Creates and activates the demo's endpoint over HTTP, and keeps its id."""
    body = {
        "model_permaslug": PERMASLUG,
        "provider_slug": "simulator",
        "upstream_model_id": UPSTREAM_MODEL,
        "base_url": upstream,
        "declared_region": "global",
        "declared_zdr": True,
        "pricing": {"prompt": "0.0000004", "completion": "0.0000012"},
        "activate": {"workspace_id": tenant.workspace_id},
    }
    status, _, answer = fetch(
        OutboundRequest(
            "POST",
            f"{base_url}/private-endpoints",
            {
                "Authorization": f"Bearer {tenant.management_key}",
                "Content-Type": "application/json",
            },
            json.dumps(body).encode(),
        ),
        _LOOPBACK,
        60.0,
    )
    if status != 201:
        _refuse_answer("The private endpoint was not activated", status, answer)
    state.endpoint_id = str(json.loads(answer)["data"]["id"])
    state.save()


class _Unavailable(CommandError):
    """The service has answered 503, and so has changed nothing."""


def _refuse_answer(what: str, status: int, answer: bytes | bytearray) -> NoReturn:
    message = f"{what}: {answer.decode()}"
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        raise _Unavailable(message, returncode=1)
    refuse(message)


def _ask_patiently(ask: Callable[[], Answer]) -> Answer:
    """Asks again while the service is unavailable, as it is where its machine is very busy."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            return ask()
        except _Unavailable:
            if time.monotonic() > deadline:
                raise
        time.sleep(1)


def _await_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        if _is_ready(address):
            return
        time.sleep(0.1)
    refuse(f"The server did not start; its log is {log}:\n{_tail(log)}")


def _is_ready(address: str) -> bool:
    try:
        return fetch(OutboundRequest("GET", f"{address}/readyz", {}), _LOOPBACK, 5.0)[0] == 200
    except EgressError:
        return False


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def _free_port(preferred: int) -> int:
    """Returns the preferred port if it is free, else 0: the system then chooses one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, preferred))
        except OSError:
            return 0
    return preferred


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Locks the data directory; refuses a second demo, which would replace the provider."""
    with (directory / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            refuse(f"A demo is already running on {directory}. Stop it, or choose --data-dir.")
        yield


def _die_with_parent() -> None:
    """Makes Linux stop the server if the demo is killed, so that the server frees its port."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def _hide_progress() -> Iterator[None]:
    """Hides the lines of the log that a newcomer needs not read; warnings remain."""
    progress = logging.getLogger("causeway")
    level = progress.level
    progress.setLevel(logging.WARNING)
    try:
        yield
    finally:
        progress.setLevel(level)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
