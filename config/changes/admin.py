"""The pages of change sets and of the rules that demand a second person."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin, messages
from django.db.models import Case, QuerySet, When
from django.http import HttpRequest, HttpResponse

from config.api.errors import Conflict, GatewayError
from config.audit.context import actor_of
from config.changes import deciding
from config.changes.kinds import DESCRIPTIONS, ChangeKind, FourEyes
from config.changes.models import ChangeRule, ChangeSet, list_requirements
from config.changes.proposals import Difference, read_rows
from config.console.actions import Message, bulk_action, transition
from config.console.base import ConsoleAdmin
from config.console.formatting import label_renderer, render_plan
from config.console.forms import NoteField, part
from config.console.unfold import Dialog, column, display

_STATES: Final = {
    "proposed": "info", "applied": "success", "rejected": "warning", "outdated": "warning",
    "expired": "warning", "withdrawn": "",
}  # fmt: skip
_RULES: Final = {"two people": "success", "one person": ""}
_WAITING_FIRST: Final = Case(When(status="proposed", then=0), default=1)


class RejectDialog(Dialog):
    note = NoteField(required=False, label="Why", help_text="The operator who proposed reads it.")


@admin.register(ChangeSet)
class ChangeSetAdmin(ConsoleAdmin):
    """Lists what waits for a second person, oldest first, and then what was decided."""

    is_read_only = True
    list_display = (
        "title", "progress", "subject", "kind_name", "proposed_by", "proposed_at", "decided_by",
    )  # fmt: skip
    list_display_links = ("title",)
    list_filter = ("status", "kind")
    search_fields = ("subject", "proposed_by")
    uuid_search_fields = ("organization_id",)
    sortable_by = ()
    ordering = (_WAITING_FIRST, "-id")
    empty_hint = (
        "Nothing waits. Say on the page Change rules which changes another operator must approve."
    )
    actions = ("approve_selected", "reject_selected")
    actions_detail = ("approve", "reject", "withdraw")
    fieldsets = (
        part(None, ("subject", "progress"), ("kind_name", "what"), "reason"),
        part("What changes", "comparison"),
        part("People", ("proposed_by", "proposed_at"), ("decided_by", "decided_at"), "ends"),
        part("Outcome", "outcome"),
        part("Record", ("id", "object_id", "organization_id"), folded=True),
    )
    readonly_preprocess_fields = {"progress": label_renderer(_STATES)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[ChangeSet]:
        """Returns the change sets of the pages that the operator may view, without contents."""
        rows = super().get_queryset(request).filter(page__in=deciding.shown_pages(request))
        return rows.defer("sealed_arguments", "arguments", "state")

    @display(description="Change set")
    def title(self, change_set: ChangeSet) -> str:
        return f"#{change_set.pk}"

    progress = column("Status", lambda change_set: str(change_set.status), label=_STATES)
    kind_name = column("Kind", lambda change_set: str(ChangeKind(change_set.kind).label))

    @display(description="Operation")
    def what(self, change_set: ChangeSet) -> str:
        if change_set.operation == "form":
            return "change" if change_set.object_id else "add"
        return change_set.operation.removesuffix("_selected").replace("_", " ")

    comparison = column("Old → new", lambda change_set: render_plan(read_rows(change_set.changes)))

    @display(description="Expires")
    def ends(self, change_set: ChangeSet) -> Any:
        is_open = change_set.status == ChangeSet.Status.PROPOSED
        return f"{change_set.expires_at:%Y-%m-%d %H:%M} UTC" if is_open else ""

    def has_decide_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Returns whether the operator may decide, and has the permission of the operation."""
        if not request.user.has_perm("config.change_changeset"):
            return False
        if object_id is None:
            return True
        change_set = self.get_object(request, str(getattr(object_id, "pk", object_id)))
        return change_set is None or request.user.has_perm(change_set.needs)

    def offers_action(self, request: HttpRequest, obj: ChangeSet, name: str) -> bool:
        if obj.status != ChangeSet.Status.PROPOSED:
            return False
        return (name == "withdraw") == (obj.proposed_by == actor_of(request))

    @transition("Approve", submit="Approve and apply", permission="decide", icon="check")
    def approve(
        self, request: HttpRequest, change_set: ChangeSet, form: Any
    ) -> Message | HttpResponse:
        """Exactly what this page shows is done at once, in your name and in that of the operator
        who proposed it.
        """
        is_done, text = deciding.approve(change_set, request)
        shown: HttpResponse | None = deciding.page_of(change_set).show_applied(request)
        if shown is not None:
            return shown
        return (messages.SUCCESS if is_done else messages.WARNING), text

    @transition(
        "Reject", submit="Reject", permission="decide", icon="block", danger=True, form=RejectDialog
    )
    def reject(self, request: HttpRequest, change_set: ChangeSet, form: Any) -> Message:
        """Nothing changes. It can be proposed again."""
        deciding.require_decider(change_set, request)
        change_set.reject(by=actor_of(request), note=form.cleaned_data["note"])
        return messages.SUCCESS, "It is rejected. Nothing was changed."

    @transition("Withdraw", submit="Withdraw", permission="decide", icon="undo")
    def withdraw(self, request: HttpRequest, change_set: ChangeSet, form: Any) -> Message:
        """Nothing changes. It can be proposed again."""
        change_set.withdraw(by=actor_of(request))
        return messages.SUCCESS, "It is withdrawn. Nothing was changed."

    @bulk_action("Approve the selected change sets", permission="decide")
    def approve_selected(self, request: HttpRequest, change_set: ChangeSet) -> None:
        """Exactly what these change sets show is done at once."""
        if change_set.kind == ChangeKind.MANAGEMENT_KEYS:
            raise Conflict("Approve it on its own page, which shows the key once.")
        is_done, text = deciding.approve(change_set, request)
        if not is_done:
            raise GatewayError(text)

    @bulk_action("Reject the selected change sets", permission="decide")
    def reject_selected(self, request: HttpRequest, change_set: ChangeSet) -> None:
        """Nothing changes. They can be proposed again."""
        deciding.require_decider(change_set, request)
        change_set.reject(by=actor_of(request))


