"""Operators who read and delete stored texts in the console."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from accounts.models import ApiKey, Workspace
from config.apps import Role
from config.audit.context import READING
from config.console.sign_in import roles
from config.models import AuditEntry
from inference.models import Generation, StoredText
from tests.support import console
from tests.support.database.snapshots import unchanged
from tests.support.inference.site import Site
from tests.support.texts.logged import read_content, wait_until_stored

CANARY = "canary 5a1f between two words"


@pytest.fixture
def generation(logged: Site) -> Generation:
    """The generation of a request whose text is stored."""
    logged.publish()
    read_content(logged, logged.chat(CANARY))
    return logged.settled()


def sign_in(*groups: str, permissions: Iterable[Permission] = ()) -> Client:
    """Returns the client of an operator who has these roles and permissions."""
    roles.update_roles()
    user = User.objects.create_user("reader", is_staff=True)
    user.groups.set(Group.objects.filter(name__in=groups))
    user.user_permissions.set(permissions)
    client = Client()
    client.force_login(user)
    return client


def reading() -> AuditEntry:
    """Returns the entry of the only reading with a reason."""
    return AuditEntry.objects.get(kind=READING, after__has_key="reason")


def test_reading_a_text_is_asked_for_and_recorded(operator: Client, generation: Generation) -> None:
    page = console.page(generation, "read_text")
    asked = operator.get(page)
    assert asked.status_code == 200
    assert CANARY not in asked.text
    assert CANARY not in operator.post(page, {"reason": ""}).text
    assert not AuditEntry.objects.filter(kind=READING, after__has_key="reason").exists()

    shown = operator.post(page, {"reason": "Ticket 17"})

    assert shown.text.count(CANARY) == 2
    assert "no-store" in shown["Cache-Control"]
    entry = reading()
    assert (entry.object_id, entry.organization_id) == (generation.pk, generation.organization_id)
    assert entry.after == {"reason": "Ticket 17", "outcome": "shown"}
    assert entry.actor.startswith("operator ")
    assert "Ticket 17" in operator.get(console.page(entry)).text


@pytest.mark.parametrize("role", [*Role, "all roles", "views everything"])
def test_nobody_reads_texts_without_the_permission(generation: Generation, role: str) -> None:
    views = Permission.objects.filter(codename__startswith="view_")
    client = {
        "all roles": lambda: sign_in(*Role),
        "views everything": lambda: sign_in(permissions=views),
    }.get(role, lambda: sign_in(role))()
    page = console.page(generation, "read_text")
    shown = client.get(console.page(generation))
    assert shown.status_code == 200
    assert page not in shown.text
    with unchanged():
        for answer in (client.get(page), client.post(page, {"reason": "Ticket 17"})):
            assert answer.status_code == 403
            assert CANARY not in answer.text
    allowed = Permission.objects.get(codename="read_input_and_output")
    User.objects.get(username="reader").user_permissions.add(allowed)
    assert page in client.get(console.page(generation)).text
    assert CANARY in client.post(page, {"reason": "Ticket 17"}).text
    assert reading().actor == "operator reader"


def test_no_other_page_has_the_text(operator: Client, generation: Generation) -> None:
    operator.post(console.page(generation, "read_text"), {"reason": "Ticket 17"})
    pages = [
        console.page(generation),
        console.listing(Generation),
        f"{console.listing(Generation)}?q=canary",
        f"{reverse('admin:search')}?s=canary&extended=1",
        f"{reverse('admin:search')}?s={generation.pk}&extended=1",
        console.listing(AuditEntry),
        console.page(generation.api_key),
        console.page(generation.workspace),
        console.page(generation.organization),
    ]
    for page in pages:
        answer = operator.get(page, follow=True)
        assert answer.status_code == 200
        assert CANARY not in answer.text, page
    for rows in (Generation, AuditEntry):
        export = operator.get(console.listing(rows, "export_csv"))
        assert export.status_code == 200
        assert CANARY.encode() not in b"".join(export)


def test_a_text_that_is_not_stored_is_said_so(operator: Client, generation: Generation) -> None:
    StoredText.objects.all().delete()
    page = console.page(generation, "read_text")
    answer = operator.post(page, {"reason": "Ticket 17"}, follow=True)
    assert "No input and output of this generation is stored." in answer.text
    assert reading().after["outcome"] == "not stored"


@pytest.mark.parametrize("owner", ["generation", "api_key", "workspace", "organization"])
def test_an_administrator_deletes_texts(logged: Site, generation: Generation, owner: str) -> None:
    row: Any = generation if owner == "generation" else getattr(generation, owner)
    action = "delete_text" if owner == "generation" else "delete_texts"
    client = sign_in(Role.ADMINISTRATOR)
    page = console.page(row, action)
    assert client.get(page).status_code == 200
    assert StoredText.objects.count() == 1

    answer = client.post(page, console.SUBMIT, follow=True)

    assert "1 text is deleted." in answer.text
    assert not StoredText.objects.exists()
    again = client.post(page, console.SUBMIT, follow=True)
    assert "No text was stored." in again.text


def test_a_workspace_is_switched_on_in_the_console(site: Site, operator: Client) -> None:
    workspace = Workspace.objects.get(pk=site.tenant.workspace.pk)
    form = {
        "name": workspace.name,
        "slug": workspace.slug,
        "is_observability_io_logging_enabled": "on",
        "io_logging_sampling_rate": "0.5",
        "io_logging_retention_days": "31",
    }
    page = console.page(workspace)
    refused = console.change(operator, workspace, form)
    workspace.refresh_from_db()
    assert (
        "at most 30" in operator.get(refused.url).text
        if refused.status_code == 302
        else ("at most 30" in refused.text)
    )
    assert workspace.is_observability_io_logging_enabled is False

    console.change(operator, workspace, {**form, "io_logging_retention_days": "7"})

    workspace.refresh_from_db()
    assert workspace.is_observability_io_logging_enabled is True
    assert workspace.io_logging_retention_days == 7
    key = ApiKey.objects.get(name="inference")
    workspace.edit(io_logging_api_key_ids=[key.number])
    assert str(key) in operator.get(page).text
    wait_until_stored(site, 0)
