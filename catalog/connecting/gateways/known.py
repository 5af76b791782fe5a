"""Finds the models and prices that the catalogue or its bundle has for a deployment."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Self

import msgspec

from catalog import imports
from catalog.aliases.spellings import ModelNames, Rank, drop_date, fold, spell
from catalog.connecting.gateways.deployments import (
    Deployment,
    GatewayFile,
    GatewayServer,
    NotTaken,
)
from catalog.models import LanguageModel, ModelEndpoint
from catalog.pricing.contract import Line, Pricing
from catalog.rows import EndpointRow, ModelRow, ProviderRow, endpoint_row, model_row, price_of

_ZEROS: Final = {"prompt": "0", "completion": "0"}
ADD_MODEL: Final = "add the model and its price to the catalogue, and import again"
# Where Bedrock serves a model from, before its name; and the regions of endpoints for some of them.
_GEO: Final = re.compile(r"(us-gov|us|eu|apac|jp|au|ca|global)\.")
_REGIONS: Final = {"us": "us", "eu": "europe"}
# The beginnings of AWS regions, each with what stands before a name there.
_GEOS: Final = {"us-gov": "us-gov", "us": "us", "eu": "eu", "ap": "apac"}
_UNNAMED: Final = re.compile(r"[a-z0-9-]+")


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
    _added: set[tuple[str, str]] = field(default_factory=set)
    _spelled: dict[str, set[tuple[Rank, str]]] = field(default_factory=lambda: defaultdict(set))

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
        for slug in found.models.keys() - found.delisted:
            found._spell(slug)
        return found

    def add(self, endpoint: EndpointRow) -> None:
        """Adds an endpoint of a listed model, as it will be known when it is stored."""
        key = endpoint.provider, endpoint.upstream_model_id.lower()
        if self.endpoints.setdefault(key, endpoint) is endpoint:
            self._added.add(key)
            self.of_model[endpoint.model].append(endpoint)
            self._spell(endpoint.model)

    def _spell(self, slug: str) -> None:
        named = self.models[slug]
        ids = {each.upstream_model_id for each in self.of_model[slug]}
        ids |= {_GEO.sub("", each) for each in ids}
        for text, rank in spell(ModelNames(named.id, slug, named.created, frozenset(ids))).items():
            self._spelled[text].add((rank, slug))

    def find_model(self, deployment: Deployment) -> str | None:
        """Returns the permanent slug of the model that a deployment serves."""
        return self._match(deployment)[0]

    def _match(self, deployment: Deployment) -> tuple[str | None, str]:
        """Returns the slug of a deployment's model, and the date that was dropped to find it."""
        if (exact := self._find_exact(deployment)) is not None:
            return exact.model, ""
        for text, date in _spellings(deployment):
            ranked = sorted(self._spelled.get(text, ()))
            # Two models of one spelling are no answer.
            if ranked and (len(ranked) == 1 or ranked[0][0] != ranked[1][0]):
                return ranked[0][1], date
        return None, ""

    def name_upstream(self, deployment: Deployment, model: str) -> str:
        """Returns the name that the provider has for a model.

        Other gateways know some models of clouds by shorter names. Raises :class:`NotTaken` where
        the provider's own cannot be told.
        """
        name = deployment.upstream_id
        server = deployment.server
        ids = [each.upstream_model_id for each in self._rows_at(server, model)]
        if server.dialect == "azure" or name in ids:
            return name
        if server.dialect != "bedrock" or not _UNNAMED.fullmatch(name):
            return next((each for each in ids if fold(each) == fold(name)), name)
        region, bases = deployment.place.get("region", ""), {_GEO.sub("", each) for each in ids}
        geo = next((geo for start, geo in _GEOS.items() if region.startswith(start)), "global")
        for base in bases:
            # Bedrock serves a model either from some part of the world, or by its bare name.
            if base in ids and f"{geo}.{base}" not in ids:
                return base
            if geo != "global" or f"global.{base}" in ids:
                return f"{geo}.{base}"
        raise NotTaken(f"the name that Bedrock has for {name!r} in {region!r} is not known")

    def _rows_at(self, server: GatewayServer, model: str) -> list[EndpointRow]:
        return [row for row in self.of_model.get(model, ()) if row.provider == server.family]

    def _find_exact(self, deployment: Deployment) -> EndpointRow | None:
        """Returns the endpoint with the name that the provider has for a model.

        The names of Azure's deployments are their owner's: a stated model comes before them.
        """
        if deployment.server.dialect == "azure" and deployment.hint:
            return None
        return self.endpoints.get((deployment.server.family, deployment.upstream_id.lower()))

    def find_template(self, deployment: Deployment, model: str) -> EndpointRow | None:
        """Returns an endpoint with the price of a model: of the same provider, or the cheapest.

        The prices of a file are those of its own servers, and what is free is mostly a server of
        one's own: either counts for another endpoint only where no other price is known.
        """
        if (exact := self._find_exact(deployment)) is not None:
            return exact
        rows = self._rows_at(deployment.server, model) or self.of_model.get(model, [])
        rows = [row for row in rows if not price_of(row).is_free] or rows
        listed = [
            row for row in rows if (row.provider, row.upstream_model_id.lower()) not in self._added
        ]
        return min(listed or rows, key=_cost_of, default=None)

    def leave_price(self, gateway: GatewayFile, deployment: Deployment, model: str) -> None:
        """Leaves out the price of a dated snapshot that the catalogue knows by another date."""
        found, date = self._match(deployment)
        if found != model or not date or (deployment.pricing or {}).keys() >= _ZEROS.keys():
            return
        ids = (each.upstream_model_id for each in self.of_model.get(model, ()))
        if not any(_undash(date) in _undash(fold(name)) for name in (model, *ids)):
            gateway.leave(deployment, f"its own price: that of {model} is taken")

    def price(self, deployment: Deployment, template: EndpointRow | None) -> Mapping[str, Any]:
        """Returns the members of an endpoint's row that state its price.

        Raises :class:`NotTaken` where neither the file nor the catalogue says what it costs.
        """
        stated = deployment.pricing
        if template is None and not (stated and stated.keys() >= _ZEROS.keys()):
            missing = "a price" if not stated else "the price of the prompt and of the completion"
            raise NotTaken(
                f"the catalogue does not know the model, and the file lacks {missing}; {ADD_MODEL}"
            )
        if stated is None:
            assert template is not None, "a deployment without a price has a template"
            return {
                name: getattr(template, name) for name in ("pricing", "lines", "source", "as_of")
            }
        try:
            pricing = msgspec.convert({**_ZEROS, **stated}, Pricing)
            lines = msgspec.convert(list(deployment.lines), list[Line])
            if template is not None and not stated.keys() >= _ZEROS.keys():
                rates = {name: getattr(pricing, name) for name in stated}
                pricing = msgspec.structs.replace(template.pricing, **rates)
                named = {(line.billable, line.variant) for line in lines}
                lines += [
                    line
                    for line in template.lines or ()
                    if (line.billable, line.variant) not in named
                ]
        except msgspec.ValidationError as exc:
            raise NotTaken(f"the price: {exc}") from None
        return {"pricing": pricing, "lines": lines or None, "source": "", "as_of": None}


