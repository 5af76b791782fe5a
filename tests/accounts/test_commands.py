"""``create_organization`` and ``create_api_key``: their output and exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.db import connection

from accounts.models import ApiKey, Organization, Workspace
from config.secrets import digest_api_key, is_well_formed
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant


def run(*arguments: str) -> tuple[str, str]:
    """Runs a command in this process; returns its standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    call_command(*arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def refused(*arguments: str) -> tuple[int, str]:
    """Runs a command that must fail; returns its exit code and message."""
    out = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command(*arguments, stdout=out, stderr=io.StringIO())
    assert out.getvalue() == ""
    return caught.value.returncode, str(caught.value)


def test_create_organization_prints_one_json_object(db: None) -> None:
    out, err = run("create_organization", "Acme Ltd.", "--json")
    result = json.loads(out)
    organization = Organization.objects.get()
    workspace = Workspace.objects.get()
    assert list(result) == ["organization_id", "workspace_id", "management_key", "api_key"]
    assert result["organization_id"] == str(organization.pk)
    assert result["workspace_id"] == str(workspace.pk)
    assert (organization.name, organization.slug) == ("Acme Ltd.", "acme-ltd")
    assert organization.endpoint_limit is None
    assert (workspace.organization, workspace.is_default) == (organization, True)
    for name, is_management in (("management_key", True), ("api_key", False)):
        assert is_well_formed(result[name])
        key = ApiKey.objects.get(digest=digest_api_key(result[name]))
        assert (key.is_management, key.workspace) == (is_management, workspace)
    assert ApiKey.objects.count() == 2
    assert err == "The keys cannot be shown again; keep them now.\n"


def test_create_organization_prints_one_line_per_value_without_json(db: None) -> None:
    out, _ = run("create_organization", "Acme", "--endpoint-limit", "0")
    names = [line.partition(": ")[0] for line in out.splitlines()]
    assert names == ["organization_id", "workspace_id", "management_key", "api_key"]
    assert Organization.objects.get().endpoint_limit == 0


def test_two_organizations_may_have_the_same_name(db: None) -> None:
    run("create_organization", "Acme", "--json")
    run("create_organization", "Acme", "--json")
    slugs = list(Organization.objects.order_by("created_at").values_list("slug", flat=True))
    assert slugs[0] == "acme"
    assert slugs[1] == "acme-" + slugs[1].removeprefix("acme-")
    assert len(slugs[1]) == len("acme-01234567")


@pytest.mark.parametrize("name", ["株式会社", "---", "a" * 255])
def test_create_organization_accepts_a_name(db: None, name: str) -> None:
    run("create_organization", "--json", "--", name)
    assert Organization.objects.get().name == name


def test_create_organization_refuses_what_a_limit_does_not_allow(
    db: None, settings: LazySettings
) -> None:
    settings.ORGANIZATION_MAX_KEYS = 1
    message = (
        "organization_limit_reached: ORGANIZATION_MAX_KEYS is 1 for this organization, which has 1 "
        "API keys; 1 more would be too many. Delete some first, or ask the operator for a higher "
        "limit."
    )
    with snapshots.unchanged():
        assert refused("create_organization", "Acme", "--json") == (1, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            ([name], "The name needs 1 to 255 printable characters.")
            for name in ("", "  ", "a" * 256, "a\nb")
        ),
        (["A", "--endpoint-limit=-1"], "The endpoint limit must be from 0 to 1000000."),
        (["A", "--endpoint-limit=1000001"], "The endpoint limit must be from 0 to 1000000."),
    ],
)
def test_create_organization_refuses_invalid_arguments(
    db: None, arguments: list[str], message: str
) -> None:
    assert refused("create_organization", *arguments, "--json") == (1, message)
    assert Organization.objects.count() == 0


@pytest.mark.parametrize("is_management", [True, False])
def test_create_api_key_prints_one_json_object(tenant: Tenant, is_management: bool) -> None:
    options = ["--management"] if is_management else []
    owner = str(tenant.organization.pk)
    out, err = run("create_api_key", owner, *options, "--name", "CI", "--json")
    result = json.loads(out)
    assert list(result) == ["key", "hash", "name", "is_management"]
    assert is_well_formed(result["key"])
    assert result["hash"] == digest_api_key(result["key"])
    assert (result["name"], result["is_management"]) == ("CI", is_management)
    stored = ApiKey.objects.get(digest=result["hash"])
    assert (stored.name, stored.workspace) == ("CI", tenant.workspace)
    assert factories.client(result["key"]).get("/api/v1/key").status_code == 200
    assert err == "The key cannot be shown again; keep it now.\n"


def test_create_api_key_accepts_a_workspace(tenant: Tenant) -> None:
    other = Workspace.objects.create(organization=tenant.organization, name="Other", slug="other")
    owner = str(tenant.organization.pk)
    out, _ = run("create_api_key", owner, "--workspace", str(other.pk), "--json")
    assert ApiKey.objects.get(digest=json.loads(out)["hash"]).workspace == other


def test_create_api_key_refuses_invalid_arguments(tenant: Tenant) -> None:
    foreign = factories.make_tenant("Other").workspace
    organization = str(tenant.organization.pk)
    with snapshots.unchanged():
        assert refused("create_api_key", str(uuid4())) == (1, "There is no such organization.")
        absent = (1, "The workspace does not exist.")
        for workspace in (foreign.pk, uuid4()):
            assert refused("create_api_key", organization, "--workspace", str(workspace)) == absent
    tenant.workspace.close(confirm_default=True)
    with snapshots.unchanged():
        for arguments, message in (
            ([], "Name a --workspace: the organization has no default one."),
            (["--name", " "], "The name needs 1 to 255 printable characters."),
        ):
            assert refused("create_api_key", organization, *arguments) == (1, message)


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[2]
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=root,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["create_organization", "Acme", "--json"], 0),
        (["create_organization", "", "--json"], 1),
        (["create_organization"], 2),
    ],
)
def test_the_process_exits_with_the_expected_code(
    transactional_db: None, arguments: list[str], code: int
) -> None:
    address = urlsplit(os.environ["DATABASE_URL"])
    url = urlunsplit(address._replace(path=f"/{connection.settings_dict['NAME']}"))
    done = manage(*arguments, DATABASE_URL=url)
    assert done.returncode == code, done.stderr
    if code == 0:
        assert done.stdout.count("\n") == 1
        assert json.loads(done.stdout)["organization_id"] == str(Organization.objects.get().pk)
    else:
        assert done.stdout == ""
        assert done.stderr != ""
        assert Organization.objects.count() == 0
