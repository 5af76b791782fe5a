"""A change touches what it changed: neighbours are served, and pay what is true at that moment."""

from __future__ import annotations

import time

from catalog.models import ModelEndpoint
from tests.support import factories
from tests.support.bulkheads.counters import read_counter
from tests.support.bulkheads.load import Load, Sent
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order, assert_settled_in_order

MICRO = 1e-6


def price_of(sent: Sent) -> int:
    """Returns what a prompt token of an answer cost, in millionths of a dollar."""
    assert sent.usage is not None
    return round(sent.usage["cost"] / sent.usage["prompt_tokens"] / MICRO)


def set_price(endpoint: ModelEndpoint, micro: int) -> None:
    factories.set_price(endpoint, factories.make_price(f"0.{micro:06d}", "0"))


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
    callers = Load(site, [each.api_key for each in neighbours[:6]], hosts=hosts)
    # When each price began to be set, and when the next one was surely there.
    begins, ends = {1: 0.0}, {}
    with callers:
        callers.wait_for(12)
        for micro in range(2, 32):
            begins[micro] = time.monotonic()
            set_price(endpoint, micro)
            ends[micro - 1] = time.monotonic()
            callers.wait_for(len(callers.sent) + 3)
    ends[31] = time.monotonic()
    assert {answer.status for answer in callers.sent} == {200}
    for answer in callers.sent:
        assert begins[price_of(answer)] <= answer.ended_at
        assert ends[price_of(answer)] >= answer.began_at
    assert len({price_of(answer) for answer in callers.sent}) > 20
    assert_settled_in_order()


def test_a_change_of_prices_reads_no_whole_catalogue_and_no_organization(
    site: Site, hosts: tuple[str, str], neighbours: list[Tenant]
) -> None:
    endpoint = site.publish()
    callers = Load(site, [each.api_key for each in neighbours[:4]], hosts=hosts)
    with callers:
        callers.wait_for(40)
        before = [read_reads(host) for host in hosts]
        for micro in range(2, 12):
            set_price(endpoint, micro)
            callers.wait_for(len(callers.sent) + 4)
    assert {answer.status for answer in callers.sent} == {200}
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
    callers = Load(site, keys, hosts=hosts)
    with callers:
        callers.wait_for(10)
        for _ in range(30):
            make_guardrail(noisy.workspace)
            callers.wait_for(len(callers.sent) + 2)
    # A request of the organization itself may give up: its data changed with each try.
    assert {each.status for each in callers.sent if each.key != noisy.api_key} == {200}
    assert {each.status for each in callers.sent} <= {200, 503}
    assert_settled_in_order()
