"""Deletes stored texts: on request, and when their time is over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from accounts.models import Workspace
from inference.models import Generation, KeptAnswer
from inference.stored_texts import StoredText, TextDeletion, TextKey

# Rows that one statement deletes: a long statement would keep dead rows in every table.
_BATCH: Final = 1_000


def delete_texts(
    organization_id: UUID,
    *,
    by: str,
    workspace_id: UUID | None = None,
    api_key_id: UUID | None = None,
    generation_id: str | None = None,
) -> int:
    """Deletes the texts of an organization, or only those of a workspace, a key or a generation.

    Answers that are kept for repeats are deleted with them. Nobody can read them when this returns,
    and no worker stores one of a request that was admitted before. Deleting all texts of an
    organization deletes their key too: what a copy of the table still has cannot be decrypted.
    Returns the number of texts that were deleted.
    """
    is_whole = workspace_id is None and api_key_id is None and generation_id is None
    with transaction.atomic():
        key = TextKey.objects.filter(organization_id=organization_id)
        # Waits for the texts that are being stored.
        if is_whole:
            key.delete()
        else:
            key.update(epoch=F("epoch") + 1)
        deletion = TextDeletion.objects.create(
            organization_id=organization_id,
            workspace_id=workspace_id,
            api_key_id=api_key_id,
            generation_id=generation_id,
            deleted_at=Now(),
            deleted_by=by,
        )
    return _finish(deletion)


def clear_texts() -> int:
    """Deletes the texts whose time is over, and what a killed deletion left.

    Returns the number of rows.
    """
    most, texts = settings.IO_LOGGING_DAYS, StoredText.objects.all()
    deleted = sum(map(_finish, TextDeletion.objects.filter(is_finished=False)))
    deleted += _delete(texts.filter(created_at__lt=Now() - timedelta(days=most)))
    narrower = Workspace.objects.filter(
        Exists(StoredText.objects.filter(workspace_id=OuterRef("pk"))),
        ~Q(deleted_at=None) | Q(io_logging_retention_days__lt=most),
    )
    for workspace in narrower:
        days = workspace.io_logging_retention_days
        if workspace.deleted_at is not None or days is None:
            days = 0
        own = texts.filter(workspace_id=workspace.pk)
        deleted += _delete(own.filter(created_at__lt=Now() - timedelta(days=days)))
    # No text that a worker still has is so old.
    over = TextDeletion.objects.filter(deleted_at__lt=Now() - timedelta(days=most + 1))
    over.filter(is_finished=True).delete()
    return deleted


def _finish(deletion: TextDeletion) -> int:
    """Deletes the rows that a deletion covers, and returns the number of texts."""
    deletion.refresh_from_db(fields=["deleted_at"])
    scope: dict[str, Any] = {"created_at__lte": deletion.deleted_at}
    if deletion.generation_id is not None:
        scope["pk"] = deletion.generation_id
    elif deletion.api_key_id is not None:
        scope["api_key_id"] = deletion.api_key_id
    elif deletion.workspace_id is not None:
        scope["workspace_id"] = deletion.workspace_id
    owner = {"organization_id": deletion.organization_id}
    # An organization has a few thousand of them at most.
    answered = Generation.objects.filter(pk=OuterRef("generation_id")).filter(**scope)
    _delete(KeptAnswer.objects.filter(Exists(answered), **owner))
    deleted = _delete(StoredText.objects.filter(**owner, **scope))
    deletion.is_finished = True
    deletion.save(update_fields=["is_finished"])
    return deleted


def _delete(rows: QuerySet[Any]) -> int:
    deleted = 0
    while ids := list(rows.order_by("created_at").values_list("pk", flat=True)[:_BATCH]):
        deleted += rows.model._default_manager.filter(pk__in=ids).delete()[0]
    return deleted
