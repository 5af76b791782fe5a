"""Connects a server to one organization: a private provider with a private endpoint for each model.

Everything is asked before anything is stored. What was stored is removed again when the validation
of an endpoint fails, because no transaction waits for a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from accounts.models import ByokCredential, CredentialNotFound, Organization, Workspace
from catalog import imports
from catalog.connecting.asking import Advice, ConnectRefused, Server, read_url
from catalog.connecting.connect import (
    ConnectWish,
    Inspection,
    StoredConnection,
    ask_server,
    inspect,
    make_model,
    name_new_models,
    name_some,
    read_wished_authorities,
    store,
)
from catalog.connecting.servers import ServedModel, ServerKind, name_models, number_names
from catalog.models import LanguageModel, Provider
from catalog.pricing import Price
from config.api.errors import GatewayError
from config.bulk.problems import ImportRefused
from config.credentials import NO_SECRET, Secret
from config.egress import Reach
from config.secrets import DecryptionFailed
from endpoints import validation
from endpoints.models import (
    Draft,
    EndpointNotFound,
    NewModel,
    PrivateEndpoint,
    PrivateProvider,
    Validation,
    remove_own_model,
)
from endpoints.validation import Asker

_LONGEST_NAME: Final = 255
_FREE: Final = Price(prompt=Decimal(0), completion=Decimal(0))
_PLAIN: Final = (
    "A private endpoint is called by https:// alone. Give the server TLS, for instance behind "
    "Caddy or nginx, and connect its https:// URL; for an authority of your own, {0.authorities}. "
    "Or {0.catalogue}: a provider of the catalogue may be called by http:// in a network that you "
    "allow, and its models are there for every organization."
)
_NEW: Final = "New in the catalogue, where others see the name, without a public endpoint: {}."
_OFF: Final = (
    "Disabled, and left so: {}. To use them, enable their private endpoints in the console or with "
    "POST /private-endpoints/{{id}}/enable."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnInspection(Inspection):
    """What was found and tried for an organization.

    ``slugs`` are the permanent slugs of the models, by their upstream names. ``own`` are the names
    of those that become the organization's own, and ``catalog`` has the other new ones. The
    endpoints are validated in ``workspace``. ``allowed`` are networks that the organization lacks,
    and ``authorities``, in PEM, those that were given. ``has_key`` says that a key was given.
    """

    organization: Organization
    workspace: Workspace
    provider: PrivateProvider | None
    base_url: str
    name: str
    slugs: Mapping[str, str]
    own: Collection[str]
    allowed: Sequence[str]
    authorities: str
    advice: Advice
    by: str
    has_key: bool

    @property
    def networks(self) -> Sequence[str]:
        """The networks that the organization gets."""
        return self.allowed


def connect(
    wish: ConnectWish,
    organization_id: UUID | None,
    *,
    dry_run: bool = False,
    asker: Asker | None = None,
) -> tuple[Inspection, StoredConnection]:
    """Connects what is wished to the catalogue, or to one organization.

    The ``asker`` is judged after each wait for the server; without one, as on the command line,
    everything is allowed.

    Raises :class:`ConnectRefused`, :class:`ImportRefused`, and what the ``asker`` raises.
    """
    own = None if organization_id is None else inspect_for(organization_id, wish)
    found = inspect(wish) if own is None else own
    if asker is not None:
        asker.judge()
    if own is None:
        return found, store(found, dry_run=dry_run)
    return own, store_for(own, dry_run=dry_run, asker=asker)


def inspect_for(organization_id: UUID, wish: ConnectWish) -> OwnInspection:
    """Asks for the models and tries one of them; raises :class:`ConnectRefused`."""
    organization = Organization.objects.filter(pk=organization_id).first()
    if organization is None:
        raise ConnectRefused(f"There is no organization {organization_id}.")
    if not any(mark in wish.target for mark in ".:/"):
        raise ConnectRefused(
            f"A server is connected to an organization by its URL, and {wish.target!r} is none. "
            "The organization's own key of a provider is stored with POST /byok."
        )
    base = read_url(wish.target)
    plain = _PLAIN.format(wish.advice)
    if base.scheme != "https":
        raise ConnectRefused(plain)
    workspace = _find_workspace(organization)
    provider = _find_provider(organization, base.text)
    before = organization.reach
    authorities = read_wished_authorities(wish)
    reach = Reach(before.networks, _join(before.authorities, authorities))
    secret = wish.secret or _find_secret(workspace, provider, base.host, wish.advice)
    asked = Server(base.text, "openai", secret, reach, wish.advice, plain)
    server, kind, models, test = asyncio.run(ask_server(wish, asked))
    models, off = _leave_disabled(provider, server.base_url, models, wish)
    names = [model.upstream_id for model in models]
    slug = _free_slug(organization, kind) if provider is None else provider.slug
    slugs = _find_models(provider, names)
    missing = [model for model in models if model.upstream_id not in slugs]
    # A model of text is the organization's own, which nobody else sees.
    texts = [model.upstream_id for model in missing if model.output == "text"]
    named, own = _name_own(organization, provider, texts)
    others = [model for model in missing if model.output != "text"]
    made = name_new_models(slug, [model.upstream_id for model in others])
    told = {_NEW: list(made.values()), _OFF: off}
    place = server.base_url.removeprefix("https://").partition("/")[0]
    name = f"{kind.name} at {place}"
    return OwnInspection(
        slug=slug,
        catalog=imports.Catalog(
            [], [make_model(model, made[model.upstream_id], kind.name) for model in others], []
        ),
        upstream_ids=names,
        secret=server.secret,
        reach=server.reach,
        test=test,
        notes=[note.format(name_some(some)) for note, some in told.items() if some],
        organization=organization,
        workspace=workspace,
        provider=provider,
        base_url=server.base_url,
        name=name,
        slugs={**slugs, **named, **made},
        own=own,
        allowed=[str(each) for each in server.reach.networks if each not in before.networks],
        authorities=authorities,
        advice=wish.advice,
        by=wish.by,
        has_key=wish.secret is not None,
    )


def store_for(
    found: OwnInspection, *, dry_run: bool = False, asker: Asker | None = None
) -> StoredConnection:
    """Stores what was found, validates each new endpoint live and activates all, or none.

    Raises :class:`ConnectRefused`; then, and after an interrupt, everything that was stored is
    removed again.
    """
    if dry_run:
        slugs = [found.slugs[name] for name in found.upstream_ids]
        return StoredConnection(found.slug, slugs, [], None)
    made = _Made()
    try:
        with transaction.atomic():
            stored = _store(found)
        made = stored
        drafts = [*made.waiting, *made.drafts]
        for endpoint in (*made.unproven, *drafts):
            _validate(endpoint, found.workspace, found.advice, asker)
        with transaction.atomic():
            for endpoint in drafts:
                endpoint.activate(by=found.by)
            for endpoint in made.unproven:
                endpoint.enable(by=found.by)
    except BaseException as exc:
        # Nothing stays after an interrupt either.
        _remove(found, made)
        if isinstance(exc, GatewayError | ImportRefused):
            raise ConnectRefused(str(exc)) from None
        raise
    endpoints = list(_endpoints_of(found).filter(status=PrivateEndpoint.Status.ACTIVE))
    tested = None if found.test is None else found.test.model
    return StoredConnection(
        found.slug,
        [endpoint.model.slug for endpoint in endpoints],
        [endpoint.pk for endpoint in endpoints],
        next((each.model.slug for each in endpoints if each.upstream_model_id == tested), None),
    )


@dataclass(slots=True)
class _Made:
    """What a connection has stored, so that it can be removed again.

    ``networks`` and ``authorities`` are those that the organization lacked. ``waiting`` are drafts
    that were there: a connection that was killed has left them. ``unproven`` are disabled endpoints
    whose provider has changed since their validation. ``keyed`` is a provider that was there and
    was called without a key, and ``proven`` are its disabled endpoints, each with its validation
    and its configuration.
    """

    networks: Sequence[str] = ()
    authorities: str = ""
    provider: PrivateProvider | None = None
    keyed: PrivateProvider | None = None
    proven: Sequence[tuple[PrivateEndpoint, Validation, str]] = ()
    credential: ByokCredential | None = None
    rotated: tuple[ByokCredential, Secret] | None = None
    drafts: list[PrivateEndpoint] = field(default_factory=list)
    waiting: Sequence[PrivateEndpoint] = ()
    unproven: Sequence[PrivateEndpoint] = ()
    models: list[LanguageModel] = field(default_factory=list)


def _store(found: OwnInspection) -> _Made:
    """Stores the reach, the new models, the provider, its credential and the drafts."""
    organization = found.organization
    made = _Made()
    provider = found.provider
    if provider is not None and provider.is_keyless:
        # Endpoints are locked before their organization.
        made.proven = _lock_proven(provider)
    _widen_reach(found, made)
    if found.catalog.models:
        # An empty one would lock every row of the catalogue too.
        imports.apply(found.catalog)
    if provider is None:
        provider = made.provider = PrivateProvider.objects.create_provider(
            organization_id=organization.pk,
            name=found.slug,
            base_url=found.base_url,
            display_name=found.name,
            is_keyless=found.secret == NO_SECRET,
        )
    if found.has_key:
        if provider.is_keyless:
            provider.edit(is_keyless=False)
            made.keyed = provider
        _store_key(found, provider, made)
    known = _find_present(_endpoints_of(found), found.base_url)
    made.waiting = [each for each in known.values() if each.status == PrivateEndpoint.Status.DRAFT]
    made.unproven = [each for each in known.values() if _is_disabled(each, is_proven=False)]
    models = LanguageModel.objects.owned_by(organization.pk)
    present = list(models.values_list("pk", flat=True))
    made.drafts = PrivateEndpoint.objects.create_drafts(
        organization_id=organization.pk,
        drafts=[
            Draft(
                model_permaslug=found.slugs[name],
                provider_slug=provider.slug,
                upstream_model_id=name,
                base_url=None,
                price=_FREE,
                model=NewModel(name[:_LONGEST_NAME]) if name in found.own else None,
            )
            for name in found.upstream_ids
            if name not in known
        ],
        by=found.by,
    )
    made.models = list(models.exclude(pk__in=present))
    return made


def _widen_reach(found: OwnInspection, made: _Made) -> None:
    """Allows the organization what the server needs, beside what others allow it meanwhile."""
    organization = Organization.objects.lock(found.organization.pk)
    present = {str(each) for each in organization.reach.networks}
    made.networks = [each for each in found.allowed if each not in present]
    if found.authorities not in organization.ca_certificates:
        made.authorities = found.authorities
    if made.networks or made.authorities:
        organization.edit(
            allowed_networks=[*(organization.allowed_networks or ()), *made.networks] or None,
            ca_certificates=_join(organization.ca_certificates, made.authorities),
        )


def _narrow_reach(found: OwnInspection, made: _Made) -> None:
    """Takes from the organization what :func:`_widen_reach` has added."""
    if not made.networks and not made.authorities:
        return
    with transaction.atomic():
        organization = Organization.objects.lock(found.organization.pk)
        networks = organization.allowed_networks or ()
        kept = organization.ca_certificates
        if made.authorities:
            kept = f"\n{kept}".replace(f"\n{made.authorities}", "", 1).removeprefix("\n")
        organization.edit(
            allowed_networks=[each for each in networks if each not in made.networks] or None,
            ca_certificates=kept,
        )


def _join(known: str, given: str) -> str:
    """Returns the authorities that are known, with the given ones if they are not among them."""
    return known if given in known else "\n".join(filter(None, (known, given)))


def _store_key(found: OwnInspection, provider: PrivateProvider, made: _Made) -> None:
    """Stores the key that was given, unless requests to the server use it already.

    It replaces the key that they use for all models if there is one such key, and joins several.
    """
    host = read_url(found.base_url).host
    judged = _judge_credentials(found.workspace, provider, host)
    usable = [credential for credential, refusal in judged if refusal is None]
    if any(_reveal(each) == found.secret for each in usable):
        return
    whole = [each for each in usable if each.allowed_models is None]
    if len(whole) == 1:
        made.rotated = whole[0], _reveal(whole[0])
        whole[0].rotate(found.secret)
        return
    made.credential = ByokCredential.objects.create_credential(
        organization=found.organization,
        workspace=None,
        provider_slug=provider.slug,
        secret=found.secret,
    )


def _validate(
    endpoint: PrivateEndpoint, workspace: Workspace, advice: Advice, asker: Asker | None
) -> None:
    """Validates an endpoint by live calls; raises :class:`ConnectRefused` with the failed check."""
    again = endpoint.status == PrivateEndpoint.Status.DISABLED
    result = validation.run(endpoint, workspace_id=workspace.pk, asker=asker, again=again)
    failed = next((check for check in result.checks if not check["passed"]), None)
    if failed is None:
        return
    said = failed.get("upstream_message", "").removesuffix(".")
    raise ConnectRefused(
        f"The model {endpoint.upstream_model_id!r} did not pass its validation: {failed['name']} "
        f"({failed['reason']}){said and f', {said}'}. Nothing was connected. "
        f"{advice.narrow}, or repair the server."
    )


def _remove(found: OwnInspection, made: _Made) -> None:
    """Removes what a failed connection has stored."""
    for endpoint in made.drafts:
        endpoint.remove(draft_only=True, by=found.by)
    for endpoint in made.unproven:
        with suppress(EndpointNotFound):
            endpoint.forget_validation()
    if made.credential is not None:
        made.credential.remove()
    if made.rotated is not None and made.rotated[1] != NO_SECRET:
        credential, former = made.rotated
        with suppress(CredentialNotFound), transaction.atomic():
            credential.lock_present()
            # Another one may have replaced it meanwhile.
            if credential.reveal_or_none() == found.secret:
                credential.rotate(former)
    if made.keyed is not None:
        with transaction.atomic():
            made.keyed.edit(is_keyless=True)
            for endpoint, proof, configuration in made.proven:
                endpoint.recall_validation(proof, configuration)
    if made.provider is not None:
        made.provider.remove()
    for model in made.models:
        remove_own_model(model)
    if made.drafts:
        names = [row.canonical_slug for row in found.catalog.models]
        for model in LanguageModel.objects.filter(canonical_slug__in=names):
            # The next connection gets the same names.
            model.is_listed, model.slug, model.canonical_slug = (
                False,
                f"~{model.pk}",
                f"~{model.pk}",
            )
            model.save_fields("is_listed", "slug", "canonical_slug")
    _narrow_reach(found, made)


def _lock_proven(provider: PrivateProvider) -> list[tuple[PrivateEndpoint, Validation, str]]:
    """Locks the endpoints of a provider that may change, and returns those of ``_Made.proven``."""
    status = PrivateEndpoint.Status
    rows = PrivateEndpoint.objects.for_organization(provider.organization_id)
    rows = rows.filter(private_provider=provider).exclude(status=status.ACTIVE)
    return [
        (each, each.validation, each.configuration)
        for each in rows.lock_in_order()
        if each.status == status.DISABLED and each.validation is not None
    ]


def _find_provider(organization: Organization, base_url: str) -> PrivateProvider | None:
    rows = PrivateProvider.objects.for_organization(organization.pk)
    return rows.filter(base_url__in=[base_url, f"{base_url}/v1"]).first()


def _find_workspace(organization: Organization) -> Workspace:
    """Returns the default workspace, or the oldest one; raises :class:`ConnectRefused`."""
    rows = Workspace.objects.for_organization(organization.pk)
    workspace: Workspace | None = rows.order_by("-is_default", "created_at").first()
    if workspace is None:
        raise ConnectRefused(
            "The organization has no workspace to validate its endpoints in. Make one first."
        )
    return workspace


def _judge_credentials(
    workspace: Workspace, provider: PrivateProvider, host: str
) -> list[tuple[ByokCredential, str | None]]:
    """Returns the usable credentials in order, each with why it may not go to the host, if so."""
    rows = ByokCredential.objects.usable_in(workspace, provider.slug)
    return [(each, each.host_limits(provider.own_hosts()).refusal(host)) for each in rows]


def _find_secret(
    workspace: Workspace, provider: PrivateProvider | None, host: str, advice: Advice
) -> Secret:
    """Returns the secret that requests send to the host; ``NO_SECRET`` if they send none.

    Raises :class:`ConnectRefused` if none of the credentials may go there.
    """
    if provider is None or provider.is_keyless:
        return NO_SECRET
    judged = _judge_credentials(workspace, provider, host)
    for credential, refusal in judged:
        if refusal is None:
            return _reveal(credential)
    if judged:
        raise ConnectRefused(f"{judged[0][1]} Or {advice.key}.")
    return NO_SECRET


def _reveal(credential: ByokCredential) -> Secret:
    """Returns the secret; ``NO_SECRET`` if no key of the service opens it any more."""
    try:
        return credential.reveal()
    except DecryptionFailed:
        return NO_SECRET


def _endpoints_of(found: OwnInspection) -> Any:
    """Returns the endpoints of the connected models."""
    return (
        PrivateEndpoint.objects.for_organization(found.organization.pk)
        .filter(private_provider__slug=found.slug, upstream_model_id__in=found.upstream_ids)
        .select_related("model")
        .order_by("model__slug", "created_at")
    )


def _find_present(endpoints: Any, base_url: str) -> dict[str, PrivateEndpoint]:
    """Returns the endpoint that each model has: an active one, a disabled one, or else a draft."""
    active = PrivateEndpoint.Status.ACTIVE
    rows = endpoints.order_by("activated_at", "created_at")
    first: dict[str, PrivateEndpoint] = {}
    for endpoint in sorted(rows, key=lambda each: each.status != active):
        # One with an address of its own is at another server.
        if endpoint.status == active or endpoint.base_url in (None, base_url):
            first.setdefault(endpoint.upstream_model_id, endpoint)
    return first


def _is_disabled(endpoint: PrivateEndpoint, *, is_proven: bool) -> bool:
    is_disabled = endpoint.status == PrivateEndpoint.Status.DISABLED
    return is_disabled and (endpoint.validation_id is not None) == is_proven


def _leave_disabled(
    provider: PrivateProvider | None, base_url: str, models: list[ServedModel], wish: ConnectWish
) -> tuple[list[ServedModel], list[str]]:
    """Returns the models to connect, and the slugs of those whose endpoint stays disabled.

    An endpoint that could be enabled as it is stays as its owner left it. If its provider has
    changed since its validation, or gets its first key now, it is connected again. Raises
    :class:`ConnectRefused` if no model is left.
    """
    if provider is None or (provider.is_keyless and wish.secret is not None):
        return models, []
    rows = provider.endpoints.filter(deleted_at=None).select_related("model")
    present = _find_present(rows, base_url)
    off = {name: each for name, each in present.items() if _is_disabled(each, is_proven=True)}
    wanted = [model for model in models if model.upstream_id not in off]
    left = [off[model.upstream_id].model.slug for model in models if model.upstream_id in off]
    if not wanted:
        text = _OFF.format(name_some(left))
        if wish.secret is not None:
            text += " The key was not stored; replace the former one with PATCH /byok/{id} first."
        raise ConnectRefused(text)
    return wanted, left


def _free_slug(organization: Organization, kind: ServerKind) -> str:
    """Returns a name for a provider that neither the catalogue nor the organization has."""
    own = PrivateProvider.objects.for_organization(organization.pk)
    for slug in number_names(kind.slug):
        clash = Q(slug__iexact=slug) | Q(name__iexact=slug)
        if not (Provider.objects.filter(clash).exists() or own.filter(clash).exists()):
            return slug
    raise AssertionError("the numbers do not end")


def _name_own(
    organization: Organization, provider: PrivateProvider | None, names: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Returns slugs for the organization's own models, and the names of those that are new.

    Another server may serve a model that the organization has; one server has each model once.
    """
    models = LanguageModel.objects.owned_by(organization.pk)
    stored = {slug.lower(): slug for slug in models.values_list("slug", flat=True)}
    used: set[str] = set()
    if provider is not None:
        rows = provider.endpoints.filter(deleted_at=None).values_list("model__slug", flat=True)
        used.update(slug.lower() for slug in rows)
    slugs = name_models(organization.slug, names, used)
    return (
        {name: stored.get(slug.lower(), slug) for name, slug in slugs.items()},
        [name for name, slug in slugs.items() if slug.lower() not in stored],
    )


def _find_models(provider: PrivateProvider | None, names: Sequence[str]) -> dict[str, str]:
    """Returns the permanent slugs of the models that the catalogue has by these names.

    A model that was connected before keeps its slug.
    """
    listed = LanguageModel.objects.listed().filter(Q(slug__in=names) | Q(canonical_slug__in=names))
    slugs: dict[str, str] = {}
    for slug, permaslug in listed.values_list("slug", "canonical_slug"):
        slugs |= {slug: permaslug, permaslug: permaslug}
    found = {name: slugs[name] for name in names if name in slugs}
    if provider is not None:
        rows = provider.endpoints.filter(deleted_at=None, upstream_model_id__in=names)
        found |= dict(rows.values_list("upstream_model_id", "model__canonical_slug"))
    return found
