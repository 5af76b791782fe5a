"""BYOK credentials: the secrets that organizations hold at providers."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import F, Max, Q, Sum, Value
from django.db.models.functions import Coalesce

from accounts.hosts import HostLimits, HostRule
from accounts.models.edits import refusal, write_fields
from accounts.models.keys import ApiKey
from accounts.models.limits import OrganizationLimit
from accounts.models.organizations import Organization
from accounts.models.terms import Region
from accounts.models.versions import RoutingVersionBump
from accounts.models.workspaces import Workspace
from config import secrets
from config.api.errors import NotFound, Unprocessable
from config.audit.triggers import Audit
from config.clocks.clock import clock
from config.credentials import Secret
from config.models import BaseModel, OwnedQuerySet

# How long a credential rests after each refusal.
_REST: Final = timedelta(minutes=1)
_KEYS: Final = "allowed_api_key_hashes"
_LISTS: Final = ("allowed_models", _KEYS, "allowed_user_ids", "allowed_hosts")
# The entries of the lists of all credentials of an organization, which workers hold in memory.
_MOST_ENTRIES: Final = 20_000
HOST_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.\-]{0,251}[a-z0-9])?")


class CredentialNotFound(NotFound):
    message = "The BYOK credential does not exist."


class SecretRequired(Unprocessable):
    """The change would let a stored secret go to more hosts, so the request must prove it."""

    error_type = "secret_required"

    def __init__(self) -> None:
        why = (
            "The secret may not go to more hosts without being entered again, in the same request "
            "(the API's field is `key`). Without it, the list may only shrink."
        )
        super().__init__(f"allowed_hosts: {why}", metadata={"fields": {"allowed_hosts": why}})


class ByokCredentialQuerySet(OwnedQuerySet["ByokCredential"]):
    present = {"deleted_at": None}

    def usable(self) -> Self:
        return self.filter(disabled=False, deleted_at=None)

    def usable_in(self, workspace: Workspace, provider_slug: str) -> Self:
        """Returns the credentials that a workspace may use at a provider, in the order to try."""
        return (
            self.usable()
            .filter(
                Q(workspace=workspace) | Q(workspace=None),
                organization=workspace.organization_id,
                provider_slug=provider_slug,
            )
            .order_by("is_fallback", "sort_order", "created_at")
        )


class ByokCredentialManager(models.Manager.from_queryset(ByokCredentialQuerySet)):  # type: ignore[misc]
    def create_credential(
        self,
        *,
        organization: Organization,
        workspace: Workspace | None,
        provider_slug: str,
        secret: Secret,
        **fields: Any,
    ) -> ByokCredential:
        """Creates a credential with a sealed secret, last in the order of its provider.

        A list that names a former hash of a key names its present one too.

        Raises :class:`OrganizationLimitReached`, and :class:`InvalidRequest` for lists that are too
        long.
        """
        with transaction.atomic():
            present = self.for_organization(organization.pk)
            # Without this lock, two concurrent creations would compute the same ``sort_order``.
            Organization.objects.lock_with_room(
                organization.pk, OrganizationLimit.CREDENTIALS, present
            )
            if _KEYS in fields:
                fields[_KEYS] = ApiKey.objects.add_current(organization.pk, fields[_KEYS])
            self.require_list_room(ByokCredential(organization=organization), fields)
            highest = present.filter(provider_slug=provider_slug).aggregate(
                highest=Max("sort_order")
            )["highest"]
            credential = ByokCredential(
                organization=organization,
                workspace=workspace,
                provider_slug=provider_slug,
                sort_order=0 if highest is None else highest + 1,
                **fields,
            )
            credential.seal(secret)
            credential.save(force_insert=True)
        return credential

    def require_list_room(self, credential: ByokCredential, changes: Mapping[str, Any]) -> None:
        """Raises :class:`InvalidRequest` if an organization's lists would have too many entries.

        What was stored under no limit may be kept and shortened. The caller holds the lock of the
        credential; this one takes that of the organization.
        """
        named = [name for name in _LISTS if name in changes]
        added = sum(
            len(changes[name] or ()) - len(getattr(credential, name) or ()) for name in named
        )
        if added > 0:
            Organization.objects.lock(credential.organization_id)
            field = next(name for name in named if changes[name])
            self.require_room(credential.organization_id, added, field=field)

    def require_room(
        self, organization_id: uuid.UUID, added: int, *, field: str, advice: str = "Shorten some."
    ) -> None:
        """Raises :class:`InvalidRequest` if an organization's lists would have too many entries.

        ``added`` is their growth; without one, they may be too long already. The error names
        ``field``, and ``advice`` ends its message. The caller has locked the organization.
        """
        if added <= 0:
            return
        lengths = (Coalesce(F(f"{name}__len"), 0) for name in _LISTS)
        present = self.for_organization(organization_id).aggregate(
            entries=Sum(sum(lengths, Value(0)), default=0)
        )["entries"]
        if present + added > _MOST_ENTRIES:
            raise refusal(
                field,
                f"The lists of all credentials of an organization can have at most "
                f"{_MOST_ENTRIES:,} entries, and have {present:,}. {advice}",
            )


class ByokCredential(BaseModel):
    """A credential of an organization at a provider; its secret is write-only."""

    organization = models.ForeignKey(
        Organization,
        on_delete=models.CASCADE,
        related_name="byok_credentials",
        editable=False,
        db_index=False,
    )
    workspace = models.ForeignKey(
        Workspace,
        on_delete=models.CASCADE,
        related_name="byok_credentials",
        null=True,
        blank=True,
        help_text="Empty: usable in every workspace.",
    )
    provider_slug = models.CharField(max_length=255)
    name = models.CharField(max_length=255, null=True, blank=True)
    label = models.CharField(max_length=32, editable=False)
    sealed = models.BinaryField(editable=False)
    version = models.PositiveIntegerField(default=1, editable=False)
    sort_order = models.IntegerField(default=0)
    disabled = models.BooleanField(default=False)
    is_fallback = models.BooleanField(default=False)
    is_required = models.BooleanField(default=False)
    is_byok_only = models.BooleanField(default=False)
    allowed_models = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    allowed_api_key_hashes = ArrayField(models.CharField(max_length=64), null=True, blank=True)
    allowed_user_ids = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    allowed_hosts = ArrayField(
        models.CharField(max_length=253),
        null=True,
        blank=True,
        help_text="Hosts that may receive the secret, besides those of the provider. Empty: the "
        "host of its first use.",
    )
    bound_domains = ArrayField(
        models.CharField(max_length=254),
        null=True,
        editable=False,
        help_text="The host of the first use; a leading dot, of an earlier release, includes "
        "subdomains.",
    )
    declared_region = models.CharField(max_length=16, choices=Region, null=True, blank=True)
    declared_zdr = models.BooleanField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = ByokCredentialManager()

    class Meta:
        verbose_name = "BYOK credential"
        ordering = ("organization", "provider_slug", "sort_order")
        indexes = [models.Index(fields=("organization", "provider_slug"), name="byok_lookup")]
        constraints = [
            models.CheckConstraint(
                condition=Q(is_fallback=False) | Q(is_byok_only=False),
                name="byok_fallback_is_not_byok_only",
            ),
            models.CheckConstraint(
                condition=Q(deleted_at=None) | Q(sealed=b""), name="byok_deleted_is_wiped"
            ),
        ]
        triggers = [RoutingVersionBump(), Audit(masked=("sealed",))]

    def __str__(self) -> str:
        return f"{self.provider_slug} {self.label}"

    @property
    def _associated(self) -> str:
        return f"{self.pk}|{self.organization_id}|{self.workspace_id}|{self.provider_slug}"

    def seal(self, secret: Secret) -> None:
        """Encrypts the secret for this row; the caller saves the row."""
        self.sealed = secrets.seal(secret, associated=self._associated)
        self.label = secret.label

    def reveal(self) -> Secret:
        """Decrypts the secret; raises :class:`config.secrets.DecryptionFailed`."""
        return secrets.unseal(bytes(self.sealed), associated=self._associated)

    def reveal_or_none(self) -> Secret | None:
        """Decrypts the secret; returns ``None`` if no key of the service opens it any more."""
        try:
            return self.reveal()
        except secrets.DecryptionFailed:
            return None

    @property
    def health(self) -> dict[str, Any]:
        """Returns whether the credential rests, because its provider has refused it just now."""
        rest: CredentialRest | None = getattr(self, "rest", None)
        if rest is None or rest.seen_at + _REST <= clock.now():
            return {"state": "working", "since": None, "upstream_status": None}
        status = rest.upstream_status
        return {"state": "resting", "since": rest.since, "upstream_status": status}

    def rotate(self, secret: Secret) -> None:
        """PRESENT → PRESENT. Replaces the secret; validations with the old one become stale.

        The binding stays: otherwise a stolen management key could wait for the next rotation.
        """
        with transaction.atomic():
            self.lock_present()
            self.seal(secret)
            self.version = self.version + 1
            self.save_fields("sealed", "label", "version")
            CredentialRest.objects.filter(credential=self).delete()

    def edit(self, *, secret: Secret | None = None, **changes: Any) -> bool:
        """PRESENT → PRESENT. Writes the fields that differ, and the secret when there is one.

        Beside ``allowed_hosts``, a secret that equals the stored one only proves that the caller
        has it. ``allowed_hosts=None`` with a secret forgets the first use, so that the next one
        binds the credential again. A list that names a former hash of a key names its present one
        too.

        Returns whether anything changed. Raises :class:`CredentialNotFound` when the credential
        was removed meanwhile, :class:`InvalidRequest` for a fallback that is also BYOK only and for
        lists that are too long, and :class:`SecretRequired` for more hosts without the secret.
        """
        with transaction.atomic():
            self.lock_present()
            if changes.get("is_fallback", self.is_fallback) and changes.get(
                "is_byok_only", self.is_byok_only
            ):
                raise refusal("is_fallback", "Cannot be combined with is_byok_only.")
            if _KEYS in changes:
                Organization.objects.lock(self.organization_id)
                changes[_KEYS] = ApiKey.objects.add_current(self.organization_id, changes[_KEYS])
            ByokCredential.objects.require_list_room(self, changes)
            if "allowed_hosts" in changes:
                hosts = changes["allowed_hosts"]
                if secret is None and self.host_limits().is_widened_by(hosts):
                    raise SecretRequired
                if secret is not None and hosts is None:
                    changes["bound_domains"] = None
                if secret is not None and self.reveal_or_none() == secret:
                    secret = None  # a proof that replaces nothing: validations stay current
            if secret is not None:
                self.rotate(secret)
            return write_fields(self, changes) or secret is not None

    def remove(self) -> None:
        """PRESENT → DELETED. Wipes the secret; the row stays, but nothing shows or uses it.

        Raises :class:`CredentialNotFound` when the credential was removed before.
        """
        with transaction.atomic():
            self.lock_present()
            self.sealed, self.deleted_at = b"", clock.now()
            self.save_fields("sealed", "deleted_at")

    def record_use(self, host: str, *, own_hosts: frozenset[str]) -> str | None:
        """PRESENT → PRESENT. Binds the credential to the very host, if this is its first use.

        Returns the reason why the secret may not go to the host, if there is one: of two
        concurrent first uses of different hosts, only one binds. Raises
        :class:`CredentialNotFound` when the credential was removed.
        """
        with transaction.atomic():
            self.lock_present()
            limits = self.host_limits(own_hosts)
            reason = limits.refusal(host)
            if reason is None and limits.is_open:
                self.bound_domains = [host]
                self.save_fields("bound_domains")
            return reason

    def lock_present(self) -> None:
        """Locks the row; raises :class:`CredentialNotFound` when the credential was removed."""
        self.refresh_from_db(from_queryset=ByokCredential._base_manager.select_for_update())
        if self.deleted_at is not None:
            raise CredentialNotFound

    def rewrap(self) -> bool:
        """Encrypts the secret with the first credential key; returns whether the row changed."""
        return secrets.rewrap_row(self, "sealed", associated=self._associated)

    def host_limits(self, own_hosts: frozenset[str] = frozenset()) -> HostLimits:
        """Returns the hosts to which the secret may be sent; ``own_hosts`` are the provider's."""
        return HostLimits(
            own_hosts=own_hosts,
            allowed_hosts=None if self.allowed_hosts is None else frozenset(self.allowed_hosts),
            bound_domains=None if self.bound_domains is None else tuple(self.bound_domains),
            rule=HostRule(settings.CREDENTIALS_REQUIRE_HOSTS),
        )


class CredentialRest(models.Model):
    """The latest refusals of a credential by its provider; it rests for a minute after each.

    Workers write it beside the requests. It is no column of the credential, because each change of
    a credential is a new version of its organization.
    """

    credential = models.OneToOneField(
        ByokCredential, on_delete=models.CASCADE, primary_key=True, related_name="rest"
    )
    upstream_status = models.PositiveSmallIntegerField()
    since = models.DateTimeField(help_text="When the provider refused it first.")
    seen_at = models.DateTimeField(help_text="When the provider refused it last.")

    def __str__(self) -> str:
        return f"rest of {self.credential_id}"
