"""Edge cases of money: the basis of a hold, and the cost of unusual answers and endings."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections
from django.utils import timezone

from billing.models import Account, Excess, Meter, Transfer
from catalog.dialects.base import Operation
from config.api.errors import Unauthenticated
from inference.admission.decide import Admission
from inference.models import EndpointHealth, Generation, Journal
from inference.routing.health import AttemptOutcome, HealthTable, subject_of
from inference.settlement.sweeper import sweep
from tests.support import factories
from tests.support.admission.entries import entry_of, parsed, worker
from tests.support.inference.endings import Ending, assert_ended, connected, hang_up, read_until
from tests.support.inference.site import (
    OPERATOR_SECRET,
    TENANT_SECRET,
    TEXT,
    Site,
    content_of,
    error_of,
    events_of,
)
from tests.support.ledger import assert_in_order
from tests.support.simulator.behaviours import BEHAVIOURS, ScriptedReply
from tests.support.simulator.protocol import Request, Script, Signal, http_response

CREDITS = 1_000 * 10**9
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
Teach = Callable[[Callable[[Request], Script]], str]


@pytest.fixture
def taught(monkeypatch: pytest.MonkeyPatch) -> Teach:
    """Returns a function that adds a behaviour to the upstream and returns its name."""

    def teach(script: Callable[[Request], Script]) -> str:
        monkeypatch.setitem(BEHAVIOURS, "sim-taught", ("what a test needs", script))
        return "sim-taught"

    return teach


def plain(body: dict[str, Any]) -> Script:
    return (http_response(200, json.dumps(body).encode()),)


def refusing(status: int) -> Script:
    return (f"HTTP/1.1 {status} No\r\ncontent-length: 0\r\n\r\n".encode(),)


def answer(request: Request, **changes: Any) -> dict[str, Any]:
    """Returns an answer without text, usage and finish reason, updated with ``changes``."""
    body = ScriptedReply.to(request).plain()
    del body["usage"]
    body["choices"][0] |= {"message": {"role": "assistant", "content": ""}, "finish_reason": None}
    return body | changes


def event(content: str, **members: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    body = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**body, "choices": [choice], **members}).encode() + b"\n\n"


def available(site: Site) -> int:
    return Account.objects.get(organization=site.tenant.organization, kind="credits").available


def seen(site: Site) -> dict[str, Any]:
    """Returns the body of the only request that reached the upstream."""
    [request] = site.dialled()
    return dict(request.body)


def assert_free(site: Site, row: Generation, status: str) -> None:
    """Asserts that a generation has ended without a charge and that its hold is released."""
    assert (row.status, row.prompt_tokens, row.completion_tokens) == (status, None, None)
    assert (row.cost_nano, row.upstream_cost_nano, row.is_estimated) == (0, 0, False)
    assert Transfer.objects.get(reference=row.pk).status == "voided"
    assert available(site) == CREDITS
    meter = Meter.objects.get(subject_id=row.api_key_id)
    assert (meter.cost, meter.held_cost) == (0, 0)
    assert_in_order()


@pytest.mark.parametrize("stream", [False, True])
def test_images_of_the_prompt_are_held_and_charged_alike(site: Site, stream: bool) -> None:
    site.publish(price=factories.make_price("0", "0", image="0.01"))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asked = site.chat([{"type": "text", "text": "hi"}, *[image] * 5], stream=stream)
    usage = events_of(asked.text)[-2]["usage"] if stream else asked.json()["usage"]
    assert usage["cost"] == usage["cost_details"]["upstream_inference_cost"] == 0.05
    row = site.settled()
    assert (row.hold_nano, row.cost_nano, row.upstream_cost_nano) == (5 * 10**7,) * 3
    assert available(site) == CREDITS - 5 * 10**7
    assert_in_order()


@pytest.mark.parametrize(
    ("listed", "asked", "sent"),
    [
        (["max_tokens"], {"max_completion_tokens": 7}, {"max_tokens": 7}),
        (["max_completion_tokens"], {"max_tokens": 7}, {"max_completion_tokens": 7}),
        (["max_tokens"], {"max_tokens": 7}, {"max_tokens": 7}),
        # The larger limit determines the hold.
        (["max_tokens"], {"max_tokens": 7, "max_completion_tokens": 9}, {"max_tokens": 9}),
        (["temperature"], {"max_completion_tokens": 7}, {"max_tokens": 7}),
        ([], {"max_completion_tokens": 7}, {"max_completion_tokens": 7}),
        (
            ["max_tokens", "max_completion_tokens"],
            {"max_completion_tokens": 7},
            {"max_completion_tokens": 7},
        ),
    ],
)
def test_the_token_limit_is_sent_under_the_name_that_the_endpoint_lists(
    site: Site, listed: list[str], asked: dict[str, int], sent: dict[str, int]
) -> None:
    site.publish(supported_parameters=listed)
    body = site.chat_body(**asked)
    assert site.post(body).status_code == 200
    assert {name: value for name, value in seen(site).items() if "max" in name} == sent
    assert site.settled().hold_nano == 1000 * parsed(body).prompt_bound + 2000 * max(sent.values())
    assert_in_order()


@pytest.mark.parametrize("listed", [[], ["max_completion_tokens"]])
def test_text_completions_ignore_max_completion_tokens(site: Site, listed: list[str]) -> None:
    site.publish(supported_parameters=listed)
    body = {"model": site.model.slug, "prompt": "hi", "max_tokens": 3}
    answered = site.post({**body, "max_completion_tokens": 5000}, path=TEXT)
    assert answered.status_code == 200
    assert {name: value for name, value in seen(site).items() if "max" in name} == {"max_tokens": 3}
    bound = parsed({**body, "max_completion_tokens": 5000}, Operation.TEXT).prompt_bound
    assert site.settled().hold_nano == 1000 * bound + 2000 * 3
    assert_in_order()


IMAGE = {"image_url": {"url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    ("part", "media"),
    [
        # An unknown part may be a file.
        ({"type": "note"}, 131_072),
        ({"type": "image_url", **IMAGE}, 48_169),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, 375),
    ],
)
def test_text_counts_in_a_part_of_any_type(site: Site, part: dict[str, Any], media: int) -> None:
    site.publish()
    short = site.chat_body([{**part, "text": ""}], max_tokens=10)
    long = site.chat_body([{**part, "text": "x" * 5000}], max_tokens=10)
    assert parsed(long).prompt_bound == parsed(short).prompt_bound + 5000
    assert site.post(long).status_code == 200
    assert site.settled().hold_nano == 1000 * (parsed(long).prompt_bound + media) + 2000 * 10
    assert_in_order()


def test_an_image_in_an_audio_part_does_not_lower_the_prompt_bound(site: Site) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    alone, both = (parsed(site.chat_body([part])) for part in (sound, {**sound, **IMAGE}))
    # The bound includes the member's name and punctuation, but not its value.
    assert both.prompt_bound == alone.prompt_bound + len(', "image_url": ')
    assert (alone.images, both.images) == (0, 1)


def test_output_after_an_early_usage_is_estimated(site: Site, taught: Teach) -> None:
    usage = {"prompt_tokens": 20, "completion_tokens": 0, "total_tokens": 20}

    def script(request: Request) -> Script:
        yield STREAM + event("", usage=usage) + event("word " * 20)
        yield Signal.STALL

    site.publish(taught(script))
    with connected(site) as line:
        read_until(line, b"word word")
        hang_up(line)
    # 100 bytes of answer at 4 bytes per token.
    assert_ended(site, Ending("cancelled", (20, 25), True))


@pytest.mark.parametrize("is_private_good", [True, False])
def test_a_budget_that_includes_own_credentials_covers_the_dearest_candidate_only(
    site: Site, is_private_good: bool
) -> None:
    site.allow_fallback()
    site.own("sim-echo" if is_private_good else "sim-status:503", price=factories.make_price())
    site.publish(provider=site.another_provider("public"))
    key = site.tenant.organization.api_keys.get(is_management=False)
    body = site.chat_body(max_tokens=100)
    worst = 1000 * parsed(body).prompt_bound + 2000 * 100
    key.edit(limit_nano=worst - 1, include_byok_in_limit=True)
    assert site.post(body).status_code == 402
    site.assert_nothing_happened()
    key.edit(limit_nano=worst)
    assert site.post(body).status_code == 200
    row = site.settled()
    assert (row.hold_nano, row.upstream_hold_nano, row.upstream_cost_nano) == (worst, 0, 10_000)
    cost, byok = (0, 10_000) if is_private_good else (10_000, 0)
    assert (row.is_byok, row.cost_nano) == (is_private_good, cost)
    meter = Meter.objects.get(subject_id=key.pk)
    assert (meter.cost, meter.byok, meter.held_cost, meter.held_byok) == (cost, byok, 0, 0)
    assert_in_order()


def health(site: Site) -> dict[Any, tuple[int, int]]:
    """Returns the successes and failures of each subject of health."""
    found: dict[Any, tuple[int, int]] = {}
    for row in EndpointHealth.objects.all():
        good, bad = found.get(row.endpoint_id, (0, 0))
        found[row.endpoint_id] = (good + row.successes, bad + row.failures)
    return found


def test_a_request_that_a_dialect_cannot_express_leaves_the_health_unchanged(site: Site) -> None:
    other = site.another_provider("other", dialect="anthropic")
    ailing = site.publish(provider=other)
    good = site.publish()
    picture = {"type": "image_url", "image_url": {"url": "ftp://example.com/cat.png"}}
    messages = [{"role": "user", "content": [picture]}]
    for _ in range(6):
        assert site.chat(messages=messages, provider={"only": ["other"]}).status_code == 400
    assert site.dialled() == []
    assert site.chat(provider={"only": ["acme"]}).status_code == 200
    site.eventually(lambda: health(site).get(good.pk) == (1, 0))
    assert ailing.pk not in health(site)
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert available(site) == CREDITS - 10_000
    assert_in_order()


def test_failures_of_an_own_credential_leave_the_shared_endpoint_healthy(site: Site) -> None:
    shared = site.publish("sim-flaky:6")
    own = factories.make_credential(site.tenant, site.provider, is_byok_only=True)
    assert [site.chat().status_code for _ in range(7)] == [503] * 6 + [200]
    used = {request.headers["authorization"] for request in site.dialled()}
    assert used == {f"Bearer {TENANT_SECRET}"}
    subject = subject_of(shared.pk, own.pk)
    site.eventually(lambda: health(site).get(subject) == (1, 6))
    assert shared.pk not in health(site)
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert available(site) == CREDITS
    assert_in_order()


def good_for(secret: str) -> Callable[[Request], Script]:
    """Returns a behaviour that answers requests with this credential, and others with 503."""

    def script(request: Request) -> Script:
        if request.headers["authorization"] == f"Bearer {secret}":
            return plain(ScriptedReply.to(request).plain())
        return refusing(503)

    return script


def publish_beta(site: Site) -> None:
    """Publishes the model at a dearer provider, which is asked next."""
    dear = factories.make_price("0.001", "0.001")
    site.publish(provider=site.another_provider("beta"), price=dear)


def who_answers(site: Site, key: str, **fields: Any) -> tuple[str, bool, int]:
    """Sends a request; returns the provider, whether it was BYOK and the number of attempts."""
    answered = site.post(site.chat_body(**fields), key=key)
    assert answered.status_code == 200
    row = Generation.objects.get(pk=answered.json()["id"])
    site.eventually(lambda: Generation.objects.get(pk=row.pk).status == "completed")
    row.refresh_from_db()
    return row.provider_name, row.is_byok, len(row.attempts)


def test_a_failing_operator_credential_does_not_affect_a_working_own_credential(
    site: Site, taught: Teach
) -> None:
    site.publish(taught(good_for(TENANT_SECRET)))
    publish_beta(site)
    stranger = factories.make_tenant("Stranger")
    factories.make_credential(stranger, site.provider)
    mine, theirs = site.tenant.api_key, stranger.api_key
    site.eventually(lambda: who_answers(site, mine, max_tokens=5) == ("Beta", False, 1))
    for _ in range(3):
        # Successes of an own credential do not close the circuit of the operator's.
        assert who_answers(site, theirs, max_tokens=5) == ("Acme AI", True, 1)
        assert who_answers(site, mine, max_tokens=5) == ("Beta", False, 1)


def test_a_failing_own_credential_does_not_affect_other_tenants(site: Site, taught: Teach) -> None:
    site.publish(taught(good_for(OPERATOR_SECRET)))
    publish_beta(site)
    stranger = factories.make_tenant("Stranger")
    factories.make_credential(stranger, site.provider)
    site.eventually(lambda: who_answers(site, stranger.api_key, max_tokens=5) == ("Beta", False, 1))
    assert who_answers(site, site.tenant.api_key, max_tokens=5) == ("Acme AI", False, 1)


def test_an_unhealthy_private_endpoint_is_no_longer_tried_first(site: Site) -> None:
    site.allow_fallback()
    site.own("sim-status:503")
    site.publish(provider=site.another_provider("beta"))
    assert who_answers(site, site.tenant.api_key) == ("Beta", False, 2)
    site.eventually(lambda: who_answers(site, site.tenant.api_key) == ("Beta", False, 1))


@pytest.mark.parametrize("leaves", [False, True])
def test_an_inconclusive_probe_is_followed_by_another_probe(
    site: Site, taught: Teach, leaves: bool
) -> None:
    calls: list[Request] = []

    def script(request: Request) -> Script:
        calls.append(request)
        if len(calls) <= 5:
            return refusing(503)
        if len(calls) > 6:
            return plain(ScriptedReply.to(request).plain())
        return (Signal.STALL,) if leaves else refusing(400)

    site.publish(taught(script))
    publish_beta(site)
    body = site.chat_body(max_tokens=5)
    for _ in range(6):
        assert site.post(body).json()["provider"] == "Beta"
    assert len(calls) == 5
    time.sleep(5)
    if leaves:
        with connected(site) as line:
            site.eventually(lambda: len(calls) == 6)
            hang_up(line)
        site.eventually(lambda: Generation.objects.filter(status="cancelled").exists())
    else:
        assert site.post(body).status_code == 400
    assert site.post(body).json()["provider"] == "Acme AI"


def test_a_refused_request_leaves_the_probe_to_the_next_request(site: Site) -> None:
    endpoint = site.publish()
    key = site.tenant.organization.api_keys.get(is_management=False)
    table, now = HealthTable(), time.time() - 10
    entry = entry_of(site)

    async def run() -> Sequence[Admission | BaseException]:
        async with worker(table) as (store, _):
            [first] = await store.admit([entry])
            for _ in range(5):
                table.record(endpoint.pk, AttemptOutcome.FAILURE, now=now)
            table.health(endpoint.pk, now)
            await sync_to_async(key.edit)(disabled=True)
            [second] = await store.admit([entry])
            await sync_to_async(key.edit)(disabled=False)
            third = await store.admit([entry, entry])
        await sync_to_async(connections.close_all)()
        return first, second, *third

    first, second, *third = asyncio.run(run())
    assert isinstance(first, Admission)
    assert first.probe is None
    assert isinstance(second, Unauthenticated)
    assert [isinstance(each, Admission) and each.probe for each in third] == [endpoint.pk, None]


@contextmanager
def nothing_settles() -> Iterator[None]:
    """Makes the database refuse to end generations until the block is left."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION nothing_settles() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'not now' USING ERRCODE = 'query_canceled'; END $$;"
            "CREATE TRIGGER nothing_settles BEFORE UPDATE ON inference_generation FOR EACH ROW"
            " WHEN (NEW.status <> 'pending') EXECUTE FUNCTION nothing_settles()"
        )
        try:
            yield
        finally:
            cursor.execute(
                "DROP TRIGGER nothing_settles ON inference_generation;"
                "DROP FUNCTION nothing_settles()"
            )


