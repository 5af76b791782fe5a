"""The table of tokenizers: what it counts, what it estimates, and what it bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalog.tokens import (
    FEATURES,
    UNKNOWN_FAMILY,
    TextCounts,
    find_family,
    find_script,
)

MODELS = json.loads(Path("catalog/data/catalogue.json").read_text())["models"]


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
)
# What the vocabularies of the table make of these texts, by the packages that it names; what is
# estimated, and the bound.
TRUE: list[tuple[str, str, str, int, int, int]] = [
    ("GPT", "openai/gpt-5", TEXTS[0], 15, 18, 79),
    ("GPT", "openai/gpt-5", TEXTS[1], 24, 27, 89),
    ("GPT", "openai/gpt-5", TEXTS[2], 16, 21, 87),
    ("GPT", "openai/gpt-5", TEXTS[3], 39, 40, 39),
    ("GPT", "openai/gpt-5", TEXTS[4], 16, 14, 54),
    ("Claude", "anthropic/claude-opus-5", TEXTS[1], 47, 60, 114),
    ("Claude", "anthropic/claude-opus-5", TEXTS[2], 35, 42, 119),
    ("Claude", "anthropic/claude-opus-5", TEXTS[3], 39, 40, 39),
    ("Claude", "anthropic/claude-opus-5", TEXTS[4], 20, 23, 54),
    ("Qwen3", "qwen/qwen3-8b", TEXTS[0], 15, 18, 79),
    ("Qwen3", "qwen/qwen3-8b", TEXTS[1], 29, 37, 91),
    ("Qwen3", "qwen/qwen3-8b", TEXTS[2], 48, 50, 109),
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


def test_a_tokenizer_may_make_more_tokens_than_bytes() -> None:
    counts = count("\u07d2\u07de\u07cf")
    assert find_family("Claude", "anthropic/claude-opus-5").bound_more(counts) == 3


def test_families_have_models_of_the_catalogue() -> None:
    def family_of(model: dict[str, Any]) -> str:
        return find_family(model["architecture"]["tokenizer"], model["id"]).family

    assert {family_of(each) for each in MODELS} == {
        "o200k", "cl100k", "claude-4.7", "claude-3", "gemma-3", "gemini", "llama-3", "qwen-3",
        "deepseek-3", "tekken", "unknown",
    }  # fmt: skip
