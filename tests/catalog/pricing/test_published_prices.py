"""Costs worked out by hand from published price lists, to the nano-dollar.

The rates are facts that the providers' price pages state, as read in November 2026; each price
names its page. Batch and priority tiers are endpoints of their own.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from catalog.pricing import Usage, cost_nano
from tests.support.inference.prices import read_pricing, sum_charges

# Monday, 5 January 2026, 00:00 UTC.
MONDAY: Final = 1_767_571_200
HOUR: Final = 3600
DAY: Final = 24 * HOUR

# openai.com/api/pricing: above 272,000 prompt tokens input costs twice, output 1.5 times as much.
GPT_5_4: Final = {
    "prompt": "0.0000025", "completion": "0.000015", "input_cache_read": "0.00000025",
    "overrides": [
        {"min_prompt_tokens": 272_000, "prompt": "0.000005", "completion": "0.0000225",
         "input_cache_read": "0.0000005"},
    ],
}  # fmt: skip
GPT_4O: Final = {
    "prompt": "0.0000025", "completion": "0.00001", "input_cache_read": "0.00000125",
}  # fmt: skip
GPT_4O_MINI: Final = {
    "prompt": "0.00000015", "completion": "0.0000006", "input_cache_read": "0.000000075",
}  # fmt: skip
O3: Final = {"prompt": "0.000002", "completion": "0.000008", "input_cache_read": "0.0000005"}
GPT_4O_AUDIO: Final = {
    "prompt": "0.0000025", "completion": "0.00001", "audio": "0.00004", "audio_output": "0.00008",
}  # fmt: skip
GPT_REALTIME: Final = {
    "prompt": "0.000004", "completion": "0.000016", "input_cache_read": "0.0000004",
    "audio": "0.000032", "audio_output": "0.000064", "input_audio_cache": "0.0000004",
}  # fmt: skip
GPT_4O_TRANSCRIBE: Final = {
    "prompt": "0.0000025", "completion": "0.00001", "audio": "0.000006",
}  # fmt: skip
EMBEDDING_3_SMALL: Final = {"prompt": "0.00000002", "completion": "0"}
FREE: Final = {"prompt": "0", "completion": "0"}
WHISPER: Final = ({"billable": "second", "unit": "second", "price": "0.0001"},)
TTS_1: Final = ({"billable": "character", "unit": "character", "price": "0.000015"},)
TTS_1_HD: Final = ({"billable": "character", "unit": "character", "price": "0.00003"},)
# platform.openai.com/docs/pricing: tokens of text, of images in and of images out.
GPT_IMAGE_1: Final = {"prompt": "0.000005", "completion": "0.00004", "image_token": "0.00004"}
GPT_IMAGE_1_INPUT: Final = (
    {"billable": "prompt", "unit": "token", "variant": "image", "price": "0.00001"},
)


def _images(prices: dict[str, str]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"billable": "image", "unit": "image", "variant": variant, "price": price}
        for variant, price in prices.items()
    )


# The same page, per image by size and quality.
GPT_IMAGE_1_PIECES: Final = _images(
    {"1024x1024/low": "0.011", "1024x1024/medium": "0.042", "1024x1024/high": "0.167",
     "1024x1536/high": "0.25"}
)  # fmt: skip
DALL_E_3: Final = _images({"1024x1024/standard": "0.04", "1024x1792/hd": "0.12"})
# ai.google.dev/gemini-api/docs/pricing: other rates for prompts above 200,000 tokens.
GEMINI_2_5_PRO: Final = {
    "prompt": "0.00000125", "completion": "0.00001", "input_cache_read": "0.000000125",
    "overrides": [
        {"min_prompt_tokens": 200_000, "prompt": "0.0000025", "completion": "0.000015",
         "input_cache_read": "0.00000025"},
    ],
}  # fmt: skip
GEMINI_3_PRO: Final = {
    "prompt": "0.000002", "completion": "0.000012", "input_cache_read": "0.0000002",
    "overrides": [
        {"min_prompt_tokens": 200_000, "prompt": "0.000004", "completion": "0.000018",
         "input_cache_read": "0.0000004"},
    ],
}  # fmt: skip
GEMINI_2_5_FLASH: Final = {
    "prompt": "0.0000003", "completion": "0.0000025", "input_cache_read": "0.00000003",
    "audio": "0.000001", "input_audio_cache": "0.0000001",
}  # fmt: skip
GEMINI_2_5_FLASH_IMAGE: Final = {
    "prompt": "0.0000003", "completion": "0.0000025", "image_token": "0.00003",
}  # fmt: skip
GEMINI_2_5_FLASH_IMAGE_PIECES: Final = FREE | {"image_output": "0.039"}
# claude.com/pricing: cache writes 1.25 and 2 times the input, other rates above 200,000 tokens.
CLAUDE_SONNET_4: Final = {
    "prompt": "0.000003", "completion": "0.000015", "input_cache_read": "0.0000003",
    "input_cache_write": "0.00000375", "input_cache_write_1h": "0.000006",
    "overrides": [
        {"min_prompt_tokens": 200_000, "prompt": "0.000006", "completion": "0.0000225",
         "input_cache_read": "0.0000006", "input_cache_write": "0.0000075",
         "input_cache_write_1h": "0.000012"},
    ],
}  # fmt: skip
CLAUDE_OPUS_4_5: Final = {
    "prompt": "0.000005", "completion": "0.000025", "input_cache_read": "0.0000005",
    "input_cache_write": "0.00000625", "input_cache_write_1h": "0.00001", "web_search": "0.01",
}  # fmt: skip
# deepgram.com/pricing, cohere.com/pricing, docs.perplexity.ai (fee per request, low context).
NOVA_3: Final = ({"billable": "second", "unit": "second", "price": "0.00007167"},)
GEMINI_3_FLASH: Final = {
    "prompt": "0.0000005", "completion": "0.000003", "web_search": "0.014",
}  # fmt: skip
PER_GROUNDED_REQUEST: Final = [
    {"billable": "search", "variant": "request", "unit": "request", "price": "0.035"}
]
RERANK_3_5: Final = FREE | {"web_search": "0.002"}
SONAR_PRO: Final = {"prompt": "0.000003", "completion": "0.000015", "request": "0.006"}
SONAR_DEEP_RESEARCH: Final = {"prompt": "0.000002", "completion": "0.000008"}
RESEARCHES: Final[list[dict[str, Any]]] = [
    {"billable": "search", "variant": "unasked", "unit": "search", "price": "0.005", "most": 60},
    {
        "billable": "prompt", "variant": "citation", "unit": "token", "price": "0.000002",
        "most": 100_000,
    },
    {
        "billable": "reasoning", "variant": "research", "unit": "token", "price": "0.000003",
        "most": 400_000,
    },
]  # fmt: skip
SONAR: Final = {"prompt": "0.000001", "completion": "0.000001", "request": "0.005"}
# docs.x.ai: from 200,000 tokens on, all tokens cost twice as much; this bound is inclusive.
GROK_4_FAST: Final = {
    "prompt": "0.0000002", "completion": "0.0000005",
    "overrides": [
        {"min_prompt_tokens": 199_999, "prompt": "0.0000004", "completion": "0.000001"},
    ],
}  # fmt: skip
# api-docs.deepseek.com: twice the price on working days from 01:00 to 04:00 and 06:00 to 10:00.
_PEAK: Final = {
    "utc_days": ["monday", "tuesday", "wednesday", "thursday", "friday"],
    "prompt": "0.00000056", "completion": "0.00000084", "input_cache_read": "0.000000056",
}  # fmt: skip
DEEPSEEK: Final = {
    "prompt": "0.00000028", "completion": "0.00000042", "input_cache_read": "0.000000028",
    "overrides": [
        _PEAK | {"utc_start": 100, "utc_end": 400}, _PEAK | {"utc_start": 600, "utc_end": 1000},
    ],
}  # fmt: skip
# A vision model with a price per image of the prompt.
PER_IMAGE: Final = GPT_4O | {"image": "0.003613"}
NO_LINES: Final[tuple[dict[str, Any], ...]] = ()

ROWS: Final[list[tuple[dict[str, Any], tuple[dict[str, Any], ...], Usage, int]]] = [
    (GPT_5_4, NO_LINES, Usage(0, 0), 0),
    (GPT_5_4, NO_LINES, Usage(1_000, 1_000, reasoning=900), 17_500_000),
    (GPT_5_4, NO_LINES, Usage(272_000, 1_000), 695_000_000),
    (GPT_5_4, NO_LINES, Usage(272_001, 1_000), 1_382_505_000),
    (GPT_5_4, NO_LINES, Usage(300_000, 2_000), 1_545_000_000),
    (GPT_5_4, NO_LINES, Usage(300_000, 2_000, cached=100_000), 1_095_000_000),
    (GPT_5_4, NO_LINES, Usage(272_000, 0, cached=272_000), 68_000_000),
    (GPT_5_4, NO_LINES, Usage(272_001, 0, cached=272_001), 136_000_500),
    (GEMINI_2_5_PRO, NO_LINES, Usage(1, 1), 11_250),
    (GEMINI_2_5_PRO, NO_LINES, Usage(200_000, 1_000), 260_000_000),
    (GEMINI_2_5_PRO, NO_LINES, Usage(200_001, 1_000), 515_002_500),
    (GEMINI_2_5_PRO, NO_LINES, Usage(250_000, 4_000, cached=50_000), 572_500_000),
    (GEMINI_2_5_PRO, NO_LINES, Usage(100_000, 500, cached=100_000), 17_500_000),
    (GEMINI_3_PRO, NO_LINES, Usage(199_999, 100), 401_198_000),
    (GEMINI_3_PRO, NO_LINES, Usage(400_000, 10_000), 1_780_000_000),
    (GEMINI_2_5_FLASH, NO_LINES, Usage(1_000, 100, audio=400), 830_000),
    (
        GEMINI_2_5_FLASH, NO_LINES,
        Usage(1_000, 0, cached=500, audio=400, audio_cached=200), 319_000,
    ),
    (GEMINI_2_5_FLASH, NO_LINES, Usage(10_000, 2_000, reasoning=1_500), 8_000_000),
    (GEMINI_2_5_FLASH, NO_LINES, Usage(32_000, 0, audio=32_000), 32_000_000),
    (CLAUDE_SONNET_4, NO_LINES, Usage(200_000, 1_000), 615_000_000),
    (CLAUDE_SONNET_4, NO_LINES, Usage(200_001, 1_000), 1_222_506_000),
    (CLAUDE_SONNET_4, NO_LINES, Usage(10_000, 500, cached=8_000), 15_900_000),
    (CLAUDE_SONNET_4, NO_LINES, Usage(10_000, 500, cache_write=8_000), 43_500_000),
    (CLAUDE_SONNET_4, NO_LINES, Usage(10_000, 500, cache_write_1h=8_000), 61_500_000),
    (
        CLAUDE_SONNET_4, NO_LINES,
        Usage(10_000, 500, cached=2_000, cache_write=3_000, cache_write_1h=4_000), 46_350_000,
    ),
    (CLAUDE_SONNET_4, NO_LINES, Usage(1_000_000, 10_000, cached=900_000), 1_365_000_000),
    (CLAUDE_SONNET_4, NO_LINES, Usage(300_000, 0, cache_write=100_000), 1_950_000_000),
    (CLAUDE_SONNET_4, NO_LINES, Usage(200_000, 0, cache_write_1h=200_000), 1_200_000_000),
    (CLAUDE_SONNET_4, NO_LINES, Usage(300_000, 0, cache_write_1h=300_000), 3_600_000_000),
    (CLAUDE_OPUS_4_5, NO_LINES, Usage(0, 0, searches=1), 10_000_000),
    (CLAUDE_OPUS_4_5, NO_LINES, Usage(1_000, 1_000, searches=3), 60_000_000),
    (
        CLAUDE_OPUS_4_5, NO_LINES,
        Usage(20_000, 1_000, cache_write=10_000, cache_write_1h=10_000), 187_500_000,
    ),
    (GPT_4O, NO_LINES, Usage(1_000, 500), 7_500_000),
    (GPT_4O, NO_LINES, Usage(2_000, 0, cached=1_024), 3_720_000),
    (GPT_4O_MINI, NO_LINES, Usage(7, 3), 2_850),
    (GPT_4O_MINI, NO_LINES, Usage(1_001, 0, cached=1_001), 75_075),
    (O3, NO_LINES, Usage(1_000, 10_000, reasoning=9_000), 82_000_000),
    (GPT_4O_AUDIO, NO_LINES, Usage(100, 50, audio=80), 3_750_000),
    (GPT_4O_AUDIO, NO_LINES, Usage(100, 50, audio_output=40), 3_550_000),
    (GPT_4O_AUDIO, NO_LINES, Usage(200, 300, audio=200, audio_output=300), 32_000_000),
    (
        GPT_REALTIME, NO_LINES,
        Usage(1_000, 100, cached=600, audio=800, audio_cached=500, audio_output=100), 16_640_000,
    ),
    (GPT_4O_TRANSCRIBE, NO_LINES, Usage(100, 50, audio=100), 1_100_000),
    (EMBEDDING_3_SMALL, NO_LINES, Usage(1, 0), 20),
    (EMBEDDING_3_SMALL, NO_LINES, Usage(8_191, 0), 163_820),
    (GPT_IMAGE_1, GPT_IMAGE_1_INPUT, Usage(50, 4_160, image_output=4_160), 166_650_000),
    (
        GPT_IMAGE_1, GPT_IMAGE_1_INPUT,
        Usage(1_000, 1_056, image_output=1_056, image_prompt=900), 51_740_000,
    ),
    (
        FREE, GPT_IMAGE_1_PIECES,
        Usage(0, 0, output_images=1, image_variant="1024x1024/high"), 167_000_000,
    ),
    (
        FREE, GPT_IMAGE_1_PIECES,
        Usage(0, 0, output_images=4, image_variant="1024x1024/low"), 44_000_000,
    ),
    (
        FREE, GPT_IMAGE_1_PIECES,
        Usage(0, 0, output_images=10, image_variant="1024x1024/medium"), 420_000_000,
    ),
    (
        FREE, GPT_IMAGE_1_PIECES,
        Usage(0, 0, output_images=2, image_variant="1024x1536/high"), 500_000_000,
    ),
    (FREE, DALL_E_3, Usage(0, 0, output_images=1, image_variant="1024x1024/standard"), 40_000_000),
    (FREE, DALL_E_3, Usage(0, 0, output_images=3, image_variant="1024x1792/hd"), 360_000_000),
    (GEMINI_2_5_FLASH_IMAGE, NO_LINES, Usage(258, 0), 77_400),
    (GEMINI_2_5_FLASH_IMAGE, NO_LINES, Usage(10, 1_300, image_output=1_290), 38_728_000),
    (GEMINI_2_5_FLASH_IMAGE_PIECES, NO_LINES, Usage(0, 0, output_images=2), 78_000_000),
    (GEMINI_3_FLASH, NO_LINES, Usage(1_000, 100, searches=3), 42_800_000),
    (GEMINI_2_5_PRO, PER_GROUNDED_REQUEST, Usage(1_000, 0), 1_250_000),
    (GEMINI_2_5_PRO, PER_GROUNDED_REQUEST, Usage(1_000, 0, searches=1), 36_250_000),
    (GEMINI_2_5_PRO, PER_GROUNDED_REQUEST, Usage(1_000, 0, searches=7), 36_250_000),
    (PER_IMAGE, NO_LINES, Usage(100, 0, images=2), 7_476_000),
    (FREE, WHISPER, Usage(0, 0, milliseconds=1), 100),
    (FREE, WHISPER, Usage(0, 0, milliseconds=1_000), 100_000),
    (FREE, WHISPER, Usage(0, 0, milliseconds=12_345), 1_234_500),
    (FREE, WHISPER, Usage(0, 0, milliseconds=60_000), 6_000_000),
    (FREE, NOVA_3, Usage(0, 0, milliseconds=1_500), 107_505),
    (FREE, NOVA_3, Usage(0, 0, milliseconds=3_600_000), 258_012_000),
    (FREE, TTS_1, Usage(0, 0, characters=1), 15_000),
    (FREE, TTS_1, Usage(0, 0, characters=4_096), 61_440_000),
    (FREE, TTS_1_HD, Usage(0, 0, characters=1_000), 30_000_000),
    (RERANK_3_5, NO_LINES, Usage(0, 0, searches=1), 2_000_000),
    (RERANK_3_5, NO_LINES, Usage(0, 0, searches=3), 6_000_000),
    (SONAR_PRO, NO_LINES, Usage(1_000, 1_000), 24_000_000),
    # The example of Perplexity's price list, whose parts it rounds: 0.816 USD.
    (
        SONAR_DEEP_RESEARCH, RESEARCHES,
        Usage(33, 11_395, searches=21, citations=19_028, research=193_947), 816_123_000,
    ),
    (SONAR, NO_LINES, Usage(200, 300), 5_500_000),
    (GROK_4_FAST, NO_LINES, Usage(199_999, 0), 39_999_800),
    (GROK_4_FAST, NO_LINES, Usage(200_000, 0), 80_000_000),
    (GROK_4_FAST, NO_LINES, Usage(200_000, 100), 80_100_000),
    (GPT_4O | {"discount": 0.5}, NO_LINES, Usage(1_000, 500), 3_750_000),
    (CLAUDE_SONNET_4 | {"discount": 0.25}, NO_LINES, Usage(200_001, 1_000), 916_879_500),
    (CLAUDE_OPUS_4_5 | {"discount": 0.1}, NO_LINES, Usage(1_000, 1_000, searches=3), 54_000_000),
    (CLAUDE_OPUS_4_5 | {"discount": 1}, NO_LINES, Usage(1_000, 1_000, searches=3), 0),
    (FREE | {"prompt": "0.0000000005"}, NO_LINES, Usage(1, 0), 0),
    (FREE | {"prompt": "0.0000000005"}, NO_LINES, Usage(3, 0), 2),
    (FREE | {"prompt": "0.0000000005"}, NO_LINES, Usage(5, 0), 2),
]  # fmt: skip


@pytest.mark.parametrize(("pricing", "lines", "usage", "nano"), ROWS)
def test_a_published_price_is_charged_to_the_nano_dollar(
    pricing: dict[str, Any], lines: tuple[dict[str, Any], ...], usage: Usage, nano: int
) -> None:
    price = read_pricing(pricing, *lines)
    assert cost_nano(price, usage, MONDAY) == nano
    assert round(sum_charges(price, usage, MONDAY) * 10**9) == nano


@pytest.mark.parametrize(
    ("at", "nano"),
    [
        (MONDAY + HOUR - 1, 1_960_000),
        (MONDAY + HOUR, 3_920_000),
        (MONDAY + 4 * HOUR - 1, 3_920_000),
        (MONDAY + 4 * HOUR, 1_960_000),
        (MONDAY + 6 * HOUR, 3_920_000),
        (MONDAY + 10 * HOUR, 1_960_000),
        (MONDAY + 4 * DAY + 10 * HOUR - 1, 3_920_000),
        (MONDAY + 5 * DAY + 2 * HOUR, 1_960_000),
        (MONDAY + 6 * DAY + 7 * HOUR, 1_960_000),
    ],
)
def test_a_window_of_deepseek_doubles_the_price(at: int, nano: int) -> None:
    price = read_pricing(DEEPSEEK)
    assert cost_nano(price, Usage(10_000, 1_000, cached=5_000), at) == nano
