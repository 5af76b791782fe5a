"""Reads the routable catalogue, and patches a copy of it with what changed since its version.

The whole catalogue is read as one patch of an empty copy: a patched copy and a new one are equal.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from catalog import dialects
from catalog.abilities import Completions, read_abilities
from catalog.aliases.resolution import Alias, make_table
from catalog.aliases.spellings import ModelNames, patch_names
from catalog.dialects.base import Operation
from catalog.dialects.shared.credentials import InvalidCredential
from catalog.models import DialectName, associated_data
from catalog.operations import proven_operations, served_operations
from catalog.pricing import Price, UnknownRule
from catalog.tokens import correct_family, find_limits
from catalog.visibility import EndpointFacts
from config import secrets, sql
from config.credentials import NO_SECRET, Secret
from config.egress.addresses import Reach, parse_network
from config.egress.rules import TimeLimits
from inference.requests.operations.completions import EFFORTS
from inference.routing.pacing import Pace
from inference.routing.routes import CatalogModel, CatalogProvider, CatalogSnapshot, Route
from inference.store import DataPlaneConnection

logger = logging.getLogger(__name__)

READ_CHANGES: Final = sql.load_statement("catalog", "read_changes")
READ_SUBJECTS: Final = sql.load_statement("catalog", "read_subjects")
READ_PROVIDERS: Final = sql.load_statement("catalog", "read_providers")
READ_MODELS: Final = sql.load_statement("catalog", "read_models")
READ_ENDPOINTS: Final = sql.load_statement("catalog", "read_endpoints")
READ_ALIASES: Final = sql.load_statement("catalog", "read_aliases")

NO_CATALOG: Final = CatalogSnapshot(version=-1, routes={}, slugs={})
# The models whose endpoints are read at a time. A route takes the event loop some 30 µs, and
# requests go on between the parts of a large change.
_PART: Final = 16
CLOUDS: Final = frozenset(
    str(dialect.value) for dialect in DialectName if dialect.has_url_in_credential
)

Query = tuple[sql.Statement, Sequence[Any]]
Result = TypeVar("Result")
# Yields statements with their parameters, and is sent their rows: the same reading runs on a
# connection of the data plane and over rows that were read at once.
Reading = Generator[Query, list[Sequence[Any]], Result]


class Changes(NamedTuple):
    """A row of ``read_changes.sql``: the changes of the catalogue since a version."""

    version: int
    is_known: bool
    subjects: Collection[UUID]


async def run_reading(reading: Reading[Result], connection: DataPlaneConnection) -> Result:
    """Executes the statements of a reading on a connection of the data plane."""
    try:
        query = next(reading)
        while True:
            query = reading.send(await connection.execute(*query))
    except StopIteration as finished:
        return finished.value


def read_catalog(
    copy: CatalogSnapshot = NO_CATALOG, *, part: int = _PART
) -> Reading[CatalogSnapshot]:
    """Returns the present catalogue: ``copy`` if it is current, else the copy with the changes.

    A copy whose version the log of changes does not have is replaced by a new one. The endpoints of
    ``part`` models are read at a time.
    """
    # The version was read before the rows. Newer rows under an older version are read again with
    # the next patch; older rows under a newer version cannot happen.
    [row] = yield READ_CHANGES, [copy.version]
    changes = Changes(*row)
    if changes.version == copy.version:
        return copy
    if changes.is_known:
        return (yield from _patch(copy, changes.version, set(changes.subjects), part))
    subjects = {row[0] for row in (yield READ_SUBJECTS, [])}
    return (yield from _patch(NO_CATALOG, changes.version, subjects, part))


def _patch(
    copy: CatalogSnapshot, version: int, subjects: AbstractSet[UUID], part: int
) -> Reading[CatalogSnapshot]:
    """Returns the copy with the present state of the models and providers that changed."""
    providers = {key: one for key, one in copy.providers.items() if key not in subjects}
    for row in (yield READ_PROVIDERS, [list(subjects)]):
        changed_provider = make_provider(*row)
        providers[changed_provider.provider_id] = changed_provider
    rows = yield READ_MODELS, [list(subjects)]
    changed = {model.model_id: model for model in (CatalogModel(*row) for row in rows)}
    models, routes = dict(copy.models), dict(copy.routes)
    affected = subjects | changed.keys()
    for model_id in affected:
        if (old := models.pop(model_id, None)) is not None:
            routes.pop(old.slug, None)
    models |= changed
    listed = [model.model_id for model in changed.values() if model.is_listed]
    for start in range(0, len(listed), part):
        found = yield READ_ENDPOINTS, [listed[start : start + part]]
        for model_id, group in groupby(found, itemgetter(1)):
            model = changed[model_id]
            made = tuple(
                route
                for endpoint in group
                if (provider := providers.get(endpoint[2])) is not None
                and provider.is_listed
                and (route := make_route(model, provider, endpoint)) is not None
            )
            if made:
                routes[model.slug] = made
    rows = yield READ_ALIASES, [list(subjects)]
    alias_rows = _patch_aliases(copy.alias_rows, subjects, rows)
    names = patch_names(
        copy.names, {key: _collect_names(models.get(key), routes) for key in affected}
    )
    # Organizations resolve their endpoints again when one of these mappings is another one: also
    # for a name that only a provider gives a model.
    has_models = any(copy.models.get(key) != models.get(key) for key in affected)
    has_providers = any(copy.providers.get(key) != providers.get(key) for key in subjects)
    return CatalogSnapshot(
        version=version,
        routes=routes,
        slugs=_name_models(models.values()) if has_models else copy.slugs,
        models=models if has_models or names is not copy.names else copy.models,
        providers=providers if has_providers else copy.providers,
        names=names,
        alias_rows=alias_rows,
        aliases=(
            copy.aliases if alias_rows is copy.alias_rows else make_table(alias_rows.values())
        ),
        is_whole=copy is NO_CATALOG,
    )


def _name_models(models: Iterable[CatalogModel]) -> dict[str, str]:
    """Returns the slug of each listed model by all its names; a slug hides an equal permaslug."""
    listed = [model for model in models if model.is_listed]
    slugs = {model.permaslug: model.slug for model in listed}
    slugs.update((model.slug, model.slug) for model in listed)
    return slugs


def _collect_names(
    model: CatalogModel | None, routes: Mapping[str, Sequence[Route]]
) -> ModelNames | None:
    """Returns the names of a listed model, with those that its providers give it."""
    if model is None or not model.is_listed:
        return None
    upstream_ids = frozenset(route.upstream_model_id for route in routes.get(model.slug, ()))
    return ModelNames(model.slug, model.permaslug, model.created, upstream_ids)


def _patch_aliases(
    aliases: Mapping[UUID, Alias], subjects: AbstractSet[UUID], rows: Sequence[Sequence[Any]]
) -> Mapping[UUID, Alias]:
    """Returns the operator's aliases with those that changed; the same mapping if none did."""
    changed = {row[0]: Alias(row[1], tuple(row[2])) for row in rows}
    if not changed and subjects.isdisjoint(aliases):
        return aliases
    return {key: one for key, one in aliases.items() if key not in subjects} | changed


