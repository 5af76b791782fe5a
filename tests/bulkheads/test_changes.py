"""A change touches what it changed: neighbours are served, and pay what is true at that moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle

import requests

from catalog.models import ModelEndpoint, PriceVersion
from inference.models import Generation
from tests.support import factories
from tests.support.bulkheads.counters import read_counter
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail
from tests.support.inference.site import CHAT, Site
from tests.support.ledger import assert_in_order
from tests.support.machine.waiting import wait_until

MICRO = 1e-6


@dataclass(frozen=True)
class Answer:
    key: str
    began_at: float
    ended_at: float
    status: int
    price: int | None


@dataclass
class Callers:
    """Callers who ask two hosts in turn, each as soon as the last answer is there."""

    hosts: tuple[str, str]
    body: dict[str, object]
    keys: list[str]
    answers: list[Answer] = field(default_factory=list)

    @contextmanager
    def asking(self) -> Iterator[None]:
        over = threading.Event()
        threads = [threading.Thread(target=self._ask, args=(key, over)) for key in self.keys]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.answers) >= count)

    def _ask(self, key: str, over: threading.Event) -> None:
        hosts = cycle(self.hosts)
        with requests.Session() as session:
            while not over.is_set():
                began_at = time.monotonic()
                response = session.post(
                    f"{next(hosts)}{CHAT}",
                    json=self.body,
                    headers={"Authorization": f"Bearer {key}"},
                    timeout=60,
                )
                usage = response.json().get("usage")
                price = None
                if usage is not None:
                    price = round(usage["cost"] / usage["prompt_tokens"] / MICRO)
                self.answers.append(
                    Answer(key, began_at, time.monotonic(), response.status_code, price)
                )


def set_price(endpoint: ModelEndpoint, micro: int) -> None:
    price = factories.make_price(f"0.{micro:06d}", "0")
    endpoint.price = PriceVersion.of(subject_id=endpoint.pk, price=price)
    endpoint.price.save()
    endpoint.save_fields("price")


def read_reads(host: str) -> tuple[float, float, float]:
    """Returns how often a host has read the whole catalogue, a patch, and an organization."""
    name = "causeway_catalog_reads_total"
    return (
        read_counter(host, name, kind="whole"),
        read_counter(host, name, kind="patch"),
        read_counter(host, "causeway_organization_loads_total"),
    )


def test_every_answer_pays_a_price_that_was_current_while_it_ran(
    site: Site, hosts: tuple[str, str], neighbours: list[Tenant]
) -> None:
    endpoint = site.publish(price=factories.make_price("0.000001", "0"))
    callers = Callers(hosts, site.chat_body(), [each.api_key for each in neighbours[:6]])
    # When each price began to be set, and when the next one was surely there.
    begins, ends = {1: 0.0}, {}
    with callers.asking():
        callers.wait_for(12)
        for micro in range(2, 32):
            begins[micro] = time.monotonic()
            set_price(endpoint, micro)
            ends[micro - 1] = time.monotonic()
            callers.wait_for(len(callers.answers) + 3)
    ends[31] = time.monotonic()
    assert {answer.status for answer in callers.answers} == {200}
    for answer in callers.answers:
        assert answer.price is not None
        assert begins[answer.price] <= answer.ended_at
        assert ends[answer.price] >= answer.began_at
    assert len({answer.price for answer in callers.answers}) > 20
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert_in_order()


def test_a_change_of_prices_reads_no_whole_catalogue_and_no_organization(
    site: Site, hosts: tuple[str, str], neighbours: list[Tenant]
) -> None:
    endpoint = site.publish()
    callers = Callers(hosts, site.chat_body(), [each.api_key for each in neighbours[:4]])
    with callers.asking():
        callers.wait_for(40)
        before = [read_reads(host) for host in hosts]
        for micro in range(2, 12):
            set_price(endpoint, micro)
            callers.wait_for(len(callers.answers) + 4)
    assert {answer.status for answer in callers.answers} == {200}
    for host, (whole, patches, loads) in zip(hosts, before, strict=True):
        found = read_reads(host)
        assert found[0] == whole
        assert found[1] > patches
        assert found[2] == loads
    assert_in_order()


def test_an_organization_that_changes_all_the_time_refuses_no_neighbour(
    site: Site, hosts: tuple[str, str], neighbours: list[Tenant]
) -> None:
    site.publish()
    noisy, *others = neighbours[:5]
    keys = [each.api_key for each in (noisy, *others)]
    callers = Callers(hosts, site.chat_body(), keys)
    with callers.asking():
        callers.wait_for(10)
        for _ in range(30):
            make_guardrail(noisy.workspace)
            callers.wait_for(len(callers.answers) + 2)
    # A request of the organization itself may give up: its data changed with each try.
    assert {each.status for each in callers.answers if each.key != noisy.api_key} == {200}
    assert {each.status for each in callers.answers} <= {200, 503}
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert_in_order()
