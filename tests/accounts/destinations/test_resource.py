"""``/observability/destinations``: where a workspace has the metadata of its generations sent."""

from __future__ import annotations

import json
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from rest_framework.test import APIClient

from accounts.models import ApiKey, BroadcastDestination, BroadcastProgress, Workspace
from config.audit.entries import AuditEntry
from config.clocks.clock import clock
from tests.support import factories
from tests.support.broadcast.destinations import CONFIG, MASK, SECRET, make_destination
from tests.support.database import snapshots
from tests.support.database.locks import at_once, beside, locked, waiting
from tests.support.factories import Tenant
from tests.support.governance import (
    make_key,
    make_workspace,
    missing,
    named,
    send,
    stamp,
)
from tests.support.machine.waiting import wait_until

PATH = "observability/destinations"
ROUTE = f"/api/v1/{PATH}"
BODY: dict[str, Any] = {"name": "Traces", "type": "otel-collector", "config": CONFIG}


def shown(destination: BroadcastDestination, **changes: Any) -> dict[str, Any]:
    destination.refresh_from_db()
    progress = BroadcastProgress.objects.get(pk=destination.pk)
    return {
        "id": str(destination.pk),
        "name": "Traces",
        "type": "otel-collector",
        "workspace_id": str(destination.workspace_id),
        "enabled": True,
        "config": {**CONFIG, "headers": {"Authorization": MASK}},
        "sampling_rate": 1.0,
        "regions": ["global"],
        "api_key_hashes": None,
        "filter_rules": None,
        "privacy_mode": True,
        "broadcast_generation_cost": False,
        "broadcast_generation_cost_allocation": False,
        "broadcast_generation_identity": False,
        "broadcast_generation_request_context": False,
        "delivery": {
            "state": "delivering",
            "sent": 0,
            "skipped": 0,
            "served_until": stamp(progress.cursor_at),
            "succeeded_at": None,
            "failing_since": None,
            "next_try_at": None,
            "last_error": None,
        },
        "created_at": stamp(destination.created_at),
        "updated_at": stamp(destination.updated_at),
        **changes,
    }


def test_create_seals_the_headers_and_answers_with_their_names(
    management: APIClient, tenant: Tenant
) -> None:
    answer = send(management, "POST", PATH, BODY)
    destination = BroadcastDestination.objects.get()
    assert answer.status_code == 201
    assert answer.json() == {"data": shown(destination)}
    assert management.get(f"{ROUTE}/{destination.pk}").json() == answer.json()
    assert destination.workspace == tenant.workspace
    assert destination.receiver().headers == CONFIG["headers"]
    assert SECRET.encode() not in bytes(destination.sealed)


def test_a_list_of_keys_keeps_those_that_are_gone(management: APIClient, tenant: Tenant) -> None:
    gone, other = make_key(tenant, "gone"), make_key(tenant, "other")
    destination = make_destination(tenant.workspace, api_key_hashes=[gone.digest])
    gone.revoke()
    path, hashes = f"{PATH}/{destination.pk}", [gone.digest, other.digest]
    with snapshots.unchanged():
        answer = send(management, "PATCH", path, {"api_key_hashes": [*hashes, "0" * 64]})
        assert named(answer) == (400, {"api_key_hashes"})
    kept = send(management, "PATCH", path, {"api_key_hashes": hashes})
    assert (kept.status_code, kept.json()["data"]["api_key_hashes"]) == (200, hashes)


def test_create_takes_every_field(management: APIClient, tenant: Tenant) -> None:
    other = make_workspace(tenant.organization)
    key = ApiKey.objects.get(organization=tenant.organization, is_management=False)
    rules = [
        {"field": "model", "operator": "regex", "value": "^acme/"},
        {"field": "total_cost", "operator": "gte", "value": 0.5},
        {"field": "session_id", "operator": "exists"},
    ]
    body = {
        "name": "Hook",
        "type": "webhook",
        "config": {"url": "https://hooks.example:8443/in", "method": "PUT"},
        "workspace_id": str(other.pk),
        "enabled": False,
        "sampling_rate": 0.25,
        "regions": ["eu", "us", "europe"],
        "api_key_hashes": [key.digest],
        "filter_rules": {"enabled": True, "groups": [{"logic": "or", "rules": rules}]},
        "privacy_mode": True,
        "broadcast_generation_cost": True,
        "broadcast_generation_cost_allocation": False,
        "broadcast_generation_identity": True,
        "broadcast_generation_request_context": True,
    }
    answer = send(management, "POST", PATH, body)
    destination = BroadcastDestination.objects.get()
    assert answer.status_code == 201
    assert answer.json() == {"data": shown(destination, **body) | {"regions": ["europe", "us"]}}
    assert management.get(ROUTE).json() == {"data": [], "total_count": 0}
    assert management.get(ROUTE, {"workspace_id": str(other.pk)}).json()["total_count"] == 1


