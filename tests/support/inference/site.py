"""The running service between a caller and the simulated upstream, as one object."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import requests
from django.core.management import call_command
from django.db import transaction

from catalog.models import LanguageModel, ModelEndpoint, Provider
from config.credentials import Secret
from config.local.certificates import ensure_certificates
from endpoints.models import PrivateEndpoint
from inference.models import Generation
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.machine.waiting import wait_until
from tests.support.simulator.protocol import Request
from tests.support.simulator.server import Simulator

CHAT = "/api/v1/chat/completions"
TEXT = "/api/v1/completions"
MESSAGES = "/api/v1/messages"
RESPONSES = "/api/v1/responses"
# A request of two words on each interface, without its model.
ASKED: Final[dict[str, dict[str, Any]]] = {
    CHAT: {"messages": [{"role": "user", "content": "one two"}]},
    TEXT: {"prompt": "one two"},
    MESSAGES: {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 50},
    RESPONSES: {"input": "one two"},
}
COMMENT: Final = ": CAUSEWAY PROCESSING"
OPERATOR_SECRET = "operator-credential-0123456789"
TENANT_SECRET = "test-credential-0123456789"


@dataclass
class Site:
    """A service with one tenant, one provider, and one model without an endpoint."""

    server: str
    upstream: Simulator
    tenant: Tenant
    provider: Provider
    model: LanguageModel
    eventually: Callable[[Callable[[], bool]], None]

    def another_provider(self, slug: str, **fields: Any) -> Provider:
        """A provider at the same simulated upstream, with a credential of the operator."""
        secret = Secret(f"{OPERATOR_SECRET}-{slug}")
        return factories.make_provider(
            slug, base_url=self.upstream.base_url, secret=secret, **fields
        )

    def move(self, base_url: str) -> None:
        """Gives the provider another address."""
        self.provider.base_url = base_url
        self.provider.save_fields("base_url")

    def publish(self, behaviour: str = "sim-echo", **fields: Any) -> ModelEndpoint:
        """Serves the model publicly, with the operator's credential."""
        fields = {"provider": self.provider, "model": self.model, **fields}
        with transaction.atomic(savepoint=False):
            return factories.make_endpoint(**fields, upstream_model_id=behaviour)

    def own(self, behaviour: str = "sim-echo", **fields: Any) -> PrivateEndpoint:
        """Gives the tenant an active private endpoint; its validation met a good upstream."""
        fields = {
            "tenant": self.tenant,
            "model": self.model,
            "provider": self.provider,
            "base_url": self.upstream.base_url,
            **fields,
        }
        endpoint = factories.make_active(**fields)
        if behaviour != "sim-echo":
            PrivateEndpoint.objects.filter(pk=endpoint.pk).update(upstream_model_id=behaviour)
        self.upstream.clear()
        return endpoint

    def produce(self, *outputs: str) -> None:
        """Changes what the model produces."""
        self.model.output_modalities = list(outputs)
        self.model.save_fields("output_modalities")

    def allow_fallback(self) -> None:
        """Lets requests for private models of the tenant go to public endpoints."""
        self.tenant.organization.edit(fallback="any")

    def post(
        self, body: Any, *, path: str = CHAT, key: str | None = None, **options: Any
    ) -> requests.Response:
        headers = {
            "Authorization": f"Bearer {key or self.tenant.api_key}",
            **options.pop("headers", {}),
        }
        options = {"timeout": 60, **options}
        return requests.post(f"{self.server}{path}", json=body, headers=headers, **options)

    def ask(self, path: str, **fields: Any) -> requests.Response:
        """Asks two words on one of the interfaces."""
        return self.post({"model": self.model.slug, **ASKED[path], **fields}, path=path)

    def get(self, path: str) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.tenant.api_key}"}
        return requests.get(f"{self.server}{path}", headers=headers, timeout=60)

    def chat(self, content: Any = "one two", **fields: Any) -> requests.Response:
        return self.post(self.chat_body(content, **fields))

    def chat_body(self, content: Any = "one two", **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": content}]
        return {"model": self.model.slug, "messages": messages, **fields}

    def explain(self, content: Any = "one two", **fields: Any) -> Any:
        """Returns how a chat request would be routed."""
        answer = self.post(self.chat_body(content, **fields), path="/api/v1/routing/explain")
        return answer.json()["data"]

    def wait_for_settlement(self) -> None:
        self.eventually(lambda: not Generation.objects.filter(status="pending").exists())

    def settled(self) -> Generation:
        """Returns the only generation after its settlement."""
        self.wait_for_settlement()
        return Generation.objects.get()

    def dialled(self) -> list[Request]:
        """The inference requests that reached the upstream."""
        return self.upstream.requests

    def assert_nothing_happened(self) -> None:
        assert not Generation.objects.exists()
        assert self.upstream.requests == []


def make_site(
    server: str, upstream: Simulator, eventually: Callable[[Callable[[], bool]], None]
) -> Site:
    """Creates the rows of a site: its tenant, its provider and its model.

    A running service reads what has changed after each transaction, so there is one.
    """
    with transaction.atomic(savepoint=False):
        provider = factories.make_provider(
            "acme", name="Acme AI", base_url=upstream.base_url, secret=Secret(OPERATOR_SECRET)
        )
        tenant = factories.make_tenant()
        model = factories.make_model(
            "acme/falcon",
            input_modalities=["text", "image", "audio", "video", "file"],
            output_modalities=["text", "embeddings"],
            # Unknown, so that prompts of any size are sent.
            context_length=None,
        )
    return Site(
        server=server,
        upstream=upstream,
        tenant=tenant,
        provider=provider,
        model=model,
        eventually=eventually,
    )


@contextmanager
def own_site() -> Iterator[Site]:
    """Yields a site outside pytest: migrates the database and runs a simulated upstream.

    ``server`` is empty until the caller starts a service.
    """
    call_command("migrate", verbosity=0)

    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    with Simulator(certificates).run_in_thread() as simulator:
        yield make_site("", simulator, wait_until)


def error_of(answer: requests.Response, status: int) -> Any:
    """Returns the error of an answer, which has this status."""
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def events_of(text: str) -> list[Any]:
    """The payloads of a stream in the plainest form; ``[DONE]`` and comments stay text."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    return [
        json.loads(block.removeprefix("data: "))
        if block.startswith("data: {")
        else block.removeprefix("data: ")
        for block in blocks
    ]


def blocks_of(answer: requests.Response) -> Iterator[str]:
    """Yields the events and the comments of a stream as they come."""
    rest = ""
    for part in answer.iter_content(None):
        *whole, rest = (rest + part.decode()).split("\n\n")
        yield from whole
    assert rest == ""


def content_of(events: list[Any]) -> str:
    """The text that a chat stream's deltas add up to."""
    choices = [choice for event in events if isinstance(event, dict) for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
