"""API keys."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Self

import pgtrigger
from django.db import models, transaction
from django.db.models import Case, Count, Exists, F, OuterRef, Q, Subquery, When

from accounts.models.creations import Creation
from accounts.models.edits import write_fields
from accounts.models.limits import OrganizationLimit
from accounts.models.members import Member
from accounts.models.organizations import Organization
from accounts.models.rate_limits import LimitOwner, RateLimit
from accounts.models.terms import LimitReset, number_of_key
from accounts.models.versions import RoutingVersionBump
from accounts.models.workspaces import Workspace, require_workspace
from config import secrets
from config.api.errors import InvalidTransition, NotFound, Unprocessable
from config.audit.triggers import Audit
from config.clocks.clock import clock
from config.credentials import Secret
from config.events.outbox import record_event
from config.models import BaseModel, OwnedQuerySet, index_beginnings
from config.peppers import list_peppers
from config.triggers import Trigger

NOT_KNOWN: Final = "not known before the next use"
NOT_LISTED: Final = "no longer listed"
# Each former secret that still works is one more that may be lost.
_MOST_FORMER: Final = 20
# What the row of a former secret has of its key.
_SHARED: Final = (
    "organization_id", "workspace_id", "name", "is_management", "disabled", "limit_nano",
    "limit_reset", "include_byok_in_limit", "external_user", "creator_id", "issued_by_operator",
)  # fmt: skip


class FirstDigest(Trigger):
    """Makes the public hash of a new key one of the digests that find it.

    During an upgrade, workers of the earlier release still create keys, and insert no digest.
    """

    name = "first_digest"
    when = pgtrigger.After
    operation = pgtrigger.Insert
    func = (
        "INSERT INTO accounts_keydigest (digest, api_key_id)\n"
        "VALUES (NEW.digest, NEW.id) ON CONFLICT (digest) DO NOTHING;\n"
        "RETURN NULL;"
    )


class ApiKeyNotFound(NotFound):
    message = "The API key does not exist."


class KeyRotated(InvalidTransition):
    """The row is that of a former secret, which another one has replaced."""

    message = "The API key was rotated already: rotate or change the key that replaced it."


class FormerSecretsReached(Unprocessable):
    """A key has as many former secrets that still work as it may have."""

    error_type = "former_secrets_reached"
    message = (
        f"former_secrets_reached: {_MOST_FORMER} former secrets of the API key still work. Delete "
        "one by its hash, wait for its end, or rotate with overlap_seconds 0."
    )


class ApiKeyQuerySet(OwnedQuerySet["ApiKey"]):
    present = {"deleted_at": None}

    def for_inference(self) -> Self:
        return self.filter(is_management=False)

    def current(self) -> Self:
        """Leaves out the rows of former secrets."""
        return self.filter(successor=None)

    def enabled(self) -> Self:
        return self.filter(disabled=False)

    def unexpired(self) -> Self:
        return self.exclude(expires_at__lte=clock.now())

    def not_ended(self) -> Self:
        """Leaves out the rows of former secrets that work no longer, and so never will again."""
        return self.exclude(successor__isnull=False, expires_at__lte=clock.now())

    def by_first_pepper(self, is_found: bool = True) -> Self:
        """Returns the keys that the first pepper finds, or those that only an older one does."""
        found = Exists(
            KeyDigest.objects.filter(api_key=OuterRef("pk"), pepper=list_peppers()[0].id)
        )
        return self.filter(found if is_found else ~found)

    def lock_in_order(self) -> set[uuid.UUID]:
        """Locks the keys until the transaction ends, former secrets last; returns their ids.

        See :meth:`OrganizationManager.lock` for the order of all locks.
        """
        rows = self.order_by(F("successor_id").asc(nulls_first=True), "pk")
        return set(rows.select_for_update(no_key=True).values_list("pk", flat=True))

    def find_all(self, digests: Collection[str]) -> list[ApiKey]:
        """Returns the keys with these digests.

        Raises :class:`ApiKeyNotFound` unless every digest belongs to a key of this queryset.
        """
        found = list(self.filter(digest__in=set(digests)))
        if len(found) != len(set(digests)):
            raise ApiKeyNotFound
        return found


class ApiKeyManager(models.Manager.from_queryset(ApiKeyQuerySet)):  # type: ignore[misc]
    def create_key(
        self,
        *,
        workspace: Workspace,
        name: str,
        is_management: bool = False,
        expires_at: datetime | None = None,
        rate_limits: Mapping[str, Any] | None = None,
        secret: Secret | None = None,
        **fields: Any,
    ) -> tuple[ApiKey, Secret]:
        """Creates a key and returns it with its secret; only a digest of the secret is stored.

        The ``secret`` may be one that goes on working; otherwise it is generated. ``rate_limits``
        are changes as :meth:`RateLimitManager.change` takes them. Raises
        :class:`WorkspaceNotFound` and :class:`MemberNotFound` when the workspace or the creator was
        deleted meanwhile, and :class:`OrganizationLimitReached`.
        """
        with transaction.atomic():
            present = self.for_organization(workspace.organization_id).current()
            Organization.objects.lock_with_room(
                workspace.organization_id, OrganizationLimit.KEYS, present
            )
            if secret is None:
                secret = secrets.generate_api_key(is_management=is_management)
            require_workspace(workspace.pk)
            if fields.get("creator") is not None:
                Member.objects.require_present(fields["creator"].pk)
            key = self.create(
                organization_id=workspace.organization_id,
                workspace=workspace,
                name=name,
                is_management=is_management,
                expires_at=expires_at,
                digest=secrets.digest_api_key(secret.reveal()),
                label=secrets.label_api_key(secret),
                **fields,
            )
            KeyDigest.objects.store_all(key.pk, secret)
            if rate_limits is not None:
                RateLimit.objects.change(key.limit_owner, rate_limits)
            key.record("key.created")
        return key, secret

    def add_current(
        self, organization_id: uuid.UUID, digests: Collection[str] | None
    ) -> list[str] | None:
        """Returns digests once each, and those of the keys whose former secrets they name.

        Digests of revoked keys stay. ``None``, which stands for all keys, stays too. The caller has
        locked the organization, so that no key is rotated before the list is stored.
        """
        if digests is None:
            return None
        former = self.filter(organization=organization_id, digest__in=set(digests))
        current = former.filter(successor__deleted_at=None).exclude(successor=None)
        return list(dict.fromkeys([*digests, *current.values_list("successor__digest", flat=True)]))


class ApiKey(BaseModel):
    """A bearer key, either for inference or for management."""

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="api_keys", editable=False
    )
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=255)
    label = models.CharField(max_length=32, editable=False)
    digest = models.CharField(
        max_length=64,
        unique=True,
        editable=False,
        help_text="The public hash of the key. A rotation changes it; a KeyDigest finds the key.",
    )
    is_management = models.BooleanField(default=False)
    disabled = models.BooleanField(default=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    limit_nano = models.BigIntegerField(
        null=True,
        editable=False,
        help_text="The most that the key may spend, in nano-USD; empty for no limit.",
    )
    limit_reset = models.CharField(max_length=16, choices=LimitReset, null=True, editable=False)
    include_byok_in_limit = models.BooleanField(default=False, db_default=False, editable=False)
    external_user = models.CharField(
        max_length=512,
        null=True,
        db_collation="C",
        editable=False,
        help_text="The end user that the key belongs to.",
    )
    creator = models.ForeignKey(
        Member,
        on_delete=models.PROTECT,
        related_name="api_keys",
        db_index=False,
        null=True,
        blank=True,
        help_text="The member who created the key; that member's guardrail applies to it.",
    )
    # A rotated key keeps its row, to which its meter, its rate limits and its guardrail belong. The
    # former secret moves to a row of its own until it expires.
    successor = models.ForeignKey(
        "self",
        on_delete=models.CASCADE,
        related_name="former",
        db_index=False,
        null=True,
        editable=False,
        help_text="The key that a rotation gave another secret than this former one.",
    )
    # What an operator holds must not lead round the console's own permissions.
    issued_by_operator = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="An operator issued it for an organization that existed, or it was made with "
        "such a key: it reads no stored texts, and makes no change that needs a second person.",
    )
    deleted_at = models.DateTimeField(null=True, editable=False)

    objects = ApiKeyManager()

    class Meta:
        verbose_name = "API key"
        ordering = ("-created_at",)
        indexes = [
            index_beginnings("name", "api_key_by_name"),
            models.Index(fields=("label",), name="api_key_by_label"),
            models.Index(
                fields=("successor",), condition=~Q(successor=None), name="api_key_by_successor"
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(limit_nano=None) | Q(limit_nano__gte=0),
                name="api_key_limit_not_negative",
            ),
            # This way, code that checks only `disabled` also refuses deleted keys.
            models.CheckConstraint(
                condition=Q(deleted_at=None) | Q(disabled=True), name="api_key_deleted_is_disabled"
            ),
        ]
        triggers = [
            # Nobody remembers a key that does not exist yet.
            RoutingVersionBump(operation=pgtrigger.Update | pgtrigger.Delete),
            Audit(masked=("digest",)),
            FirstDigest(),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.label})"

    @property
    def is_usable(self) -> bool:
        return not self.disabled and not self.is_expired

    @property
    def subject_id(self) -> uuid.UUID:
        """The key that the meter, the rate limits and the guardrail belong to."""
        return self.successor_id or self.pk

    @property
    def limit_owner(self) -> LimitOwner:
        return LimitOwner(self.organization_id, api_key_id=self.subject_id)

    @property
    def number(self) -> int:
        """The integer by which ``io_logging_api_key_ids`` of a workspace names the key."""
        return number_of_key(self.subject_id)

    def edit(self, **changes: Any) -> bool:
        """PRESENT → PRESENT. Writes the fields that differ and returns whether any did.

        ``rate_limits`` are changes as :meth:`RateLimitManager.change` takes them. Raises
        :class:`ApiKeyNotFound` when the key was revoked meanwhile, :class:`KeyRotated` for a former
        secret, and :class:`WorkspaceNotFound` when the key would become usable in a deleted
        workspace. A management key may: it belongs to the whole organization.
        """
        with transaction.atomic():
            self.lock()
            if self.deleted_at is not None:
                raise ApiKeyNotFound
            if self.successor_id is not None:
                raise KeyRotated
            if changes.keys() & {"workspace_id", "disabled"}:
                Organization.objects.lock(self.organization_id)
            is_resumed = changes.get("disabled") is False and not self.is_management
            if "workspace_id" in changes or is_resumed:
                require_workspace(changes.get("workspace_id", self.workspace_id))
            is_limited = False
            if "rate_limits" in changes:
                is_limited = RateLimit.objects.change(self.limit_owner, changes.pop("rate_limits"))
            is_changed = write_fields(self, changes)
            if is_changed:
                self._change_former(changes)
            return is_changed or is_limited

    def lock(self) -> None:
        """Locks the row and those of its former secrets, and reads the row.

        An assignment of the key, which refers to the row, does not wait for this lock.
        """
        self.refresh_from_db(from_queryset=ApiKey._base_manager.select_for_update(no_key=True))
        ApiKey.objects.filter(successor=self.pk, deleted_at=None).lock_in_order()

    def _change_former(self, changes: dict[str, Any]) -> None:
        """Makes the same changes to former secrets that still work; none works longer by that."""
        former = self.former.filter(deleted_at=None)
        expires_at = changes.pop("expires_at", None)
        if expires_at is not None:
            former.filter(expires_at__gt=expires_at).update(expires_at=expires_at)
        if changes:
            former.update(**changes)

    def pause(self) -> bool:
        """ENABLED → DISABLED. Refuses the key from the next request on; returns whether it did."""
        return self.edit(disabled=True)

    def resume(self) -> bool:
        """DISABLED → ENABLED. Returns whether the key was disabled; raises as :meth:`edit` does."""
        return self.edit(disabled=False)

    def revoke(self) -> bool:
        """PRESENT → DELETED. Refuses the key and its former secrets from the next request on.

        Returns False if the key was already deleted. The row stays because generations point at it.
        """
        with transaction.atomic():
            self.lock()
            if self.deleted_at is not None:
                return False
            Organization.objects.lock(self.organization_id)
            self.disabled, self.deleted_at = True, clock.now()
            self.save_fields("disabled", "deleted_at")
            self.former.filter(deleted_at=None).update(disabled=True, deleted_at=self.deleted_at)
            self.rate_limits.all().delete()
            self._erase_answer()
            self.record("key.revoked")
        return True

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= clock.now()

    def rotate(self, *, overlap: int, issued_by_operator: bool = False) -> tuple[ApiKey, Secret]:
        """PRESENT → PRESENT. Gives the key a new secret and a new hash.

        Returns the row of the former secret, and the new secret. The former one works for
        ``overlap`` seconds more, but not longer than it would have, nor at all if the key is
        disabled. It counts on the same meter, because that belongs to the row of the key.
        ``issued_by_operator`` says that the caller's own key is such a key; then this one becomes
        one too. Raises :class:`KeyRotated` when the key has another hash meanwhile,
        :class:`InvalidTransition` for a revoked or expired key, and :class:`FormerSecretsReached`.
        """
        digest = self.digest
        with transaction.atomic():
            self.lock()
            self._require_rotatable(digest)
            Organization.objects.lock(self.organization_id)
            now = clock.now()
            ends_at = now if self.disabled else now + timedelta(seconds=overlap)
            if self.expires_at is not None:
                ends_at = min(ends_at, self.expires_at)
            working = self.former.filter(deleted_at=None, expires_at__gt=now)
            if ends_at > now and working.count() >= _MOST_FORMER:
                raise FormerSecretsReached
            # The caller sees the new secret, so the key may do no more than the caller's own.
            self.issued_by_operator = self.issued_by_operator or issued_by_operator
            former = ApiKey(
                successor=self,
                digest=digest,
                label=self.label,
                expires_at=ends_at,
                **{name: getattr(self, name) for name in _SHARED},
            )
            secret = secrets.generate_api_key(is_management=self.is_management)
            self.digest = secrets.digest_api_key(secret.reveal())
            self.label = secrets.label_api_key(secret)
            began, self.created_at = self.created_at, now
            self.save_fields("digest", "label", "issued_by_operator", "created_at")
            former.save(force_insert=True)
            former.created_at = began
            former.save_fields("created_at")
            # A renewal gives no digest to a row whose hash has changed, so none is left behind.
            self.digests.update(api_key=former)
            KeyDigest.objects.store_all(self.pk, secret)
            self._erase_answer()
            self.record("key.rotated")
        return former, secret

    def _erase_answer(self) -> None:
        """Erases the secret with which the repeated request that created the key is answered."""
        Creation.objects.erase(self.pk)

    def _require_rotatable(self, digest: str) -> None:
        if self.successor_id is not None or self.digest != digest:
            raise KeyRotated
        if self.deleted_at is not None:
            raise InvalidTransition("The API key is revoked, so it cannot be rotated.")
        if self.is_expired:
            raise InvalidTransition("The API key has expired, so it cannot be rotated.")

    def record(self, kind: str) -> None:
        """Stores an event about the key in the caller's transaction."""
        data = {
            "hash": self.digest,
            "name": self.name,
            "label": self.label,
            "is_management": self.is_management,
        }
        record_event(kind, organization=self.organization_id, data=data)


