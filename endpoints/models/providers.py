"""Private providers: names under which an organization registers its own servers."""

from __future__ import annotations

import re
import uuid
from typing import Any, ClassVar, Final

from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Lower

from accounts.models import ByokCredential, Organization
from accounts.models.edits import refusal, write_fields
from accounts.models.versions import RoutingVersionBump
from catalog.models import DialectName, Provider
from config.api.errors import Conflict, NotFound
from config.audit.triggers import Audit
from config.clocks.clock import clock
from config.models import BaseModel, OwnedQuerySet
from endpoints.models.drafts import canonical_base_url

NAME: Final = re.compile(r"(?=.*[A-Za-z0-9])[A-Za-z0-9 ._-]{2,64}")
SLUG: Final = re.compile(r"(?=.{2,64}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")
_OTHERS: Final = re.compile(r"[^a-z0-9]+")
# Endpoints are limited, so nobody needs more providers than these.
MOST_PROVIDERS: Final = 1_000


class PrivateProviderNotFound(NotFound):
    error_type = "provider_not_found"
    message = "The private provider does not exist."


class ProviderExists(Conflict):
    error_type = "provider_exists"


class ProviderInUse(Conflict):
    error_type = "provider_in_use"


class PrivateProviderQuerySet(OwnedQuerySet["PrivateProvider"]):
    present = {"deleted_at": None}


class PrivateProviderManager(models.Manager.from_queryset(PrivateProviderQuerySet)):  # type: ignore[misc]
    def create_provider(
        self,
        *,
        organization_id: uuid.UUID,
        name: str,
        slug: str | None = None,
        base_url: str | None = None,
        **members: Any,
    ) -> PrivateProvider:
        """Creates a provider; its slug is that of its name by default.

        Raises :class:`InvalidRequest` for a name or slug of a wrong form, :class:`ProviderExists`
        for one that the catalogue or the organization has, and :class:`InvalidBaseURL`.
        """
        if not NAME.fullmatch(name):
            raise refusal(
                "name", "Must be 2 to 64 letters, digits, spaces, dots, underscores or hyphens."
            )
        derived = _OTHERS.sub("-", name.lower()).strip("-")
        if not SLUG.fullmatch(derived if slug is None else slug):
            raise refusal(
                "slug", "Must be 2 to 64 lowercase letters and digits, parted by single hyphens."
            )
        provider = PrivateProvider(
            organization_id=organization_id,
            name=name,
            slug=derived if slug is None else slug,
            base_url=canonical_base_url(base_url, organization_id),
            **{"display_name": name, **members},
        )
        with transaction.atomic():
            Organization.objects.lock(organization_id)
            self._require_free(provider)
            provider.save(force_insert=True)
        return provider

    def _require_free(self, provider: PrivateProvider) -> None:
        clash = (
            Q(slug__iexact=provider.slug)
            | Q(slug__iexact=provider.name)
            | Q(name__iexact=provider.name)
            | Q(name__iexact=provider.slug)
        )
        own = self.for_organization(provider.organization_id)
        if Provider.objects.filter(clash).exists():
            raise ProviderExists(
                f"provider_exists: a public provider has the name {provider.name!r} or the slug "
                f"{provider.slug!r}. Choose others."
            )
        if own.filter(clash).exists():
            raise ProviderExists(
                f"provider_exists: the organization has a provider with the name {provider.name!r} "
                f"or the slug {provider.slug!r} already."
            )
        if own.count() >= MOST_PROVIDERS:
            raise ProviderExists(f"The organization has {MOST_PROVIDERS} providers, its limit.")


