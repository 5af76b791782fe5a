"""Tests what each public list becomes: the rows are cut from the lists themselves."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from catalog.pricing import Conditions
from catalog.pricing.contract import Pricing, read_price
from catalog.sync import litellm, models_dev, openrouter
from catalog.sync.documents import InvalidRow, UnreadableList, read_json
from catalog.sync.offers import ListOffer

DAY = date(2026, 11, 12)


def read(module: Any, document: Any) -> dict[tuple[str, str], ListOffer]:
    found = module.read_list(read_json(msgspec.json.encode(document)), DAY)
    assert found.refused == []
    offers: dict[tuple[str, str], ListOffer] = found.offers
    return offers


def raw(**members: str) -> dict[str, Any]:
    """Returns members whose values are the JSON texts as the lists spell them."""
    return {name: msgspec.Raw(text.encode()) for name, text in members.items()}


def read_row(name: str, provider: str, mode: str = "chat", **members: Any) -> ListOffer:
    """Returns what a row of LiteLLM's list becomes."""
    row = {"litellm_provider": provider, "mode": mode, **members}
    [offer] = read(litellm, {name: row}).values()
    return offer


def test_litellm_names_rates_per_unit() -> None:
    offer = read_row(
        "claude-opus-4-8",
        "anthropic",
        max_input_tokens=1_000_000,
        max_output_tokens=128_000,
        supports_vision=True,
        supports_pdf_input=True,
        supports_function_calling=True,
        search_context_cost_per_query={"search_context_size_medium": 0.01},
        **raw(
            input_cost_per_token="5e-06",
            output_cost_per_token="2.5e-05",
            input_cost_per_token_batches="2.5e-06",
            cache_read_input_token_cost="5e-07",
            cache_creation_input_token_cost="6.25e-06",
            cache_creation_input_token_cost_above_1hr="1e-05",
        ),
    )
    assert offer.key == ("anthropic", "claude-opus-4-8")
    assert offer.pricing == {
        "prompt": "0.000005",
        "completion": "0.000025",
        "input_cache_read": "0.0000005",
        "input_cache_write": "0.00000625",
        "input_cache_write_1h": "0.00001",
        "web_search": "0.01",
    }
    assert (offer.context_length, offer.max_completion_tokens) == (1_000_000, 128_000)
    assert offer.model is not None
    assert offer.model["id"] == "anthropic/claude-opus-4-8"
    assert offer.model["architecture"]["input_modalities"] == ["text", "image", "file"]
    assert offer.model["supported_parameters"] == ["max_tokens", "tools", "tool_choice"]


@pytest.mark.parametrize(
    ("provider", "stated", "cached"),
    [
        ("fireworks_ai", {}, "0.0000007"),
        ("fireworks_ai", {"cache_read_input_token_cost": "1.4e-07"}, "0.00000014"),
        ("fireworks_ai", {"input_cost_per_token": "0"}, None),
        ("fireworks_ai", {"mode": '"embedding"'}, None),
        ("together_ai", {}, None),
    ],
)
def test_a_cached_token_of_fireworks_costs_half_unless_its_row_says_otherwise(
    provider: str, stated: dict[str, str], cached: str | None
) -> None:
    rates = {"input_cost_per_token": "1.4e-06", "output_cost_per_token": "4.4e-06"}
    offer = read_row(f"{provider}/glm", provider, **raw(**rates | stated))
    assert offer.pricing.get("input_cache_read") == cached


@pytest.mark.parametrize(
    ("stated", "cached"),
    [
        ({"input_cost_per_token_cache_hit": "2.8e-08"}, "0.000000028"),
        (
            {
                "cache_read_input_token_cost": "7e-08",
                "input_cost_per_token_cache_hit": "2.8e-08",
            },
            "0.00000007",
        ),
        ({"input_cost_per_token_cache_hit": "0"}, None),
    ],
)
def test_litellm_has_two_names_for_the_rate_of_a_cached_token(
    stated: dict[str, str], cached: str | None
) -> None:
    rates = {"input_cost_per_token": "2.8e-07", "output_cost_per_token": "4e-07"}
    offer = read_row("deepseek/deepseek-v3.2", "deepseek", **raw(**rates | stated))
    assert offer.pricing.get("input_cache_read") == cached
    assert offer.uncharged == ()


def test_litellm_has_tiers_by_the_size_of_the_prompt() -> None:
    offer = read_row(
        "gemini/gemini-2.5-pro",
        "gemini",
        **raw(
            input_cost_per_token="1.25e-06",
            output_cost_per_token="1e-05",
            input_cost_per_token_above_200k_tokens="2.5e-06",
            output_cost_per_token_above_200k_tokens="1.5e-05",
            input_cost_per_token_above_200k_tokens_priority="4.5e-06",
            cache_read_input_token_cost_above_200k_tokens="2.5e-07",
        ),
    )
    assert offer.key == ("google-ai-studio", "gemini-2.5-pro")
    assert offer.pricing["overrides"] == [
        {
            "min_prompt_tokens": 200_000,
            "prompt": "0.0000025",
            "completion": "0.000015",
            "input_cache_read": "0.00000025",
        }
    ]


