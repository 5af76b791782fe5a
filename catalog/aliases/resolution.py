"""Finds the models that are meant by a name that no model has; pure.

The order: an alias of the organization, an alias of the operator, the newest model of a family,
another spelling. A model's own name comes before all of them, and is looked up by the caller.
"""

from __future__ import annotations

import difflib
import heapq
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from catalog.aliases.names import ModelNotFound, find_by_name
from catalog.aliases.spellings import (
    MAX_NAME,
    Form,
    NameIndex,
    drop_date,
    fold,
    name_latest,
    read_family,
    read_forms,
)

WILDCARD: Final = "*"
# Names that are compared with an unknown one, and those that are shown.
_COMPARED: Final = 20
# The models that are looked through for a suggestion: 1,000 take a millisecond of the event loop.
_SCANNED: Final = 1_000
_SHOWN: Final = 3
_LEAST_LIKENESS: Final = 0.6
_WORD: Final = re.compile(r"[a-z0-9]+")
_WORDS: Final = 8
_PREFIX: Final = 3
_MAX_QUOTED: Final = 100


class Origin(StrEnum):
    """The authority that gives a name its meaning: a table of aliases, or a built-in rule."""

    ORGANIZATION = "organization"
    OPERATOR = "operator"
    LATEST = "latest"
    SPELLING = "spelling"


class Alias(NamedTuple):
    """A name, or a pattern with one ``*``, and the names of the models that it stands for."""

    name: str
    targets: tuple[str, ...]

    @property
    def is_pattern(self) -> bool:
        return WILDCARD in self.name


class Pattern(NamedTuple):
    """An alias whose name has a ``*``, and the texts before and after that."""

    alias: Alias
    prefix: str
    suffix: str

    def matches(self, text: str) -> bool:
        return (
            len(text) >= len(self.prefix) + len(self.suffix)
            and text.startswith(self.prefix)
            and text.endswith(self.suffix)
        )


@dataclass(frozen=True, slots=True)
class AliasTable:
    """The aliases of an organization or of the operator.

    An exact name wins over a pattern, and a pattern with more characters over one with fewer.
    """

    exact: Mapping[str, Alias]
    patterns: Sequence[Pattern]

    def find(self, forms: Sequence[Form]) -> tuple[Alias, frozenset[str]] | None:
        """Returns the alias of the first form that has one, and the variants of that form."""
        for form in forms:
            if (alias := self.exact.get(form.text)) is not None:
                return alias, form.variants
        for pattern in self.patterns:
            # The shortest first: a ``*`` at the end would take the variants for a part of the name.
            for form in reversed(forms):
                if pattern.matches(form.text):
                    return pattern.alias, form.variants
        return None


NO_ALIASES: Final = AliasTable({}, ())


def make_table(aliases: Iterable[Alias]) -> AliasTable:
    """Returns the table of these aliases."""
    exact: dict[str, Alias] = {}
    patterns: list[Pattern] = []
    for alias in aliases:
        if alias.is_pattern:
            prefix, _, suffix = alias.name.partition(WILDCARD)
            patterns.append(Pattern(alias, prefix, suffix))
        else:
            exact[alias.name] = alias
    patterns.sort(key=lambda each: (-len(each.alias.name), each.alias.name))
    return AliasTable(exact, patterns) if exact or patterns else NO_ALIASES


class NamedModel(NamedTuple):
    """The slug of a model that a name means, and the variants at the end of the name."""

    slug: str
    variants: frozenset[str]


