"""Makes private providers, drafts, credentials and aliases of an organization from a gateway."""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Mapping
from itertools import islice, takewhile
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from django.db import transaction

from accounts.models import ByokCredential, Organization
from catalog.aliases.imports import KIND as ALIASES
from catalog.connecting.connect import name_some
from catalog.connecting.gateways.catalogue import (
    CREDENTIALS,
    REPEATED,
    GatewayReport,
    Names,
    check_secret,
    read_servers,
    store_aliases,
    take_all,
)
from catalog.connecting.gateways.deployments import (
    ANY_POLICY,
    Deployment,
    GatewayFile,
    NotTaken,
    is_at,
    is_same,
)
from catalog.connecting.gateways.known import ADD_MODEL, KnownModels
from catalog.connecting.servers import guess_output, name_models, number_names, recognize
from catalog.models import LanguageModel, Provider
from catalog.rows import EndpointRow, price_of
from config.api.errors import GatewayError
from config.bulk.problems import ImportRefused
from config.bulk.report import RowListener, RowOutcome
from config.credentials import NO_SECRET, Secret
from config.egress.addresses import parse_base_url
from endpoints import imports
from endpoints.models import PrivateEndpoint, PrivateProvider, canonical_base_url
from endpoints.models.providers import ProviderExists

PROVIDERS: Final = "private_providers"
ACTOR: Final = "import_gateway"
_MOST_NAMES: Final = 100
_NO_LIMITS: Final = (
    "a private endpoint has no limits; those of keys and workspaces are in docs/rate-limits.md"
)
_LINE: Final = re.compile(r"\Aline 1: ")


def apply(
    organization_id: uuid.UUID,
    gateway: GatewayFile,
    *,
    dry_run: bool = False,
    on_row: RowListener | None = None,
) -> GatewayReport:
    """Stores what a gateway serves as drafts of an organization, all or none.

    Raises :class:`ImportRefused`.
    """
    report = GatewayReport.of_kinds(PROVIDERS, imports.KIND, CREDENTIALS, ALIASES, dry_run=dry_run)
    with transaction.atomic():
        plan = _Plan(organization_id, gateway, report.counter(on_row))
        names = take_all(gateway, plan.known, lambda each, _: plan.take(each))
        plan.tell_missing()
        plan.tell_public(names)
        try:
            plan.store_credentials()
        except GatewayError as exc:
            raise ImportRefused([exc.message]) from None
        store_aliases(organization_id, gateway, names, plan.count_row)
        transaction.set_rollback(dry_run)
    report.left_out = sorted(gateway.left_out, key=lambda each: each.line)
    return report


