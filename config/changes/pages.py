"""Makes the pages of the console propose what needs a second person, and apply it once approved.

The stored operation runs through the same form, the same permissions and the same method as the
direct one, in the session of the operator who approves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Final

from django import forms
from django.apps import apps
from django.contrib import messages
from django.contrib.auth.models import AnonymousUser, Group, User
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import reverse
from django_otp.middleware import OTPMiddleware

from config.api.errors import Conflict, Forbidden, GatewayError
from config.api.text import plain_digits
from config.apps import tenant_label
from config.audit.context import actor_of
from config.bulk.report import PlanRow, RowOutcome
from config.changes.kinds import ChangeKind, FourEyes
from config.changes.models import ChangeSet
from config.changes.proposals import (
    DELETE,
    FORM,
    REASON,
    Difference,
    Proposal,
    propose,
    read_sealed,
    read_state,
)
from config.console.formatting import NOTHING, per_million, write_difference
from config.console.forms import SecretFormField, TokenRateField
from config.credentials import Secret

MAX_PROPOSED: Final = 200
"""The most rows of which one action may propose a change set each."""
_NEVER_STORED: Final = frozenset((REASON, "csrfmiddlewaretoken"))


class SecondPersonNeeded(Exception):
    """Stops the direct path: the operations are to be proposed instead."""

    def __init__(self, *proposals: Proposal) -> None:
        super().__init__()
        self.proposals = proposals


@dataclass(frozen=True, slots=True)
class PageOperation:
    """An operation of a page that is neither its form, nor a deletion, nor one of its actions.

    Each function gets the page, the request and, but for ``may_apply``, the change set, then its
    row. ``read_state`` returns the digests of what the operation rests on.
    """

    may_apply: Callable[[Any, HttpRequest, Any], bool]
    read_state: Callable[[Any, HttpRequest, ChangeSet, Any], dict[str, str]]
    apply: Callable[[Any, HttpRequest, ChangeSet, Any], str]


class GuardedPage:
    """A page of the console whose dangerous operations can need a second person.

    ``form_guard`` and ``deletion_guard`` say when its form and Django's deletion do; actions of
    the page say it themselves. ``other_operations`` have names of their own. The transitions of
    a model that lock the organization before the row need ``locks_tenant_first``.

    ``own_permission`` is what a row without an organization needs besides: it is the operator's
    own, and roles that care for tenants must not change what applies to all of them.
    """

    other_operations: ClassVar[Mapping[str, PageOperation]] = {}
    form_guard: ClassVar[FourEyes | None] = None
    deletion_guard: ClassVar[FourEyes | None] = None
    locks_tenant_first: ClassVar[bool] = False
    own_permission: ClassVar[str] = ""
    change_form_before_template: str | None = "admin/form_head.html"

    # Proposing.

    def save_form(self: Any, request: HttpRequest, form: Any, change: bool) -> Any:
        """Stops a valid form that needs a second person, before anything is stored."""
        kind = self.find_demand_of_form(form, change=change)
        if kind is not None:
            raise SecondPersonNeeded(self._make_proposal_of_form(form, kind, change=change))
        return super().save_form(request, form, change)  # type: ignore[misc]

    def find_demand_of_form(self, form: Any, *, change: bool) -> ChangeKind | None:
        """Returns the kind by which a valid form needs a second person now."""
        if self.form_guard is None:
            return None
        obj = form.instance if change else None
        return self.form_guard.find_demand_of_form(obj, form.changed_data)

    def propose(self: Any, request: HttpRequest, *proposals: Proposal) -> HttpResponse:
        """Stores change sets and redirects to them; raises :class:`ReasonMissing`."""
        reason = request.POST.get(REASON, "")
        made = [propose(each, by=actor_of(request), reason=reason) for each in proposals]
        if len(made) == 1:
            text = f"Proposed as {made[0]}. Nothing was changed: another operator must approve it."
            url = reverse("admin:config_changeset_change", args=[made[0].pk])
        else:
            text = f"{len(made)} change sets are proposed. Another operator must approve them."
            url = reverse("admin:config_changeset_changelist")
        self.message_user(request, text, messages.SUCCESS)
        if "HX-Request" in request.headers:
            return HttpResponse(headers={"HX-Redirect": url})
        return HttpResponseRedirect(url)

    def make_proposal(
        self: Any,
        obj: Any,
        kind: ChangeKind,
        operation: str,
        *,
        needs: str,
        arguments: Mapping[str, Any] | None = None,
        sealed: Mapping[str, Any] | None = None,
        state: Mapping[str, str] | None = None,
        changes: Sequence[Any] = (),
        outcome: str = RowOutcome.UPDATE,
    ) -> Proposal:
        """Returns the proposal of an operation on a stored row.

        ``state`` names what the operation rests on, with a digest of each; it is read from the row
        if there is none: all of its columns, or what the page says of the operation.
        """
        stored = type(obj)._base_manager.get(pk=obj.pk)
        return Proposal(
            kind=kind,
            operation=operation,
            page=self.opts.label_lower,
            needs=needs,
            subject=f"{self.opts.verbose_name} {_name(obj)}",
            object_id=str(obj.pk),
            organization_id=_tenant_of(stored),
            arguments=arguments or {},
            sealed=sealed or {},
            state=self.read_change_state(operation, stored) if state is None else state,
            changes=[PlanRow(str(self.opts.verbose_name), _name(obj), outcome, changes)],
        )

    def _make_proposal_of_form(self: Any, form: Any, kind: ChangeKind, *, change: bool) -> Proposal:
        arguments, sealed = split_data(form)
        found = self.describe_form(form)
        name = f"{self.opts.app_label}.{'change' if change else 'add'}_{self.opts.model_name}"
        if change:
            return self.make_proposal(
                form.instance,
                kind,
                FORM,
                needs=name,
                arguments=arguments,
                sealed=sealed,
                changes=found,
            )
        row = PlanRow(str(self.opts.verbose_name), _name(form.instance), RowOutcome.CREATE, found)
        return Proposal(
            kind=kind,
            operation=FORM,
            page=self.opts.label_lower,
            needs=name,
            subject=f"new {self.opts.verbose_name} {_name(form.instance)}",
            organization_id=_tenant_of(form.instance),
            arguments=arguments,
            sealed=sealed,
            state=self.read_change_state(FORM, None),
            changes=[row],
        )

    def describe_form(self, form: Any) -> list[Any]:
        """Returns what a valid form changes, as people read it."""
        return [describe_field(form, name) for name in form.changed_data]

    # Deletion by Django's pages.

    def delete_view(
        self: Any, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> Any:
        context = {"demand": self._find_demand_of_deletion(), **(extra_context or {})}
        try:
            return super().delete_view(request, object_id, context)  # type: ignore[misc]
        except SecondPersonNeeded as needed:
            return self.propose_deletions(request, needed)

    def delete_model(self: Any, request: HttpRequest, obj: Any) -> None:
        self._require_deletion([obj])
        super().delete_model(request, obj)  # type: ignore[misc]

    def delete_queryset(self: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._require_deletion(list(queryset))
        super().delete_queryset(request, queryset)  # type: ignore[misc]

    def ask_for_reason(self, answer: Any) -> None:
        """Makes the confirmation of Django's deletion ask for a reason where a rule demands it."""
        if isinstance(answer, TemplateResponse) and answer.context_data is not None:
            answer.context_data.setdefault("demand", self._find_demand_of_deletion())

    def _find_demand_of_deletion(self) -> ChangeKind | None:
        guard = self.deletion_guard
        return None if guard is None else guard.find_demand(None)

    def _require_deletion(self: Any, rows: list[Any]) -> None:
        kind = self._find_demand_of_deletion()
        if kind is None:
            return
        needs = f"{self.opts.app_label}.delete_{self.opts.model_name}"
        raise SecondPersonNeeded(
            *(
                self.make_proposal(
                    row, kind, DELETE, needs=needs, changes=describe_deletion(row), outcome="delete"
                )
                for row in rows
            )
        )

    def propose_deletions(self: Any, request: HttpRequest, needed: SecondPersonNeeded) -> Any:
        try:
            return self.propose(request, *needed.proposals)
        except GatewayError as exc:
            self.message_user(request, exc.message, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    # Applying.

    def lock_change_target(self: Any, request: HttpRequest, change_set: ChangeSet) -> Any:
        """Locks and returns the row of a change set; ``None`` when it is gone."""
        if self.locks_tenant_first and change_set.organization_id is not None:
            tenants: Any = apps.get_model(tenant_label())._default_manager
            tenants.lock(change_set.organization_id)
        rows = self.model._base_manager.select_for_update(no_key=True, of=("self",))
        if rows.filter(pk=change_set.object_id).first() is None:
            return None
        return self.get_object(request, change_set.object_id)

    def read_change_state(self: Any, operation: str, row: Any) -> dict[str, str]:
        """Returns the digests of what an operation on a row rests on."""
        return {} if row is None else read_state(row)

    def read_state_of_change(
        self, request: HttpRequest, change_set: ChangeSet, target: Any
    ) -> dict[str, str]:
        """Returns the digests of what a change set rests on, as they are now."""
        if (own := self.other_operations.get(change_set.operation)) is not None:
            return own.read_state(self, request, change_set, target)
        return self.read_change_state(change_set.operation, target)

    def require_change_permission(
        self: Any, request: HttpRequest, change_set: ChangeSet, target: Any
    ) -> None:
        """Raises :class:`Forbidden` unless the operator may do the operation without a proposal."""
        if not (
            request.user.has_perm(change_set.needs)
            and self.may_apply_change(request, change_set.operation, target)
        ):
            raise Forbidden("Your role may not do this itself, so it may not decide about it.")

    def may_touch(self, request: HttpRequest, owned: Any) -> bool:
        """Returns whether the operator may change a row, or import a file, by who owns it."""
        if not self.own_permission or owned.organization_id is not None:
            return True
        return request.user.has_perm(self.own_permission)

    def require_touch(self, request: HttpRequest, owned: Any) -> None:
        """Raises :class:`Forbidden` unless the operator :meth:`may_touch` what is owned."""
        if not self.may_touch(request, owned):
            raise Forbidden(
                "What belongs to no organization is the operator's own, and your role may not "
                "change it. Nothing was changed."
            )

    def judge_again(self: Any, request: HttpRequest, *names: str) -> None:
        """Judges an operator after a wait by what it may do now, as all later checks do then.

        Raises :class:`Forbidden` without one of the permissions, or if it may not sign in any more.
        """
        operator: Any = request.user
        request.user = User.objects.filter(pk=operator.pk).first() or AnonymousUser()
        # The second factor is recognized with the operator.
        OTPMiddleware(lambda request: HttpResponse())(request)
        if not (self.admin_site.has_permission(request) and self.has_permissions(request, names)):
            raise Forbidden("You may not do this any more. Nothing was changed.")

    def may_apply_change(self: Any, request: HttpRequest, operation: str, target: Any) -> bool:
        if (own := self.other_operations.get(operation)) is not None:
            return own.may_apply(self, request, target)
        if operation == FORM:
            if target is None:
                return bool(self.has_add_permission(request))
            return bool(self.has_change_permission(request, target))
        if operation == DELETE:
            return bool(self.has_delete_permission(request, target))
        action = _find_action(self, operation)
        subject = (str(target.pk),) if action.is_detail else ()
        may_act = self.has_permissions(request, action.permissions, *subject)
        return bool(may_act and self.may_touch(request, target))

    def has_permissions(
        self: Any, request: HttpRequest, names: Iterable[str], *subject: str
    ) -> bool:
        """Returns whether the operator has permissions; the page has a method for a bare verb."""
        return all(
            request.user.has_perm(name)
            if "." in name
            else getattr(self, f"has_{name}_permission")(request, *subject)
            for name in names
        )

    def apply_change(self: Any, request: HttpRequest, change_set: ChangeSet, target: Any) -> str:
        """Does the operation of a change set, and says what was done."""
        if (own := self.other_operations.get(change_set.operation)) is not None:
            return own.apply(self, request, change_set, target)
        if change_set.operation == FORM:
            return self._apply_form(request, change_set, target)
        if change_set.operation == DELETE:
            target.delete()
            return "It is deleted."
        action = _find_action(self, change_set.operation)
        data = _join_data(change_set)
        return str(action.apply(self, request, target, data, change_set.prepared))

    def _apply_form(self: Any, request: HttpRequest, change_set: ChangeSet, target: Any) -> str:
        is_change = target is not None
        made = self.get_form(request, target, change=is_change)
        form = made(_join_data(change_set), instance=target)
        offered = set(change_set.arguments["offered"])
        if offered - set(form.fields):
            raise Forbidden("Your role may not write all fields of this, so it may not approve it.")
        # The operator who approves may write more fields, which were not on the proposed form.
        for name in set(form.fields) - offered:
            del form.fields[name]
        require_valid(form)
        obj = form.save(commit=False)
        self.save_model(request, obj, form, is_change)
        request.applied = obj  # type: ignore[attr-defined]
        return "It is changed." if is_change else f"{_name(obj)} is added."

    def show_applied(self, request: HttpRequest) -> HttpResponse | None:
        """Returns the page that shows what was made, to who made it or approved it; or ``None``."""
        return None

    def label_state(self: Any, names: Sequence[str]) -> list[str]:
        """Returns the columns that have changed, as people call them."""
        labels = {field.attname: str(field.verbose_name) for field in self.opts.concrete_fields}
        return [labels.get(name, name.replace("_", " ")) for name in names]


def needs_preparation(page: Any, change_set: ChangeSet) -> bool:
    """Returns whether an operation does something that must not happen in a transaction."""
    action = getattr(getattr(type(page), change_set.operation, None), "for_change_sets", None)
    return action is not None and action.run_first is not None


def prepare_change(page: Any, request: HttpRequest, change_set: ChangeSet, target: Any) -> Any:
    """Does what must happen outside of the transaction, such as calls to other hosts."""
    action = _find_action(page, change_set.operation)
    return action.prepare(request, target, _join_data(change_set))


def name_approvers(needs: str) -> str:
    """Returns the names of the groups whose members may approve what needs a permission."""
    groups = Group.objects.all()
    for permission in (needs, "config.change_changeset"):
        app, _, codename = permission.partition(".")
        groups = groups.filter(
            permissions__content_type__app_label=app, permissions__codename=codename
        )
    return " or ".join(groups.order_by("name").values_list("name", flat=True).distinct())


def split_data(form: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what a form got, with the names of its fields, and what of it is secret."""
    secret = [
        re.escape(form.add_prefix(name))
        for name, field in form.fields.items()
        if isinstance(field, SecretFormField)
    ]
    is_secret = re.compile(rf"(?:{'|'.join(secret)})(?:_[0-9]+)?" if secret else r"(?!)")
    open_ones: dict[str, list[str]] = {}
    sealed: dict[str, list[str]] = {}
    # A widget may read several inputs with names of its own.
    for key in form.data:
        if key.startswith("_") or key in _NEVER_STORED:
            continue
        values = form.data.getlist(key)
        if not is_secret.fullmatch(key):
            open_ones[key] = values
        elif any(values):
            sealed[key] = values
    offered = [name for name in form.fields if name != REASON]
    return {"data": open_ones, "offered": offered}, sealed


def _join_data(change_set: ChangeSet) -> QueryDict:
    data = QueryDict(mutable=True)
    given = {**change_set.arguments.get("data", {}), **read_sealed(change_set)}
    for name, values in given.items():
        data.setlist(name, values)
    return data


def require_valid(form: Any) -> None:
    """Raises :class:`Conflict` unless a proposed form is still valid."""
    if form.is_valid():
        return
    problems = "; ".join(_describe_problems(form))
    raise Conflict(f"This is no longer valid. Nothing was changed. {problems}")


def _describe_problems(form: Any) -> Iterator[str]:
    for name, errors in form.errors.items():
        label = form.fields[name].label or name if name in form.fields else ""
        yield f"{label}{': ' if label else ''}{' '.join(map(str, errors))}"


def describe_field(form: Any, name: str) -> Difference:
    """Returns the old and the new value of a field of a valid form; of a secret only its label."""
    field = form.fields[name]
    label = str(field.label or name.replace("_", " ").capitalize())
    value = form.cleaned_data.get(name)
    if isinstance(field, SecretFormField):
        # The label of the stored secret, which lists show too.
        stored = getattr(form.instance, "credential_label", "") or NOTHING
        return Difference(label, stored, f"a new secret, {value.label}" if value else NOTHING)
    before = form.get_initial_for_field(field, name)
    texts = write_value(field, before), write_value(field, value)
    return Difference(*write_difference(label, texts, (before, value)))


def describe_dialog(form: Any) -> list[Difference]:
    """Returns what a valid dialog was told, but for the reason and secrets."""
    return [
        describe_field(form, name)
        for name, field in form.fields.items()
        if name != REASON and not field.widget.is_hidden and not isinstance(field, SecretFormField)
    ]


def write_value(field: forms.Field, value: Any) -> str:
    """Returns the value of a field as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Secret):
        return str(value)
    if value is None or value == "" or value == [] or value == {}:
        return NOTHING
    if isinstance(value, models.Model):
        return str(value)
    if isinstance(field, forms.ModelChoiceField) and field.queryset is not None:
        found = field.queryset.filter(pk=value).first()
        return str(value if found is None else found)
    choices = dict(getattr(field, "choices", ()) or ())
    if not isinstance(value, list | dict) and value in choices:
        return str(choices[value])
    if isinstance(field, TokenRateField):
        return f"{per_million(value)} per million"
    if isinstance(value, Decimal):
        return plain_digits(value)
    if isinstance(value, list | tuple | set):
        return ", ".join(map(str, value))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def describe_deletion(obj: Any, form: Any = None) -> list[Difference]:
    """Returns the one line of a deletion."""
    return [Difference(str(obj._meta.verbose_name).capitalize(), _name(obj), "deleted")]


def _find_action(page: Any, operation: str) -> Any:
    """Returns what an action of a page does for a change set; raises Conflict for no such one."""
    action = getattr(getattr(type(page), operation, None), "for_change_sets", None)
    if action is None:
        raise Conflict("This release does not know the operation. Reject it. Nothing was changed.")
    return action


def _name(obj: Any) -> str:
    return str(obj)[:1_000]


def _tenant_of(obj: Any) -> Any:
    label = obj._meta.label_lower
    return obj.pk if label == tenant_label() else getattr(obj, "organization_id", None)


def describe_demand(page: Any, request: HttpRequest, obj: Any, form: Any) -> dict[str, Any]:
    """Returns what a page with a form shows and does about a second person, for its template."""
    guard = page.form_guard
    if guard is None or (obj is None and not guard.guards_new_rows):
        return {}
    if obj is not None and not page.has_change_permission(request, obj):
        return {}
    demand = guard.find_demand(obj)
    if demand is None:
        return {}
    needs = f"{page.opts.app_label}.{'add' if obj is None else 'change'}_{page.opts.model_name}"
    fields = () if obj is None else guard.fields
    return {
        "demand": demand,
        "approvers": name_approvers(needs),
        "guarded": [form.fields[name].label for name in fields if name in form.fields],
        "reason": request.POST.get(REASON, ""),
        # A proposal leads to its change set, so one button stands for all of them.
        "show_save": False,
        "show_save_and_continue": False,
        "show_save_and_add_another": False,
    }
