"""Connects a server of one's own, or a provider of the bundle, all or nothing.

Everything is asked before anything is stored, so no transaction waits for a server. A server that
is connected again keeps its slugs, its prices and what an operator has changed; its new models are
added.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Container, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q

from catalog import dialects, imports
from catalog.capabilities import (
    UNDESCRIBED,
    Capabilities,
    assume_capabilities,
    complete_capabilities,
)
from catalog.connecting.asking import (
    FIELDS,
    Advice,
    ConnectRefused,
    ExchangeFailed,
    OperationRefused,
    Server,
    TestResult,
    is_same_place,
    judge,
    list_models,
    read_url,
    try_model,
)
from catalog.connecting.servers import (
    ServedModel,
    ServerKind,
    name_models,
    number_names,
    read_model,
    recognize,
)
from catalog.dialects.shared.credentials import InvalidCredential
from catalog.models import DialectName, LanguageModel, ModelEndpoint, Provider
from catalog.pricing.contract import InvalidPricing, Pricing, read_price
from catalog.rows import EndpointRow, ModelRow, ProviderRow, price_of, provider_row
from catalog.sync.offers import describe_model
from config.clocks.clock import clock
from config.credentials import NO_SECRET, Secret
from config.egress import Reach
from config.egress.client import EgressClient
from config.egress.rules import InvalidAuthorities, read_authorities
from config.secrets import DecryptionFailed

# The short names of providers, and the addresses of those that the bundle does not have.
_SHORT_NAMES: Final = {
    "bedrock": "amazon-bedrock", "gemini": "google-ai-studio", "google": "google-ai-studio",
    "vertex": "google-vertex",
}  # fmt: skip
_ADDRESSES: Final = {"openrouter": "https://openrouter.ai/api/v1"}
_FREE: Final = {"prompt": "0", "completion": "0"}
# The models that are tried until one answers: a key need not serve each, nor a list be true.
_TRIED: Final = 3
# The time of all test requests together: a server may load the model first.
_TRY_SECONDS: Final = 180.0
_NAMED: Final = 10

# The upstream's name of a model, and the outputs that it may have, the likeliest first.
Try = tuple[str, tuple[str, ...], Capabilities]


@dataclass(frozen=True, slots=True)
class ConnectWish:
    """What a person wants to connect: a URL or the name of a provider, and how it is reached.

    Without a ``secret`` a stored one is used. ``models`` narrows the list; it may be empty.
    Histories of private endpoints name ``by``.
    """

    target: str
    secret: Secret | None = None
    authorities: str = ""
    allows: bool = False
    models: Sequence[str] = ()
    advice: Advice = field(default_factory=Advice)
    by: str = "connect"


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found and tried, before it is stored.

    ``catalog`` has the rows that are new. ``upstream_ids`` are the names of all models that are
    connected, also of those that were before. ``notes`` are sentences for people.
    """

    slug: str
    catalog: imports.Catalog
    upstream_ids: Sequence[str]
    secret: Secret
    reach: Reach
    test: TestResult | None
    notes: Sequence[str] = ()

    @property
    def networks(self) -> Sequence[str]:
        """The networks that are allowed to the provider alone."""
        return [str(each) for each in self.reach.networks]

    @property
    def network(self) -> str | None:
        """The first of these networks."""
        return next(iter(self.networks), None)


@dataclass(frozen=True, slots=True)
class StoredConnection:
    """What is stored: the provider, the slugs of its models and the ids of their endpoints.

    ``tested`` is the slug of the model that has answered.
    """

    provider: str
    models: Sequence[str]
    endpoints: Sequence[UUID]
    tested: str | None