class _Plan:
    """Stores the deployments one by one, each provider and each key once."""

    def __init__(
        self, organization_id: uuid.UUID, gateway: GatewayFile, count_row: RowListener
    ) -> None:
        self._gateway = gateway
        credentials = ByokCredential.objects.for_organization(organization_id)
        list(credentials.order_by("pk").select_for_update().values_list("pk"))
        imports.lock_drafts(organization_id)
        self.organization = Organization.objects.lock(organization_id)
        self.count_row = count_row
        self.known = KnownModels.load()
        self._listed = dict(LanguageModel.objects.listed().values_list("canonical_slug", "slug"))
        self._providers: dict[tuple[str, bool], str] = {}
        self._rows: dict[tuple[str, ...], dict[str, Any]] = {}
        self._keys: dict[tuple[str, Secret], set[str]] = defaultdict(set)
        self._places: dict[tuple[str, str], Mapping[str, str]] = {}
        self._keyless: list[tuple[str, Deployment]] = []
        # Another import may have stored some before this one came to the organization's lock.
        self._stored = list(credentials)

    def take(self, deployment: Deployment) -> str:
        """Stores an endpoint and its provider; returns the public name of its model.

        Raises :class:`NotTaken`.
        """
        outcomes: list[tuple[Any, ...]] = []
        # An entry that is refused leaves nothing.
        with transaction.atomic():
            slug, public = self._store(deployment, lambda *told: outcomes.append(told))
        for told in outcomes:
            self.count_row(*told)
        # A provider that was refused with its endpoint is made again for the next one.
        self._providers[_server_of(deployment)] = slug
        if deployment.place:
            self._places[slug, public] = deployment.place
        if (secret := deployment.key) is not None:
            self._keys[slug, secret].add(public)
        elif deployment.secret is None:
            self._keyless.append((slug, deployment))
        self._gateway.leave_members(deployment.line, deployment.name, deployment.limits, _NO_LIMITS)
        return public

    def tell_missing(self) -> None:
        """Leaves out the keys that neither the file nor the organization has."""
        for slug, deployment in self._keyless:
            named = [secret for other, secret in self._keys if other == slug]
            secrets = [*named, *(each.reveal_or_none() for each in self._stored_at(slug))]
            if not any(is_at(secret, deployment.place) for secret in secrets):
                self._gateway.leave(deployment, f"its key: {deployment.missing}")

    def tell_public(self, names: Names) -> None:
        """Leaves out that the requests of a name are private, where public endpoints get them yet.

        Its alias is there at once, while a draft neither serves nor keeps its model private. The
        names of a wildcard are told together.
        """
        public = read_servers()
        stored = PrivateEndpoint.objects.filter(organization=self.organization)
        kept = stored.routable() | stored.withdrawn()
        own = LanguageModel.objects.owned_by(self.organization.pk)
        private = {
            *kept.values_list("model__slug", flat=True), *own.values_list("slug", flat=True)
        }  # fmt: skip
        named = {each.name for each in self._gateway.deployments}
        wild = {each.line: each.name for each in self._gateway.wildcards}
        reached: dict[tuple[int, str], set[str]] = defaultdict(set)
        for name, (line, models) in names.items():
            shown = name if name in named else wild.get(line, name)
            # What follows a private model is closed, too.
            for slug in takewhile(lambda each: each not in private, models):
                reached[line, shown] |= public.get(slug, set())
        for (line, name), providers in reached.items():
            if providers:
                self._gateway.leave_out(
                    line,
                    name,
                    "that its requests go to its own endpoints alone: until one is activated, they "
                    f"go to {name_some(sorted(providers))} of the catalogue",
                )

    def _store(self, deployment: Deployment, count_row: RowListener) -> tuple[str, str]:
        """Returns the slug of the provider, and the public name of the model."""
        model = self.known.find_model(deployment)
        own: dict[str, Any] = {}
        if model is None or model not in self._listed:
            model = self._name_own_model(deployment)
            own = {"model": {"name": deployment.own_name}}
        check_secret(deployment)
        slug = self._find_provider(deployment, count_row)
        public = self._listed.get(model, model)
        if deployment.place:
            self._require_one_place(deployment.place, slug, public)
        key = {
            "model_permaslug": model,
            "provider_slug": slug,
            "upstream_model_id": self.known.name_upstream(deployment, model),
        }
        if deployment.server.base_url is not None:
            key["base_url"] = deployment.server.base_url
        row = {**key, **self._read_terms(deployment, model), **own}
        values = tuple(key.values())
        if (stored := self._rows.get(values)) is None:
            try:
                imports.apply(
                    self.organization.pk, [imports.encode(row)], by=ACTOR, on_row=count_row
                )
            except ImportRefused as exc:
                problem = _LINE.sub("", exc.problems[0])
                if not imports.has_endpoint(self.organization.pk, *values):
                    raise NotTaken(problem) from None
                # It is there, and stays as it is.
                self._gateway.leave(deployment, problem)
            else:
                self.known.leave_price(self._gateway, deployment, model)
            self._rows[values] = row
        elif stored != row and deployment.has_terms:
            self._gateway.leave(deployment, REPEATED)
        self._listed.setdefault(model, model)
        return slug, public

    def _require_one_place(self, place: Mapping[str, str], slug: str, public: str) -> None:
        """Refuses a model at a second resource: no credential says which endpoint it is for."""
        others = [
            each
            for each in self._stored_at(slug)
            if each.allowed_models is None or public in each.allowed_models
        ]
        if self._places.get((slug, public), place) != place or not all(
            is_at(each.reveal_or_none(), place) for each in others
        ):
            raise NotTaken(
                "another key of the organization is for this model in another resource or region, "
                "and every endpoint of the provider would be called with both"
            )

    def store_credentials(self) -> None:
        """Stores each key that its provider does not have yet.

        Of several keys or places of a provider, each key is for the models of its deployments.
        """
        for (slug, secret), models in self._keys.items():
            outcome = RowOutcome.UNCHANGED
            same = (
                each for each in self._stored_at(slug) if is_same(each.reveal_or_none(), secret)
            )
            if (stored := next(same, None)) is None:
                outcome = RowOutcome.CREATE
                others = [each for (other, _), each in self._keys.items() if other == slug]
                places = [place for (other, _), place in self._places.items() if other == slug]
                is_one_of_some = any(models != each for each in others) or not all(
                    is_at(secret, place) for place in places
                )
                ByokCredential.objects.create_credential(
                    organization=self.organization,
                    workspace=None,
                    provider_slug=slug,
                    secret=secret,
                    allowed_models=sorted(models) if is_one_of_some else None,
                )
            elif stored.allowed_models is not None and models.difference(stored.allowed_models):
                outcome = RowOutcome.UPDATE
                stored.edit(allowed_models=sorted(models.union(stored.allowed_models)))
            self.count_row(CREDENTIALS, f"{slug} {secret.label}", outcome)

    def _stored_at(self, slug: str) -> list[ByokCredential]:
        return [each for each in self._stored if each.provider_slug == slug]

    def _find_provider(self, deployment: Deployment, count_row: RowListener) -> str:
        """Returns the slug of the catalogue's provider, or of the organization's own."""
        family, dialect, address = deployment.server
        if family:
            known = Provider.objects.filter(slug=family, is_listed=True).first()
            if known is None:
                raise NotTaken(f"the catalogue does not have the provider {family!r}")
            # All keys of a provider go to its own hosts.
            if address is not None and urlsplit(address).hostname not in known.own_hosts():
                raise NotTaken(f"the catalogue has the provider {family!r} at another address")
            return family
        assert address is not None, "a server of one's own has an address"
        if dialect != "openai":
            # With the catalogue's provider of the format, its keys and those of others would mix.
            raise NotTaken(
                "the address: an organization's own provider speaks OpenAI's format alone"
            )
        if (slug := self._providers.get(_server_of(deployment))) is not None:
            return slug
        try:
            base_url = canonical_base_url(address, self.organization.pk)
            own = PrivateProvider.objects.for_organization(self.organization.pk)
            is_keyless = deployment.secret == NO_SECRET
            stored = own.filter(base_url=base_url, is_keyless=is_keyless).first()
            slug = str((stored or self._create_provider(base_url, is_keyless=is_keyless)).slug)
        except GatewayError as exc:
            raise NotTaken(exc.message) from None
        count_row(PROVIDERS, slug, RowOutcome.UNCHANGED if stored else RowOutcome.CREATE)
        return slug

    def _create_provider(self, base_url: str | None, *, is_keyless: bool) -> PrivateProvider:
        host = parse_base_url(base_url or "", policy=ANY_POLICY).host
        for name in islice(number_names(recognize((), host).slug), _MOST_NAMES):
            try:
                with transaction.atomic():
                    return PrivateProvider.objects.create_provider(
                        organization_id=self.organization.pk,
                        name=name,
                        base_url=base_url,
                        is_keyless=is_keyless,
                    )
            except ProviderExists:
                continue
        raise NotTaken("the organization has too many providers of this name")

    def _name_own_model(self, deployment: Deployment) -> str:
        """Returns the slug of the organization's own model for a text model with a price."""
        stated = deployment.pricing or {}
        output = deployment.output or guess_output(deployment.upstream_id)
        if output != "text" or not stated.keys() >= {"prompt", "completion"}:
            raise NotTaken(
                "the catalogue does not have the model, and the file lacks the price of a text "
                f"model of the organization's own; {ADD_MODEL}"
            )
        name = deployment.own_name
        return name_models(self.organization.slug, [name], ())[name]

    def _read_terms(self, deployment: Deployment, model: str) -> dict[str, Any]:
        """Returns the members of a row that state price, time limits, lengths and shares."""
        template = self.known.find_template(deployment, model)
        price = EndpointRow(
            model=model,
            provider=deployment.server.family,
            upstream_model_id=deployment.upstream_id,
            **self.known.price(deployment, template),
        )
        members: dict[str, Any] = imports.price_members(price_of(price))
        if deployment.timeouts:
            members["timeouts"] = deployment.timeouts
        settings = {
            "context_length": deployment.context_length,
            "max_completion_tokens": deployment.max_completion_tokens,
            "routing": deployment.routing,
        }
        if stated := {name: value for name, value in settings.items() if value}:
            members["settings"] = stated
        return {name: each for name, each in members.items() if each is not msgspec.UNSET}


def _server_of(deployment: Deployment) -> tuple[str, bool]:
    return deployment.server.base_url or "", deployment.secret == NO_SECRET
