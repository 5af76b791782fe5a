"""Tests how a price and a usage become a cost: exact, rounded once, half to even."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.pricing import (
    MOST_NANO,
    Billable,
    Price,
    Usage,
    cost_nano,
    list_charges,
    nano_usd,
    round_scaled,
    split_cost,
    usd,
)
from config.api.text import plain_digits
from tests.support.factories import make_price
from tests.support.inference.prices import sum_charges


@pytest.mark.parametrize(
    ("price", "usage", "cost"),
    [
        (make_price("0", "0"), Usage(10, 10), "0"),
        (make_price("0.0000005", "0.0000015"), Usage(1000, 500), "0.00125"),
        (make_price("0.0000005", "0.0000015"), Usage(0, 0), "0"),
        (make_price("1", "2"), Usage(3, 4, reasoning=4), "11"),
        (make_price("1", "0"), Usage(10, 0, cached=4), "10"),
        (make_price("1", "0", cache_read="0.1"), Usage(10, 0, cached=4), "6.4"),
        (make_price("1", "0", cache_read="0"), Usage(10, 0, cached=10), "0"),
        (make_price("1", "0", cache_write="1.25"), Usage(10, 0, cache_write=4), "11"),
        (make_price("1", "0", cache_read="0.1", cache_write="1.25"),
         Usage(10, 0, cached=4, cache_write=2), "6.9"),
        (make_price("1", "0", cache_read="0.1"), Usage(10, 0, cached=99), "1"),
        (make_price("1", "0", cache_read="0.1", cache_write="2"),
         Usage(10, 0, cached=8, cache_write=99), "4.8"),
        (make_price("0", "0", request="0.01"), Usage(0, 0), "0.01"),
        (make_price("0", "0", image="0.5"), Usage(0, 0, images=3), "1.5"),
        (make_price("0", "1"), Usage(0, 10, image_output=4), "10"),
        (make_price("0", "1", image_output="12"), Usage(0, 10, image_output=4), "54"),
        (make_price("0", "1", image_output="0"), Usage(0, 10, image_output=99), "0"),
        (make_price("0.000000000000000000000000000001", "999999"), Usage(1, 100_000_000),
         "99999900000000.000000000000000000000000000001"),
    ],
)  # fmt: skip
def test_charges_are_exact(price: Price, usage: Usage, cost: str) -> None:
    assert sum_charges(price, usage) == Decimal(cost)


@pytest.mark.parametrize(
    ("amount", "rounded"),
    [
        ("0", 0),
        ("1", 1_000_000_000),
        ("0.000000001", 1),
        ("0.0000000004", 0),
        ("0.0000000005", 0),
        ("0.00000000050000000000000000000001", 1),
        ("0.0000000015", 2),
        ("0.0000000025", 2),
        ("0.0000000035", 4),
        ("99999900000000.0000000005", 999999 * 10**17),
    ],
)
def test_nano_usd_rounds_half_to_even(amount: str, rounded: int) -> None:
    assert nano_usd(Decimal(amount)) == rounded


@pytest.mark.parametrize(
    ("rate", "tokens", "cost"),
    [
        ("0.0000000005", 1, 0), ("0.0000000005", 3, 2), ("0.0000000005", 5, 2),
        ("0.00000000051", 1, 1), ("0.00000000049", 1, 0), ("0.000000001", 3, 3),
    ],
)  # fmt: skip
def test_the_cost_of_a_usage_is_rounded_once_half_to_even(
    rate: str, tokens: int, cost: int
) -> None:
    assert cost_nano(make_price(rate, "0"), Usage(tokens, 0)) == cost


rates = st.decimals(0, 999_999, places=30, allow_nan=False, allow_infinity=False)
optional_rates = st.none() | rates
counts = st.integers(0, 100_000_000)
prices = st.builds(
    Price,
    prompt=rates,
    completion=rates,
    image=rates,
    request=rates,
    cache_read=optional_rates,
    cache_write=optional_rates,
)
usages = st.builds(
    Usage,
    prompt=counts,
    completion=counts,
    cached=counts,
    cache_write=counts,
    reasoning=counts,
    images=st.integers(0, 1000),
)


@given(prices, usages)
def test_charges_add_up_to_the_sum_of_fractions(price: Price, usage: Usage) -> None:
    cached = min(usage.cached, usage.prompt)
    written = min(usage.cache_write, usage.prompt - cached)
    prompt = Fraction(price.prompt)
    read = prompt if price.cache_read is None else Fraction(price.cache_read)
    write = prompt if price.cache_write is None else Fraction(price.cache_write)
    expected = (
        prompt * (usage.prompt - cached - written)
        + read * cached
        + write * written
        + Fraction(price.completion) * usage.completion
        + Fraction(price.image) * usage.images
        + Fraction(price.request)
    )
    cost = sum_charges(price, usage)
    assert Fraction(cost) == expected
    assert nano_usd(cost) == round(expected * 10**9)


@given(prices, usages)
def test_split_costs_are_the_rounded_sums_of_charges(price: Price, usage: Usage) -> None:
    costs = split_cost(price, usage)
    completion = sum(
        (
            Fraction(each.cost)
            for each in list_charges(price, usage)
            if each.kind.billable in (Billable.COMPLETION, Billable.REASONING)
        ),
        Fraction(0),
    )
    total = Fraction(sum_charges(price, usage))
    rest = Fraction(price.image) * usage.images + Fraction(price.request)
    parts = (total, total - completion - rest, completion)
    assert costs[:3] == tuple(min(round(each * 10**9), MOST_NANO) for each in parts)


@given(rates)
def test_decimal_text_keeps_the_value_without_an_exponent(rate: Decimal) -> None:
    text = plain_digits(rate)
    assert Decimal(text) == rate
    assert set(text) <= set("0123456789.")
    assert not text.endswith(".")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0", "0"),
        ("0.000", "0"),
        ("5E-7", "0.0000005"),
        ("1E+3", "1000"),
        ("1.50", "1.5"),
        ("100", "100"),
        ("0.0000005000", "0.0000005"),
    ],
)
def test_decimal_text_drops_trailing_zeros(value: str, text: str) -> None:
    assert plain_digits(Decimal(value)) == text


def test_text_of_a_missing_rate_is_zero() -> None:
    assert make_price().text("cache_read") == "0"
    assert make_price(cache_read="0.5").text("cache_read") == "0.5"


def test_usd_converts_nano_usd_to_a_float() -> None:
    assert usd(1_500_000_000) == 1.5
    assert usd(1) == 1e-09


def test_the_cost_of_a_request_ends_at_a_million_dollars() -> None:
    dear = make_price("999999.999999999", "0.5")
    assert cost_nano(dear, Usage(2, 0)) == MOST_NANO == nano_usd(Decimal(1_000_000))
    assert cost_nano(dear, Usage(1, 0)) == nano_usd(Decimal("999999.999999999"))
    assert split_cost(dear, Usage(10**15, 2)) == (MOST_NANO, MOST_NANO, 1_000_000_000, 0)
    assert round_scaled(10**40, 30, round_up=True) == MOST_NANO
    assert round_scaled(10**7, 0) == MOST_NANO