ENDPOINT = {"endpoint": "https://otel.example/v1/traces"}
RULE = {"field": "model", "operator": "equals", "value": "acme/falcon"}
# What neither a new destination nor a change may have, with the field that the error names.
MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name"),
    ({"name": None}, "name"),
    ({"surprise": 1}, "surprise"),
    ({"config": []}, "config"),
    ({"config": {"url": "https://otel.example"}}, "config.url"),
    ({"config": {"endpoint": "http://otel.example/v1/traces"}}, "config.endpoint"),
    ({"sampling_rate": 0}, "sampling_rate"),
    ({"regions": []}, "regions"),
    ({"regions": ["mars"]}, "regions.0"),
    ({"api_key_hashes": []}, "api_key_hashes"),
    ({"api_key_hashes": ["0" * 64]}, "api_key_hashes"),
    ({"privacy_mode": False}, "privacy_mode"),
    ({"broadcast_generation_cost_allocation": True}, "broadcast_generation_cost_allocation"),
    ({"filter_rules": {"groups": [{"rules": [{**RULE, "field": "input"}]}]}},
     "filter_rules.groups[0].rules[0].field"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "field"),
    [
        *MALFORMED,
        ({"type": "langfuse"}, "type"),
        ({"type": "carrier-pigeon"}, "type"),
        ({"config": {}}, "config.endpoint"),
        ({"config": {"endpoint": 5}}, "config.endpoint"),
        ({"config": {"endpoint": "https://otel.example/?key=1"}}, "config.endpoint"),
        ({"config": {"endpoint": "https://a:b@otel.example/"}}, "config.endpoint"),
        ({"config": {"endpoint": "https://127.1/"}}, "config.endpoint"),
        ({"config": {**ENDPOINT, "method": "POST"}}, "config.method"),
        ({"type": "webhook", "config": {"url": "https://a.example", "method": "GET"}},
         "config.method"),
        ({"config": {**ENDPOINT, "headers": []}}, "config.headers"),
        ({"config": {**ENDPOINT, "headers": {"Host": "a"}}}, "config.headers.Host"),
        ({"config": {**ENDPOINT, "headers": {"content-length": "1"}}},
         "config.headers.content-length"),
        ({"config": {**ENDPOINT, "headers": {"A b": "1"}}}, "config.headers.A b"),
        ({"config": {**ENDPOINT, "headers": {"A": "1\r\nB: 2"}}}, "config.headers.A"),
        ({"config": {**ENDPOINT, "headers": {"A": MASK}}}, "config.headers.A"),
        ({"config": {**ENDPOINT, "headers": {"A": "1", "a": "2"}}}, "config.headers.a"),
        ({"config": {**ENDPOINT, "headers": {str(n): "1" for n in range(21)}}}, "config.headers"),
        ({"enabled": "yes"}, "enabled"),
        ({"sampling_rate": 1.1}, "sampling_rate"),
        ({"filter_rules": []}, "filter_rules"),
        ({"filter_rules": {}}, "filter_rules.groups"),
        ({"filter_rules": {"groups": [{}]}}, "filter_rules.groups[0].rules"),
        ({"filter_rules": {"groups": [{"rules": []}]}}, "filter_rules.groups[0].rules"),
        ({"filter_rules": {"groups": [{"rules": [RULE], "logic": "xor"}]}},
         "filter_rules.groups[0].logic"),
        ({"filter_rules": {"groups": [{"rules": [{**RULE, "operator": "gt"}]}]}},
         "filter_rules.groups[0].rules[0].operator"),
        ({"filter_rules": {"groups": [{"rules": [{**RULE, "value": 5}]}]}},
         "filter_rules.groups[0].rules[0].value"),
        *(
            ({"filter_rules": {"groups": [{"rules": [{**RULE, "operator": name, "value": text}]}]}},
             "filter_rules.groups[0].rules[0].value")
            for name in ("equals", "regex") for text in ("a\0", "a\ud800")
        ),
        ({"filter_rules": {"groups": [{"rules": [{**RULE, "operator": "regex", "value": "("}]}]}},
         "filter_rules.groups[0].rules[0].value"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_refused_by_name_and_changes_nothing(
    management: APIClient, change: dict[str, Any], field: str
) -> None:
    with snapshots.unchanged():
        answer = send(management, "POST", PATH, {**BODY, **change})
    assert named(answer) == (400, {field})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        *MALFORMED,
        # They stay what they were made with, so the interface does not have them here.
        ({"type": "webhook"}, "type"),
        ({"workspace_id": "0192f0c1-8f6e-4b1e-9f43-3a1d0e9b7a10"}, "workspace_id"),
        ({"config": {"method": "PUT"}}, "config.method"),
        ({"config": {"endpoint": "https://10.0.0.1/v1/traces"}}, "config.endpoint"),
        ({"config": {"headers": {"Host": "a"}}}, "config.headers.Host"),
        ({"enabled": None}, "enabled"),
        ({"sampling_rate": 0.00001}, "sampling_rate"),
        ({"regions": None}, "regions"),
        # No prompt and no answer is broadcast, whichever field asks for them.
        ({"privacy_mode": None}, "privacy_mode"),
        ({"filter_rules": {"groups": [{"rules": [{**RULE, "field": "output"}]}]}},
         "filter_rules.groups[0].rules[0].field"),
        ({"broadcast_generation_cost": "yes"}, "broadcast_generation_cost"),
        ({"broadcast_generation_identity": 1}, "broadcast_generation_identity"),
        ({"broadcast_generation_request_context": []}, "broadcast_generation_request_context"),
    ],
)  # fmt: skip
def test_a_wrong_change_is_refused_by_name_and_changes_nothing(
    management: APIClient, tenant: Tenant, change: dict[str, Any], field: str
) -> None:
    """The right change beside the wrong one is not made either."""
    destination = make_destination(tenant.workspace)
    body = {"enabled": False, "name": "Renamed", **change}
    with snapshots.unchanged():
        answer = send(management, "PATCH", f"{PATH}/{destination.pk}", body)
    assert named(answer) == (400, {field})


