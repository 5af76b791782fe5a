"""A private endpoint is created, validated, activated and used, over real sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import requests

from inference.models import Generation
from tests.support import factories
from tests.support.simulator.server import Simulator


def test_a_private_endpoint_is_created_activated_and_streamed_through(
    server: str, simulator: Simulator, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    tenant = factories.make_tenant()
    provider = factories.make_provider("acme", name="Acme AI")
    model = factories.make_model("acme/falcon")
    factories.make_credential(tenant, provider)
    created = requests.post(
        f"{server}/api/v1/private-endpoints",
        headers={"Authorization": f"Bearer {tenant.management_key}"},
        json={
            "model_permaslug": model.canonical_slug,
            "provider_slug": "acme",
            "upstream_model_id": "sim-echo",
            "base_url": simulator.base_url,
            "pricing": {"prompt": "0.000001", "completion": "0.000002"},
            "activate": {"workspace_id": str(tenant.workspace.pk)},
        },
        timeout=60,
    )
    assert created.status_code == 201, created.text
    assert created.json()["data"]["status"] == "active"

    def ask(**fields: Any) -> requests.Response:
        messages = [{"role": "user", "content": "one two"}]
        answer = requests.post(
            f"{server}/api/v1/chat/completions",
            headers={"Authorization": f"Bearer {tenant.api_key}"},
            json={"model": "acme/falcon", "messages": messages, **fields},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        return answer

    answer = ask()
    body = answer.json()
    assert body["id"] == answer.headers["X-Generation-Id"]
    assert body["model"] == "acme/falcon"
    assert body["provider"] == "Acme AI"
    assert body["usage"]["is_byok"] is True
    assert body["usage"]["cost"] == 0
    assert ask(stream=True).text.endswith("data: [DONE]\n\n")
    eventually(lambda: Generation.objects.filter(status=Generation.Status.COMPLETED).count() == 2)
