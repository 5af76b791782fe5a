"""The names by which callers ask for models; pure."""

from __future__ import annotations

from typing import Final

from config.api.errors import NotFound

# The suffixes of a model's name that say how to route a request, not which model it asks for.
VARIANTS: Final = frozenset(
    ("free", "extended", "beta", "thinking", "online", "nitro", "floor", "exacto")
)


class ModelNotFound(NotFound):
    """The catalogue has no model of this name."""

    error_type = "model_not_found"


def split_variant(name: str) -> tuple[str, str | None]:
    """Returns a model's name without its variant, and the variant or ``None``."""
    base, _, variant = name.rpartition(":")
    return (base, variant) if variant in VARIANTS else (name, None)
