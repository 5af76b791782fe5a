"""The history of a private endpoint: one list of events from several tables.

The API and the console show it; the API shows all of it, page by page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db.models import CharField, F, Q, QuerySet, Value
from django.db.models.functions import Cast
from django.template.loader import render_to_string
from django.utils.html import format_html_join

from catalog.models import PriceVersion
from config.audit.entries import AuditEntry
from config.console.formatting import NOTHING, nano_dollars
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
    first, *others = _find_rows(endpoint)
    found: QuerySet[Any, Any] = first.union(*others, all=True)
    return found.order_by("-moment", "-key")


def read_entries(
    endpoint: PrivateEndpoint, moments: Collection[tuple[datetime, str, str]]
) -> list[HistoryEntry]:
    """Returns the entries of a page of :func:`find_moments`; the number of statements is fixed."""
    keys: dict[str, list[str]] = {}
    for _, table, key in moments:
        keys.setdefault(table, []).append(key)
    validations = Validation.objects.select_related("workspace", "credential")
    validations = validations.filter(pk__in=keys.get("validation", ()))
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


def _find_rows(endpoint: PrivateEndpoint) -> Sequence[QuerySet[Any, Any]]:
    """Returns the entries of each table, as :func:`find_moments` does."""
    audited = AuditEntry.objects.filter(
        Q(before=None) | Q(after__has_any_keys=list(_COLUMNS)),
        kind=PrivateEndpoint._meta.label_lower,
        object_id=str(endpoint.pk),
    )
    return (
        _name_rows(Validation.objects.filter(endpoint=endpoint), "created_at"),
        _name_rows(Attestation.objects.filter(endpoint=endpoint), "stated_at"),
        _name_rows(audited, "at"),
    )


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
            old, new = (dict(_flatten({"settings": side or {}})) for side in (was, now))
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


def _flatten(members: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in members.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


SHOWN: Final = 20
_COLOURS: Final = {
    "activated": "success", "enabled": "success", "recovered": "success",
    "disabled": "warning", "deleted": "warning", "drifted": "danger",
    f"validation {Validation.Outcome.PASSED.label}": "success",
    f"validation {Validation.Outcome.TIMED_OUT.label}": "warning",
}  # fmt: skip
_STAMPS: Final = {"released_at": "released", "deleted_at": "deleted", "drifted_at": "drifted"}
_IN_TITLES: Final = ("status", "disabled_reason", *_STAMPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """One event of the history; ``body`` is rendered HTML with details."""

    at: datetime
    title: str
    by: str = ""
    text: str = ""
    body: str = ""

    @property
    def kind(self) -> str:
        """The colour of the title."""
        is_failure = self.title.startswith("validation ")
        return _COLOURS.get(self.title, "danger" if is_failure else "info")


def events(endpoint: PrivateEndpoint) -> list[HistoryEvent]:
    """Returns the events, latest first, at most ``SHOWN`` of each table."""
    latest = (rows.order_by("-moment", "-key")[:SHOWN] for rows in _find_rows(endpoint))
    moments = [moment for rows in latest for moment in rows]
    found = [_tell(entry) for entry in read_entries(endpoint, moments)]
    told = {event.title for event in found}
    # The audit log has no entry of who acts under no name, nor of what is older than it keeps.
    for title, at, by, text in (
        ("drifted", endpoint.drifted_at, "", ""),
        ("disabled", endpoint.disabled_at, endpoint.disabled_by, endpoint.disabled_reason),
        ("activated", endpoint.activated_at, endpoint.activated_by, ""),
        ("created", endpoint.created_at, "", ""),
    ):
        if at is not None and title not in told:
            found.append(HistoryEvent(at=at, title=title, by=by, text=text))
    # The declarations of a new endpoint are stamped a moment before the endpoint itself.
    return sorted(found, key=lambda event: (event.title != "created", event.at), reverse=True)


def _tell(entry: HistoryEntry) -> HistoryEvent:
    """Returns an entry as the console shows it."""
    title, text, body = entry.kind, "", ""
    if (validation := entry.validation) is not None:
        title = f"validation {Validation.Outcome(validation.outcome).label}"
        parts = (
            f"for {validation.purpose}",
            f"in {validation.workspace.name}" if validation.workspace else "",
            f"with {validation.credential}" if validation.credential else "without a credential",
            f"{validation.duration_ms} ms, {nano_dollars(validation.cost_nano)}",
            _write_changes(entry.changes),
        )
        text, body = ", ".join(filter(None, parts)), render_checks(validation)
    elif (stated := entry.attestation) is not None:
        zdr = {None: "ZDR not declared", True: "ZDR", False: "no ZDR"}[stated.declared_zdr]
        region = stated.declared_region
        title, text = "declared", f"{zdr}, {f'region {region}' if region else 'no region'}"
    elif entry.kind == "changed":
        title, reason = _name_changes({each["field"]: each for each in entry.changes})
        others = (each for each in entry.changes if each["field"] not in _IN_TITLES)
        text = ", ".join(filter(None, (reason, _write_changes(others))))
    return HistoryEvent(at=entry.at, title=title, by=entry.by or "", text=text, body=body)


def _name_changes(changes: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Returns what changes by the names of their fields amount to, and the reason that is given."""
    if (status := changes.get("status")) is not None:
        if status["is"] == PrivateEndpoint.Status.DISABLED:
            return "disabled", changes.get("disabled_reason", {}).get("is", "")
        return ("activated" if status["was"] == PrivateEndpoint.Status.DRAFT else "enabled"), ""
    for field_name, title in _STAMPS.items():
        if (change := changes.get(field_name)) is not None:
            return (title if change["is"] else "recovered"), ""
    if set(changes) == {"tested_parameters"}:
        # A validation has learned them, and nobody has edited.
        return "tested", ""
    return "edited", ""


def _write_changes(changes: Iterable[Mapping[str, Any]]) -> str:
    """Returns each change as the old value and the new one; of objects, what differs in them."""
    lines: list[str] = []
    for change in changes:
        was, now = (dict(_flatten({change["field"]: change[side]})) for side in ("was", "is"))
        lines += (
            f"{name}: {_write(was.get(name))} → {_write(now.get(name))}"
            for name in {**was, **now}
            if was.get(name) != now.get(name)
        )
    return ", ".join(lines)


def _write(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return NOTHING if value in (None, "") else str(value)


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
