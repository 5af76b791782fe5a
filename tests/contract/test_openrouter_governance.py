"""The public Python SDK manages workspaces, guardrails, destinations and the organization."""

from __future__ import annotations

import inspect
import uuid
from typing import Any

import pytest
from openrouter import OpenRouter, errors

from accounts.models import ApiKey, BroadcastDestination, Member
from config.secrets import digest_api_key
from tests.support import factories
from tests.support.broadcast.destinations import MASK, SECRET
from tests.support.contract.clients import MakeOpenRouter
from tests.support.factories import Tenant
from tests.support.governance import make_key, make_member

pytestmark = pytest.mark.filterwarnings("ignore:warning. .. DEPRECATED:DeprecationWarning")
OPERATIONS = {
    "workspaces": [
        "list", "create", "delete", "get", "update", "list_members", "bulk_add_members",
        "bulk_remove_members", "list_budgets", "delete_budget", "get_budget", "set_budget",
    ],
    "guardrails": [
        "list", "create", "delete", "get", "update", "list_guardrail_key_assignments",
        "bulk_assign_keys", "bulk_unassign_keys", "list_guardrail_member_assignments",
        "bulk_assign_members", "bulk_unassign_members", "list_key_assignments",
        "list_member_assignments",
    ],
    "organization": ["list_members", "get_settings", "update_settings"],
    "observability": ["list", "create", "get", "update", "delete"],
    "presets": [
        "list", "get", "create_presets_chat_completions", "create_presets_messages",
        "create_presets_responses", "list_versions", "get_version",
    ],
}  # fmt: skip


@pytest.fixture
def actor(tenant: Tenant) -> str:
    return f"key {ApiKey.objects.get(digest=digest_api_key(tenant.management_key)).label}"


@pytest.mark.parametrize("group", OPERATIONS)
def test_the_sdk_has_every_tested_operation(manager: OpenRouter, group: str) -> None:
    resource = getattr(manager, group)
    assert [name for name in OPERATIONS[group] if not hasattr(resource, name)] == []


def test_a_workspace_is_created_changed_and_deleted(
    manager: OpenRouter, tenant: Tenant, actor: str
) -> None:
    workspaces = manager.workspaces
    made = workspaces.create(
        name="Research",
        slug="research",
        description="Trials",
        default_text_model="acme/falcon",
        default_provider_sort="price",
        disabled_server_tools=["openrouter:web_search"],
        io_logging_api_key_ids=None,
        io_logging_sampling_rate=1,
        is_observability_broadcast_enabled=False,
    ).data
    default_guardrail_id = uuid.uuid5(uuid.UUID(made.id), "default guardrail")
    assert made.model_dump() == {
        "id": made.id,
        "name": "Research",
        "slug": "research",
        "description": "Trials",
        "default_guardrail_id": str(default_guardrail_id),
        "default_text_model": "acme/falcon",
        "default_image_model": None,
        "default_provider_sort": "price",
        "disabled_server_tools": ["openrouter:web_search"],
        "io_logging_api_key_ids": None,
        "io_logging_sampling_rate": 1.0,
        "is_data_discount_logging_enabled": False,
        "is_observability_broadcast_enabled": False,
        "is_observability_io_logging_enabled": False,
        "include_byok_in_budgets": False,
        "created_by": actor,
        "created_at": made.created_at,
        "updated_at": made.updated_at,
    }
    assert workspaces.get(id=made.id).data == workspaces.get(id="research").data == made
    changed = workspaces.update(id="research", slug="lab", description=None).data
    assert (changed.slug, changed.description, changed.name) == ("lab", None, "Research")
    page: Any = workspaces.list(limit=1)
    assert (page.result.total_count, page.result.data[0].slug) == (2, "default")
    second: Any = page.next()
    assert second.result.data == [changed]
    assert workspaces.delete(id="lab").DELETED is True
    with pytest.raises(errors.NotFoundResponseError):
        workspaces.get(id=made.id)


def test_a_setting_that_nothing_reads_is_refused_by_name(manager: OpenRouter) -> None:
    with pytest.raises(errors.BadRequestResponseError) as caught:
        manager.workspaces.update(id="default", is_data_discount_logging_enabled=True)
    assert caught.value.data.error.metadata["fields"] == {
        "is_data_discount_logging_enabled": "This service does not do this yet. Leave it out."
    }