def test_litellm_has_hours_of_the_day() -> None:
    window = {"hours_utc": ["04:00-06:00", "10:00-00:00"], "weekdays": [1, 5]}
    windows = [window, {"hours_utc": "00:00-00:00", "weekdays": [6, 7]}]
    offer = read_row(
        "deepseek/deepseek-flash",
        "deepseek",
        **raw(input_cost_per_token="3e-07", output_cost_per_token="1.2e-06"),
        off_peak_pricing={"windows": windows, **raw(input_cost_per_token="1.5e-07")},
    )
    days = ["monday", "friday"]
    assert offer.pricing["overrides"] == [
        {"utc_start": 400, "utc_end": 600, "utc_days": days, "prompt": "0.00000015"},
        {"utc_start": 1000, "utc_end": 0, "utc_days": days, "prompt": "0.00000015"},
        {"utc_days": ["saturday", "sunday"], "prompt": "0.00000015"},
    ]


def read_off_peak(**members: Any) -> ListOffer:
    """Returns the offer of a row whose tokens of the prompt cost less at some hours."""
    row = {
        "litellm_provider": "deepseek",
        "mode": "chat",
        **raw(input_cost_per_token="3e-07", output_cost_per_token="1.2e-06"),
        "off_peak_pricing": {**members, **raw(input_cost_per_token="1.35e-07")},
    }
    [offer] = read(litellm, {"deepseek/deepseek-flash": row}).values()
    return offer


NIGHT = {"utc_start": 1630, "utc_end": 30}
SATURDAY = {"hours_utc": "16:00-17:00", "weekdays": [6]}


@pytest.mark.parametrize(
    ("off_peak", "windows"),
    [
        ({"hours_utc": "16:30-00:30"}, [NIGHT]),
        # The list's own calculator passes over these days alone.
        ({"hours_utc": ["16:30-00:30"], "weekdays": ["mon"]}, [NIGHT | {"utc_days": ["monday"]}]),
        (
            {"hours_utc": "16:30-00:30", "windows": [{**SATURDAY, "weekdays": ["Sat", "sunday"]}]},
            [NIGHT, {"utc_start": 1600, "utc_end": 1700, "utc_days": ["saturday", "sunday"]}],
        ),
        (
            {"windows": [{"hours_utc": "00:00-00:00", "weekdays": [" THURS", 2, "Tues", 9, None]}]},
            [{"utc_days": ["tuesday", "thursday"]}],
        ),
        # Without a known day a window never applies.
        ({"windows": [{"hours_utc": "00:00-00:00", "weekdays": [0, 8, "noday", True, [1]]}]}, []),
        ({"windows": [{"hours_utc": "00:00-00:00", "weekdays": []}]}, []),
        # A time zone means something for days alone.
        ({"hours_utc": "16:30-00:30", "weekday_timezone": "Europe/Berlin"}, [NIGHT]),
        (
            {"windows": [SATURDAY], "weekday_timezone": "UTC"},
            [{"utc_start": 1600, "utc_end": 1700, "utc_days": ["saturday"]}],
        ),
        (
            {"windows": [SATURDAY], "weekday_timezone": "Asia/Shanghai"},
            [{"utc_start": 1600, "utc_end": 1700, "utc_days": ["friday"]}],
        ),
        (
            {
                "windows": [{"hours_utc": "00:00-00:00", "weekdays": [6, 7]}],
                "weekday_timezone": "Asia/Shanghai",
            },
            [
                {"utc_start": 0, "utc_end": 1600, "utc_days": ["saturday", "sunday"]},
                {"utc_start": 1600, "utc_end": 2400, "utc_days": ["friday", "saturday"]},
            ],
        ),
    ],
)
def test_litellm_never_applies_cheap_hours_on_other_days(
    off_peak: dict[str, Any], windows: list[dict[str, Any]]
) -> None:
    offer = read_off_peak(**off_peak)
    found = offer.pricing.get("overrides", [])
    assert found == [{**window, "prompt": "0.000000135"} for window in windows]
    assert offer.uncharged == ()