class KeyDigestManager(models.Manager["KeyDigest"]):
    def store(self, api_key_id: uuid.UUID, pepper_ids: Mapping[str, str]) -> None:
        """Stores digests of a key with the ids of their peppers; repeated calls change nothing."""
        self.bulk_create(
            [
                KeyDigest(digest=digest, api_key_id=api_key_id, pepper=pepper)
                for digest, pepper in pepper_ids.items()
            ],
            update_conflicts=True,
            unique_fields=["digest"],
            update_fields=["pepper"],
        )

    def store_all(self, api_key_id: uuid.UUID, secret: Secret) -> None:
        """Stores the digests of a new secret by all peppers.

        Workers whose list of peppers is older or newer must find the key as well.
        """
        digests = secrets.KeyDigests(secret.reveal())
        self.store(api_key_id, dict(zip(digests, digests.pepper_ids, strict=True)))

    def count_keys(self) -> Mapping[str, int]:
        """Returns the number of keys by the newest pepper that finds them, for the listed ones.

        ``NOT_KNOWN`` counts the keys that have not been used since an upgrade, and ``NOT_LISTED``
        those that no listed pepper finds. Neither deleted keys nor ended secrets count.
        """
        names = [pepper.name for pepper in list_peppers()] + [NOT_KNOWN, NOT_LISTED]
        ranks = Case(
            *(When(pepper=pepper.id, then=rank) for rank, pepper in enumerate(list_peppers())),
            When(pepper=None, then=len(names) - 2),
            default=len(names) - 1,
        )
        ranked = self.annotate(rank=ranks).filter(api_key=OuterRef("pk")).order_by("rank")
        counts = (
            ApiKey.objects.filter(deleted_at=None)
            .not_ended()
            .annotate(rank=Subquery(ranked.values("rank")[:1]))
            .order_by()
            .values_list("rank")
            .annotate(Count("pk"))
        )
        return {names[rank]: count for rank, count in sorted(counts)}

    def clear(self) -> int:
        """Deletes digests by peppers that are not listed, and returns their number.

        A key that no listed pepper finds keeps its digests, because a pepper may be listed again.
        """
        listed = [pepper.id for pepper in list_peppers()]
        kept = self.filter(api_key=OuterRef("api_key"), pepper__in=listed)
        return self.exclude(pepper__in=listed).exclude(pepper=None).filter(Exists(kept)).delete()[0]


class KeyDigest(models.Model):
    """A digest by which an API key is found; a key has one for each pepper that it was used under.

    Digests are only added while peppers rotate: a worker that does not have the new pepper yet
    finds the key by the old one. The row of the key does not change, so neither does the version
    of its organization, which admission compares.
    """

    digest = models.CharField(primary_key=True, max_length=64, help_text="HMAC-SHA256 of the key.")
    api_key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, related_name="digests")
    pepper = models.CharField(
        max_length=16,
        null=True,
        help_text="The id of the pepper; empty until the key is used after an upgrade.",
    )

    objects = KeyDigestManager()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"digest of {self.api_key_id}"
