"""Rate limits refuse what is too much, say when to come back, and tell what is left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from accounts.models import ApiKey, RateLimit
from billing.budgets import MeterReading
from billing.models import Meter
from billing.rate_limits import (
    LimitScope,
    Rate,
    RateRule,
    describe_use,
    format_duration,
    render_headers,
    used_of,
)
from inference.models import Generation
from tests.support import factories
from tests.support.bulkheads.limits import is_early, limit, rate_of
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order

SCOPES = ["api_key", "workspace", "organization", "end_user"]


@pytest.mark.parametrize("model", [None, "acme/falcon"])
@pytest.mark.parametrize("scope", SCOPES)
def test_requests_per_minute_are_refused_from_the_limit_on(
    site: Site, scope: str, model: str | None
) -> None:
    site.publish()
    limits = {"requests_per_minute": 2}
    limit(site, scope, **({"models": {model: limits}} if model else limits))
    neighbour = factories.make_tenant("Neighbour")
    site.eventually(is_early)

    answers = [site.chat(user="customer-42") for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [rate_of(answer)["remaining-requests"] for answer in answers] == ["1", "0", "0"]
    refused = answers[2]
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert rate_of(refused)["limit-requests"] == "2"
    assert rate_of(refused)["reset-requests"].endswith("s")
    error = refused.json()["error"]
    assert error["metadata"]["error_type"] == "rate_limit_exceeded"
    told = error["metadata"]["rate_limit"]
    resets_at = datetime.fromisoformat(told.pop("resets_at"))
    assert (resets_at.second, resets_at.microsecond) == (0, 0)
    assert told == {
        "scope": scope,
        "name": "requests_per_minute",
        "limit": 2,
        "used": 2,
        "window": "minute",
        **({"model": model} if model else {}),
    }
    # The refusal changed nothing, and nobody else is limited.
    assert len(site.dialled()) == 2
    other = site.post(site.chat_body(user="customer-42"), key=neighbour.api_key)
    assert (other.status_code, rate_of(other)) == (200, {})
    if scope == "end_user":
        assert site.chat(user="customer-43").status_code == 200
        assert site.chat().status_code == 200
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert_in_order()


def test_a_change_of_a_limit_takes_effect_on_the_next_request(site: Site) -> None:
    site.publish()
    site.eventually(is_early)
    assert rate_of(site.chat()) == {}
    owner = limit(site, "api_key", requests_per_minute=2)
    # A key has a meter from its beginning, so the first request counts.
    assert rate_of(site.chat())["remaining-requests"] == "0"
    assert site.chat().status_code == 429
    RateLimit.objects.change(owner, {"requests_per_minute": 3})
    assert site.chat().status_code == 200
    assert site.chat().status_code == 429
    RateLimit.objects.change(owner, None)
    assert rate_of(site.chat()) == {}
    assert not RateLimit.objects.exists()


def test_requests_per_day_are_counted_until_midnight(site: Site) -> None:
    site.publish()
    limit(site, "api_key", requests_per_day=1)
    assert site.chat().status_code == 200
    refused = site.chat()
    assert refused.status_code == 429
    assert refused.json()["error"]["metadata"]["rate_limit"]["window"] == "day"
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    # Everything so far happened a day ago.
    key = ApiKey.objects.get(name="inference")
    meter = Meter.objects.get(subject_id=key.pk)
    Meter.objects.filter(pk=meter.pk).update(minute=meter.minute - timedelta(days=1))
    assert site.chat().status_code == 200
    assert site.chat().status_code == 429


def test_tokens_are_held_and_then_counted(site: Site) -> None:
    site.publish("sim-tokens:60,30")
    limit(site, "organization", tokens_per_minute=100)
    site.eventually(is_early)

    first = site.chat(max_tokens=40)

    assert first.status_code == 200
    held = 100 - int(rate_of(first)["remaining-tokens"])
    assert 40 < held < 60
    site.settled()
    meter = Meter.objects.get(subject_id=RateLimit.objects.get().subject_id)
    used = Generation.objects.values_list("prompt_tokens", "completion_tokens").get()
    assert (meter.tokens, meter.held_tokens, meter.running) == (sum(used), 0, 0)
    assert site.chat(max_tokens=90).status_code == 429
    assert len(site.dialled()) == 1
    assert_in_order()


def test_a_request_larger_than_the_limit_is_not_to_be_repeated(site: Site) -> None:
    site.publish()
    limit(site, "workspace", tokens_per_minute=50)
    refused = site.chat(max_tokens=51)
    assert refused.status_code == 429
    assert refused.headers["x-should-retry"] == "false"
    assert "Retry-After" not in refused.headers
    assert "Send a shorter prompt or a lower max_tokens." in refused.json()["error"]["message"]
    assert rate_of(refused)["remaining-tokens"] == "50"
    assert site.chat(max_tokens=5).status_code == 200


def test_concurrent_requests_are_counted_until_they_end(site: Site) -> None:
    site.publish("sim-held")
    limit(site, "end_user", concurrent_requests=2)
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(site.chat, user="customer-42") for _ in range(2)]
        site.eventually(lambda: len(site.dialled()) == 2)
        refused = site.chat(user="customer-42")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert rate_of(refused) == {}
        site.upstream.release(2)
        assert [each.result().status_code for each in running] == [200, 200]
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    site.upstream.release(1)
    assert site.chat(user="customer-42").status_code == 200
    assert_in_order()


@pytest.mark.parametrize("stream", [False, True])
def test_one_request_after_another_is_one_at_a_time(site: Site, *, stream: bool) -> None:
    site.publish()
    limit(site, "api_key", concurrent_requests=1)
    statuses = [site.chat(stream=stream).status_code for _ in range(12)]
    # A stream ends for its caller before it is settled: on a busy machine one may come too early.
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) >= 10
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert_in_order()


def test_streams_and_failures_carry_the_headers(site: Site) -> None:
    site.publish()
    limit(site, "api_key", requests_per_minute=100, tokens_per_minute=10_000)
    stream = site.chat(stream=True)
    assert (stream.status_code, rate_of(stream)["limit-requests"]) == (200, "100")
    message = site.post(site.chat_body(max_tokens=9), path="/api/v1/messages")
    assert (message.status_code, rate_of(message)["limit-tokens"]) == (200, "10000")
    broken = factories.make_model("acme/broken")
    site.publish("sim-status:500", model=broken)
    failed = site.chat(model=broken.slug)
    assert failed.status_code >= 500
    parts, kinds = ("limit", "remaining", "reset"), ("requests", "tokens")
    assert rate_of(failed).keys() == {f"{part}-{kind}" for part in parts for kind in kinds}


def test_a_limited_model_gives_way_to_the_next_one(site: Site) -> None:
    site.publish()
    second = factories.make_model("acme/owl")
    site.publish(model=second)
    # A limit may name a model by either of its slugs.
    permaslug = f"{site.model.slug}-2026-01-01"
    limit(site, "workspace", models={permaslug: {"requests_per_minute": 1}})
    site.eventually(is_early)
    body = {**site.chat_body(), "models": [site.model.slug, second.slug]}
    assert [site.post(body).json()["model"] for _ in range(2)] == [site.model.slug, second.slug]
    refused = site.chat()
    assert refused.status_code == 429
    assert refused.json()["error"]["metadata"]["rate_limit"]["model"] == permaslug


def test_the_refusal_by_a_limit_of_a_model_tells_of_the_other_limits(site: Site) -> None:
    site.publish()
    of_model = {site.model.slug: {"tokens_per_minute": 50}}
    limit(site, "api_key", requests_per_minute=100, models=of_model)
    refused = site.chat(max_tokens=51)
    assert refused.json()["error"]["metadata"]["rate_limit"]["model"] == site.model.slug
    told = rate_of(refused)
    assert (told["limit-requests"], told["remaining-requests"]) == ("100", "100")
    assert told["limit-tokens"] == "50"


def test_a_limit_of_a_model_counts_the_requests_that_may_fall_back_to_it(site: Site) -> None:
    site.publish("sim-status:500")
    second = factories.make_model("acme/owl")
    site.publish(model=second)
    owner = limit(site, "organization", models={second.slug: {"requests_per_minute": 1}})
    site.eventually(is_early)
    body = {**site.chat_body(), "models": [site.model.slug, second.slug]}
    answer = site.post(body)
    assert (answer.status_code, answer.json()["model"]) == (200, second.slug)
    # The limit is used up, so only the model that fails is left.
    assert site.post(body).status_code == 502
    assert len(site.dialled()) == 3
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    meter = Meter.objects.get(subject_id=owner.subject_id(second.slug))
    assert (meter.requests, meter.running) == (1, 0)
    assert_in_order()


def test_one_request_counts_for_the_limits_of_many_models(site: Site) -> None:
    site.publish()
    models = [site.model, *(factories.make_model(f"acme/owl-{number}") for number in range(5))]
    for model in models[1:]:
        site.publish(model=model)
    slugs = [model.slug for model in models]
    of_models = {slug: {"requests_per_minute": 50} for slug in slugs}
    owner = limit(site, "organization", requests_per_minute=50, models=of_models)
    answer = site.post({**site.chat_body(), "models": slugs})
    assert (answer.status_code, answer.json()["model"]) == (200, slugs[0])
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    subjects = [owner.subject_id(slug) for slug in slugs]
    meters = Meter.objects.filter(subject_id__in=subjects).values_list("requests", flat=True)
    assert list(meters) == [1] * 6


def test_the_lowest_limit_rules(site: Site) -> None:
    site.publish()
    limit(site, "organization", requests_per_minute=1)
    limit(site, "api_key", requests_per_minute=50)
    site.eventually(is_early)
    first = site.chat()
    assert rate_of(first)["limit-requests"] == "1"
    assert site.chat().json()["error"]["metadata"]["rate_limit"]["scope"] == "organization"


def test_a_limit_of_one_is_told_in_the_singular(site: Site) -> None:
    site.publish()
    limit(site, "end_user", requests_per_day=1)
    site.chat(user="customer-42")
    message = site.chat(user="customer-42").json()["error"]["message"]
    assert message == "This end user may make 1 request a day."


def test_a_missing_meter_is_no_permission(site: Site) -> None:
    site.publish()
    limit(site, "organization", requests_per_minute=5)
    Meter.objects.filter(subject_id=RateLimit.objects.get().subject_id).delete()
    assert site.chat().status_code == 503
    site.assert_nothing_happened()


NOW = datetime(2026, 3, 1, 23, 59, 30, tzinfo=UTC)


def reading(**changes: object) -> MeterReading:
    zero = MeterReading(UUID(int=1), NOW.date(), *[0] * 10, 0, None, 0, None, 0, 0, 0, 0)
    return zero._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rate", "used"),
    [
        (Rate.REQUESTS_PER_MINUTE, 3),
        (Rate.REQUESTS_PER_DAY, 6),
        (Rate.TOKENS_PER_MINUTE, 55),
        (Rate.CONCURRENT_REQUESTS, 2),
    ],
)
def test_a_window_ends_with_the_minute_or_the_day(rate: Rate, used: int) -> None:
    meter = reading(
        requests=10, requests_before=7, requests_before_day=4, tokens=100, tokens_before=50,
        held_tokens=5, running=2, minute=NOW.replace(second=0),
    )  # fmt: skip
    assert used_of(rate, meter, NOW) == used
    tomorrow = NOW + timedelta(seconds=30)
    later = {Rate.TOKENS_PER_MINUTE: 5, Rate.CONCURRENT_REQUESTS: 2}.get(rate, 0)
    assert used_of(rate, meter, tomorrow) == later
    assert describe_use(rate, 99, meter, NOW).startswith(f"{used} of 99 ")


def test_the_headers_tell_of_the_limit_with_the_least_left() -> None:
    meter = reading(requests=8, requests_before=0, requests_before_day=0, minute=NOW)
    limits = {Rate.REQUESTS_PER_MINUTE: 100, Rate.REQUESTS_PER_DAY: 10}
    rule = RateRule(LimitScope.API_KEY, meter.subject_id, limits)
    assert render_headers([rule], {meter.subject_id: meter}, NOW) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "30s",
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.012, "12ms"), (1, "1s"), (59.2, "60s"), (360, "6m0s"), (25_920, "7h12m0s")],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == text.replace("60s", "1m0s")
