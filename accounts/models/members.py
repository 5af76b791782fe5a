"""Members: the people of organizations."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any, Final

from django.db import models, transaction

from accounts.models.edits import write_fields
from config.api.errors import Conflict, NotFound
from config.api.text import parse_uuid
from config.audit.triggers import Audit
from config.clocks.clock import clock
from config.models import BaseModel, OwnedQuerySet, index_beginnings


class MemberNotFound(NotFound):
    message = "The member does not exist."


class MemberExists(Conflict):
    message = "email: The organization has a member with this address already."


class MemberHasKeys(Conflict):
    """The member's keys would go on working, without the member's guardrail."""


class MemberQuerySet(OwnedQuerySet["Member"]):
    present = {"deleted_at": None}

    def find_all(self, ids: Collection[str]) -> list[Member]:
        """Returns the members with these ids, oldest first.

        Raises :class:`MemberNotFound` unless every id belongs to a member of this queryset.
        """
        wanted = {parse_uuid(text) for text in ids}
        found = list(self.filter(pk__in=filter(None, wanted)).order_by("created_at", "id"))
        if len(found) != len(wanted):
            raise MemberNotFound
        return found

    def require_free(self, organization_id: uuid.UUID, email: str) -> None:
        """Raises :class:`MemberExists` for an address that a member has, in any case of letters.

        The caller has locked the organization.
        """
        if self.for_organization(organization_id).filter(email__iexact=email).exists():
            raise MemberExists

    def require_present(self, *ids: uuid.UUID) -> None:
        """Raises :class:`MemberNotFound` if one of the members is deleted.

        The caller has locked the organization.
        """
        if self.filter(pk__in=ids, deleted_at=None).count() < len(set(ids)):
            raise MemberNotFound


class Member(BaseModel):
    """A person in an organization, identified by an email address; a member has no login.

    The guardrail of a member applies to the keys that the member created.
    """

    class Role(models.TextChoices):
        ADMIN = "admin", "admin"
        MEMBER = "member", "member"

    organization = models.ForeignKey(
        "accounts.Organization", on_delete=models.CASCADE, related_name="members", db_index=False
    )
    email = models.EmailField(max_length=254)
    first_name = models.CharField(max_length=255, null=True, blank=True)
    last_name = models.CharField(max_length=255, null=True, blank=True)
    role = models.CharField(max_length=16, choices=Role, default=Role.MEMBER)
    deleted_at = models.DateTimeField(null=True, editable=False)

    objects = MemberQuerySet.as_manager()

    class Meta:
        ordering = ("organization", "email")
        indexes = [index_beginnings("email", "member_by_email")]
        constraints = [
            models.UniqueConstraint(fields=("organization", "email"), name="member_email_unique")
        ]
        triggers = [Audit()]

    def __str__(self) -> str:
        return self.email

    def edit(self, **changes: Any) -> bool:
        """PRESENT → PRESENT. Writes the fields that differ and returns whether any did.

        Raises :class:`MemberNotFound` when the member was deleted meanwhile.
        """
        with transaction.atomic():
            self.lock_row(MemberNotFound, no_key=True)
            if self.deleted_at is not None:
                raise MemberNotFound
            return write_fields(self, changes)

    def remove(self) -> None:
        """PRESENT → DELETED. Ends memberships, guardrail and mail; the address is free again.

        The row stays, because generations and deleted keys point at it. The caller has locked the
        organization. Raises :class:`MemberHasKeys` for a member with keys, and
        :class:`MemberNotFound` when the member was deleted meanwhile.
        """
        with transaction.atomic():
            self.refresh_from_db(from_queryset=Member._base_manager.select_for_update())
            if self.deleted_at is not None:
                raise MemberNotFound
            if count := self.api_keys.current().filter(deleted_at=None).count():
                keys = "1 API key" if count == 1 else f"{count} API keys"
                raise MemberHasKeys(f"The member has {keys}. Delete them first.")
            self.memberships.all().delete()
            self.subscriptions.all().delete()
            if (assignment := getattr(self, "guardrail_assignment", None)) is not None:
                assignment.delete()
            self.email = f"{self.email[:200]} (deleted {self.pk.hex})"
            self.deleted_at = clock.now()
            self.save_fields("email", "deleted_at")


# Roles as callers may write them; the contract's own form has the prefix.
WRITTEN_ROLES: Final = (*Member.Role.values, *(f"org:{role}" for role in Member.Role.values))