class _OwnKind(FourEyes):
    """Demands a second person to relax a rule for as long as the rule holds."""

    def find_demand(self, obj: Any) -> ChangeKind | None:
        is_on = obj is not None and list_requirements()[obj.kind]
        return ChangeKind(obj.kind) if is_on else None


def _describe_relaxing(rule: ChangeRule, form: Any) -> list[Difference]:
    return [
        Difference(str(ChangeKind(rule.kind).label), "two people", "one person", risk="four eyes")
    ]


@admin.register(ChangeRule)
class ChangeRuleAdmin(ConsoleAdmin):
    """Lists the kinds of changes; an administrator demands a second person for some."""

    is_read_only = True
    list_display = ("name", "demand", "covers")
    list_display_links = ("name",)
    uuid_search_fields = ()
    sortable_by = ()
    ordering = ("kind",)
    actions_detail = ("require", "relax")
    fieldsets = (part(None, "name", "demand", "covers"),)
    readonly_preprocess_fields = {"demand": label_renderer(_RULES)}

    name = column("Kind", lambda rule: str(ChangeKind(rule.kind).label))

    @display(description="Needs", label=_RULES)
    def demand(self, rule: ChangeRule) -> str:
        return "two people" if rule.is_required else "one person"

    covers = column("Covers", lambda rule: DESCRIPTIONS[ChangeKind(rule.kind)])

    def offers_action(self, request: HttpRequest, obj: ChangeRule, name: str) -> bool:
        return (name == "relax") == obj.is_required

    @transition(
        "Require a second person",
        submit="Require a second person",
        permission="config.change_changerule",
        icon="group_add",
    )
    def require(self, request: HttpRequest, rule: ChangeRule, form: Any) -> Message:
        """From now on another operator must approve such changes in the console. To switch this off
        again, another operator must approve that too.
        """
        if rule.require():
            return messages.SUCCESS, f"{rule}: another operator must approve changes from now on."
        return messages.INFO, "This needs a second person already."

    @transition(
        "Let one person do it",
        submit="Let one person do it",
        permission="config.change_changerule",
        icon="person",
        danger=True,
        four_eyes=_OwnKind(
            kinds=tuple(ChangeKind), needs="config.change_changerule", describe=_describe_relaxing
        ),
    )
    def relax(self, request: HttpRequest, rule: ChangeRule, form: Any) -> Message:
        """From now on one operator alone may make such changes."""
        if rule.relax():
            return messages.SUCCESS, f"{rule}: one operator may make changes alone."
        return messages.INFO, "One person is enough already."
