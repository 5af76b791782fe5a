"""Private endpoints: an organization's own deployments, from draft through live validation to use.

Every arrow of the life cycle is one method here, and ``status`` is written nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final, Self

from django.conf import settings
from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone

from accounts.models import ByokCredential, Organization, Region, Workspace
from catalog.models import Dialect, LanguageModel, ModelEndpoint, PriceVersion, Provider
from catalog.names import ModelNotFound
from catalog.pricing import Price, decimal_text, proportional
from config.api.errors import GatewayError, InvalidTransition, NotFound, Unprocessable
from config.egress.addresses import InvalidURL, parse_base_url
from config.models import BaseModel, StatefulModel
from config.server import logs

# What a rate must be below, for its column.
_RATE_BOUND: Final = 1_000_000


class InvalidBaseURL(Unprocessable):
    """The ``base_url`` is missing, forbidden, or not one that may ever be dialled."""

    error_type = "invalid_base_url"


class EndpointLimitReached(Unprocessable):
    error_type = "endpoint_limit_reached"


class IdempotencyKeyReused(Unprocessable):
    """The key was used before, for a request that asked for something else."""

    error_type = "idempotency_key_reused"
    message = "idempotency_key_reused: this Idempotency-Key was used with a different request."


class ProviderNotFound(NotFound):
    error_type = "provider_not_found"


class EndpointNotFound(NotFound):
    error_type = "endpoint_not_found"
    message = "The private endpoint does not exist."


class NotValidated(InvalidTransition):
    error_type = "not_validated"
    message = "The endpoint has no passed validation: call validate first."


class ValidationStale(InvalidTransition):
    error_type = "validation_stale"
    message = "The validation no longer speaks of the endpoint as it is: call validate again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a draft is made of. ``base_url`` is canonical; no ``price`` means the list price."""

    model_permaslug: str
    provider_slug: str
    upstream_model_id: str
    base_url: str | None
    declared_region: str | None = None
    declared_zdr: bool | None = None
    price: Price | None = None

    @property
    def fingerprint(self) -> str:
        """A digest of the whole request; the same digest, the same request."""
        return _digest(
            self.model_permaslug,
            self.provider_slug,
            self.base_url,
            self.upstream_model_id,
            self.declared_zdr,
            self.declared_region,
            _price_text(self.price),
        )


class PrivateEndpointQuerySet(models.QuerySet["PrivateEndpoint"]):
    def for_organization(self, organization_id: uuid.UUID) -> Self:
        """Returns what the organization can see: its endpoints that were not deleted."""
        return self.filter(organization_id=organization_id, deleted_at=None)

    def routable(self) -> Self:
        return self.filter(status=PrivateEndpoint.Status.ACTIVE, deleted_at=None)


