"""Answers that cost a worker more than they cost the upstream: their organization alone pays."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from inference.models import Generation
from tests.support.attack import Line, attack, connect, post_of
from tests.support.bulkheads.counters import read_counter
from tests.support.inference.site import CHAT, Site, content_of, events_of

# The service also has a good public endpoint, which would answer instead.
ALONE = {"provider": {"allow_fallbacks": False}}
NOT_VALID = "The upstream provider's answer is not valid: "


def settle(site: Site, count: int) -> list[Generation]:
    """Returns the generations of the attacker after their settlement."""
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    found = [*Generation.objects.filter(organization=site.tenant.organization)]
    assert len(found) == count
    return found


@pytest.mark.parametrize("count", [2, 500_000])
def test_an_answer_with_more_choices_than_asked_for_is_refused(
    service: Site, is_served: Callable[[], bool], count: int
) -> None:
    service.own(f"sim-choices:{count}")

    def count_failed() -> float:
        return read_counter(service.server, "causeway_generations_total", status="failed")

    failed = count_failed()
    answer = service.chat(**ALONE)
    assert answer.status_code == 502, answer.text
    assert answer.json()["error"]["message"].startswith(NOT_VALID)
    assert "choices" in answer.json()["error"]["message"]
    [row] = settle(service, 1)
    assert (row.status, row.cost_nano) == (Generation.Status.FAILED, 0)
    service.eventually(lambda: count_failed() > failed)
    assert is_served()


def test_as_many_choices_as_asked_for_are_served(service: Site) -> None:
    service.own("sim-choices:3")
    assert len(service.chat(n=3).json()["choices"]) == 3


@pytest.mark.parametrize("behaviour", ["sim-choices:2", "sim-choices:10000", "sim-choice-index:1"])
def test_a_stream_with_more_choices_than_asked_for_ends_in_an_error(
    service: Site, is_served: Callable[[], bool], behaviour: str
) -> None:
    service.own(behaviour)
    answer = service.chat(stream=True, **ALONE)
    # The first event is wrong, so the status is still free.
    assert answer.status_code == 502, answer.text
    assert "choices" in answer.json()["error"]["message"]
    assert [row.cost_nano for row in settle(service, 1)] == [0]
    assert is_served()


def test_a_stream_of_100_000_calls_is_read_once_for_each(
    service: Site, is_served: Callable[[], bool]
) -> None:
    service.own("sim-calls:100000")
    answer = service.chat(stream=True, **ALONE)
    *events, end = events_of(answer.text)
    assert end == "[DONE]"
    choices = [choice for event in events for choice in event["choices"]]
    assert choices[-1]["finish_reason"] == "tool_calls"
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    arguments: dict[int, str] = {}
    for call in calls:
        found = call["function"].get("arguments", "")
        arguments[call["index"]] = arguments.get(call["index"], "") + found
    assert arguments == dict.fromkeys(range(100_000), "{}")
    assert is_served()


def test_hanging_answers_of_47_mb_fill_their_organizations_buffers_alone(
    service: Site, neighbour: Any, is_served: Callable[[], bool]
) -> None:
    service.own("sim-hanging")
    before = read_counter(service.server, "causeway_budget_refusals_total")
    request = post_of(CHAT, service.tenant.api_key, json.dumps(service.chat_body()).encode())
    served = []

    def are_refusals_counted() -> bool:
        """Returns whether two or fewer hang, and the metric counts all others as refused."""
        served.append(is_served())
        hanging = sum(line.is_open() for line in lines)
        refused = read_counter(service.server, "causeway_budget_refusals_total") - before
        return hanging <= 2 and refused == len(lines) - hanging

    with ExitStack() as stack:
        lines = [stack.enter_context(connect(service.server)) for _ in range(8)]
        for line in lines:
            line.send(request)
        # A worker holds one of these answers; it refuses all others while this one hangs.
        service.eventually(are_refusals_counted)
        answers = [line.receive_answer() for line in lines if not line.is_open()]
        hanging = len(lines) - len(answers)
        assert hanging in {1, 2}
        assert {answer.status for answer in answers} == {429}
        assert all("hold too many bytes" in answer.error["message"] for answer in answers)
        assert all(answer.headers["retry-after"] == "1" for answer in answers)
    assert all(served)
    service.eventually(lambda: read_counter(service.server, "causeway_buffered_bytes") == 0)
    rows = settle(service, len(lines))
    assert {row.cost_nano for row in rows if row.status == Generation.Status.FAILED} == {0}


@pytest.mark.parametrize("missing", [1, 0], ids=["unfinished", "whole"])
def test_hanging_events_of_31_mb_fill_their_organizations_buffers_alone(
    service: Site, neighbour: Any, is_served: Callable[[], bool], missing: int
) -> None:
    service.own(f"sim-hanging:31000000,{missing}")
    before = read_counter(service.server, "causeway_budget_refusals_total")
    body = json.dumps(service.chat_body(stream=True)).encode()
    request = post_of(CHAT, service.tenant.api_key, body)
    served: list[bool] = []
    hanging: list[Line] = []

    def are_refusals_counted() -> bool:
        """Returns whether two or fewer hang, and the metric counts all others as refused."""
        served.append(is_served())
        # A quiet stream has comments, and then the refusal too.
        hanging[:] = [line for line in lines if b"hold too many bytes" not in line.peek()]
        refused = read_counter(service.server, "causeway_budget_refusals_total") - before
        return len(hanging) <= 2 and refused == len(lines) - len(hanging)

    with ExitStack() as stack:
        lines = [stack.enter_context(connect(service.server)) for _ in range(8)]
        for line in lines:
            line.send(request)
        # A worker holds one of these events; it refuses all others while this one hangs.
        service.eventually(are_refusals_counted)
        assert len(hanging) in {1, 2}
    assert all(served)
    service.eventually(lambda: read_counter(service.server, "causeway_buffered_bytes") == 0)
    rows = settle(service, len(lines))
    assert {row.cost_nano for row in rows if row.status == Generation.Status.FAILED} == {0}


def test_thousands_of_events_in_one_read_arrive_in_order_and_a_neighbour_is_served(
    service: Site, is_served: Callable[[], bool]
) -> None:
    service.own("sim-burst:20000")

    def ask() -> str:
        answer = service.post(service.chat_body(stream=True))
        return content_of(events_of(answer.text))

    assert attack([ask] * 4, is_served) == ["a" * 20_000] * 4


def test_a_long_answer_within_the_limits_arrives_whole(
    service: Site, is_served: Callable[[], bool]
) -> None:
    service.own("sim-big:30000000")
    for _ in range(2):
        answer = service.chat()
        assert answer.status_code == 200, answer.text[:500]
        message = answer.json()["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "x" * 30_000_000}
    assert {row.status for row in settle(service, 2)} == {Generation.Status.COMPLETED}
    assert is_served()
    service.eventually(lambda: read_counter(service.server, "causeway_buffered_bytes") == 0)


def test_an_answer_too_long_for_the_format_of_messages_is_refused(
    service: Site, is_served: Callable[[], bool]
) -> None:
    service.own("sim-big:9000000")
    body = {**service.chat_body(), "max_tokens": 16}
    answer = service.post(body, path="/api/v1/messages")
    assert answer.status_code == 502, answer.text
    assert "Ask for it at /chat/completions." in answer.json()["error"]["message"]
    assert is_served()
