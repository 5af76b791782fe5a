"""The spellings of a model's name, and the family that a model belongs to; pure."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

from catalog.aliases.names import split_variants

# Claude Code writes this after the name of a model with a context of a million tokens.
MILLION: Final = "[1m]"
# A longer name is not looked up: no model, alias or variant needs so much.
MAX_NAME: Final = 300
# The names that Claude Code's users type. Each stands for the newest model of a family.
SHORT_FAMILIES: Final = {
    name: f"anthropic/claude-{name}" for name in ("fable", "haiku", "mythos", "opus", "sonnet")
}
_LATEST: Final = "-latest"
_SEPARATORS: Final = str.maketrans("._@", "---")
_DATE: Final = re.compile(r"-(?:[0-9]{8}|[0-9]{4}-[0-9]{2}-[0-9]{2}|latest)\Z")
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)*")
# A part of a name that is a version: 4.5, 4o, v3.1, k2.5, 2507; but not a size such as 70b.
_VERSION: Final = re.compile(r"[a-z]?[0-9]+(?:\.[0-9]+)*[ac-ln-z]?")
# A first word that ends in a version, as qwen3 and o3.
_VERSIONED: Final = re.compile(r"([a-z]+)[0-9]+(?:\.[0-9]+)*")


class Rank(IntEnum):
    """The distance of a spelling from a model's own name; of several ranks the lowest counts."""

    NAME = 0
    UPSTREAM = 1
    UNDATED = 2


class ModelNames(NamedTuple):
    """The facts of a listed model from which its other names are made."""

    slug: str
    permaslug: str
    created: int
    upstream_ids: frozenset[str]


class Form(NamedTuple):
    """A name without some of its suffixes, and the variants among those."""

    text: str
    variants: frozenset[str]


def read_forms(name: str) -> tuple[Form, ...]:
    """Returns the name as it is, then without its variants, and then without ``[1m]`` too."""
    forms = [Form(*each) for each in split_variants(name)]
    for text, variants in forms:
        if text.endswith(MILLION):
            inner = split_variants(text.removesuffix(MILLION))
            return (*forms, *(Form(base, variants | others) for base, others in inner))
    return tuple(forms)


def fold(name: str) -> str:
    """Returns a name in lower case with one separator, so that ``4.8`` equals ``4-8``."""
    return name.casefold().translate(_SEPARATORS)


def drop_date(folded: str) -> str:
    """Returns a folded name without a date or ``latest`` at its end."""
    return _DATE.sub("", folded)


def spell(names: ModelNames) -> Mapping[str, Rank]:
    """Returns the folded spellings of a model's name, with and without its author."""
    found: dict[str, Rank] = {}
    own = [fold(name) for name in (names.slug, names.permaslug)]
    own += [name.partition("/")[2] for name in own]
    found.update(dict.fromkeys(own, Rank.NAME))
    for upstream_id in map(fold, names.upstream_ids):
        found.setdefault(upstream_id, Rank.UPSTREAM)
    for name in own:
        found.setdefault(drop_date(name), Rank.UNDATED)
    found.pop("", None)
    return found


def family_of(slug: str) -> str | None:
    """Returns the author and the name of a model without versions and dates.

    Returns ``None`` for a slug that has no author, and for one that ends in a variant.
    """
    author, _, name = slug.casefold().partition("/")
    if not name or ":" in name:
        return None
    words: list[str] = []
    for position, word in enumerate(name.split("-")):
        if position and _VERSION.fullmatch(word):
            continue
        found = None if position else _VERSIONED.fullmatch(word)
        words.append(found[1] if found else word)
    return f"{author}/{'-'.join(words)}"


def read_family(name: str) -> str | None:
    """Returns the family that ``~author/family-latest`` or a short name asks for."""
    folded = name.casefold()
    if folded.startswith("~") and folded.endswith(_LATEST):
        return folded[1:].removesuffix(_LATEST)
    return SHORT_FAMILIES.get(folded)


def name_latest(family: str) -> str:
    """Returns the name of the newest model of a family."""
    return f"~{family}{_LATEST}"


def order_newest(models: Iterable[ModelNames]) -> tuple[str, ...]:
    """Returns the slugs of models, the newest first; of the same day, the highest version."""

    def age(names: ModelNames) -> tuple[int, list[list[int]], str]:
        numbers = [list(map(int, text.split("."))) for text in _NUMBER.findall(names.slug)]
        return names.created, numbers, names.slug

    return tuple(names.slug for names in sorted(models, key=age, reverse=True))


class NameIndex(NamedTuple):
    """The other names of the listed models, kept up with the catalogue.

    ``models`` has them by their id. ``spellings`` maps a folded name to the ranks and slugs of all
    models that it may mean, ``families`` a family to the slugs of its models, the newest first.
    """

    models: Mapping[UUID, ModelNames]
    spellings: Mapping[str, tuple[tuple[Rank, str], ...]]
    families: Mapping[str, tuple[str, ...]]


NO_NAMES: Final = NameIndex({}, {}, {})


def patch_names(index: NameIndex, changed: Mapping[UUID, ModelNames | None]) -> NameIndex:
    """Returns the index with these models changed; ``None`` stands for one that is not listed.

    An index that does not differ is returned itself: most changes of a catalogue are prices.
    """
    differing = {key: names for key, names in changed.items() if index.models.get(key) != names}
    if not differing:
        return index
    models, spellings = dict(index.models), dict(index.spellings)
    touched: set[str | None] = set()
    # Two models may swap their names, so the old spellings of all of them go first.
    for key in differing:
        if (old := models.pop(key, None)) is not None:
            touched.add(family_of(old.slug))
            _remove_spellings(spellings, old)
    for key, names in differing.items():
        if names is not None:
            models[key] = names
            touched.add(family_of(names.slug))
            for text, rank in spell(names).items():
                spellings[text] = tuple(sorted((*spellings.get(text, ()), (rank, names.slug))))
    touched.discard(None)
    return NameIndex(models, spellings, _patch_families(index.families, models.values(), touched))


def put_first(own: NameIndex, others: NameIndex) -> NameIndex:
    """Returns an index of both, in which a name that ``own`` has means what it means there."""
    pairs: Any = zip(own, others, strict=True)
    return NameIndex(*(ChainMap(*pair) for pair in pairs))


def _remove_spellings(
    spellings: dict[str, tuple[tuple[Rank, str], ...]], names: ModelNames
) -> None:
    for text in spell(names):
        left = tuple(each for each in spellings.pop(text, ()) if each[1] != names.slug)
        if left:
            spellings[text] = left


def _patch_families(
    families: Mapping[str, tuple[str, ...]],
    models: Iterable[ModelNames],
    touched: set[str | None],
) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, list[ModelNames]] = {}
    for names in models:
        family = family_of(names.slug)
        if family is not None and family in touched:
            found.setdefault(family, []).append(names)
    kept = {family: slugs for family, slugs in families.items() if family not in touched}
    return kept | {family: order_newest(group) for family, group in found.items()}