def test_the_sweeper_keeps_a_generation_whose_settlement_is_retried(site: Site) -> None:
    site.publish()
    with nothing_settles():
        assert site.chat(max_tokens=100).status_code == 200
        site.eventually(lambda: Journal.objects.exists())
        first = Journal.objects.get().beat_at
        site.eventually(lambda: Journal.objects.get().beat_at > first)
        # The generation is old enough to be swept; only its recent heartbeat prevents it.
        assert Generation.objects.update(created_at=timezone.now() - timedelta(hours=1)) == 1
        assert sweep() == 0
    row = site.settled()
    assert (row.status, row.prompt_tokens, row.completion_tokens) == ("completed", 2, 4)
    assert (row.cost_nano, row.is_estimated, row.error_type) == (10_000, False, None)
    assert available(site) == CREDITS - 10_000
    assert not Journal.objects.exists()
    assert_in_order()


def test_a_blank_answer_costs_nothing(site: Site, taught: Teach) -> None:
    site.publish(taught(lambda request: plain(answer(request))))
    answered = site.chat(max_tokens=100)
    assert (answered.status_code, answered.json()["usage"]["cost"]) == (200, 0)
    assert_free(site, site.settled(), "completed")


def test_an_answer_that_ended_in_an_error_reports_a_cost_of_zero(site: Site, taught: Teach) -> None:
    usage = {"prompt_tokens": 20, "completion_tokens": 0, "total_tokens": 20}

    def script(request: Request) -> Script:
        body = answer(request, usage=usage)
        body["choices"][0]["finish_reason"] = "error"
        return plain(body)

    site.publish(taught(script))
    shown = site.chat(max_tokens=100).json()["usage"]
    assert (shown["prompt_tokens"], shown["cost"]) == (20, 0)
    assert shown["cost_details"]["upstream_inference_cost"] == 0
    assert_free(site, site.settled(), "completed")