class PrivateEndpointManager(models.Manager.from_queryset(PrivateEndpointQuerySet)):  # type: ignore[misc]
    def create_draft(
        self,
        *,
        organization_id: uuid.UUID,
        model_permaslug: str,
        provider_slug: str,
        upstream_model_id: str,
        base_url: str | None,
        declared_region: str | None = None,
        declared_zdr: bool | None = None,
        price: Price | None = None,
        idempotency_key: str | None = None,
        by: str = "",
    ) -> tuple[PrivateEndpoint, bool]:
        """(none) → DRAFT. Returns the endpoint and whether this call created it.

        A repeated ``idempotency_key`` returns the endpoint that its first request created, as it is
        now. Creates of one organization take turns on its row, so the key and the limit are each
        decided once. Without a ``price`` the public list price applies; a cache rate that a price
        leaves out is to its prompt rate as the provider's public one is.

        Raises :class:`InvalidBaseURL`, :class:`ModelNotFound`, :class:`ProviderNotFound`,
        :class:`EndpointLimitReached`, :class:`IdempotencyKeyReused`, :class:`Unprocessable` for a
        cache rate beyond all bounds, and :class:`NotFound` when the key's endpoint was deleted;
        each leaves everything as it was.
        """
        draft = Draft(
            model_permaslug=model_permaslug,
            provider_slug=provider_slug,
            upstream_model_id=upstream_model_id,
            base_url=canonical_base_url(base_url),
            declared_region=declared_region,
            declared_zdr=declared_zdr,
            price=price,
        )
        with transaction.atomic():
            organization = Organization.objects.lock(organization_id)
            if idempotency_key is not None:
                first = self.filter(
                    organization=organization, idempotency_key=idempotency_key
                ).first()
                if first is not None:
                    return first.replayed(draft.fingerprint), False
            [endpoint] = self._store(
                organization,
                [draft],
                by=by,
                idempotency_key=idempotency_key,
                derives_cache_rates=True,
            )
        return endpoint, True

    def create_drafts(
        self, *, organization_id: uuid.UUID, drafts: Sequence[Draft], by: str = ""
    ) -> list[PrivateEndpoint]:
        """(none) → DRAFT, all or none, with a few statements for any number of them.

        Prices are taken as they stand, so that the same file finds them unchanged.
        Raises what :meth:`create_draft` raises without a key, of the first draft that is refused.
        """
        with transaction.atomic():
            return self._store(Organization.objects.lock(organization_id), drafts, by=by)

    def require_room(self, organization: Organization, wanted: int) -> None:
        """Raises :class:`EndpointLimitReached` unless so many more endpoints fit."""
        limit = organization.private_endpoint_limit
        present = self.for_organization(organization.pk).count()
        if present + wanted <= limit:
            return
        if wanted == 1:
            raise EndpointLimitReached(
                f"endpoint_limit_reached: the organization has {limit} private endpoints, "
                "which is its limit. Delete one first."
            )
        raise EndpointLimitReached(
            f"endpoint_limit_reached: the organization has {present} of {limit} private "
            f"endpoints; {wanted} more do not fit."
        )

    def refusals(self, drafts: Sequence[Draft]) -> list[GatewayError | None]:
        """Returns for each draft why the catalogue does not let it be created, if so."""
        return [found if isinstance(found, GatewayError) else None for found in _references(drafts)]

    def _store(
        self,
        organization: Organization,
        drafts: Sequence[Draft],
        *,
        by: str,
        idempotency_key: str | None = None,
        derives_cache_rates: bool = False,
    ) -> list[PrivateEndpoint]:
        """Stores drafts with their prices and declarations, under the lock of the organization."""
        endpoints = []
        attestations = []
        public = _public_endpoints(
            draft.model_permaslug for draft in drafts if draft.price is None or derives_cache_rates
        )
        for draft, found in zip(drafts, _references(drafts), strict=True):
            if isinstance(found, GatewayError):
                raise found
            model, provider = found
            endpoint = PrivateEndpoint(
                organization=organization,
                model=model,
                provider=provider,
                provider_name=provider.name,
                upstream_model_id=draft.upstream_model_id,
                base_url=draft.base_url,
                declared_region=draft.declared_region,
                declared_zdr=draft.declared_zdr,
                idempotency_key=idempotency_key,
                request_fingerprint=draft.fingerprint,
            )
            price = draft.price
            if price is None:
                price = list_price(public[model.canonical_slug], provider)
            elif derives_cache_rates:
                price = with_cache_rates(price, public[model.canonical_slug], provider)
            endpoint.price = PriceVersion.of(subject_id=endpoint.pk, price=price)
            endpoint.attestation = endpoint.new_attestation(by=by)
            if endpoint.attestation is not None:
                attestations.append(endpoint.attestation)
            endpoints.append(endpoint)
        self.require_room(organization, len(drafts))
        # The foreign keys between the two are judged at commit, so neither has to be written twice.
        PriceVersion.objects.bulk_create(endpoint.price for endpoint in endpoints)
        Attestation.objects.bulk_create(attestations)
        self.bulk_create(endpoints)
        return endpoints


