"""A provider's own limits: routing keeps within them before the provider refuses anything."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from catalog.models import Provider
from inference.models import Generation
from tests.support import factories
from tests.support.bulkheads.counters import read_counter
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order

LIMIT = 5


def limit(provider: Provider, **limits: int) -> None:
    Provider.objects.filter(pk=provider.pk).update(**limits)


def explained(site: Site) -> dict[str, Any]:
    found = site.post(site.chat_body(), path="/api/v1/routing/explain").json()
    data: dict[str, Any] = found["data"]
    return data


def first_two(site: Site) -> Provider:
    """Publishes the model cheaply at a provider that refuses the sixth request, and at another."""
    limit(site.provider, requests_per_minute=LIMIT)
    other = site.another_provider("other", name="Other AI")
    site.publish(f"sim-limited:{LIMIT}")
    site.publish("sim-echo", provider=other, price=factories.make_price(prompt="0.00001"))
    return other


def ask(site: Site, **fields: Any) -> Any:
    return site.chat(provider={"sort": "price"}, **fields)


def test_another_provider_takes_over_before_the_first_refuses(site: Site) -> None:
    first_two(site)
    before = read_counter(site.server, "causeway_paced_requests_total", provider="acme")
    answers = [ask(site) for _ in range(LIMIT + 4)]
    assert [answer.status_code for answer in answers] == [200] * (LIMIT + 4)
    assert [answer.json()["provider"] for answer in answers] == (
        ["Acme AI"] * LIMIT + ["Other AI"] * 4
    )
    after = read_counter(site.server, "causeway_paced_requests_total", provider="acme")
    assert after - before == 4
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    # No attempt failed, so no upstream has sent 429.
    assert Counter(len(row.attempts) for row in Generation.objects.all()) == {1: LIMIT + 4}
    assert_in_order()


def test_hosts_share_what_they_have_sent(site: Site, hosts: tuple[str, str]) -> None:
    first_two(site)
    one, two = (replace(site, server=address) for address in hosts)
    assert {ask(one).json()["provider"] for _ in range(LIMIT)} == {"Acme AI"}

    def excluded(host: Site) -> bool:
        return ["provider_limit"] in [each["excluded_by"] for each in explained(host)["excluded"]]

    site.eventually(lambda: excluded(two))
    site.eventually(lambda: ask(two, max_tokens=16).json()["provider"] == "Other AI")
    known = Generation.objects.count()
    answers = [ask(two) for _ in range(4)]
    assert [answer.json()["provider"] for answer in answers] == ["Other AI"] * 4
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    # The first provider was not asked: its 429 would lead to the other one too.
    last = Generation.objects.order_by("-created_at")[:4]
    assert Generation.objects.count() == known + 4
    assert [len(row.attempts) for row in last] == [1] * 4


def test_a_request_is_refused_when_all_providers_are_at_their_limits(site: Site) -> None:
    limit(site.provider, requests_per_minute=2)
    site.publish()
    assert [site.chat().status_code for _ in range(2)] == [200, 200]
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    answer = site.chat()
    assert answer.status_code == 429
    error = answer.json()["error"]
    assert error["metadata"]["error_type"] == "provider_limit"
    assert [each["excluded_by"] for each in error["metadata"]["excluded"]] == [["provider_limit"]]
    assert 1 <= int(answer.headers["Retry-After"]) <= 65
    assert len(site.dialled()) == 2
    assert Generation.objects.count() == 2
    assert_in_order()


def test_tokens_of_answers_count(site: Site) -> None:
    limit(site.provider, tokens_per_minute=1000)
    site.publish("sim-tokens:600,500")
    assert site.chat().status_code == 200
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert site.chat().status_code == 429
    assert len(site.dialled()) == 1


def test_an_own_credential_is_not_paced_by_the_operators_limit(site: Site) -> None:
    limit(site.provider, requests_per_minute=1)
    site.publish()
    factories.make_credential(site.tenant, site.provider)
    assert [site.chat().status_code for _ in range(3)] == [200] * 3
    rows = Generation.objects.all()
    site.eventually(lambda: not rows.filter(status="pending").exists())
    assert {row.is_byok for row in rows} == {True}


def test_refused_admissions_count_nothing(site: Site) -> None:
    limit(site.provider, requests_per_minute=1)
    site.publish()
    poor = factories.make_tenant("Poor", credits_usd=0)
    refused = [site.post(site.chat_body(), key=poor.api_key).status_code for _ in range(3)]
    assert refused == [402] * 3
    assert site.chat().status_code == 200