@pytest.mark.parametrize(
    "hours", ["00:00-00:00", "16:00-17:00", "17:00-01:00", "10:00-00:00", "15:30-16:30"]
)
@pytest.mark.parametrize(("zone", "ahead"), [("Asia/Shanghai", 8), ("Asia/Tokyo", 9)])
def test_the_days_of_a_window_are_those_of_its_time_zone(hours: str, zone: str, ahead: int) -> None:
    window = {"hours_utc": hours, "weekdays": ["sun", "mon"]}
    overrides = read_off_peak(windows=[window], weekday_timezone=zone).pricing["overrides"]
    conditions = [
        Conditions(None, each["utc_start"], each["utc_end"], tuple(each["utc_days"]))
        for each in overrides
    ]
    clock = timezone(timedelta(hours=ahead))
    start, end = hours.split("-")
    for half_hour in range(7 * 48):
        at = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(minutes=30 * half_hour)
        now = f"{at:%H:%M}"
        is_open = start <= now < end if start < end else now >= start or now < end
        is_day = at.astimezone(clock).isoweekday() in (7, 1)
        held = any(each.hold(0, int(at.timestamp())) for each in conditions)
        assert held is (is_open and is_day), at


def test_litellm_leaves_out_a_window_whose_limits_it_cannot_say() -> None:
    holiday = {"hours_utc": "00:00-00:00", "override_dates": ["2026-10-01"]}
    offer = read_off_peak(hours_utc="16:30-00:30", windows=[holiday, holiday])
    assert offer.pricing["overrides"] == [{**NIGHT, "prompt": "0.000000135"}]
    assert offer.uncharged == ("off_peak_pricing.windows.override_dates",)


def test_litellm_reads_what_stands_beside_ranges_of_the_prompt() -> None:
    ranges = [
        {"range": [0, 1000], **raw(input_cost_per_token="1e-06")},
        {"range": [1000, 2000], **raw(input_cost_per_token="2e-06", output_cost_per_token="4e-06")},
    ]
    row = {
        "litellm_provider": "openai",
        "mode": "chat",
        "tiered_pricing": ranges,
        "off_peak_pricing": {"hours_utc": "16:30-00:30", **raw(input_cost_per_token="5e-07")},
        "search_context_cost_per_query": {"search_context_size_medium": 0.01},
        "output_cost_per_image_2K": 0.1,
        **raw(
            input_cost_per_token="3e-07",
            input_cost_per_token_above_200k_tokens="5e-06",
            input_cost_per_image_token="1e-05",
            input_cost_per_audio_token="2e-05",
            output_cost_per_token="1.2e-06",
            code_interpreter_cost_per_session="0.03",
        ),
    }
    [offer] = read(litellm, {"m": row}).values()
    assert offer.pricing == {
        "prompt": "0.000001",
        "completion": "0.0000012",
        "audio": "0.00002",
        "web_search": "0.01",
        "overrides": [
            {"min_prompt_tokens": 1000, "prompt": "0.000002", "completion": "0.000004"},
            {**NIGHT, "prompt": "0.0000005"},
        ],
    }
    assert offer.lines == (
        {"billable": "prompt", "variant": "image", "unit": "token", "price": "0.00001"},
        {"billable": "image", "variant": "2K", "unit": "image", "price": "0.1"},
    )
    assert offer.uncharged == (
        "input_cost_per_token: 0.0000003",
        "input_cost_per_token_above_200k_tokens: 0.000005",
        "code_interpreter_cost_per_session: 0.03",
    )


