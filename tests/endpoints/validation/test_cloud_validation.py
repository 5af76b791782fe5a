"""Live validation of cloud deployments whose URL is derived from the credential."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from rest_framework.test import APIClient

from accounts.models import ByokCredential
from catalog.models import LanguageModel, Provider
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.embedded import AZURE_HOST, BEDROCK_HOST, VERTEX_HOST
from tests.support.endpoints.creating import ROUTE
from tests.support.endpoints.validating import failed, passed, validate
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator
from tests.support.upstreams import clouds as cloud

PASSED: Final = ["workspace", "byok_key", "base_url", "completion", "stream", "usage", "model"]
V1: Final = "/openai/v1/chat/completions"
CONVERSE: Final = "/model/my%2Fgpt/converse"
VERTEX_PATH: Final = (
    "/v1/projects/example-project-1/locations/us-central1/endpoints/openapi/chat/completions"
)

# Dialect, credential, host and path of valid deployments.
GOOD: Final = {
    "azure": ("azure", cloud.azure(), AZURE_HOST, V1),
    "azure dated": (
        "azure",
        cloud.azure(api_version="2024-10-21"),
        AZURE_HOST,
        "/openai/deployments/my%2Fgpt/chat/completions?api-version=2024-10-21",
    ),
    "bedrock signed": ("bedrock", cloud.bedrock(), BEDROCK_HOST, CONVERSE),
    "bedrock session": (
        "bedrock",
        cloud.bedrock(session_token=cloud.SESSION_TOKEN),
        BEDROCK_HOST,
        CONVERSE,
    ),
    "bedrock key": ("bedrock", cloud.bedrock_key(), BEDROCK_HOST, CONVERSE),
    "vertex": ("vertex", cloud.vertex(), VERTEX_HOST, VERTEX_PATH),
}


def draft_of(
    tenant: Tenant, model: LanguageModel, dialect: str, members: dict[str, Any], **fields: Any
) -> PrivateEndpoint:
    provider = factories.make_provider("cloud", dialect=dialect, base_url=None)
    factories.make_credential(tenant, provider, json.dumps(members), **fields)
    return factories.make_draft(tenant, model, provider, base_url=None, upstream_model_id="my/gpt")


@pytest.mark.parametrize("name", GOOD)
def test_a_deployment_is_created_validated_and_activated(
    management: APIClient, tenant: Tenant, model: LanguageModel, clouds: Simulator, name: str
) -> None:
    dialect, members, host, path = GOOD[name]
    factories.make_provider("cloud", dialect=dialect, base_url=None)
    stored = management.post("/api/v1/byok", {"provider": "cloud", "key": json.dumps(members)})
    assert stored.status_code == 201, stored.content
    body = {
        "model_permaslug": model.canonical_slug,
        "provider_slug": "cloud",
        "upstream_model_id": "my/gpt",
        "activate": {"workspace_id": str(tenant.workspace.pk)},
    }
    created = management.post(ROUTE, body)
    assert created.status_code == 201, created.content
    assert created.json()["data"]["status"] == "active"
    checks = PrivateEndpoint.objects.get().validation.checks
    assert [check["name"] for check in checks if check["passed"]] == PASSED
    assert [
        (request.headers["host"], request.path, request.body["model"], request.stream)
        for request in clouds.requests
    ] == [
        (host, path, "my/gpt", False),
        (host, f"{path}-stream" if path == CONVERSE else path, "my/gpt", True),
    ]
    shown = management.get(f"{ROUTE}/{created.json()['data']['id']}")
    assert shown.json()["data"]["base_url"] is None


def damaged_key() -> dict[str, Any]:
    return cloud.account(private_key=cloud.pem(cloud.private_key(1)))


REFUSED: Final = {
    "another key": ("azure", cloud.azure(api_key="another-key-0123"), 401),
    "an unknown version": ("azure", cloud.azure(api_version="2020-01-01"), 404),
    "another secret": ("bedrock", cloud.bedrock(secret_access_key="x" * 40), 403),
    "another session": ("bedrock", cloud.bedrock(session_token="x" * 40), 403),
    "another bedrock key": ("bedrock", cloud.bedrock_key(api_key="another-key-0123"), 403),
    "another account": (
        "vertex",
        cloud.vertex(
            service_account=cloud.account(client_email="x@another-1.iam.gserviceaccount.com")
        ),
        401,
    ),
    "another private key": ("vertex", cloud.vertex(service_account=damaged_key()), 401),
    "another project": ("vertex", cloud.vertex(project_id="another-project-1"), 404),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_by_the_cloud_fails_the_check_with_its_status(
    tenant: Tenant, model: LanguageModel, clouds: Simulator, name: str
) -> None:
    dialect, members, status = REFUSED[name]
    result = validate(draft_of(tenant, model, dialect, members))
    assert [check["name"] for check in result.checks if check["passed"]] == PASSED[:3]
    check = result.checks[-1]
    assert (check["name"], check["reason"]) == ("completion", "upstream_error")
    assert check["upstream_status"] == status
    assert len(clouds.requests) == 1


@pytest.mark.parametrize(("dialect", "status"), [("bedrock", 403), ("vertex", 401)])
def test_an_expired_login_is_refused(
    tenant: Tenant, model: LanguageModel, clouds: Simulator, dialect: str, status: int
) -> None:
    gate = cloud.Gate()
    gate.skew = 3601
    clouds.admit = gate
    members = {"bedrock": cloud.bedrock, "vertex": cloud.vertex}[dialect]()
    check = validate(draft_of(tenant, model, dialect, members)).checks[-1]
    assert (check["name"], check["reason"]) == ("completion", "upstream_error")
    assert check["upstream_status"] == status


@pytest.mark.parametrize(
    ("dialect", "members"),
    [
        ("azure", {}),
        ("azure", cloud.azure(endpoint_url="http://evil.example")),
        ("bedrock", cloud.bedrock(region="nowhere")),
        ("vertex", cloud.vertex(location="evil.example/")),
        ("vertex", cloud.azure()),
    ],
)
def test_a_credential_without_a_valid_location_fails_the_base_url(
    tenant: Tenant, model: LanguageModel, clouds: Simulator, dialect: str, members: dict[str, Any]
) -> None:
    result = validate(draft_of(tenant, model, dialect, members))
    assert result.checks == [*passed(PASSED[:2]), failed("base_url", "invalid_base_url")]
    assert clouds.connections == 0


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("rule", ["first-use", "named"])
def test_a_credential_always_goes_to_the_host_that_it_names(
    tenant: Tenant, model: LanguageModel, clouds: Simulator, settings: Any, name: str, rule: str
) -> None:
    settings.CREDENTIALS_REQUIRE_HOSTS = rule
    dialect, members, host, _ = GOOD[name]
    draft = draft_of(tenant, model, dialect, members)
    assert validate(draft).passed
    for limits in (
        {"allowed_hosts": ["elsewhere.example"]},
        {"bound_domains": ["elsewhere.example"]},
    ):
        ByokCredential.objects.update(**limits)
        clouds.clear()
        result = validate(draft)
        assert (result.outcome, result.host) == ("passed", host)
        assert {request.headers["host"] for request in clouds.requests} == {host}


@pytest.mark.parametrize("name", [name for name in GOOD if not name.startswith("bedrock")])
def test_the_reported_model_is_shown_but_not_compared(
    tenant: Tenant, model: LanguageModel, clouds: Simulator, name: str
) -> None:
    dialect, members, _, _ = GOOD[name]
    draft = draft_of(tenant, model, dialect, members)
    draft.edit(upstream_model_id="sim-wrong-model")
    result = validate(draft)
    assert result.passed
    assert result.checks[-1] == {"name": "model", "passed": True, "actual_model": "another-model"}


def test_a_cloud_endpoint_with_its_own_base_url_fails_the_base_url(
    tenant: Tenant, model: LanguageModel, clouds: Simulator, provider: Provider
) -> None:
    factories.make_credential(tenant, provider, json.dumps(cloud.azure()))
    draft = factories.make_draft(tenant, model, provider, base_url="https://evil.example/v1")
    Provider.objects.filter(pk=provider.pk).update(dialect="azure")
    draft.refresh_from_db()
    check = validate(draft).checks[-1]
    assert (check["name"], check["reason"]) == ("base_url", "invalid_base_url")
    assert clouds.connections == 0
