"""The operations on guardrails that need a second person, once a rule demands one."""

from __future__ import annotations

from typing import Any, Final

from accounts.admin.guardrails.shadows import describe_enforcement
from accounts.models import Guardrail
from config.changes.kinds import ChangeKind, FourEyes


def applies_to_all(guardrail: Guardrail) -> bool:
    """Returns whether a guardrail limits a whole workspace."""
    workspace = guardrail.workspace
    return workspace is not None and workspace.default_guardrail_id == guardrail.pk


class _RemovalGuard(FourEyes):
    """Guards each deletion as one, and that of a whole workspace's guardrail as its change too."""

    def find_demand(self, obj: Any) -> ChangeKind | None:
        kind = super().find_demand(obj)
        if kind is None and obj is not None:
            kind = FORM.find_demand(obj)
        return kind


FORM: Final = FourEyes((ChangeKind.GUARDRAILS,), is_guarded=applies_to_all)
ENFORCEMENT: Final = FourEyes(
    (ChangeKind.GUARDRAILS,),
    "accounts.change_guardrail",
    is_guarded=applies_to_all,
    describe=describe_enforcement,
)
REMOVAL: Final = _RemovalGuard((ChangeKind.DELETIONS,), "accounts.delete_guardrail")
