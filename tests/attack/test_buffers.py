"""Bytes that a small request makes a worker hold: they are counted before they are there."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from accounts.models import ApiKey, Guardrail
from billing.models import Meter
from inference.filters.screening import measure
from inference.models import Generation, KeptAnswer
from inference.requests.messages.native import parse_message
from tests.support import factories
from tests.support.attack import Line, connect, post_of
from tests.support.bulkheads.counters import read_counter
from tests.support.bulkheads.limits import limit
from tests.support.database.snapshots import everything
from tests.support.inference.repeats import is_replayed, keep_answers, send, wait_until_kept
from tests.support.inference.site import ASKED, CHAT, RESPONSES, Site

BUFFERED = "causeway_buffered_bytes"
RUNNING = "causeway_running_requests"
MESSAGES = "/api/v1/messages"
ANSWER = 7_000_000
# The buffers of the kernel could take most of an answer.
SMALL = 4_096


def begin(
    site: Site, lines: ExitStack, body: dict[str, Any], *, path: str = CHAT, **headers: str
) -> Line:
    """Sends a request and reads nothing of its answer."""
    raw = json.dumps(body).encode()
    headers["Content_Type"] = "application/json"
    line = lines.enter_context(connect(site.server, buffer=SMALL))
    line.send(post_of(path, site.tenant.api_key, raw, **headers))
    return line


def keep(service: Site, *, stream: bool, **headers: str) -> tuple[dict[str, Any], int]:
    """Keeps a large answer; returns its request, and what a repeat holds."""
    service.own("sim-burst:20000" if stream else f"sim-big:{ANSWER}")
    keep_answers(service.tenant)
    body = service.chat_body(stream=stream)
    answer = service.post(body, headers=headers)
    assert answer.status_code == 200, answer.text
    wait_until_kept(service)
    service.eventually(lambda: read_counter(service.server, BUFFERED) == 0)
    # The request itself is held as long as its answer.
    return body, KeptAnswer.objects.get().size + len(json.dumps(body))


REPEATED = {"Idempotency-Key": "one"}
CACHED = {"X-OpenRouter-Cache": "true"}


@pytest.mark.parametrize(
    ("headers", "stream"),
    [(REPEATED, False), (REPEATED, True), (CACHED, True)],
    ids=["kept", "kept-stream", "cached-stream"],
)
def test_kept_answers_that_nobody_reads_are_counted(
    service: Site, is_served: Callable[[], bool], headers: dict[str, str], stream: bool
) -> None:
    body, size = keep(service, stream=stream, **headers)
    assert size > ANSWER // 2
    with ExitStack() as lines:
        for count in (1, 2):
            begin(service, lines, body, **{k.replace("-", "_"): v for k, v in headers.items()})
            service.eventually(
                lambda count=count: read_counter(service.server, BUFFERED) == count * size
            )
        assert is_served()
    service.eventually(lambda: read_counter(service.server, BUFFERED) == 0)


def test_a_renewed_answer_is_counted_beside_the_stored_one(
    service: Site, is_served: Callable[[], bool]
) -> None:
    body, size = keep(service, stream=False, **CACHED)
    with ExitStack() as lines:
        begin(service, lines, body, X_OpenRouter_Cache="true")
        service.eventually(lambda: size < read_counter(service.server, BUFFERED) <= 2 * size)
        assert is_served()
    service.eventually(lambda: read_counter(service.server, BUFFERED) == 0)


def test_what_a_key_may_not_hold_is_not_read(service: Site, is_served: Callable[[], bool]) -> None:
    body, size = keep(service, stream=False, **{"Idempotency-Key": "one"})
    name = "causeway_budget_refusals_total"
    refused = read_counter(service.server, name, reason="key_bytes")
    with ExitStack() as lines:
        held = 0
        # Each of two workers has two of them.
        for _ in range(20):
            line = begin(service, lines, body, Idempotency_Key="one")
            service.eventually(
                lambda line=line, held=held: (
                    not line.is_open() or read_counter(service.server, BUFFERED) > held * size
                )
            )
            answer = line.receive_head()
            if answer.status == 429:
                break
            held += 1
            service.eventually(lambda: read_counter(service.server, BUFFERED) == held * size)  # noqa: B023
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert 1 <= held <= 8
        assert is_served()
    assert read_counter(service.server, name, reason="key_bytes") == refused + 1
    service.eventually(lambda: read_counter(service.server, BUFFERED) == 0)
    assert is_replayed(send(service, body, key="one"))
    assert Generation.objects.filter(organization=service.tenant.organization).count() == 1


def test_repeats_count_for_the_rate_limits(service: Site) -> None:
    keep_answers(service.tenant)
    key = ApiKey.objects.get(name="inference", organization=service.tenant.organization)
    limit(service, "api_key", requests_per_day=3)
    assert send(service).status_code == 200
    wait_until_kept(service)
    left = [send(service).headers["x-ratelimit-remaining-requests"] for _ in range(2)]
    assert left == ["1", "0"]
    before = everything()
    refused = send(service)
    assert refused.status_code == 429
    assert refused.json()["error"]["metadata"]["rate_limit"]["used"] == 3
    assert everything() == before
    meter = Meter.objects.get(subject_id=key.pk)
    assert (meter.requests, meter.running) == (3, 0)
    assert len(service.dialled()) == 1


def redact(site: Site, label: str) -> None:
    entry = {"pattern": "a", "action": "redact", "label": label}
    Guardrail.objects.edit_workspace_default(site.tenant.workspace, content_filters=[entry])


def test_what_redactions_add_to_a_request_is_counted(
    service: Site, is_served: Callable[[], bool]
) -> None:
    service.own("sim-stall")
    redact(service, "L" * 64)
    body = service.chat_body("a" * 90_000)
    raw = json.dumps(body).encode()
    with ExitStack() as lines:
        begin(service, lines, body)
        grown = 90_000 * (len("[]") + 64 - 1)
        service.eventually(lambda: read_counter(service.server, BUFFERED) == len(raw) + grown)
        assert is_served()
    service.eventually(lambda: read_counter(service.server, BUFFERED) == 0)


def test_a_request_that_redactions_make_too_long_is_refused(
    service: Site, is_served: Callable[[], bool]
) -> None:
    service.own()
    # The label is one of an earlier release; a new one is shorter.
    redact(service, "L" * 255)
    before = everything()
    refused = service.chat("a" * 99_000)
    assert refused.status_code == 413
    assert "labels of its content filters" in refused.json()["error"]["message"]
    assert everything() == before
    assert service.dialled() == []
    assert is_served()


@pytest.mark.parametrize(
    ("path", "missing", "times"),
    [(CHAT, 1, 1), (CHAT, 0, 1), (RESPONSES, 0, 2)],
    ids=["unfinished", "whole", "converted"],
)
def test_what_a_stream_keeps_is_counted(
    service: Site, is_served: Callable[[], bool], path: str, missing: int, times: int
) -> None:
    size = 1_000_000
    service.own(f"sim-hanging:{size},{missing}")
    body = {"model": service.model.slug, **ASKED[path], "stream": True}
    with ExitStack() as lines:
        begin(service, lines, body, path=path)
        service.eventually(
            lambda: times * 0.96 * size < read_counter(service.server, BUFFERED) <= times * size
        )
        assert is_served()
    service.eventually(lambda: read_counter(service.server, BUFFERED) == 0)


def test_a_kept_stream_is_counted_again_where_it_is_converted(
    service: Site, is_served: Callable[[], bool]
) -> None:
    service.own("sim-burst:20000")
    keep_answers(service.tenant)
    body = {"model": service.model.slug, **ASKED[RESPONSES], "stream": True}
    assert service.post(body, path=RESPONSES, headers=CACHED).status_code == 200
    wait_until_kept(service)
    service.eventually(lambda: read_counter(service.server, BUFFERED) == 0)
    size = KeptAnswer.objects.get().size
    with ExitStack() as lines:
        begin(service, lines, body, path=RESPONSES, X_OpenRouter_Cache="true")
        service.eventually(lambda: read_counter(service.server, BUFFERED) > 1.9 * size)
        assert is_served()
    service.eventually(lambda: read_counter(service.server, BUFFERED) == 0)


def test_what_a_stream_holds_for_a_slow_caller_is_counted(
    service: Site, is_served: Callable[[], bool]
) -> None:
    service.own("sim-burst:200000")
    with ExitStack() as lines:
        begin(service, lines, service.chat_body(stream=True))
        service.eventually(lambda: read_counter(service.server, BUFFERED) > 65_536)
        assert is_served()
    service.eventually(lambda: read_counter(service.server, BUFFERED) == 0)


def test_a_request_that_is_kept_in_two_formats_is_counted_twice(
    service: Site, is_served: Callable[[], bool]
) -> None:
    service.own("sim-stall")
    body = {**service.chat_body("a" * 90_000), "max_tokens": 16}
    raw = json.dumps(body).encode()
    held = measure(parse_message(raw))
    assert held > 180_000
    with ExitStack() as lines:
        begin(service, lines, body, path=MESSAGES)
        service.eventually(lambda: read_counter(service.server, BUFFERED) == held)
        assert is_served()
    service.eventually(lambda: read_counter(service.server, BUFFERED) == 0)


@pytest.mark.parametrize("how", ["revoked", "suspended"])
def test_who_joined_a_request_is_recognized_again_before_it_is_answered(
    service: Site, how: str
) -> None:
    keep_answers(service.tenant)
    slow = factories.make_model("acme/slow")
    service.publish("sim-held", model=slow)
    body = {**service.chat_body(), "model": slow.slug}
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(send, service, body)
        service.eventually(lambda: first.done() or len(service.dialled()) == 1)
        assert not first.done(), first.result().text
        joined = [pool.submit(send, service, body) for _ in range(2)]
        service.eventually(lambda: read_counter(service.server, RUNNING) == 3)
        if how == "revoked":
            ApiKey.objects.get(name="inference", organization=service.tenant.organization).revoke()
        else:
            service.tenant.organization.suspend(reason="unpaid", by="test")
        service.upstream.release()
        assert first.result().status_code == 200
        statuses = [each.result().status_code for each in joined]
    assert statuses == [401 if how == "revoked" else 403] * 2
    assert len(service.dialled()) == 1
