"""The tables of requests with an ``Idempotency-Key`` and of the answers that are kept."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class IdempotentRequest(models.Model):
    """The use of an ``Idempotency-Key`` by one API key on one route.

    The row is stored before admission with the id that the generation will have, so what has become
    of the request follows from its generation. ``begin_key_use.sql`` has the rules.
    """

    id = models.BigAutoField(primary_key=True)
    api_key_id = models.UUIDField()
    route = models.CharField(max_length=64)
    key = models.CharField(max_length=255, db_collation="C")
    fingerprint = models.BinaryField(help_text="A digest of the body and of what changes it.")
    generation_id = models.CharField(max_length=48, db_collation="C")
    is_kept = models.BooleanField(help_text="Its workspace keeps answers.")
    claimed_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=("api_key_id", "route", "key"), name="idempotent_request_once"
            )
        ]
        indexes = [
            models.Index(fields=("generation_id",), name="idempotent_by_generation"),
            models.Index(fields=("expires_at",), name="idempotent_by_expiry"),
        ]

    def __str__(self) -> str:
        return f"{self.route} {self.generation_id}"


class KeptAnswer(models.Model):
    """An answer, encrypted, that the same request gets again for a limited time.

    With a ``cache_key`` it is an entry of the response cache of its organization, and
    ``endpoint_id`` is the endpoint that answered. Without one it belongs to the
    ``Idempotency-Key`` of its generation.
    """

    id = models.BigAutoField(primary_key=True)
    organization_id = models.UUIDField()
    generation_id = models.CharField(max_length=48, db_collation="C")
    cache_key = models.BinaryField(null=True)
    endpoint_id = models.UUIDField(null=True)
    sealed = models.BinaryField()
    size = models.IntegerField(help_text="What it counts against the organization's limit.")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=("organization_id", "cache_key"),
                condition=Q(cache_key__isnull=False),
                name="kept_answer_cached_once",
            ),
            models.UniqueConstraint(
                fields=("generation_id",),
                condition=Q(cache_key__isnull=True),
                name="kept_answer_once",
            ),
        ]
        indexes = [
            models.Index(
                fields=("organization_id", "id"),
                include=("cache_key", "size"),
                name="kept_answer_by_organization",
            ),
            models.Index(fields=("expires_at",), name="kept_answer_by_expiry"),
        ]

    def __str__(self) -> str:
        return self.generation_id
