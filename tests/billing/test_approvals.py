"""Who may approve a grant that another operator asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from django.contrib.auth.models import Group, Permission, User

from accounts.models import Organization
from billing import grants
from billing.models import Account, GrantRequest, NotIndependent, SameOperator
from config.apps import Role
from config.audit import context as audit
from config.console.sign_in import roles
from tests.support.factories import Tenant

TOO_NEW = "Your account was created or enabled after this was asked for."
ROLE_TOO_NEW = "You received the permission to approve after this was asked for."
MADE = "One of the two accounts was created by the other, or got its password from it"
MISSING = "Only an operator of the console can approve this."


@contextmanager
def acting(name: str) -> Iterator[None]:
    with audit.acting_as(f"operator {name}", "test"):
        yield


def make(name: str, *, by: str = "", role: Role | None = Role.FINANCE) -> User:
    """Creates an operator; without ``by`` as a command on the server does, without an entry."""
    with ExitStack() as stack:
        if by:
            stack.enter_context(acting(by))
        user = User.objects.create_user(name, password="a long enough password" if by else None)
        if role:
            user.groups.add(Group.objects.get(name=role))
    return user


@pytest.fixture
def ann(tenant: Tenant) -> User:
    """Returns the operator who asks."""
    roles.update_roles()
    return make("ann")


def ask(organization: Organization, *, by: str = "ann") -> GrantRequest:
    return GrantRequest.objects.create(
        organization=organization, amount_nano=5, requested_by=f"operator {by}"
    )


def refuse(request: GrantRequest, *, by: str) -> str:
    """Tries to approve; checks that nothing changed, and returns the message of the refusal."""
    before = list(Account.objects.order_by("pk").values_list())
    with pytest.raises((NotIndependent, SameOperator)) as caught:
        grants.approve(request, by=by if " " in by else f"operator {by}")
    request.refresh_from_db()
    assert request.status == GrantRequest.Status.REQUESTED
    assert list(Account.objects.order_by("pk").values_list()) == before
    return caught.value.message


def test_an_operator_who_was_there_before_approves(tenant: Tenant, ann: User) -> None:
    make("bob", by="root")
    request = ask(tenant.organization)
    grants.approve(request, by="operator bob")

    assert request.status == GrantRequest.Status.APPROVED


def test_nobody_but_an_operator_approves(tenant: Tenant, ann: User) -> None:
    request = ask(tenant.organization)

    assert refuse(request, by="operator nobody") == MISSING
    assert refuse(request, by="command grant_credits by root") == MISSING
    assert refuse(request, by="ann").startswith("Another operator than the one who asked")


@pytest.mark.parametrize("by", ["ann", "root", ""])
def test_an_account_made_after_the_request_cannot_approve(
    tenant: Tenant, ann: User, by: str
) -> None:
    request = ask(tenant.organization)
    make("bob", by=by)

    assert refuse(request, by="bob").startswith(TOO_NEW)


def test_an_account_enabled_after_the_request_cannot_approve(tenant: Tenant, ann: User) -> None:
    bob = make("bob")
    User.objects.filter(pk=bob.pk).update(is_active=False)
    request = ask(tenant.organization)
    with acting("root"):
        User.objects.filter(pk=bob.pk).update(is_active=True)

    assert refuse(request, by="bob").startswith(TOO_NEW)


def test_a_role_given_after_the_request_does_not_count(tenant: Tenant, ann: User) -> None:
    bob = make("bob", role=None)
    request = ask(tenant.organization)
    with acting("root"):
        bob.groups.add(Group.objects.get(name=Role.FINANCE))

    assert refuse(request, by="bob").startswith(ROLE_TOO_NEW)


def test_a_permission_given_after_the_request_does_not_count(tenant: Tenant, ann: User) -> None:
    bob = make("bob", role=Role.SUPPORT)
    request = ask(tenant.organization)
    permission = Permission.objects.get(codename="add_transfer")
    with acting("root"):
        bob.user_permissions.add(permission)
        Group.objects.get(name=Role.SUPPORT).permissions.add(permission)

    assert refuse(request, by="bob").startswith(ROLE_TOO_NEW)


def test_a_superuser_made_after_the_request_does_not_count(tenant: Tenant, ann: User) -> None:
    bob = make("bob", role=None)
    request = ask(tenant.organization)
    with acting("root"):
        User.objects.filter(pk=bob.pk).update(is_superuser=True)

    assert refuse(request, by="bob").startswith(ROLE_TOO_NEW)


def test_a_second_source_of_the_permission_changes_nothing(tenant: Tenant, ann: User) -> None:
    bob = make("bob")
    request = ask(tenant.organization)
    with acting("root"):
        bob.user_permissions.add(Permission.objects.get(codename="add_transfer"))
        bob.groups.add(Group.objects.get(name=Role.SUPPORT))
    grants.approve(request, by="operator bob")

    assert request.status == GrantRequest.Status.APPROVED


def test_an_account_that_the_requester_made_cannot_approve(tenant: Tenant, ann: User) -> None:
    make("bob", by="ann")
    make("cid", by="bob")
    request = ask(tenant.organization)

    assert refuse(request, by="bob").startswith(MADE)
    assert refuse(request, by="cid").startswith(MADE)


def test_the_maker_of_the_requesting_account_cannot_approve(tenant: Tenant, ann: User) -> None:
    make("bob", by="ann")
    request = ask(tenant.organization, by="bob")

    assert refuse(request, by="ann").startswith(MADE)


def test_a_password_from_the_requester_disqualifies_until_another_operator_replaces_it(
    tenant: Tenant, ann: User
) -> None:
    bob = make("bob")
    request = ask(tenant.organization)
    # Whoever set the password may sign in with it and replace it in the name of the owner.
    for name in ("ann", "bob"):
        with acting(name):
            bob.set_password(f"a password of {name}")
            bob.save(update_fields=["password"])
        assert refuse(request, by="bob").startswith(MADE)
    with acting("root"):
        bob.set_password("a password of root")
        bob.save(update_fields=["password"])
    grants.approve(request, by="operator bob")

    assert request.status == GrantRequest.Status.APPROVED