@pytest.mark.parametrize(
    "kind",
    [
        "arize", "braintrust", "clickhouse", "datadog", "grafana", "langfuse", "langsmith",
        "newrelic", "opik", "posthog", "ramp", "s3", "sentry", "snowflake", "weave",
    ],
)  # fmt: skip
def test_a_type_that_is_not_served_is_refused_by_its_name(management: APIClient, kind: str) -> None:
    with snapshots.unchanged():
        answer = send(management, "POST", PATH, {**BODY, "type": kind})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        f"type: This service does not send to {kind}. It sends OTLP over HTTP to otel-collector "
        "and webhook: use one of these if your receiver takes it."
    )


def test_a_workspace_has_five_of_a_type_at_most(management: APIClient, tenant: Tenant) -> None:
    for _ in range(5):
        make_destination(tenant.workspace)
    make_destination(make_workspace(tenant.organization))
    with snapshots.unchanged():
        answer = send(management, "POST", PATH, BODY)
    assert (answer.status_code, answer.json()["error"]["metadata"]["error_type"]) == (
        409, "too_many_destinations",
    )  # fmt: skip
    hook = {**BODY, "type": "webhook", "config": {"url": "https://hooks.example"}}
    assert send(management, "POST", PATH, hook).status_code == 201


def test_update_changes_what_is_sent(management: APIClient, tenant: Tenant) -> None:
    destination = make_destination(tenant.workspace)
    path = f"{PATH}/{destination.pk}"
    change = {
        "name": "Renamed",
        "sampling_rate": 0.5,
        "broadcast_generation_cost": True,
        "filter_rules": {"groups": [{"rules": [RULE]}]},
    }
    data = send(management, "PATCH", path, change).json()["data"]
    rules = {"enabled": True, "groups": [{"logic": "and", "rules": [RULE]}]}
    assert data == shown(destination, **change) | {"filter_rules": rules}
    data = send(management, "PATCH", path, {"filter_rules": None}).json()["data"]
    assert data["filter_rules"] is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"endpoint": "https://otel.example/v2"}, {"Authorization": SECRET}),
        ({"headers": {"Authorization": MASK, "X-Data": "a"}},
         {"Authorization": SECRET, "X-Data": "a"}),
        ({"headers": {"X-Data": "a"}}, {"X-Data": "a"}),
        ({"headers": {}}, {}),
        ({"headers": None}, {}),
        ({"endpoint": "https://other.example", "headers": {"Authorization": "new"}},
         {"Authorization": "new"}),
        ({"endpoint": "https://other.example", "headers": None}, {}),
        ({"endpoint": "https://other.example", "headers": {"Authorization": SECRET}},
         {"Authorization": SECRET}),
    ],
)  # fmt: skip
def test_update_keeps_masked_headers(
    management: APIClient, tenant: Tenant, config: dict[str, Any], expected: dict[str, str]
) -> None:
    destination = make_destination(tenant.workspace)
    answer = send(management, "PATCH", f"{PATH}/{destination.pk}", {"config": config})
    assert answer.status_code == 200
    destination.refresh_from_db()
    assert destination.receiver().headers == expected
    assert destination.url == config.get("endpoint", CONFIG["endpoint"])


