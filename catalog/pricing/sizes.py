"""The tiers of size by which some lists price pictures, and the sizes in pixels of each; pure."""

from __future__ import annotations

import re
from typing import Final

# How far the sides in pixels may be from a ratio or from the nominal side of a tier.
TOLERANCE: Final = 0.07
_NOMINAL: Final = {"512": 512, "768": 768, "1K": 1024, "1.5K": 1536, "2K": 2048, "4K": 4096}
_PIXELS: Final = re.compile(r"([0-9]{1,5})x([0-9]{1,5})")


def find_tiers(size: str) -> frozenset[str]:
    """Returns the tiers of which a picture may be: none for a size that is not in pixels."""
    if (pixels := _PIXELS.fullmatch(size)) is None:
        return frozenset()
    short, long = sorted(map(int, pixels.groups()))
    return frozenset(
        tier
        for tier, side in _NOMINAL.items()
        if short <= side * (1 + TOLERANCE) and long >= side * (1 - TOLERANCE)
    )


def read_sizes(words: frozenset[str], listed: frozenset[str]) -> list[frozenset[str]]:
    """Returns what the words of a variant may mean in those of a list.

    A size in pixels that the list lacks may be of each tier that it has, unless a word names one.
    """
    pixels = frozenset(word for word in words if find_tiers(word))
    if pixels & listed or _NOMINAL.keys() & words:
        return [words]
    tiers = {tier for word in pixels for tier in find_tiers(word) & listed}
    return [words - pixels | {tier} for tier in tiers] or [words]
