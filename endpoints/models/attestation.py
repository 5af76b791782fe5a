"""Attestations: what an organization declares about its deployments."""

from __future__ import annotations

from typing import Any

from django.db import models

from accounts.models import Region
from config.models import StampField
from config.server import logs
from config.triggers import AppendOnly


class Attestation(models.Model):
    """A declaration about a deployment that is valid until the next one; rows are append-only."""

    id = models.BigAutoField(primary_key=True)
    endpoint = models.ForeignKey(
        "endpoints.PrivateEndpoint", on_delete=models.PROTECT, related_name="attestations"
    )
    declared_zdr = models.BooleanField("declared ZDR", null=True)
    declared_region = models.CharField(max_length=16, choices=Region, null=True)
    stated_at = StampField(auto_now_add=True)
    stated_by = models.CharField(max_length=255, default="")
    request_id = models.CharField(max_length=64, default="")

    class Meta:
        ordering = ("-id",)
        triggers = [AppendOnly()]

    def __str__(self) -> str:
        return f"ZDR {self.declared_zdr}, region {self.declared_region}"

    @property
    def declarations(self) -> tuple[bool | None, str | None]:
        return self.declared_zdr, self.declared_region

    @property
    def is_stated(self) -> bool:
        """Returns whether anything is declared; an attestation may also withdraw all."""
        return self.declarations != (None, None)


def next_attestation(endpoint: Any, *, by: str) -> Attestation | None:
    """Returns an unsaved attestation of an endpoint's declarations.

    Returns ``None`` when the endpoint's attestation already says the same.
    """
    previous: Attestation | None = endpoint.attestation
    declarations = (endpoint.declared_zdr, endpoint.declared_region)
    if declarations == ((None, None) if previous is None else previous.declarations):
        return None
    return Attestation(
        endpoint=endpoint,
        declared_zdr=endpoint.declared_zdr,
        declared_region=endpoint.declared_region,
        stated_by=by,
        request_id=logs.request_id.get(),
    )
