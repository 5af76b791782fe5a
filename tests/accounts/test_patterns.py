"""What a process compiles, keeps and searches of other people's regular expressions."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from accounts.models import Guardrail
from accounts.patterns import (
    MOST_BYTES,
    CompileBudgets,
    Compiled,
    InvalidPattern,
    compile_pattern,
    compiled,
    measure,
)
from config.api.errors import TooManyRequests
from tests.support.database.snapshots import unchanged
from tests.support.governance import send
from tests.support.inference.site import Site

# About 0.4 MB compiled.
LARGE = r"[\p{L}\p{N}]{2,9}"


def large(name: str) -> str:
    return f"{name}{LARGE}"


def test_equal_texts_are_compiled_once() -> None:
    text = large("once")
    assert compile_pattern(text) is compile_pattern(text)
    assert compiled.find(text) is compile_pattern(text)


def test_the_least_recently_used_pattern_leaves_first() -> None:
    first, second, third = (compile_pattern(large(name)) for name in ("ab", "cd", "ef"))
    assert measure(first) == measure(second) == measure(third)
    kept = Compiled(most=2 * measure(first) + 4096)
    kept.keep("first", first)
    kept.keep("second", second)
    assert kept.find("first") is first
    kept.keep("third", third)
    assert [kept.find(name) for name in ("first", "second", "third")] == [first, None, third]


def test_patterns_together_are_bounded_and_the_rest_is_not_compiled() -> None:
    texts = [large(f"sum{number}") for number in range(20)]
    each = measure(compile_pattern(texts[0]))
    fitting = MOST_BYTES // each
    assert fitting in range(2, len(texts))
    with pytest.raises(InvalidPattern) as caught:
        CompileBudgets().compile(uuid4(), texts)
    assert caught.value.args[1] == fitting
    assert compiled.find(texts[fitting]) is not None
    assert compiled.find(texts[fitting + 1]) is None


def test_who_has_compiled_for_long_waits_and_others_do_not() -> None:
    budgets = CompileBudgets(seconds=0)
    owner, other = uuid4(), uuid4()
    budgets.compile(owner, [large("mine")])
    with pytest.raises(TooManyRequests) as caught:
        budgets.compile(owner, ["a"])
    assert caught.value.headers["Retry-After"].isdecimal()
    assert len(budgets.compile(other, ["a"])) == 1


def test_a_request_compiles_nothing_behind_the_first_bad_pattern(management: APIClient) -> None:
    behind = large("behind")
    filters: list[Any] = [
        {"pattern": pattern, "action": "redact"} for pattern in ("good", "(", behind)
    ]
    with unchanged():
        answer = send(management, "POST", "guardrails", {"name": "Bad", "content_filters": filters})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("content_filters.1.pattern: ")
    assert compiled.find("good") is not None
    assert compiled.find(behind) is None


def test_patterns_are_compiled_for_the_keys_that_they_bind_alone(site: Site) -> None:
    site.publish()
    idle, bound = large("idle"), large("bound")
    # As another process has stored them, which has compiled them.
    _, guardrail = Guardrail.objects.bulk_create(
        Guardrail(
            organization=site.tenant.organization,
            workspace=site.tenant.workspace,
            name=pattern,
            content_filters=[{"pattern": pattern, "action": "flag", "label": None}],
        )
        for pattern in (idle, bound)
    )
    assert site.chat().status_code == 200
    assert (compiled.find(idle), compiled.find(bound)) == (None, None)
    guardrail.assign_keys(site.tenant.organization.api_keys.all(), by="test")
    assert site.chat().status_code == 200
    assert compiled.find(idle) is None
    assert compiled.find(bound) is not None