def inspect(wish: ConnectWish) -> Inspection:
    """Asks for the models and tries one of them; raises :class:`ConnectRefused`."""
    name = wish.target.strip().lower()
    name = _SHORT_NAMES.get(name, name)
    bundle = json.loads(imports.BUNDLED.read_bytes())
    address_of = {row["slug"]: row["base_url"] for row in bundle["providers"]}
    if name in address_of:
        return _inspect_provider(wish, name, bundle)
    target = _ADDRESSES.get(name, wish.target)
    if not any(mark in target for mark in ".:/"):
        raise ConnectRefused(
            f"There is no provider {wish.target!r}. Name one of {', '.join(sorted(address_of))} or "
            "openrouter, or the URL of a server, such as http://127.0.0.1:11434/v1."
        )
    base_url = read_url(target).text
    # A server that is stored under a slug of its own is connected again under it.
    urls = [base_url, f"{base_url}/v1"]
    stored = Provider.objects.filter(base_url__in=urls, dialect=DialectName.OPENAI)
    is_own = stored.exclude(slug__in=address_of).exists()
    for slug, address in address_of.items():
        if not is_own and address is not None and is_same_place(base_url, address):
            return _inspect_provider(wish, slug, bundle, base_url)
    return _inspect_server(wish, base_url, address_of.keys())


def store(found: Inspection, *, dry_run: bool = False) -> StoredConnection:
    """Stores what was found, in one transaction, or nothing.

    Raises :class:`ImportRefused`, and :class:`ConnectRefused` if no model of it could be called.
    """
    with transaction.atomic():
        imports.apply(found.catalog)
        provider = Provider.objects.select_for_update(no_key=True).get(slug=found.slug)
        if found.reach != provider.reach:
            provider.allowed_networks = [str(each) for each in found.reach.networks] or None
            provider.ca_certificates = found.reach.authorities
            provider.save_fields("allowed_networks", "ca_certificates")
        if found.secret != stored_secret(provider):
            provider.set_credential(found.secret)
        endpoints = (
            ModelEndpoint.objects.routable()
            .filter(provider=provider, upstream_model_id__in=found.upstream_ids)
            .select_related("model")
            .order_by("model__slug", "created_at")
        )
        if not endpoints:
            raise ConnectRefused(
                "None of these models could be called: an operator took them out of the catalogue, "
                "or their prices cannot be read. List them again in the console."
            )
        tested = None if found.test is None else found.test.model
        made = StoredConnection(
            provider.slug,
            list(dict.fromkeys(endpoint.model.slug for endpoint in endpoints)),
            [endpoint.pk for endpoint in endpoints],
            next((each.model.slug for each in endpoints if each.upstream_model_id == tested), None),
        )
        transaction.set_rollback(dry_run)
    return made


def stored_secret(provider: Provider | None) -> Secret | None:
    """Returns the secret of a provider, ``NO_SECRET`` of a keyless one; ``None`` if it has none."""
    if provider is None or not provider.has_credential:
        return None
    try:
        return provider.reveal_credential()
    except DecryptionFailed:
        return None


def try_endpoints(
    provider: Provider, endpoints: Iterable[ModelEndpoint], advice: Advice
) -> TestResult | None:
    """Sends a test request to the first of a provider's endpoints that answers.

    Returns ``None`` if none of them can be asked for text, vectors or an order. Raises
    :class:`ConnectRefused`.
    """
    if (secret := stored_secret(provider)) is None:
        raise ConnectRefused(f"The provider {provider.slug} needs a key: {advice.key}.")
    server = _make_server(provider.dialect, provider.base_url, secret, provider.reach, advice)
    tries = [
        (
            each.upstream_model_id,
            tuple(each.model.output_modalities[:1]),
            each.model.capabilities,
        )
        for each in endpoints
    ]
    _release_database()
    return asyncio.run(_judge_and_try(server, tries, allows=False))[1]


def _release_database() -> None:
    """Closes the connection to the database: others may use it while a server is called."""
    if not connection.in_atomic_block:
        connection.close()


def _make_server(
    dialect: str, base_url: str | None, secret: Secret, reach: Reach, advice: Advice
) -> Server:
    """Returns the server of a provider, whose credential may name it."""
    try:
        dialects.check_credential(dialect, secret)
        speaker = dialects.get(dialect)
        host = "" if speaker is None else speaker.host(base_url, secret)
    except InvalidCredential as exc:
        raise ConnectRefused(str(exc)) from None
    return Server(base_url or f"https://{host}", dialect, secret, reach, advice)


async def _judge_and_try(
    server: Server, tries: Sequence[Try], *, allows: bool
) -> tuple[Reach, TestResult | None]:
    """Returns what may be reached, and the first answer."""
    reach = await judge(read_url(server.base_url), server.reach, server.advice, allows=allows)
    async with EgressClient(settings.EGRESS_POLICY) as client:
        return reach, await _try_some(client, replace(server, reach=reach), tries)


