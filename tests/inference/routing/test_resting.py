"""An own credential that its provider refuses rests for a minute while another one is left."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils.dateparse import parse_datetime

from accounts.models import ByokCredential, CredentialRest
from config.clocks.clock import clock
from config.credentials import Secret
from config.egress.rules import TimeLimits
from endpoints.models import PrivateEndpoint
from inference.routing.health import Health, HealthState, HealthTable, rest_of, subject_of
from inference.settlement.journal import MARK_RESTS
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.inference.routes import credential, planned, route, used
from tests.support.inference.site import Site

SERVED = route("x", "1")
REST = rest_of(subject_of(SERVED.endpoint_id, credential("x").credential_id), 1)
START = 1_800_000_000.0
WORKING = {"state": "working", "since": None, "upstream_status": None}
MINUTE = timedelta(minutes=1)
BAD, GOOD = "bad-secret-0123456789", "good-secret-9876543210"


def secrets_sent(site: Site, status: int = 200) -> list[str]:
    """Sends a request, and returns the secrets of its attempts."""
    site.upstream.clear()
    assert site.chat().status_code == status
    return [each.headers["authorization"].split()[1] for each in site.upstream.requests]


def test_a_refused_credential_rests_and_a_renewed_secret_ends_the_rest(site: Site) -> None:
    site.publish()
    own = factories.make_credential(site.tenant, site.provider, BAD)
    [refused, operators] = secrets_sent(site)
    assert refused == BAD
    manager = factories.client(site.tenant.management_key)

    def health() -> Any:
        return manager.get(f"/api/v1/byok/{own.pk}").json()["data"]["health"]

    site.eventually(lambda: health()["state"] == "resting")
    shown = health()
    [row] = manager.get("/api/v1/byok").json()["data"]
    assert row["health"] == shown
    assert (shown["state"], shown["upstream_status"]) == ("resting", 401)
    assert CredentialRest.objects.get().since == parse_datetime(shown["since"])
    assert [secrets_sent(site) for _ in range(3)] == [[operators]] * 3
    renewed = manager.patch(f"/api/v1/byok/{own.pk}", {"key": GOOD})
    assert renewed.status_code == 200, renewed.content
    assert health() == WORKING
    assert secrets_sent(site) == [GOOD]
    CredentialRest.objects.create(
        credential=own, upstream_status=403, since=clock.now(), seen_at=clock.now() - MINUTE
    )
    assert health() == WORKING


def test_an_accepted_credential_is_shown_as_working(site: Site) -> None:
    endpoint = site.own("sim-status:402")
    assert site.chat().status_code == 502
    site.eventually(lambda: CredentialRest.objects.filter(upstream_status=402).exists())
    PrivateEndpoint.objects.filter(pk=endpoint.pk).update(upstream_model_id="sim-echo")
    endpoint.refresh_from_db()
    endpoint.limit_time(TimeLimits(total=60))
    assert site.chat().status_code == 200
    site.eventually(lambda: not CredentialRest.objects.exists())


def test_refusals_of_a_replaced_or_removed_secret_are_not_noted(tenant: Tenant) -> None:
    provider = factories.make_provider("acme")
    own = [factories.make_credential(tenant, provider, f"{number}-{GOOD}") for number in "123"]
    labels = [each.label for each in own]
    own[1].rotate(Secret(f"{BAD}-9"))
    own[2].remove()
    sent = [
        {"credential_id": str(each.pk), "label": label, "status": 401}
        for each, label in zip(own, labels, strict=True)
    ]
    with connection.cursor() as cursor:
        for _ in range(2):
            cursor.execute(MARK_RESTS.text.replace("$1", "%s"), [json.dumps(sent)])
    assert CredentialRest.objects.get().credential == own[0]


def test_a_refused_credential_is_tried_while_no_other_is_left(site: Site) -> None:
    site.own()
    ByokCredential.objects.get().rotate(Secret(BAD))
    for _ in range(2):
        assert secrets_sent(site, 502) == [BAD]


def test_one_request_probes_after_the_rest() -> None:
    table = HealthTable()
    table.begin_rest(REST, START)
    assert table.health(REST, START + 59.9).state is HealthState.RATE_LIMITED
    assert table.health(REST, START + 61).state is HealthState.HALF_OPEN
    assert [table.claim(REST, START + 61) for _ in range(3)] == [True, False, False]
    table.begin_rest(REST, START + 62)
    assert table.health(REST, START + 119).state is HealthState.RATE_LIMITED
    assert table.claim(REST, START + 123)
    assert table.end_rest(REST, START + 124)
    assert not table.end_rest(REST, START + 125)
    assert table.health(REST, START + 124).state is HealthState.HEALTHY
    assert not table.end_rest(rest_of(REST, 2), START)


def test_workers_share_a_rest() -> None:
    one, other = HealthTable(), HealthTable()
    one.begin_rest(REST, START)
    rows: list[Any] = [[getattr(each, name) for name in each.__slots__] for each in one.outgoing()]
    other.merge(rows, START)
    assert other.health(REST, START + 30).state is HealthState.RATE_LIMITED
    assert other.health(REST, START + 66).state is HealthState.HALF_OPEN


def test_a_resting_credential_comes_last_whoever_pays() -> None:
    def resting(state: HealthState) -> dict[str, Any]:
        return {
            "health_of": lambda subject: Health(state if subject == REST else HealthState.HEALTHY)
        }

    routes, credentials = [SERVED, route("y", "9")], [credential("x")]
    for state, expected in (
        (HealthState.RATE_LIMITED, ["operator-x", "own-x", "operator-y"]),
        (HealthState.HALF_OPEN, ["own-x", "operator-x", "operator-y"]),
        (HealthState.HEALTHY, ["own-x", "operator-x", "operator-y"]),
    ):
        options = resting(state)
        assert used(planned(routes, credentials=credentials, options=options)) == expected
    options = resting(HealthState.HALF_OPEN)
    found = planned(routes, credentials=credentials, options=options, allow_fallbacks=False)
    assert used(found)[0] == "operator-x"
    # A renewed secret has a rest of its own.
    renewed = [credential("x", version=2)]
    options = resting(HealthState.RATE_LIMITED)
    assert used(planned(routes, credentials=renewed, options=options))[0] == "own-x"