class Resolution(NamedTuple):
    """The meaning of a name: its models in the order of trial, and the origin of the meaning.

    ``alias`` is the name of the alias or of the newest model of a family. Without ``models`` the
    name means nothing: ``candidates`` are then the models between which it does not decide.
    """

    origin: Origin
    alias: str | None
    models: tuple[NamedModel, ...]
    candidates: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Returns the members that explain the resolution to a caller."""
        return {
            "origin": str(self.origin),
            "alias": self.alias,
            "targets": [":".join((slug, *sorted(variants))) for slug, variants in self.models],
        }


class Lookup(NamedTuple):
    """The tables by which one caller's names are resolved.

    ``slugs`` maps the names of listed models to their slugs. ``is_visible`` says whether the caller
    may use at least one endpoint of a model.
    """

    slugs: Mapping[str, str]
    names: NameIndex
    own: AliasTable
    shared: AliasTable
    is_visible: Callable[[str], bool]

    def resolve(self, name: str) -> Resolution | None:
        """Returns what a name means that is no model's own; ``None`` if nothing is known."""
        if len(name) > MAX_NAME:
            return None
        forms = read_forms(name)
        for form in forms:
            if form.text in self.slugs:
                model = NamedModel(self.slugs[form.text], form.variants)
                return Resolution(Origin.SPELLING, None, (model,))
        for origin, table in (
            (Origin.ORGANIZATION, self.own),
            (Origin.OPERATOR, self.shared),
        ):
            if (found := table.find(forms)) is not None:
                alias, variants = found
                return Resolution(origin, alias.name, tuple(self._name_targets(alias, variants)))
        return self._find_latest(forms) or self._find_spelling(forms)

    def find_newest(self, family: str) -> str | None:
        """Returns the newest model of a family that the caller may use; if it may use none, the
        newest, so that the refusal names its reasons.
        """
        slugs = self.names.families.get(family, ())
        return next(filter(self.is_visible, slugs), slugs[0] if slugs else None)

    def suggest(self, name: str) -> list[str]:
        """Returns the models that the caller may use and whose names are most like this one.

        Names are compared with and without a suffix or a date: ``a/b:nitros`` is most like ``a/b``.
        """
        folded = fold(name[:_MAX_QUOTED])
        bare = folded.rpartition("/")[2]
        words = _WORD.findall(folded)[:_WORDS]
        likely = heapq.nlargest(
            _COMPARED,
            (
                (likeness, names.slug)
                for names in itertools.islice(self.names.models.values(), _SCANNED)
                if (likeness := _count_common(bare, words, names.slug))
            ),
        )
        forms = {bare, drop_date(bare.partition(":")[0])}
        measured = [(max(_compare(form, slug) for form in forms), slug) for _, slug in likely]
        measured.sort(key=lambda pair: (-pair[0], pair[1]))
        near = (slug for ratio, slug in measured if ratio >= _LEAST_LIKENESS)
        return list(itertools.islice(filter(self.is_visible, near), _SHOWN))

    def explain_unknown(self, name: str, resolution: Resolution | None) -> ModelNotFound:
        """Returns the error for a name that means no model, with what was probably meant."""
        quoted = quote_name(name)
        if resolution is not None and resolution.candidates:
            listed = ", ".join(resolution.candidates)
            return ModelNotFound(
                f"The name {quoted} may mean several models: {listed}. Send one of these names.",
                metadata={"did_you_mean": list(resolution.candidates)},
            )
        if resolution is not None and resolution.alias is not None:
            return ModelNotFound(
                f"The alias {quote_name(resolution.alias)} stands for models that the catalogue "
                "no longer has. Change the alias, or name a model."
            )
        near = self.suggest(name)
        if not near:
            return ModelNotFound(f"There is no model {quoted}.")
        return ModelNotFound(
            f"There is no model {quoted}. Did you mean {' or '.join(near)}?",
            metadata={"did_you_mean": near},
        )

    def _name_targets(self, alias: Alias, variants: frozenset[str]) -> Iterable[NamedModel]:
        """Yields the targets that exist; variants of the request replace those of a target."""
        for target in alias.targets:
            if (found := find_by_name(target, self.slugs)) is not None:
                yield NamedModel(found[0], variants or found[1])

    def _find_latest(self, forms: Sequence[Form]) -> Resolution | None:
        for form in forms:
            family = read_family(form.text)
            slug = None if family is None else self.find_newest(family)
            if family is not None and slug is not None:
                model = NamedModel(slug, form.variants)
                return Resolution(Origin.LATEST, name_latest(family), (model,))
        return None

    def _find_spelling(self, forms: Sequence[Form]) -> Resolution | None:
        """Returns the model that is spelled so, or the models between which that is open.

        A date that the catalogue does not know is ignored, and so is one that only it knows.
        """
        for form in forms:
            folded = fold(form.text)
            for spelling in dict.fromkeys((folded, drop_date(folded))):
                found = self.names.spellings.get(spelling)
                if found:
                    return self._choose(found, form.variants)
        return None

    def _choose(self, found: Sequence[tuple[int, str]], variants: frozenset[str]) -> Resolution:
        """Returns the only nearest model; one that the caller may not use counts if no other is."""
        lowest = min(found)[0]
        slugs = tuple(slug for rank, slug in found if rank == lowest)
        visible = tuple(filter(self.is_visible, slugs))
        slugs = visible or slugs
        if len(slugs) == 1:
            return Resolution(Origin.SPELLING, None, (NamedModel(slugs[0], variants),))
        return Resolution(Origin.SPELLING, None, (), tuple(sorted(visible)))


def _count_common(bare: str, words: Iterable[str], slug: str) -> int:
    """Returns how many of the words a slug has, and one more if both names begin alike.

    This is cheap, while the comparison of two texts is not.
    """
    begins_alike = slug.partition("/")[2][:_PREFIX] == bare[:_PREFIX]
    return sum(word in slug for word in words) + begins_alike


def _compare(bare: str, slug: str) -> float:
    """Returns from 0 to 1 how much a name without its author is like that of a model."""
    return difflib.SequenceMatcher(None, bare, fold(slug).partition("/")[2]).ratio()


def quote_name(name: str) -> str:
    """Returns a caller's name for a message, cut to a length that can be read."""
    return repr(name if len(name) <= _MAX_QUOTED else f"{name[:_MAX_QUOTED]}…")
