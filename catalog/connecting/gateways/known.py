"""Finds the models and prices that the catalogue or its bundle has for a deployment."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import msgspec

from catalog import imports
from catalog.aliases.spellings import ModelNames, Rank, drop_date, fold, spell
from catalog.connecting.gateways.deployments import Deployment, NotTaken
from catalog.models import LanguageModel, ModelEndpoint
from catalog.pricing.contract import Line, Pricing
from catalog.rows import EndpointRow, ModelRow, ProviderRow, endpoint_row, model_row, price_of

_ZEROS: Final = {"prompt": "0", "completion": "0"}


@dataclass(slots=True)
class KnownModels:
    """The rows of the bundle and of the stored catalogue, which come before those of the bundle.

    ``models`` are found by their permanent slugs, and ``taken`` are their public names.
    """

    providers: dict[str, ProviderRow] = field(default_factory=dict)
    models: dict[str, ModelRow] = field(default_factory=dict)
    endpoints: dict[tuple[str, str], EndpointRow] = field(default_factory=dict)
    of_model: dict[str, list[EndpointRow]] = field(default_factory=lambda: defaultdict(list))
    delisted: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    _spelled: dict[str, list[tuple[Rank, str]]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def load(cls) -> Self:
        found, bundle = cls(), json.loads(imports.BUNDLED.read_bytes())
        about = {"source": bundle["about"]["source"], "as_of": bundle["about"]["as_of"]}
        for row in msgspec.convert(bundle["providers"], list[ProviderRow]):
            found.providers[row.slug] = row
        public = {}
        for known in msgspec.convert(bundle["models"], list[ModelRow]):
            found.models[known.canonical_slug] = known
            public[known.id] = known.canonical_slug
        for model in LanguageModel.objects.all():
            # A stored model may have the public name of one of the bundle.
            if public.get(model.slug, model.canonical_slug) != model.canonical_slug:
                found.models.pop(public[model.slug], None)
            found.models[model.canonical_slug] = model_row(model)
            found.taken.add(model.slug)
            if not model.is_listed:
                found.delisted.add(model.canonical_slug)
        rows = [{**about, **row} for row in bundle["endpoints"] if row["model"] in found.models]
        stored = ModelEndpoint.objects.routable().select_related("model", "provider", "price")
        for endpoint in (*msgspec.convert(rows, list[EndpointRow]), *map(endpoint_row, stored)):
            found.endpoints[endpoint.provider, endpoint.upstream_model_id.lower()] = endpoint
        for endpoint in found.endpoints.values():
            found.of_model[endpoint.model].append(endpoint)
        for slug, named in found.models.items():
            if slug in found.delisted:
                continue
            ids = frozenset(each.upstream_model_id for each in found.of_model[slug])
            names = ModelNames(named.id, slug, named.created, ids)
            for text, rank in spell(names).items():
                found._spelled[text].append((rank, slug))
        return found

    def find_model(self, deployment: Deployment) -> str | None:
        """Returns the permanent slug of the model that a deployment serves."""
        exact = self.endpoints.get((deployment.family, deployment.upstream_id.lower()))
        if exact is not None:
            return exact.model
        for text in _spellings(deployment):
            ranked = sorted(self._spelled.get(text, ()))
            # Two models of one spelling are no answer.
            if ranked and (len(ranked) == 1 or ranked[0][0] != ranked[1][0]):
                return ranked[0][1]
        return None

    def find_template(self, deployment: Deployment, model: str) -> EndpointRow | None:
        """Returns an endpoint with the price of a model: of the same provider, or the cheapest."""
        exact = self.endpoints.get((deployment.family, deployment.upstream_id.lower()))
        if exact is not None:
            return exact
        rows = self.of_model.get(model, [])
        own = [row for row in rows if row.provider == deployment.family]
        return min(own or rows, key=lambda row: price_of(row).completion, default=None)

    def price(self, deployment: Deployment, template: EndpointRow | None) -> Mapping[str, Any]:
        """Returns the members of an endpoint's row that state its price.

        Raises :class:`NotTaken` where neither the file nor the catalogue says what it costs.
        """
        stated = deployment.pricing
        if template is None and not (stated and stated.keys() >= _ZEROS.keys()):
            missing = "a price" if not stated else "the price of the prompt and of the completion"
            raise NotTaken(f"the catalogue does not know the model, and the file lacks {missing}")
        if stated is None:
            assert template is not None, "a deployment without a price has a template"
            return {
                name: getattr(template, name) for name in ("pricing", "lines", "source", "as_of")
            }
        try:
            pricing = msgspec.convert({**_ZEROS, **stated}, Pricing)
            if template is not None and not stated.keys() >= _ZEROS.keys():
                rates = {name: getattr(pricing, name) for name in stated}
                pricing = msgspec.structs.replace(template.pricing, **rates)
            lines = msgspec.convert(list(deployment.lines), list[Line])
        except msgspec.ValidationError as exc:
            raise NotTaken(f"the price: {exc}") from None
        return {"pricing": pricing, "lines": lines or None, "source": "", "as_of": None}


def _spellings(deployment: Deployment) -> Iterator[str]:
    """Yields the names that a model may have in the catalogue, the surest first."""
    for name in (deployment.hint, deployment.upstream_id):
        parts = name.split("/")
        for first in range(len(parts)):
            text = fold("/".join(parts[first:]))
            if text:
                yield text
                yield drop_date(text)


def bundle_addresses() -> dict[str, str]:
    """Returns the base URLs of the bundle's providers; empty where a credential has it."""
    bundle = json.loads(imports.BUNDLED.read_bytes())
    return {row["slug"]: row["base_url"] or "" for row in bundle["providers"]}
