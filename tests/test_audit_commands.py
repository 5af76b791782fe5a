from __future__ import annotations

import json
from pathlib import Path

from django.core.management import call_command

from config.models import AuditEntry
from tests.factories import Tenant


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