@pytest.mark.parametrize(
    ("row", "pricing", "lines"),
    [
        (
            {"mode": "audio_transcription", "input_cost_per_second": 0.0001},
            {"prompt": "0", "completion": "0"},
            [{"billable": "second", "unit": "second", "price": "0.0001"}],
        ),
        (
            {"mode": "audio_speech", **raw(input_cost_per_character="1.5e-05")},
            {"prompt": "0", "completion": "0"},
            [{"billable": "character", "unit": "character", "price": "0.000015"}],
        ),
        (  # the seconds say the same price once more, and all output is audio
            {
                "mode": "audio_speech",
                "output_cost_per_second": 0.00025,
                **raw(
                    input_cost_per_token="6e-07",
                    output_cost_per_token="1e-05",
                    output_cost_per_audio_token="1.2e-05",
                ),
            },
            {"prompt": "0.0000006", "completion": "0.000012", "audio_output": "0.000012"},
            [],
        ),
        ({"mode": "rerank", "input_cost_per_token": 0.0, "input_cost_per_query": 0.002},
         {"prompt": "0", "completion": "0", "web_search": "0.002"}, []),
        (
            {
                "mode": "image_generation",
                **raw(
                    input_cost_per_token="5e-06",
                    input_cost_per_image_token="1e-05",
                    output_cost_per_image_token="4e-05",
                ),
            },
            {"prompt": "0.000005", "completion": "0.00004", "image_token": "0.00004"},
            [{"billable": "prompt", "variant": "image", "unit": "token", "price": "0.00001"}],
        ),
        (  # the same price in tokens and in images
            {
                "mode": "chat",
                "input_cost_per_image": 0.0011,
                "output_cost_per_image": 0.134,
                **raw(
                    input_cost_per_token="2e-06",
                    output_cost_per_token="1.2e-05",
                    output_cost_per_image_token="0.00012",
                ),
            },
            {"prompt": "0.000002", "completion": "0.000012", "image_token": "0.00012"},
            [],
        ),
        (  # and in images of each size
            {
                "mode": "image_generation",
                "output_cost_per_image": 0.134,
                "output_cost_per_image_4K": 0.24,
                **raw(input_cost_per_token="2e-06", output_cost_per_image_token="0.00012"),
            },
            {"prompt": "0.000002", "completion": "0.00012", "image_token": "0.00012"},
            [],
        ),
        (  # the rate of a token under the name of an image
            {"mode": "chat", "input_cost_per_token": 1, "output_cost_per_image": 0.00012},
            {"prompt": "1", "completion": "0.00012", "image_token": "0.00012"},
            [],
        ),
        (  # of a generator, the price of a generated image
            {"mode": "image_generation", "input_cost_per_image": 0.02},
            {"prompt": "0", "completion": "0", "image_output": "0.02"},
            [],
        ),
        (  # of one that states both, the price of an image that is shown
            {
                "mode": "image_generation",
                "input_cost_per_image": 0.01,
                "output_cost_per_image": 0.04,
            },
            {"prompt": "0", "completion": "0", "image": "0.01", "image_output": "0.04"},
            [],
        ),
        (
            {
                "mode": "image_generation",
                "input_cost_per_image": 0.06,
                "output_cost_per_image_1K": 0.04,
                "output_cost_per_image_2K": 0.06,
                "output_cost_per_image_4K": 0.0,
            },
            {"prompt": "0", "completion": "0", "image_output": "0.06"},
            [
                {"billable": "image", "variant": "1K", "unit": "image", "price": "0.04"},
                {"billable": "image", "variant": "2K", "unit": "image", "price": "0.06"},
            ],
        ),
        (  # an embedding bills an image beside its tokens
            {
                "mode": "embedding",
                **raw(input_cost_per_token="8e-07", input_cost_per_image="6e-05"),
            },
            {"prompt": "0.0000008", "completion": "0", "image": "0.00006"},
            [],
        ),
        ({"mode": "image_generation", "output_cost_per_image": 0.04},
         {"prompt": "0", "completion": "0", "image_output": "0.04"}, []),
        (
            {
                "mode": "chat",
                "tiered_pricing": [
                    {"range": [0, 256000.0], **raw(input_cost_per_token="5e-08")},
                    {"range": [256000.0, 1000000.0], **raw(input_cost_per_token="2.5e-07")},
                ],
            },
            {
                "prompt": "0.00000005",
                "completion": "0",
                "overrides": [{"min_prompt_tokens": 256_000, "prompt": "0.00000025"}],
            },
            [],
        ),
        (
            {
                "mode": "audio_transcription",
                **raw(input_cost_per_second="0.0001", output_cost_per_second="0.0002"),
            },
            {"prompt": "0", "completion": "0"},
            [{"billable": "second", "unit": "second", "price": "0.0002"}],
        ),
        ({"mode": "chat"}, {}, []),
    ],
)  # fmt: skip
def test_litellm_bills_in_many_units(
    row: dict[str, Any], pricing: dict[str, Any], lines: list[Any]
) -> None:
    offer = read_row("m", "openai", **row)
    assert (offer.pricing, list(offer.lines)) == (pricing, lines)


def test_litellm_names_the_prices_that_cannot_be_charged() -> None:
    offer = read_row(
        "gpt-6-astra",
        "openai",
        input_cost_per_second=0.5,
        google_maps_grounding_cost_per_query=0,
        input_cost_per_video_per_second="a lot",
        search_context_cost_per_query={"search_context_size_medium": 0.01},
        **raw(
            input_cost_per_token="1e-05",
            output_cost_per_token="5e-05",
            cache_creation_input_token_cost="1.25e-05",
            cache_creation_input_token_cost_above_272k_tokens="2.5e-05",
            cache_creation_input_token_cost_above_12hr="2.5e-05",
            cache_creation_input_token_cost_above_12hr_batches="1.25e-05",
            cache_creation_input_token_cost_above_12hr_above_272k_tokens="5e-05",
            code_interpreter_cost_per_session="0.03",
        ),
    )
    assert offer.uncharged == (
        "cache_creation_input_token_cost_above_12hr: 0.000025",
        "cache_creation_input_token_cost_above_12hr_above_272k_tokens: 0.00005",
        "code_interpreter_cost_per_session: 0.03",
    )
    offer = read_row("old", "openai", "image_generation", **raw(input_cost_per_pixel="1.9e-08"))
    assert (offer.pricing, offer.uncharged) == ({}, ("input_cost_per_pixel: 0.000000019",))


