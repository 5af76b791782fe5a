"""Makes private providers, drafts, credentials and aliases of an organization from a gateway."""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from itertools import islice
from typing import Any, Final

import msgspec
from django.db import transaction

from accounts.models import ByokCredential, Organization
from catalog.aliases.imports import KIND as ALIASES
from catalog.connecting.gateways.catalogue import (
    ANY_POLICY,
    CREDENTIALS,
    REPEATED,
    GatewayReport,
    check_secret,
    expand,
    store_aliases,
)
from catalog.connecting.gateways.deployments import Deployment, GatewayFile, NotTaken
from catalog.connecting.gateways.known import KnownModels
from catalog.connecting.servers import guess_output, name_models, number_names, recognize
from catalog.models import LanguageModel, Provider
from catalog.rows import EndpointRow, price_of
from config.api.errors import GatewayError
from config.bulk.problems import ImportRefused
from config.bulk.report import RowListener, RowOutcome
from config.credentials import NO_SECRET, Secret
from config.egress.addresses import parse_base_url
from config.secrets import DecryptionFailed
from endpoints import imports
from endpoints.models import PrivateProvider, canonical_base_url
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
        for deployment in expand(gateway, plan.known):
            try:
                # An entry that is refused leaves nothing.
                with transaction.atomic():
                    plan.add(deployment)
            except NotTaken as exc:
                gateway.leave(deployment, exc)
                continue
            if plan.lacks_key(deployment):
                gateway.leave(deployment, f"its key: {deployment.missing}")
            gateway.leave_members(deployment.line, deployment.name, deployment.limits, _NO_LIMITS)
        try:
            plan.store_credentials()
        except GatewayError as exc:
            raise ImportRefused([exc.message]) from None
        store_aliases(organization_id, gateway, plan.names, plan.count_row)
        transaction.set_rollback(dry_run)
    report.left_out = sorted(gateway.left_out, key=lambda each: each.line)
    return report


class _Plan:
    """Stores the deployments one by one, each provider and each key once."""

    def __init__(
        self, organization_id: uuid.UUID, gateway: GatewayFile, count_row: RowListener
    ) -> None:
        self._gateway = gateway
        organizations = Organization.objects.select_for_update(no_key=True)
        self.organization = organizations.get(pk=organization_id)
        self.count_row = count_row
        self.known = KnownModels.load()
        self.names: dict[str, list[str]] = defaultdict(list)
        self._listed = dict(LanguageModel.objects.listed().values_list("canonical_slug", "slug"))
        self._providers: dict[tuple[str, bool], str] = {}
        self._rows: dict[tuple[str, ...], dict[str, Any]] = {}
        self._keys: dict[tuple[str, Secret], set[str]] = defaultdict(set)
        self._stored = list(ByokCredential.objects.for_organization(organization_id))

    def add(self, deployment: Deployment) -> None:
        """Stores an endpoint and its provider; raises :class:`NotTaken`."""
        model = self.known.find_model(deployment)
        own: dict[str, Any] = {}
        if model is None or model not in self._listed:
            model = self._name_own_model(deployment)
            own = {"model": {"name": deployment.name}}
        check_secret(deployment)
        outcomes: list[tuple[Any, ...]] = []
        slug = self._find_provider(deployment, lambda *told: outcomes.append(told))
        key = {
            "model_permaslug": model,
            "provider_slug": slug,
            "upstream_model_id": deployment.upstream_id,
        }
        if deployment.base_url is not None:
            key["base_url"] = deployment.base_url
        row = {**key, **self._read_terms(deployment, model), **own}
        stored = self._rows.setdefault(tuple(key.values()), row)
        if stored is row:
            try:
                imports.apply(
                    self.organization.pk,
                    [imports.encode(row)],
                    by=ACTOR,
                    on_row=lambda *told: outcomes.append(told),
                )
            except ImportRefused as exc:
                del self._rows[tuple(key.values())]
                raise NotTaken(_LINE.sub("", exc.problems[0])) from None
        elif stored != row and deployment.has_terms:
            self._gateway.leave(deployment, REPEATED)
        for told in outcomes:
            self.count_row(*told)
        public = self._listed.setdefault(model, model)
        # A provider that was refused with its endpoint is made again for the next one.
        self._providers[_server_of(deployment)] = slug
        if (secret := deployment.key) is not None:
            self._keys[slug, secret].add(public)
        if public not in self.names[deployment.name]:
            self.names[deployment.name].append(public)

    def store_credentials(self) -> None:
        """Stores each key that its provider does not have yet.

        Of several keys of a provider, each is for the models of its own deployments.
        """
        for (slug, secret), models in self._keys.items():
            outcome = RowOutcome.UNCHANGED
            if not any(_has_secret(each, secret) for each in self._stored_at(slug)):
                outcome = RowOutcome.CREATE
                others = [each for (other, _), each in self._keys.items() if other == slug]
                ByokCredential.objects.create_credential(
                    organization=self.organization,
                    workspace=None,
                    provider_slug=slug,
                    secret=secret,
                    allowed_models=sorted(models) if any(models != o for o in others) else None,
                )
            self.count_row(CREDENTIALS, f"{slug} {secret.label}", outcome)

    def lacks_key(self, deployment: Deployment) -> bool:
        """Returns whether neither the file nor the organization has a key for a deployment."""
        slug = deployment.family
        is_named = any(slug == other for other, _ in self._keys)
        return deployment.secret is None and not is_named and not self._stored_at(slug)

    def _stored_at(self, slug: str) -> list[ByokCredential]:
        return [each for each in self._stored if each.provider_slug == slug]

    def _find_provider(self, deployment: Deployment, count_row: RowListener) -> str:
        """Returns the slug of the catalogue's provider, or of the organization's own."""
        family = deployment.family
        if not family and deployment.dialect != "openai":
            # The catalogue's provider speaks the format; the endpoint has its own address.
            family = deployment.dialect
        if family:
            if not Provider.objects.filter(slug=family, is_listed=True).exists():
                raise NotTaken(f"the catalogue does not have the provider {family!r}")
            return family
        assert deployment.base_url is not None, "a server of one's own has an address"
        if (slug := self._providers.get(_server_of(deployment))) is not None:
            return slug
        try:
            base_url = canonical_base_url(deployment.base_url, self.organization.pk)
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
                "model of the organization's own"
            )
        return name_models(self.organization.slug, [deployment.name], ())[deployment.name]

    def _read_terms(self, deployment: Deployment, model: str) -> dict[str, Any]:
        """Returns the members of a row that state price, time limits and shares."""
        template = self.known.find_template(deployment, model)
        price = EndpointRow(
            model=model,
            provider=deployment.family,
            upstream_model_id=deployment.upstream_id,
            **self.known.price(deployment, template),
        )
        members: dict[str, Any] = imports.price_members(price_of(price))
        if deployment.timeouts:
            members["timeouts"] = deployment.timeouts
        if deployment.routing:
            members["settings"] = {"routing": deployment.routing}
        return {name: each for name, each in members.items() if each is not msgspec.UNSET}


def _server_of(deployment: Deployment) -> tuple[str, bool]:
    return deployment.base_url or "", deployment.secret == NO_SECRET


def _has_secret(credential: ByokCredential, secret: Secret) -> bool:
    try:
        return credential.reveal() == secret
    except DecryptionFailed:
        return False