@pytest.mark.parametrize("stream", [False, True])
def test_an_infinite_number_in_the_usage_does_not_change_the_charge(
    site: Site, taught: Teach, stream: bool
) -> None:
    usage = (
        b'{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12,"seconds":1e999,'
        b'"cached_tokens":-1e999,"prompt_tokens_details":{"cached_tokens":1e999},"new":1e999}'
    )

    def script(request: Request) -> Script:
        if not stream:
            body = ScriptedReply.to(request).plain()
            del body["usage"]
            raw = json.dumps(body).encode()[:-1] + b',"usage":' + usage + b"}"
            return (http_response(200, raw),)
        last = b'data: {"id":"x","choices":[],"usage":' + usage + b"}\n\ndata: [DONE]\n\n"
        stop = {"index": 0, "delta": {}, "finish_reason": "stop"}
        return (STREAM + event("hi") + event("", choices=[stop]) + last, Signal.CLOSE)

    site.publish(taught(script))
    answered = site.chat(stream=stream, max_tokens=100)
    assert answered.status_code == 200
    if stream:
        events = events_of(answered.text)
        assert (content_of(events[:-1]), events[-1]) == ("hi", "[DONE]")
        shown = events[-2]["usage"]
    else:
        shown = answered.json()["usage"]
    expected = {"prompt_tokens": 5, "completion_tokens": 7, "cost": 0.000019}
    assert {name: shown[name] for name in expected} == expected
    row = site.settled()
    assert (row.status, row.finish_reason, row.is_estimated) == ("completed", "stop", False)
    assert (row.prompt_tokens, row.completion_tokens, row.cost_nano) == (5, 7, 19_000)
    assert available(site) == CREDITS - 19_000
    assert_in_order()


