"""Which requests are logged: never under zero data retention, a sample of others, no repeats."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection

from accounts.models import ApiKey
from inference.ids import new_generation_id
from inference.models import Generation, KeptAnswer, StoredText
from inference.texts.rules import LoggingRules
from tests.support.attack import connect, head_of
from tests.support.governance import make_guardrail
from tests.support.inference.repeats import (
    KEY,
    cache_status,
    is_replayed,
    keep_answers,
    send,
    wait_until_kept,
)
from tests.support.inference.site import CHAT, Site
from tests.support.texts.logged import ask_content, log_texts, read_content, wait_until_stored

ADDRESS = "ann@example.com"


def explained(site: Site, **fields: Any) -> Any:
    return site.explain(**fields)["io_logging"]


def assert_not_logged(site: Site, reason: str, **fields: Any) -> None:
    """Sends a request that is not logged, and then one that is, which is stored after it."""
    assert explained(site, **fields) == {
        "is_logged": False, "reason": reason, "sampling_rate": 0.0, "retention_days": 0,
    }  # fmt: skip
    answer = site.chat(**fields)
    assert answer.status_code == 200, answer.text
    site.wait_for_settlement()
    assert not StoredText.objects.exists()


def use_guardrail(site: Site, **limits: Any) -> None:
    """Gives the inference key a guardrail."""
    guardrail = make_guardrail(site.tenant.workspace, **limits)
    guardrail.assign_keys([ApiKey.objects.get(name="inference")], by="test")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_under_zero_data_retention_is_not_logged(logged: Site, stream: bool) -> None:
    logged.publish(zdr=True)
    assert_not_logged(logged, "zero_data_retention", provider={"zdr": True}, stream=stream)
    read_content(logged, logged.chat())
    assert StoredText.objects.count() == 1


def test_a_guardrail_that_demands_it_forbids_to_log(logged: Site) -> None:
    logged.publish(zdr=True)
    use_guardrail(logged, enforce_zdr=True)
    assert_not_logged(logged, "zero_data_retention")


def test_an_organization_that_demands_it_forbids_to_log(logged: Site) -> None:
    logged.publish(zdr=True)
    logged.tenant.organization.edit(requires_zdr=True)
    assert_not_logged(logged, "zero_data_retention")


def test_who_denies_the_collection_of_data_is_not_logged(storing: Site) -> None:
    assert_not_logged(storing, "data_collection", provider={"data_collection": "deny"})


def test_a_policy_against_training_is_no_obstacle(storing: Site) -> None:
    use_guardrail(storing, enable_paid_model_training=False)
    read_content(storing, storing.chat())


def test_the_explanation_names_the_settings(site: Site, settings: Any) -> None:
    site.publish()
    assert explained(site)["reason"] == "workspace"
    log_texts(site.tenant, io_logging_sampling_rate=Decimal("0.25"), io_logging_retention_days=7)
    assert explained(site) == {
        "is_logged": True, "reason": None, "sampling_rate": 0.25, "retention_days": 7,
    }  # fmt: skip
    settings.IO_LOGGING_DAYS = 3
    assert explained(site)["retention_days"] == 3
    settings.IO_LOGGING_DAYS = 0
    assert explained(site)["reason"] == "operator"
    settings.IO_LOGGING_DAYS = 30
    log_texts(site.tenant, io_logging_api_key_ids=[])
    assert explained(site)["reason"] == "api_key"


def test_a_sample_is_that_of_the_ids(site: Site) -> None:
    site.publish()
    rate = Decimal("0.5")
    log_texts(site.tenant, io_logging_sampling_rate=rate)
    rules = LoggingRules(rate)
    ids = [site.chat().headers["X-Generation-Id"] for _ in range(12)]
    chosen = {each for each in ids if rules.has_in_sample(each)}
    log_texts(site.tenant, io_logging_sampling_rate=Decimal(1))
    chosen.add(last := site.chat().headers["X-Generation-Id"])
    site.eventually(lambda: StoredText.objects.filter(pk=last).exists())
    assert set(StoredText.objects.values_list("pk", flat=True)) == chosen


def test_the_part_of_the_sample_is_the_rate() -> None:
    rules = LoggingRules(Decimal("0.1"))
    ids = [f"gen-1767225600-{number:020x}" for number in range(10_000)]
    assert sum(map(rules.has_in_sample, ids)) == 990
    assert not any(map(LoggingRules(Decimal(0)).has_in_sample, ids))
    assert LoggingRules().has_in_sample(new_generation_id())


def test_what_a_filter_removed_is_not_stored(logged: Site) -> None:
    logged.publish("sim-mirror")
    entry = {"slug": "email", "action": "redact", "label": "[EMAIL]"}
    use_guardrail(logged, content_filter_builtins=[entry])
    content = read_content(logged, logged.chat(f"write to {ADDRESS} now"))
    assert content["input"]["messages"][0]["content"] == "write to [EMAIL] now"
    assert ADDRESS not in str(content)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_given_again_is_stored_once(storing: Site, stream: bool) -> None:
    keep_answers(storing.tenant, is_response_caching_enabled=True)
    first = storing.chat(stream=stream)
    storing.eventually(lambda: KeptAnswer.objects.count() == 1)
    again = storing.chat(stream=stream)
    assert [cache_status(each) for each in (first, again)] == ["MISS", "HIT"]
    read_content(storing, first)
    last = storing.chat("another", stream=stream)
    read_content(storing, last)
    assert set(StoredText.objects.values_list("pk", flat=True)) == {
        each.headers["X-Generation-Id"] for each in (first, last)
    }


def test_a_repeat_with_its_key_is_stored_once(storing: Site) -> None:
    keep_answers(storing.tenant)
    first = send(storing, key=KEY)
    storing.eventually(lambda: KeptAnswer.objects.count() == 1)
    assert is_replayed(send(storing, key=KEY))
    assert re.search("You said", read_content(storing, first)["output"]["completion"])
    wait_until_stored(storing, 1)


def test_an_answer_is_stored_whose_caller_leaves_while_it_is_kept(storing: Site) -> None:
    keep_answers(storing.tenant, is_response_caching_enabled=True)
    storing.chat("known")
    wait_until_kept(storing)
    body = json.dumps(storing.chat_body("hello")).encode()
    head = head_of(
        "POST",
        CHAT,
        Authorization=f"Bearer {storing.tenant.api_key}",
        Content_Length=len(body),
        Content_Type="application/json",
    )
    session = connection.copy()
    try:
        session.set_autocommit(False)
        with session.cursor() as cursor:
            cursor.execute("LOCK TABLE inference_keptanswer IN SHARE MODE")
        with connect(storing.server) as line:
            line.send(head + body)
            storing.eventually(lambda: Generation.objects.filter(status="completed").count() == 2)
    finally:
        session.close()
    wait_until_stored(storing, 2)
    found = ask_content(storing, Generation.objects.latest("created_at").pk).json()["data"]
    assert found["output"]["completion"].startswith("Hello from the simulated upstream.")
