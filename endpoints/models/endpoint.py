"""Private endpoints and their life cycle: draft, live validation, active, disabled, deleted.

Each transition is one method of :class:`PrivateEndpoint`; no other code writes ``status``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

import pgtrigger
from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from accounts.models import FallbackField, Organization, Region, require_workspace
from accounts.models.edits import write_fields
from accounts.models.versions import RoutingVersionBump
from catalog import dialects
from catalog.abilities import read_settings
from catalog.models import LanguageModel, PriceVersion, Provider, require_basis
from catalog.pricing import Price
from config.api.errors import GatewayError, InvalidTransition, NotFound, Unprocessable
from config.api.idempotency import IdempotentModel, find_replay, fingerprint_of
from config.audit.context import current_actor
from config.audit.triggers import Audit
from config.clocks.clock import clock
from config.egress.rules import NO_OWN_LIMITS, TimeLimits
from config.events.outbox import record_event
from config.models import TIME_COLUMNS, OwnedQuerySet, StatefulModel, TimeLimitedModel, time_columns
from endpoints.models.attestation import Attestation, next_attestation
from endpoints.models.drafts import (
    Draft,
    canonical_base_url,
    endpoints_among,
    find_references,
    public_endpoints,
    require_base_url,
    require_text,
    with_cache_rates,
)
from endpoints.models.own_models import plan_own_models
from endpoints.models.providers import PrivateProvider
from endpoints.models.settings import apply_settings, order_parameters, require_tools
from endpoints.models.slots import ValidationSlot
from endpoints.models.validation import Validation, learn_tested, offered_parameters

# What a validation is about, and what its owner attests of it.
_UPSTREAM: Final = frozenset(("upstream_model_id", "base_url", "declared_region", "declared_zdr"))
# The most models and providers that withdrawn endpoints of an organization keep.
_MOST_KEPT: Final = 1_000
_KEPT_BY: Final = ("model", "provider", "private_provider")


class EndpointLimitReached(Unprocessable):
    error_type = "endpoint_limit_reached"


class EndpointNotFound(NotFound):
    error_type = "endpoint_not_found"
    message = "The private endpoint does not exist."


class NotValidated(InvalidTransition):
    error_type = "not_validated"
    message = "The endpoint has no passed validation: call validate first."


class ValidationStale(InvalidTransition):
    error_type = "validation_stale"
    message = "The endpoint has changed since its validation: call validate again."


class AlreadyActive(InvalidTransition):
    error_type = "already_active"


class Replacement(NamedTuple):
    """A changed endpoint to validate, which is not stored, and what it was changed from."""

    endpoint: PrivateEndpoint
    basis: tuple[Any, ...]


class PrivateEndpointQuerySet(OwnedQuerySet["PrivateEndpoint"]):
    present = {"deleted_at": None}

    def routable(self) -> Self:
        return self.filter(status=PrivateEndpoint.Status.ACTIVE, deleted_at=None)

    def lock_in_order(self) -> list[PrivateEndpoint]:
        """Locks the endpoints until the transaction ends, and returns them.

        See :meth:`OrganizationManager.lock` for the order of all locks.
        """
        return list(self.order_by("pk").select_for_update())

    def shown(self) -> Self:
        """Returns the active endpoints with what shows them, the cheapest first."""
        shown = ("model", "provider", "private_provider", "price", "validation")
        return self.routable().select_related(*shown).order_by("price__prompt", "pk")

    def withdrawn(self) -> Self:
        """Returns the endpoints that were active once and whose owner has not released them.

        They are disabled or deleted, and keep their model private.
        """
        return self.filter(activated_at__isnull=False, released_at=None).exclude(
            status=PrivateEndpoint.Status.ACTIVE, deleted_at=None
        )


class PrivateEndpointManager(models.Manager.from_queryset(PrivateEndpointQuerySet)):  # type: ignore[misc]
    def create_draft(
        self,
        *,
        organization_id: uuid.UUID,
        base_url: str | None,
        time_limits: TimeLimits | None = None,
        idempotency_key: str | None = None,
        slot: ValidationSlot | None = None,
        by: str = "",
        **members: Any,
    ) -> tuple[PrivateEndpoint, bool]:
        """(none) → DRAFT. Returns the endpoint and whether this call created it.

        A repeated ``idempotency_key`` returns the endpoint of the first request in its present
        state. The lock on the organization lets only one creation at a time check the key and the
        limit. Without a ``price`` the public list price applies; cache rates that a price lacks are
        derived from the provider's public price. A ``slot`` to activate the endpoint is taken
        together with the row; a repeated request needs none. ``members`` are the others of
        :class:`Draft`.

        Raises :class:`InvalidBaseURL`, :class:`ModelNotFound`, :class:`ProviderNotFound`,
        :class:`EndpointLimitReached`, :class:`IdempotencyKeyReused`, :class:`InvalidRates` for a
        derived cache rate that is too large, :class:`InvalidSettings` and
        :class:`InvalidParameters`, :class:`ValidationsBusy` without a free slot, and
        :class:`NotFound` when the key's endpoint was deleted. A refused call changes nothing.
        """
        draft = Draft(
            base_url=canonical_base_url(base_url, organization_id),
            time_limits=time_limits or NO_OWN_LIMITS,
            **members,
        )
        draft.check()
        with transaction.atomic():
            organization = Organization.objects.lock(organization_id)
            rows = self.filter(organization=organization)
            first = find_replay(rows, idempotency_key, draft.fingerprint)
            if first is not None:
                if first.deleted_at is not None:
                    raise NotFound("The endpoint that this Idempotency-Key created was deleted.")
                public = public_endpoints((first.model_permaslug,))
                listed = endpoints_among(public, first.model)
                draft.settings_of(first.model, listed, first.upstream_provider)
                return first, False
            [endpoint] = self._insert(
                organization,
                [draft],
                by=by,
                idempotency_key=idempotency_key,
                is_bulk=False,
            )
            if slot is not None:
                endpoint.require_room_to_keep()
                slot.endpoint = endpoint
                slot.take()
        return endpoint, True

    def create_drafts(
        self, *, organization_id: uuid.UUID, drafts: Sequence[Draft], by: str = ""
    ) -> list[PrivateEndpoint]:
        """(none) → DRAFT for all drafts or for none; the number of statements is constant.

        No cache rates are derived, so a repeated import of the same file finds equal prices. Raises
        the error of the first refused draft, one of those of :meth:`create_draft`.
        """
        with transaction.atomic():
            return self._insert(Organization.objects.lock(organization_id), drafts, by=by)

    def require_room(self, organization: Organization, added: int) -> None:
        """Raises :class:`EndpointLimitReached` when ``added`` endpoints would exceed the limit."""
        limit = organization.private_endpoint_limit
        present = self.for_organization(organization.pk).count()
        if present + added <= limit:
            return
        if added == 1:
            raise EndpointLimitReached(
                f"endpoint_limit_reached: the organization has {limit} private endpoints, "
                "which is its limit. Delete one first."
            )
        raise EndpointLimitReached(
            f"endpoint_limit_reached: the organization has {present} of {limit} private "
            f"endpoints; {added} more do not fit."
        )

    def price_drafts(
        self, organization_id: uuid.UUID, drafts: Sequence[Draft]
    ) -> list[Price | GatewayError]:
        """Returns the price that each draft would get, or the error that refuses the draft.

        Does not check the limit.
        """
        public = public_endpoints(draft.model_permaslug for draft in drafts)
        made = _plan_models(organization_id, drafts, reuses=True)
        own = self._own_providers(organization_id)
        references = find_references(drafts, organization_id, own, made)
        return [
            found
            if isinstance(found, GatewayError)
            else draft.find_refusal(*found, public) or draft.find_price(*found, public)
            for draft, found in zip(drafts, references, strict=True)
        ]

    def _own_providers(self, organization_id: uuid.UUID) -> dict[str, PrivateProvider]:
        rows = PrivateProvider.objects.for_organization(organization_id)
        return {provider.slug: provider for provider in rows}

    def _insert(
        self,
        organization: Organization,
        drafts: Sequence[Draft],
        *,
        by: str,
        idempotency_key: str | None = None,
        is_bulk: bool = True,
    ) -> list[PrivateEndpoint]:
        """Inserts drafts with prices, attestations and models; the caller holds the lock.

        A single draft derives cache rates, and its own model must be new.
        """
        endpoints = []
        attestations = []
        public = public_endpoints(draft.model_permaslug for draft in drafts)
        made = _plan_models(organization.pk, drafts, reuses=is_bulk)
        own = self._own_providers(organization.pk)
        references = find_references(drafts, organization.pk, own, made)
        for draft, found in zip(drafts, references, strict=True):
            if isinstance(found, GatewayError):
                raise found
            model, provider = found
            listed = endpoints_among(public, model)
            endpoint = PrivateEndpoint(
                organization=organization,
                model=model,
                provider=provider if isinstance(provider, Provider) else None,
                private_provider=provider if isinstance(provider, PrivateProvider) else None,
                provider_name=provider.name,
                upstream_model_id=draft.upstream_model_id,
                base_url=draft.base_url,
                declared_region=draft.declared_region,
                declared_zdr=draft.declared_zdr,
                fallback=draft.fallback,
                settings=draft.settings_of(model, listed, provider),
                declared_parameters=order_parameters(draft.declared_parameters),
                idempotency_key=idempotency_key,
                request_fingerprint=draft.fingerprint,
                **time_columns(draft.time_limits),
            )
            price = draft.find_price(model, provider, public)
            if draft.price is not None and not is_bulk:
                price = with_cache_rates(price, listed, provider)
            endpoint.price = PriceVersion.of(subject_id=endpoint.pk, price=price)
            endpoint.attestation = next_attestation(endpoint, by=by)
            if endpoint.attestation is not None:
                attestations.append(endpoint.attestation)
            endpoints.append(endpoint)
        self.require_room(organization, len(drafts))
        # Foreign keys are checked at commit, so the rows may point at each other.
        LanguageModel.objects.bulk_create(
            each for each in made.values() if not isinstance(each, GatewayError)
        )
        PriceVersion.objects.bulk_create(endpoint.price for endpoint in endpoints)
        Attestation.objects.bulk_create(attestations)
        self.bulk_create(endpoints)
        return endpoints


def _plan_models(
    organization_id: uuid.UUID, drafts: Sequence[Draft], *, reuses: bool
) -> dict[str, LanguageModel | GatewayError]:
    wanted = {draft.model_permaslug: draft.model for draft in drafts if draft.model is not None}
    return plan_own_models(organization_id, wanted, field="model_permaslug", reuses=reuses)


class PrivateEndpoint(TimeLimitedModel, IdempotentModel, StatefulModel):
    """A deployment that an organization registered for itself.

    The row of a deleted endpoint stays, because an idempotency key and generations point at it, and
    because an endpoint that was ever active keeps its model private until its owner releases it.
    """

    class Status(models.TextChoices):
        DRAFT = "draft", "draft"
        ACTIVE = "active", "active"
        DISABLED = "disabled", "disabled"

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="private_endpoints", db_index=False
    )
    status = models.CharField(max_length=16, choices=Status, default=Status.DRAFT, editable=False)
    model = models.ForeignKey(
        LanguageModel, on_delete=models.PROTECT, related_name="private_endpoints"
    )
    # One of these two.
    provider = models.ForeignKey(Provider, on_delete=models.PROTECT, related_name="+", null=True)
    private_provider = models.ForeignKey(
        PrivateProvider,
        on_delete=models.PROTECT,
        related_name="endpoints",
        null=True,
        editable=False,
        db_index=False,
    )
    provider_name = models.CharField(max_length=255, editable=False)
    upstream_model_id = models.CharField(max_length=255)
    base_url = models.CharField(max_length=2048, null=True, blank=True)
    declared_region = models.CharField(max_length=16, choices=Region, null=True, blank=True)
    declared_zdr = models.BooleanField("declared ZDR", null=True, blank=True)
    price = models.ForeignKey(
        PriceVersion, on_delete=models.PROTECT, related_name="+", editable=False
    )
    # The latest validation of the present configuration. A foreign key would keep the partition of
    # the validation from leaving.
    validation = models.ForeignKey(
        Validation,
        models.SET_NULL,
        null=True,
        blank=True,
        editable=False,
        related_name="+",
        db_constraint=False,
    )
    # The declaration in force.
    attestation = models.ForeignKey(
        Attestation, models.PROTECT, null=True, editable=False, related_name="+"
    )
    activated_at = models.DateTimeField(null=True, editable=False)
    activated_by = models.CharField(max_length=255, default="", editable=False)
    disabled_at = models.DateTimeField(null=True, editable=False)
    disabled_by = models.CharField(max_length=255, default="", editable=False)
    disabled_reason = models.CharField(max_length=255, default="", editable=False)
    deleted_at = models.DateTimeField(null=True, editable=False)
    deleted_by = models.CharField(max_length=255, default="", editable=False)
    released_at = models.DateTimeField(
        null=True,
        editable=False,
        help_text="When its owner let requests for the model go to public endpoints again.",
    )
    released_by = models.CharField(max_length=255, default="", db_default="", editable=False)
    fallback = FallbackField(null=True)
    # The members that are stated of catalog.abilities.EndpointSettings.
    settings = models.JSONField(default=dict, db_default={}, blank=True, editable=False)
    declared_parameters = ArrayField(
        models.CharField(max_length=64), default=list, db_default=[], blank=True
    )
    tested_parameters = ArrayField(
        models.CharField(max_length=64), default=list, db_default=[], blank=True, editable=False
    )
    watched_at = models.DateTimeField(
        null=True, editable=False, help_text="When the drift watch last validated the deployment."
    )
    drifted_at = models.DateTimeField(
        null=True, editable=False, help_text="When the watch first found a difference."
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
                condition=Q(provider=None, private_provider__isnull=False)
                | Q(provider__isnull=False, private_provider=None),
                name="private_endpoint_has_one_provider",
            ),
            models.CheckConstraint(
                condition=Q(status="draft", activated_at=None)
                | Q(status__in=("active", "disabled"), activated_at__isnull=False),
                name="private_endpoint_activation_stamp",
            ),
            models.CheckConstraint(
                condition=Q(released_at=None)
                | Q(deleted_at__isnull=False, activated_at__isnull=False),
                name="private_endpoint_released_after_deletion",
            ),
            TimeLimitedModel.constrain_times("private_endpoint_times"),
        ]
        triggers = [
            # Creating and editing drafts changes no route.
            RoutingVersionBump(
                operation=pgtrigger.Update,
                condition="OLD.status <> 'draft' OR NEW.status <> 'draft'",
            ),
            RoutingVersionBump(operation=pgtrigger.Delete, name="version_bump_on_delete"),
            Audit(ignored=("request_fingerprint", "watched_at")),
        ]

    def __str__(self) -> str:
        return f"{self.model.name} at {self.provider_name}"

    @property
    def model_permaslug(self) -> str:
        return self.model.canonical_slug

    @property
    def upstream_provider(self) -> Provider | PrivateProvider:
        found = self.provider or self.private_provider
        assert found is not None, "private_endpoint_has_one_provider"
        return found

    @property
    def upstream_provider_id(self) -> uuid.UUID:
        found: uuid.UUID | None = self.provider_id or self.private_provider_id
        assert found is not None, "private_endpoint_has_one_provider"
        return found

    @property
    def upstream_url(self) -> str | None:
        """Returns the endpoint's own ``base_url``, else that of its private provider."""
        if self.base_url is None and self.private_provider is not None:
            return self.private_provider.base_url
        return self.base_url

    @property
    def host(self) -> str:
        """Returns the host of the deployment; empty if the credential names the host."""
        try:
            return urlsplit(self.upstream_url or "").hostname or ""
        except ValueError:
            return ""  # the address is refused when it is called

    @property
    def is_activating(self) -> bool:
        """Returns whether the creation that made the draft is still validating it."""
        running = self.activations.filter(organization=self.organization_id, until__gt=Now())
        return running.exists()

    @property
    def max_completion_tokens(self) -> int | None:
        return read_settings(self.settings).max_completion_tokens

    @property
    def offered_parameters(self) -> list[str]:
        """Returns the parameters that the endpoint supports, as far as is known."""
        model, proofs = self.model, None if self.validation is None else self.validation.parameters
        offered = offered_parameters(
            model.supported_parameters,
            proofs,
            declared=(*self.declared_parameters, *self.tested_parameters),
            excluded=read_settings(self.settings).excluded_parameters,
        )
        return dialects.keep_sent(self.upstream_provider.dialect, model.capabilities, offered)

    @property
    def declarations(self) -> dict[str, Any]:
        """Returns what is declared of the deployment, by the name of its field."""
        declared = {"declared_region": self.declared_region, "declared_zdr": self.declared_zdr}
        return {name: value for name, value in declared.items() if value is not None}

    @property
    def model_slug(self) -> str | None:
        return self.model.slug if self.model.is_listed else None

    @property
    def model_name(self) -> str | None:
        return self.model.name if self.model.is_listed else None

    @property
    def provider_slug(self) -> str | None:
        found = self.upstream_provider
        return found.slug if found.is_listed else None

    @property
    def configuration(self) -> str:
        """Returns a digest of all inputs of a validation except the credential."""
        return fingerprint_of(
            str(self.model_id),
            self.model.updated_at.isoformat(),
            str(self.upstream_provider_id),
            self.upstream_provider.dialect,
            self.upstream_url,
            self.upstream_model_id,
        )

    @property
    def has_current_validation(self) -> bool:
        """Returns whether the validation permits activating the present configuration."""
        return self.validation is not None and self.validation.is_current_for(
            self.configuration, is_keyless=self.upstream_provider.is_keyless
        )

    def record_validation(self, validation: Validation) -> None:
        """DRAFT → DRAFT. Stores a validation; makes it current if it is of this configuration."""
        with transaction.atomic():
            validation.lock_credential()
            self.lock_present()
            self._store(validation)
            if self.status == self.Status.DRAFT and validation.configuration == self.configuration:
                self._keep(validation)

    def activate(self, *, by: str = "") -> None:
        """DRAFT → ACTIVE. Requires a passed validation of the present configuration.

        Raises :class:`InvalidTransition` from another state, :class:`NotValidated`, and
        :class:`ValidationStale` when the configuration, the credential or the catalogue model has
        changed or the validation is older than ``VALIDATION_MAX_AGE``, and
        :class:`EndpointLimitReached` for an organization that keeps too many models by endpoints
        that it has withdrawn.
        """
        with transaction.atomic():
            self.lock_present()
            self.require_status(self.Status.DRAFT)
            if self.validation is None or not self.validation.passed:
                raise NotValidated
            if not self.has_current_validation:
                raise ValidationStale
            self.require_room_to_keep()
            self.status = self.Status.ACTIVE
            self.activated_at, self.activated_by = clock.now(), by
            self.save_fields("status", "activated_at", "activated_by")
            self._record("endpoint.activated")

    def require_room_to_keep(self) -> None:
        """Raises :class:`EndpointLimitReached` if the endpoint, once withdrawn, keeps too much.

        Every worker has in memory which models withdrawn endpoints keep, and at whom.
        """
        kept = PrivateEndpoint.objects.withdrawn().filter(organization=self.organization_id)
        own = {name: getattr(self, f"{name}_id") for name in _KEPT_BY}
        if kept.filter(**own).exists():
            return
        if len(kept.values(*_KEPT_BY).distinct()[:_MOST_KEPT]) == _MOST_KEPT:
            raise EndpointLimitReached(
                f"Deleted and disabled endpoints of the organization keep {_MOST_KEPT:,} models "
                "private, and no more can be kept. Delete such endpoints with release=true first."
            )

    def disable(self, *, by: str = "", reason: str = "") -> None:
        """ACTIVE → DISABLED. Stops routing from the next request on."""
        with transaction.atomic():
            self.lock_present()
            self.require_status(self.Status.ACTIVE)
            self.status = self.Status.DISABLED
            self.disabled_at, self.disabled_by = clock.now(), by
            self.disabled_reason = reason[:255]
            self.save_fields("status", "disabled_at", "disabled_by", "disabled_reason")
            self._record("endpoint.disabled", reason=self.disabled_reason)

    def enable(self, *, by: str = "") -> None:
        """DISABLED → ACTIVE.

        Raises :class:`InvalidTransition` from another state, and :class:`ValidationStale` when what
        the endpoint inherits has changed since its validation.
        """
        with transaction.atomic():
            self.lock_present()
            self.require_status(self.Status.DISABLED)
            if self.validation_id is None:
                raise ValidationStale(
                    "The provider or the model has changed since the validation of the endpoint: "
                    "call validate with again: true."
                )
            self.status = self.Status.ACTIVE
            self.activated_by = by
            self.disabled_at, self.disabled_by, self.disabled_reason = None, "", ""
            self.save_fields(
                "status", "activated_by", "disabled_at", "disabled_by", "disabled_reason"
            )
            self._record("endpoint.activated")

    def edit(self, *, by: str = "", **changes: Any) -> None:
        """ANY → same. Changes what is named, all of it or nothing.

        Of a draft only, ``changes`` may contain ``upstream_model_id``, ``base_url``,
        ``declared_region`` and ``declared_zdr``; any change of these clears the validation. A
        missing declaration is kept if the upstream stays the same, and cleared if the upstream
        changes. Of every endpoint it may contain ``time_limits``, ``fallback``, ``price``,
        ``declared_parameters``, and ``settings`` as a partial change, for later requests.

        Raises :class:`AlreadyActive` for a change of the upstream of another endpoint than a draft,
        :class:`InvalidSettings`, and :class:`InvalidParameters`.
        """
        with transaction.atomic():
            self.lock_present()
            if self.status != self.Status.DRAFT and not _UPSTREAM.isdisjoint(changes):
                named = ", ".join(sorted(_UPSTREAM & changes.keys()))
                advice = "To replace the deployment of an active endpoint, send activate too."
                if self.status == self.Status.DISABLED:
                    advice = (
                        "Enable it, then send the change with activate; or delete it and create "
                        "another one."
                    )
                raise AlreadyActive(
                    f"The endpoint is {self.status}; {named} can be changed in a draft only. "
                    f"{advice}",
                    metadata={"status": str(self.status)},
                )
            self._change(by, changes)

    def edit_or_plan(self, *, by: str = "", **changes: Any) -> Replacement | None:
        """ACTIVE → ACTIVE. Makes the changes of :meth:`edit` unless they change the upstream.

        If they do, returns what :meth:`replace` needs, and changes nothing.
        """
        proposed = PrivateEndpoint.objects.get(pk=self.pk)
        with transaction.atomic():
            proposed.lock_present()
            proposed.require_status(self.Status.ACTIVE)
            basis = proposed._basis
            if proposed._change(by, changes):
                # The same code has checked and made all changes; what it wrote is undone.
                transaction.set_rollback(True)
                return Replacement(proposed, basis)
        self.refresh_from_db()
        return None

    def replace(
        self, validation: Validation, *, basis: tuple[Any, ...], by: str = "", **changes: Any
    ) -> None:
        """ACTIVE → ACTIVE. Swaps the deployment for the one that a validation has passed.

        Makes all changes of a plan at once. The endpoint keeps its id and its history, and
        running requests end where they began.

        Raises :class:`InvalidTransition` from another state, and :class:`ValidationStale` and
        :class:`WorkspaceNotFound` if the endpoint, the credential, the catalogue's model or the
        workspace has changed since the plan.
        """
        with transaction.atomic():
            validation.lock_credential()
            self.lock_present()
            self.require_status(self.Status.ACTIVE)
            if self._basis != basis:
                raise ValidationStale("The endpoint was changed meanwhile.")
            assert validation.workspace_id is not None, "it has passed the check of the workspace"
            require_workspace(validation.workspace_id)
            self._change(by, changes)
            is_keyless = self.upstream_provider.is_keyless
            if not validation.is_current_for(self.configuration, is_keyless=is_keyless):
                raise ValidationStale("The credential or the model was changed meanwhile.")
            self.drifted_at = None
            self.save_fields("drifted_at")
            self._keep(validation)
            self._record("endpoint.activated")

    @property
    def _basis(self) -> tuple[Any, ...]:
        """Returns what :meth:`edit` may change, to notice a change that comes between."""
        return (
            self.configuration, self.attestation_id, self.price_id, self.time_limits,
            self.settings, self.fallback, self.declared_parameters,
        )  # fmt: skip

    def _change(self, by: str, changes: Mapping[str, Any]) -> bool:
        """Makes the changes of an endpoint that the caller has locked.

        Returns whether the upstream or its declarations have changed.
        """
        is_other = not _UPSTREAM.isdisjoint(changes) and self._move(by, changes)
        if "time_limits" in changes:
            self.limit_time(changes["time_limits"] or NO_OWN_LIMITS)
        if "fallback" in changes:
            write_fields(self, {"fallback": changes["fallback"]})
        if "declared_parameters" in changes:
            require_tools(changes["declared_parameters"], self.tested_parameters)
            declared = order_parameters(changes["declared_parameters"])
            write_fields(self, {"declared_parameters": declared})
        if "settings" in changes:
            stated = apply_settings(
                self.settings,
                changes["settings"],
                model=self.model,
                tested=self.tested_parameters,
            )
            write_fields(self, {"settings": stated})
        if "price" in changes:
            self.reprice(changes["price"])
        return is_other

    def _move(self, by: str, changes: Mapping[str, Any]) -> bool:
        """Changes the upstream and the declarations; returns whether they are others now."""
        upstream_model_id = changes.get("upstream_model_id", self.upstream_model_id)
        if upstream_model_id != self.upstream_model_id:
            require_text("upstream_model_id", upstream_model_id)
        base_url = self.base_url
        if "base_url" in changes:
            base_url = canonical_base_url(changes["base_url"], self.organization_id)
            require_base_url(base_url, self.upstream_provider)
        moved = (upstream_model_id, base_url) != (self.upstream_model_id, self.base_url)
        region = changes.get("declared_region", None if moved else self.declared_region)
        zdr = changes.get("declared_zdr", None if moved else self.declared_zdr)
        if not moved and (region, zdr) == (self.declared_region, self.declared_zdr):
            return False
        self.upstream_model_id, self.base_url = upstream_model_id, base_url
        self.declared_region, self.declared_zdr = region, zdr
        self.validation = None
        if moved:
            self.tested_parameters = []
        self.save_fields(
            "upstream_model_id", "base_url", "declared_region", "declared_zdr", "validation",
            "tested_parameters",
        )  # fmt: skip
        self.attest(by=by)
        return True

    def reprice(self, price: Price, *, basis: int | None = None) -> bool:
        """ANY → same. Sets the price of later requests; returns ``True``.

        ``basis`` is the price version that the caller has seen. Raises
        :class:`catalog.models.PriceMoved` if it is not the present one.
        """
        with transaction.atomic():
            self.lock_present()
            require_basis(self.price_id, basis)
            version = PriceVersion.of(subject_id=self.pk, price=price)
            version.save(force_insert=True)
            self.price = version
            self.save_fields("price")
        return True

    def limit_time(self, limits: TimeLimits) -> None:
        """ANY → same. Sets the limits of later calls. A validation stays: it has its own."""
        with transaction.atomic():
            self.lock_present()
            if limits != self.time_limits:
                self.time_limits = limits
                self.save_fields(*TIME_COLUMNS)

    def remove(self, *, draft_only: bool = False, release: bool = False, by: str = "") -> None:
        """ANY → DELETED. Keeps the row, but nothing shows it or routes to it.

        If the endpoint was ever active, its model stays private unless ``release`` is set; see
        :meth:`release`. Raises :class:`InvalidTransition` when ``draft_only`` is set and the
        endpoint was ever activated.
        """
        with transaction.atomic():
            if release:
                self._lock_keeping()
            self.lock_present()
            if draft_only and self.activated_at is not None:
                raise InvalidTransition(
                    "The endpoint has been activated; draft_only refuses to delete it.",
                    metadata={"status": str(self.status)},
                )
            self.deleted_at, self.deleted_by = clock.now(), by
            self.save_fields("deleted_at", "deleted_by")
            if release:
                self.release(by=by)

    def release(self, *, by: str = "") -> bool:
        """DELETED → DELETED. Lets requests for its model go to public endpoints again.

        Releases all deleted endpoints that the organization has of the model, and returns whether
        there were any that kept it private. Raises :class:`InvalidTransition` while another
        endpoint of the model, which was activated, is not deleted: it would keep the model private.
        """
        with transaction.atomic():
            keeping = self._lock_keeping()
            self.lock()
            if self.deleted_at is None:
                raise InvalidTransition("The endpoint is not deleted. Delete it with release=true.")
            for endpoint in keeping:
                if endpoint.deleted_at is None and endpoint.pk != self.pk:
                    raise InvalidTransition(
                        f"The endpoint {endpoint.pk} of the same model is {endpoint.status}, so "
                        "the model stays private. Delete that endpoint first.",
                        metadata={"endpoint_id": str(endpoint.pk)},
                    )
            for endpoint in keeping:
                endpoint.released_at, endpoint.released_by = clock.now(), by
                endpoint.save_fields("released_at", "released_by")
            self.refresh_from_db(fields=["released_at", "released_by"])
        return bool(keeping)

    def _lock_keeping(self) -> list[PrivateEndpoint]:
        """Locks and returns the endpoints of the organization that keep the model private."""
        rows = PrivateEndpoint.objects.filter(
            organization_id=self.organization_id,
            model_id=self.model_id,
            activated_at__isnull=False,
            released_at=None,
        )
        return rows.lock_in_order()

    def attest(self, *, by: str) -> None:
        """ANY → same. Appends the present declarations to the history if they are new.

        The caller changes the declarations in the same transaction.
        """
        attestation = next_attestation(self, by=by)
        if attestation is None:
            return
        attestation.save(force_insert=True)
        self.attestation = attestation
        self.save_fields("attestation")

    def forget_validation(self, *, has_moved: bool = False) -> None:
        """DRAFT | DISABLED → same. Its provider or model has changed: nothing is proven any more.

        If the deployment ``has_moved``, nothing is declared of it either.
        """
        with transaction.atomic():
            self.lock_present()
            if self.status == self.Status.DISABLED:
                # That of a draft is of another configuration, and is said to be stale.
                self.validation = None
            if has_moved:
                self.declared_region, self.declared_zdr, self.tested_parameters = None, None, []
            self.save_fields("validation", "declared_region", "declared_zdr", "tested_parameters")
            self.attest(by=current_actor())

    def recall_validation(self, validation: Validation, configuration: str) -> None:
        """DISABLED → same. Takes back a validation that was forgotten.

        Does nothing if the endpoint has another validation, or another configuration than when the
        validation was forgotten.
        """
        with transaction.atomic():
            self.lock()
            is_disabled = self.deleted_at is None and self.status == self.Status.DISABLED
            has_none = is_disabled and self.validation_id is None
            if has_none and self.configuration == configuration:
                self.validation = validation
                self.save_fields("validation")

    def record_revalidation(self, validation: Validation) -> None:
        """ANY → same. Stores a validation; makes it current if it is of this configuration."""
        with transaction.atomic():
            validation.lock_credential()
            self.lock_present()
            self._store(validation)
            if validation.configuration == self.configuration:
                self._keep(validation)

    def _keep(self, validation: Validation) -> None:
        """Makes a validation the current one, and remembers the parameters that it has tested."""
        self.validation = validation
        tested = learn_tested(self.tested_parameters, validation.parameters)
        # One may have been excluded while it was tried.
        excluded = read_settings(self.settings).excluded_parameters
        self.tested_parameters = [name for name in tested if name not in excluded]
        self.save_fields("validation", "tested_parameters")

    def record_repetition(self, validation: Validation) -> None:
        """ANY → same. Stores a validation of an activated endpoint that somebody has asked for.

        If it has passed and is of this configuration, it becomes the current one, with which later
        watches compare, and ends a drift. If it has failed, it may show a drift, as a watch does;
        only an active endpoint drifts.
        """
        with transaction.atomic():
            validation.lock_credential()
            self.lock_present()
            before = self.validation
            if before is not None and validation.configuration == self.configuration:
                validation.changes = validation.differences_from(before)
                if validation.passed and validation.parameters is None:
                    # The deployment is the same, so what was proven about it stays.
                    validation.parameters = before.parameters
            self._store(validation)
            if self.status == self.Status.DRAFT:
                return
            is_keyless = self.upstream_provider.is_keyless
            if validation.passed:
                if validation.is_current_for(self.configuration, is_keyless=is_keyless):
                    self.drifted_at = None
                    self._keep(validation)
            elif self.status == self.Status.ACTIVE:
                self._note_drift(validation)
            self.save_fields("drifted_at")

    def record_watch(self, validation: Validation) -> None:
        """ACTIVE | DISABLED → same. Stores a validation of the drift watch and its drift."""
        with transaction.atomic():
            validation.lock_credential()
            self.lock_present()
            self.require_status(self.Status.ACTIVE, self.Status.DISABLED)
            self._store(validation)
            self.watched_at = clock.now()
            self._note_drift(validation)
            self.save_fields("watched_at", "drifted_at")

    def _note_drift(self, validation: Validation) -> None:
        """Notes whether the deployment has drifted; the caller saves the row."""
        # A deployment that was replaced meanwhile says nothing about the new one.
        if validation.configuration != self.configuration:
            return
        if validation.passed and self.validation is not None:
            self.validation.raise_bounds(validation)
        if validation.shows_drift:
            if self.drifted_at is None:
                self._record("endpoint.drifted", changes=validation.changes)
            self.drifted_at = self.drifted_at or clock.now()
        elif validation.passed:
            self.drifted_at = None

    def _store(self, validation: Validation) -> None:
        """Stores a validation and binds its credential; the caller has locked both rows."""
        validation.bind_credential(self.upstream_provider)
        validation.validated_by = current_actor()
        validation.save(force_insert=True)
        if not validation.passed:
            failed = [
                {"check": check["name"], "reason": check.get("reason")}
                for check in validation.checks
                if not check["passed"]
            ]
            # The watch repeats a validation that fails; people try again within minutes.
            day = clock.now().date()
            once = f"{self.pk}|{day}" if validation.purpose == Validation.Purpose.WATCH else ""
            self._record("validation.failed", once, failed=failed)

    def _record(self, kind: str, once: str = "", **more: Any) -> None:
        """Stores an event about the endpoint in the caller's transaction."""
        data = {
            "id": str(self.pk),
            "model": self.model_permaslug,
            "provider": self.provider_name,
            "upstream_model_id": self.upstream_model_id,
            **more,
        }
        record_event(kind, organization=self.organization_id, data=data, once=once)

    def lock_present(self) -> None:
        """Locks the row; raises :class:`EndpointNotFound` when the endpoint is deleted."""
        self.lock()
        if self.deleted_at is not None:
            raise EndpointNotFound
