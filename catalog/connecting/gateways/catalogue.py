"""Makes providers, models, endpoints, credentials and aliases of the operator from a gateway."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import transaction

from catalog import dialects, imports
from catalog.aliases import imports as alias_imports
from catalog.aliases.changes import find_problem, known_models
from catalog.connecting.connect import make_model, make_provider, stored_secret
from catalog.connecting.gateways.deployments import Deployment, GatewayFile, LeftOut, NotTaken
from catalog.connecting.gateways.known import KnownModels
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
    provider_row,
)
from config.bulk.report import Report, RowListener, RowOutcome
from config.credentials import NO_SECRET, Secret
from config.egress.addresses import ANYWHERE, EgressPolicy, InvalidURL, parse_base_url

CREDENTIALS: Final = "credentials"
_KINDS: Final = (*imports.KINDS, CREDENTIALS, alias_imports.KIND)
_LIMITS: Final = ("requests_per_minute", "tokens_per_minute")
ANY_POLICY: Final = EgressPolicy(allowed_networks=ANYWHERE)
_MOST_NAMED: Final = 5
_NOT_SHARED: Final = (
    "deployments of several models: they are tried in the order of the file, and not shared"
)
# The reason where two entries have one endpoint and one key.
REPEATED: Final = "its price, lengths, time limits and share: an entry before has the same endpoint"


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
        imports.lock_providers()
        plan = _Plan(gateway, KnownModels.load())
        plan.add_all()
        catalog = imports.Catalog(
            plan.limited_providers(), list(plan.models.values()), list(plan.endpoints.values())
        )
        imports.apply(catalog, on_row=count_row)
        plan.tell_others()
        for slug, secret in plan.secrets.items():
            _store_secret(slug, secret, count_row)
        store_aliases(None, gateway, plan.names, count_row)
        transaction.set_rollback(dry_run)
    report.left_out = sorted([*gateway.left_out, *gateway.shares], key=lambda each: each.line)
    return report


def expand(gateway: GatewayFile, known: KnownModels) -> Iterator[Deployment]:
    """Yields the deployments of a file, and those that its wildcards stand for."""
    yield from gateway.deployments
    named = {each.name for each in gateway.deployments}
    for wild in gateway.wildcards:
        pattern = re.compile(re.escape(wild.upstream_id).replace(r"\*", "(.+)", 1))
        found = []
        # The names of Azure's deployments are their owner's.
        is_plain = wild.upstream_id.count("*") == 1 and wild.name.count("*") <= 1
        family = wild.family if is_plain and wild.family != "azure" else ""
        for (provider, _), row in known.endpoints.items():
            match = pattern.fullmatch(row.upstream_model_id.removeprefix("google/"))
            if provider != family or match is None:
                continue
            name = wild.name.replace("*", match[1])
            if name not in named:
                found.append(replace(wild, name=name, upstream_id=row.upstream_model_id))
        reason = "the catalogue has no models for this wildcard; connect lists those of a server"
        if found:
            reason = f"the {len(found)} models of the catalogue were taken; later ones are not"
        gateway.leave(wild, reason)
        yield from found


def store_aliases(
    owner: UUID | None, gateway: GatewayFile, names: dict[str, list[str]], count_row: RowListener
) -> None:
    """Stores the names of a gateway as aliases of an organization, or of the operator."""
    lines = {each.name: each.line for each in reversed(gateway.deployments)}
    wanted = {name: (lines.get(name, 1), list(targets)) for name, targets in names.items()}
    for name, (line, target) in gateway.aliases.items():
        if target in names:
            wanted[name] = (line, list(names[target]))
        else:
            gateway.leave_out(line, name, f"no model {target!r} was taken")
    of_all: list[str] = []
    for name, (line, others) in gateway.fallbacks.items():
        targets = of_all if name == "*" else wanted[name][1] if name in wanted else None
        if targets is None:
            gateway.leave_out(line, name, "fallbacks of a model that was not taken")
            continue
        for other in others:
            if other in names:
                targets.extend(names[other])
            else:
                gateway.leave_out(line, name, f"no model {other!r} was taken as a fallback")
    for name in wanted.keys() - gateway.fallbacks.keys():
        wanted[name][1].extend(of_all)
    named = {each for name, (_, targets) in wanted.items() for each in (name, *targets)}
    known = known_models(named, owner)
    rows = []
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
            rows.append(msgspec.json.encode({"name": name, "targets": kept}))
    alias_imports.apply(owner, rows, on_row=count_row)


class _Plan:
    """The rows that the deployments become; ``names`` has the models of each public name."""

    def __init__(self, gateway: GatewayFile, known: KnownModels) -> None:
        self.gateway, self.known = gateway, known
        self.providers: dict[str, ProviderRow] = {}
        self.models: dict[str, ModelRow] = {}
        self.endpoints: dict[tuple[str, str, str, str], EndpointRow] = {}
        self.secrets: dict[str, Secret] = {}
        self.names: dict[str, list[str]] = defaultdict(list)
        self._stored = list(Provider.objects.order_by("slug"))
        self._stored_endpoints: dict[tuple[str, str], ModelEndpoint] = {
            (row.provider.slug, row.upstream_model_id.lower()): row
            for row in ModelEndpoint.objects.select_related("model", "provider", "price").order_by(
                "-is_listed", "created_at"
            )[::-1]
        }
        self._claims: dict[tuple[str, str | None, Secret | None], str] = {}
        self._limits: dict[str, list[Deployment]] = defaultdict(list)
        self._made: dict[str, str] = {}
        self._own: dict[str, set[str]] = defaultdict(set)

    def add_all(self) -> None:
        for deployment in expand(self.gateway, self.known):
            try:
                self._add(deployment)
            except NotTaken as exc:
                self.gateway.leave(deployment, exc)
        for name, models in self.names.items():
            self.names[name] = list(dict.fromkeys(models))
        for each in self.gateway.deployments:
            if len(self.names.get(each.name, ())) > 1:
                self.gateway.leave(each, _NOT_SHARED)

    def tell_others(self) -> None:
        """Leaves out that a name meant some endpoints of its model, not those of all providers."""
        everywhere: dict[str, set[str]] = defaultdict(set)
        listed = ModelEndpoint.objects.routable()
        for slug, provider in listed.values_list("model__slug", "provider__slug"):
            everywhere[slug].add(provider)
        # The first deployment of a name is told.
        for each in {each.name: each for each in self.gateway.deployments[::-1]}.values():
            own = self._own[each.name]
            served = {one for slug in self.names.get(each.name, ()) for one in everywhere[slug]}
            if others := sorted(served - own):
                more = " and others" if len(others) > _MOST_NAMED else ""
                self.gateway.leave(
                    each,
                    f"that its requests go to {', '.join(sorted(own))} alone: the model is served "
                    f"by {', '.join(others[:_MOST_NAMED])}{more} too; see provider.only in "
                    "docs/routing.md",
                )

    def limited_providers(self) -> list[ProviderRow]:
        """Returns the rows of the providers; the limits of its deployments add up."""
        for (slug, deployments), name in product(self._limits.items(), _LIMITS):
            stated = [each for each in deployments if name in each.limits]
            if stated and len(stated) == len(deployments):
                total = sum(each.limits[name] for each in stated)
                setattr(self.providers[slug], name, min(total, 2**31 - 1))
            for each in stated if len(deployments) > 1 else ():
                self.gateway.leave(
                    each,
                    f"{name}: a limit is that of the whole provider {slug!r}: it has the sum, if "
                    "all its deployments state one",
                )
        return list(self.providers.values())

    def _add(self, deployment: Deployment) -> None:
        row = self._find_provider(deployment)
        key = (row.slug, deployment.upstream_id.lower())
        stored = self._stored_endpoints.get(key)
        if stored is not None and not (stored.is_listed and stored.model.is_listed):
            raise NotTaken("an operator took the endpoint out of the catalogue")
        slug = stored.model.canonical_slug if stored else self.known.find_model(deployment)
        if slug is None and not deployment.family:
            slug = self._made.get(deployment.name)
        if slug in self.known.delisted:
            raise NotTaken("an operator took the model out of the catalogue")
        endpoint = self._make_endpoint(deployment, row, slug, stored)
        for problem in find_endpoint_problems(endpoint):
            raise NotTaken(problem)
        if slug is None:
            slug = endpoint.model = self._make_model(deployment, row)
        first = self.endpoints.setdefault(endpoint_key(endpoint), endpoint)
        if first != endpoint and deployment.has_terms:
            self.gateway.leave(deployment, REPEATED)
        # A wildcard means it too, as it will when it is stored.
        self.known.endpoints.setdefault(key, endpoint)
        if slug.startswith(f"{row.slug}/"):
            self._made.setdefault(deployment.name, slug)
        self.providers[row.slug] = row
        self.models[slug] = self.known.models[slug]
        if (secret := deployment.key) is not None:
            self.secrets[row.slug] = secret
        self._claims[_claim_of(deployment)] = row.slug
        self._limits[row.slug].append(deployment)
        self._own[deployment.name].add(row.slug)
        self.names[deployment.name].append(self.models[slug].id)

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
        elif template.provider in (provider.slug, deployment.family):
            row = msgspec.structs.replace(template, **members)
        else:
            # What another server allows and keeps says nothing about this one.
            row = EndpointRow(**members, supported_parameters=template.supported_parameters)
            row.context_length = template.context_length
        if deployment.timeouts:
            row.timeouts = Timeouts(**deployment.timeouts)
        row.context_length = deployment.context_length or row.context_length
        row.max_completion_tokens = deployment.max_completion_tokens or row.max_completion_tokens
        return row

    def _make_model(self, deployment: Deployment, provider: ProviderRow) -> str:
        """Adds a model that nobody knows yet; returns its slug."""
        slug = name_models(provider.slug, [deployment.name], self.known.taken)[deployment.name]
        self.known.taken.add(slug)
        output = deployment.output or guess_output(deployment.upstream_id)
        model = ServedModel(deployment.name, deployment.context_length, output)
        try:
            self.known.models[slug] = make_model(model, slug, provider.name)
        except msgspec.ValidationError as exc:
            raise NotTaken(f"the model: {exc}") from None
        return slug

    def _find_provider(self, deployment: Deployment) -> ProviderRow:
        """Returns the provider with the address and the key of a deployment, or a new one."""
        slug = self._claims.get(_claim_of(deployment))
        if slug is not None:
            return self.providers[slug]
        base_url, secret = _canonical(deployment.base_url), deployment.secret
        same = [
            each
            for each in self._stored
            if (each.dialect, each.base_url) == (deployment.dialect, base_url)
        ]
        if secret is None:
            stored = next((each for each in same if each.has_credential), None)
            if stored is None:
                raise NotTaken(f"{deployment.missing}; nor does the catalogue have a key for it")
        else:
            check_secret(deployment)
            claimed = set(self._claims.values())
            free = [each for each in same if not each.has_credential and each.slug not in claimed]
            stored = next((each for each in same if stored_secret(each) == secret), None)
            stored = stored or (free[0] if free and deployment.key is not None else None)
        if stored is not None and not stored.is_listed:
            raise NotTaken(f"an operator took the provider {stored.slug!r} out of the catalogue")
        row = self._new_provider(deployment, base_url) if stored is None else provider_row(stored)
        policy = settings.EGRESS_POLICY
        if stored is not None and stored.allowed_networks:
            policy = policy.extend(stored.reach)
        for problem in find_provider_problems(row, policy):
            raise NotTaken(f"{problem}; for a server in your network see connect --allow")
        return row

    def _new_provider(self, deployment: Deployment, base_url: str | None) -> ProviderRow:
        taken = {each.slug for each in self._stored} | self.providers.keys()
        known = self.known.providers.get(deployment.family)
        if known is not None:
            slug = next(name for name in number_names(known.slug) if name not in taken)
            name = known.name if slug == known.slug else f"{known.name} {slug.rpartition('-')[2]}"
            return msgspec.structs.replace(known, slug=slug, name=name)
        assert base_url is not None, "a server of one's own has an address"
        is_keyless = deployment.secret == NO_SECRET
        kind = recognize((), urlsplit(base_url).hostname or "")
        taken |= self.known.providers.keys()
        row = make_provider(kind, base_url, deployment.dialect, taken)
        return msgspec.structs.replace(row, keyless=True) if is_keyless else row


def _claim_of(deployment: Deployment) -> tuple[str, str | None, Secret | None]:
    return deployment.dialect, deployment.base_url, deployment.secret


def _canonical(base_url: str | None) -> str | None:
    try:
        if base_url is None:
            return None
        return parse_base_url(base_url, policy=ANY_POLICY, require_https=False).text
    except InvalidURL as exc:
        raise NotTaken(f"the address: {exc}") from None


def check_secret(deployment: Deployment) -> None:
    """Raises :class:`NotTaken` for a key that the dialect cannot use."""
    if (key := deployment.key) is not None:
        try:
            dialects.check_credential(deployment.dialect, key)
        except InvalidCredential as exc:
            raise NotTaken(str(exc)) from None


def _store_secret(slug: str, secret: Secret, count_row: RowListener) -> None:
    provider = Provider.objects.select_for_update(no_key=True).get(slug=slug)
    if stored_secret(provider) == secret:
        count_row(CREDENTIALS, slug, RowOutcome.UNCHANGED)
        return
    provider.set_credential(secret)
    count_row(CREDENTIALS, slug, RowOutcome.CREATE)
