"""A failing upstream leaves one line a minute for each endpoint and kind of failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from catalog.models import ModelEndpoint
from config.local.certificates import ensure_certificates
from endpoints.models import PrivateEndpoint
from tests.support.inference.site import OPERATOR_SECRET, TENANT_SECRET, Site
from tests.support.simulator.server import Simulator

PROMPT = "the words of the prompt"


def lines_of(
    endpoint: ModelEndpoint | PrivateEndpoint, caplog: pytest.LogCaptureFixture
) -> list[str]:
    return [
        record.getMessage().partition("fails: ")[2]
        for record in caplog.records
        if record.getMessage().startswith(f"the endpoint {endpoint.pk} ")
    ]


@pytest.mark.parametrize(
    ("base_url", "line"),
    [
        ("https://127.0.0.1:9/v1", "refused, could not connect"),
        ("https://no-such-name.invalid/v1", "name, could not connect: no such name"),
        ("https://10.1.2.3/v1", "policy, refused by the egress policy: URL"),
    ],
)
@pytest.mark.parametrize("is_private", [False, True])
def test_a_line_says_why_an_endpoint_cannot_be_reached(
    site: Site, base_url: str, line: str, is_private: bool, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint: ModelEndpoint | PrivateEndpoint = site.own() if is_private else site.publish()
    PrivateEndpoint.objects.update(base_url=base_url)
    site.move(base_url)
    for _ in range(3):
        assert site.chat(PROMPT).status_code == 502
    assert lines_of(endpoint, caplog) == [line]
    [message] = [each.getMessage() for each in caplog.records if line in each.getMessage()]
    host = base_url.split("/")[2].partition(":")[0]
    assert f"(acme/falcon at acme, host {host}) fails" in message
    assert PROMPT not in caplog.text


def test_an_unknown_authority_is_named(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    directory = Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls-of-a-stranger"
    directory.mkdir(exist_ok=True)
    with Simulator(ensure_certificates(directory)).run_in_thread() as stranger:
        site.move(stranger.base_url)
        endpoint = site.publish()
        assert site.chat().status_code == 502
    assert lines_of(endpoint, caplog) == ["certificate, TLS failed: unknown authority"]


@pytest.mark.parametrize(
    ("behaviour", "line"),
    [
        ("sim-status:500", "status 500"),
        ("sim-status:429", "status 429"),
        ("sim-connect-reset", "reset, could not connect: closed before the answer"),
    ],
)
def test_a_line_says_how_an_endpoint_answers(
    site: Site, behaviour: str, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = site.publish(behaviour)
    for _ in range(2):
        assert site.chat(PROMPT).status_code in (429, 502)
    assert lines_of(endpoint, caplog) == [line]
    assert PROMPT not in caplog.text
    assert OPERATOR_SECRET not in caplog.text


def test_each_kind_has_a_line_and_a_credential_of_a_tenant_has_none(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = site.publish("sim-status:500")
    site.chat()
    endpoint.upstream_model_id = "sim-status:503"
    endpoint.save_fields("upstream_model_id")
    site.chat()
    assert lines_of(endpoint, caplog) == ["status 500", "status 503"]
    endpoint.upstream_model_id = "sim-status:400"
    endpoint.save_fields("upstream_model_id")
    assert site.chat().status_code == 400
    assert len(lines_of(endpoint, caplog)) == 2
    private = site.own("sim-status:401")
    assert site.chat().status_code == 502
    assert lines_of(private, caplog) == []
    assert TENANT_SECRET not in caplog.text