def test_a_preset_is_made_from_a_request_and_shown(
    manager: OpenRouter, tenant: Tenant, actor: str
) -> None:
    presets = manager.presets
    first: Any = presets.create_presets_chat_completions(
        slug="support",
        model="acme/falcon",
        temperature=0.25,
        messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
    ).data
    made = first.designated_version
    assert (first.slug, first.status, first.workspace_id) == (
        "support", "active", str(tenant.workspace.pk),
    )  # fmt: skip
    assert (made.version, made.system_prompt, made.creator_id) == (1, "Be kind.", actor)
    assert made.config == {"model": "acme/falcon", "temperature": 0.25}
    second: Any = presets.create_presets_responses(
        slug="support", input="Hi", instructions="Be brief.", top_p=0.5
    ).data
    assert second.designated_version.config == {"top_p": 0.5}
    assert presets.get(slug="support").data == second
    page: Any = presets.list()
    assert [(row.slug, row.designated_version_id) for row in page.result.data] == [
        ("support", second.designated_version_id)
    ]
    versions: Any = presets.list_versions(slug="support")
    assert versions.result.data == [second.designated_version, made]
    assert presets.get_version(slug="support", version="1").data == made
    with pytest.raises(errors.NotFoundResponseError):
        presets.get(slug="nobody")


def test_the_default_workspace_is_deleted_on_confirmation(manager: OpenRouter) -> None:
    with pytest.raises(errors.BadRequestResponseError):
        manager.workspaces.delete(id="default")
    gone = manager.workspaces.delete(id="default", confirm_default_workspace_deletion=True)
    assert gone.DELETED is True


def test_a_taken_slug_is_a_bad_request(manager: OpenRouter) -> None:
    with pytest.raises(errors.BadRequestResponseError) as caught:
        manager.workspaces.create(name="Again", slug="default")
    assert caught.value.data.error.metadata == {
        "error_type": "invalid_request",
        "fields": {"slug": "Is taken by another workspace."},
    }


def test_members_of_a_workspace_are_added_and_removed(manager: OpenRouter, tenant: Tenant) -> None:
    workspaces = manager.workspaces
    member = make_member(tenant.organization, role=Member.Role.ADMIN)
    workspaces.create(name="Research", slug="research")
    added = workspaces.bulk_add_members(id="research", user_ids=[str(member.pk)])
    [place] = added.data
    assert (added.added_count, place.user_id, place.role) == (1, str(member.pk), "admin")
    listed: Any = workspaces.list_members(id="research")
    assert (listed.result.total_count, listed.result.data) == (1, [place])
    everybody: Any = workspaces.list_members(id="default")
    assert [row.user_id for row in everybody.result.data] == [str(member.pk)]
    removed = workspaces.bulk_remove_members(id="research", user_ids=[str(member.pk)])
    assert removed.removed_count == 1


def test_budgets_are_set_shown_and_deleted(manager: OpenRouter, tenant: Tenant) -> None:
    workspaces = manager.workspaces
    set_ = workspaces.set_budget(
        workspace_ref="default", interval="daily", limit_usd=1.5, include_byok_in_budgets=True
    )
    assert set_.include_byok_in_budgets is True
    assert set_.data.model_dump() == {
        "id": set_.data.id,
        "workspace_id": str(tenant.workspace.pk),
        "limit_usd": 1.5,
        "reset_interval": "daily",
        "created_at": set_.data.created_at,
        "updated_at": set_.data.updated_at,
    }
    got = workspaces.get_budget(workspace_ref="default", interval="daily")
    assert (got.data, got.include_byok_in_budgets) == (set_.data, True)
    with pytest.raises(errors.BadRequestResponseError):
        workspaces.set_budget(workspace_ref="default", interval="lifetime", limit_usd=1.5)
    lifetime = workspaces.set_budget(workspace_ref="default", interval="lifetime", limit_usd=2).data
    assert lifetime.reset_interval is None
    assert workspaces.list_budgets(workspace_ref="default").data == [set_.data, lifetime]
    for _ in range(2):
        gone = workspaces.delete_budget(workspace_ref="default", interval="daily")
        assert gone.DELETED is True
    with pytest.raises(errors.NotFoundResponseError):
        workspaces.get_budget(workspace_ref="default", interval="daily")


@pytest.fixture
def wanted(db: None) -> dict[str, Any]:
    factories.make_model("acme/falcon")
    factories.make_provider("acme")
    return {
        "name": "Strict",
        "description": "For trials",
        "allowed_models": ["acme/falcon"],
        "ignored_providers": ["acme"],
        "allowed_data_regions": ["europe"],
        "content_filters": [{"action": "block", "pattern": "secret"}],
        "content_filter_builtins": [{"action": "redact", "slug": "email"}],
        "enforce_zdr": True,
        "enforce_zdr_xai": False,
        "enable_paid_model_training": False,
        "limit_usd": 10,
        "reset_interval": "monthly",
        "include_byok_in_budgets": True,
    }


