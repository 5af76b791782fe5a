"""Tests which prices are accepted, that they survive a round trip, and when their rules apply."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.pricing import Price, UnknownRule, Usage, cost_nano, dump_rules, load_rules, split_cost
from catalog.pricing.contract import InvalidPricing, describe_charges, render_lines, render_pricing
from catalog.pricing.rules import Billable, Conditions, Rule
from tests.support.inference.prices import counts, pricings, read_pricing

# A Monday.
MONDAY = 1_767_571_200
HOUR = 3600


def problems(pricing: dict[str, Any], *lines: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidPricing) as raised:
        read_pricing(pricing, *lines)
    return [f"{path}: {text}" for path, text in raised.value.problems]


ALL_KEYS = {
    "prompt": "0.000002",
    "completion": "0.00001",
    "image": "0.001",
    "request": "0.005",
    "input_cache_read": "0.0000002",
    "input_cache_write": "0.0000025",
    "input_cache_write_1h": "0.000004",
    "internal_reasoning": "0.000012",
    "audio": "0.00004",
    "audio_output": "0.00008",
    "input_audio_cache": "0.000004",
    "image_token": "0.00003",
    "image_output": "0.04",
    "web_search": "0.01",
    "discount": 0.25,
    "overrides": [
        {"min_prompt_tokens": 200_000, "prompt": "0.000004", "completion": "0.000015"},
        {
            "utc_start": 2200,
            "utc_end": 400,
            "utc_days": ["monday", "friday"],
            "prompt": "0.000001",
            "input_cache_write_1h": "0.000002",
        },
    ],
}
ALL_LINES: list[dict[str, Any]] = [
    {"billable": "image", "unit": "image", "variant": "1024x1024/high", "price": "0.167"},
    {"billable": "image", "unit": "image", "variant": "1024x1024/low", "price": "0.011"},
    {"billable": "second", "unit": "second", "price": "0.0001"},
    {"billable": "character", "unit": "character", "price": "0.000015"},
    {"billable": "search", "unit": "request", "variant": "request", "price": "0.035"},
    {"billable": "search", "unit": "search", "variant": "unasked", "price": "0.005", "most": 9},
    {"billable": "prompt", "unit": "token", "variant": "citation", "price": "0.1", "most": 8},
    {"billable": "reasoning", "unit": "token", "variant": "research", "price": "0.2", "most": 7},
    {
        "billable": "search",
        "unit": "search",
        "price": "0.02",
        "conditions": {"min_prompt_tokens": 100_000},
    },
]


def test_every_key_and_line_survives_a_round_trip() -> None:
    price = read_pricing(ALL_KEYS, *ALL_LINES)
    assert render_pricing(price) == ALL_KEYS
    lines = render_lines(price)
    assert {msgspec.json.encode(line, order="sorted") for line in lines} == {
        msgspec.json.encode(line, order="sorted") for line in ALL_LINES
    }
    assert read_pricing(render_pricing(price), *lines) == price
    stored = Price.of_row(
        *(getattr(price, name) for name in (
            "prompt", "completion", "image", "request", "cache_read", "cache_write", "image_output"
        )),
        price.discount,
        msgspec.json.encode(dump_rules(price.rules)).decode(),
    )  # fmt: skip
    assert stored == price


def test_the_order_of_plain_lines_does_not_matter() -> None:
    assert read_pricing({}, *ALL_LINES) == read_pricing({}, *reversed(ALL_LINES))


def test_a_line_may_say_what_the_object_says() -> None:
    line = {"billable": "search", "unit": "search", "price": "0.010"}
    assert read_pricing({}, line) == read_pricing({"web_search": "0.01"})
    line = {"billable": "cached", "unit": "token", "price": "0.5"}
    assert read_pricing({}, line) == read_pricing({"input_cache_read": "0.5"})
    line = {"billable": "image", "unit": "token", "price": "0.5"}
    assert read_pricing({}, line) == read_pricing({"image_token": "0.5"})


@pytest.mark.parametrize(
    ("pricing", "found"),
    [
        ({"prompt": "-1"}, "prompt: must be a decimal"),
        ({"audio": "1e-6"}, "audio: must be a decimal"),
        ({"web_search": "1000000"}, "web_search: must be a decimal"),
        ({"image_output": "0.00003"}, "image_output: is the price of one image"),
        ({"image_output": "0.000499999"}, "image_output: is the price of one image"),
        ({"discount": 1.01}, "discount: must be a number from 0 to 1"),
        ({"discount": -0.1}, "discount: must be a number from 0 to 1"),
        ({"discount": Decimal("0.00000000001")}, "discount: must have at most 10 decimals"),
    ],
)
def test_a_wrong_price_is_refused_with_the_name_of_the_member(
    pricing: dict[str, Any], found: str
) -> None:
    [actual] = problems(pricing)
    assert actual.startswith(f"pricing.{found}")


@pytest.mark.parametrize(
    ("override", "found"),
    [
        ({"prompt": "1"}, ": has no condition"),
        ({"min_prompt_tokens": 5}, ": has no price"),
        ({"min_prompt_tokens": 0, "prompt": "1"}, ".min_prompt_tokens: must be an integer from 1"),
        ({"utc_start": 100, "prompt": "1"}, ".utc_end: is missing"),
        ({"utc_end": 100, "prompt": "1"}, ".utc_start: is missing"),
        ({"utc_start": 60, "utc_end": 100, "prompt": "1"}, ".utc_start: must be a time"),
        ({"utc_start": 2400, "utc_end": 100, "prompt": "1"}, ".utc_start: must be a time"),
        ({"utc_start": 0, "utc_end": 2401, "prompt": "1"}, ".utc_end: must be a time"),
        ({"utc_start": 0, "utc_end": 2400, "prompt": "1"}, ".utc_end: must differ from utc_start"),
        ({"utc_days": [], "prompt": "1"}, ".utc_days: must name a day"),
        ({"utc_days": ["Monday"], "prompt": "1"}, ".utc_days: 'Monday' is none of"),
        ({"utc_days": ["monday", "monday"], "prompt": "1"}, ".utc_days: names a day twice"),
    ],
)
def test_a_wrong_override_is_refused_with_the_name_of_the_member(
    override: dict[str, Any], found: str
) -> None:
    [actual] = problems({"overrides": [override]})
    assert actual.startswith(f"pricing.overrides[0]{found}")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"min_prompt_tokens": 200}, {"min_prompt_tokens": 100}),
        ({"utc_start": 100, "utc_end": 200}, {"utc_start": 30, "utc_end": 200}),
    ],
)
def test_an_override_that_never_applies_is_refused(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    [actual] = problems({"overrides": [first | {"prompt": "1"}, second | {"prompt": "2"}]})
    assert actual.startswith(
        "pricing.overrides[0].prompt: never applies because of pricing.overrides[1].prompt"
    )


SEARCH = {"billable": "search", "unit": "search", "price": "1"}
SECOND = {"billable": "second", "unit": "second", "price": "1"}


@pytest.mark.parametrize(
    ("pricing", "line", "found"),
    [
        ({}, SEARCH | {"variant": "unasked"}, ".most: must be the most units of one answer"),
        ({}, SEARCH | {"most": 5}, ".most: must be left out"),
        ({"web_search": "1"}, SEARCH, ": gives the same price as pricing.web_search"),
        ({}, SECOND | {"billable": "video"}, ".billable: must be one of prompt, completion"),
        ({}, SECOND | {"unit": "minute"}, ".unit: must be 'second'"),
        (
            {},
            {"billable": "cached", "unit": "token", "variant": "12h", "price": "1"},
            ".variant: must be one of 'write', 'write_1h', 'audio'",
        ),
        ({}, SECOND | {"variant": "hd"}, ".variant: must be left out"),
        *(
            (
                {},
                {"billable": "image", "unit": "image", "variant": f"hd{bad}", "price": "1"},
                ".variant: must not contain control characters",
            )
            for bad in ("\x00", "\n", "\x9f", "\ud800")
        ),
        ({}, SECOND | {"price": "x"}, ".price: must be a decimal"),
        ({}, SECOND | {"conditions": {}}, ".conditions: has no condition"),
    ],
)
def test_a_wrong_line_is_refused_with_the_name_of_the_member(
    pricing: dict[str, Any], line: dict[str, Any], found: str
) -> None:
    [actual] = problems(pricing, line)
    assert actual.startswith(f"lines[0]{found}")


@pytest.mark.parametrize("image_output", ["0", "0.0005", "0.04"])
def test_a_plausible_price_of_an_image_is_accepted(image_output: str) -> None:
    assert (
        render_pricing(read_pricing({"image_output": image_output}))["image_output"] == image_output
    )


def test_an_overlapping_tier_is_accepted_and_the_later_one_wins() -> None:
    price = read_pricing(
        {
            "overrides": [
                {"min_prompt_tokens": 100, "prompt": "3"},
                {"min_prompt_tokens": 200, "prompt": "5"},
            ]
        }
    )
    assert [cost_nano(price, Usage(n, 0)) // 10**9 for n in (99, 100, 101, 200, 201)] == [
        99, 100, 303, 600, 1005,
    ]  # fmt: skip


def test_a_missing_key_of_a_tier_is_inherited() -> None:
    price = read_pricing(
        {"input_cache_read": "0.5", "overrides": [{"min_prompt_tokens": 10, "prompt": "3"}]}
    )
    # Cached tokens keep their rate; those written to the cache follow the prompt.
    assert cost_nano(price, Usage(20, 1, cached=4, cache_write=6)) == (10 * 3 + 2 + 18 + 2) * 10**9


@pytest.mark.parametrize(
    ("window", "at", "holds"),
    [
        ({"utc_start": 100, "utc_end": 400}, MONDAY + HOUR - 1, False),
        ({"utc_start": 100, "utc_end": 400}, MONDAY + HOUR, True),
        ({"utc_start": 100, "utc_end": 400}, MONDAY + 4 * HOUR - 1, True),
        ({"utc_start": 100, "utc_end": 400}, MONDAY + 4 * HOUR, False),
        ({"utc_start": 2230, "utc_end": 130}, MONDAY + 22 * HOUR + 1800, True),
        ({"utc_start": 2230, "utc_end": 130}, MONDAY + 22 * HOUR + 1799, False),
        ({"utc_start": 2230, "utc_end": 130}, MONDAY, True),
        ({"utc_start": 2230, "utc_end": 130}, MONDAY + HOUR + 1800, False),
        ({"utc_start": 1200, "utc_end": 2400}, MONDAY + 24 * HOUR - 1, True),
        ({"utc_days": ("monday",)}, MONDAY - 1, False),
        ({"utc_days": ("monday",)}, MONDAY, True),
        ({"utc_days": ("monday",)}, MONDAY + 24 * HOUR - 1, True),
        ({"utc_days": ("monday",)}, MONDAY + 24 * HOUR, False),
        ({"utc_days": ("sunday",)}, MONDAY - 1, True),
        ({"utc_days": ("monday",), "utc_start": 2300, "utc_end": 100}, MONDAY + 23 * HOUR, True),
        # The day is that of the instant, not that of the beginning of the window.
        ({"utc_days": ("monday",), "utc_start": 2300, "utc_end": 100}, MONDAY + 24 * HOUR, False),
        ({"utc_days": ("monday",), "utc_start": 2300, "utc_end": 100}, MONDAY, True),
    ],
)
def test_a_window_holds_at_the_instant_of_the_request(
    window: dict[str, Any], at: int, holds: bool
) -> None:
    assert Conditions(**window).hold(0, at) is holds


def test_a_price_that_depends_on_the_time_needs_an_instant() -> None:
    price = read_pricing({"overrides": [{"utc_days": ["monday"], "prompt": "3"}]})
    assert cost_nano(price, Usage(1, 0), MONDAY) == 3 * 10**9
    with pytest.raises(ValueError, match="instant"):
        cost_nano(price, Usage(1, 0))


def test_a_rule_of_a_later_release_is_unknown() -> None:
    with pytest.raises(UnknownRule):
        load_rules([{"billable": "gpu_hour", "unit": "hour", "price": "1"}])
    with pytest.raises(UnknownRule):
        load_rules('[{"billable":"search","unit":"search","price":"1","region":"us"}]')


def test_an_image_of_unknown_size_costs_as_much_as_the_dearest() -> None:
    price = read_pricing({}, *ALL_LINES[:2])
    assert cost_nano(price, Usage(0, 0, output_images=2, image_variant="9x9")) == 334_000_000
    assert cost_nano(price, Usage(0, 0, output_images=2, image_variant="1024x1024/low")) == (
        22_000_000
    )


@pytest.mark.parametrize(
    ("variant", "cost"),
    [
        ("4096x4096", 500), ("4096x4096/high", 500), ("2048x2048", 100), ("1024x1024", 40),
        # As long as one tier and as high as another.
        ("3840x2160", 500), ("2160x3840", 500),
        # A word names the tier, or the list has the size.
        ("2K/3840x2160", 100), ("1536x1024", 30), ("99x99", 40), ("", 40),
    ],
)  # fmt: skip
def test_an_image_in_pixels_costs_what_its_tier_does(variant: str, cost: int) -> None:
    prices = {"2K": "0.1", "4K": "0.5", "1536x1024": "0.03"}
    lines = (
        {"billable": "image", "unit": "image", "variant": name, "price": price}
        for name, price in prices.items()
    )
    price = read_pricing({"image_output": "0.04"}, *lines)
    usage = Usage(0, 0, output_images=1, image_variant=variant)
    assert cost_nano(price, usage) == cost * 10**6
    held = price.table.find_ceilings(1).of_pieces(usage, images=0)
    assert held * 1000 == (cost if variant else 500) * 10**price.table.scale


def test_the_cost_by_rule_names_quantity_rate_and_cost() -> None:
    usage = Usage(1000, 10, cached=200, searches=3, milliseconds=1500)
    assert describe_charges(read_pricing({"web_search": "0.01"}, ALL_LINES[2]), usage, 0) == [
        {"billable": "prompt", "unit": "token", "quantity": 800, "price": "1", "cost": 800.0},
        {"billable": "completion", "unit": "token", "quantity": 10, "price": "2", "cost": 20.0},
        {"billable": "cached", "unit": "token", "quantity": 200, "price": "1", "cost": 200.0},
        {"billable": "search", "unit": "search", "quantity": 3, "price": "0.01", "cost": 0.03},
        {"billable": "second", "unit": "second", "quantity": 1.5, "price": "0.0001",
         "cost": 0.00015},
    ]  # fmt: skip


@given(pricings, st.data())
def test_parts_add_up_and_a_round_trip_changes_nothing(
    pricing: dict[str, Any], data: st.DataObject
) -> None:
    try:
        price = read_pricing(pricing)
    except InvalidPricing:
        return
    rendered = render_pricing(price)
    rendered["discount"] = price.discount
    assert read_pricing(rendered, *render_lines(price)) == price
    usage = data.draw(st.builds(Usage, counts, counts, cached=counts, audio=counts, searches=counts,
                                reasoning=counts, cache_write_1h=counts))  # fmt: skip
    at = data.draw(st.integers(0, 10**10))
    costs = split_cost(price, usage, at)
    whole = costs.prompt + costs.completion + costs.searches
    request = (
        cost_nano(price, Usage(usage.prompt, 0), at)
        - split_cost(price, Usage(usage.prompt, 0), at).prompt
    )
    assert abs(costs.total - whole - request) <= 3


def test_an_image_is_bounded_whichever_rate_of_its_quality_applies() -> None:
    night = Conditions(utc_start=100, utc_end=200)
    rules = (
        Rule(Billable.IMAGE, "image", Decimal(5)),
        Rule(Billable.IMAGE, "image", Decimal(1), "1536x1024/high"),
        Rule(Billable.IMAGE, "image", Decimal(1), "high", night),
    )
    price = Price(Decimal(0), Decimal(0), rules=rules)
    used = Usage(0, 0, output_images=1, image_variant="1024x1024/high")
    bound = price.table.find_ceilings(1).of_pieces(used, images=0)
    assert bound == cost_nano(price, used, 0) // 10**9 == 5
    assert cost_nano(price, used, 5_400) == 10**9
