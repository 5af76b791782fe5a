"""Keys that read stored texts: each reading is audited, and no key of an operator reads any."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from accounts.models import ApiKey
from config.audit.context import READING
from config.models import AuditEntry
from config.secrets import digest_api_key
from tests.support import factories
from tests.support.database.snapshots import unchanged
from tests.support.factories import Tenant
from tests.support.inference.site import Site
from tests.support.texts.logged import ask_content, wait_until_stored

CANARY = "canary 71d2 between two words"


def send(site: Site, key: str) -> str:
    """Sends a request whose text is then stored; returns the id of its generation."""
    answer = site.post(site.chat_body(CANARY), key=key)
    assert answer.status_code == 200, answer.text
    wait_until_stored(site)
    return str(answer.headers["X-Generation-Id"])


def create_in_console(operator: Client, tenant: Tenant, *, is_management: bool) -> str:
    form = {
        "workspace": str(tenant.workspace.pk), "name": "issued", "expires_at_0": "",
        "expires_at_1": "", "creator": "", **({"is_management": "on"} if is_management else {}),
    }  # fmt: skip
    shown = operator.post(reverse("admin:accounts_apikey_add"), form)
    [key] = re.findall(r'id="api-key"[^>]*>([sm]k-cw-\w+)<', shown.content.decode())
    return str(key)


def create_by_command(capsys: Any, tenant: Tenant, *, is_management: bool) -> str:
    flags = ["--management"] if is_management else []
    call_command("create_api_key", str(tenant.organization.pk), *flags, "--json")
    return str(json.loads(capsys.readouterr().out)["key"])


def create_by_api(key: str) -> str:
    made = factories.client(key).post("/api/v1/keys", {"name": "made"}, format="json")
    assert made.status_code == 201, made.content
    return str(made.json()["key"])


def rotate(key: str, *, by: str) -> str:
    path = f"/api/v1/keys/{digest_api_key(key)}/rotate"
    rotated = factories.client(by).post(path, {"overlap_seconds": 600}, format="json")
    assert rotated.status_code == 201, rotated.content
    return str(rotated.json()["key"])


def test_each_reading_by_a_key_is_audited(storing: Site) -> None:
    tenant = storing.tenant
    made = create_by_api(tenant.management_key)
    generation_id = send(storing, made)
    for key in (made, tenant.management_key):
        answer = ask_content(storing, generation_id, key=key)
        assert answer.status_code == 200, answer.text
        assert CANARY in answer.text
    assert ask_content(storing, generation_id).status_code == 404
    entries = AuditEntry.objects.filter(kind=READING).order_by("id")
    labels = [ApiKey.objects.get(name=name).label for name in ("made", "management")]
    assert [entry.actor for entry in entries] == [f"key {label}" for label in labels]
    for entry in entries:
        assert (entry.object_id, entry.organization_id) == (generation_id, tenant.organization.pk)
        assert (entry.action, entry.after) == (
            "GET /api/v1/generation/content", {"outcome": "shown"},
        )  # fmt: skip


@pytest.mark.parametrize("place", ["console", "command"])
def test_no_key_that_an_operator_issued_leads_to_a_text(
    storing: Site, operator: Client, capsys: Any, place: str
) -> None:
    tenant = storing.tenant

    def create(*, is_management: bool) -> str:
        if place == "console":
            return create_in_console(operator, tenant, is_management=is_management)
        return create_by_command(capsys, tenant, is_management=is_management)

    management, inference = create(is_management=True), create(is_management=False)
    made = create_by_api(management)
    victim = create_by_api(tenant.management_key)
    generation_id = send(storing, inference)
    keys = [management, inference, made]
    keys += [rotate(key, by=management) for key in (management, inference, victim)]
    with unchanged():
        for key in keys:
            answer = ask_content(storing, generation_id, key=key)
            assert (answer.status_code, CANARY in answer.text) == (403, False)
            error = answer.json()["error"]
            assert error["metadata"]["error_type"] == "stored_texts_forbidden"
            assert "an operator issued it" in error["message"]
            # Nothing is learned about which generations exist.
            assert ask_content(storing, "gen-unknown", key=key).json() == answer.json()
    assert ask_content(storing, generation_id, key=tenant.management_key).status_code == 200


def test_a_rotated_key_keeps_what_it_and_its_rotator_have(storing: Site) -> None:
    tenant = storing.tenant
    generation_id = send(storing, tenant.api_key)
    inference = rotate(tenant.api_key, by=tenant.management_key)
    management = rotate(tenant.management_key, by=tenant.management_key)
    for key in (inference, management, tenant.api_key, tenant.management_key):
        assert ask_content(storing, generation_id, key=key).status_code == 200


def test_keys_of_a_file_read_no_text(logged: Site, tmp_path: Path) -> None:
    file, output = tmp_path / "keys.csv", tmp_path / "made.csv"
    own = "another-gateways-secret-0123456789"
    file.write_text(f"name,key\nimported,{own}\nmade,\n")
    organization_id = str(logged.tenant.organization.pk)
    call_command("import_keys", organization_id, str(file), output=str(output))
    logged.publish()
    generation_id = send(logged, own)
    assert ask_content(logged, generation_id, key=own).status_code == 403
    made = ApiKey.objects.filter(name__in=("imported", "made"))
    assert list(made.values_list("issued_by_operator", flat=True)) == [True, True]


def test_keys_of_a_new_organization_read_its_texts(db: None, capsys: Any) -> None:
    call_command("create_organization", "Fresh", "--json")
    capsys.readouterr()
    assert not ApiKey.objects.filter(issued_by_operator=True).exists()
