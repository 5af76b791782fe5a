"""Budgets of bodies and requests: what a tenant may take of a worker, and who notices."""

from __future__ import annotations

import itertools
import json
import select
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from accounts.models import ApiKey, Organization
from endusers.models import EndUser
from inference.models import Generation
from tests.support import factories
from tests.support.attack import Answer, Line, connect, head_of
from tests.support.bulkheads.counters import read_counter
from tests.support.contract import document
from tests.support.factories import Tenant
from tests.support.inference.site import CHAT, Site
from tests.support.processes import serve

BODY = 90_000
# A worker holds two such bodies for a key, four for an organization and six in all.
LIMITS = {
    "ORGANIZATION_CONCURRENCY": "6",
    "MAX_REQUEST_BYTES": "100000",
    "MAX_UPSTREAM_BYTES": "100000",
    "ORGANIZATION_BUFFERED_BYTES": "400000",
    "MAX_BUFFERED_BYTES": "600000",
}
END_USERS = "/api/v1/end-users"
FORM = "/admin/accounts/organization/add/"


def count_refused(site: Site, reason: str) -> float:
    return read_counter(site.server, "causeway_budget_refusals_total", reason=reason)


def assert_idle(site: Site) -> None:
    """Waits until the workers run nothing and hold nothing."""
    for gauge in ("causeway_running_requests", "causeway_buffered_bytes"):
        site.eventually(lambda name=gauge: read_counter(site.server, name) == 0)


@pytest.fixture(scope="module")
def _small_service(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    with django_db_blocker.unblock(), serve("--workers", "2", **LIMITS) as served:
        yield served.address


@pytest.fixture
def lines(site: Site, _small_service: str) -> Iterator[ExitStack]:
    """Runs the service; at the end the lines of the stack are closed, and all budgets are free."""
    site.server = _small_service
    site.publish()
    with ExitStack() as opened:
        yield opened
    assert_idle(site)


def is_answered(site: Site, line: Line, gauge: str, wanted: float) -> bool:
    """Waits until a line has an answer, or until a gauge shows that its request has begun."""
    answered = [False]

    def look() -> bool:
        answered[0] = bool(select.select([line.socket], [], [], 0)[0])
        return answered[0] or read_counter(site.server, gauge) == wanted

    site.eventually(look)
    return answered[0]


def begin(site: Site, lines: ExitStack, path: str, **headers: Any) -> Answer | None:
    """Announces a body and sends none of it; returns the refusal, ``None`` if it is awaited."""
    held = read_counter(site.server, "causeway_buffered_bytes")
    line = lines.enter_context(connect(site.server))
    line.send(head_of("POST", path, Content_Length=BODY, **headers))
    if is_answered(site, line, "causeway_buffered_bytes", held + BODY):
        return line.receive_answer()
    return None


def fill(
    site: Site, lines: ExitStack, callers: Sequence[tuple[str, dict[str, str]]], reason: str
) -> Answer:
    """Lets callers begin requests in turn until one of the API is refused for this reason."""
    for path, headers in itertools.islice(itertools.cycle(callers), 60):
        before = count_refused(site, reason)
        answer = begin(site, lines, path, **headers)
        # The console refuses with a page.
        if answer is not None and path != FORM and count_refused(site, reason) > before:
            return answer
    raise AssertionError(f"nobody was refused for {reason}")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "Content_Type": "application/json"}


def keys_of(tenant: Tenant) -> list[tuple[str, dict[str, str]]]:
    """Three callers of one organization: on inference, and on the management routes."""
    _, further = ApiKey.objects.create_key(workspace=tenant.workspace, name="further")
    return [
        (CHAT, bearer(tenant.api_key)),
        (CHAT, bearer(further.reveal())),
        (END_USERS, bearer(tenant.management_key)),
    ]


def assert_refused(answer: Answer, status: int, error_type: str) -> None:
    assert (answer.status, answer.error["metadata"]) == (status, {"error_type": error_type})
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("index", range(3))
def test_a_key_holds_its_share_of_the_buffers(
    site: Site, lines: ExitStack, neighbour: Tenant, index: int
) -> None:
    caller = keys_of(site.tenant)[index]
    answer = fill(site, lines, [caller], "key_bytes")
    assert_refused(answer, 429, "rate_limit_exceeded")
    document.check("POST", caller[0], 429, "application/json", answer.body)
    assert site.chat().status_code == 200
    assert site.post(site.chat_body(), key=neighbour.api_key).status_code == 200
    assert Generation.objects.count() == 2
    assert not EndUser.objects.exists()


def test_an_organization_holds_its_share_of_the_buffers(
    site: Site, lines: ExitStack, neighbour: Tenant
) -> None:
    callers = keys_of(site.tenant)
    answer = fill(site, lines, callers, "organization_bytes")
    assert_refused(answer, 429, "rate_limit_exceeded")
    large = site.chat_body("x" * BODY)
    assert site.post(large, key=neighbour.api_key).status_code == 200
    assert Generation.objects.count() == 1


