"""The table of tokenizers: what it counts, what it estimates, and what it bounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import product
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

from catalog.abilities import read_abilities
from catalog.tokens import (
    FEATURES,
    UNKNOWN_FAMILY,
    Medium,
    TextCounts,
    find_family,
    find_limits,
    find_script,
)
from tests.support.texts.characters import write_characters

CATALOGUE = json.loads(Path("catalog/data/catalogue.json").read_text())
MODELS, ENDPOINTS = CATALOGUE["models"], CATALOGUE["endpoints"]
SLUGS = {each["canonical_slug"]: each["id"] for each in MODELS}


def count(text: str) -> TextCounts:
    counts = TextCounts()
    counts.add(text)
    return counts


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Hello wORLD", {"lower": 5, "lower_run": 2, "upper": 5, "upper_run": 2, "space": 1,
                         "space_run": 1}),
        ("a 12 3,4", {"lower": 1, "lower_run": 1, "digit": 4, "digit_run": 3, "sign": 1,
                      "sign_run": 1, "space": 2, "space_run": 2, "spaced_digit": 2}),
        ("\t\tx\n", {"lower": 1, "lower_run": 1, "blank": 3, "blank_run": 2}),
        # A letter with an accent does not part a word.
        ("\u00e9t\u00e9", {"lower": 1}),
        ("", {}),
    ],
)  # fmt: skip
def test_bytes_and_runs_of_ascii_are_counted(text: str, found: dict[str, int]) -> None:
    features = dict(zip(FEATURES, count(text).features, strict=True))
    assert {name: number for name, number in features.items() if number} == found


def test_bytes_of_scripts_are_counted_as_often_as_they_are_read() -> None:
    counts = count("ไทย한")
    assert (counts.size, counts.scripts) == (12, {"Thai": 9, "Hangul": 3})
    counts.add("ไ", 3)
    assert (counts.size, counts.scripts) == (21, {"Thai": 18, "Hangul": 3})


@pytest.mark.parametrize(
    ("char", "script"),
    [("\u00e9", "Latin"), ("ж", "Cyrillic"), ("中", "Han"), ("か", "Kana"), ("ߊ", "NKo"),
     ("–", "Symbols"), ("😀", "Emoji"), ("\U000e0001", "Other")],
)  # fmt: skip
def test_a_character_has_one_script(char: str, script: str) -> None:
    assert find_script(char) == script


@pytest.mark.parametrize(
    ("tokenizer", "slug", "family"),
    [
        ("GPT", "openai/gpt-5", "o200k"),
        ("GPT", "openai/gpt-4-turbo", "cl100k"),
        ("Claude", "anthropic/claude-opus-4.8", "claude-4.7"),
        ("Claude", "anthropic/claude-opus-4.1", "claude-3"),
        ("Mistral", "mistralai/mistral-nemo", "tekken"),
        ("Other", "acme/falcon", "unknown"),
        (None, "acme/falcon", "unknown"),
    ],
)
def test_a_model_has_the_family_of_its_tokenizer(
    tokenizer: str | None, slug: str, family: str
) -> None:
    assert find_family(tokenizer, slug).family == family


def test_an_unknown_tokenizer_makes_a_token_of_four_bytes() -> None:
    assert UNKNOWN_FAMILY.estimate(count("x" * 41)) == 11
    assert UNKNOWN_FAMILY.estimate_answer(41, count("Hi")) == 11
    assert UNKNOWN_FAMILY.bound_more(count("ไทย")) == 0


TEXTS = (
    "The gateway holds the worst case of a request before anything is sent upstream.",
    "เกตเวย์จะกันวงเงินตามกรณีที่แพงที่สุดของคำขอก่อนส่งออกไป",
    "गेटवे अनुरोध भेजने से पहले सबसे खराब स्थिति रखता है।",
    "0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9",
    "\tif x:\n\t\treturn None\n\tfor each in items:\n\t\tyield each\n",
    "𞤈𞤫𞤬𞤦𞤭𞤪𞥆𞤫 𞤀𞥄𞤩𞤵𞤲𞥋𞤣𞤫 𞤃𞤢𞤱𞤦𞤢𞥄𞤪𞤫 𞤐𞤶𞤫𞤧𞤤𞤢𞥄𞤪𞤫 𞤐𞤢𞥄𞤧𞤢𞥄𞤲𞤣𞤫 𞤃𞤢𞤱𞤲𞤣𞤫 𞤖𞤮𞤪𞤦𞤭𞤪𞥆𞤫",
    "😀🚀🔥👍🎉🙏📅🔒",
    # What few texts have, again and again.
    "ß7" * 20,
    "\U0001d15e" * 20,
    "\u040d" * 20,
    "\u0f42\u0fb7" * 20,
    "Шлюз удерживает худший случай запроса до отправки.",
    "网关在发送之前冻结请求的最坏情况。",
)
# What the vocabularies of the table make of these texts, by the packages that it names; what is
# estimated, and the bound.
TRUE: list[tuple[str, str, str, int, int, int]] = [
    ("GPT", "openai/gpt-5", TEXTS[0], 15, 18, 79),
    ("GPT", "openai/gpt-5", TEXTS[1], 24, 27, 58),
    ("GPT", "openai/gpt-5", TEXTS[2], 16, 21, 44),
    ("GPT", "openai/gpt-5", TEXTS[3], 39, 40, 39),
    ("GPT", "openai/gpt-5", TEXTS[4], 16, 14, 54),
    ("Claude", "anthropic/claude-opus-5", TEXTS[1], 47, 60, 121),
    ("Claude", "anthropic/claude-opus-5", TEXTS[2], 35, 42, 117),
    ("Claude", "anthropic/claude-opus-5", TEXTS[3], 39, 40, 39),
    ("Claude", "anthropic/claude-opus-5", TEXTS[4], 20, 23, 56),
    ("GPT", "openai/gpt-5", TEXTS[5], 230, 225, 235),
    ("Claude", "anthropic/claude-opus-5", TEXTS[5], 230, 225, 243),
    ("GPT", "openai/gpt-5", TEXTS[6], 12, 13, 13),
    ("Claude", "anthropic/claude-opus-5", TEXTS[6], 21, 20, 23),
    ("Qwen3", "qwen/qwen3-8b", TEXTS[6], 8, 9, 9),
    ("Qwen3", "qwen/qwen3-8b", TEXTS[0], 15, 18, 79),
    ("Qwen3", "qwen/qwen3-8b", TEXTS[1], 29, 37, 58),
    ("Qwen3", "qwen/qwen3-8b", TEXTS[2], 48, 50, 54),
    ("Qwen3", "qwen/qwen3-8b", TEXTS[3], 39, 41, 39),
    ("Qwen3", "qwen/qwen3-8b", TEXTS[4], 16, 14, 54),
]


@pytest.mark.parametrize(("tokenizer", "slug", "text", "tokens", "estimate", "bound"), TRUE)
def test_an_estimate_is_fair_and_a_bound_holds_the_truth(
    tokenizer: str, slug: str, text: str, tokens: int, estimate: int, bound: int
) -> None:
    family, counts = find_family(tokenizer, slug), count(text)
    assert (family.estimate(counts), counts.size + family.bound_more(counts)) == (estimate, bound)
    assert sorted((0.7 * tokens, estimate, 1.4 * tokens))[1] == estimate
    assert min(bound, tokens) == tokens


@pytest.mark.parametrize(
    ("text", "more"),
    [
        # Of the bytes, one in fifty more, and one for the edge of a run without a space.
        ("\u00e9" * 50, 2 * 50 + 2 - 2 * 50 + 1),
        # A letter that joins a space takes it.
        (" \u00e9 \u00e9", 4 + 1 - 4 - 2),
        # One that joins none may have had it.
        # Beside another script there is one more, and for its bytes one in eight.
        (" \u00e9\u0436", 2 + 2 + 1 - 4 + 1 + 1),
        ("\u0436 \u00e9 \u00e9", 6 + 1 - 6 + 1 - 1 + 1 + 1),
        # A sign behind a space may be parted; what the table has not has its bytes.
        ("\u2013", 1 + 1 - 3 + 1),
        (" \u2013", 1 + 1 - 3 + 2),
        ("x\u00e9x\u00e9", 4 + 1 - 4 + 2),
        ("\U000e0001", 4 + 1 - 4 + 1),
        ("plain", 0),
    ],
)
def test_characters_are_bounded_by_their_tokens(text: str, more: int) -> None:
    table = write_characters({"\u00e9": 2, "\u2013": 1}, {"\u00e9"})
    family, counts = replace(UNKNOWN_FAMILY, characters=table, edge=1), count(text)
    assert [family.bound_more(counts), family.bound_more(counts)] == [more, more]
    # The same text once more, after its bound was asked for.
    counts.add(text)
    again = TextCounts()
    again.add(text, 2)
    assert family.bound_more(counts) == family.bound_more(again)


def test_signs_behind_spaces_are_counted_however_many_there_are() -> None:
    signs = "".join(map(chr, range(0x2010, 0x2030)))
    for few in (signs[:4], signs):
        counts = count(" \u00e9" + "".join(f" {each}" for each in few) + " x" + few)
        assert (counts.spaced, counts.parted) == (1, len(few))


@pytest.mark.parametrize(
    ("tokenizer", "slug", "text", "tokens", "bound"),
    [
        ("GPT", "openai/gpt-5", TEXTS[7], 40, 41),
        ("Claude", "anthropic/claude-opus-5", TEXTS[7], 59, 81),
        ("GPT", "openai/gpt-5", TEXTS[8], 60, 62),
        ("Qwen3", "qwen/qwen3-8b", TEXTS[8], 80, 82),
        ("Claude", "anthropic/claude-opus-5", TEXTS[8], 160, 165),
        ("GPT", "openai/gpt-5", TEXTS[9], 40, 41),
        ("Claude", "anthropic/claude-opus-5", TEXTS[9], 41, 103),
        ("GPT", "openai/gpt-5", TEXTS[10], 80, 82),
        ("Claude", "anthropic/claude-opus-5", TEXTS[10], 60, 124),
        ("GPT", "openai/gpt-5", TEXTS[11], 14, 45),
        ("GPT", "openai/gpt-5", TEXTS[12], 12, 19),
        ("Qwen3", "qwen/qwen3-8b", TEXTS[12], 12, 24),
        # Scripts that alternate part characters, and begin runs within a word.
        ("GPT", "openai/gpt-5", "\U0001f600\u0e22\U0001f600\u0e1b\U0001f44d\u0e47", 8, 9),
        ("Claude", "anthropic/claude-opus-5", "\uc870\u10db\uad6d\u10d1\ud55c\u10dc\ub9d0\u10e8",
         14, 18),
        # More tokens than bytes.
        ("Claude", "anthropic/claude-opus-5", "0ZQ" * 20, 100, 100),
        ("Claude", "anthropic/claude-opus-5", "\u03979 " * 20, 79, 123),
        ("Claude", "anthropic/claude-opus-5", "\u044e9 " * 20, 79, 81),
        ("Claude", "anthropic/claude-opus-5", "\u0539\u0538 " * 20, 120, 165),
        ("Claude", "anthropic/claude-opus-5", "\u07d2\u07de\u07cf", 7, 14),
    ],
)  # fmt: skip
def test_a_bound_holds_rare_and_common_characters(
    tokenizer: str, slug: str, text: str, tokens: int, bound: int
) -> None:
    """By the packages that the table names."""
    counts = count(text)
    assert counts.size + find_family(tokenizer, slug).bound_more(counts) == bound
    assert min(bound, tokens) == tokens


def test_families_have_models_of_the_catalogue() -> None:
    def family_of(model: dict[str, Any]) -> str:
        return find_family(model["architecture"]["tokenizer"], model["id"]).family

    assert {family_of(each) for each in MODELS} == {
        "o200k", "cl100k", "claude-4.7", "claude-3", "gemma-3", "gemini", "llama-3", "qwen-3",
        "deepseek-3", "tekken", "unknown",
    }  # fmt: skip


def tiles_of_openai(base: int, tile: int, width: int, height: int) -> int:
    """Counts a picture as OpenAI documents it: in 2,048 pixels, its shorter side in 768."""
    scale = min(1, 2_048 / max(width, height))
    scale = min(scale, 768 / min(width, height))
    return base + tile * ceil(width * scale / 512) * ceil(height * scale / 512)


def patches_of_openai(factor: float, most: int, width: int, height: int) -> int:
    """Counts patches of 32 pixels, as OpenAI's guide to images and vision does (2026-09)."""
    return ceil(factor * min(most, ceil(width / 32) * ceil(height / 32)))


