from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import IntegrityError, connection

from catalog.models import Provider
from config.audit.entries import AuditEntry
from tests.support.factories import Tenant


def test_command_is_audited(tenant: Tenant, monkeypatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    call_command("grant_credits", str(tenant.organization.pk), "5", "--json")

    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action, entry.kind) == (
        "command grant_credits by ann",
        "command grant_credits",
        "billing.transfer",
    )


def test_import_is_one_entry(tenant: Tenant, tmp_path: Path) -> None:
    file = tmp_path / "users.csv"
    file.write_text("user\nann\nbob\n")
    call_command("import_end_users", str(tenant.organization.pk), str(file), "--dry-run")
    assert not AuditEntry.objects.exists()
    call_command("import_end_users", str(tenant.organization.pk), str(file))

    entry = AuditEntry.objects.get()
    assert (entry.kind, entry.organization_id) == ("import", tenant.organization.pk)
    assert json.loads(json.dumps(entry.after))["dry_run"] is False


def test_commands_for_operators_are_audited(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "a long enough password")
    call_command("createsuperuser", "--noinput", "--username", "eve", "--email", "e@example.com")
    monkeypatch.setattr("getpass.getpass", lambda prompt: "another long password")
    call_command("changepassword", "eve")

    assert User.objects.get().check_password("another long password")
    entries = AuditEntry.objects.order_by("id")
    assert [(entry.actor, entry.kind, entry.change) for entry in entries] == [
        ("command createsuperuser by ann", "auth.user", "created"),
        ("command changepassword by ann", "auth.user", "changed"),
    ]


def test_import_that_cannot_be_recorded_changes_nothing(db: None, tmp_path: Path) -> None:
    file = tmp_path / "catalogue.json"
    policy = {"training": False, "retains_prompts": False}
    provider = {"slug": "acme", "name": "Acme", "dialect": "openai", "data_policy": policy}
    file.write_text(json.dumps({"providers": [provider | {"base_url": "https://acme.example"}]}))
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE config_auditentry ADD CHECK (kind <> 'import') NOT VALID")
    with pytest.raises(IntegrityError):
        call_command("import_catalog", str(file))

    assert not Provider.objects.exists()
    assert not AuditEntry.objects.exists()