class PrivateEndpoint(StatefulModel):
    """A deployment that an organization registered for itself.

    A deleted endpoint keeps its row, so that its idempotency key and its generations stay true.
    """

    class Status(models.TextChoices):
        DRAFT = "draft", "draft"
        ACTIVE = "active", "active"
        DISABLED = "disabled", "disabled"

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="private_endpoints"
    )
    status = models.CharField(max_length=16, choices=Status, default=Status.DRAFT, editable=False)
    model = models.ForeignKey(LanguageModel, on_delete=models.PROTECT, related_name="+")
    provider = models.ForeignKey(Provider, on_delete=models.PROTECT, related_name="+")
    provider_name = models.CharField(max_length=255, editable=False)
    upstream_model_id = models.CharField(max_length=255)
    base_url = models.CharField(max_length=2048, null=True, blank=True)
    declared_region = models.CharField(max_length=16, choices=Region, null=True, blank=True)
    declared_zdr = models.BooleanField("declared ZDR", null=True, blank=True)
    price = models.ForeignKey(
        PriceVersion, on_delete=models.PROTECT, related_name="+", editable=False
    )
    validation = models.ForeignKey(
        "Validation",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        editable=False,
        related_name="+",
        help_text="The latest one that speaks of the endpoint as it is.",
    )
    attestation = models.ForeignKey(
        "Attestation",
        on_delete=models.PROTECT,
        null=True,
        editable=False,
        related_name="+",
        help_text="The declaration in force.",
    )
    idempotency_key = models.CharField(max_length=255, null=True, editable=False)
    request_fingerprint = models.CharField(max_length=64, editable=False)
    activated_at = models.DateTimeField(null=True, editable=False)
    activated_by = models.CharField(max_length=255, default="", editable=False)
    disabled_at = models.DateTimeField(null=True, editable=False)
    disabled_by = models.CharField(max_length=255, default="", editable=False)
    disabled_reason = models.CharField(max_length=255, default="", editable=False)
    deleted_at = models.DateTimeField(null=True, editable=False)
    deleted_by = models.CharField(max_length=255, default="", editable=False)
    watched_at = models.DateTimeField(
        null=True, editable=False, help_text="When the deployment was last validated again."
    )
    drifted_at = models.DateTimeField(
        null=True, editable=False, help_text="Since when it is not what was activated."
    )

    objects = PrivateEndpointManager()

    class Meta:
        verbose_name = "private endpoint"
        ordering = ("created_at", "id")
        indexes = [
            models.Index(
                fields=("organization", "created_at"),
                condition=Q(deleted_at=None),
                name="private_endpoint_list",
            ),
            models.Index(
                fields=("created_at", "id"),
                condition=Q(deleted_at=None),
                name="private_endpoint_latest",
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=("organization", "idempotency_key"), name="private_endpoint_idempotency"
            ),
            models.CheckConstraint(
                condition=Q(status="draft", activated_at=None)
                | Q(status__in=("active", "disabled"), activated_at__isnull=False),
                name="private_endpoint_activation_stamp",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model.name} at {self.provider_name}"

    @property
    def model_permaslug(self) -> str:
        return self.model.canonical_slug

    @property
    def model_slug(self) -> str | None:
        return self.model.slug if self.model.is_listed else None

    @property
    def model_name(self) -> str | None:
        return self.model.name if self.model.is_listed else None

    @property
    def provider_slug(self) -> str | None:
        return self.provider.slug if self.provider.is_listed else None

    @property
    def configuration(self) -> str:
        """A digest of all that a validation speaks of; the same digest, the same deployment."""
        return _digest(
            str(self.model_id),
            self.model.updated_at.isoformat(),
            str(self.provider_id),
            self.provider.dialect,
            self.base_url,
            self.upstream_model_id,
        )

    def replayed(self, fingerprint: str) -> Self:
        """Answers a repeated create: this endpoint, when the request asks for the same."""
        if self.request_fingerprint != fingerprint:
            raise IdempotencyKeyReused
        if self.deleted_at is not None:
            raise NotFound("The endpoint that this Idempotency-Key created was deleted.")
        return self

    def record_validation(self, validation: Validation) -> None:
        """DRAFT → DRAFT. Stores a validation; it becomes the current one if nothing moved since."""
        with transaction.atomic():
            self.lock_present()
            validation.save(force_insert=True)
            if self.status == self.Status.DRAFT and validation.configuration == self.configuration:
                self.validation = validation
                self.save_fields("validation")

    def activate(self, *, by: str = "") -> None:
        """DRAFT → ACTIVE, by a passed validation of the endpoint as it is now.

        Raises :class:`InvalidTransition` from another state, :class:`NotValidated`, and
        :class:`ValidationStale` when the configuration, the credential or the catalogue model
        changed since, or the validation is older than ``VALIDATION_MAX_AGE``.
        """
        with transaction.atomic():
            self.lock_present()
            self.require_status(self.Status.DRAFT)
            if self.validation is None or not self.validation.passed:
                raise NotValidated
            if not self.validation.is_current_for(self):
                raise ValidationStale
            self.status = self.Status.ACTIVE
            self.activated_at, self.activated_by = timezone.now(), by
            self.save_fields("status", "activated_at", "activated_by")

    def disable(self, *, by: str = "", reason: str = "") -> None:
        """ACTIVE → DISABLED. Nothing is routed to it from the next request on."""
        with transaction.atomic():
            self.lock_present()
            self.require_status(self.Status.ACTIVE)
            self.status = self.Status.DISABLED
            self.disabled_at, self.disabled_by = timezone.now(), by
            self.disabled_reason = reason[:255]
            self.save_fields("status", "disabled_at", "disabled_by", "disabled_reason")

    def enable(self, *, by: str = "") -> None:
        """DISABLED → ACTIVE."""
        with transaction.atomic():
            self.lock_present()
            self.require_status(self.Status.DISABLED)
            self.status = self.Status.ACTIVE
            self.activated_by = by
            self.disabled_at, self.disabled_by, self.disabled_reason = None, "", ""
            self.save_fields(
                "status", "activated_by", "disabled_at", "disabled_by", "disabled_reason"
            )

    def edit(self, *, upstream_model_id: str, by: str = "", **changes: Any) -> None:
        """DRAFT → DRAFT. Replaces the upstream configuration; any change clears the validation.

        ``changes`` may have ``base_url``, ``declared_region`` and ``declared_zdr``; a declaration
        that is not sent stays while the upstream stays the same, and is cleared when it changes.
        An edit that changes nothing changes nothing.
        """
        with transaction.atomic():
            self.lock_present()
            self.require_status(self.Status.DRAFT)
            base_url = self.base_url
            if "base_url" in changes:
                base_url = canonical_base_url(changes["base_url"])
                require_base_url(base_url, self.provider)
            moved = (upstream_model_id, base_url) != (self.upstream_model_id, self.base_url)
            region = changes.get("declared_region", None if moved else self.declared_region)
            zdr = changes.get("declared_zdr", None if moved else self.declared_zdr)
            if not moved and (region, zdr) == (self.declared_region, self.declared_zdr):
                return
            self.upstream_model_id, self.base_url = upstream_model_id, base_url
            self.declared_region, self.declared_zdr = region, zdr
            self.validation = None
            self.save_fields(
                "upstream_model_id", "base_url", "declared_region", "declared_zdr", "validation"
            )
            self.attest(by=by)

    def reprice(self, price: Price) -> None:
        """Any state, unchanged. Puts a new price in force for later requests."""
        with transaction.atomic():
            self.lock_present()
            version = PriceVersion.of(subject_id=self.pk, price=price)
            version.save()
            self.price = version
            self.save_fields("price")

    def remove(self, *, draft_only: bool = False, by: str = "") -> None:
        """Any state → gone. Keeps the row as a tombstone, which nothing shows or routes to.

        Raises :class:`InvalidTransition` when ``draft_only`` and it was ever activated.
        """
        with transaction.atomic():
            self.lock_present()
            if draft_only and self.activated_at is not None:
                raise InvalidTransition(
                    "The endpoint has been activated; draft_only refuses to delete it.",
                    metadata={"status": str(self.status)},
                )
            self.deleted_at, self.deleted_by = timezone.now(), by
            self.save_fields("deleted_at", "deleted_by")

    def attest(self, *, by: str) -> None:
        """Any state, unchanged. Appends what is declared now to the history, where it is new.

        Runs in the transaction of the change that made the declaration.
        """
        attestation = self.new_attestation(by=by)
        if attestation is None:
            return
        attestation.save(force_insert=True)
        self.attestation = attestation
        self.save_fields("attestation")

    def new_attestation(self, *, by: str) -> Attestation | None:
        """Returns what is declared now, not yet stored, where the history does not end with it."""
        declared = (self.declared_zdr, self.declared_region)
        before = self.attestation
        if declared == ((None, None) if before is None else before.declared):
            return None
        return Attestation(
            endpoint=self,
            declared_zdr=self.declared_zdr,
            declared_region=self.declared_region,
            stated_by=by,
            request_id=logs.request_id.get(),
        )

    def record_revalidation(self, validation: Validation) -> None:
        """Any state, unchanged. Stores a validation that takes the current one's place.

        It does so only while the endpoint is still the one that was validated.
        """
        with transaction.atomic():
            self.lock_present()
            validation.save(force_insert=True)
            if validation.configuration == self.configuration:
                self.validation = validation
                self.save_fields("validation")

    def record_watch(self, validation: Validation) -> None:
        """ACTIVE or DISABLED, unchanged. Stores a later validation and whether it shows drift."""
        with transaction.atomic():
            self.lock_present()
            self.require_status(self.Status.ACTIVE, self.Status.DISABLED)
            validation.save(force_insert=True)
            self.watched_at = timezone.now()
            if not validation.shows_drift:
                self.drifted_at = None
            elif self.drifted_at is None:
                self.drifted_at = self.watched_at
            self.save_fields("watched_at", "drifted_at")

    def lock_present(self) -> None:
        """Locks the row; raises :class:`EndpointNotFound` when it was deleted meanwhile."""
        self.lock()
        if self.deleted_at is not None:
            raise EndpointNotFound


class Validation(BaseModel):
    """One live validation: what was asked of the deployment, when, and what came of it."""

    class Outcome(models.TextChoices):
        PASSED = "passed", "passed"
        FAILED = "failed", "failed"
        UNREACHABLE = "unreachable", "unreachable"
        TIMED_OUT = "timed_out", "timed out"
        BROKEN = "broken", "broken"

    class Purpose(models.TextChoices):
        ACTIVATION = "activation", "activation"
        WATCH = "watch", "watch"

    # The evidence that a deployment is still the same one.
    IDENTITY = ("model", "prompt_tokens")

    endpoint = models.ForeignKey(
        PrivateEndpoint, on_delete=models.CASCADE, related_name="validations"
    )
    workspace = models.ForeignKey(Workspace, on_delete=models.SET_NULL, null=True)
    credential = models.ForeignKey(
        ByokCredential, on_delete=models.SET_NULL, null=True, related_name="+"
    )
    credential_version = models.PositiveIntegerField(null=True)
    configuration = models.CharField(max_length=64)
    outcome = models.CharField(max_length=16, choices=Outcome)
    purpose = models.CharField(max_length=16, choices=Purpose, default=Purpose.ACTIVATION)
    checks = models.JSONField()
    evidence = models.JSONField(
        default=dict, help_text="What the deployment showed of itself, to be compared later."
    )
    changes = models.JSONField(
        default=list, help_text="Evidence that differs from that of the activation."
    )
    cost_nano = models.BigIntegerField(
        default=0, help_text="What the probes cost by the endpoint's price, in nano-USD."
    )
    duration_ms = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ("-created_at",)
        indexes = [
            models.Index(fields=("endpoint", "-created_at"), name="validation_history"),
            models.Index(fields=("created_at", "id"), name="validation_latest"),
        ]

    def __str__(self) -> str:
        return f"{self.outcome} at {self.created_at:%Y-%m-%d %H:%M:%S}"

    @property
    def shows_drift(self) -> bool:
        """Tells whether a watch found something else than what was activated.

        A deployment that cannot be reached says nothing of what it is; its address, certificate
        and build may change without its being another.
        """
        return self.outcome == self.Outcome.FAILED or any(
            change["name"] in self.IDENTITY for change in self.changes
        )

    @property
    def passed(self) -> bool:
        return self.outcome == self.Outcome.PASSED

    def is_current_for(self, endpoint: PrivateEndpoint) -> bool:
        """Tells whether this still speaks of the endpoint: same upstream and credential, recent."""
        credential = self.credential
        return (
            self.configuration == endpoint.configuration
            and credential is not None
            and credential.deleted_at is None
            and not credential.disabled
            and credential.version == self.credential_version
            and self.created_at > timezone.now() - timedelta(seconds=settings.VALIDATION_MAX_AGE)
        )


class Attestation(models.Model):
    """What an organization declared of a deployment from a moment on; append-only."""

    id = models.BigAutoField(primary_key=True)
    endpoint = models.ForeignKey(
        PrivateEndpoint, on_delete=models.PROTECT, related_name="attestations"
    )
    declared_zdr = models.BooleanField("declared ZDR", null=True)
    declared_region = models.CharField(max_length=16, choices=Region, null=True)
    stated_at = models.DateTimeField(auto_now_add=True)
    stated_by = models.CharField(max_length=255, default="")
    request_id = models.CharField(max_length=64, default="")

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"ZDR {self.declared_zdr}, region {self.declared_region}"

    @property
    def declared(self) -> tuple[bool | None, str | None]:
        return self.declared_zdr, self.declared_region


def _references(drafts: Sequence[Draft]) -> list[tuple[LanguageModel, Provider] | GatewayError]:
    """Returns the model and provider that each draft names, or why it is refused."""
    models = LanguageModel.objects.listed().filter(
        canonical_slug__in={draft.model_permaslug for draft in drafts}
    )
    providers = Provider.objects.filter(
        slug__in={draft.provider_slug for draft in drafts}, is_listed=True
    )
    model_of = {model.canonical_slug: model for model in models}
    provider_of = {provider.slug: provider for provider in providers}
    found: list[tuple[LanguageModel, Provider] | GatewayError] = []
    for draft in drafts:
        model = model_of.get(draft.model_permaslug)
        provider = provider_of.get(draft.provider_slug)
        if model is None:
            found.append(
                ModelNotFound(f"There is no model {draft.model_permaslug!r} in the catalogue.")
            )
        elif provider is None:
            found.append(
                ProviderNotFound(f"There is no provider {draft.provider_slug!r} in the catalogue.")
            )
        elif refusal := _refusal_of_base_url(draft.base_url, provider):
            found.append(refusal)
        else:
            found.append((model, provider))
    return found


def canonical_base_url(text: str | None) -> str | None:
    """Returns the one spelling of a URL that is stored, compared and dialled."""
    if text is None:
        return None
    try:
        return parse_base_url(text, policy=settings.EGRESS_POLICY).text
    except InvalidURL as exc:
        raise InvalidBaseURL(f"invalid_base_url: {exc}") from None


def require_base_url(base_url: str | None, provider: Provider) -> None:
    """Raises :class:`InvalidBaseURL` unless the URL is there exactly when the provider needs it."""
    if refusal := _refusal_of_base_url(base_url, provider):
        raise refusal


def _refusal_of_base_url(base_url: str | None, provider: Provider) -> InvalidBaseURL | None:
    if Dialect(provider.dialect).url_from_credential:
        if base_url is None:
            return None
        return InvalidBaseURL(
            f"invalid_base_url: {provider.name} takes its URL from the credential; "
            "leave base_url out."
        )
    if base_url is None:
        return InvalidBaseURL(f"invalid_base_url: base_url is required for {provider.name}.")
    return None


def list_price(public: Sequence[ModelEndpoint], provider: Provider) -> Price:
    """Returns the provider's price of a model's public ones, else the cheapest, else zero."""
    own = [endpoint for endpoint in public if endpoint.provider_id == provider.pk]
    prices = [endpoint.price.price for endpoint in own or public]
    if not prices:
        return Price(prompt=Decimal(0), completion=Decimal(0))
    return min(prices, key=lambda price: price.prompt + price.completion)


def with_cache_rates(price: Price, public: Sequence[ModelEndpoint], provider: Provider) -> Price:
    """Adds the cache rates that a price leaves out and the provider's public price has.

    Each is to the prompt rate as it is there. Raises :class:`Unprocessable` for one that would be
    beyond all bounds.
    """
    own = [endpoint for endpoint in public if endpoint.provider_id == provider.pk]
    listed = list_price(own, provider)
    rates = {}
    for name in ("cache_read", "cache_write"):
        rate = getattr(listed, name)
        if rate is None or not listed.prompt or getattr(price, name) is not None:
            continue
        rates[name] = proportional(rate, base=listed.prompt, new_base=price.prompt)
        if rates[name] >= _RATE_BOUND:
            raise Unprocessable(
                f"pricing.{name}: what the provider's public price makes of it is not below "
                f"{_RATE_BOUND}; send it."
            )
    return replace(price, **rates)


def _public_endpoints(permaslugs: Iterable[str]) -> Mapping[str, list[ModelEndpoint]]:
    """Returns, by model, the public endpoints that give drafts their prices or parts of them."""
    public: defaultdict[str, list[ModelEndpoint]] = defaultdict(list)
    wanted = set(permaslugs)
    if wanted:
        for endpoint in (
            ModelEndpoint.objects.routable()
            .filter(model__canonical_slug__in=wanted)
            .select_related("model", "price")
        ):
            public[endpoint.model.canonical_slug].append(endpoint)
    return public


def _price_text(price: Price | None) -> list[str | None] | None:
    if price is None:
        return None
    return [
        None if rate is None else decimal_text(rate)
        for rate in (price.prompt, price.completion, price.cache_read, price.cache_write)
    ]


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
