"""What an SDK sends again by itself is recognized and told."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from inference.models import Generation
from inference.repeats.retries import RetryMemory
from tests.support.factories import Tenant
from tests.support.inference.site import Site, events_of

COUNT = "x-stainless-retry-count"


@pytest.mark.parametrize("stream", [False, True])
def test_a_retry_names_the_generation_that_it_repeats(published: Site, stream: bool) -> None:
    body = published.chat_body("one two", stream=stream)
    metadata = {"X-OpenRouter-Metadata": "enabled"}
    first = published.post(body, headers={COUNT: "0", **metadata})
    again = published.post(body, headers={COUNT: "1", **metadata})
    told = events_of(again.text)[-2] if stream else again.json()
    earlier = first.headers["X-Generation-Id"]
    assert [(step["name"], step["data"]) for step in told["openrouter_metadata"]["pipeline"]] == [
        ("sdk-retry", {"generation_id": earlier})
    ]
    assert "sdk-retry" not in first.text
    published.wait_for_settlement()
    retry_of = dict(Generation.objects.values_list("pk", "retry_of"))
    assert retry_of == {earlier: None, again.headers["X-Generation-Id"]: earlier}


def test_a_first_attempt_and_another_body_or_key_repeat_nothing(
    published: Site, neighbour: Tenant
) -> None:
    body = published.chat_body("one two")
    published.post(body, headers={COUNT: "0"})
    published.post(body, headers={COUNT: "0"})
    published.post(published.chat_body("one twp"), headers={COUNT: "1"})
    published.post(body, key=neighbour.api_key, headers={COUNT: "1"})
    published.post(body)
    published.wait_for_settlement()
    assert Generation.objects.count() == 5
    assert not Generation.objects.exclude(retry_of=None).exists()


def marks() -> Iterator[tuple[object, str, int]]:
    number = 0
    while True:
        yield uuid4(), "/api/v1/chat/completions", number
        number += 1


def test_the_memory_of_an_organization_has_a_bound_of_its_own() -> None:
    memory, mine, theirs = RetryMemory(), uuid4(), uuid4()
    each = marks()
    own = next(each)
    memory.note(mine, own, "0", "gen-1")
    for _ in range(1000):
        memory.note(theirs, next(each), "0", "gen-2")
    assert memory.note(mine, own, "1", "gen-3") == "gen-1"
    for _ in range(255):
        memory.note(mine, next(each), "0", "gen-4")
    assert memory.note(mine, own, "1", "gen-5") == "gen-3"
    for _ in range(256):
        memory.note(mine, next(each), "0", "gen-6")
    assert memory.note(mine, own, "1", "gen-7") is None