def test_a_full_worker_refuses_large_bodies_and_serves_small_ones(
    site: Site, lines: ExitStack, neighbour: Tenant, operator: Client
) -> None:
    session = {
        "Cookie": f"sessionid={operator.cookies['sessionid'].value}",
        "Content_Type": "application/x-www-form-urlencoded",
    }
    callers = [*keys_of(site.tenant), *keys_of(factories.make_tenant("Third")), (FORM, session)]
    answer = fill(site, lines, callers, "worker_bytes")
    assert_refused(answer, 503, "server")
    for _ in range(4):
        assert site.post(site.chat_body(), key=neighbour.api_key).status_code == 200
    assert Generation.objects.count() == 4


def test_a_chunked_body_is_counted_as_it_arrives(
    site: Site, lines: ExitStack, neighbour: Tenant
) -> None:
    piece = b"%x\r\n%b\r\n" % (15_000, b"x" * 15_000)
    sent: list[Line] = []
    while True:
        assert len(sent) < 30, "no request was refused"
        line = lines.enter_context(connect(site.server))
        key = bearer(site.tenant.api_key)
        line.send(head_of("POST", CHAT, Transfer_Encoding="chunked", **key))
        line.send_while_accepted(piece * 6)
        sent.append(line)
        if is_answered(site, line, "causeway_buffered_bytes", BODY * len(sent)):
            break
    assert_refused(sent[-1].receive_answer(), 429, "rate_limit_exceeded")
    assert site.post(site.chat_body(), key=neighbour.api_key).status_code == 200
    assert Generation.objects.count() == 1


@pytest.mark.parametrize("behaviour", ["sim-gated", "sim-stall"])
def test_a_stream_that_has_begun_holds_no_body(
    site: Site, lines: ExitStack, neighbour: Tenant, behaviour: str
) -> None:
    model = factories.make_model("acme/crane")
    site.publish(behaviour, model=model)
    asked = {**site.chat_body("x" * BODY), "model": model.slug, "stream": True}
    body = json.dumps(asked).encode()
    head = head_of("POST", CHAT, Content_Length=len(body), **bearer(site.tenant.api_key))
    line = lines.enter_context(connect(site.server))
    line.send(head + body)
    if behaviour == "sim-gated":
        site.eventually(lambda: bool(select.select([line.socket], [], [], 0)[0]))
        held = 0
    else:
        # Another candidate may need the body.
        site.eventually(lambda: len(site.dialled()) == 1)
        held = len(body)
    gauge = "causeway_buffered_bytes"
    site.eventually(lambda: read_counter(site.server, gauge) == held)
    site.eventually(lambda: read_counter(site.server, "causeway_running_requests") == 1)
    site.upstream.release()


def test_slow_management_requests_leave_threads_and_connections_to_others(
    service: Site, neighbour: Tenant
) -> None:
    organization = service.tenant.organization
    with ExitStack() as opened:
        with transaction.atomic():
            # Every insert of the organization waits for this lock.
            Organization.objects.select_for_update().get(pk=organization.pk)
            waiting = []
            for number in range(48):
                body = json.dumps({"user": f"customer-{number}"}).encode()
                waiting.append(opened.enter_context(connect(service.server)))
                head = bearer(service.tenant.management_key)
                waiting[-1].send(head_of("POST", END_USERS, Content_Length=len(body), **head))
                waiting[-1].send(body)
            service.eventually(
                lambda: read_counter(service.server, "causeway_running_requests") == 48
            )
            for number in range(4):
                answer = service.post(
                    {"user": f"neighbour-{number}"}, path=END_USERS, key=neighbour.management_key
                )
                assert answer.status_code == 201, answer.text
        # One that waits for the lock longer than a request may is told to come again.
        statuses = Counter(line.receive_answer().status for line in waiting)
    assert statuses.keys() <= {201, 503}
    assert EndUser.objects.filter(organization=organization).count() == statuses[201]
    assert_idle(service)


def test_an_organization_whose_upstream_hangs_is_refused_alone(
    site: Site, lines: ExitStack, neighbour: Tenant
) -> None:
    slow = factories.make_model("acme/sloth")
    site.publish("sim-stall", model=slow)
    body = json.dumps({**site.chat_body(), "model": slow.slug}).encode()
    refused = count_refused(site, "organization_concurrency")
    head = head_of("POST", CHAT, Content_Length=len(body), **bearer(site.tenant.api_key))
    running = 0
    while True:
        line = lines.enter_context(connect(site.server))
        line.send(head + body)
        if is_answered(site, line, "causeway_running_requests", running + 1):
            break
        running += 1
    answer = line.receive_answer()
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert answer.error["metadata"] == {"error_type": "rate_limit_exceeded"}
    assert "6 requests" in answer.error["message"]
    assert 6 <= running <= 12
    assert count_refused(site, "organization_concurrency") == refused + 1
    for _ in range(4):
        assert site.post(site.chat_body(), key=neighbour.api_key).status_code == 200
    assert Generation.objects.count() == running + 4
