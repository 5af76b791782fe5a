"""The history of a private endpoint: one list of events from several tables.

The API and the console show it; the API shows all of it, page by page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db.models import CharField, F, Q, QuerySet, Value
from django.db.models.functions import Cast
from django.template.loader import render_to_string
from django.utils.html import format_html_join

from catalog.models import PriceVersion
from config.audit.entries import AuditEntry
from config.console.formatting import nano_dollars
from config.egress.rules import TimeLimits
from config.models import TIME_COLUMNS
from endpoints.models import Attestation, PrivateEndpoint, Proof, Validation
from endpoints.pricing import render_endpoint_pricing
from endpoints.validation.parameters import TRIED_NAMES

# The columns of the audit log that a change shows, with their names in the API. Declarations are
# entries of their own.
_COLUMNS: Final[Mapping[str, str]] = {
    **{name: name for name in (
        "status", "disabled_reason", "upstream_model_id", "base_url", "declared_parameters",
        "tested_parameters", "drifted_at", "deleted_at", "released_at", "settings",
    )},
    "fallback": "settings.fallback",
    "price_id": "pricing",
    **{column: f"timeouts.{name}" for name, column in zip(
        TimeLimits._fields, TIME_COLUMNS, strict=True
    )},
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One entry of the history that the API shows; ``by`` is ``None`` where nobody is recorded."""

    at: datetime
    kind: str
    by: str | None = None
    changes: Sequence[Mapping[str, Any]] = field(default_factory=list)
    drift: bool | None = None
    validation: Validation | None = None
    attestation: Attestation | None = None


def find_moments(endpoint: PrivateEndpoint) -> QuerySet[Any, tuple[datetime, str, str]]:
    """Returns the time, the table and the key of each entry, latest first."""
    audited = Q(before=None) | Q(after__has_any_keys=list(_COLUMNS))
    tables = (
        _name_rows(Validation.objects.filter(endpoint=endpoint), "created_at"),
        _name_rows(Attestation.objects.filter(endpoint=endpoint), "stated_at"),
        _name_rows(_audit_entries(endpoint).filter(audited), "at"),
    )
    first, *others = tables
    found: QuerySet[Any, Any] = first.union(*others, all=True)
    return found.order_by("-moment", "-key")


def read_entries(
    endpoint: PrivateEndpoint, moments: Collection[tuple[datetime, str, str]]
) -> list[HistoryEntry]:
    """Returns the entries of a page of :func:`find_moments`; the number of statements is fixed."""
    keys: dict[str, list[str]] = {}
    for _, table, key in moments:
        keys.setdefault(table, []).append(key)
    validations = Validation.objects.filter(pk__in=keys.get("validation", ()))
    audited = list(AuditEntry.objects.filter(pk__in=keys.get("auditentry", ())))
    stated = Attestation.objects.filter(pk__in=keys.get("attestation", ()))
    versions = {
        side["price_id"]
        for entry in audited
        for side in (entry.before, entry.after)
        if side and "price_id" in side
    }
    prices = PriceVersion.objects.in_bulk(versions)
    found = {
        **{("validation", str(row.pk)): _show_validation(row) for row in validations},
        **{("auditentry", str(row.pk)): _show_change(row, prices) for row in audited},
        **{
            ("attestation", str(row.pk)): HistoryEntry(
                at=row.stated_at, kind="attested", by=row.stated_by or None, attestation=row
            )
            for row in stated
        },
    }
    return [found[table, key] for _, table, key in moments if (table, key) in found]


def _name_rows(rows: QuerySet[Any], column: str) -> QuerySet[Any, Any]:
    table = str(rows.model._meta.model_name)
    named: QuerySet[Any, Any] = rows.order_by().annotate(
        moment=F(column),
        table=Value(table, output_field=CharField()),
        key=Cast("pk", CharField()),
    )
    return named.values_list("moment", "table", "key")


def _show_validation(row: Validation) -> HistoryEntry:
    is_watch = row.purpose == Validation.Purpose.WATCH
    return HistoryEntry(
        at=row.created_at,
        kind="watched" if is_watch else "validated",
        by=row.validated_by or None,
        changes=[_show_difference(each["name"], each["was"], each["is"]) for each in row.changes],
        drift=row.shows_drift if is_watch else None,
        validation=row,
    )


def _show_change(entry: AuditEntry, prices: Mapping[int, PriceVersion]) -> HistoryEntry:
    before, after = entry.before, entry.after or {}
    if before is None:
        return HistoryEntry(at=entry.at, kind="created", by=entry.actor)
    changes: list[dict[str, Any]] = []
    for column, name in _COLUMNS.items():
        if column not in after:
            continue
        was, now = before.get(column), after[column]
        if column == "settings":
            old, new = (dict(_flatten(side or {}, "settings")) for side in (was, now))
            changes += (
                _show_difference(each, old.get(each), new.get(each))
                for each in sorted(old.keys() | new.keys())
                if old.get(each) != new.get(each)
            )
        elif column == "price_id":
            shown = (render_endpoint_pricing(prices[key].price) for key in (was, now))
            changes.append(dict(zip(("field", "was", "is"), (name, *shown), strict=True)))
        else:
            changes.append(_show_difference(name, was, now))
    return HistoryEntry(at=entry.at, kind="changed", by=entry.actor, changes=changes)


def _show_difference(name: str, was: Any, now: Any) -> dict[str, Any]:
    """Returns a change, with its size if both values are numbers."""
    shown = {"field": name, "was": was, "is": now}
    if all(isinstance(each, int) and not isinstance(each, bool) for each in (was, now)):
        shown["difference"] = now - was
    return shown


def _flatten(members: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in members.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{path}.{name}")
        else:
            yield f"{path}.{name}", value


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
            by=validation.validated_by,
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
    for entry in _last_changes(endpoint, Q(after__has_any_keys=list(_UPSTREAM))):
        after: dict[str, Any] = entry.after or {}
        parts = [f"{label} {after[name]}" for name, label in _UPSTREAM.items() if after.get(name)]
        yield HistoryEvent(
            at=entry.at, title="edited", kind="info", by=entry.actor, text=", ".join(parts)
        )


def _audit_entries(endpoint: PrivateEndpoint) -> QuerySet[AuditEntry]:
    return AuditEntry.objects.filter(
        kind=PrivateEndpoint._meta.label_lower, object_id=str(endpoint.pk)
    )


def _last_changes(endpoint: PrivateEndpoint, condition: Q) -> QuerySet[AuditEntry]:
    """Returns the last audit entries of the endpoint that match a condition."""
    rows = _audit_entries(endpoint).filter(condition, before__isnull=False)
    return rows.order_by("-id")[:SHOWN]


def _transitions(endpoint: PrivateEndpoint) -> Iterator[HistoryEvent]:
    """Yields the transitions in the audit log, and those that only the row's stamps record."""
    logged = set()
    for entry in _last_changes(endpoint, Q(after__has_key="status")):
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
