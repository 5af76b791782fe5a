"""The page of the changes that public price lists, and reported usage, propose."""

from __future__ import annotations

from operator import attrgetter, methodcaller
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
from config.console.forms import part
from config.console.unfold import column, display

_STATES: Final = {
    "waiting": "info", "approved": "success", "refused": "warning", "withdrawn": "",
}  # fmt: skip
# Every text of a risk has one colour.
_DANGER: Final = dict.fromkeys(RISKS, "danger")
_DECIDE: Final = "catalog.change_modelendpoint"
_SHOWN: Final = 3
_WAITING_FIRST: Final = Case(When(status="waiting", then=0), default=1)
_RISKY_FIRST: Final = Case(When(risk="", then=1), default=0)


_APPROVAL: Final = FourEyes(
    (ChangeKind.PRICES,), _DECIDE, describe=lambda proposal, form: read_changes(proposal.changes)
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
        part(None, "subject", ("state", "cause"), "danger", ("source", "as_of")),
        part("What changes", "comparison"),
        part("Decision", ("decided_by", "decided_at")),
        part("Record", ("id", "endpoint_id"), "created_at", folded=True),
    )
    readonly_preprocess_fields = {
        "state": label_renderer(_STATES), "danger": label_renderer(_DANGER),
    }  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[CatalogProposal]:
        return super().get_queryset(request).defer("content")

    state = column("Status", lambda proposal: str(proposal.status), label=_STATES)
    danger = column("Risk", attrgetter("risk"), ordering="risk", label=_DANGER)
    cause = column("Reason", methodcaller("get_reason_display"))

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

    def offers_action(self, request: HttpRequest, obj: CatalogProposal, name: str) -> bool:
        return obj.status == CatalogProposal.Status.WAITING

    @transition(
        "Approve", submit="Apply the changes", permission=_DECIDE, icon="check", four_eyes=_APPROVAL
    )
    def approve(self, request: HttpRequest, proposal: CatalogProposal, form: Any) -> Message:
        """Exactly the changes on this page are applied at once.

        Earlier generations keep their price.
        """
        self._approve(request, proposal)
        return messages.SUCCESS, "The changes are applied."

    @transition(
        "Refuse", submit="Refuse the changes", permission=_DECIDE, icon="block", danger=True
    )
    def refuse(self, request: HttpRequest, proposal: CatalogProposal, form: Any) -> Message:
        """Nothing changes, and the same change is not proposed again."""
        self._refuse(request, proposal)
        return messages.SUCCESS, "The proposal is refused. Nothing was changed."

    @bulk_action("Approve the selected proposals", permission=_DECIDE, four_eyes=_APPROVAL)
    def approve_selected(self, request: HttpRequest, proposal: CatalogProposal) -> None:
        """Exactly the changes that these proposals show are applied at once."""
        self._approve(request, proposal)

    @bulk_action("Refuse the selected proposals", permission=_DECIDE)
    def refuse_selected(self, request: HttpRequest, proposal: CatalogProposal) -> None:
        """Nothing changes, and the same changes are not proposed again."""
        self._refuse(request, proposal)

    def _approve(self, request: HttpRequest, proposal: CatalogProposal) -> None:
        proposals.require_permission(request.user, proposal)
        proposals.approve(proposal, by=actor_of(request))

    def _refuse(self, request: HttpRequest, proposal: CatalogProposal) -> None:
        proposals.require_permission(request.user, proposal)
        proposal.refuse(by=actor_of(request))
