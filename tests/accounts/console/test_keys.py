"""API keys on the console."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from accounts.models import ApiKey
from billing.models import Meter
from config.audit.entries import AuditEntry
from config.clocks.clock import clock
from config.secrets import digest_api_key
from tests.support import factories
from tests.support.console import SUBMIT, fingerprint, listing, messages_of, page, report_of
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import make_key, make_member
from tests.support.operators.four_eyes import press

KEY = re.compile(r"(?:sk|mk)-cw-[0-9A-Za-z]{49}")


def test_add_key_shows_the_secret_once(operator: Client, tenant: Tenant) -> None:
    form = {"workspace": str(tenant.workspace.pk), "name": "CI", "is_management": "on"}
    response = operator.post(listing(ApiKey, "add"), form)

    [secret] = set(KEY.findall(response.content.decode()))
    assert secret.startswith("mk-cw-")
    assert response.status_code == 200
    assert "no-store" in response["Cache-Control"]
    assert response.cookies.get("messages") is None
    assert secret not in str(response.cookies)
    key = ApiKey.objects.get(name="CI")
    assert (key.organization, key.is_management) == (tenant.organization, True)
    assert factories.client(secret).get("/api/v1/key").status_code == 200
    assert not any(secret in str(rows) for rows in fingerprint().values())
    for path in (page(key), page(key, "history"), listing(ApiKey), "/admin/"):
        assert not KEY.search(operator.get(path).content.decode())


def test_change_key_changes_only_name_and_expiry(operator: Client, tenant: Tenant) -> None:
    key, secret = ApiKey.objects.create_key(workspace=tenant.workspace, name="before")
    form = {"name": "after", "expires_at_0": "2100-01-01", "expires_at_1": "00:00:00"}
    operator.post(page(key), {**form, "is_management": "on", "disabled": "on"})

    found = ApiKey.objects.get(pk=key.pk)
    assert (found.name, str(found.expires_at)) == ("after", "2100-01-01 00:00:00+00:00")
    assert (found.is_management, found.disabled, found.digest) == (False, False, key.digest)
    assert factories.client(secret.reveal()).get("/api/v1/key").status_code == 200


def test_an_earlier_end_of_a_key_ends_its_former_secrets_too(
    operator: Client, tenant: Tenant
) -> None:
    key = ApiKey.objects.get(name="inference")
    press(operator, key, "rotate", overlap="604800")
    ends_at = (clock.now() + timedelta(days=1)).replace(microsecond=0)
    form = {"name": key.name, "expires_at_0": f"{ends_at:%Y-%m-%d}"}
    operator.post(page(key), {**form, "expires_at_1": f"{ends_at:%H:%M:%S}"})
    key.refresh_from_db()
    assert (key.expires_at, key.former.get().expires_at) == (ends_at, ends_at)


def test_what_has_ended_takes_no_later_end(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.get(name="inference")
    press(operator, key, "rotate", overlap="0")
    former = key.former.get()
    key.revoke()
    later = {"name": "again", "expires_at_0": "2100-01-01", "expires_at_1": "00:00:00"}
    for row in (key, former):
        with snapshots.unchanged():
            assert operator.post(page(row), later).status_code == 403
            assert 'name="expires_at_0"' not in operator.get(page(row)).text


def test_a_revoked_key_is_refused(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.get(name="inference")

    response = press(operator, key, "revoke")

    assert messages_of(response) == ["The key is revoked."]
    assert ApiKey.objects.get(pk=key.pk).disabled
    assert factories.client(tenant.api_key).get("/api/v1/key").status_code == 401
    assert AuditEntry.objects.get(object_id=str(key.pk)).actor == "operator operator"
    assert not LogEntry.objects.exists()
    again = press(operator, key, "revoke")
    assert messages_of(again) == ["The key is already revoked."]


@pytest.mark.parametrize("name", ["inference", "management"])
def test_a_rotated_key_shows_its_new_secret_once(
    operator: Client, tenant: Tenant, name: str
) -> None:
    key = ApiKey.objects.get(name=name)
    former = tenant.management_key if key.is_management else tenant.api_key
    path = "/api/v1/keys" if key.is_management else "/api/v1/key"

    response = press(operator, key, "rotate", overlap="3600")

    assert "no-store" in response["Cache-Control"]
    assert "API key rotated" in response.text
    [secret] = set(KEY.findall(response.text))
    found = ApiKey.objects.get(pk=key.pk)
    assert (found.digest, found.issued_by_operator) == (digest_api_key(secret), True)
    for works in (former, secret):
        assert factories.client(works).get(path).status_code == 200
    assert secret not in operator.get(page(key)).text
    assert secret not in str(fingerprint())
    entries = AuditEntry.objects.filter(object_id=str(key.pk)).values_list("actor", "action")
    assert set(entries) == {("operator operator", "admin: accounts_apikey_rotate")}

    again = press(operator, key, "rotate", overlap="0")
    assert factories.client(secret).get(path).status_code == 401
    [newest] = set(KEY.findall(again.text))
    assert factories.client(newest).get(path).status_code == 200


def test_what_cannot_be_rotated_is_refused(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.get(name="inference")
    press(operator, key, "rotate", overlap="3600")
    former = key.former.get()
    key.revoke()
    before = fingerprint()
    for row, overlap in ((key, "3600"), (former, "3600"), (key, "5"), (key, "")):
        response = operator.post(page(row, "rotate"), {**SUBMIT, "overlap": overlap})
        assert not KEY.search(response.text)
    assert fingerprint() == before


def test_a_paused_key_is_refused_until_it_is_resumed(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.get(name="inference")
    caller = factories.client(tenant.api_key)

    paused = press(operator, key, "pause")
    assert messages_of(paused) == ["The key is paused."]
    assert caller.get("/api/v1/key").status_code == 401
    again = press(operator, key, "pause")
    assert messages_of(again) == ["The key is already paused."]

    resumed = press(operator, key, "resume")
    assert messages_of(resumed) == ["The key is resumed."]
    assert caller.get("/api/v1/key").status_code == 200
    again = press(operator, key, "resume")
    assert messages_of(again) == ["The key is not paused."]
    written = AuditEntry.objects.filter(object_id=str(key.pk)).order_by("pk")
    assert [entry.after for entry in written] == [{"disabled": True}, {"disabled": False}]


def test_a_revoked_key_is_not_resumed(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.get(name="inference")
    key.revoke()
    before = fingerprint()

    for verb in ("pause", "resume", "limit-spending"):
        path = f"{page(key).removesuffix('change/')}{verb}/"
        assert operator.post(path, {**SUBMIT, "limit": "1"}).status_code == 302, path
    assert fingerprint() == before


def test_many_keys_are_paused_and_resumed(operator: Client, tenant: Tenant) -> None:
    selected = [str(key.pk) for key in ApiKey.objects.all()]
    form = {"_selected_action": selected, "confirmed": "yes"}

    operator.post(listing(ApiKey), {**form, "action": "pause_selected"})
    assert ApiKey.objects.filter(disabled=True).count() == 2
    operator.post(listing(ApiKey), {**form, "action": "resume_selected"})
    assert ApiKey.objects.filter(disabled=True).count() == 0


def test_the_limit_of_a_key_is_set_and_removed(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.get(name="inference")
    form = {"limit": "1250.5", "limit_reset": "weekly", "include_byok_in_limit": "on"}

    done = press(operator, key, "limit_spending", **form)
    assert messages_of(done) == ["The key may spend $1,250.5 a week, BYOK included."]
    shown = factories.client(tenant.api_key).get("/api/v1/key").json()["data"]
    assert (shown["limit"], shown["limit_reset"]) == (1250.5, "weekly")
    assert shown["include_byok_in_limit"] is True
    # The dialog starts with the present limit, so that submitting it changes nothing.
    dialog = operator.get(page(key, "limit_spending"), headers={"HX-Request": "true"})
    assert 'value="1250.5"' in dialog.content.decode()
    same = press(operator, key, "limit_spending", **form)
    assert messages_of(same) == ["The limit was like this already."]

    none = press(operator, key, "limit_spending")
    assert messages_of(none) == ["The key may spend without a limit."]
    assert ApiKey.objects.get(pk=key.pk).limit_nano is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("limit", text) for text in ("-1", "0.0000000001", "1000000000.1", "much")),
        ("limit_reset", "hourly"),
    ],
)
def test_a_wrong_limit_is_refused_at_its_field(
    operator: Client, tenant: Tenant, field: str, value: str
) -> None:
    key = ApiKey.objects.get(name="inference")
    before = fingerprint()

    response = operator.post(page(key, "limit_spending"), {**SUBMIT, field: value})

    assert response.status_code == 200
    assert set(response.context["form"].errors) == {field}
    assert fingerprint() == before


def test_the_list_shows_what_keys_have_spent_and_when(operator: Client, tenant: Tenant) -> None:
    key = ApiKey.objects.get(name="inference")
    now = timezone.now()
    Meter.objects.filter(pk=key.pk).update(
        cost=5_000_000_000, cost_monthly=1_250_000_000, byok=7, day=now.date(), last_used_at=now
    )

    listed = operator.get(listing(ApiKey)).content.decode()
    assert "$1.25" in listed
    shown = operator.get(page(key)).content.decode()
    assert "$1.25 this month, $5 in all, and $0.000000007 by own credentials" in shown


def test_the_list_is_sorted_by_what_was_spent_this_month(operator: Client, tenant: Tenant) -> None:
    today = clock.now().date()
    for name, cost, day in (("inference", 2, today), ("management", 9, today - timedelta(days=40))):
        Meter.objects.filter(pk=ApiKey.objects.get(name=name).pk).update(cost_monthly=cost, day=day)

    def names(order: str) -> list[str]:
        page = operator.get(listing(ApiKey), {"o": order})
        return [key.name for key in page.context["cl"].result_list]

    assert names("-6") == ["inference", "management"]
    assert names("6") == ["management", "inference"]


def test_revoke_selected_asks_for_confirmation(operator: Client, tenant: Tenant) -> None:
    keys = list(ApiKey.objects.all())
    form = {"action": "revoke_selected", "_selected_action": [str(key.pk) for key in keys]}

    asked = operator.post(listing(ApiKey), form)

    assert "Revoke these keys?" in asked.content.decode()
    assert ApiKey.objects.filter(disabled=True).count() == 0
    done = operator.post(listing(ApiKey), {**form, "confirmed": "yes"}, follow=True)
    assert report_of(done) == ["Revoke: 2 done.", *sorted(map(str, keys))]
    assert ApiKey.objects.filter(disabled=True).count() == 2


def test_keys_are_filtered_by_their_pepper(operator: Client, tenant: Tenant, settings: Any) -> None:
    def listed(value: str) -> set[str]:
        page = operator.get(f"/admin/accounts/apikey/?pepper={value}")
        return {key.name for key in page.context["cl"].result_list}

    assert (listed("first"), listed("older")) == ({"management", "inference"}, set())
    # The former secret works no longer, so it waits for no use.
    key, secret = ApiKey.objects.create_key(workspace=tenant.workspace, name="rotated")
    _, secret = key.rotate(overlap=0)
    settings.KEY_PEPPERS = ["p" * 32]
    assert factories.client(tenant.management_key).get("/api/v1/key").status_code == 200
    assert factories.client(secret.reveal()).get("/api/v1/key").status_code == 200
    assert (listed("first"), listed("older")) == ({"management", "rotated"}, {"inference"})
    assert listed("") == {"management", "inference", "rotated"}


def test_keys_are_filtered_by_state(operator: Client, tenant: Tenant) -> None:
    for name in ("paused", "revoked", "expired"):
        expires_at = clock.now() if name == "expired" else None
        make_key(tenant, name, expires_at=expires_at, limit_nano=1_500_000_000)
    ApiKey.objects.get(name="paused").pause()
    ApiKey.objects.get(name="revoked").revoke()
    offered = {
        "paused": [
            "Limit spending", "Rate limits", "Rotate", "Resume", "Revoke", "Delete stored texts",
        ],
        "expired": ["Limit spending", "Rate limits", "Pause", "Revoke", "Delete stored texts"],
        "revoked": [],
    }  # fmt: skip

    for state in ("paused", "revoked", "expired"):
        listed = operator.get(f"{listing(ApiKey)}?status={state}").context["cl"].result_list
        assert [key.name for key in listed] == [state]
        shown = operator.get(page(ApiKey.objects.get(name=state)))
        assert "$1.5" in shown.content.decode()
        actions = [action["title"] for action in shown.context["actions_detail"]]
        assert actions == offered[state]


def test_the_creator_of_a_key_belongs_to_its_organization(operator: Client, tenant: Tenant) -> None:
    member = make_member(tenant.organization)
    stranger = make_member(factories.make_tenant("Other").organization)
    form = {"workspace": str(tenant.workspace.pk), "name": "Hers"}
    response = operator.post(listing(ApiKey, "add"), {**form, "creator": str(stranger.pk)})
    assert response.context["adminform"].form.errors == {
        "creator": ["The creator belongs to another organization."]
    }

    operator.post(listing(ApiKey, "add"), {**form, "creator": str(member.pk)})
    assert ApiKey.objects.get(name="Hers").creator == member
