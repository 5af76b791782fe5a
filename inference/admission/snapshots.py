"""A worker's copies of the catalogue and of organizations, loaded when their version has moved."""

from __future__ import annotations

import gc
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from django.db import connection, transaction

from accounts.models import ByokCredential, CredentialNotFound
from catalog import dialects
from catalog.dialects.base import Operation
from catalog.dialects.shared.credentials import InvalidCredential
from catalog.models import DialectName, LanguageModel, ModelEndpoint, Provider
from catalog.visibility import EndpointFacts
from config.credentials import Secret
from config.secrets import DecryptionFailed
from endpoints.models import PrivateEndpoint
from inference.admission.governance import OrganizationRules, load_rules
from inference.requests.parsing import EFFORTS
from inference.routing.routes import (
    CatalogSnapshot,
    Credential,
    FirstUse,
    OrganizationSnapshot,
    Route,
)
from inference.store import run_in_thread

_ORGANIZATIONS: Final = 10_000
# The modalities of a chat or text completion.
_COMPLETED: Final = frozenset(("text", "image", "audio"))
_CLOUDS: Final = frozenset(
    str(dialect.value) for dialect in DialectName if dialect.has_url_in_credential
)


@dataclass(frozen=True, slots=True)
class OrganizationCopy:
    """The endpoints and credentials of an organization, and its rules."""

    routes: OrganizationSnapshot
    rules: OrganizationRules


class Snapshots:
    """One worker's copies of the catalogue and of the organizations that it serves.

    A copy is used only while its version equals the one read at admission, so no change is missed.
    The number of organizations is bounded: the least recently used copy is dropped first.
    """

    def __init__(self) -> None:
        self._catalog = CatalogSnapshot(version=-1, routes={}, slugs={})
        self._organizations: OrderedDict[uuid.UUID, OrganizationCopy] = OrderedDict()

    def has(self, organization_id: uuid.UUID, version: int, catalog_version: int) -> bool:
        """Returns whether there are copies of these versions."""
        found = self._organizations.get(organization_id)
        return (
            found is not None
            and self._catalog.version == found.routes.catalog_version == catalog_version
            and found.routes.version == version
        )

    async def catalog(self, version: int) -> CatalogSnapshot:
        """Returns the catalogue at this version, and loads it if the copy has another one."""
        if self._catalog.version != version:
            self._catalog = await run_in_thread(load_catalog, version)
            # The copy lives long and has no cycles, so the garbage collector need not visit it
            # again. Recent garbage is collected first, because freezing would keep it for ever.
            gc.collect(1)
            gc.freeze()
        return self._catalog

    async def organization(
        self, organization_id: uuid.UUID, version: int, catalog_version: int
    ) -> OrganizationCopy:
        """Returns an organization's endpoints, credentials and rules at these versions."""
        found = self._organizations.get(organization_id)
        if found is None or (found.routes.version, found.routes.catalog_version) != (
            version,
            catalog_version,
        ):
            found = await run_in_thread(
                load_organization, organization_id, version, catalog_version
            )
            self._organizations[organization_id] = found
            if len(self._organizations) > _ORGANIZATIONS:
                self._organizations.popitem(last=False)
        else:
            self._organizations.move_to_end(organization_id)
        return found


def record_first_use(use: FirstUse) -> str | None:
    """Binds a credential to the domain of its first use, on this thread's connection.

    Returns the reason why its secret may not go there from now on, if there is one.
    """
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            # A locked row may keep a thread only briefly: all tenants of the worker share them.
            cursor.execute("SET LOCAL lock_timeout = '2s'")
            credential: ByokCredential = ByokCredential.objects.get(pk=use.credential_id)
            return credential.record_use(use.host, own_hosts=use.own_hosts)
    except (ByokCredential.DoesNotExist, CredentialNotFound):
        return CredentialNotFound.message


def load_catalog(version: int) -> CatalogSnapshot:
    """Reads the routable part of the catalogue on this thread's connection."""
    # The version was read before these rows. Newer rows under an older version are loaded again at
    # the next admission; older rows under a newer version cannot happen.
    secrets: dict[uuid.UUID, Secret | None] = {}
    for provider in Provider.objects.all():
        secrets[provider.pk] = _read_operator_secret(provider)
    routes = [
        Route(
            endpoint_id=endpoint.pk,
            is_private=False,
            model_slug=endpoint.model.slug,
            model_permaslug=endpoint.model.canonical_slug,
            facts=EndpointFacts(
                endpoint.provider.slug,
                endpoint.provider.name,
                endpoint.zdr,
                endpoint.provider.trains_on_prompts,
                endpoint.model.slug,
                endpoint.model.canonical_slug,
                endpoint.region,
                endpoint.price.price.is_free,
            ),
            dialect=_usable_dialect(endpoint.provider, endpoint.provider.base_url),
            operations=_operations_of(endpoint),
            base_url=endpoint.provider.base_url,
            host=_host_of_url(endpoint.provider.base_url),
            upstream_model_id=endpoint.upstream_model_id,
            price_id=endpoint.price_id,
            price=endpoint.price.price,
            secret=secrets[endpoint.provider_id],
            quantization=endpoint.quantization or "unknown",
            context_length=endpoint.context_length,
            max_completion_tokens=endpoint.max_completion_tokens,
            supported_parameters=_parameters_of(endpoint.supported_parameters),
            listed_parameters=frozenset(endpoint.supported_parameters) or None,
        )
        for endpoint in ModelEndpoint.objects.routable().select_related(
            "model", "provider", "price"
        )
    ]
    slugs = {
        name: model.slug
        for model in LanguageModel.objects.listed().only("slug", "canonical_slug")
        for name in (model.canonical_slug, model.slug)
    }
    return CatalogSnapshot(version=version, routes=_group_by_name(routes), slugs=slugs)