def _reach_of(wish: ConnectWish, stored: Provider | None) -> Reach:
    reach = Reach(is_proxied=True) if stored is None else stored.reach
    authorities = read_wished_authorities(wish)
    return reach._replace(authorities=authorities) if authorities else reach


def read_wished_authorities(wish: ConnectWish) -> str:
    """Returns the authorities that a person gave, in PEM; raises :class:`ConnectRefused`."""
    if not wish.authorities:
        return ""
    try:
        return read_authorities(wish.authorities)
    except InvalidAuthorities as exc:
        raise ConnectRefused(f"The file of the authority: {exc}") from None


async def _try_some(
    client: EgressClient, server: Server, tries: Sequence[Try]
) -> TestResult | None:
    """Returns the first answer of the first models; ``None`` if no model can be tried.

    Raises the refusal of the first one if none answers.
    """
    deadline = time.monotonic() + _TRY_SECONDS
    problem: ConnectRefused | None = None
    known = [each for each in tries if each[1] and each[1][0] in FIELDS]
    for model, outputs, capabilities in known[:_TRIED]:
        for output in outputs:
            try:
                return await try_model(
                    client, server, model, output, capabilities, deadline=deadline
                )
            except ConnectRefused as exc:
                problem = problem or exc
                if isinstance(exc, ExchangeFailed) and exc.kind == "timeout":
                    # Another model of a silent server is no news.
                    raise problem from None
                if not isinstance(exc, OperationRefused):
                    break
    if problem is not None:
        raise problem
    return None


# A server of one's own.


def _inspect_server(wish: ConnectWish, base_url: str, bundled: Collection[str]) -> Inspection:
    """Asks a server of one's own; a new one gets no name of the ``bundled`` providers."""
    rows = Provider.objects.filter(
        base_url__in=[base_url, f"{base_url}/v1"], dialect=DialectName.OPENAI
    )
    stored = rows.exclude(slug__in=bundled).first() or rows.first()
    secret = wish.secret or stored_secret(stored) or NO_SECRET
    reach = _reach_of(wish, stored)
    server, kind, models, test = asyncio.run(
        ask_server(wish, Server(base_url, "openai", secret, reach, wish.advice))
    )
    row = _find_row(server.base_url, kind, stored, bundled)
    known = {} if stored is None else _known_models(stored)
    added = [model for model in models if model.upstream_id not in known]
    slugs = name_new_models(row.slug, [model.upstream_id for model in added])
    priced = {model.upstream_id: _read_pricing(model) for model in added}
    made = [model for model in added if priced[model.upstream_id] is not None]
    notes = []
    if server.base_url != base_url:
        notes.append(f"The base URL is {server.base_url}: the server has its list there.")
    if lost := [model.upstream_id for model in added if priced[model.upstream_id] is None]:
        notes.append(f"Left out, because their prices cannot be read: {name_some(lost)}.")
    if any(model.pricing is None for model in made):
        notes.append("The models cost nothing until a price is set in the console.")
    return Inspection(
        slug=row.slug,
        catalog=imports.Catalog(
            [row],
            [make_model(model, slugs[model.upstream_id], row.name) for model in made],
            [
                EndpointRow(
                    model=slugs[model.upstream_id],
                    provider=row.slug,
                    upstream_model_id=model.upstream_id,
                    pricing=priced[model.upstream_id] or msgspec.convert(_FREE, Pricing),
                    context_length=model.context_length,
                )
                for model in made
            ],
        ),
        upstream_ids=[model.upstream_id for model in models],
        secret=server.secret,
        reach=server.reach,
        test=test,
        notes=notes,
    )


class AskedServer(NamedTuple):
    """A server as it can be called, its software, the wanted models, and the test of one."""

    server: Server
    kind: ServerKind
    models: list[ServedModel]
    test: TestResult | None


def ask_server(wish: ConnectWish, server: Server) -> Coroutine[Any, Any, AskedServer]:
    """Asks a server for its models and tries one; raises :class:`ConnectRefused`.

    The connection to the database is closed before the coroutine runs.
    """
    _release_database()
    return _ask_server(wish, server)