@pytest.mark.parametrize(
    ("rates", "pricing", "uncharged"),
    [
        # A picture for 0.0004 USD, or a token: a person knows.
        ({"output_cost_per_image": "0.0004"}, {}, ["output_cost_per_image: 0.0004"]),
        ({"input_cost_per_image": "0.0004"}, {}, ["input_cost_per_image: 0.0004"]),
        (
            {"input_cost_per_token": "1e-06", "output_cost_per_image": "0.0004"},
            {"prompt": "0.000001", "completion": "0"},
            ["output_cost_per_image: 0.0004"],
        ),
        # The tokens of the answer have a price already.
        (
            {
                "input_cost_per_token": "1e-06",
                "output_cost_per_token": "4e-05",
                "output_cost_per_image": "0.04",
                "output_cost_per_image_4K": "0.24",
            },
            {"prompt": "0.000001", "completion": "0.00004"},
            ["output_cost_per_image: 0.04", "output_cost_per_image_4K: 0.24"],
        ),
    ],
)
def test_the_price_of_a_picture_that_may_be_another_one_is_not_charged(
    rates: dict[str, str], pricing: dict[str, str], uncharged: list[str]
) -> None:
    row = {"litellm_provider": "openai", "mode": "image_generation", **raw(**rates)}
    [offer] = read(litellm, {"m": row}).values()
    assert (offer.pricing, offer.lines, [*offer.uncharged]) == (pricing, (), uncharged)
    stated = {name: Decimal(rate) for name, rate in rates.items()}
    with pytest.raises(InvalidRow, match=f"cannot be charged: {', '.join(uncharged)}"):
        litellm.read_stated_price({"mode": "image_generation", **stated})


def test_litellm_names_what_makes_a_price_dearer() -> None:
    row = {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 1,
        "regional_processing_uplift_multiplier_eu": 1.1,
        "regional_processing_uplift_multiplier_us": 1.0,
        "regional_endpoint_uplift_multiplier": 1.25,
        "provider_specific_entry": {
            "us": 1.1, "fast": 6.0, "slow": 1, "schema": "v2", "realtime_ga_only": True,
            "minimax_free_input_images": 5,
        },
    }  # fmt: skip
    [offer] = read(litellm, {"m": row}).values()
    assert offer.uncharged == (
        "regional_processing_uplift_multiplier_eu: 1.1",
        "regional_endpoint_uplift_multiplier: 1.25",
        "provider_specific_entry.us: 1.1",
        "provider_specific_entry.fast: 6",
    )


@pytest.mark.parametrize("name", ["gpt-x:batch", "GPT-X:BATCH"])
def test_a_row_of_batches_is_no_endpoint(name: str) -> None:
    row = {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 1}
    found = litellm.read_list({name: row, "gpt-x": row}, DAY)
    assert (list(found.offers), found.ignored) == ([("openai", "gpt-x")], 1)


def test_litellm_searches_at_every_request_of_perplexity() -> None:
    search = {"search_context_size_low": 0.005, "search_context_size_high": 0.012}
    offer = read_row(
        "perplexity/sonar",
        "perplexity",
        input_cost_per_token=0.000001,
        search_context_cost_per_query=search,
    )
    assert (offer.upstream_model_id, offer.pricing["request"]) == ("sonar", "0.005")
    assert "web_search" not in offer.pricing


SEARCH_SIZES = {
    f"search_context_size_{size}": rate
    for size, rate in (("low", 0.03), ("medium", 0.035), ("high", 0.05))
}


@pytest.mark.parametrize(
    ("key", "members", "request_rate", "search_rate", "uncharged"),
    [
        ("gpt-4o-search-preview", SEARCH_SIZES, "0.035", None, ()),
        ("azure/gpt-4o-search-preview", SEARCH_SIZES, "0.035", None, ()),
        # A row of such a model that states no price of its searches.
        ("gpt-4o-search-preview-2025-03-11", None, None, None, ("search_context_cost_per_query",)),
        ("gpt-5-search-api", None, None, None, ("search_context_cost_per_query",)),
        # A model that searches where it is told to, if at all.
        ("gpt-4o-mini-2024-07-18", SEARCH_SIZES, None, "0.035", ()),
        ("o3-deep-research", None, None, None, ()),
    ],
)
def test_litellm_searches_at_every_request_of_openais_models_that_always_search(
    key: str,
    members: dict[str, float] | None,
    request_rate: str | None,
    search_rate: str | None,
    uncharged: tuple[str, ...],
) -> None:
    offer = read_row(
        key,
        "azure" if key.startswith("azure/") else "openai",
        supports_function_calling=True,
        search_context_cost_per_query=members,
        **raw(input_cost_per_token="2.5e-06", output_cost_per_token="1e-05"),
    )
    rates = {"request": request_rate, "web_search": search_rate}
    assert {name: offer.pricing.get(name) for name in rates} == rates
    assert (offer.lines, offer.uncharged) == ((), uncharged)
    if offer.model is not None:
        is_searcher = request_rate is not None or bool(uncharged)
        searches = ["web_search_options"] if is_searcher else []
        parameters = ["max_tokens", "tools", "tool_choice", *searches]
        assert offer.model["supported_parameters"] == parameters