class PrivateProvider(BaseModel):
    """A provider that only its organization sees and uses; it speaks OpenAI's format.

    ``name`` and ``slug`` never change. ``base_url`` is that of endpoints without one of their own.
    It has the members of a catalogue's provider by which endpoints are validated and routed. The
    row of a deleted one stays, because the rows of its deleted endpoints do.
    """

    dialect: ClassVar = DialectName.OPENAI.value

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="private_providers", db_index=False
    )
    name = models.CharField(max_length=64)
    slug = models.CharField(max_length=64)
    display_name = models.CharField(max_length=255)
    base_url = models.CharField(max_length=2048, null=True, blank=True)
    is_keyless = models.BooleanField(
        "takes no key",
        default=False,
        db_default=False,
        help_text="Its servers answer without a credential, and are sent none.",
    )
    deleted_at = models.DateTimeField(null=True, editable=False)

    objects = PrivateProviderManager()

    class Meta:
        verbose_name = "private provider"
        ordering = ("created_at", "id")
        constraints = [
            models.UniqueConstraint(
                "organization",
                Lower(name),
                condition=Q(deleted_at=None),
                name=f"private_provider_{name}_unique",
            )
            for name in ("slug", "name")
        ]
        triggers = [RoutingVersionBump(), Audit()]

    def __str__(self) -> str:
        return self.display_name

    @property
    def is_listed(self) -> bool:
        return self.deleted_at is None

    def own_hosts(self, named: str = "") -> frozenset[str]:
        """Returns no host: the first use of a credential binds it.

        A stored secret must not follow an address that its tenant may change.
        """
        return frozenset()

    def edit(self, **changes: Any) -> None:
        """Changes ``display_name``, ``base_url`` and ``is_keyless``, all of it or nothing.

        Endpoints that inherit what changes must be validated again before they are enabled.

        Raises :class:`ProviderInUse` when an active endpoint was validated with the old address or
        without a key, or when an endpoint would be left without an address.
        """
        with transaction.atomic():
            if not changes.keys().isdisjoint(("base_url", "is_keyless")):
                # An active one may hold up requests, and refuses what would change it.
                self._endpoints.exclude(status="active").lock_in_order()
            self._lock_present()
            if "base_url" in changes:
                changes["base_url"] = canonical_base_url(changes["base_url"], self.organization_id)
            has_moved = changes.get("base_url", self.base_url) != self.base_url
            if has_moved:
                self._require_free_address(changes["base_url"])
            if is_other_key := changes.get("is_keyless", self.is_keyless) != self.is_keyless:
                active = self._endpoints.filter(status="active")
                self._require_unused("keyless", active, "Disable or delete that endpoint first.")
            write_fields(self, changes)
            for endpoint in self._endpoints if has_moved or is_other_key else ():
                if endpoint.base_url is None or is_other_key:
                    endpoint.forget_validation(has_moved=has_moved and endpoint.base_url is None)

    def _require_free_address(self, base_url: str | None) -> None:
        inheriting = self._endpoints.filter(base_url=None)
        replace = "replace its deployment by one with a base_url of its own."
        advice = {
            "draft": "Delete that endpoint first, or give it a base_url of its own.",
            "active": f"Delete that endpoint first, or {replace}",
            "disabled": "Delete that endpoint first, or enable it and replace its deployment.",
        }
        if base_url is not None:
            # A disabled one is validated again before it is enabled.
            advice = {"active": f"Disable or delete that endpoint first, or {replace}"}
        for status, text in advice.items():
            self._require_unused("base_url", inheriting.filter(status=status), text)

    def _require_unused(self, field: str, endpoints: Any, advice: str) -> None:
        endpoint = endpoints.first()
        if endpoint is not None:
            raise ProviderInUse(
                f"{field}: the endpoint {endpoint.pk} is {endpoint.status} and uses it. {advice}",
                metadata={"endpoint_id": str(endpoint.pk)},
            )

    @property
    def _endpoints(self) -> Any:
        return self.endpoints.filter(deleted_at=None)

    def remove(self) -> None:
        """Deletes the provider, whose slug is free again.

        Raises :class:`ProviderInUse` while an endpoint runs under it, and while a credential is
        stored for it: a later provider of the slug would get the secret.
        """
        with transaction.atomic():
            self._lock_present()
            endpoint = self._endpoints.first()
            if endpoint is not None:
                raise ProviderInUse(
                    f"The endpoint {endpoint.pk} runs under the provider. Delete it first.",
                    metadata={"endpoint_id": str(endpoint.pk)},
                )
            stored = ByokCredential.objects.for_organization(self.organization_id)
            credential = stored.filter(provider_slug=self.slug).first()
            if credential is not None:
                raise ProviderInUse(
                    f"The credential {credential.pk} is stored for the provider. Delete it first.",
                    metadata={"credential_id": str(credential.pk)},
                )
            self.deleted_at = clock.now()
            self.save_fields("deleted_at")

    def _lock_present(self) -> None:
        """Locks the organization, as the creation of an endpoint does, and reads the row again."""
        Organization.objects.lock(self.organization_id)
        self.refresh_from_db()
        if self.deleted_at is not None:
            raise PrivateProviderNotFound
