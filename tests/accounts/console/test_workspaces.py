"""Members and workspaces on the console."""

from __future__ import annotations

from django.test import Client

from accounts.models import BudgetInterval, Member, Workspace, WorkspaceBudget
from tests.support import factories
from tests.support.console import SUBMIT, change, fingerprint, listing, page
from tests.support.factories import Tenant
from tests.support.governance import make_workspace


def test_member_cannot_take_the_address_of_another(operator: Client, tenant: Tenant) -> None:
    ada, ben = (
        Member.objects.create(organization=tenant.organization, email=email)
        for email in ("ada@example.com", "ben@example.com")
    )
    elsewhere = factories.make_tenant("Other").organization
    fields = {"email": "ada@example.com", "first_name": "", "last_name": "", "role": "member"}
    owner = {"organization": str(tenant.organization.pk)}
    before = fingerprint()
    for path, form in ((page(ben), fields), (listing(Member, "add"), {**fields, **owner})):
        for email in ("ada@example.com", "Ada@Example.com"):
            response = operator.post(path, {**form, "email": email})
            assert response.context["adminform"].form.errors == {
                "email": ["Another member of the organization has this address."]
            }
    assert fingerprint() == before

    operator.post(page(ada), {**fields, "email": "Ada@example.com", "first_name": "Ada"})
    ada.refresh_from_db()
    assert (ada.email, ada.first_name) == ("Ada@example.com", "Ada")
    operator.post(listing(Member, "add"), {**fields, "organization": str(elsewhere.pk)})
    assert Member.objects.filter(email__iexact="ada@example.com").count() == 2


def test_add_member_and_change_it(operator: Client, tenant: Tenant) -> None:
    fields = {"email": "ada@example.com", "first_name": "", "last_name": "", "role": "admin"}
    organization = str(tenant.organization.pk)
    operator.post(listing(Member, "add"), {"organization": organization, **fields})
    member = Member.objects.get()
    assert (member.organization, member.email, member.first_name, member.role) == (
        tenant.organization, "ada@example.com", None, "admin",
    )  # fmt: skip

    operator.post(page(member), {**fields, "first_name": "Ada", "role": "member"})
    member.refresh_from_db()
    assert (member.organization, member.first_name, member.role) == (
        tenant.organization, "Ada", "member",
    )  # fmt: skip


def test_add_workspace_stores_its_creator(operator: Client, tenant: Tenant) -> None:
    form = {"organization": str(tenant.organization.pk), "name": "Research", "slug": "research"}
    operator.post(listing(Workspace, "add"), form)
    workspace = Workspace.objects.get(slug="research")
    assert (workspace.name, workspace.created_by) == ("Research", "operator operator")

    before = fingerprint()
    for slug in ("research", "a_b", "A", "0123456789abcdef" * 2):
        response = operator.post(listing(Workspace, "add"), {**form, "slug": slug})
        assert response.context["adminform"].form.errors
    assert fingerprint() == before
    change(operator, workspace, {"name": "Lab", "slug": "lab"})
    workspace.refresh_from_db()
    assert (workspace.name, workspace.slug) == ("Lab", "lab")


def test_a_deleted_workspace_appears_on_no_page(operator: Client, tenant: Tenant) -> None:
    gone = make_workspace(tenant.organization, name="Gone workspace")
    gone.close()

    assert list(operator.get(listing(Workspace)).context["cl"].result_list) == [tenant.workspace]
    assert "Gone workspace" not in operator.get(page(tenant.organization)).content.decode()
    assert operator.get(page(gone)).status_code == 302


def test_workspace_budget_is_set_and_removed(operator: Client, tenant: Tenant) -> None:
    action = page(tenant.workspace, "budget")
    operator.post(action, {**SUBMIT, "interval": "daily", "limit": "12.5"})
    budget = WorkspaceBudget.objects.get()
    assert (budget.workspace, budget.interval, budget.limit_nano) == (
        tenant.workspace, "daily", 12_500_000_000,
    )  # fmt: skip
    assert "$12.5" in operator.get(page(tenant.workspace)).content.decode()

    before = WorkspaceBudget.objects.values().get()
    for interval, limit in (("weekly", "12.5"), ("daily", "0"), ("hourly", "1"), ("daily", "-1")):
        operator.post(action, {**SUBMIT, "interval": interval, "limit": limit})
        assert WorkspaceBudget.objects.values().get() == before

    operator.post(action, {**SUBMIT, "interval": "daily", "limit": ""})
    assert not WorkspaceBudget.objects.exists()
    assert BudgetInterval.DAILY not in tenant.workspace.budgets.values_list("interval", flat=True)
