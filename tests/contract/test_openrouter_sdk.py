"""The public Python SDK parses every response and raises a specific class for every error."""

from __future__ import annotations

import socket
import uuid
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import openrouter
import pytest
from openrouter import OpenRouter, errors, operations

from accounts.models import Workspace
from tests.support import factories
from tests.support.contract.answers import MESSAGES
from tests.support.contract.clients import MakeOpenRouter, Serve
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator

FALCON = {
    "model_name": "Falcon",
    "model_permaslug": "acme/falcon-2026-01-01",
    "model_slug": "acme/falcon",
    "provider_name": "Acme AI",
}
# The SDK warns about every response with a field that its OpenAPI document marks as deprecated.
DEPRECATED_FIELDS = "ignore:warning. .. DEPRECATED:DeprecationWarning"

# Later versions of the SDK use /external-users for end users.
names_end_users = pytest.mark.skipif(
    openrouter.__version__ != "1.3.30", reason="this SDK has no /end-users"
)

names_external_users = pytest.mark.skipif(
    openrouter.__version__ == "1.3.30", reason="this SDK has no /external-users"
)
# The SDK inserts these names into the path without encoding them, so the tests encode them.
AWKWARD_USERS = ["two words", "a/b", "50%", "a?b#c;d", "😀", "%2F", "/", "a+b", "..."]


@pytest.fixture
def wanted(tenant: Tenant, simulator: Simulator) -> dict[str, Any]:
    """Returns the fields of a private endpoint that passes its validation."""
    provider = factories.make_provider("acme", name="Acme AI")
    model = factories.make_model("acme/falcon", name="Falcon")
    factories.make_credential(tenant, provider)
    return {
        "model_permaslug": model.canonical_slug,
        "provider_slug": "acme",
        "upstream_model_id": "sim-echo",
        "base_url": simulator.base_url,
    }


def _activation(tenant: Tenant) -> dict[str, Any]:
    return {"activate": {"workspace_id": str(tenant.workspace.pk)}}


def draft_of(refused: Any) -> Any:
    """Returns the body of a refusal that tells of a draft."""
    assert isinstance(refused.data, errors.CreatePrivateEndpointValidationFailedResponseErrorData)
    return refused.data


def test_create_returns_a_draft(manager: OpenRouter, wanted: dict[str, Any]) -> None:
    created = manager.private_endpoints.create(
        **wanted,
        declared_region="europe",
        declared_zdr=True,
        pricing={"prompt": "0.000001", "completion": "0.000002"},
    ).data
    assert uuid.UUID(created.id).version == 4
    assert created.model_dump() == {
        "id": created.id,
        "created_at": created.created_at,
        **FALCON,
        "status": "draft",
        "declared_region": "europe",
        "declared_zdr": True,
    }


def test_create_with_activate_returns_an_active_endpoint(
    manager: OpenRouter, tenant: Tenant, wanted: dict[str, Any]
) -> None:
    created = manager.private_endpoints.create(**wanted, **_activation(tenant)).data
    assert created.status == "active"
    assert manager.private_endpoints.get(id=created.id).data.status == "active"


def test_create_with_a_repeated_key_returns_the_first_endpoint(
    manager: OpenRouter, wanted: dict[str, Any]
) -> None:
    first = manager.private_endpoints.create(**wanted, idempotency_key="once").data
    assert manager.private_endpoints.create(**wanted, idempotency_key="once").data == first
    assert len(manager.private_endpoints.list().data) == 1


def test_create_refuses_a_repeated_key_with_another_body(
    manager: OpenRouter, wanted: dict[str, Any]
) -> None:
    manager.private_endpoints.create(**wanted, idempotency_key="once")
    with pytest.raises(errors.UnprocessableEntity) as caught:
        manager.private_endpoints.create(
            **wanted | {"upstream_model_id": "sim-lf"}, idempotency_key="once"
        )
    assert isinstance(caught.value.data, errors.UnprocessableEntityResponseErrorData)
    assert caught.value.data.error.code == 422
    assert caught.value.data.error.metadata == {"error_type": "idempotency_key_reused"}


