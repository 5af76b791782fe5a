"""Members on the console: a member is deleted by its page, once its keys are revoked."""

from __future__ import annotations

from django.test import Client

from accounts.models import ApiKey, Member
from config.audit.entries import AuditEntry
from config.clocks.clock import clock
from tests.support import factories
from tests.support.console import SUBMIT, fingerprint, listing, messages_of, page
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
