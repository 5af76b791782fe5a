"""The rows that ``admit.sql`` stores; their fields are the columns of its batch, in order."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from inference.admission.decide import Admission, AdmissionRequest


class GenerationRow(msgspec.Struct, frozen=True):
    """A pending generation, with the versions by which it was decided."""

    id: str
    organization_id: UUID
    workspace_id: UUID
    api_key_id: UUID
    member_id: UUID | None
    end_user: str | None
    session_id: str | None
    trace: str | None
    preset_id: UUID | None
    region: str
    http_referer: str | None
    app_title: str | None
    user_agent: str | None
    operation: str
    streamed: bool
    model: str
    private_endpoint_id: UUID | None
    model_endpoint_id: UUID | None
    provider_name: str
    price_id: int
    is_byok: bool
    attestation_id: int | None
    request_id: str
    hold_nano: int
    upstream_hold_nano: int
    held_tokens: int
    limit_subjects: list[UUID] | None
    images: int
    units: dict[str, Any] | None
    credits_id: int
    usage_id: int
    key_expires_at: datetime | None
    routing_version: int
    catalog_version: int


def make_row(entry: AdmissionRequest, admission: Admission) -> GenerationRow:
    """Returns the row of an admission, pinned to its first candidate."""
    candidate = admission.candidates[0].candidate
    route, authority = candidate.route, admission.authority
    return GenerationRow(
        id=admission.generation_id,
        organization_id=authority.organization_id,
        workspace_id=authority.workspace_id,
        api_key_id=authority.key_id,
        member_id=authority.member_id,
        end_user=entry.request.user,
        session_id=entry.request.session_id,
        trace=entry.request.trace,
        preset_id=entry.request.preset_id,
        region=entry.region or "global",
        http_referer=entry.http_referer,
        app_title=entry.app_title,
        user_agent=entry.user_agent,
        operation=entry.request.operation,
        streamed=entry.request.stream,
        model=route.model_slug,
        private_endpoint_id=route.endpoint_id if route.is_private else None,
        model_endpoint_id=None if route.is_private else route.endpoint_id,
        provider_name=route.facts.provider_name,
        price_id=route.price_id,
        is_byok=candidate.is_byok,
        attestation_id=route.attestation_id,
        request_id=entry.request_id,
        hold_nano=admission.hold_nano,
        upstream_hold_nano=admission.upstream_hold_nano,
        held_tokens=admission.held_tokens,
        limit_subjects=list(admission.limit_subjects) or None,
        images=admission.request.images,
        units=admission.request.known_units.units,
        credits_id=authority.credits_id,
        usage_id=authority.usage_id,
        key_expires_at=authority.expires_at,
        routing_version=authority.routing_version,
        catalog_version=admission.catalog_version,
    )
