"""The page of the changes that public price lists, and reported usage, propose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.contrib import admin, messages
from django.db.models import Case, QuerySet, When
from django.http import HttpRequest

from catalog.models import CatalogProposal
from catalog.sync import proposals
from catalog.sync.plans.comparing import RISKS, read_changes
from config.audit.context import actor_of
from config.bulk.report import PlanRow, RowOutcome
from config.changes.kinds import ChangeKind, FourEyes
from config.console.actions import Message, bulk_action, transition
from config.console.base import ConsoleAdmin
from config.console.formatting import label_renderer, render_plan
from config.console.unfold import display

_STATES: Final = {
    "waiting": "info", "approved": "success", "refused": "warning", "withdrawn": "",
}  # fmt: skip
# Every text of a risk has one colour.
_DANGER: Final = dict.fromkeys(RISKS, "danger")
_SHOWN: Final = 3
_WAITING_FIRST: Final = Case(When(status="waiting", then=0), default=1)
_RISKY_FIRST: Final = Case(When(risk="", then=1), default=0)


def _describe_approval(proposal: CatalogProposal, form: Any) -> Sequence[Any]:
    return read_changes(proposal.changes)


_APPROVAL: Final = FourEyes(
    (ChangeKind.PRICES,), "catalog.change_modelendpoint", describe=_describe_approval
)


@admin.register(CatalogProposal)
class CatalogProposalAdmin(ConsoleAdmin):
    """Lists the changes that wait for a person, risky ones first; each shows what would change."""

    is_read_only = True
    list_display = (
        "subject", "state", "danger", "cause", "summary", "source", "as_of", "created_at",
    )  # fmt: skip
    list_filter = ("status", "reason", "risk", "source")
    ordering = (_WAITING_FIRST, _RISKY_FIRST, "-created_at", "subject")
    search_fields = ("subject",)
    uuid_search_fields = ("id", "endpoint_id")
    sortable_by = ()
    empty_hint = (
        "What a sync of the catalogue does not apply by itself waits here: much higher prices, "
        "endpoints that a list no longer has, and rows without a price. See sync_catalog and "
        "CATALOG_SYNC. So do estimates of tokens that differ much from what providers report."
    )
    actions = ("approve_selected", "refuse_selected")
    actions_detail = ("approve", "refuse")
    fieldsets = (
        (None, {"fields": ("subject", ("state", "cause"), "danger", ("source", "as_of"))}),
        ("What changes", {"fields": ("comparison",)}),
        ("Decision", {"fields": (("decided_by", "decided_at"),)}),
        ("Record", {"classes": ["collapse"], "fields": (("id", "endpoint_id"), "created_at")}),
    )
    readonly_fields = (
        "subject", "state", "danger", "cause", "source", "as_of", "comparison", "decided_by",
        "decided_at", "id", "endpoint_id", "created_at",
    )  # fmt: skip
    readonly_preprocess_fields = {
        "state": label_renderer(_STATES), "danger": label_renderer(_DANGER),
    }  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[CatalogProposal]:
        return super().get_queryset(request).defer("content")

    @display(description="Status", label=_STATES)
    def state(self, proposal: CatalogProposal) -> str:
        return str(proposal.status)

    @display(description="Risk", ordering="risk", label=_DANGER)
    def danger(self, proposal: CatalogProposal) -> str:
        return proposal.risk

    @display(description="Reason")
    def cause(self, proposal: CatalogProposal) -> str:
        return str(proposal.get_reason_display())

    @display(description="Changes")
    def summary(self, proposal: CatalogProposal) -> str:
        texts = [str(change) for change in read_changes(proposal.changes[:_SHOWN])]
        rest = len(proposal.changes) - _SHOWN
        return "; ".join([*texts, *([f"and {rest} more"] if rest > 0 else [])])

    @display(description="Old → new")
    def comparison(self, proposal: CatalogProposal) -> str:
        outcome = RowOutcome.CREATE if proposal.endpoint_id is None else RowOutcome.UPDATE
        changes = read_changes(proposal.changes)
        return render_plan([PlanRow("endpoint", proposal.subject, outcome, changes)])

    def has_decide_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return request.user.has_perm("catalog.change_modelendpoint")

    def offers_action(self, request: HttpRequest, obj: CatalogProposal, name: str) -> bool:
        return obj.status == CatalogProposal.Status.WAITING

    @transition(
        description="Approve",
        question="Exactly the changes on this page are applied at once. Earlier generations keep "
        "their price.",
        submit="Apply the changes",
        permission="decide",
        icon="check",
        four_eyes=_APPROVAL,
    )
    def approve(self, request: HttpRequest, proposal: CatalogProposal, form: Any) -> Message:
        self._approve(request, proposal)
        return messages.SUCCESS, "The changes are applied."

    @transition(
        description="Refuse",
        question="Nothing changes, and the same change is not proposed again.",
        submit="Refuse the changes",
        permission="decide",
        icon="block",
        danger=True,
    )
    def refuse(self, request: HttpRequest, proposal: CatalogProposal, form: Any) -> Message:
        self._refuse(request, proposal)
        return messages.SUCCESS, "The proposal is refused. Nothing was changed."

    @bulk_action(
        description="Approve the selected proposals",
        question="Exactly the changes that these proposals show are applied at once.",
        permission="decide",
        four_eyes=_APPROVAL,
    )
    def approve_selected(self, request: HttpRequest, proposal: CatalogProposal) -> None:
        self._approve(request, proposal)

    @bulk_action(
        description="Refuse the selected proposals",
        question="Nothing changes, and the same changes are not proposed again.",
        permission="decide",
    )
    def refuse_selected(self, request: HttpRequest, proposal: CatalogProposal) -> None:
        self._refuse(request, proposal)

    def _approve(self, request: HttpRequest, proposal: CatalogProposal) -> None:
        proposals.require_permission(request.user, proposal)
        proposals.approve(proposal, by=actor_of(request))

    def _refuse(self, request: HttpRequest, proposal: CatalogProposal) -> None:
        proposals.require_permission(request.user, proposal)
        proposal.refuse(by=actor_of(request))