@pytest.mark.parametrize(
    ("provider", "members", "pricing", "lines"),
    [
        ("gemini", {}, None, [("search", "request", "0.035")]),
        ("vertex_ai-language-models", {}, None, [("search", "request", "0.035")]),
        ("gemini", {"web_search_billing_unit": "per_query"}, "0.035", []),
        ("anthropic", {}, "0.035", []),
    ],
)
def test_litellm_bills_grounding_by_the_request_unless_it_says_otherwise(
    provider: str, members: dict[str, str], pricing: str | None, lines: list[Any]
) -> None:
    search = {"search_context_size_medium": 0.035}
    offer = read_row(
        "m", provider, input_cost_per_token=1, search_context_cost_per_query=search, **members
    )
    assert offer.pricing.get("web_search") == pricing
    found = [(line["billable"], line["variant"], line["price"]) for line in offer.lines]
    assert found == lines


def test_litellm_bills_what_a_model_that_researches_does_by_itself() -> None:
    offer = read_row(
        "perplexity/sonar-deep-research",
        "perplexity",
        search_context_cost_per_query={"search_context_size_low": 0.005},
        **raw(
            input_cost_per_token="2e-06",
            output_cost_per_token="8e-06",
            output_cost_per_reasoning_token="3e-06",
            citation_cost_per_token="2e-06",
        ),
    )
    assert offer.pricing == {"prompt": "0.000002", "completion": "0.000008"}
    assert [(line["variant"], line["price"], line["most"]) for line in offer.lines] == [
        ("unasked", "0.005", 60),
        ("citation", "0.000002", 100_000),
        ("research", "0.000003", 400_000),
    ]


def test_litellm_prefers_the_key_with_the_name_of_the_provider() -> None:
    rate = {"mode": "chat", "output_cost_per_token": 1}
    document = {
        "sample_spec": {"mode": "one of: chat"},
        "gemini-flash": {"litellm_provider": "gemini", **rate, "input_cost_per_token": 1},
        "azure_ai/gpt-5.5": {"litellm_provider": "azure_ai", **rate, "input_cost_per_token": 2},
        "gemini/gemini-flash": {"litellm_provider": "gemini", **rate, "input_cost_per_token": 3},
        "azure/gpt-5.5": {"litellm_provider": "azure", **rate, "input_cost_per_token": 4},
        "bedrock/us-east-1/x": {"litellm_provider": "bedrock", **rate},
        "sora-2": {"litellm_provider": "openai", "mode": "video_generation"},
        "perplexity/openai/gpt-5": {"litellm_provider": "perplexity", "mode": "responses"},
        "other/x": {"litellm_provider": "nobody", **rate},
    }
    found = litellm.read_list(read_json(msgspec.json.encode(document)), DAY)
    assert {key: offer.pricing["prompt"] for key, offer in found.offers.items()} == {
        ("google-ai-studio", "gemini-flash"): "3",
        ("azure", "gpt-5.5"): "4",
    }
    assert (found.refused, found.ignored) == ([], 6)


def test_litellm_tells_which_models_speak_responses_alone() -> None:
    row = {"mode": "responses", "input_cost_per_token": 1, "output_cost_per_token": 2}
    document = {
        "gpt-5.3-codex": {"litellm_provider": "openai", **row},
        "azure/gpt-5.3-codex": {"litellm_provider": "azure", **row},
        "gpt-5": {"litellm_provider": "openai", **row, "mode": "chat"},
    }
    found = read(litellm, document)
    codex = found["openai", "gpt-5.3-codex"].model
    assert codex is not None
    assert codex["capabilities"] == {"native_format": "responses"}
    assert codex["architecture"]["output_modalities"] == ["text"]
    # Azure's deployments have any name, so its rows name no maker.
    assert found["azure", "gpt-5.3-codex"].model is None
    assert "capabilities" not in (found["openai", "gpt-5"].model or {})