def pixels_of_claude(most: int, width: int, height: int) -> int:
    return min(most, ceil(width * height / 750))


def crops_of_gemini(width: int, height: int) -> int:
    """Counts crops of 258 tokens: one of a small picture, else squares of its shorter side."""
    scale = min(1, 3_072 / max(width, height))
    width, height = max(1, int(width * scale)), max(1, int(height * scale))
    if max(width, height) <= 384:
        return 258
    side = max(256, min(768, int(min(width, height) / 1.5)))
    return 258 * ceil(width / side) * ceil(height / side)


@pytest.mark.parametrize(
    ("model", "counter"),
    [
        ("openai/gpt-4o", partial(tiles_of_openai, 85, 170)),
        ("openai/gpt-4o-mini", partial(tiles_of_openai, 2_833, 5_667)),
        ("openai/o3", partial(tiles_of_openai, 75, 150)),
        ("openai/gpt-5", partial(tiles_of_openai, 70, 140)),
        ("openai/gpt-4.1-mini", partial(patches_of_openai, 1.62, 1_536)),
        ("openai/gpt-5-nano", partial(patches_of_openai, 2.46, 1_536)),
        ("openai/gpt-5.4-mini", partial(patches_of_openai, 1.62, 1_536)),
        ("openai/gpt-5.4-nano", partial(patches_of_openai, 2.46, 1_536)),
        ("openai/gpt-5.5", partial(patches_of_openai, 1.2, 10_000)),
        ("openai/gpt-5.6-sol", partial(patches_of_openai, 1.2, 30_000)),
        ("openai/gpt-6.1-terra", partial(patches_of_openai, 1.2, 30_000)),
        ("anthropic/claude-sonnet-4.5", partial(pixels_of_claude, 1_600)),
        ("anthropic/claude-opus-4.8", partial(pixels_of_claude, 4_784)),
        ("google/gemini-2.5-pro", crops_of_gemini),
        # The vendors' largest budgets are 2,240 and 1,120, those of a request without one these.
        ("google/gemini-3.1-pro-preview", lambda width, height: 1_120),
        ("google/gemma-4-31b-it", lambda width, height: 280 + 2),
    ],
)
def test_a_bundled_picture_is_bounded_and_not_absurdly(
    model: str, counter: Callable[[int, int], int]
) -> None:
    """By what the vendor documents: no picture is above its bound, the median at most four."""
    sides = (1, 64, 255, 384, 512, 513, 768, 1_024, 1_100, 1_536, 2_048, 3_000, 4_097)
    ratios: dict[Any, list[float]] = {}
    for endpoint in ENDPOINTS:
        if SLUGS[endpoint["model"]] != model:
            continue
        media = find_limits(read_abilities(endpoint["abilities"]).bound).media
        for width, height in product(sides, sides):
            bound = media.bound(Medium("image", ceil(width / 512) * ceil(height / 512)))
            true = counter(width, height)
            assert bound >= true, (endpoint["provider"], width, height)
            if min(width, height) >= 64:
                ratios.setdefault(endpoint["provider"], []).append(bound / true)
    assert ratios
    assert [name for name, each in ratios.items() if median(each) > 4] == []


