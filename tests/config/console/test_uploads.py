"""Bulk files on the console: planned, confirmed, applied or refused, and exported again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connections
from django.test import AsyncClient, Client
from django.urls import reverse

from catalog import imports as catalogue
from catalog.models import LanguageModel, ModelEndpoint, Provider
from config.audit.entries import AuditEntry
from config.console.uploads import MAX_BYTES
from endpoints.models import Attestation, PrivateEndpoint
from endusers.models import EndUser
from inference.models import Generation
from tests.support import factories
from tests.support.console import listing, messages_of
from tests.support.database import snapshots
from tests.support.endpoints.creating import body_of
from tests.support.factories import Tenant

PAGES = (
    "endusers_enduser", "endpoints_privateendpoint", "catalog_provider", "catalog_languagemodel",
    "catalog_modelendpoint",
)  # fmt: skip
USERS = b"user,is_active\r\nann,false\r\nbob,\r\n"


def url(page: str, verb: str) -> str:
    return reverse(f"admin:{page}_{verb}_file")


def send(client: Client, page: str, name: str, content: bytes, tenant: Tenant | None = None) -> Any:
    form: dict[str, Any] = {"file": SimpleUploadedFile(name, content)}
    if tenant is not None:
        form["organization"] = str(tenant.organization.pk)
    return client.post(url(page, "import"), form)


def confirm(client: Client, page: str, planned: Any) -> Any:
    form = {"signed_upload": planned.context["signed_upload"]}
    return client.post(url(page, "import"), form, follow=True)


def content_of(response: Any) -> bytes:
    return b"".join(response.streaming_content)


def test_an_import_sends_no_stored_credential_to_another_host(
    operator: Client, tenant: Tenant
) -> None:
    provider = factories.make_provider("acme-ai", base_url="https://api.example.com/v1")
    factories.make_credential(tenant, provider)
    catalog = json.loads(catalogue.export()[0])
    [row] = catalog["providers"]
    row["base_url"] = "https://listener.example/v1"
    with snapshots.unchanged():
        refused = send(operator, "catalog_provider", "catalogue.json", json.dumps(catalog).encode())
        assert "signed_upload" not in refused.context
        text = "the provider acme-ai: The host changes, and credentials of organizations"
        assert text in refused.content.decode()
    row["base_url"] = "https://api.example.com/v2"
    planned = send(operator, "catalog_provider", "catalogue.json", json.dumps(catalog).encode())
    confirm(operator, "catalog_provider", planned)
    assert Provider.objects.get().base_url == "https://api.example.com/v2"


def test_end_users_are_planned_and_imported_when_confirmed(
    operator: Client, tenant: Tenant
) -> None:
    EndUser.objects.register(organization_id=tenant.organization.pk, user="ann")
    with snapshots.unchanged():
        planned = send(operator, "endusers_enduser", "users.csv", USERS, tenant)

        assert [row[:3] for row in planned.context["rows"]] == [
            ("end_users", "ann", "update"),
            ("end_users", "bob", "create"),
        ]
        assert planned.context["counts"] == [("end users", "1 new, 1 changed, 0 unchanged")]

    done = confirm(operator, "endusers_enduser", planned)

    assert messages_of(done) == ["The file was imported. end users: 1 new, 1 changed, 0 unchanged."]
    assert list(EndUser.objects.order_by("user").values_list("user", "is_active")) == [
        ("ann", False), ("bob", True),
    ]  # fmt: skip
    entry = AuditEntry.objects.get(kind="import")
    assert (entry.actor, entry.action, entry.organization_id, entry.after) == (
        "operator operator",
        "admin: import end users",
        tenant.organization.pk,
        {"created": {"end_users": 1}, "updated": {"end_users": 1}},
    )
    assert not AuditEntry.objects.filter(kind="endusers.enduser").exists()


def test_a_file_without_changes_has_no_import_button(operator: Client, tenant: Tenant) -> None:
    EndUser.objects.register(organization_id=tenant.organization.pk, user="ann")

    planned = send(operator, "endusers_enduser", "users.jsonl", b'{"user": "ann"}\n', tenant)

    assert planned.context["changes"] == 0
    text = planned.content.decode()
    assert "changes nothing: all its rows are already stored" in text
    assert ">Import</button>" not in text


def test_refusals_name_their_lines_and_change_nothing(operator: Client, tenant: Tenant) -> None:
    before = snapshots.everything()

    refused = send(operator, "endusers_enduser", "users.csv", USERS + b"ann,no\r\nann,\r\n", tenant)

    assert refused.context["refusals"] == [
        "line 4: is_active must be true, false or empty",
        "line 5: the same user as line 2",
    ]
    assert "signed_upload" not in refused.context
    assert snapshots.everything() == before


def test_private_endpoints_arrive_as_drafts(operator: Client, tenant: Tenant) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    factories.make_endpoint(model, provider)
    row = body_of(model, provider, upstream_model_id="m-1")
    content = json.dumps(row).encode()
    with snapshots.unchanged():
        planned = send(operator, "endpoints_privateendpoint", "e.jsonl", content, tenant)
        assert [row.outcome for row in planned.context["rows"]] == ["create"]
    confirm(operator, "endpoints_privateendpoint", planned)

    endpoint = PrivateEndpoint.objects.get()
    assert (endpoint.status, endpoint.organization_id, endpoint.upstream_model_id) == (
        "draft", tenant.organization.pk, "m-1",
    )  # fmt: skip
    declared = json.dumps({**row, "declared_zdr": True}).encode()
    planned = send(operator, "endpoints_privateendpoint", "e.jsonl", declared, tenant)
    confirm(operator, "endpoints_privateendpoint", planned)
    attestation = Attestation.objects.get()
    assert (attestation.declared_zdr, attestation.stated_by) == (True, "operator operator")
    refused = send(operator, "endpoints_privateendpoint", "e.jsonl", b"{}\n", tenant)
    assert refused.context["refusals"][0].startswith("line 1: ")


@pytest.mark.parametrize("page", PAGES[2:])
def test_every_list_of_the_catalogue_imports_its_file(operator: Client, page: str) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    factories.make_endpoint(model, provider)
    data, _ = catalogue.export()
    ModelEndpoint.objects.all().delete()
    Provider.objects.all().delete()
    LanguageModel.objects.all().delete()
    with snapshots.unchanged():
        planned = send(operator, page, "catalogue.json", data)
        assert [(row.kind, row.outcome) for row in planned.context["rows"]] == [
            ("providers", "create"), ("models", "create"), ("endpoints", "create"),
        ]  # fmt: skip
    confirm(operator, page, planned)

    assert catalogue.export()[0] == data
    refused = send(operator, page, "catalogue.json", b'{"providers": [{}]}')
    assert refused.context["refusals"] == ["providers[0]: Object missing required field `slug`"]


def test_confirm_refuses_rows_that_became_invalid_after_the_plan(operator: Client) -> None:
    small = factories.make_tenant("Small", endpoint_limit=1)
    model, provider = factories.make_model(), factories.make_provider()
    factories.make_endpoint(model, provider)
    row = body_of(model, provider, upstream_model_id="m-1")
    content = json.dumps(row).encode()
    planned = send(operator, "endpoints_privateendpoint", "e.jsonl", content, small)
    factories.make_draft(small, model, provider)
    with snapshots.unchanged():
        refused = confirm(operator, "endpoints_privateendpoint", planned)

        assert "which is its limit" in refused.context["refusals"][0]
    assert not AuditEntry.objects.filter(kind="import").exists()


def test_a_plan_is_valid_only_for_its_operator_and_page(operator: Client, tenant: Tenant) -> None:
    planned = send(operator, "endusers_enduser", "users.csv", USERS, tenant)
    other = Client()
    other.force_login(User.objects.create_superuser("other"))
    with snapshots.unchanged():
        for client, page, held in (
            (other, "endusers_enduser", planned.context["signed_upload"]),
            (operator, "endpoints_privateendpoint", planned.context["signed_upload"]),
            (operator, "endusers_enduser", planned.context["signed_upload"] + "x"),
            (operator, "endusers_enduser", ""),
        ):
            refused = client.post(url(page, "import"), {"signed_upload": held})
            assert "Send it again" in refused.context["refusals"][0]


@pytest.mark.parametrize(
    ("name", "content", "organization", "field"),
    [
        ("users.csv", USERS, "", "organization"),
        ("users.csv", USERS, "no-such", "organization"),
        ("users.csv", USERS, "5f0f3c0e-0d7b-4c8a-9a53-2b7ad0f4b2b1", "organization"),
        ("users.csv", b"", "{own}", "file"),
        ("users.csv", b"x" * (MAX_BYTES + 1), "{own}", "file"),
    ],
)
def test_an_incomplete_form_changes_nothing(
    operator: Client, tenant: Tenant, name: str, content: bytes, organization: str, field: str
) -> None:
    with snapshots.unchanged():
        form = {
            "file": SimpleUploadedFile(name, content),
            "organization": organization.replace("{own}", str(tenant.organization.pk)),
        }
        refused = operator.post(url("endusers_enduser", "import"), form)
        assert list(refused.context["form"].errors) == [field]


def test_a_file_that_is_too_large_is_sent_to_the_command_of_its_form(
    operator: Client, tenant: Tenant
) -> None:
    for address, command in (
        (url("endusers_enduser", "import"), "the import command"),
        (f"{listing(Generation)}reconcile-invoice/", "the command reconcile_invoice"),
    ):
        file = SimpleUploadedFile("users.csv", b"x" * (MAX_BYTES + 1))
        with snapshots.unchanged():
            refused = operator.post(address, {"file": file})
        text = f"The file is larger than 5 MiB. Use {command} instead."
        assert refused.context["form"].errors["file"] == [text]


def test_a_plan_counts_all_rows_and_shows_the_first(operator: Client, tenant: Tenant) -> None:
    lines = b"".join(b'{"user": "user %d"}\n' % number for number in range(501))

    planned = send(operator, "endusers_enduser", "users.jsonl", lines, tenant)

    assert (len(planned.context["rows"]), planned.context["hidden"]) == (500, 1)
    assert planned.context["counts"] == [("end users", "501 new, 0 changed, 0 unchanged")]
    confirm(operator, "endusers_enduser", planned)
    assert EndUser.objects.count() == 501


@pytest.mark.parametrize("page", PAGES)
def test_a_read_only_operator_may_export_but_not_import(viewer: Client, page: str) -> None:
    with snapshots.unchanged():
        assert viewer.get(url(page, "import")).status_code == 403
        assert send(viewer, page, "x", b"{}").status_code == 403
        assert viewer.post(url(page, "import"), {"signed_upload": "x"}).status_code == 403
    actions = viewer.get(reverse(f"admin:{page}_changelist")).context["actions_list"]
    assert [action["title"] for action in actions] == ["Export file"]
    assert viewer.get(url(page, "export")).status_code == 200


def test_an_upload_needs_the_token_of_its_page(tenant: Tenant) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("operator"))
    assert send(client, "endusers_enduser", "users.csv", USERS, tenant).status_code == 403
    assert not EndUser.objects.exists()


def test_importing_exported_end_users_changes_nothing(operator: Client, tenant: Tenant) -> None:
    for user in ("ann", "=1+1"):
        EndUser.objects.register(organization_id=tenant.organization.pk, user=user)
    query = {"organization": "acme", "export": "1"}

    csv = operator.get(url("endusers_enduser", "export"), {**query, "as_csv": "csv"})
    lines = operator.get(url("endusers_enduser", "export"), {**query, "as_csv": "jsonl"})

    assert csv["Content-Disposition"] == 'attachment; filename="end-users.csv"'
    content = content_of(csv)
    assert content == b'\xef\xbb\xbfuser,is_active\r\n"ann","true"\r\n"\'=1+1","true"\r\n'
    assert content_of(lines) == (
        b'{"user":"ann","is_active":true}\n{"user":"=1+1","is_active":true}\n'
    )
    planned = send(operator, "endusers_enduser", "end-users.csv", content, tenant)
    assert planned.context["counts"] == [("end users", "0 new, 0 changed, 2 unchanged")]


def test_endpoints_and_catalogue_are_exported(operator: Client, tenant: Tenant) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    factories.make_endpoint(model, provider)
    factories.make_draft(tenant, model, provider)
    query = {"organization": str(tenant.organization.pk), "export": "1"}

    rows = content_of(operator.get(url("endpoints_privateendpoint", "export"), query))
    planned = send(operator, "endpoints_privateendpoint", "e.jsonl", rows, tenant)
    assert planned.context["counts"] == [("private endpoints", "0 new, 0 changed, 1 unchanged")]
    for page in PAGES[2:]:
        assert content_of(operator.get(url(page, "export"))) == catalogue.export()[0]


def test_export_refuses_an_invalid_organization(operator: Client, tenant: Tenant) -> None:
    for page in PAGES[:2]:
        asked = operator.get(url(page, "export"), {"organization": "no-id", "export": "1"})
        assert "organization" in asked.context["form"].errors


@pytest.mark.django_db(transaction=True)
def test_an_asynchronous_server_streams_an_export(tenant: Tenant) -> None:
    for number in range(501):
        EndUser.objects.register(organization_id=tenant.organization.pk, user=f"user {number}")
    client = AsyncClient()
    client.force_login(User.objects.create_superuser("operator"))
    query = {
        "organization": str(tenant.organization.pk), "export": "1", "as_csv": "jsonl",
    }  # fmt: skip

    async def fetch() -> list[bytes]:
        response: Any = await client.get(url("endusers_enduser", "export"), query)
        parts = [part async for part in response.streaming_content]
        await sync_to_async(connections.close_all)()
        return parts

    parts = asyncio.run(fetch())

    assert [part.count(b"\n") for part in parts] == [500, 1]