def _cost_of(row: EndpointRow) -> tuple[Decimal, Decimal]:
    """Returns what rows of a model are compared by, in USD: tokens of text, then all else."""
    price = price_of(row)
    return price.of_text, sum((rule.price for rule in price.rules), price.request)


def _spellings(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Yields the names that a model may have in the catalogue, the surest first.

    Behind each stands the date that it lacks, or ``latest``.
    """
    for name in (deployment.hint, deployment.upstream_id, _GEO.sub("", deployment.upstream_id)):
        parts = name.split("/")
        for first in range(len(parts)):
            text = fold("/".join(parts[first:]))
            if text:
                yield text, ""
                undated = drop_date(text)
                yield undated, text[len(undated) :]


def _undash(text: str) -> str:
    return text.replace("-", "")


def region_of(upstream_id: str) -> str:
    """Returns the region that a name of Bedrock's says."""
    match = _GEO.match(upstream_id)
    return _REGIONS.get(match[1], "global") if match else "global"


def bundled_servers() -> dict[str, GatewayServer]:
    """Returns the servers of the bundle's providers, by their slugs."""
    bundle = json.loads(imports.BUNDLED.read_bytes())
    return {
        row["slug"]: GatewayServer(row["slug"], row["dialect"], row["base_url"])
        for row in bundle["providers"]
    }