@pytest.mark.parametrize(
    "config",
    [
        {"endpoint": "https://other.example/v1/traces"},
        {"endpoint": "https://otel.example:8443/v1/traces"},
        {"endpoint": "https://other.example", "headers": {"Authorization": MASK}},
        {"endpoint": "https://other.example", "headers": {"X": "1", "Authorization": MASK}},
    ],
)
def test_stored_headers_follow_to_no_other_host(
    management: APIClient, tenant: Tenant, config: dict[str, Any]
) -> None:
    destination = make_destination(tenant.workspace)
    with snapshots.unchanged():
        answer = send(management, "PATCH", f"{PATH}/{destination.pk}", {"config": config})
    assert named(answer) == (400, {"config.headers"})


@pytest.mark.django_db(transaction=True)
def test_a_change_begins_with_what_the_one_before_left(
    management: APIClient, tenant: Tenant
) -> None:
    """A second change at once sends back neither the old token nor the old host."""
    destination = make_destination(tenant.workspace)

    def patch(**config: Any) -> int:
        client = factories.client(tenant.management_key)
        return send(client, "PATCH", f"{PATH}/{destination.pk}", {"config": config}).status_code

    endpoint = "https://otel.example/v2"
    statuses = at_once(
        lambda: patch(headers={"Authorization": "new"}),
        lambda: patch(endpoint=endpoint),
        held="SELECT 1 FROM accounts_organization FOR UPDATE",
    )
    destination.refresh_from_db()
    found = destination.receiver()
    assert (statuses, found.url, found.headers) == ([200, 200], endpoint, {"Authorization": "new"})


@pytest.mark.django_db(transaction=True)
def test_a_workspace_is_deleted_beside_its_destination(tenant: Tenant) -> None:
    workspace = make_workspace(tenant.organization)
    destination = make_destination(workspace)
    with ExitStack() as threads, locked(BroadcastDestination.objects.filter(pk=destination.pk)):
        for number, work in enumerate((destination.remove, workspace.close), start=1):
            threads.enter_context(beside(work))
            wait_until(lambda number=number: waiting() == number, "it does not wait")
    assert not BroadcastDestination.objects.exists()
    workspace.refresh_from_db()
    assert workspace.deleted_at is not None


def test_delete_erases_the_destination(management: APIClient, tenant: Tenant) -> None:
    destination = make_destination(tenant.workspace)
    path = f"{PATH}/{destination.pk}"
    assert send(management, "DELETE", path).json() == {"deleted": True}
    assert not BroadcastDestination.objects.exists()
    assert not BroadcastProgress.objects.exists()
    assert send(management, "DELETE", path).json() == missing("destination")
    assert management.get(f"/api/v1/{path}").json() == missing("destination")


