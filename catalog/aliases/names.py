"""The names by which callers ask for models; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from config.api.errors import NotFound

# The suffixes of a model's name that say how to route a request, not which model it asks for. Other
# editions of a model (``:thinking``, ``:extended``, ``:beta``, ``:batch``) are models of their own.
VARIANTS: Final = frozenset(("free", "online", "nitro", "floor", "exacto"))


class ModelNotFound(NotFound):
    """The catalogue has no model of this name."""

    error_type = "model_not_found"


def split_variants(name: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Yields what a name may mean: a model's name and variants, with as few variants as possible.

    A model's own name may end like a variant. Variants stack, but none stands twice.
    """
    variants: frozenset[str] = frozenset()
    yield name, variants
    while True:
        name, _, variant = name.rpartition(":")
        if variant not in VARIANTS or variant in variants:
            return
        variants |= {variant}
        yield name, variants


def find_by_name(name: str, slugs: Mapping[str, str]) -> tuple[str, frozenset[str]] | None:
    """Returns the slug that a name means and its variants; ``None`` for an unknown name."""
    for base, variants in split_variants(name):
        if base in slugs:
            return slugs[base], variants
    return None