@pytest.mark.parametrize(
    ("listed", "has_own_credential"), [(["service_tier", "store"], False), ([], True)]
)
def test_parameters_that_raise_the_operators_cost_are_sent_if_listed_or_paid(
    site: Site, listed: list[str], *, has_own_credential: bool
) -> None:
    site.publish(supported_parameters=listed)
    if has_own_credential:
        factories.make_credential(site.tenant, site.provider)
    assert site.chat(service_tier="priority", store=True, max_tokens=9).status_code == 200
    found = {name: value for name, value in seen(site).items() if name in ("service_tier", "store")}
    assert found == {"service_tier": "priority", "store": True}
    assert site.settled().is_byok is has_own_credential
    assert site.dialled()[0].headers["authorization"] == (
        f"Bearer {TENANT_SECRET if has_own_credential else OPERATOR_SECRET}"
    )
    assert_in_order()


@pytest.mark.parametrize("listed", [[], ["max_tokens"], ["service_tier"]])
def test_parameters_that_raise_the_operators_cost_are_refused_elsewhere(
    site: Site, listed: list[str]
) -> None:
    site.publish(supported_parameters=listed)
    error = error_of(site.chat(service_tier="priority", store=True, max_tokens=9), 400)
    assert "store" in error["message"]
    site.assert_nothing_happened()
    assert_in_order()


