"""The console's page of broadcast destinations."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from accounts.models import BroadcastDestination
from accounts.rotation import rotate_key
from tests.support.broadcast.destinations import MASK, SECRET, make_destination
from tests.support.console import SUBMIT, change, listing, messages_of, page
from tests.support.database import snapshots
from tests.support.factories import Tenant, make_tenant
from tests.support.governance import make_key

FORM: dict[str, Any] = {
    "name": "Traces",
    "kind": "otel-collector",
    "is_enabled": "on",
    "url": "https://otel.example/v1/traces",
    "method": "POST",
    "headers": f"Authorization: {SECRET}\r\n\r\nX-Data: a",
    "sampling_rate": "1",
    "regions": ["global", "us"],
    "has_cost": "on",
}


def test_add_a_destination(operator: Client, tenant: Tenant) -> None:
    form = {**FORM, "workspace": str(tenant.workspace.pk)}
    answer = operator.post(listing(BroadcastDestination, "add"), form, follow=True)
    destination = BroadcastDestination.objects.get()
    assert answer.status_code == 200
    assert destination.receiver().headers == {"Authorization": SECRET, "X-Data": "a"}
    assert (destination.regions, destination.has_cost) == (["global", "us"], True)
    answer = operator.get(page(destination))
    text = answer.content.decode()
    assert answer.context["adminform"].form["filter_rules"].value() == ""
    assert f"Authorization: {MASK}" in text
    assert "canary" not in text
    assert "canary" not in operator.get(listing(BroadcastDestination)).content.decode()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "http://otel.example"), ("url", "https://10.0.0.1"), ("headers", "Host: a"),
        ("headers", "nonsense"), ("regions", []), ("sampling_rate", "0"), ("method", "PUT"),
        ("filter_rules", '{"groups": [{"rules": []}]}'),
    ],
)  # fmt: skip
def test_add_refuses_what_the_api_refuses(
    operator: Client, tenant: Tenant, field: str, value: Any
) -> None:
    form = {**FORM, "workspace": str(tenant.workspace.pk), field: value}
    with snapshots.unchanged():
        answer = operator.post(listing(BroadcastDestination, "add"), form)
    assert [*answer.context["adminform"].form.errors] == [field]


def test_change_keeps_masked_headers(operator: Client, tenant: Tenant) -> None:
    destination = make_destination(tenant.workspace)
    form = {**FORM, "name": "Renamed", "headers": f"Authorization: {MASK}"}
    del form["kind"]
    change(operator, destination, form)
    destination.refresh_from_db()
    assert destination.name == "Renamed"
    assert destination.receiver().headers == {"Authorization": SECRET}

    with snapshots.unchanged():
        answer = change(operator, destination, {**form, "url": "https://other.example"})
    assert [*answer.context["adminform"].form.errors] == ["headers"]


def test_keys_are_picked_from_the_organization(operator: Client, tenant: Tenant) -> None:
    destination = make_destination(tenant.workspace)
    key, other = make_key(tenant, "chosen"), make_key(make_tenant("Other"), "foreign")
    assert "Keys are chosen on the page" in operator.get(listing(type(destination), "add")).text
    found = operator.get(page(destination, "keys")).json()["results"]
    assert {"id": key.digest, "text": f"chosen · {key.label}"} in found
    assert other.digest not in {each["id"] for each in found}
    form = {**FORM, "headers": f"Authorization: {MASK}"}
    del form["kind"]

    with snapshots.unchanged():
        answer = change(operator, destination, {**form, "api_key_hashes": [other.digest]})
    assert [*answer.context["adminform"].form.errors] == ["api_key_hashes"]

    change(operator, destination, {**form, "api_key_hashes": [key.digest]})
    destination.refresh_from_db()
    assert destination.api_key_hashes == [key.digest]
    # A key that was revoked since then stays chosen.
    key.revoke()
    assert f"chosen · {key.label}" in operator.get(page(destination)).text
    change(operator, destination, {**form, "name": "Renamed", "api_key_hashes": [key.digest]})
    destination.refresh_from_db()
    assert (destination.name, destination.api_key_hashes) == ("Renamed", [key.digest])


def test_a_form_that_was_opened_before_a_rotation_names_the_new_hash(
    operator: Client, tenant: Tenant
) -> None:
    destination = make_destination(tenant.workspace)
    key = make_key(tenant)
    former = key.digest
    rotate_key(key, overlap=60)
    form = {**FORM, "headers": f"Authorization: {MASK}", "api_key_hashes": [former]}
    del form["kind"]
    change(operator, destination, form)
    destination.refresh_from_db()
    assert destination.api_key_hashes == [former, key.digest]


def test_delete(operator: Client, tenant: Tenant) -> None:
    destination = make_destination(tenant.workspace)
    answer = operator.post(page(destination, "remove"), SUBMIT, follow=True)
    assert messages_of(answer) == ["Traces is deleted."]
    assert not BroadcastDestination.objects.exists()


def test_a_workspace_shows_its_destinations(operator: Client, tenant: Tenant) -> None:
    make_destination(tenant.workspace)
    make_destination(tenant.workspace, name="Old", is_enabled=False)
    text = operator.get(page(tenant.workspace)).content.decode()
    assert "Traces (otel.example), Old (off)" in text