def test_a_guardrail_is_created_changed_and_deleted(
    manager: OpenRouter, tenant: Tenant, wanted: dict[str, Any]
) -> None:
    guardrails = manager.guardrails
    made: Any = guardrails.create(**wanted).data
    assert made.workspace_id == str(tenant.workspace.pk)
    assert made.allowed_models == ["acme/falcon-2026-01-01"]
    assert (made.ignored_providers, made.allowed_providers) == (["acme"], None)
    assert made.allowed_data_regions == ["europe"]
    assert (made.enforce_zdr_openai, made.enforce_zdr_xai) == (True, False)
    assert (made.limit_usd, made.reset_interval) == (10.0, "monthly")
    assert [row.model_dump() for row in made.content_filters] == [
        {"action": "block", "pattern": "secret", "label": None}
    ]
    assert [row.label for row in made.content_filter_builtins] == ["[EMAIL]"]
    assert guardrails.get(id=made.id).data == made
    changed = guardrails.update(
        id=made.id, content_filters=None, limit_usd=None, reset_interval=None, name="Loose"
    ).data
    assert (changed.name, changed.content_filters, changed.limit_usd) == ("Loose", None, None)
    page: Any = guardrails.list(workspace_id=str(tenant.workspace.pk))
    assert (page.result.total_count, page.result.data) == (1, [changed])
    assert guardrails.delete(id=made.id).DELETED is True
    with pytest.raises(errors.NotFoundResponseError):
        guardrails.get(id=made.id)


def test_the_first_update_creates_the_default_guardrail(
    manager: OpenRouter, tenant: Tenant
) -> None:
    default_id = manager.workspaces.get(id="default").data.default_guardrail_id
    with pytest.raises(errors.NotFoundResponseError):
        manager.guardrails.get(id=default_id)
    made = manager.guardrails.update(id=default_id, allowed_data_regions=["us"]).data
    assert (made.id, made.workspace_id) == (default_id, str(tenant.workspace.pk))
    assert manager.api_keys.get_current_key_metadata().data.allowed_data_regions == ["us"]


def test_guardrails_are_assigned_to_keys_and_members_and_removed(
    manager: OpenRouter, tenant: Tenant, actor: str
) -> None:
    guardrails = manager.guardrails
    guardrail = guardrails.create(name="Strict").data
    member = make_member(tenant.organization)
    key = make_key(tenant, creator=member)
    hashes, ids = [key.digest], [str(member.pk)]
    assert guardrails.bulk_assign_keys(id=guardrail.id, key_hashes=hashes).assigned_count == 1
    assert guardrails.bulk_assign_members(id=guardrail.id, member_user_ids=ids).assigned_count == 1
    keys: Any = guardrails.list_guardrail_key_assignments(id=guardrail.id)
    every_key: Any = guardrails.list_key_assignments()
    [row] = keys.result.data
    assert every_key.result.data == [row]
    assert row.model_dump() == {
        "id": row.id,
        "guardrail_id": guardrail.id,
        "key_hash": key.digest,
        "key_name": "key",
        "key_label": key.label,
        "assigned_by": actor,
        "created_at": row.created_at,
    }
    members: Any = guardrails.list_guardrail_member_assignments(id=guardrail.id)
    every_member: Any = guardrails.list_member_assignments()
    [place] = members.result.data
    assert every_member.result.data == [place]
    assert place.model_dump() == {
        "id": place.id,
        "guardrail_id": guardrail.id,
        "organization_id": str(tenant.organization.pk),
        "user_id": str(member.pk),
        "assigned_by": actor,
        "created_at": place.created_at,
    }
    keys_lost = guardrails.bulk_unassign_keys(id=guardrail.id, key_hashes=hashes)
    members_lost = guardrails.bulk_unassign_members(id=guardrail.id, member_user_ids=ids)
    assert (keys_lost.unassigned_count, members_lost.unassigned_count) == (1, 1)
    with pytest.raises(errors.NotFoundResponseError):
        guardrails.bulk_assign_keys(id=guardrail.id, key_hashes=["0" * 64])


def test_the_organization_shows_its_members_and_settings(
    manager: OpenRouter, tenant: Tenant
) -> None:
    member = make_member(tenant.organization, first_name="Ada")
    listed: Any = manager.organization.list_members()
    assert [row.model_dump() for row in listed.result.data] == [
        {
            "id": str(member.pk),
            "email": member.email,
            "first_name": "Ada",
            "last_name": None,
            "role": "org:member",
        }
    ]
    settings = manager.organization.get_settings().data
    assert settings.is_filtered_model_catalog_enabled is False
    changed = manager.organization.update_settings(is_filtered_model_catalog_enabled=True).data
    assert changed.model_dump() == {
        "id": str(tenant.organization.pk),
        "is_filtered_model_catalog_enabled": True,
    }


