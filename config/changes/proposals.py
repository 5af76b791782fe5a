"""Proposes operations, and compares the rows that they were proposed for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import models, transaction

from config import secrets
from config.api.errors import InvalidRequest
from config.audit.triggers import audit_triggers
from config.bulk.report import PlanRow
from config.changes.kinds import ChangeKind
from config.changes.models import ChangeSet
from config.console.formatting import digest
from config.events.outbox import record_event

# The names of the operations that are no action of a page.
FORM: Final = "form"
DELETE: Final = "delete"
IMPORT: Final = "import"
PRICE: Final = "price"
# The field of forms and dialogs in which an operator says why.
REASON: Final = "change_reason"
MAX_REASON: Final = 1_000
_NEVER_COMPARED: Final = frozenset(("created_at", "updated_at"))


class ReasonMissing(InvalidRequest):
    """An operation needs a second person, who must be told why."""

    error_type = "reason_missing"
    message = (
        "Another operator must approve this. Say why in the field Reason. Nothing was changed."
    )


class Difference(NamedTuple):
    """One thing that a change set changes, as people read it; a row of a plan has some."""

    label: str
    before: str
    after: str
    effect: str = ""
    risk: str = ""

    @property
    def members(self) -> dict[str, Any]:
        return self._asdict()


@dataclass(frozen=True, slots=True)
class Proposal:
    """An operation that an operator wants, before it is stored as a change set.

    ``arguments`` and ``sealed`` are JSON; the second is encrypted. ``state`` names what the
    operation rests on, with a digest of each.
    """

    kind: ChangeKind
    operation: str
    page: str
    needs: str
    subject: str
    object_id: str = ""
    organization_id: UUID | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    sealed: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, str] = field(default_factory=dict)
    changes: Sequence[PlanRow] = ()


def propose(proposal: Proposal, *, by: str, reason: str) -> ChangeSet:
    """Stores a change set; raises :class:`ReasonMissing` without a reason."""
    reason = " ".join(reason.split())[:MAX_REASON]
    if not reason:
        raise ReasonMissing
    made = ChangeSet(
        kind=proposal.kind,
        operation=proposal.operation,
        page=proposal.page,
        needs=proposal.needs,
        subject=proposal.subject[:1_100],
        object_id=proposal.object_id,
        organization_id=proposal.organization_id,
        arguments=dict(proposal.arguments),
        state=dict(proposal.state),
        changes=[write_row(row) for row in proposal.changes],
        reason=reason,
        proposed_by=by,
    )
    if proposal.sealed:
        text = json.dumps(dict(proposal.sealed)).encode()
        made.sealed_arguments = secrets.seal_bytes(text, associated=made.associated)
    with transaction.atomic():
        made.save(force_insert=True)
        record_event(
            "change.waiting",
            organization=None,
            data={"number": made.pk, "subject": made.subject, "proposed_by": by, "reason": reason},
        )
    return made


def read_sealed(change_set: ChangeSet) -> dict[str, Any]:
    """Decrypts the secret arguments; raises :class:`config.secrets.DecryptionFailed`."""
    if change_set.sealed_arguments is None:
        return {}
    blob = bytes(change_set.sealed_arguments)
    return json.loads(secrets.unseal_bytes(blob, associated=change_set.associated))


def read_state(row: models.Model) -> dict[str, str]:
    """Returns a digest of each column of a row that operators change, by the column's name."""
    kind = row._meta.concrete_model._meta.label_lower  # type: ignore[union-attr]
    trigger = audit_triggers().get(kind)
    left_out = {*_NEVER_COMPARED, *(trigger.ignored if trigger is not None else ())}
    return {
        name.attname: digest(getattr(row, name.attname))
        for name in row._meta.concrete_fields
        if name.attname not in left_out and name.column not in left_out
    }


def find_differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Returns the names of what is not as it was."""
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def write_row(row: PlanRow) -> dict[str, Any]:
    """Returns a row of a plan as JSON."""
    changes = [
        [each.label, each.before, each.after, each.effect, each.risk] for each in row.changes
    ]
    return {"kind": row.kind, "row": row.row, "outcome": str(row.outcome), "changes": changes}


def read_rows(stored: Iterable[Mapping[str, Any]]) -> list[PlanRow]:
    """Returns the rows of a plan that :func:`write_row` wrote."""
    return [
        PlanRow(
            each["kind"],
            each["row"],
            each["outcome"],
            [Difference(*change) for change in each["changes"]],
        )
        for each in stored
    ]
