"""End users on the console."""

from __future__ import annotations

from django.test import Client

from endusers.models import EndUser
from tests.support.console import listing, page
from tests.support.factories import Tenant


def test_add_end_user_stores_the_string_unchanged(operator: Client, tenant: Tenant) -> None:
    form = {"organization": str(tenant.organization.pk), "user": " Ann "}

    operator.post(listing(EndUser, "add"), form)

    assert EndUser.objects.get().user == " Ann "
    again = operator.post(listing(EndUser, "add"), form)
    assert "already" in str(again.context["adminform"].form.errors)
    control = operator.post(listing(EndUser, "add"), {**form, "user": "a\x07b"})
    assert list(control.context["adminform"].form.errors) == ["user"]
    assert EndUser.objects.count() == 1


def test_end_user_is_activated_and_deactivated(operator: Client, tenant: Tenant) -> None:
    end_user = EndUser.objects.register(organization_id=tenant.organization.pk, user="ann")
    form = {"_selected_action": str(end_user.pk), "confirmed": "yes"}

    operator.post(page(end_user), {"user": "bob"})
    end_user.refresh_from_db()
    assert (end_user.user, end_user.is_active) == ("ann", False)
    operator.post(listing(EndUser), {**form, "action": "activate_selected"})
    end_user.refresh_from_db()
    assert end_user.is_active
    operator.post(listing(EndUser), {**form, "action": "deactivate_selected"})
    end_user.refresh_from_db()
    assert not end_user.is_active
