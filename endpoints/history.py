"""What became of a private endpoint, as one list of events made of the rows that tell of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Q, QuerySet
from django.template.loader import render_to_string

from config.audit.entries import AuditEntry
from config.console.formatting import nano_dollars
from endpoints.models import Attestation, PrivateEndpoint, Validation

SHOWN: Final = 20
_PASSED: Final = {
    Validation.Outcome.PASSED: "success",
    Validation.Outcome.TIMED_OUT: "warning",
}
_UPSTREAM: Final = {"upstream_model_id": "upstream model", "base_url": "base URL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened: when, what, by whom; ``body`` is more of it, already rendered."""

    at: datetime
    title: str
    kind: str
    by: str = ""
    text: str = ""
    body: str = ""


def events(endpoint: PrivateEndpoint) -> list[Event]:
    """Returns what happened, latest first; of validations and changes the last ones of each."""
    found = [
        *_validations(endpoint),
        *_declarations(endpoint),
        *_edits(endpoint),
        *_transitions(endpoint),
    ]
    if endpoint.drifted_at is not None:
        text = "It answers otherwise than when it was activated."
        found.append(Event(at=endpoint.drifted_at, title="drifted", kind="danger", text=text))
    found.sort(key=lambda event: event.at, reverse=True)
    # What was declared with it is stamped a moment before.
    return [*found, Event(at=endpoint.created_at, title="created", kind="info")]


def _validations(endpoint: PrivateEndpoint) -> Iterator[Event]:
    rows = Validation.objects.filter(endpoint=endpoint).select_related("workspace", "credential")
    for validation in rows.order_by("-created_at")[:SHOWN]:
        parts = [
            f"for {validation.purpose}",
            f"in {validation.workspace.name}" if validation.workspace else "",
            f"with {validation.credential}" if validation.credential else "without a credential",
            f"{validation.duration_ms} ms, {nano_dollars(validation.cost_nano)}",
        ]
        outcome = Validation.Outcome(validation.outcome)
        yield Event(
            at=validation.created_at,
            title=f"validation {outcome.label}",
            kind=_PASSED.get(outcome, "danger"),
            text=", ".join(part for part in parts if part),
            body=checks_table(validation),
        )


def checks_table(validation: Validation) -> str:
    """Returns every check of a validation as a table."""
    return render_to_string(
        "admin/endpoints/checks.html",
        {
            "headers": ("Check", "Result", "Reason", "Upstream", "Actual model"),
            "checks": validation.checks,
        },
    )


def _declarations(endpoint: PrivateEndpoint) -> Iterator[Event]:
    for stated in Attestation.objects.filter(endpoint=endpoint).order_by("-id")[:SHOWN]:
        zdr = {None: "nothing of ZDR", True: "ZDR", False: "no ZDR"}[stated.declared_zdr]
        region = stated.declared_region
        yield Event(
            at=stated.stated_at,
            title="declared",
            kind="info",
            by=stated.stated_by,
            text=f"{zdr}, {f'region {region}' if region else 'no region'}",
        )


def _edits(endpoint: PrivateEndpoint) -> Iterator[Event]:
    """Yields the changes of the upstream; what is declared with one stands beside it."""
    for entry in _audited(endpoint, Q(after__has_any_keys=list(_UPSTREAM))):
        after: dict[str, Any] = entry.after or {}
        parts = [f"{label} {after[name]}" for name, label in _UPSTREAM.items() if after.get(name)]
        yield Event(at=entry.at, title="edited", kind="info", by=entry.actor, text=", ".join(parts))


def _audited(endpoint: PrivateEndpoint, wanted: Q) -> QuerySet[AuditEntry]:
    """Returns the last changes of some fields that the audit log has."""
    rows = AuditEntry.objects.filter(
        wanted,
        kind=PrivateEndpoint._meta.label_lower,
        object_id=str(endpoint.pk),
        before__isnull=False,
    )
    return rows.order_by("-id")[:SHOWN]


def _transitions(endpoint: PrivateEndpoint) -> Iterator[Event]:
    """Yields what the audit log has, and the stamps of the row for what nobody did by name."""
    told = set()
    for entry in _audited(endpoint, Q(after__has_key="status")):
        after: dict[str, Any] = entry.after or {}
        title = _title(after)
        stamp = after.get(f"{title}_at")
        told.add((title, None if stamp is None else datetime.fromisoformat(stamp)))
        yield Event(
            at=entry.at,
            title=title,
            kind="warning" if title == "disabled" else "success",
            by=entry.actor,
            text=after.get("disabled_reason") or "",
        )
    if endpoint.activated_at is not None and ("activated", endpoint.activated_at) not in told:
        yield Event(
            at=endpoint.activated_at, title="activated", kind="success", by=endpoint.activated_by
        )
    if endpoint.disabled_at is not None and ("disabled", endpoint.disabled_at) not in told:
        yield Event(
            at=endpoint.disabled_at,
            title="disabled",
            kind="warning",
            by=endpoint.disabled_by,
            text=endpoint.disabled_reason,
        )


def _title(after: dict[str, Any]) -> str:
    if after["status"] == PrivateEndpoint.Status.DISABLED:
        return "disabled"
    return "activated" if after.get("activated_at") else "enabled"
