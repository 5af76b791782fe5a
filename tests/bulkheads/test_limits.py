"""Rate limits are exact over two workers, survive a killed one, and speak to OpenAI's client."""

from __future__ import annotations

import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import openai
import pytest
import requests
from django.contrib.postgres.functions import TransactionNow

from accounts.models import RateLimit
from billing.models import Meter
from inference.models import Generation, Journal
from tests.support import factories
from tests.support.bulkheads.counters import read_counter
from tests.support.bulkheads.leases import sweep
from tests.support.bulkheads.limits import is_early, limit, rate_of
from tests.support.inference.site import CHAT, Site
from tests.support.ledger import assert_in_order, assert_settled_in_order
from tests.support.processes import Served, serve

AT_ONCE = 64


@pytest.fixture
def two_workers(site: Site, running_service: Served) -> Site:
    """The site, served by two workers."""
    site.server = running_service.address
    return site


def ask_at_once(site: Site, **fields: object) -> list[requests.Response]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda _: site.chat(**fields), range(AT_ONCE)))


@pytest.mark.parametrize("scope", ["api_key", "organization"])
def test_two_workers_admit_exactly_the_requests_of_a_minute(two_workers: Site, scope: str) -> None:
    site = two_workers
    site.publish()
    limit(site, scope, requests_per_minute=10)
    neighbour = factories.make_tenant("Neighbour")
    labels = {"scope": scope, "limit": "requests_per_minute"}
    counted = read_counter(site.server, "causeway_rate_limited_total", **labels)
    site.eventually(is_early)

    answers = ask_at_once(site)

    assert Counter(answer.status_code for answer in answers) == {200: 10, 429: AT_ONCE - 10}
    assert len(site.dialled()) == 10
    served = [rate_of(each) for each in answers if each.status_code == 200]
    assert min(int(each["remaining-requests"]) for each in served) == 0
    assert all("Retry-After" in each.headers for each in answers if each.status_code == 429)
    after = read_counter(site.server, "causeway_rate_limited_total", **labels)
    assert after == counted + AT_ONCE - 10
    other = site.post(site.chat_body(), key=neighbour.api_key)
    assert (other.status_code, rate_of(other)) == (200, {})
    assert_settled_in_order()


def test_two_workers_never_run_more_than_the_limit_at_once(two_workers: Site) -> None:
    site = two_workers
    site.publish("sim-held")
    limit(site, "workspace", concurrent_requests=3)
    for round_ in (1, 2):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            asked = [pool.submit(site.chat) for _ in range(AT_ONCE)]
            # Nothing is released before all others are refused, so all admitted ones are counted.
            site.eventually(lambda: sum(each.done() for each in asked) == AT_ONCE - 3)  # noqa: B023
            site.eventually(lambda: len(site.dialled()) == 3 * round_)  # noqa: B023
            site.upstream.release(3)
            statuses = Counter(each.result().status_code for each in asked)
        assert statuses == {200: 3, 429: AT_ONCE - 3}
        site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert_in_order()


def test_two_workers_keep_the_tokens_of_running_requests_within_the_limit(
    two_workers: Site,
) -> None:
    site = two_workers
    site.publish("sim-held")
    limit(site, "end_user", tokens_per_minute=1000)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [pool.submit(site.chat, user="customer-42", max_tokens=240) for _ in range(20)]
        site.eventually(lambda: sum(each.done() for each in asked) == 16)
        site.eventually(lambda: len(site.dialled()) == 4)
        site.upstream.release(4)
        statuses = Counter(each.result().status_code for each in asked)
    assert statuses == {200: 4, 429: 16}
    assert_settled_in_order()


def test_the_requests_of_a_killed_worker_stop_counting_after_its_lease(site: Site) -> None:
    site.publish("sim-held")
    limit(site, "organization", concurrent_requests=2, tokens_per_minute=10_000)
    with serve(HOLD_TIMEOUT="8") as served, ThreadPoolExecutor(2) as pool:
        site.server = served.address
        asked = [pool.submit(site.chat, max_tokens=100) for _ in range(2)]
        site.eventually(lambda: len(site.dialled()) == 2)
        assert site.chat().status_code == 429
        os.kill(served.process.pid, signal.SIGKILL)
        for each in asked:
            assert isinstance(each.exception(), requests.ConnectionError)
    meters = Meter.objects.filter(subject_id=RateLimit.objects.get().subject_id)
    assert meters.values_list("running", flat=True).get() == 2

    silent = Journal.objects.filter(beat_at__lt=TransactionNow() - timedelta(seconds=8))

    def has_stopped() -> bool:
        sweep("8")
        return meters.values_list("running", "held_tokens").get() == (0, 0)

    site.eventually(lambda: silent.count() == 2)
    site.eventually(has_stopped)
    assert_in_order()


def test_the_openai_sdk_reads_the_headers_and_obeys_the_refusal(two_workers: Site) -> None:
    site = two_workers
    site.publish()
    limit(site, "api_key", requests_per_minute=2, tokens_per_minute=5000)
    site.eventually(is_early)
    url = f"{site.server}{CHAT.removesuffix('/chat/completions')}"
    body = site.chat_body()
    with openai.OpenAI(base_url=url, api_key=site.tenant.api_key, max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(**body)
        assert raw.headers["x-ratelimit-limit-requests"] == "2"
        assert raw.headers["x-ratelimit-remaining-requests"] == "1"
        assert raw.headers["x-ratelimit-limit-tokens"] == "5000"
        assert int(raw.headers["x-ratelimit-remaining-tokens"]) < 5000
        assert raw.headers["x-ratelimit-reset-tokens"].endswith("s")
        client.chat.completions.create(**body)
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(**body)
        assert 0 < int(caught.value.response.headers["retry-after"]) <= 60
    RateLimit.objects.all().delete()
    limit(site, "api_key", tokens_per_minute=100)
    # A client that may retry asks once: repeating cannot help.
    sent = read_counter(site.server, "causeway_rate_limited_total")
    with (
        openai.OpenAI(base_url=url, api_key=site.tenant.api_key, max_retries=5) as client,
        pytest.raises(openai.RateLimitError),
    ):
        client.chat.completions.create(**body, max_tokens=101)
    assert read_counter(site.server, "causeway_rate_limited_total") == sent + 1