def load_organization(
    organization_id: uuid.UUID, version: int, catalog_version: int
) -> OrganizationCopy:
    """Reads an organization's endpoints, credentials and rules on this thread's connection."""
    routes = [
        Route(
            endpoint_id=endpoint.pk,
            is_private=True,
            model_slug=endpoint.model.slug,
            model_permaslug=endpoint.model.canonical_slug,
            facts=EndpointFacts(
                endpoint.provider.slug,
                endpoint.provider_name,
                bool(endpoint.declared_zdr),
                False,
                endpoint.model.slug,
                endpoint.model.canonical_slug,
                endpoint.declared_region,
            ),
            dialect=_usable_dialect(endpoint.provider, endpoint.base_url),
            operations=_operations_of(endpoint),
            base_url=endpoint.base_url,
            host=_host_of_url(endpoint.base_url),
            upstream_model_id=endpoint.upstream_model_id,
            price_id=endpoint.price_id,
            price=endpoint.price.price,
            attestation_id=endpoint.attestation_id,
            context_length=endpoint.model.context_length,
        )
        for endpoint in PrivateEndpoint.objects.for_organization(organization_id)
        .routable()
        .select_related("model", "provider", "price")
    ]
    rows = list(
        ByokCredential.objects.for_organization(organization_id)
        .filter(disabled=False)
        .order_by("provider_slug", "sort_order", "created_at")
    )
    providers = {
        provider.slug: provider
        for provider in Provider.objects.filter(slug__in={row.provider_slug for row in rows}).only(
            "slug", "dialect", "base_url"
        )
    }
    credentials = tuple(_make_credential(row, providers.get(row.provider_slug)) for row in rows)
    return OrganizationCopy(
        OrganizationSnapshot(
            version=version,
            catalog_version=catalog_version,
            routes=_group_by_name(routes),
            credentials=credentials,
        ),
        load_rules(organization_id),
    )


def _parameters_of(listed: Iterable[str]) -> frozenset[str] | None:
    """Returns the parameters that an endpoint supports; ``None`` if its list is empty.

    An endpoint that supports one name of the reasoning effort supports both.
    """
    supported = frozenset(listed)
    return (supported if supported.isdisjoint(EFFORTS) else supported | EFFORTS) or None


def _group_by_name(routes: Iterable[Route]) -> dict[str, tuple[Route, ...]]:
    found: dict[str, list[Route]] = {}
    for route in routes:
        for name in {route.model_slug, route.model_permaslug}:
            found.setdefault(name, []).append(route)
    return {name: tuple(group) for name, group in found.items()}


def _make_credential(row: ByokCredential, provider: Provider | None) -> Credential:
    """Returns a credential for routing; ``provider`` is ``None`` if the catalogue has none."""
    secret, host = _reveal(row), None
    if provider is not None and provider.dialect in _CLOUDS:
        host = _host_of_credential(provider.dialect, secret)
        secret = None if host is None else secret
    own_hosts = frozenset() if provider is None else provider.own_hosts(host or "")
    return Credential(
        credential_id=row.pk,
        provider_slug=row.provider_slug,
        workspace_id=row.workspace_id,
        secret=secret,
        is_fallback=row.is_fallback,
        is_required=row.is_required,
        is_byok_only=row.is_byok_only,
        allowed_models=_freeze(row.allowed_models),
        allowed_key_digests=_freeze(row.allowed_api_key_hashes),
        limits=row.host_limits(own_hosts),
        host=host,
        allowed_members=_freeze(row.allowed_user_ids),
        declared_region=row.declared_region,
        declared_zdr=row.declared_zdr,
    )


def _host_of_credential(dialect: str, secret: Secret | None) -> str | None:
    """Returns the host that a credential names; ``None`` if it names no valid one."""
    speaker = dialects.get(dialect)
    if speaker is None or secret is None:
        return None
    try:
        return speaker.host(None, secret)
    except InvalidCredential:
        return None


def _usable_dialect(provider: Provider, base_url: str | None) -> str | None:
    """Returns the dialect of an endpoint; ``None`` if the endpoint cannot be called."""
    if dialects.get(provider.dialect) is None:
        return None
    is_placed = base_url is not None or provider.dialect in _CLOUDS
    return provider.dialect if is_placed else None


def _operations_of(endpoint: ModelEndpoint | PrivateEndpoint) -> frozenset[Operation]:
    """Returns the operations that both the endpoint's dialect and its model support."""
    dialect = dialects.get(endpoint.provider.dialect, endpoint.upstream_model_id)
    if dialect is None:
        return frozenset()
    outputs = endpoint.model.output_modalities
    if outputs and _COMPLETED.isdisjoint(outputs):
        return dialect.operations & {Operation.EMBEDDINGS}
    return dialect.operations


def _host_of_url(base_url: str | None) -> str:
    try:
        return urlsplit(base_url or "").hostname or ""
    except ValueError:
        return ""  # the address is refused when it is called; other routes are not affected


def _freeze(values: list[str] | None) -> frozenset[str] | None:
    return None if values is None else frozenset(values)


def _read_operator_secret(provider: Provider) -> Secret | None:
    if not provider.has_credential:
        return None
    try:
        secret = provider.reveal_credential()
    except DecryptionFailed:
        return None
    if provider.dialect in _CLOUDS and _host_of_credential(provider.dialect, secret) is None:
        return None
    return secret


def _reveal(credential: ByokCredential) -> Secret | None:
    try:
        return credential.reveal()
    except DecryptionFailed:
        return None
