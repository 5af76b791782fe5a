"""Suspended organizations: what is refused, what goes on, and what the console offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from django.db import IntegrityError, transaction
from django.test import Client

from accounts.models import ApiKey, Organization
from config.api.errors import InvalidRequest
from config.audit.entries import AuditEntry
from inference.models import Generation
from tests.support import console, factories
from tests.support.database import snapshots
from tests.support.database.states import check_transition
from tests.support.factories import Tenant
from tests.support.governance import refusal
from tests.support.inference.site import Site
from tests.support.operators.four_eyes import press
from tests.support.processes import serve

REASON = "An invoice is open. Write to billing@example.com."
MESSAGE = f"The organization is suspended: {REASON}"
REFUSAL = refusal(403, "organization_suspended", MESSAGE)


def suspend(tenant: Tenant) -> None:
    organization = Organization.objects.get(pk=tenant.organization.pk)
    assert organization.suspend(reason=REASON, by="operator ann")


def resume(tenant: Tenant) -> None:
    assert Organization.objects.get(pk=tenant.organization.pk).resume()


def state_of(organization: Organization) -> str:
    return "suspended" if organization.is_suspended else "active"


@pytest.mark.parametrize(
    ("state", "transition_of", "expected"),
    [
        ("active", lambda row: row.suspend(reason=REASON, by="ann"), "suspended"),
        ("active", lambda row: row.suspend(reason=" ", by="ann"), InvalidRequest),
        ("active", lambda row: row.suspend(reason="a\nb", by="ann"), InvalidRequest),
        ("active", lambda row: row.suspend(reason="a" * 501, by="ann"), InvalidRequest),
        ("active", lambda row: row.resume(), False),
        ("suspended", lambda row: row.suspend(reason="Another.", by="bob"), False),
        ("suspended", lambda row: row.resume(), "active"),
    ],
)
def test_every_transition(
    tenant: Tenant, state: str, transition_of: Callable[[Organization], object], expected: Any
) -> None:
    if state == "suspended":
        suspend(tenant)
    row = Organization.objects.get(pk=tenant.organization.pk)
    check_transition(row, lambda: transition_of(row), expected, state_of)


def test_a_suspension_and_its_reason_belong_together(tenant: Tenant) -> None:
    rows = Organization.objects.filter(pk=tenant.organization.pk)
    with pytest.raises(IntegrityError), transaction.atomic():
        rows.update(suspension_reason=REASON)
    suspend(tenant)
    with pytest.raises(IntegrityError), transaction.atomic():
        rows.update(suspension_reason="")


@pytest.fixture(params=[1, 2], ids=["one worker", "two workers"])
def everywhere(request: pytest.FixtureRequest, site: Site) -> Iterator[Callable[..., list[Any]]]:
    """Returns a function that sends 16 requests in parallel; every worker receives some of them."""

    def ask(address: str) -> Callable[..., list[requests.Response]]:
        def chat(**fields: Any) -> list[requests.Response]:
            site.server = address
            with ThreadPoolExecutor(8) as pool:
                return list(pool.map(lambda _: site.chat(**fields), range(16)))

        return chat

    if request.param == 1:
        yield ask(site.server)
    else:
        with serve("--workers", "2") as served:
            yield ask(served.address)


def test_every_worker_refuses_the_next_request(
    site: Site, everywhere: Callable[..., list[requests.Response]]
) -> None:
    site.publish()
    stranger = factories.make_tenant("Other")
    assert {answer.status_code for answer in everywhere()} == {200}
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    stored = Generation.objects.count()
    site.upstream.clear()

    suspend(site.tenant)

    answers = everywhere()
    assert {answer.status_code for answer in answers} == {403}
    assert all(answer.json() == REFUSAL for answer in answers)
    assert {answer.status_code for answer in everywhere()} == {403}
    assert Generation.objects.count() == stored
    assert site.dialled() == []
    assert site.post(site.chat_body(), key=stranger.api_key).status_code == 200

    resume(site.tenant)
    assert {answer.status_code for answer in everywhere()} == {200}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}),
        ("/api/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/api/v1/responses", {"input": "Hi"}),
        ("/api/v1/completions", {"prompt": "Hi"}),
        ("/api/v1/embeddings", {"input": "Hi"}),
    ],
)
def test_every_face_refuses_in_its_format(site: Site, path: str, body: dict[str, Any]) -> None:
    site.publish()
    suspend(site.tenant)

    answer = site.post({"model": site.model.slug, **body}, path=path)

    assert answer.status_code == 403
    assert answer.json()["error"]["message"] == MESSAGE


def test_a_repeat_of_a_kept_answer_is_refused_too(site: Site) -> None:
    site.publish()
    headers = {"Idempotency-Key": "once"}
    assert site.post(site.chat_body(), headers=headers).status_code == 200
    site.settled()
    suspend(site.tenant)

    assert site.post(site.chat_body(), headers=headers).json() == REFUSAL


def test_a_running_stream_goes_on_and_is_billed(site: Site) -> None:
    site.publish("sim-gated", price=factories.make_price())
    with site.post(site.chat_body(stream=True), stream=True) as answer:
        chunks = answer.iter_content(None)
        first = next(chunks)
        suspend(site.tenant)
        site.upstream.release(20)
        text = (first + b"".join(chunks)).decode()
    assert text.endswith("data: [DONE]\n\n")
    assert site.settled().status == Generation.Status.COMPLETED
    assert site.settled().cost_nano > 0
    assert site.chat().status_code == 403


def test_management_keys_still_work(site: Site) -> None:
    site.publish()
    suspend(site.tenant)
    client = factories.client(site.tenant.management_key)

    for path in ("keys", "credits", "activity", "workspaces", "private-endpoints", "end-users"):
        assert client.get(f"/api/v1/{path}").status_code == 200
    key = ApiKey.objects.get(name="inference")
    assert key.is_usable


def test_the_console_suspends_and_resumes(operator: Client, tenant: Tenant) -> None:
    row = tenant.organization
    path = console.page(row, "suspend")
    with snapshots.unchanged():
        refused = press(operator, row, "suspend", reason=" ")
    assert "This field is required." in refused.content.decode()
    assert console.page(row, "resume") not in operator.get(console.page(row)).content.decode()

    press(operator, row, "suspend", reason=REASON)
    row.refresh_from_db()
    assert (row.is_suspended, row.suspension_reason) == (True, REASON)
    assert row.suspended_by == "operator operator"
    entry = AuditEntry.objects.filter(kind="accounts.organization").latest("id")
    assert entry.after["suspension_reason"] == REASON
    shown = operator.get(console.page(row)).content.decode()
    assert REASON in shown
    assert path not in shown

    press(operator, row, "resume")
    row.refresh_from_db()
    assert (row.is_suspended, row.suspension_reason, row.suspended_by) == (False, "", "")