def test_litellm_adds_no_model_that_has_ended_or_whose_maker_it_does_not_name() -> None:
    row = {"mode": "chat", "input_cost_per_token": 1}
    document = {
        "old": {"litellm_provider": "openai", "deprecation_date": "2026-11-12", **row},
        "new": {"litellm_provider": "openai", "deprecation_date": "2026-11-13", **row},
        "groq/llama": {"litellm_provider": "groq", **row},
    }
    made = {offer.name: offer.model is not None for offer in read(litellm, document).values()}
    assert made == {"old": False, "new": True, "groq/llama": False}


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"tiered_pricing": [{"range": ["x", 1]}]}, "a range that is not of tokens"),
        ({"tiered_pricing": [{"range": [None]}]}, "a range that is not of tokens"),
        ({"tiered_pricing": [{"range": raw(at="1e999999999")["at"]}]}, "a tier without a range"),
        (
            {"tiered_pricing": [{"range": [raw(at="1e999999999")["at"]]}]},
            "a range that is not of tokens",
        ),
        ({"off_peak_pricing": {"windows": 5}}, "windows that are not a list"),
        ({"off_peak_pricing": {"windows": [{"weekdays": 3}]}}, "weekdays that are not a list"),
        ({"off_peak_pricing": {"windows": [{"hours_utc": 7}]}}, "hours_utc that are not a list"),
        ({"off_peak_pricing": {"windows": [{"hours_utc": "7"}]}}, "hours that are not like"),
        ({"off_peak_pricing": {"hours_utc": "7"}}, "hours that are not like"),
        (
            {"off_peak_pricing": {"windows": [SATURDAY], "weekday_timezone": "Europe/Berlin"}},
            "days of a time zone that is not known",
        ),
        ({"provider_specific_entry": {"us": -1.1}}, "us is negative"),
    ],
)
def test_litellm_refuses_a_row_of_another_shape_and_uses_the_others(
    members: dict[str, Any], problem: str
) -> None:
    good = {"litellm_provider": "openai", "mode": "chat"}
    good |= raw(input_cost_per_token="1e-06", output_cost_per_token="2e-06")
    document = msgspec.json.encode({"bad": {**good, **members}, "good": good})
    found = litellm.read_list(read_json(document), DAY)
    [(name, said)] = found.refused
    assert (name, [offer.name for offer in found.offers.values()]) == ("bad", ["good"])
    assert problem in said


def test_openrouter_sells_models_itself() -> None:
    document = {
        "data": [
            {
                "id": "acme/falcon-9",
                "canonical_slug": "acme/falcon-9-2026-06-01",
                "name": "Acme: Falcon 9",
                "created": 1_780_272_000,
                "context_length": 131_072,
                "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
                "pricing": {
                    "prompt": "0.0000005",
                    "completion": "0.0000015",
                    "image": "0",
                    "web_search": "0.01",
                    "discount": 0.25,
                    "overrides": [{"min_prompt_tokens": 128_000, "prompt": "0.000001"}],
                },
                "top_provider": {"max_completion_tokens": 16_384, "is_moderated": False},
                "supported_parameters": ["temperature", "tools"],
            },
            {
                "id": "openrouter/auto",
                "name": "Auto",
                "created": 1,
                "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
                "pricing": {"prompt": "-1", "completion": "-1"},
            },
        ]
    }
    found = openrouter.read_list(read_json(msgspec.json.encode(document)), DAY)
    assert found.refused == [("openrouter/auto", "prompt is negative")]
    assert [row["slug"] for row in found.providers] == ["openrouter"]
    [offer] = found.offers.values()
    assert (offer.provider, offer.upstream_model_id) == ("openrouter", "acme/falcon-9")
    assert offer.pricing == {
        "prompt": "0.0000005",
        "completion": "0.0000015",
        "web_search": "0.01",
        "discount": "0.25",
        "overrides": [{"min_prompt_tokens": 128_000, "prompt": "0.000001"}],
    }
    assert offer.model is not None
    assert (offer.model["canonical_slug"], offer.model["created"], offer.max_completion_tokens) == (
        "acme/falcon-9-2026-06-01", 1_780_272_000, 16_384,
    )  # fmt: skip
    with pytest.raises(UnreadableList, match="no member data"):
        openrouter.read_list({"models": []}, DAY)


@pytest.mark.parametrize(
    ("stated", "pricing", "left"),
    [
        # Gemini 3 Pro Image, GPT Image 2 and FLUX.
        (("0.000002", "0.000012", None, "0.00012"), ("0.000012", "0.00012", None), ()),
        (
            ("0.000008", "0", "0.000008", "0.00003"),
            ("0.00003", "0.00003", None),
            ("image_token: 0.000008",),
        ),
        (("0", "0", "0.0000049", "0.0000049"), ("0.0000049", "0.0000049", None), ()),
        (
            ("0", "0", "0.00004", "0.00001"),
            ("0.00004", "0.00004", None),
            ("image_output: 0.00001",),
        ),
        # A picture, and no picture.
        (("0", "0", "0.00001", "0.0005"), ("0", "0.00001", "0.0005"), ()),
        (("0.000001", "0.000002", "0.000001", None), ("0.000002", "0.000001", None), ()),
    ],
)
def test_openrouter_prices_the_tokens_of_a_drawing(
    stated: tuple[str | None, ...], pricing: tuple[str | None, ...], left: tuple[str, ...]
) -> None:
    names = ("prompt", "completion", "image_token", "image_output")
    row = {
        "id": "acme/painter",
        "architecture": {"input_modalities": ["text"], "output_modalities": ["image"]},
        "pricing": dict(zip(names, stated, strict=True)),
    }
    [offer] = openrouter.read_list({"data": [row]}, DAY).offers.values()
    assert (*map(offer.pricing.get, names[1:]),) == pricing
    assert offer.uncharged == left
    # The price that a stored endpoint would have.
    read_price(msgspec.convert(offer.pricing, Pricing))


