"""The estimate is an exact upper bound of a request's cost, rounded up once."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from catalog.dialects.base import Operation
from catalog.pricing import MOST_NANO, Price, Usage, nano_usd
from inference.admission.estimate import affordable_tokens, output_bound, worst_case_nano
from inference.requests import parsing
from tests.support.inference.prices import sum_charges
from tests.support.inference.routes import candidate, route

REQUEST = structs.replace(
    parsing.parse(Operation.CHAT, b'{"model":"a/b","messages":[{"role":"user","content":"Hi"}]}'),
    prompt_bound=1000,
    max_tokens=500,
)


def priced(prompt: str, completion: str, **rates: str) -> Price:
    return Price(
        Decimal(prompt), Decimal(completion), **{name: Decimal(rates[name]) for name in rates}
    )


@pytest.mark.parametrize(
    ("price", "fields", "nano"),
    [
        (priced("0", "0"), {}, 0),
        (priced("0.000001", "0.000002"), {}, 2_000_000),
        (priced("0.000001", "0.000002"), {"choices": 3}, 4_000_000),
        (priced("0.000001", "0.000002"), {"max_tokens": 0}, 1_000_000),
        (priced("0", "0", request="0.5"), {}, 500_000_000),
        (priced("0", "0", image="0.001"), {"images": 2}, 2_000_000),
        (priced("0", "0", image="0.001"), {}, 0),
        (priced("0.000001", "0", cache_write="0.000002"), {}, 2_000_000),
        (priced("0.000001", "0", cache_read="0.0000001"), {}, 1_000_000),
        (priced("0.000001", "0", cache_read="0.000003", cache_write="0.000002"), {}, 3_000_000),
        (priced("0", "0.000002", image_output="0.00003"), {}, 15_000_000),
        (priced("0", "0.000002", image_output="0"), {}, 1_000_000),
        (priced("0.000000000000000000000000000001", "0"), {}, 1),
        (priced("0.0000000000005", "0.000000000000001"), {}, 1),
    ],
)
def test_the_worst_case_is_exact_and_rounded_up_once(
    price: Price, fields: dict[str, Any], nano: int
) -> None:
    assert worst_case_nano(structs.replace(REQUEST, **fields), candidate(price)) == nano


@pytest.mark.parametrize(
    ("asked", "limit", "context", "bound"),
    [
        (7, 100, 1000, 7),
        (0, 100, 1000, 0),
        (None, 100, 1000, 100),
        (None, None, 1000, 1000),
        (None, None, None, 131_072),
    ],
)
def test_the_output_bound_comes_from_the_request_then_the_endpoint_then_a_constant(
    asked: int | None, limit: int | None, context: int | None, bound: int
) -> None:
    served = route("x", max_completion_tokens=limit, context_length=context)
    assert output_bound(structs.replace(REQUEST, max_tokens=asked), served) == bound


@pytest.mark.parametrize(
    ("available", "tokens"),
    [
        (0, 0),
        (999_999, 0),
        (1_000_000, 0),
        (1_001_999, 0),
        (1_002_000, 1),
        (1_031_999, 15),
        (1_032_000, 16),
        (1_999_999, 499),
        (2_000_000, 500),
        (10**15, 500),
        (-5, 0),
    ],
)
def test_affordable_output_is_the_largest_that_an_amount_pays_for(
    available: int, tokens: int
) -> None:
    served = candidate(priced("0.000001", "0.000002"))
    assert affordable_tokens(REQUEST, served, available) == tokens


def test_only_the_request_bounds_free_output() -> None:
    served = candidate(priced("0.000001", "0"))
    assert affordable_tokens(REQUEST, served, 1_000_000) == 500
    assert affordable_tokens(REQUEST, served, 999_999) == 0


RATES = st.decimals(min_value=0, max_value=1, places=15)


@given(
    RATES, RATES, RATES, st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 16),
    st.integers(0, MOST_NANO - 1),
)  # fmt: skip
def test_affordable_output_fits_and_one_more_token_does_not(
    prompt: Decimal,
    completion: Decimal,
    fixed: Decimal,
    prompt_bound: int,
    bound: int,
    choices: int,
    available: int,
) -> None:
    served = candidate(Price(prompt, completion, request=fixed))
    request = structs.replace(REQUEST, prompt_bound=prompt_bound, max_tokens=bound, choices=choices)
    tokens = affordable_tokens(request, served, available)
    assert 0 <= tokens <= bound
    if worst_case_nano(request, served, max_tokens=0) > available:
        assert tokens == 0
        return
    assert worst_case_nano(request, served, max_tokens=tokens) <= available
    if tokens < bound:
        assert worst_case_nano(request, served, max_tokens=tokens + 1) > available


@given(RATES, RATES, st.integers(0, 1000), st.integers(0, 500), st.integers(0, 1000))
def test_usage_within_the_bounds_never_exceeds_the_estimate(
    prompt: Decimal, write: Decimal, used: int, produced: int, cached: int
) -> None:
    price = Price(prompt, prompt, cache_write=write, cache_read=write / 2, request=write)
    usage = Usage(prompt=used, completion=produced, cached=cached // 2, cache_write=cached)
    worst = worst_case_nano(REQUEST, candidate(price))
    assert nano_usd(sum_charges(price, usage)) <= worst


def test_a_parsed_body_has_the_bound_of_its_bytes() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    body = json.dumps({"model": "a/b", "messages": messages, "max_tokens": 10}).encode()
    request = parsing.parse(Operation.CHAT, body)
    size = len(json.dumps(messages)) + len("10")
    assert request.prompt_bound == size
    served = candidate(priced("0.001", "0.01"))
    assert worst_case_nano(request, served) == (size + 100) * 1_000_000