@pytest.mark.parametrize(
    ("model", "least", "second", "step"),
    [
        ("mistralai/voxtral-small-24b-2507", 375, 0, 30),
        ("google/gemini-2.5-flash", 0, 32, 1),
        ("openai/gpt-audio", 0, 10, 1),
    ],
)
def test_a_bundled_sound_is_bounded(model: str, least: int, second: int, step: int) -> None:
    """Voxtral bills whole half-minutes, the others seconds."""
    served = [each for each in ENDPOINTS if SLUGS[each["model"]] == model]
    assert served
    for endpoint in served:
        media = find_limits(read_abilities(endpoint["abilities"]).bound).media
        true = {n: (least + second * step) * ceil(n / step) for n in range(1, 7_200)}
        assert all(media.bound(Medium("audio", n)) >= true[n] for n in true)
        assert median(media.bound(Medium("audio", n)) / true[n] for n in true) <= 4


def test_a_bundled_film_is_bounded() -> None:
    """Gemini counts at most 280 tokens a frame, a frame a second, beside 32 of its sound."""
    served = [each for each in ENDPOINTS if "video" in find_inputs(each["model"])]
    assert served
    for endpoint in served:
        media = find_limits(read_abilities(endpoint.get("abilities", {})).bound).media
        assert (
            min(media.bound(Medium("video", n)) - (280 + 32 + 8) * n for n in (1, 60, 3_600)) >= 0
        )


def find_inputs(slug: str) -> list[str]:
    [inputs] = [
        each["architecture"]["input_modalities"]
        for each in MODELS
        if each["canonical_slug"] == slug
    ]
    return list(inputs)


def test_a_vendor_that_writes_to_each_prompt_says_so() -> None:
    """Answers of vendors have counted 683 more tokens at Grok 4, and 66 at gpt-oss."""
    for name, tokens in (("x-ai/grok-4", 683), ("openai/gpt-oss-120b", 66)):
        served = [each for each in ENDPOINTS if SLUGS[each["model"]] == name]
        bounds = [read_abilities(each["abilities"]).bound.prompt or 0 for each in served]
        assert bounds
        assert min(bounds) >= tokens