def test_models_dev_names_dollars_per_million() -> None:
    document = {
        "xai": {
            "id": "xai",
            "models": {
                "grok-4.5": {
                    "id": "grok-4.5",
                    "name": "Grok 4.5",
                    "release_date": "2026-05",
                    "reasoning": True,
                    "tool_call": True,
                    "modalities": {"input": ["text", "pdf"], "output": ["text"]},
                    "limit": {"context": 500_000, "output": 64_000},
                    "cost": {
                        **raw(input="2.0", output="6.0", cache_read="0.5", input_audio="0.028"),
                        "tiers": [
                            {"input": 4.0, "output": 12.0, "tier": {"type": "context", "size": 10}}
                        ],
                        "context_over_200k": {"input": 9.0},
                    },
                }
            },
        },
        "google": {
            "models": {"gemini": {"cost": {"input": 1, "context_over_200k": {"input": 2.5}}}}
        },
        "unknown": {"models": {"x": {}}},
        "$schema": "https://models.dev/schema",
    }
    offers = read(models_dev, document)
    grok, gemini = offers["xai", "grok-4.5"], offers["google-ai-studio", "gemini"]
    assert grok.pricing == {
        "prompt": "0.000002",
        "completion": "0.000006",
        "input_cache_read": "0.0000005",
        "audio": "0.000000028",
        "overrides": [{"min_prompt_tokens": 10, "prompt": "0.000004", "completion": "0.000012"}],
    }
    assert grok.model is not None
    assert (grok.model["id"], grok.model["created"]) == ("x-ai/grok-4.5", 1_777_593_600)
    assert grok.model["architecture"]["modality"] == "text+file->text"
    assert gemini.pricing["overrides"] == [{"min_prompt_tokens": 200_000, "prompt": "0.0000025"}]
    assert gemini.model is None


def models_dev_row(**members: Any) -> dict[str, Any]:
    """Returns the row of a model that writes, tools and prices included."""
    return {
        "tool_call": True,
        "modalities": {"input": ["text"], "output": ["text"]},
        "cost": {"input": 1, "output": 2},
        **members,
    }


EMBEDDING = {"tool_call": False, "cost": {"input": 1, "output": 0}}
HEARS = {"input": ["audio"], "output": ["text"]}
SPEAKS = {"input": ["text"], "output": ["audio"]}


@pytest.mark.parametrize(
    ("provider", "members", "outputs", "is_native", "is_unclear"),
    [
        ("mistral", {"family": "mistral-large"}, ["text"], False, False),
        ("openai", {"family": "gpt-codex"}, ["text"], True, False),
        ("openai", {"family": "o-pro"}, ["text"], True, False),
        ("openai", {"provider": {"shape": "responses"}}, ["text"], True, False),
        ("openai", {"family": "o", "provider": {"shape": "completions"}}, ["text"], False, False),
        # O3 is one of chat, its deep research one of responses.
        ("openai", {"family": "o"}, ["text"], False, True),
        ("openai", {"family": "gpt", "provider": {"shape": "other"}}, ["text"], False, True),
        ("openai", {"family": "text-embedding", **EMBEDDING}, ["embeddings"], False, False),
        ("openai", {"modalities": HEARS}, ["transcription"], False, False),
        ("openai", {"modalities": SPEAKS}, ["audio"], False, True),
        ("openai", {"modalities": {**SPEAKS, "output": ["image"]}}, ["image"], False, False),
        # The list has embeddings of Google's under the family of its chats.
        ("google", {"family": "gemini", **EMBEDDING}, ["text"], False, True),
        ("google", {"modalities": {"input": ["image"], "output": ["text"]}}, ["text"], False, True),
        # Another provider of OpenAI's families has chats of its own.
        ("deepseek", {"family": "gpt-pro"}, ["text"], False, False),
    ],
)
def test_models_dev_does_not_call_a_chat_what_may_be_none(
    provider: str, members: dict[str, Any], outputs: list[str], is_native: bool, is_unclear: bool
) -> None:
    document = {provider: {"models": {"x-1": models_dev_row(**members)}}}
    [offer] = read(models_dev, document).values()
    assert offer.model is not None
    assert offer.model["architecture"]["output_modalities"] == outputs
    wanted = {"native_format": "responses"} if is_native else None
    assert offer.model.get("capabilities") == wanted
    assert offer.is_unclear is is_unclear
