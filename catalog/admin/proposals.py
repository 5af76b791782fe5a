"""The page of the changes that public price lists propose."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join

from catalog.models import CatalogProposal
from catalog.sync import proposals
from config.console.actions import Message, bulk_action, transition
from config.console.base import ReadOnlyAdmin, actor_of
from config.console.formatting import label_renderer
from config.console.unfold import display

_STATES: Final = {
    "waiting": "info", "approved": "success", "refused": "warning", "withdrawn": "",
}  # fmt: skip
_SHOWN: Final = 3


@admin.register(CatalogProposal)
class CatalogProposalAdmin(ReadOnlyAdmin):
    """Lists the changes that wait for a person, latest first; each shows what would change."""

    list_display = ("subject", "state", "cause", "summary", "source", "as_of", "created_at")
    list_filter = ("status", "reason", "source")
    search_fields = ("subject",)
    uuid_search_fields = ("id", "endpoint_id")
    sortable_by = ()
    empty_hint = (
        "What a sync of the catalogue does not apply by itself waits here: much higher prices, "
        "endpoints that a list no longer has, and rows without a price. See sync_catalog and "
        "CATALOG_SYNC."
    )
    actions = ("approve_selected", "refuse_selected")
    actions_detail = ("approve", "refuse")
    fieldsets = (
        (None, {"fields": ("subject", ("state", "cause"), ("source", "as_of"))}),
        ("What changes", {"fields": ("comparison",)}),
        ("Decision", {"fields": (("decided_by", "decided_at"),)}),
        ("Record", {"classes": ["collapse"], "fields": (("id", "endpoint_id"), "created_at")}),
    )
    readonly_fields = (
        "subject", "state", "cause", "source", "as_of", "comparison", "decided_by", "decided_at",
        "id", "endpoint_id", "created_at",
    )  # fmt: skip
    readonly_preprocess_fields = {"state": label_renderer(_STATES)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[CatalogProposal]:
        return super().get_queryset(request).defer("content")

    @display(description="Status", label=_STATES)
    def state(self, proposal: CatalogProposal) -> str:
        return str(proposal.status)

    @display(description="Reason")
    def cause(self, proposal: CatalogProposal) -> str:
        return str(proposal.get_reason_display())

    @display(description="Changes")
    def summary(self, proposal: CatalogProposal) -> str:
        texts = [_change_text(change) for change in proposal.changes[:_SHOWN]]
        rest = len(proposal.changes) - _SHOWN
        return "; ".join([*texts, *([f"and {rest} more"] if rest > 0 else [])])

    @display(description="Old → new")
    def comparison(self, proposal: CatalogProposal) -> str:
        rows = ((_change_text(change),) for change in proposal.changes)
        return format_html("{}", format_html_join("", "<div>{}</div>", rows))

    def has_decide_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return request.user.has_perm("catalog.change_modelendpoint")

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> Any:
        """Returns the actions of a waiting proposal; the model checks it again under a lock."""
        proposal = self.get_object(request, str(object_id))
        if proposal is None or proposal.status != CatalogProposal.Status.WAITING:
            return []
        return super().get_actions_detail(request, object_id)  # type: ignore[misc]

    @transition(
        description="Approve",
        question="Exactly the changes on this page are applied at once. Earlier generations keep "
        "their price.",
        submit="Apply the changes",
        permission="decide",
        icon="check",
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
        proposals.refuse(proposal, by=actor_of(request))


def _change_text(change: dict[str, Any]) -> str:
    old, new = ("–" if change[side] is None else change[side] for side in ("old", "new"))
    percent = change["percent"]
    if percent is None:
        return f"{change['column']}: {old} → {new}"
    sign = "" if percent.startswith("-") else "+"
    return f"{change['column']}: {old} → {new} ({sign}{percent} %)"
