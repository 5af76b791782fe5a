"""Approves change sets: a second person, the same state, the same transition, one transaction."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import CharField, Q, QuerySet
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from django.http import HttpRequest

from config.api.errors import Conflict, Forbidden
from config.apps import declarations
from config.audit import context as audit
from config.bulk.problems import ImportRefused
from config.changes.models import ChangeSet, ProposerGone
from config.changes.pages import needs_preparation, prepare_change
from config.changes.proposals import find_differences
from config.clocks.clock import clock
from config.secrets import DecryptionFailed

_PREFIX: Final = "operator "
_GONE: Final = "The object no longer exists. Nothing was changed."
_LATE: Final = "The change set has expired. Nothing was changed. Propose it again."


class Undecryptable(Conflict):
    """No configured key decrypts the secrets of a change set."""

    error_type = "key_decryption_failed"
    message = (
        "None of CREDENTIAL_KEYS decrypts what was proposed. Nothing was changed. Reject it, and "
        "propose it again."
    )


def page_of(change_set: ChangeSet) -> Any:
    """Returns the page of the console that made a change set."""
    pages = {model._meta.label_lower: page for model, page in admin.site._registry.items()}
    if change_set.page not in pages or change_set.page not in declarations():
        raise Conflict("This release has no such page. Reject the change set.")
    return pages[change_set.page]


def shown_pages(request: HttpRequest) -> list[str]:
    """Returns the labels of the pages that the operator may view."""
    return [
        model._meta.label_lower
        for model, page in admin.site._registry.items()
        if page.has_view_permission(request)
    ]


def hidden_pages(request: HttpRequest) -> list[str]:
    """Returns the labels of the pages that the operator may not view."""
    labels = {model._meta.label_lower for model in admin.site._registry}
    return sorted(labels.difference(shown_pages(request)))


def shown_numbers(request: HttpRequest) -> QuerySet[Any, Any]:
    """Returns the numbers, as text, of the change sets that the operator may view."""
    pages = shown_pages(request)
    rows = ChangeSet.objects.filter(page__in=pages if "config.changeset" in pages else ())
    return rows.order_by().annotate(number=Cast("pk", CharField())).values("number")


def hide_waiting(rows: QuerySet[Any], request: HttpRequest, event: str = "") -> QuerySet[Any]:
    """Returns rows without events of change sets that the operator may not view.

    ``event`` leads from a row to its event.
    """
    if not hidden_pages(request):
        return rows
    rows = rows.annotate(change_set=KeyTextTransform("number", f"{event}data"))
    is_other = ~Q(**{f"{event}kind": "change.waiting"})
    return rows.filter(is_other | Q(change_set__in=shown_numbers(request)))


def require_decider(change_set: ChangeSet, request: HttpRequest) -> None:
    """Raises :class:`Forbidden` unless the operator may do the operation without a proposal."""
    page = page_of(change_set)
    target = None
    if change_set.object_id:
        target = page.get_object(request, change_set.object_id)
    if target is not None or not change_set.object_id:
        page.require_change_permission(request, change_set, target)


def approve(change_set: ChangeSet, request: HttpRequest) -> tuple[bool, str]:
    """Does what a change set proposes; returns whether it was done, and what to tell.

    A change set that has expired, or whose object is not as it was, is closed, and nothing else
    changes. Every other refusal raises and changes nothing at all. An operation that calls other
    hosts does so before the transaction that makes the change, and everything is checked twice.
    """
    by = audit.actor_of(request)
    try:
        if needs_preparation(page := page_of(change_set), change_set):
            with transaction.atomic():
                target, closed = _find_target(change_set, request, by)
            if closed:
                return False, closed
            change_set.prepared = prepare_change(page, request, change_set, target)
            page.judge_again(request)
        with transaction.atomic():
            target, closed = _find_target(change_set, request, by)
            if closed:
                return False, closed
            with audit.acting_as(by, f"{change_set}, proposed by {change_set.proposed_by}"):
                outcome = page_of(change_set).apply_change(request, change_set, target)
            change_set.mark_applied(by=by, outcome=outcome)
            return True, outcome
    except ImportRefused as exc:
        problems = "; ".join(exc.problems[:5])
        raise Conflict(f"The file is refused now. Nothing was changed. {problems}") from exc
    except DecryptionFailed as exc:
        raise Undecryptable from exc


def _find_target(change_set: ChangeSet, request: HttpRequest, by: str) -> tuple[Any, str]:
    """Locks a change set and its object, and returns the object, or why the change set is closed.

    Raises what forbids the operator to approve it.
    """
    change_set.lock()
    change_set.require_proposed()
    change_set.require_independent(by)
    _require_proposer(change_set)
    if change_set.expires_at <= clock.now():
        change_set.expire()
        return None, _LATE
    if not request.user.has_perm("config.change_changeset"):
        raise Forbidden("Your role may not decide about change sets.")
    page = page_of(change_set)
    target = page.lock_change_target(request, change_set) if change_set.object_id else None
    if change_set.object_id and target is None:
        change_set.mark_outdated(by=by, outcome=_GONE)
        return None, _GONE
    page.require_change_permission(request, change_set, target)
    state = page.read_state_of_change(request, change_set, target)
    if found := find_differences(change_set.state, state):
        names = ", ".join(page.label_state(found))
        outcome = f"Changed since it was proposed: {names}. Nothing was changed. Propose it again."
        change_set.mark_outdated(by=by, outcome=outcome)
        return None, outcome
    return target, ""


def _require_proposer(change_set: ChangeSet) -> None:
    name = change_set.proposed_by.removeprefix(_PREFIX)
    user = User.objects.filter(username=name, is_active=True, is_staff=True).first()
    if user is None or not user.has_perm(change_set.needs):
        raise ProposerGone
