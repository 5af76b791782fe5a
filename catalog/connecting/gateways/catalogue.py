"""Makes providers, models, endpoints, credentials and aliases of the operator from a gateway."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, product
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import transaction

from catalog import dialects, imports
from catalog.aliases import imports as alias_imports
from catalog.aliases.changes import find_problem, known_models
from catalog.connecting.connect import make_model, make_provider, name_some, stored_secret
from catalog.connecting.gateways.deployments import (
    ANY_DEFAULT,
    Deployment,
    GatewayFile,
    GatewayServer,
    LeftOut,
    NotTaken,
    is_at,
    is_same,
)
from catalog.connecting.gateways.known import KnownModels, region_of
from catalog.connecting.servers import (
    ServedModel,
    guess_output,
    name_models,
    number_names,
    recognize,
)
from catalog.dialects.shared.credentials import InvalidCredential
from catalog.models import ModelEndpoint, Provider
from catalog.models.aliases import MAX_TARGETS
from catalog.rows import (
    EndpointRow,
    ModelRow,
    ProviderRow,
    Timeouts,
    endpoint_key,
    endpoint_row,
    find_endpoint_problems,
    find_provider_problems,
    price_of,
    provider_row,
)
from config.bulk.report import Report, RowListener, RowOutcome
from config.credentials import NO_SECRET, Secret

CREDENTIALS: Final = "credentials"
_KINDS: Final = (*imports.KINDS, CREDENTIALS, alias_imports.KIND)
_LIMITS: Final = ("requests_per_minute", "tokens_per_minute")
_NO_MODELS: Final = "the catalogue has no models for this wildcard; connect lists those of a server"
_NOT_SHARED: Final = (
    "deployments of several models: they are tried in the order of the file, and not shared"
)
# The reason where two entries have one endpoint and one key.
REPEATED: Final = "its price, lengths, time limits and share: an entry before has the same endpoint"
# The line of each public name, and the models that it stands for.
Names = dict[str, tuple[int, list[str]]]


@dataclass(slots=True)
class GatewayReport(Report):
    """The report of an import, with what the file has that became nothing."""

    left_out: list[LeftOut] = field(default_factory=list)


def apply(
    gateway: GatewayFile, *, dry_run: bool = False, on_row: RowListener | None = None
) -> GatewayReport:
    """Stores what a gateway serves in the catalogue, all or none; see ``imports.apply``.

    What is stored keeps what the file does not state. Raises :class:`ImportRefused`.
    """
    report = GatewayReport.of_kinds(*_KINDS, dry_run=dry_run)
    count_row = report.counter(on_row)
    with transaction.atomic():
        # Of two imports at once, the second one sees what the first one has made.
        imports.lock_catalogue()
        plan = _Plan(gateway, KnownModels.load())
        names = take_all(gateway, plan.known, plan.take)
        plan.tell_repeated()
        for each in gateway.deployments:
            if each.name in names and len(names[each.name][1]) > 1:
                gateway.leave(each, _NOT_SHARED)
        catalog = imports.Catalog(
            plan.limited_providers(), list(plan.models.values()), list(plan.endpoints.values())
        )
        imports.apply(catalog, on_row=count_row)
        plan.tell_others(names)
        for slug, secret in plan.secrets.items():
            _store_secret(slug, secret, count_row)
        store_aliases(None, gateway, names, count_row)
        transaction.set_rollback(dry_run)
    report.left_out = sorted([*gateway.left_out, *gateway.shares], key=lambda each: each.line)
    return report


def take_all(
    gateway: GatewayFile, known: KnownModels, take: Callable[[Deployment, int], str]
) -> Names:
    """Takes all that a file deploys, and leaves out the rest.

    ``take`` gets a deployment and its place in the file, of which the earlier one counts. It
    returns the public name of the model, or raises :class:`NotTaken`. What is not taken is tried
    again as long as others are: they may have its key, or the price of its model, as they will have
    when the file is imported again.
    """
    taken: list[tuple[int, Deployment, str]] = []

    def take_some(waiting: list[tuple[int, Deployment]]) -> dict[int, tuple[Deployment, str]]:
        while True:
            failed = {}
            for place, deployment in waiting:
                try:
                    taken.append((place, deployment, take(deployment, place)))
                except NotTaken as exc:
                    failed[place] = deployment, str(exc)
            if len(failed) == len(waiting):
                return failed
            waiting = [(place, deployment) for place, (deployment, _) in failed.items()]

    places = count()
    failed = take_some(list(zip(places, gateway.deployments, strict=False)))
    waiting = [(place, deployment) for place, (deployment, _) in failed.items()]
    for wild in gateway.wildcards:
        found = list(zip(places, _expand(wild, gateway, known), strict=False))
        failed = take_some([*waiting, *found])
        waiting = [each for each in waiting if each[0] in failed]
        lost = [failed[place] for place, _ in found if place in failed]
        reasons = {reason for _, reason in lost} or {_NO_MODELS}
        if len(lost) == len(found) and len(reasons) == 1:
            gateway.leave(wild, *reasons)
            continue
        for deployment, reason in lost:
            gateway.leave(deployment, reason)
        number = len(found) - len(lost)
        gateway.leave(wild, f"the {number} models of the catalogue were taken; later ones are not")
    for place, deployment in waiting:
        gateway.leave(deployment, failed[place][1])
    names: Names = {}
    for _, deployment, model in sorted(taken, key=lambda each: each[0]):
        _, models = names.setdefault(deployment.name, (deployment.line, []))
        if model not in models:
            models.append(model)
    return names


def _expand(wild: Deployment, gateway: GatewayFile, known: KnownModels) -> Iterator[Deployment]:
    """Yields the deployments for which a wildcard stands."""
    pattern = re.compile(re.escape(wild.upstream_id).replace(r"\*", "(.+)", 1))
    named = {each.name for each in gateway.deployments}
    # The names of Azure's deployments are their owner's.
    is_plain = wild.upstream_id.count("*") == 1 and wild.name.count("*") <= 1
    family = wild.server.family if is_plain and wild.server.dialect != "azure" else ""
    for (provider, _), row in list(known.endpoints.items()):
        match = pattern.fullmatch(row.upstream_model_id.removeprefix("google/"))
        if provider == family and match is not None:
            name = wild.name.replace("*", match[1])
            if name not in named:
                yield replace(wild, name=name, upstream_id=row.upstream_model_id)


def read_servers() -> dict[str, set[str]]:
    """Returns the slugs of the providers of each model that the catalogue serves, by its slug."""
    found: dict[str, set[str]] = defaultdict(set)
    listed = ModelEndpoint.objects.routable()
    for model, provider in listed.values_list("model__slug", "provider__slug"):
        found[model].add(provider)
    return found


def store_aliases(
    owner: UUID | None, gateway: GatewayFile, names: Names, count_row: RowListener
) -> None:
    """Stores the names of a gateway as aliases of an organization, or of the operator."""
    wanted = {name: (line, list(models)) for name, (line, models) in names.items()}
    for name, (line, target) in gateway.aliases.items():
        if target in names:
            wanted[name] = (line, list(names[target][1]))
        else:
            gateway.leave_out(line, name, f"no model {target!r} was taken")
    models = {name: tuple(targets) for name, (_, targets) in wanted.items()}
    of_all: list[str] = []
    for name, (line, others) in gateway.fallbacks.items():
        if name != ANY_DEFAULT and name not in wanted:
            gateway.leave_out(line, name, "fallbacks of a model that was not taken")
            continue
        targets = of_all if name == ANY_DEFAULT else wanted[name][1]
        for other in others:
            if other in models:
                targets.extend(models[other])
            else:
                gateway.leave_out(line, name, f"no model {other!r} was taken as a fallback")
    for name, (_, targets) in wanted.items():
        if name == ANY_DEFAULT or name not in gateway.fallbacks:
            targets.extend(of_all)
    named = {each for name, (_, targets) in wanted.items() for each in (name, *targets)}
    known = known_models(named, owner)
    rows: dict[str, list[str]] = {}
    for name, (line, targets) in wanted.items():
        kept = list(dict.fromkeys(targets))
        if kept == [name]:
            continue
        if len(kept) > MAX_TARGETS:
            gateway.leave_out(line, name, f"an alias has at most {MAX_TARGETS} models")
            kept = kept[:MAX_TARGETS]
        if (problem := find_problem(name, kept, known=known)) is not None:
            gateway.leave_out(line, name, problem)
        else:
            rows[name] = kept
    alias_imports.store(owner, rows, count_row)


class _Plan:
    """The rows that the deployments become."""

    def __init__(self, gateway: GatewayFile, known: KnownModels) -> None:
        self.gateway, self.known = gateway, known
        self.providers: dict[str, ProviderRow] = {}
        self.models: dict[str, ModelRow] = {}
        self.endpoints: dict[tuple[str, str, str, str], EndpointRow] = {}
        self._places: dict[tuple[str, str, str, str], int] = {}
        self._takes: list[tuple[Deployment, EndpointRow]] = []
        self.secrets: dict[str, Secret] = {}
        self._stored = list(Provider.objects.order_by("slug"))
        self._stored_endpoints: dict[tuple[str, str], ModelEndpoint] = {
            (row.provider.slug, row.upstream_model_id.lower()): row
            for row in ModelEndpoint.objects.select_related("model", "provider", "price").order_by(
                "-is_listed", "created_at"
            )[::-1]
        }
        # The providers of the servers and secrets so far.
        self._claims: dict[tuple[GatewayServer, Secret], str] = {}
        self._limits: dict[str, list[Deployment]] = defaultdict(list)
        self._made: dict[str, str] = {}
        self._own: dict[str, set[str]] = defaultdict(set)

    def tell_repeated(self) -> None:
        """Leaves out the terms of entries whose endpoint has those of an entry before."""
        for deployment, row in self._takes:
            if _lacks_terms(self.endpoints[endpoint_key(row)], row, deployment):
                self.gateway.leave(deployment, REPEATED)

    def tell_others(self, names: Names) -> None:
        """Leaves out that a name meant some endpoints of its model, not those of all providers."""
        everywhere = read_servers()
        for name in {each.name: None for each in self.gateway.deployments if each.name in names}:
            (line, models), own = names[name], self._own[name]
            served = {each for slug in models for each in everywhere.get(slug, ())}
            if others := served - own:
                self.gateway.leave_out(
                    line,
                    name,
                    f"that its requests go to {', '.join(sorted(own))} alone: the model is served "
                    f"by {name_some(sorted(others))} too; see provider.only in docs/routing.md",
                )

    def limited_providers(self) -> list[ProviderRow]:
        """Returns the rows of the providers; the limits of its deployments add up."""
        for (slug, deployments), name in product(self._limits.items(), _LIMITS):
            # The deployments of a wildcard have one limit in common.
            entries = {id(each.limits): each for each in deployments}.values()
            stated = [each for each in entries if name in each.limits]
            if stated and len(stated) == len(entries):
                total = sum(each.limits[name] for each in stated)
                setattr(self.providers[slug], name, min(total, 2**31 - 1))
            for each in stated if len(entries) > 1 else ():
                self.gateway.leave(
                    each,
                    f"{name}: a limit is that of the whole provider {slug!r}: it has the sum, if "
                    "all its deployments state one",
                )
        return list(self.providers.values())

    def take(self, deployment: Deployment, place: int) -> str:
        """Plans the rows of a deployment; returns the public name of its model.

        An entry that has waited for its key may come before one that had it. Raises
        :class:`NotTaken`.
        """
        row = self._find_provider(deployment)
        slug = self.known.find_model(deployment)
        if slug is not None:
            upstream_id = self.known.name_upstream(deployment, slug)
            deployment = replace(deployment, upstream_id=upstream_id)
        stored = self._stored_endpoints.get((row.slug, deployment.upstream_id.lower()))
        if stored is not None and not (stored.is_listed and stored.model.is_listed):
            raise NotTaken("an operator took the endpoint out of the catalogue")
        if stored is not None:
            slug = stored.model.canonical_slug
        elif slug is None and not deployment.server.family:
            slug = self._made.get(deployment.name)
        if slug in self.known.delisted:
            raise NotTaken("an operator took the model out of the catalogue")
        endpoint = self._make_endpoint(deployment, row, slug, stored)
        for problem in find_endpoint_problems(endpoint):
            raise NotTaken(problem)
        if slug is None:
            slug = endpoint.model = self._make_model(deployment, row)
        key = endpoint_key(endpoint)
        if place <= self._places.get(key, place):
            self._places[key], self.endpoints[key] = place, endpoint
        self._takes.append((deployment, endpoint))
        if stored is None:
            self.known.leave_price(self.gateway, deployment, slug)
        self.known.add(endpoint)
        if slug.startswith(f"{row.slug}/"):
            self._made.setdefault(deployment.name, slug)
        self.providers[row.slug] = row
        self.models[slug] = self.known.models[slug]
        if (secret := deployment.key) is not None:
            self.secrets[row.slug] = secret
        if deployment.secret is not None:
            self._claims[deployment.server, deployment.secret] = row.slug
        self._limits[row.slug].append(deployment)
        self._own[deployment.name].add(row.slug)
        return self.models[slug].id

    def _make_endpoint(
        self,
        deployment: Deployment,
        provider: ProviderRow,
        model: str | None,
        stored: ModelEndpoint | None,
    ) -> EndpointRow:
        """Returns the row of an endpoint: the stored one, or one like another of its model."""
        template = None if model is None else self.known.find_template(deployment, model)
        if stored is not None:
            template = endpoint_row(stored)
        members: dict[str, Any] = {
            "model": model or "",
            "provider": provider.slug,
            "upstream_model_id": stored.upstream_model_id if stored else deployment.upstream_id,
            **self.known.price(deployment, template),
        }
        if template is None:
            row = EndpointRow(**members)
        elif template.provider in (provider.slug, deployment.server.family):
            row = msgspec.structs.replace(template, **members)
            if deployment.server.dialect == "bedrock" and stored is None:
                row.region = region_of(row.upstream_model_id)
        else:
            # What another server allows and keeps says nothing about this one.
            row = EndpointRow(**members, supported_parameters=template.supported_parameters)
            row.context_length = template.context_length
        if deployment.timeouts:
            row.timeouts = msgspec.structs.replace(
                row.timeouts or Timeouts(), **deployment.timeouts
            )
        row.context_length = deployment.context_length or row.context_length
        row.max_completion_tokens = deployment.max_completion_tokens or row.max_completion_tokens
        return row

    def _make_model(self, deployment: Deployment, provider: ProviderRow) -> str:
        """Adds a model that nobody knows yet; returns its slug."""
        name = deployment.own_name
        used = self.known.taken | self.known.models.keys()
        slug = name_models(provider.slug, [name], used)[name]
        output = deployment.output or guess_output(deployment.upstream_id)
        model = ServedModel(name, deployment.context_length, output)
        try:
            self.known.models[slug] = make_model(model, slug, provider.name)
        except msgspec.ValidationError as exc:
            raise NotTaken(f"the model: {exc}") from None
        return slug

    def _find_provider(self, deployment: Deployment) -> ProviderRow:
        """Returns the provider with the address and the key of a deployment, or a new one."""
        server, secret = deployment.server, deployment.secret
        same = [
            each
            for each in self._stored
            if (each.dialect, each.base_url) == (server.dialect, server.base_url)
        ]
        stored: Provider | None
        if secret is None:
            place = deployment.place
            stored = next((each for each in same if is_at(stored_secret(each), place)), None)
            if stored is None:
                made = [
                    slug
                    for (other, claim), slug in self._claims.items()
                    if other == server and is_at(claim, place)
                ]
                if made:
                    return self.providers[min(made)]
                raise NotTaken(f"{deployment.missing}; nor does the catalogue have a key for it")
        else:
            if (slug := self._claims.get((server, secret))) is not None:
                return self.providers[slug]
            check_secret(deployment)
            claimed = set(self._claims.values())
            free = [each for each in same if not each.has_credential and each.slug not in claimed]
            stored = next((each for each in same if is_same(stored_secret(each), secret)), None)
            stored = stored or (free[0] if free and deployment.key is not None else None)
        if stored is not None and not stored.is_listed:
            raise NotTaken(f"an operator took the provider {stored.slug!r} out of the catalogue")
        row = self._new_provider(deployment) if stored is None else provider_row(stored)
        policy = settings.EGRESS_POLICY
        if stored is not None and stored.allowed_networks:
            policy = policy.extend(stored.reach)
        for problem in find_provider_problems(row, policy):
            raise NotTaken(f"{problem}; for a server in your network see connect --allow")
        return row

    def _new_provider(self, deployment: Deployment) -> ProviderRow:
        family, dialect, base_url = deployment.server
        taken = {each.slug for each in self._stored} | self.providers.keys()
        known = self.known.providers.get(family)
        if known is not None:
            slug = next(name for name in number_names(known.slug) if name not in taken)
            name = known.name if slug == known.slug else f"{known.name} {slug.rpartition('-')[2]}"
            return msgspec.structs.replace(known, slug=slug, name=name)
        assert base_url is not None, "a server of one's own has an address"
        is_keyless = deployment.secret == NO_SECRET
        kind = recognize((), urlsplit(base_url).hostname or "")
        taken |= self.known.providers.keys()
        row = make_provider(kind, base_url, dialect, taken)
        return msgspec.structs.replace(row, keyless=True) if is_keyless else row


def _lacks_terms(row: EndpointRow, own: EndpointRow, deployment: Deployment) -> bool:
    """Returns whether an endpoint's row lacks a term that a deployment states.

    ``own`` is the row that the endpoint would have from the deployment alone.
    """
    if deployment.pricing is not None and price_of(row) != price_of(own):
        return True
    times = row.timeouts or Timeouts()
    lengths = (
        (deployment.context_length, row.context_length),
        (deployment.max_completion_tokens, row.max_completion_tokens),
    )
    return any(getattr(times, name) != value for name, value in deployment.timeouts.items()) or any(
        stated and stated != found for stated, found in lengths
    )


def check_secret(deployment: Deployment) -> None:
    """Raises :class:`NotTaken` for a key that the dialect cannot use."""
    if (key := deployment.key) is not None:
        try:
            dialects.check_credential(deployment.server.dialect, key)
        except InvalidCredential as exc:
            raise NotTaken(str(exc)) from None


def _store_secret(slug: str, secret: Secret, count_row: RowListener) -> None:
    provider = Provider.objects.select_for_update(no_key=True).get(slug=slug)
    if is_same(stored_secret(provider), secret):
        count_row(CREDENTIALS, slug, RowOutcome.UNCHANGED)
        return
    provider.set_credential(secret)
    count_row(CREDENTIALS, slug, RowOutcome.CREATE)