def test_another_organization_sees_and_changes_nothing(tenant: Tenant) -> None:
    destination = make_destination(tenant.workspace)
    stranger = factories.make_tenant()
    client = factories.client(stranger.management_key)
    path = f"{PATH}/{destination.pk}"
    with snapshots.unchanged():
        for method, body in (("GET", None), ("PATCH", {"name": "x"}), ("DELETE", None)):
            assert send(client, method, path, body).status_code == 404
        named = {"workspace_id": str(tenant.workspace.pk)}
        assert client.get(ROUTE, named).status_code == 404
        assert send(client, "POST", PATH, {**BODY, **named}).status_code == 404
        assert client.get(ROUTE).json() == {"data": [], "total_count": 0}


def test_a_deleted_workspace_disables_its_destinations(
    management: APIClient, tenant: Tenant
) -> None:
    workspace = make_workspace(tenant.organization)
    destination = make_destination(workspace)
    Workspace.objects.get(pk=workspace.pk).close()
    destination.refresh_from_db()
    assert (destination.is_enabled, bytes(destination.sealed)) == (False, b"")
    assert destination.header_names == []
    assert management.get(f"{ROUTE}/{destination.pk}").status_code == 404


def test_a_new_beginning_leaves_out_what_ended_before(
    management: APIClient, tenant: Tenant
) -> None:
    """A switch that goes on again lets a destination begin at that moment."""
    destination = make_destination(tenant.workspace)
    workspace, path = tenant.workspace, f"{PATH}/{destination.pk}"
    old = clock.now() - timedelta(days=300)

    def age() -> None:
        BroadcastProgress.objects.update(cursor_at=old, failures=3)
        destination.waits.create(generation_id="gen-1")

    def is_new() -> bool:
        progress = BroadcastProgress.objects.get()
        return (progress.cursor_at > old, progress.failures, destination.waits.count()) == (
            True, 0, 0,
        )  # fmt: skip

    age()
    flag = "is_observability_broadcast_enabled"
    route = f"workspaces/{workspace.pk}"
    send(management, "PATCH", route, {flag: True})
    assert is_new()
    age()
    send(management, "PATCH", route, {flag: True})
    send(management, "PATCH", path, {"enabled": True})
    assert not is_new()
    send(management, "PATCH", path, {"enabled": False})
    assert not is_new()
    send(management, "PATCH", path, {"enabled": True})
    assert is_new()


def test_a_changed_receiver_is_tried_at_once(management: APIClient, tenant: Tenant) -> None:
    destination = make_destination(tenant.workspace)
    BroadcastProgress.objects.update(
        failures=5, failing_since=clock.now(), retry_at=clock.now(), last_error="HTTP 401", batch=1
    )
    path = f"{PATH}/{destination.pk}"
    failing = send(management, "PATCH", path, {"name": "x"}).json()["data"]["delivery"]
    assert (failing["state"], failing["last_error"]) == ("failing", "HTTP 401")
    config = {"headers": {"Authorization": "better"}}
    delivery = send(management, "PATCH", path, {"config": config}).json()["data"]["delivery"]
    assert (delivery["state"], delivery["last_error"], delivery["next_try_at"]) == (
        "delivering", None, None,
    )  # fmt: skip


def test_the_audit_log_hides_the_headers(management: APIClient) -> None:
    made = send(management, "POST", PATH, BODY).json()["data"]
    send(management, "PATCH", f"{PATH}/{made['id']}", {"config": {"headers": {"A": SECRET}}})
    management.delete(f"{ROUTE}/{made['id']}")
    entries = AuditEntry.objects.filter(kind="accounts.broadcastdestination")
    assert entries.count() == 3
    sealed = SECRET.encode().hex()
    for entry in entries:
        text = json.dumps([entry.before, entry.after])
        assert SECRET not in text
        assert sealed not in text


def test_rotated_keys_read_the_headers(tenant: Tenant, settings: Any) -> None:
    destination = make_destination(tenant.workspace)
    settings.CREDENTIAL_KEYS = [bytes(32), *settings.CREDENTIAL_KEYS]
    call_command("rotate_credential_keys", "--json")
    settings.CREDENTIAL_KEYS = [bytes(32)]
    destination.refresh_from_db()
    assert destination.receiver().headers == CONFIG["headers"]
