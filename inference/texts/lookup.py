"""Reads the stored text of a generation."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection

from config.secrets import DecryptionFailed
from config.sql import execute, load_statement
from inference.requests.problems import Failure
from inference.stored_texts import TextKey
from inference.texts.contents import Content, unseal_content

logger = logging.getLogger(__name__)

FIND_TEXT = load_statement("inference", "find_text")


def find_content(organization_id: UUID, generation_id: str) -> dict[str, Any] | None:
    """Returns the content of a generation in the shape of the interface; ``None`` without one.

    A text whose time is over, or whose deletion was asked for, is gone even if its row still
    exists; so is one that cannot be decrypted.
    """
    with connection.cursor() as cursor:
        execute(cursor, FIND_TEXT, [organization_id, generation_id, settings.IO_LOGGING_DAYS])
        row = cursor.fetchone()
    if row is None:
        return None
    sealed, is_truncated, key_id = row
    key = TextKey.objects.filter(pk=key_id, organization_id=organization_id).first()
    if key is None:
        return None
    try:
        content = unseal_content(bytes(sealed), key.unseal(), organization_id, generation_id)
    except DecryptionFailed:
        logger.warning("the text of %s cannot be decrypted", generation_id)
        return None
    return {**_describe(content), "is_truncated": is_truncated}


def _describe(content: Content) -> dict[str, Any]:
    failure = content.failure
    error = None
    if failure is not None:
        error = {
            "status": failure.status,
            "message": failure.message,
            "provider_name": failure.provider_name,
            # Bytes of a provider may repeat a credential, so none are stored.
            "raw": None,
            "previous_errors": [_describe_earlier(each) for each in content.earlier],
        }
    return {"input": content.input, "output": content.output, "error": error}


def _describe_earlier(failure: Failure) -> dict[str, Any]:
    return {
        "code": failure.status,
        "message": failure.message,
        "provider_name": failure.provider_name,
        "raw": None,
    }