def test_a_key_is_created_for_a_member(manager: OpenRouter, tenant: Tenant) -> None:
    member = make_member(tenant.organization)
    made = manager.api_keys.create(name="Hers", creator_user_id=str(member.pk))
    assert made.data.creator_user_id == str(member.pk)
    assert manager.api_keys.get(hash=made.data.hash).data.creator_user_id == str(member.pk)


def test_management_operations_refuse_an_inference_key(
    openrouter_client: MakeOpenRouter, tenant: Tenant
) -> None:
    caller = openrouter_client(tenant.api_key)
    for call in (
        caller.workspaces.list,
        caller.guardrails.list,
        caller.organization.list_members,
        caller.organization.get_settings,
    ):
        # Some versions of the SDK declare no 403 for some of these operations.
        with pytest.raises(errors.OpenRouterError) as caught:
            call()
        assert caught.value.status_code == 403


RECEIVER: dict[str, Any] = {
    "endpoint": "https://otel.example/v1/traces",
    "headers": {"Authorization": SECRET},
}
FILTER_RULES: dict[str, Any] = {
    "groups": [
        {
            "logic": "or",
            "rules": [
                {"field": "model", "operator": "starts_with", "value": "acme/"},
                {"field": "total_cost", "operator": "gt", "value": 0.5},
                {"field": "session_id", "operator": "exists"},
            ],
        }
    ]
}


def make_traces(manager: OpenRouter, **fields: Any) -> Any:
    fields = {"name": "Traces", "type_": "otel-collector", "config": RECEIVER, **fields}
    return manager.observability.create(**{"privacy_mode": True, **fields}).data


def test_a_destination_is_created_shown_changed_and_deleted(
    manager: OpenRouter, tenant: Tenant
) -> None:
    observability, key = manager.observability, make_key(tenant)
    made = make_traces(
        manager,
        api_key_hashes=[key.digest],
        broadcast_generation_cost=True,
        filter_rules=FILTER_RULES,
        regions=["eu"] if "regions" in inspect.signature(observability.create).parameters else None,
        sampling_rate=0.5,
    )
    assert made.type == "otel-collector"
    assert made.config.model_dump() == {**RECEIVER, "headers": {"Authorization": MASK}}
    assert (made.name, made.enabled, made.privacy_mode, made.sampling_rate) == (
        "Traces", True, True, 0.5,
    )  # fmt: skip
    assert (made.broadcast_generation_cost, made.broadcast_generation_identity) == (True, False)
    assert made.workspace_id == str(tenant.workspace.pk)
    assert made.api_key_hashes == [key.digest]
    assert made.filter_rules.groups[0].rules[1].value == 0.5
    assert observability.get(id=made.id).data == made

    changed = observability.update(
        id=made.id, name="More", enabled=False, api_key_hashes=None, filter_rules=None,
        config={"headers": {"Authorization": MASK, "X-Data": "a"}},
    ).data  # fmt: skip
    assert (changed.name, changed.enabled, changed.filter_rules) == ("More", False, None)
    stored = BroadcastDestination.objects.get()
    assert stored.receiver().headers == {"Authorization": SECRET, "X-Data": "a"}
    assert observability.delete(id=made.id).DELETED is True
    with pytest.raises(errors.NotFoundResponseError):
        observability.get(id=made.id)


def test_pages_of_a_workspace(manager: OpenRouter, tenant: Tenant) -> None:
    hook = {"url": "https://hooks.example/in", "method": "PUT"}
    first, second = make_traces(manager), make_traces(manager, type_="webhook", config=hook)
    page: Any = manager.observability.list(limit=1)
    assert (page.result.total_count, page.result.data) == (2, [first])
    following: Any = page.next()
    assert following.result.data == [second]
    assert second.config.method == "PUT"
    named: Any = manager.observability.list(workspace_id=str(tenant.workspace.pk))
    assert named.result.data == [first, second]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"type_": "langfuse"}, "type"),
        ({"config": {"endpoint": "https://10.0.0.1"}}, "config.endpoint"),
        # What the SDK sends by default: texts are never broadcast.
        ({"privacy_mode": False}, "privacy_mode"),
    ],
)
def test_what_is_not_done_is_refused_by_name(
    manager: OpenRouter, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(errors.BadRequestResponseError) as caught:
        make_traces(manager, **fields)
    assert [*caught.value.data.error.metadata["fields"]] == [field]
    assert not BroadcastDestination.objects.exists()


def test_a_sixth_destination_of_a_type_is_a_conflict(manager: OpenRouter) -> None:
    for _ in range(5):
        make_traces(manager)
    with pytest.raises(errors.ConflictResponseError):
        make_traces(manager)