def test_a_caller_that_leaves_after_the_upstream_headers_pays_for_the_prompt(
    site: Site, taught: Teach
) -> None:
    site.publish(taught(lambda request: (STREAM + b": wait\n\n", Signal.STALL)))
    with connected(site) as line:
        site.eventually(lambda: bool(site.dialled()) and site.dialled()[0].sent_bytes > 0)
        # Gives the headers time to arrive.
        time.sleep(0.3)
        hang_up(line)
    assert_ended(site, Ending("cancelled", (6, 0), True))


def test_a_failed_attempt_charges_no_prompt(site: Site) -> None:
    site.allow_fallback()
    # The private endpoint is tried first; the dearer one is the next.
    site.own("sim-empty-stream", price=factories.make_price("0.001", "0.001"))
    site.publish("sim-stall", provider=site.another_provider("second"))
    with connected(site) as line:
        site.eventually(lambda: bool(site.dialled()) and site.dialled()[-1].model == "sim-stall")
        hang_up(line)
    row = site.settled()
    assert [attempt["status"] for attempt in row.attempts] == [502]
    assert (row.status, row.cost_nano, row.is_byok) == ("cancelled", 6_000, False)
    assert_in_order()


def admit(site: Site, **fields: Any) -> Admission:
    """Admits a request without settling it, like a worker that dies after admission."""

    async def run() -> Admission | BaseException:
        async with worker() as (store, _):
            [found] = await store.admit([entry_of(site, **fields)])
            return found

    admission = asyncio.run(run())
    assert isinstance(admission, Admission)
    return admission