def make_provider(
    provider_id: UUID,
    slug: str,
    name: str,
    dialect: str,
    base_url: str | None,
    trains_on_prompts: bool,
    is_listed: bool,
    sealed: bytes | None,
    is_keyless: bool,
    allowed_networks: Sequence[str] | None,
    ca_certificates: str,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
) -> CatalogProvider:
    """Returns a provider, with the operator's secret decrypted."""
    secret = None if sealed is None else _unseal(bytes(sealed), associated_data(provider_id))
    if is_keyless:
        secret = NO_SECRET
    if dialect in CLOUDS and host_of_credential(dialect, secret) is None:
        secret = None
    pace = None
    if requests_per_minute is not None or tokens_per_minute is not None:
        pace = Pace(provider_id, requests_per_minute, tokens_per_minute)
    reach = share_reach(tuple(allowed_networks or ()), ca_certificates, is_proxied=True)
    return CatalogProvider(
        provider_id,
        slug,
        name,
        dialect,
        base_url,
        trains_on_prompts,
        is_listed,
        secret,
        pace,
        reach,
    )


def make_route(model: CatalogModel, provider: CatalogProvider, row: Sequence[Any]) -> Route | None:
    """Returns the route of an endpoint: a row of ``read_endpoints.sql``.

    Returns ``None`` for a price that a later release has stored and this one cannot apply: during
    a rolling restart, an older worker leaves such an endpoint to the newer ones.
    """
    (
        endpoint_id, _, _, upstream_model_id, region, zdr, quantization, context_length,
        max_completion_tokens, parameters, abilities, connect, headers, first_event, idle, total,
        price_id, *rates,
    ) = row  # fmt: skip
    stated = read_abilities(abilities)
    try:
        price = Price.of_row(*rates)
    except UnknownRule as exc:
        logger.error("the endpoint %s is not used: its price %d: %s", endpoint_id, price_id, exc)
        return None
    return Route(
        endpoint_id=endpoint_id,
        is_private=False,
        model_slug=model.slug,
        model_permaslug=model.permaslug,
        facts=EndpointFacts(
            provider.slug,
            provider.name,
            zdr,
            provider.trains_on_prompts,
            model.slug,
            model.permaslug,
            region,
            price.is_free,
        ),
        dialect=usable_dialect(provider, provider.base_url),
        operations=operations_of(model, provider, stated.completions),
        inputs=share(model.input_modalities),
        outputs=share(model.output_modalities),
        base_url=provider.base_url,
        host=host_of_url(provider.base_url),
        upstream_model_id=upstream_model_id,
        price_id=price_id,
        price=price,
        secret=provider.secret,
        pace=provider.pace,
        quantization=quantization or "unknown",
        context_length=context_length,
        max_completion_tokens=max_completion_tokens,
        supported_parameters=_parameters_of(parameters),
        listed_parameters=frozenset(parameters) or None,
        abilities=stated,
        limits=find_limits(stated.bound),
        family=correct_family(model.family, stated.estimate),
        capabilities=model.capabilities,
        time_limits=share_limits(connect, headers, first_event, idle, total),
        reach=provider.reach,
    )


