"""The way from a running gateway to an answer of one's own server, without a restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from catalog.models import Provider
from config.egress import EgressPolicy
from inference.models import Generation
from tests.support import factories
from tests.support.operators.commands import run_json
from tests.support.processes import serve
from tests.support.simulator.server import Simulator


@pytest.fixture
def own_server() -> Iterator[Simulator]:
    with Simulator(tls=False).run_in_thread() as simulator:
        simulator.is_keyless = True
        yield simulator


def test_a_connected_server_answers_through_a_service_that_runs(
    transactional_db: None, own_server: Simulator, settings: Any
) -> None:
    tenant = factories.make_tenant()
    settings.EGRESS_POLICY = EgressPolicy()
    with serve("--workers", "1", UPSTREAM_ALLOWED_NETWORKS="") as served:

        def chat(model: str) -> requests.Response:
            body = {"model": model, "messages": [{"role": "user", "content": "one two"}]}
            headers = {"Authorization": f"Bearer {tenant.api_key}"}
            url = f"{served.address}/api/v1/chat/completions"
            return requests.post(url, json=body, headers=headers, timeout=60)

        arguments = ("--allow", "--models", "sim-echo")
        found, _ = run_json("connect", own_server.base_url, *arguments)
        for name in (found["models"][0], "sim-echo"):
            answer = chat(name)
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"] == "You said: one two"
            assert answer.json()["usage"]["cost"] == 0
        Provider.objects.update(allowed_networks=None)
        refused = chat("sim-echo")
        assert refused.status_code == 502
        assert refused.json()["error"]["metadata"]["kind"] == "unreachable"
    statuses = Generation.objects.order_by("created_at").values_list("status", flat=True)
    assert [*statuses[:2]] == ["completed", "completed"]
