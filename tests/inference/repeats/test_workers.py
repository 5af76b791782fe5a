"""Idempotency over the workers of a service, and after the end of one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from billing.models import Transfer
from inference.models import Generation, IdempotentRequest
from tests.support import factories
from tests.support.bulkheads.leases import end_leases, sweep
from tests.support.inference.repeats import is_replayed, keep_answers, send
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.processes import serve

CLIENTS = 50


@pytest.mark.parametrize("stream", [False, True])
def test_fifty_clients_with_one_key_make_one_call_and_one_charge(
    service: Site, together: Callable[..., list[Any]], stream: bool
) -> None:
    keep_answers(service.tenant)
    service.publish("sim-slow:1,0.02", model=(slow := factories.make_model("acme/slow")))
    body = {**service.chat_body("one two three", stream=stream), "model": slow.slug}
    answers = together(*[lambda: send(service, body)] * CLIENTS)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert sum(map(is_replayed, answers)) == CLIENTS - 1
    assert len(service.dialled()) == 1
    service.settled()
    assert Transfer.objects.filter(kind="usage").count() == 1
    assert_in_order()


def test_fifty_clients_without_kept_answers_make_one_call(
    service: Site, together: Callable[..., list[Any]]
) -> None:
    service.publish("sim-slow:1,0.02", model=(slow := factories.make_model("acme/slow")))
    body = {**service.chat_body("one two three"), "model": slow.slug}
    answers = together(*[lambda: send(service, body)] * CLIENTS)
    assert sorted({answer.status_code for answer in answers}) == [200, 409]
    [first] = [answer for answer in answers if answer.status_code == 200]
    assert {
        answer.json()["error"]["metadata"]["generation_id"]
        for answer in answers
        if answer.status_code == 409
    } == {first.json()["id"]}
    assert len(service.dialled()) == 1
    service.settled()
    assert_in_order()


def workers_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_key_of_a_killed_worker_is_free_when_its_generation_is_swept(site: Site) -> None:
    """Nothing was delivered, so the sweeper charges nothing, and the key can be used again."""
    site.publish("sim-held")
    keep_answers(site.tenant)
    lease = "5"
    with (
        serve("--workers", "2", HOLD_TIMEOUT=lease) as served,
        ThreadPoolExecutor(1) as pool,
    ):
        site.server = served.address
        lost = pool.submit(send, site)
        site.eventually(lambda: len(site.dialled()) == 1)
        for worker in workers_of(served.process.pid):
            os.kill(worker, signal.SIGKILL)
        with pytest.raises(requests.ConnectionError):
            lost.result()
        [generation] = Generation.objects.all()
        assert generation.status == "pending"
        end_leases(lease, site.eventually)
        sweep(lease)
        assert not Generation.objects.filter(status="pending").exists()
        assert IdempotentRequest.objects.get().generation_id == generation.pk
        site.upstream.release(10)
        again = send(site)
    assert (again.status_code, is_replayed(again)) == (200, False)
    assert again.json()["id"] != generation.pk
    assert_in_order()
