"""``/presets``: a preset is made from an inference body, in versions, by management keys."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest
from rest_framework.test import APIClient

from accounts.models import Preset, PresetVersion
from accounts.models import presets as models
from config.api.errors import InvalidRequest
from inference.models import Generation
from tests.support import factories
from tests.support.database import snapshots
from tests.support.database.locks import beside, locked, waiting
from tests.support.factories import Tenant
from tests.support.governance import (
    make_preset,
    make_workspace,
    refused,
    send,
    stamp,
)
from tests.support.machine.waiting import wait_until

ROUTE = "/api/v1/presets"
CHAT: dict[str, Any] = {
    "model": "acme/falcon",
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "Hi"},
    ],
    "temperature": 0.25,
    "provider": {"sort": "price"},
    "stream": True,
    "user": "ada",
    "session_id": "s",
    "trace": {"a": 1},
}
IMAGE = {"type": "image_url", "image_url": {"url": "https://images.example/a.png"}}
KEPT = {"model": "acme/falcon", "temperature": 0.25, "provider": {"sort": "price"}}


def version_of(version: PresetVersion) -> dict[str, Any]:
    return {
        "id": str(version.pk),
        "preset_id": str(version.preset_id),
        "version": version.version,
        "config": json.loads(version.config),
        "system_prompt": version.system_prompt,
        "creator_id": version.created_by,
        "created_at": stamp(version.created_at),
        "updated_at": stamp(version.updated_at),
    }


def shown(preset: Preset, *, is_whole: bool = True) -> dict[str, Any]:
    preset.refresh_from_db()
    version = preset.designated_version
    assert version is not None
    moved = preset.status_updated_at
    return {
        "id": str(preset.pk),
        "slug": preset.slug,
        "name": preset.name,
        "description": preset.description,
        "status": preset.status,
        "workspace_id": str(preset.workspace_id),
        "creator_user_id": None,
        "designated_version_id": str(version.pk),
        "created_at": stamp(preset.created_at),
        "updated_at": stamp(preset.updated_at),
        "status_updated_at": None if moved is None else stamp(moved),
        **({"designated_version": version_of(version)} if is_whole else {}),
    }


def test_a_chat_body_makes_a_preset_and_sends_nothing(management: APIClient) -> None:
    answer = send(management, "POST", "presets/support/chat/completions", CHAT)
    assert answer.status_code == 200
    preset = Preset.objects.get()
    assert answer.json() == {"data": shown(preset)}
    version = PresetVersion.objects.get()
    assert (json.loads(version.config), version.version) == (KEPT, 1)
    assert version.system_prompt == "Be kind.\n\nBe brief."
    assert not Generation.objects.exists()


@pytest.mark.parametrize(
    ("face", "body", "config", "system"),
    [
        ("chat/completions", {}, {}, None),
        ("chat/completions", {"tools": [], "seed": 7}, {"tools": [], "seed": 7}, None),
        ("messages", {"system": "Be kind.", "temperature": 1}, {"temperature": 1}, "Be kind."),
        ("messages", {"model": "a/b", "max_tokens": 5}, {"model": "a/b", "max_tokens": 5}, None),
        ("responses", {"instructions": "Be kind.", "top_p": 0.5}, {"top_p": 0.5}, "Be kind."),
        ("responses", {"model": "a/b", "input": "Hi", "max_output_tokens": 9},
         {"model": "a/b", "max_tokens": 9}, None),
    ],
)  # fmt: skip
def test_every_face_makes_presets(
    management: APIClient, face: str, body: dict[str, Any], config: Any, system: str | None
) -> None:
    answer = send(management, "POST", f"presets/support/{face}", body)
    assert answer.status_code == 200, answer.content
    version = answer.json()["data"]["designated_version"]
    assert ({**version["config"]}, version["system_prompt"]) == (config, system)


def test_the_same_slug_adds_a_version(management: APIClient) -> None:
    send(management, "POST", "presets/support/chat/completions", {"temperature": 0.25})
    answer = send(management, "POST", "presets/support/chat/completions", {"temperature": 0.5})
    preset = Preset.objects.get()
    assert answer.json() == {"data": shown(preset)}
    first, second = preset.versions.order_by("version")
    assert preset.designated_version == second
    assert management.get(f"{ROUTE}/support/versions").json() == {
        "data": [version_of(second), version_of(first)], "total_count": 2,
    }  # fmt: skip
    assert management.get(f"{ROUTE}/support/versions/1").json() == {"data": version_of(first)}
    for number in ("0", "3", "-1", "x", "1.0", "9" * 30, "9" * 5_000, "²"):
        assert management.get(f"{ROUTE}/support/versions/{number}").status_code == 404


@pytest.mark.parametrize(
    ("face", "body", "field"),
    [
        ("chat/completions", {"temperature": 3}, "temperature"),
        ("chat/completions", {"transforms": ["middle"]}, "transforms"),
        ("chat/completions", {"preset": "other"}, "preset"),
        ("chat/completions", {"model": "@preset/other"}, "model"),
        ("chat/completions", {"models": ["@preset/other"]}, "models"),
        ("chat/completions", {"messages": [{"role": "system", "content": [IMAGE]}]},
         "messages"),
        ("chat/completions", {"messages": [{"role": "system", "content": "a\0"}]},
         "messages"),
        ("messages", {"system": "a\0"}, "messages"),
        ("messages", {"temperature": 2}, "temperature"),
        ("responses", {"store": True}, "store"),
    ],
)  # fmt: skip
def test_a_body_that_the_face_refuses_makes_no_preset(
    management: APIClient, face: str, body: dict[str, Any], field: str
) -> None:
    with snapshots.unchanged():
        answer = send(management, "POST", f"presets/support/{face}", body)
    assert refused(answer) == (400, {field})


@pytest.mark.django_db(transaction=True)
def test_a_version_of_a_preset_that_is_deleted_meanwhile_is_refused(
    management: APIClient, tenant: Tenant
) -> None:
    preset = make_preset(tenant.workspace)
    path = "presets/support/chat/completions"
    with ExitStack() as threads, locked(Preset.objects.filter(pk=preset.pk)):
        threads.enter_context(beside(preset.remove))
        wait_until(lambda: waiting() == 1, "the deletion does not wait")
        client = factories.client(tenant.management_key)
        stored = threads.enter_context(beside(lambda: send(client, "POST", path, {})))
        wait_until(lambda: waiting() == 2, "the version does not wait")
    assert stored.result().status_code == 404
    assert not Preset.objects.exists()


@pytest.mark.parametrize("slug", ["A", "a b", "a--b", "-a", "a.b", "é", "x" * 65])
def test_a_bad_slug_is_refused(management: APIClient, slug: str) -> None:
    answer = send(management, "POST", f"presets/{slug}/chat/completions", {})
    assert refused(answer) == (400, {"slug"})
    assert management.get(f"{ROUTE}/{slug}").status_code == 404


@pytest.mark.parametrize("body", ["[]", "5", "{", '{"a": 1, "a": 2}', "\udcff"])
def test_a_malformed_body_is_refused(management: APIClient, body: str) -> None:
    answer = management.post(
        f"{ROUTE}/support/chat/completions",
        data=body.encode(errors="surrogateescape"),
        content_type="application/json",
    )
    assert answer.status_code == 400
    assert not Preset.objects.exists()


def test_a_preset_is_changed_and_deleted(management: APIClient) -> None:
    for temperature in (0.25, 0.5):
        send(management, "POST", "presets/support/chat/completions", {"temperature": temperature})
    preset = Preset.objects.get()
    for change, name, value in (
        ({"name": "Support desk"}, "name", "Support desk"),
        ({"description": "For all"}, "description", "For all"),
        ({"description": None}, "description", None),
        ({"status": "disabled"}, "status", "disabled"),
        ({"status": "archived", "name": "Old"}, "name", "Old"),
        ({"status": "active"}, "status", "active"),
    ):
        answer = send(management, "PATCH", "presets/support", change)
        assert answer.json() == {"data": shown(preset)}
        assert answer.json()["data"][name] == value
    send(management, "PATCH", "presets/support", {"designated_version": 1})
    preset.refresh_from_db()
    assert preset.designated_version is not None
    assert preset.designated_version.version == 1
    with snapshots.unchanged():
        for change, field in (
            ({"designated_version": 3}, "designated_version"),
            ({"designated_version": 0}, "designated_version"),
            ({"status": "gone"}, "status"),
            ({"name": ""}, "name"),
            ({"name": None}, "name"),
            ({"name": "Other", "designated_version": 3}, "designated_version"),
        ):
            assert refused(send(management, "PATCH", "presets/support", change)) == (400, {field})
        assert send(management, "PATCH", "presets/support", {}).status_code == 400
    assert management.delete(f"{ROUTE}/support").json() == {"deleted": True}
    assert not PresetVersion.objects.exists()
    assert management.get(f"{ROUTE}/support").status_code == 404


def test_presets_are_listed_by_workspace(management: APIClient, tenant: Tenant) -> None:
    other = make_workspace(tenant.organization)
    for slug in ("one", "two"):
        send(management, "POST", f"presets/{slug}/chat/completions", {})
    path = f"presets/one/chat/completions?workspace_id={other.pk}"
    assert send(management, "POST", path, {}).status_code == 200
    mine = Preset.objects.filter(workspace=tenant.workspace).order_by("created_at")
    assert management.get(ROUTE).json() == {
        "data": [shown(preset, is_whole=False) for preset in mine], "total_count": 2,
    }  # fmt: skip
    elsewhere = Preset.objects.get(workspace=other)
    assert management.get(f"{ROUTE}?workspace_id={other.pk}").json() == {
        "data": [shown(elsewhere, is_whole=False)], "total_count": 1,
    }  # fmt: skip
    assert management.get(f"{ROUTE}/one?workspace_id={other.pk}").json() == {
        "data": shown(elsewhere)
    }
    for query in ("workspace_id=x", f"workspace_id={other.organization_id}"):
        assert management.get(f"{ROUTE}?{query}").status_code in (400, 404)


def test_presets_of_another_organization_are_not_found(management: APIClient) -> None:
    stranger = factories.make_tenant()
    Preset.objects.store_version(
        stranger.workspace, "support", config="{}", system_prompt=None, by="x"
    )
    with snapshots.unchanged():
        for method, path in (
            ("GET", "presets/support"),
            ("GET", "presets/support/versions"),
            ("GET", "presets/support/versions/1"),
            ("PATCH", "presets/support"),
            ("DELETE", "presets/support"),
            ("GET", f"presets?workspace_id={stranger.workspace.pk}"),
            ("POST", f"presets/x/chat/completions?workspace_id={stranger.workspace.pk}"),
        ):
            assert send(management, method, path, {"name": "x"}).status_code == 404, path


def test_inference_keys_manage_no_presets(inference: APIClient) -> None:
    assert inference.get(ROUTE).status_code == 403
    assert send(inference, "POST", "presets/x/chat/completions", {}).status_code == 403


def test_the_size_and_the_numbers_are_bounded(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store(slug: str = "support", text: str = "{}", system: str | None = None) -> None:
        Preset.objects.store_version(
            tenant.workspace, slug, config=text, system_prompt=system, by="x"
        )

    most = models.MAX_VERSION_BYTES
    store(text=" " * (most - 2), system="é")
    with pytest.raises(InvalidRequest, match="Has 65,537 bytes; a preset has at most 65,536"):
        store(text=" " * (most - 1), system="é")
    monkeypatch.setattr(models, "MAX_VERSIONS", 2)
    store()
    with pytest.raises(InvalidRequest, match="at most 2 versions"):
        store()
    monkeypatch.setattr(models, "MAX_PRESETS", 2)
    store("second")
    with pytest.raises(InvalidRequest, match="at most 2 presets"):
        store("third")
    assert (Preset.objects.count(), PresetVersion.objects.count()) == (2, 3)