def usable_dialect(provider: CatalogProvider, base_url: str | None) -> str | None:
    """Returns the dialect of an endpoint; ``None`` if the endpoint cannot be called."""
    if dialects.get(provider.dialect) is None:
        return None
    is_placed = base_url is not None or provider.dialect in CLOUDS
    return provider.dialect if is_placed else None


def operations_of(
    model: CatalogModel,
    provider: CatalogProvider,
    completions: Completions,
    proven: frozenset[str] | None = None,
) -> frozenset[Operation]:
    """Returns the operations that both the endpoint's dialect and its model support.

    ``completions`` are the interfaces that the endpoint states, and ``proven`` are the operations
    that a validation has proven, if it tells them.
    """
    dialect = dialects.get(provider.dialect, model.capabilities)
    found = proven_operations(served_operations(model.output_modalities, dialect), proven)
    if completions.chat is False:
        found -= {Operation.CHAT}
    return found - {Operation.TEXT} if completions.text is False else found


def share(names: Sequence[str]) -> frozenset[str]:
    """Returns the set of these names, one for all models that have the same."""
    return _share(tuple(names))


@lru_cache(maxsize=256)
def _share(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(names)


@lru_cache(maxsize=256)
def share_limits(*seconds: int | None) -> TimeLimits:
    """Returns the limits of time, one object for all endpoints that have the same."""
    return TimeLimits(*seconds)


@lru_cache(maxsize=256)
def share_reach(networks: tuple[str, ...], authorities: str, *, is_proxied: bool = False) -> Reach:
    """Returns what the connections of an owner may reach, one object for all that have the same."""
    return Reach(tuple(map(parse_network, networks)), authorities, is_proxied)


def host_of_url(base_url: str | None) -> str:
    """Returns the host of an address; empty if the address has none."""
    try:
        return urlsplit(base_url or "").hostname or ""
    except ValueError:
        return ""  # the address is refused when it is called; other routes are not affected


def host_of_credential(dialect: str, secret: Secret | None) -> str | None:
    """Returns the host that a credential names; ``None`` if it names no valid one."""
    # Nothing is imported for a cloud without a credential.
    if secret is None or (speaker := dialects.get(dialect)) is None:
        return None
    try:
        return speaker.host(None, secret)
    except InvalidCredential:
        return None


def _parameters_of(listed: Iterable[str]) -> frozenset[str] | None:
    """Returns the parameters that an endpoint supports; ``None`` if its list is empty.

    An endpoint that supports one name of the reasoning effort supports both.
    """
    supported = frozenset(listed)
    return (supported if supported.isdisjoint(EFFORTS) else supported | EFFORTS) or None


def _unseal(sealed: bytes, associated: str) -> Secret | None:
    try:
        return secrets.unseal(sealed, associated=associated)
    except secrets.DecryptionFailed:
        return None
