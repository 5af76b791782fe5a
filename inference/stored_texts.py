"""The tables of input/output logging: stored texts, the keys that encrypt them, and deletions."""

from __future__ import annotations

import os
import uuid
from typing import Final

import pgtrigger
from django.db import models
from django.db.models import Q

from config.audit.triggers import Audit
from config.secrets import rewrap_key, unseal_key

_KEY_BYTES: Final = 32


class TextKey(models.Model):
    """The data key that encrypts all stored texts of one organization.

    Without the row, none of them can be read again. Each deletion moves ``epoch``: a worker that
    has read the row before cannot store a text by it.
    """

    id = models.BigAutoField(primary_key=True)
    organization_id = models.UUIDField(unique=True)
    sealed = models.TextField(editable=False, help_text="Encrypted with a credential key.")
    epoch = models.BigIntegerField(default=0, db_default=0)
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"key {self.pk} of {self.organization_id}"

    def unseal(self) -> bytes:
        """Returns the key; raises :class:`DecryptionFailed`."""
        return unseal_key(self.sealed, associated=associate_key(self.organization_id))

    def rewrap(self) -> bool:
        """Encrypts the key with the first credential key; returns whether anything changed."""
        renewed = rewrap_key(self.sealed, associated=associate_key(self.organization_id))
        if renewed is None:
            return False
        self.sealed = renewed
        self.save(update_fields=["sealed"])
        return True


class StoredText(models.Model):
    """The input and the output of one generation, encrypted with the key of its organization.

    Its permission is none of Django's four, so that an operator who may view everything may not
    read what callers send.
    """

    generation_id = models.CharField(primary_key=True, max_length=48, db_collation="C")
    organization_id = models.UUIDField()
    workspace_id = models.UUIDField()
    api_key_id = models.UUIDField()
    text_key_id = models.BigIntegerField()
    sealed = models.BinaryField()
    input_bytes = models.IntegerField()
    output_bytes = models.IntegerField()
    is_truncated = models.BooleanField(help_text="A side was longer than what is stored.")
    created_at = models.DateTimeField(help_text="When the request was admitted.")

    class Meta:
        default_permissions = ()
        permissions = [("read_input_and_output", "Can read stored inputs and outputs")]
        indexes = [
            models.Index(fields=("workspace_id", "created_at"), name="stored_text_by_workspace"),
            models.Index(fields=("organization_id", "created_at"), name="stored_text_by_owner"),
            models.Index(fields=("created_at",), name="stored_text_by_time"),
            models.Index(fields=("api_key_id", "created_at"), name="stored_text_by_key"),
        ]

    def __str__(self) -> str:
        return self.generation_id


class TextDeletion(models.Model):
    """A deletion of texts on request: all texts of its scope that were admitted before it.

    A text that waits in a worker meanwhile is not stored afterwards. The scope is the organization,
    narrowed to one workspace, key or generation.
    """

    id = models.BigAutoField(primary_key=True)
    organization_id = models.UUIDField()
    workspace_id = models.UUIDField(null=True)
    api_key_id = models.UUIDField(null=True)
    generation_id = models.CharField(max_length=48, null=True, db_collation="C")
    deleted_at = models.DateTimeField()
    deleted_by = models.CharField(max_length=255)
    is_finished = models.BooleanField(
        default=False, db_default=False, help_text="The rows of the texts are deleted."
    )

    class Meta:
        indexes = [
            models.Index(fields=("organization_id", "deleted_at"), name="text_deletion_by_owner")
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(workspace_id=None, api_key_id=None)
                | Q(workspace_id=None, generation_id=None)
                | Q(api_key_id=None, generation_id=None),
                name="text_deletion_one_scope",
            )
        ]
        triggers = [Audit(organization="organization_id", operation=pgtrigger.Insert)]

    def __str__(self) -> str:
        scope = self.generation_id or self.api_key_id or self.workspace_id or self.organization_id
        return f"texts of {scope}"


def make_key() -> bytes:
    """Returns a new key for the texts of an organization."""
    return os.urandom(_KEY_BYTES)


def associate_key(organization_id: uuid.UUID) -> str:
    """Returns what binds a sealed key to its organization."""
    return f"text-key:{organization_id}"
