"""The history of a private endpoint: one list of events from several tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Q, QuerySet
from django.template.loader import render_to_string
from django.utils.html import format_html_join

from config.audit.entries import AuditEntry
from config.console.formatting import nano_dollars
from endpoints.models import Attestation, PrivateEndpoint, Proof, Validation
from endpoints.validation.parameters import TRIED_NAMES

SHOWN: Final = 20
_PASSED: Final = {
    Validation.Outcome.PASSED: "success",
    Validation.Outcome.TIMED_OUT: "warning",
}
_UPSTREAM: Final = {"upstream_model_id": "upstream model", "base_url": "base URL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """One event of the history; ``body`` is rendered HTML with details."""

    at: datetime
    title: str
    kind: str
    by: str = ""
    text: str = ""
    body: str = ""


def events(endpoint: PrivateEndpoint) -> list[HistoryEvent]:
    """Returns the events, latest first, at most ``SHOWN`` of each kind."""
    found = [
        *_validations(endpoint),
        *_declarations(endpoint),
        *_edits(endpoint),
        *_transitions(endpoint),
    ]
    if endpoint.drifted_at is not None:
        text = "The deployment differs from the one that was activated."
        found.append(
            HistoryEvent(at=endpoint.drifted_at, title="drifted", kind="danger", text=text)
        )
    found.sort(key=lambda event: event.at, reverse=True)
    # The declarations of a new endpoint are stamped a moment before the endpoint itself.
    return [*found, HistoryEvent(at=endpoint.created_at, title="created", kind="info")]


def _validations(endpoint: PrivateEndpoint) -> Iterator[HistoryEvent]:
    rows = Validation.objects.filter(endpoint=endpoint).select_related("workspace", "credential")
    for validation in rows.order_by("-created_at")[:SHOWN]:
        parts = [
            f"for {validation.purpose}",
            f"in {validation.workspace.name}" if validation.workspace else "",
            f"with {validation.credential}" if validation.credential else "without a credential",
            f"{validation.duration_ms} ms, {nano_dollars(validation.cost_nano)}",
        ]
        outcome = Validation.Outcome(validation.outcome)
        yield HistoryEvent(
            at=validation.created_at,
            title=f"validation {outcome.label}",
            kind=_PASSED.get(outcome, "danger"),
            text=", ".join(part for part in parts if part),
            body=render_checks(validation),
        )


def render_operations(validation: Validation) -> str:
    """Renders which operations a validation has proven, and what the deployment said of others."""
    found = validation.operations
    if found is None and not validation.passed:
        return "None was tried: the validation failed before."
    if found is None:
        return "An earlier release stored no operations: those that the catalogue lists are served."
    refusals = validation.evidence.get("refusals", {})
    rows = ((name, Proof(proof).label, refusals.get(name, "")) for name, proof in found.items())
    return format_html_join("", "<div>/{}: {} {}</div>", rows)


def render_proofs(validation: Validation) -> str:
    """Renders what a validation has shown about each parameter that one can try."""
    found = validation.parameters or {}
    rows = (
        (name, Proof(found[name]).label if name in found else "not tried") for name in TRIED_NAMES
    )
    return format_html_join("", "<div>{}: {}</div>", rows)


def render_checks(validation: Validation) -> str:
    """Renders the checks of a validation as a table, with what was expected beside the answer."""
    return render_to_string(
        "admin/endpoints/checks.html",
        {
            "headers": ("Check", "Result", "Reason", "Expected", "Actual"),
            "checks": [
                check | {"expected": "200"} if check.get("upstream_status") else check
                for check in validation.checks
            ],
        },
    )


def _declarations(endpoint: PrivateEndpoint) -> Iterator[HistoryEvent]:
    for stated in Attestation.objects.filter(endpoint=endpoint).order_by("-id")[:SHOWN]:
        zdr = {None: "ZDR not declared", True: "ZDR", False: "no ZDR"}[stated.declared_zdr]
        region = stated.declared_region
        yield HistoryEvent(
            at=stated.stated_at,
            title="declared",
            kind="info",
            by=stated.stated_by,
            text=f"{zdr}, {f'region {region}' if region else 'no region'}",
        )


def _edits(endpoint: PrivateEndpoint) -> Iterator[HistoryEvent]:
    """Yields the edits of the upstream; declarations are events of their own."""
    for entry in _audit_entries(endpoint, Q(after__has_any_keys=list(_UPSTREAM))):
        after: dict[str, Any] = entry.after or {}
        parts = [f"{label} {after[name]}" for name, label in _UPSTREAM.items() if after.get(name)]
        yield HistoryEvent(
            at=entry.at, title="edited", kind="info", by=entry.actor, text=", ".join(parts)
        )


def _audit_entries(endpoint: PrivateEndpoint, condition: Q) -> QuerySet[AuditEntry]:
    """Returns the last audit entries of the endpoint that match a condition."""
    rows = AuditEntry.objects.filter(
        condition,
        kind=PrivateEndpoint._meta.label_lower,
        object_id=str(endpoint.pk),
        before__isnull=False,
    )
    return rows.order_by("-id")[:SHOWN]


def _transitions(endpoint: PrivateEndpoint) -> Iterator[HistoryEvent]:
    """Yields the transitions in the audit log, and those that only the row's stamps record."""
    logged = set()
    for entry in _audit_entries(endpoint, Q(after__has_key="status")):
        after: dict[str, Any] = entry.after or {}
        title = _title(after)
        stamp = after.get(f"{title}_at")
        logged.add((title, None if stamp is None else datetime.fromisoformat(stamp)))
        yield HistoryEvent(
            at=entry.at,
            title=title,
            kind="warning" if title == "disabled" else "success",
            by=entry.actor,
            text=after.get("disabled_reason") or "",
        )
    if endpoint.activated_at is not None and ("activated", endpoint.activated_at) not in logged:
        yield HistoryEvent(
            at=endpoint.activated_at, title="activated", kind="success", by=endpoint.activated_by
        )
    if endpoint.disabled_at is not None and ("disabled", endpoint.disabled_at) not in logged:
        yield HistoryEvent(
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