def test_a_cost_beyond_bigint_still_ends_its_hold(site: Site) -> None:
    site.publish()
    lost, other = (admit(site, max_tokens=100).generation_id for _ in range(2))
    old = timezone.now() - timedelta(hours=1)
    assert Journal.objects.update(beat_at=old) == 2
    Journal.objects.filter(pk=lost).update(prompt_tokens=5, completion_tokens=7)
    # The meters add its cost, which exceeds a BIGINT.
    Meter.objects.update(cost=2**63 - 1)
    assert available(site) == CREDITS - 2 * Generation.objects.get(pk=lost).hold_nano
    assert sweep() == 2
    Meter.objects.update(cost=0)
    rows = {row.pk: row for row in Generation.objects.all()}
    errors = {key: row.error_type for key, row in rows.items()}
    assert errors == {lost: "unchargeable", other: "abandoned"}
    for row in rows.values():
        assert_free(site, row, "failed")
    assert (sweep(), Journal.objects.exists()) == (0, False)


def test_a_sweep_charges_at_most_the_hold(site: Site) -> None:
    site.publish()
    found = admit(site, max_tokens=100)
    old = timezone.now() - timedelta(hours=1)
    # At 2,000 nano-USD per token this exceeds the hold; no worker writes such a journal.
    Journal.objects.update(prompt_tokens=0, completion_tokens=CREDITS // 2_000, beat_at=old)
    assert sweep() == 1
    row = Generation.objects.get(pk=found.generation_id)
    assert (row.error_type, row.cost_nano) == ("abandoned", found.hold_nano)
    assert available(site) == CREDITS - found.hold_nano
    # An estimate of our own is no claim of the upstream.
    assert not Excess.objects.filter(reference=row.pk).exists()
    assert_in_order()


def test_the_sweeper_charges_the_images_of_an_abandoned_generation(site: Site) -> None:
    site.publish(price=factories.make_price("0.000001", "0.000002", image="0.001"))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    content = [{"type": "text", "text": "one"}, image, image]
    found = admit(site, content=content, max_tokens=100)
    old = timezone.now() - timedelta(hours=1)
    Journal.objects.update(prompt_tokens=5, completion_tokens=7, beat_at=old)
    assert sweep() == 1
    row = Generation.objects.get(pk=found.generation_id)
    # 2 images at 1,000,000 nano-USD, 5 prompt tokens at 1,000, 7 completion tokens at 2,000.
    assert (row.cost_nano, row.is_estimated, row.error_type) == (2_019_000, True, "abandoned")
    assert available(site) == CREDITS - 2_019_000
    assert_in_order()


def test_a_free_model_is_served_while_holds_exceed_a_lowered_limit(site: Site) -> None:
    site.publish("sim-held")
    free = site.publish(
        model=factories.make_model("acme/free"), price=factories.make_price("0", "0")
    )
    key = site.tenant.organization.api_keys.get(is_management=False)
    body = site.chat_body(max_tokens=100)
    with ThreadPoolExecutor(1) as pool:
        paid = pool.submit(site.post, body)
        site.eventually(lambda: len(site.dialled()) == 1)
        hold = Generation.objects.get().hold_nano
        key.edit(limit_nano=hold // 2)
        assert site.post({**body, "model": free.model.slug}).status_code == 200
        assert site.post(body).status_code == 402
        assert len(site.dialled()) == 2
        site.upstream.release()
        assert paid.result().status_code == 200
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    costs = sorted(Generation.objects.values_list("hold_nano", "cost_nano"))
    assert costs == [(0, 0), (hold, 10_000)]
    meter = Meter.objects.get(subject_id=key.pk)
    assert (meter.cost, meter.held_cost, meter.requests) == (10_000, 0, 2)
    # A spent limit refuses free models too.
    key.edit(limit_nano=10_000)
    assert site.post({**body, "model": free.model.slug}).status_code == 403
    assert Generation.objects.count() == 2
    assert_in_order()
