"""Members on the console: a member is deleted by its page, once its keys are revoked."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from accounts.models import ApiKey, Member, create_member, remove_member
from config.audit.entries import AuditEntry
from config.clocks.clock import clock
from tests.support import factories
from tests.support.console import SUBMIT, fingerprint, listing, messages_of, page
from tests.support.database.locks import at_once
from tests.support.factories import Tenant
from tests.support.governance import make_member


def test_a_member_with_keys_is_deleted_after_them(operator: Client, tenant: Tenant) -> None:
    member = make_member(tenant.organization)
    key, _ = ApiKey.objects.create_key(workspace=tenant.workspace, name="own", creator=member)
    before = fingerprint()
    refused = operator.post(page(member, "remove"), SUBMIT)
    assert refused.status_code == 302
    assert fingerprint() == before
    assert messages_of(operator.get(listing(Member))) == [
        "The member has 1 API key. Delete them first."
    ]
    key.revoke()

    done = operator.post(page(member, "remove"), SUBMIT, follow=True)

    assert done.redirect_chain == [(listing(Member), 302)]
    assert messages_of(done) == [f"{member.email} is deleted."]
    found = Member.objects.get(pk=member.pk)
    assert found.deleted_at is not None
    assert found.deleted_at <= clock.now()
    entries = AuditEntry.objects.filter(kind="accounts.member", object_id=str(member.pk))
    assert entries.order_by("-pk")[0].actor == "operator operator"
    assert member.email not in operator.get(listing(Member)).content.decode()
    # Again, and by whom may only change members.
    before = fingerprint()
    assert operator.post(page(member, "remove"), SUBMIT).status_code == 302
    assert fingerprint() == before
    again = make_member(tenant.organization, email=member.email)
    assert again.pk != member.pk
    assert factories.client(tenant.api_key).get("/api/v1/key").status_code == 200


FORM = {"email": "ADA@example.com", "first_name": "", "last_name": "", "role": "member"}
HELD = "SELECT 1 FROM accounts_organization FOR UPDATE"
TAKEN = "email: The organization has a member with this address already."


def refusals(answer: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = answer.context["adminform"].form.errors
    return found


def test_a_member_that_is_deleted_meanwhile_gets_no_address(
    transactional_db: None, operator: Client
) -> None:
    member = make_member(factories.make_tenant().organization)
    _, answer = at_once(
        lambda: remove_member(Member.objects.get(pk=member.pk)),
        lambda: operator.post(page(member), FORM),
        held=HELD,
    )
    assert answer.status_code == 302
    found = Member.objects.get(pk=member.pk)
    assert found.email == f"{member.email} (deleted {member.pk.hex})"
    assert make_member(member.organization, email=FORM["email"]).pk != member.pk


@pytest.mark.parametrize("email", ["ada@example.com", "ADA@example.com"])
def test_an_address_that_is_taken_meanwhile_is_not_added_again(
    transactional_db: None, operator: Client, email: str
) -> None:
    owner = factories.make_tenant().organization.pk
    _, answer = at_once(
        lambda: create_member(owner, email=email),
        lambda: operator.post(listing(Member, "add"), {**FORM, "organization": str(owner)}),
        held=HELD,
    )
    assert TAKEN in refusals(answer)["__all__"]
    assert Member.objects.get().email == email


def test_an_address_that_is_taken_meanwhile_is_not_taken_by_a_change(
    transactional_db: None, operator: Client
) -> None:
    member = make_member(factories.make_tenant().organization)
    _, answer = at_once(
        lambda: create_member(member.organization_id, email="ada@example.com"),
        lambda: operator.post(page(member), FORM),
        held=HELD,
    )
    assert TAKEN in refusals(answer)["__all__"]
    assert Member.objects.get(pk=member.pk).email == member.email