async def _ask_server(wish: ConnectWish, server: Server) -> AskedServer:
    base = read_url(server.base_url)
    reach = await judge(base, server.reach, wish.advice, allows=wish.allows)
    server = replace(server, reach=reach)
    async with EgressClient(settings.EGRESS_POLICY) as client:
        base_url, rows = await list_models(client, server, wants=wish.models)
        server = replace(server, base_url=base_url)
        models = _narrow(rows, wish)
        tries = [(each.upstream_id, each.likely_outputs, UNDESCRIBED) for each in models]
        test = await _try_some(client, server, tries)
    if test is not None:
        models = [
            each._replace(output=test.output) if each.upstream_id == test.model else each
            for each in models
        ]
    return AskedServer(server, recognize(rows, read_url(base_url).host), models, test)


def _narrow(rows: Sequence[dict[str, Any]], wish: ConnectWish) -> list[ServedModel]:
    """Returns the models that are wanted; raises :class:`ConnectRefused` if one is missing."""
    models = {row["id"]: read_model(row) for row in rows}
    if not models:
        raise ConnectRefused(
            "The server lists no models. Load one there first; for Ollama: ollama pull MODEL. If "
            f"it loads them when they are called, {wish.advice.models}."
        )
    for name in wish.models:
        if name not in models:
            raise ConnectRefused(
                f"The server has no model {name!r}. It has: {name_some(list(models))}."
            )
    return [models[name] for name in wish.models or models]


def name_some(names: Sequence[str]) -> str:
    """Returns the first names of a list, and the number of the others."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def name_new_models(provider: str, upstream_ids: Sequence[str]) -> dict[str, str]:
    """Returns slugs for new models of the catalogue.

    None is the public or the permanent slug of a model, which would be rewritten and served by
    them; not even of one that an operator took out.
    """
    start = f"{provider}/"
    is_named = Q(slug__startswith=start) | Q(canonical_slug__startswith=start)
    rows = LanguageModel.objects.filter(is_named).values_list("slug", "canonical_slug")
    return name_models(provider, upstream_ids, {slug for row in rows for slug in row})


def _known_models(provider: Provider) -> dict[str, str]:
    """Returns the slugs of a provider's models, also of those that an operator took out."""
    return dict(provider.endpoints.values_list("upstream_model_id", "model__slug"))


def _find_row(
    base_url: str, kind: ServerKind, stored: Provider | None, bundled: Collection[str]
) -> ProviderRow:
    """Returns the row of a provider: the stored one, or a new one.

    Under the name of a bundled provider, a server would later be sent the key of that one.
    """
    if stored is not None:
        row = provider_row(stored)
        row.base_url = base_url
        return row
    slugs = Provider.objects.filter(slug__startswith=kind.slug).values_list("slug", flat=True)
    return make_provider(kind, base_url, DialectName.OPENAI, {*slugs, *bundled})


def make_provider(
    kind: ServerKind, base_url: str, dialect: str, taken: Container[str]
) -> ProviderRow:
    """Returns the row of a new provider, under a slug that is free."""
    members = {
        "slug": next(name for name in number_names(kind.slug) if name not in taken),
        "name": f"{kind.name} at {urlsplit(base_url).netloc}",
        "dialect": dialect,
        "base_url": base_url,
        "data_policy": {"training": False, "retains_prompts": False},
    }
    return msgspec.convert(members, ProviderRow)


def make_model(model: ServedModel, slug: str, provider_name: str) -> ModelRow:
    """Returns the row of the catalogue for a model of a server."""
    name = model.upstream_id
    # llama.cpp's server names a file: its folders are no part of what callers read.
    name = name.rpartition("/")[2] or name if name.startswith("/") else name
    members = describe_model(
        slug,
        name=f"{name} ({provider_name})"[:255],
        created=clock.now().date(),
        inputs=list(model.inputs),
        outputs=[model.output],
        context_length=model.context_length,
    )
    return msgspec.convert(members, ModelRow)


def _read_pricing(model: ServedModel) -> Pricing | None:
    """Returns the price of a model: what the list says, else 0; ``None`` if unreadable.

    A price without the rates of prompt and completion has other names or units for them.
    """
    if model.pricing is None:
        return msgspec.convert(_FREE, Pricing)
    known = Pricing.__struct_fields__
    stated = {name: value for name, value in model.pricing.items() if name in known}
    try:
        pricing = msgspec.convert(stated, Pricing)
        price = read_price(pricing)
    except (msgspec.ValidationError, InvalidPricing):
        return None
    is_billed = price.bills_images or price.bills_completions or price.request
    # The price of a picture in the prompt is none of those that the model makes.
    return None if model.output == "image" and price.image and not is_billed else pricing


