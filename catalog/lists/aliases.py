"""Finds listed models by any name, and lists aliases beside the models that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from catalog.aliases.names import find_by_name
from catalog.aliases.resolution import (
    NO_ALIASES,
    AliasTable,
    Lookup,
    Origin,
    Resolution,
    make_table,
)
from catalog.aliases.spellings import name_latest
from catalog.lists.listing import CatalogueModel, ListedModel, VisibleCatalogue
from catalog.models import ModelAlias


class FoundModel(NamedTuple):
    """The model that a name means, and the name if it is an alias and no other spelling."""

    model: CatalogueModel
    alias: str | None

    def list_in(self, catalogue: VisibleCatalogue) -> ListedModel | None:
        """Returns the model as a catalogue lists it; ``None`` if no endpoint there serves it."""
        listed = catalogue.find(self.model.pk)
        return None if listed is None else listed._replace(alias=self.alias)


class NamedCatalogue:
    """A visible catalogue whose models have other names: built-in ones, and those of two owners."""

    def __init__(self, visible: VisibleCatalogue, own: AliasTable) -> None:
        catalogue = visible.catalogue
        self._visible = visible
        self._catalogue = catalogue
        self._lookup = Lookup(
            catalogue.slugs, catalogue.spellings, own, catalogue.aliases, self._is_allowed
        )

    def find(self, name: str) -> FoundModel:
        """Returns the model that a name means; of an alias, the first one that is visible.

        Raises :class:`ModelNotFound` with what was probably meant.
        """
        found = find_by_name(name, self._catalogue.slugs)
        if found is not None:
            return FoundModel(self._model(found[0]), None)
        resolution = self._lookup.resolve(name)
        if resolution is None or not resolution.models:
            raise self._lookup.explain_unknown(name, resolution)
        is_alias = resolution.origin is not Origin.SPELLING
        return FoundModel(self._model(self._first_visible(resolution)), name if is_alias else None)

    def add_aliases(self, models: Iterable[ListedModel]) -> list[ListedModel]:
        """Returns the models, each with its aliases behind it."""
        aliases: dict[str, list[str]] = {}
        for name, slug in self._list_aliases().items():
            aliases.setdefault(slug, []).append(name)
        if not aliases:
            return list(models)
        return [
            entry
            for listed in models
            for entry in (
                listed,
                *(listed._replace(alias=name) for name in aliases.get(listed.model.slug, ())),
            )
        ]

    def _list_aliases(self) -> Mapping[str, str]:
        """Returns the slug of each alias without a ``*``; of families, those with two models."""
        found = dict(self._list_families())
        lookup = self._lookup
        for name in sorted({*lookup.shared.exact, *lookup.own.exact}):
            if find_by_name(name, self._catalogue.slugs) is not None:
                continue  # a model that came later has the name
            resolution = lookup.resolve(name)
            if resolution is not None and resolution.models:
                found[name] = self._first_visible(resolution)
        return found

    def _list_families(self) -> Iterator[tuple[str, str]]:
        for family, slugs in sorted(self._catalogue.spellings.families.items()):
            newest = self._lookup.find_newest(family) if len(slugs) > 1 else None
            if newest is not None and name_latest(family) not in self._catalogue.slugs:
                yield name_latest(family), newest

    def _first_visible(self, resolution: Resolution) -> str:
        slugs = [model.slug for model in resolution.models]
        return next(filter(self._is_visible, slugs), slugs[0])

    def _model(self, slug: str) -> CatalogueModel:
        return self._catalogue.models[self._catalogue.ids[slug]]

    def _is_allowed(self, slug: str) -> bool:
        # The newest of a family is the newest that requests may use, with a credential or without.
        return self._visible.allows(self._catalogue.ids[slug])

    def _is_visible(self, slug: str) -> bool:
        return self._visible.find(self._catalogue.ids[slug]) is not None


def read_own_aliases(organization_id: UUID | None) -> AliasTable:
    """Returns the aliases of an organization; none for a caller without a key."""
    if organization_id is None:
        return NO_ALIASES
    return make_table(ModelAlias.objects.for_organization(organization_id).read())