def test_create_with_activate_returns_the_draft_when_a_check_fails(
    manager: OpenRouter, tenant: Tenant, wanted: dict[str, Any]
) -> None:
    with pytest.raises(errors.UnprocessableEntity) as caught:
        manager.private_endpoints.create(
            **wanted | {"upstream_model_id": "sim-no-usage"}, **_activation(tenant)
        )
    body = draft_of(caught.value)
    assert body.error.code == 422
    assert body.data.validation.passed is False
    failed = [check for check in body.data.validation.checks if not check.passed]
    assert [(check.name, check.reason) for check in failed] == [("usage", "missing_usage")]
    assert body.data.endpoint.status == "draft"
    assert [row.id for row in manager.private_endpoints.list().data] == [body.data.endpoint.id]


def test_create_with_activate_in_an_unknown_workspace_answers_404_with_the_draft(
    manager: OpenRouter, wanted: dict[str, Any]
) -> None:
    with pytest.raises(errors.NotFound) as caught:
        manager.private_endpoints.create(**wanted, activate={"workspace_id": str(uuid.uuid4())})
    checks = draft_of(caught.value).data.validation.checks
    assert [check.reason for check in checks] == ["workspace_not_found"]


def test_create_with_activate_answers_502_with_the_draft_when_nothing_listens(
    manager: OpenRouter, tenant: Tenant, wanted: dict[str, Any]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        base_url = f"https://127.0.0.1:{closed.getsockname()[1]}/v1"
        with pytest.raises(errors.BadGateway) as caught:
            manager.private_endpoints.create(
                **wanted | {"base_url": base_url}, **_activation(tenant)
            )
    body = draft_of(caught.value)
    assert body.error.code == 502
    assert body.data.endpoint.status == "draft"


def test_create_with_activate_answers_408_with_the_id_of_the_draft_at_the_time_limit(
    manager: OpenRouter, tenant: Tenant, wanted: dict[str, Any], settings: Any
) -> None:
    settings.VALIDATION_TIMEOUT = 0.3
    with pytest.raises(errors.RequestTimeoutResponseError) as caught:
        manager.private_endpoints.create(
            **wanted | {"upstream_model_id": "sim-stall"}, **_activation(tenant)
        )
    metadata = caught.value.data.error.metadata
    assert metadata == {
        "error_type": "timeout",
        "endpoint_id": manager.private_endpoints.list().data[0].id,
    }


def test_create_refuses_an_unknown_model(manager: OpenRouter, wanted: dict[str, Any]) -> None:
    with pytest.raises(errors.NotFound) as caught:
        manager.private_endpoints.create(**wanted | {"model_permaslug": "acme/none"})
    assert isinstance(caught.value.data, errors.NotFoundResponseErrorData)
    assert caught.value.data.error.metadata == {"error_type": "model_not_found"}


def test_create_refuses_a_base_url_without_tls(manager: OpenRouter, wanted: dict[str, Any]) -> None:
    with pytest.raises(errors.UnprocessableEntity) as caught:
        manager.private_endpoints.create(**wanted | {"base_url": "http://llm.example.com/v1"})
    assert isinstance(caught.value.data, errors.UnprocessableEntityResponseErrorData)
    assert caught.value.data.error.metadata == {"error_type": "invalid_base_url"}


def test_create_refuses_an_empty_field(manager: OpenRouter, wanted: dict[str, Any]) -> None:
    with pytest.raises(errors.BadRequestResponseError) as caught:
        manager.private_endpoints.create(**wanted | {"upstream_model_id": ""})
    assert caught.value.data.error.code == 400
    assert caught.value.data.error.metadata is not None
    assert list(caught.value.data.error.metadata["fields"]) == ["upstream_model_id"]


def test_an_endpoint_goes_from_draft_to_deletion(
    manager: OpenRouter, tenant: Tenant, wanted: dict[str, Any], simulator: Simulator
) -> None:
    endpoints = manager.private_endpoints
    draft = endpoints.create(**wanted).data
    edited = endpoints.update(
        id=draft.id, upstream_model_id="sim-lf", declared_region="us", declared_zdr=False
    ).data
    assert edited.model_dump() == {
        "id": draft.id,
        "status": "draft",
        **FALCON,
        "provider_slug": "acme",
        "upstream_model_id": "sim-lf",
        "base_url": simulator.base_url,
        "declared_region": "us",
        "declared_zdr": False,
        "pricing": {"prompt": "0", "completion": "0"},
    }
    validated = endpoints.validate(id=draft.id, workspace_id=str(tenant.workspace.pk)).data
    assert validated.passed is True
    assert [check.name for check in validated.checks] == [
        "workspace", "byok_key", "base_url", "completion", "stream", "usage", "model",
    ]  # fmt: skip
    assert {check.passed for check in validated.checks} == {True}
    assert endpoints.activate(id=draft.id).data.status == "active"
    priced = endpoints.update_pricing(
        id=draft.id, pricing={"prompt": "0.0000005", "completion": "0.0000015"}
    ).data
    assert priced.pricing.model_dump() == {"prompt": "0.0000005", "completion": "0.0000015"}
    assert endpoints.disable(id=draft.id).data.status == "disabled"
    assert endpoints.enable(id=draft.id).data.status == "active"
    [listed] = endpoints.list().data
    assert listed.model_dump() == {
        "id": draft.id,
        "created_at": draft.created_at,
        "status": "active",
        **FALCON,
    }
    with pytest.raises(errors.ConflictResponseError) as caught:
        endpoints.delete(id=draft.id, draft_only="true")
    assert caught.value.data.error.code == 409
    assert endpoints.delete(id=draft.id).data.id == draft.id
    assert endpoints.list().data == []
    with pytest.raises(errors.NotFoundResponseError) as gone:
        endpoints.get(id=draft.id)
    assert gone.value.data.error.metadata == {"error_type": "endpoint_not_found"}


def test_validate_returns_the_failed_check(
    manager: OpenRouter, tenant: Tenant, wanted: dict[str, Any]
) -> None:
    draft = manager.private_endpoints.create(**wanted | {"upstream_model_id": "sim-status-503"})
    result = manager.private_endpoints.validate(
        id=draft.data.id, workspace_id=str(tenant.workspace.pk)
    ).data
    assert result.passed is False
    assert result.checks[-1].model_dump() == {
        "name": "completion",
        "passed": False,
        "reason": "upstream_error",
        "upstream_status": 503,
        "upstream_message": "The engine is overloaded.",
    }


def test_validate_names_the_model_that_answered_instead(
    manager: OpenRouter, tenant: Tenant, wanted: dict[str, Any]
) -> None:
    draft = manager.private_endpoints.create(**wanted | {"upstream_model_id": "sim-wrong-model"})
    result = manager.private_endpoints.validate(
        id=draft.data.id, workspace_id=str(tenant.workspace.pk)
    ).data
    assert result.checks[-1].model_dump() == {
        "name": "model",
        "passed": False,
        "reason": "model_mismatch",
        "actual_model": "another-model",
    }


def test_validate_refuses_an_unknown_workspace(manager: OpenRouter, wanted: dict[str, Any]) -> None:
    draft = manager.private_endpoints.create(**wanted).data
    with pytest.raises(errors.NotFoundResponseError):
        manager.private_endpoints.validate(id=draft.id, workspace_id=str(uuid.uuid4()))


def test_activate_refuses_a_draft_that_was_not_validated(
    manager: OpenRouter, wanted: dict[str, Any]
) -> None:
    draft = manager.private_endpoints.create(**wanted).data
    with pytest.raises(errors.ConflictResponseError) as caught:
        manager.private_endpoints.activate(id=draft.id)
    assert caught.value.data.error.metadata is not None
    assert caught.value.data.error.metadata["error_type"] == "not_validated"


def test_management_routes_refuse_an_unknown_key(openrouter_client: MakeOpenRouter) -> None:
    client = openrouter_client("sk-unknown")
    with pytest.raises(errors.UnauthorizedResponseError) as caught:
        client.private_endpoints.list()
    assert caught.value.data.error.code == 401
    with pytest.raises(errors.UnauthorizedResponseError):
        client.byok.list()
    with pytest.raises(errors.UnauthorizedResponseError):
        client.api_keys.get_current_key_metadata()


def test_management_routes_refuse_an_inference_key(caller: OpenRouter, tenant: Tenant) -> None:
    with pytest.raises(errors.ForbiddenResponseError) as caught:
        caller.private_endpoints.list()
    assert caught.value.data.error.code == 403
    with pytest.raises(errors.ForbiddenResponseError):
        caller.models.list_for_user(security={"bearer": tenant.api_key})
    # Some versions of the SDK declare no 403 for this operation.
    with pytest.raises(errors.OpenRouterError) as listing:
        caller.byok.list()
    assert listing.value.status_code == 403


@names_end_users
def test_end_users_need_a_management_key(
    openrouter_client: MakeOpenRouter, caller: OpenRouter
) -> None:
    with pytest.raises(errors.UnauthorizedResponseError):
        openrouter_client("sk-unknown").end_users.create(user="customer-1")
    with pytest.raises(errors.OpenRouterDefaultError) as registering:
        caller.end_users.create(user="customer-1")
    assert registering.value.status_code == 403


@names_end_users
def test_end_user_is_registered_once(manager: OpenRouter) -> None:
    registered = manager.end_users.create(user="customer-1").data
    assert (registered.user, registered.is_active) == ("customer-1", True)
    assert registered.created_at.utcoffset() is not None
    with pytest.raises(errors.ConflictResponseError) as caught:
        manager.end_users.create(user="customer-1")
    assert caught.value.data.error.metadata == {"error_type": "already_registered"}
    with pytest.raises(errors.BadRequestResponseError):
        manager.end_users.create(user="")


@names_end_users
def test_end_users_are_listed_changed_and_deleted(manager: OpenRouter) -> None:
    for number in range(3):
        manager.end_users.create(user=f"customer-{number}")
    users = manager.end_users
    assert users.get(user="customer-1").data.is_active is True
    assert users.update(user="customer-1", is_active=False).data.is_active is False
    page: Any = users.list(limit=1)
    assert [row.user for row in page.result.data] == ["customer-0"]
    assert page.result.total_count == 2
    page = page.next()
    assert [row.user for row in page.result.data] == ["customer-2"]
    [inactive] = users.list(user="customer-1", include_inactive=True).result.data
    assert (inactive.user, inactive.is_active) == ("customer-1", False)
    for _ in range(2):
        assert users.delete(user="customer-2") is None
    assert users.get(user="customer-2").data.is_active is False
    for call in (users.get, users.delete):
        with pytest.raises(errors.NotFoundResponseError) as caught:
            call(user="unknown")
        assert caught.value.data.error.code == 404


@pytest.mark.parametrize("user", AWKWARD_USERS)
@pytest.mark.parametrize(
    "group",
    [
        pytest.param("end_users", marks=names_end_users),
        pytest.param("external_users", marks=names_external_users),
    ],
)
def test_end_users_with_any_name_have_a_path(manager: OpenRouter, group: str, user: str) -> None:
    users = getattr(manager, group)
    users.create(user=user)
    encoded = quote(user, safe="")
    assert users.get(user=encoded).data.user == user
    assert users.update(user=encoded, is_active=False).data.user == user
    users.delete(user=encoded)


@names_external_users
def test_external_users_are_registered_listed_changed_and_deleted(manager: OpenRouter) -> None:
    users = manager.external_users
    created = users.create(user="x" * 512).data
    assert (created.user, created.is_active) == ("x" * 512, True)
    with pytest.raises(errors.ConflictResponseError) as caught:
        users.create(user="x" * 512)
    assert caught.value.data.error.metadata == {"error_type": "already_registered"}
    with pytest.raises(errors.BadRequestResponseError):
        users.create(user="x" * 513)
    assert users.update(user="x" * 512, is_active=False).data.is_active is False
    assert users.list().result.total_count == 0
    assert users.list(include_inactive=True).result.total_count == 1
    assert users.delete(user="x" * 512) is None
    with pytest.raises(errors.NotFoundResponseError):
        users.get(user="unknown")


@names_external_users
def test_external_users_need_a_management_key(caller: OpenRouter) -> None:
    with pytest.raises(errors.ForbiddenResponseError):
        caller.external_users.list()


def test_api_keys_are_created_changed_and_deleted(
    openrouter_client: MakeOpenRouter, manager: OpenRouter, tenant: Tenant
) -> None:
    keys = manager.api_keys
    expires_at = datetime(2099, 1, 2, 3, 4, 5, tzinfo=UTC)
    made = keys.create(
        name="CI",
        limit=12.5,
        limit_reset="monthly",
        include_byok_in_limit=True,
        expires_at=expires_at,
        external={"user": "customer-1"},
    )
    created = made.data
    assert created.model_dump() == {
        "hash": created.hash,
        "name": "CI",
        "label": created.label,
        "workspace_id": str(tenant.workspace.pk),
        "creator_user_id": None,
        "external_user": "customer-1",
        "disabled": False,
        "limit": 12.5,
        "limit_remaining": 12.5,
        "limit_reset": "monthly",
        "include_byok_in_limit": True,
        "expires_at": expires_at,
        "last_used_at": None,
        "created_at": created.created_at,
        "updated_at": created.updated_at,
        **{
            f"{kind}{suffix}": 0
            for kind in ("usage", "byok_usage")
            for suffix in ("", "_daily", "_weekly", "_monthly")
        },
    }
    assert keys.get(hash=created.hash).data.model_dump() == created.model_dump()
    assert [row.name for row in keys.list().data] == ["CI", "inference"]
    changed = keys.update(hash=created.hash, name="new", limit=None, disabled=True).data
    assert (changed.name, changed.limit, changed.disabled) == ("new", None, True)
    assert [row.name for row in keys.list().data] == ["inference"]
    assert [row.name for row in keys.list(include_disabled=True).data] == ["new", "inference"]
    with pytest.raises(errors.UnauthorizedResponseError):
        openrouter_client(made.key).api_keys.get_current_key_metadata()
    assert keys.delete(hash=created.hash).DELETED is True
    with pytest.raises(errors.NotFoundResponseError):
        keys.get(hash=created.hash)
    with pytest.raises(errors.NotFoundResponseError):
        keys.delete(hash=created.hash)


def test_api_keys_refuse_malformed_fields(manager: OpenRouter) -> None:
    with pytest.raises(errors.BadRequestResponseError) as caught:
        manager.api_keys.create(name="CI", limit=-1)
    assert caught.value.data.error.metadata is not None
    assert list(caught.value.data.error.metadata["fields"]) == ["limit"]
    [key] = manager.api_keys.list().data
    with pytest.raises(errors.BadRequestResponseError) as updating:
        manager.api_keys.update(hash=key.hash)
    assert updating.value.data.error.message == "No update fields were provided."


@pytest.mark.filterwarnings(DEPRECATED_FIELDS)
def test_a_spent_limit_is_forbidden_and_shown(
    openrouter_client: MakeOpenRouter, manager: OpenRouter, serve: Serve
) -> None:
    made = manager.api_keys.create(name="CI", limit=0, limit_reset="daily")
    client = openrouter_client(made.key)
    with pytest.raises(errors.ForbiddenResponseError) as caught:
        client.chat.send(model=serve("sim-echo"), messages=MESSAGES)
    assert caught.value.data.error.metadata is not None
    assert caught.value.data.error.metadata["error_type"] == "permission_denied"
    key = client.api_keys.get_current_key_metadata().data
    assert (key.limit, key.limit_remaining, key.limit_reset) == (0, 0, "daily")


@pytest.mark.skipif(
    openrouter.__version__ == "1.3.30", reason="this SDK does not know all fields of the routes"
)
@pytest.mark.filterwarnings(DEPRECATED_FIELDS)
def test_keys_have_a_workspace_and_budgets(
    openrouter_client: MakeOpenRouter, manager: OpenRouter, tenant: Tenant
) -> None:
    workspace = Workspace.objects.create(
        organization=tenant.organization, name="Other", slug="other"
    )
    made = manager.api_keys.create(name="CI", limit=2, limit_reset="weekly")
    moved = manager.api_keys.update(hash=made.data.hash, workspace_id=str(workspace.pk)).data
    assert moved.workspace_id == str(workspace.pk)
    listed = manager.api_keys.list(workspace_id=str(workspace.pk), include_expired=True).data
    assert [row.hash for row in listed] == [made.data.hash]
    key = openrouter_client(made.key).api_keys.get_current_key_metadata().data
    assert [budget.scope for budget in key.budgets] == ["key_limit"]
    assert key.effective_budget is not None
    assert (key.effective_budget.limit_usd, key.effective_budget.remaining_usd) == (2, 2)
    assert key.effective_budget.resets_at is not None


def test_byok_credential_is_shown_changed_and_deleted(manager: OpenRouter, tenant: Tenant) -> None:
    factories.make_provider("openai", name="OpenAI")
    created = manager.byok.create(
        provider="openai", key="sk-proj-0123456789abcdef", declared_zdr=True
    ).data
    assert manager.byok.get(id=created.id).data == created
    changed = manager.byok.update(
        id=created.id, key="sk-proj-0123456789aaaaaa", declared_zdr=None, is_fallback=True
    ).data
    assert changed.model_dump() == created.model_dump() | {
        "label": "…aaaa",
        "declared_zdr": None,
        "is_fallback": True,
    }
    with pytest.raises(errors.BadRequestResponseError):
        manager.byok.update(id=created.id, is_byok_only=True)
    assert manager.byok.delete(id=created.id).DELETED is True
    with pytest.raises(errors.NotFoundResponseError):
        manager.byok.get(id=created.id)


def test_models_are_listed_page_by_page(manager: OpenRouter, tenant: Tenant) -> None:
    provider = factories.make_provider(is_keyless=True)
    for number in range(5):
        model = factories.make_model(f"acme/model-{number}b", created=1_767_225_600 - number)
        factories.make_endpoint(model, provider)
    pages = []
    page: operations.ListModelsUserResponse | None = manager.models.list_for_user(
        security={"bearer": tenant.management_key}, limit=2
    )
    while page is not None:
        pages.append([model.id for model in page.result.data])
        assert page.result.total_count == 5
        page = page.next()  # type: ignore[assignment]
    assert pages == [
        ["acme/model-0b", "acme/model-1b"],
        ["acme/model-2b", "acme/model-3b"],
        ["acme/model-4b"],
    ]


def test_byok_credential_is_stored_masked_and_listed(manager: OpenRouter, tenant: Tenant) -> None:
    factories.make_provider("openai", name="OpenAI")
    created = manager.byok.create(
        provider="openai", key="sk-proj-0123456789abcdef", name="main", is_required=True
    ).data
    assert created.model_dump() == {
        "id": created.id,
        "created_at": created.created_at,
        "label": "…cdef",
        "provider": "openai",
        "name": "main",
        "workspace_id": str(tenant.workspace.pk),
        "sort_order": 0,
        "disabled": False,
        "is_fallback": False,
        "is_required": True,
        "is_byok_only": False,
        "allowed_models": None,
        "allowed_api_key_hashes": None,
        "allowed_user_ids": None,
        "declared_region": None,
        "declared_zdr": None,
    }
    listed: Any = manager.byok.list()
    assert listed.result.data == [created]
    assert listed.result.total_count == 1
    assert listed.next() is None


@pytest.mark.filterwarnings(DEPRECATED_FIELDS)
def test_current_key_describes_itself(
    caller: OpenRouter, manager: OpenRouter, tenant: Tenant
) -> None:
    key = caller.api_keys.get_current_key_metadata().data
    assert key.organization_id == str(tenant.organization.pk)
    assert key.workspace_id == str(tenant.workspace.pk)
    assert key.is_management_key is False
    assert (key.usage, key.byok_usage, key.limit) == (0, 0, None)
    assert manager.api_keys.get_current_key_metadata().data.is_management_key is True