# A provider of the bundle.


def _inspect_provider(
    wish: ConnectWish, slug: str, bundle: Mapping[str, Any], typed: str = ""
) -> Inspection:
    """Tries a provider of the bundle; its rows are new where it has no endpoint already.

    ``typed`` is the base URL that a person gave instead of its name.
    """
    stored = Provider.objects.filter(slug=slug).first()
    secret = wish.secret or stored_secret(stored)
    if secret is None:
        raise ConnectRefused(f"The provider {slug} needs a key: {wish.advice.key}.")
    catalog = _select(slug, bundle, wish)
    dialect, base_url = catalog.providers[0].dialect, catalog.providers[0].base_url
    if stored is not None:
        dialect, base_url = stored.dialect, stored.base_url
    server = _make_server(dialect, base_url, secret, _reach_of(wish, stored), wish.advice)
    tries = _rank(server, catalog)
    _release_database()
    reach, test = asyncio.run(_judge_and_try(server, tries, allows=wish.allows))
    is_moved = typed not in ("", server.base_url)
    return Inspection(
        slug=slug,
        catalog=catalog if stored is None else _leave_known(catalog, stored),
        upstream_ids=[each.upstream_model_id for each in catalog.endpoints],
        secret=secret,
        reach=reach,
        test=test,
        notes=[f"The provider {slug} of the bundle is called at {server.base_url}."] * is_moved,
    )


def _leave_known(catalog: imports.Catalog, stored: Provider) -> imports.Catalog:
    """Returns the rows that are new: what is stored may be changed by an operator."""
    known = _known_models(stored)
    endpoints = [row for row in catalog.endpoints if row.upstream_model_id not in known]
    slugs = {row.model for row in endpoints}
    stored_models = LanguageModel.objects.filter(canonical_slug__in=slugs)
    slugs -= set(stored_models.values_list("canonical_slug", flat=True))
    models = [row for row in catalog.models if row.canonical_slug in slugs]
    return imports.Catalog([], models, endpoints)


def _rank(server: Server, catalog: imports.Catalog) -> list[Try]:
    """Returns what is tried of a provider: a chat first, which tells most, and what is cheap."""
    models = {model.canonical_slug: model for model in catalog.models}
    tries = []
    for row in sorted(catalog.endpoints, key=lambda row: price_of(row).completion):
        model = models[row.model]
        known = model.capabilities
        stated = assume_capabilities(row.model) if known is msgspec.UNSET else known
        capabilities = complete_capabilities(stated, row.model)
        outputs = tuple(model.architecture.output_modalities[:1])
        if not dialects.lacks_chat(server.dialect, capabilities):
            tries.append((row.upstream_model_id, outputs, capabilities))
    # The sort keeps the order of the prices.
    return sorted(tries, key=lambda each: each[1] != ("text",))


def _select(slug: str, bundle: Mapping[str, Any], wish: ConnectWish) -> imports.Catalog:
    """Returns the rows of a provider in the bundle, with the wanted models alone."""
    names = {row["canonical_slug"]: row["id"] for row in bundle["models"]}
    named = [
        (row, {row["model"], names[row["model"]], row["upstream_model_id"]})
        for row in bundle["endpoints"]
        if row["provider"] == slug
    ]
    for name in wish.models:
        if not any(name in told for _, told in named):
            known = sorted(names[row["model"]] for row, _ in named)
            raise ConnectRefused(
                f"The bundle has no model {name!r} of {slug}. It has: {name_some(known)}."
            )
    wanted = wish.models
    endpoints = [row for row, told in named if not wanted or not told.isdisjoint(wanted)]
    kept = {row["model"] for row in endpoints}
    rows = {
        "about": bundle["about"],
        "providers": [row for row in bundle["providers"] if row["slug"] == slug],
        "models": [row for row in bundle["models"] if row["canonical_slug"] in kept],
        "endpoints": endpoints,
    }
    return imports.parse(json.dumps(rows).encode())
