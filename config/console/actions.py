"""Decorators for actions that change state. They ask for confirmation and run on POST only.

An action of unfold runs on GET unless it opens a dialog, so pages use these decorators instead. A
refusal by the model becomes an error message.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeAlias

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.utils.html import format_html

from config.api.errors import Conflict, GatewayError
from config.changes.kinds import ChangeKind, FourEyes
from config.changes.pages import (
    MAX_PROPOSED,
    describe_deletion,
    describe_dialog,
    name_approvers,
    require_valid,
    split_data,
)
from config.changes.proposals import MAX_REASON, REASON, Proposal
from config.console.formatting import render_page
from config.console.forms import SEEN, NoteField, digest_shown, refuse_stale
from config.console.lists.tenants import name_tenants
from config.console.unfold import Dialog, unfold_action

MAX_ROWS: Final = 10_000
# An action reads this many rows at a time.
_CHUNK: Final = 500
# A page or a session names at most this many rows one by one.
_NAMED: Final = 200

# The permission to see requests, and what keys and organizations use and spend.
SEES_REQUESTS: Final = "inference.view_generation"

Message: TypeAlias = tuple[int, str]
"""The level of a message, as Django numbers it, and its text."""
Answer: TypeAlias = Message | HttpResponse


def _read_question(method: Callable[..., Any]) -> str:
    return " ".join((method.__doc__ or "").split())


def report(is_changed: bool, done: str, unchanged: str) -> Message:
    """Returns the message of a transition, which says whether it has changed anything."""
    return (messages.SUCCESS, done) if is_changed else (messages.INFO, unchanged)


def transition(
    description: str,
    *,
    question: str = "",
    submit: str,
    permission: str,
    icon: str,
    danger: bool = False,
    form: type[Any] | None = None,
    foresee: Callable[[Any], Sequence[str]] | None = None,
    four_eyes: FourEyes | None = None,
    prepare: Callable[[Any, Any], Any] | None = None,
) -> Callable[[Callable[[Any, HttpRequest, Any, Any], Answer]], Any]:
    """Makes a method an action of the detail page that asks in a dialog and runs by POST.

    The dialog asks by the method's docstring, unless there is a ``question``, and names the object;
    ``foresee`` returns the consequences as sentences, which operators who may view requests see.
    The method gets the request, the object and the form. It returns a message, or a page with a
    ``#dialog-form`` in its place; an error of the model becomes a message. ``four_eyes`` says when
    the action is proposed to a second person instead. ``prepare`` gets the object and the form, and
    may call other hosts outside of a transaction; the method finds its result as ``form.prepared``.
    """

    def decorate(method: Callable[[Any, HttpRequest, Any, Any], Answer]) -> Any:
        proposed = ProposedAction(method, form or Dialog, (permission,), prepare)

        @_with_page
        @unfold_action(
            description=description,
            permissions=[permission],
            icon=icon,
            url_path=method.__name__.replace("_", "-"),
            dialog={
                "title": description,
                "description": question or _read_question(method),
                "form_class": _build_dialog(form, foresee, four_eyes, danger=danger),
                "form_submit_text": submit,
            },
        )
        @wraps(method)
        def run(self: Any, request: HttpRequest, form: Any, object_id: str) -> Any:
            obj = self.get_object(request, unquote(object_id))
            if obj is None:
                index = self.redirect_to_index(request, object_id)
                return self.redirect(request, index["Location"])
            try:
                self.require_touch(request, obj)
                if four_eyes is not None and (kind := four_eyes.find_demand(obj)) is not None:
                    name = method.__name__
                    return self.propose(request, _propose(self, obj, form, four_eyes, kind, name))
                answer = _do(proposed, self, request, obj, form)
            except GatewayError as exc:
                answer = messages.ERROR, exc.message
            return _respond(self, request, obj, answer)

        action: Any = run
        action.for_change_sets = proposed
        return run

    return decorate


def _do(action: ProposedAction, page: Any, request: HttpRequest, obj: Any, form: Any) -> Answer:
    """Does an action, and judges the operator again if it has waited for other hosts."""
    if action.run_first is not None:
        form.prepared = action.run_first(obj, form)
        page.judge_again(request, *action.permissions)
        page.require_touch(request, obj)
    answer: Answer = action.method(page, request, obj, form)
    return answer


def deletion(
    question: str,
    *,
    permission: str,
    submit: str = "Delete",
    done: str = "{} is deleted.",
    delete: Callable[[Any], Any] = operator.methodcaller("remove"),
    **options: Any,
) -> Any:
    """Makes the action that deletes a row by ``delete``; ``done`` tells it, with the row's name."""

    @transition(
        "Delete",
        question=question,
        submit=submit,
        permission=permission,
        icon="delete",
        danger=True,
        **options,
    )
    def remove(page: Any, request: HttpRequest, row: Any, form: Any) -> Message:
        text = done.format(row)
        delete(row)
        return messages.SUCCESS, text

    return remove


def _respond(page: Any, request: HttpRequest, obj: Any, answer: Answer) -> Any:
    """Returns the page that an action has made, or leads back to the object with its message."""
    answer = page.show_applied(request) or answer
    if isinstance(answer, HttpResponse):
        return answer
    level, text = answer
    page.message_user(request, text, level)
    return page.redirect(request, page.url_of(request, obj))


def _with_page(action: Callable[..., Any]) -> Callable[..., Any]:
    """Lets the dialog of an action find its page, which unfold does not pass to the form."""

    @wraps(action)
    def run(self: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        request.dialog_page = self  # type: ignore[attr-defined]
        return action(self, request, *args, **kwargs)

    return run


def _build_dialog(
    form: type[Any] | None,
    foresee: Callable[[Any], Sequence[str]] | None,
    four_eyes: FourEyes | None,
    *,
    danger: bool,
) -> type[Any]:
    """Returns the form of a dialog that names its object, and proposes where it must."""
    naming = _name_in(form or Dialog, foresee)
    naming.submit_variant = "danger" if danger else "primary"
    return naming if four_eyes is None else _guard_dialog(naming, four_eyes)


def _guard_dialog(form: type[Any], four_eyes: FourEyes) -> type[Any]:
    """Returns the form of a dialog that proposes, and asks why, where a rule demands it."""

    class Guarded(form):  # type: ignore[misc]
        submit_text = ""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.demand = four_eyes.find_demand(_find_object(four_eyes, self.object_id))
            if self.demand is not None:
                self.submit_text = "Propose"
                self.submit_variant = "primary"
                self.fields[REASON] = NoteField(
                    label="Reason",
                    max_length=MAX_REASON,
                    help_text="The operator who approves reads it.",
                )

        def render_before_template(self) -> str:
            above: str = super().render_before_template()
            if self.demand is None:
                return above
            context = {"approvers": name_approvers(four_eyes.needs)}
            note = render_to_string("admin/second_person_note.html", context)
            return format_html("{}{}", above, note)

    return Guarded


def _find_object(four_eyes: FourEyes, object_id: Any) -> Any:
    """Returns the object of a dialog, or ``None``: its action then refuses anyway."""
    if object_id is None:
        return None
    model: Any = apps.get_model(four_eyes.model_label)
    try:
        return model._base_manager.filter(pk=unquote(str(object_id))).first()
    except (ValidationError, ValueError):
        return None


def _name_in(form: type[Any], foresee: Callable[[Any], Sequence[str]] | None) -> type[Any]:
    """Returns the form of a dialog that shows its object and the consequences above its fields.

    A dialog that has filled in what is no longer stored is refused.
    """

    class Naming(form):  # type: ignore[misc]
        @property
        def seen(self) -> str:
            """The digests of the values that the opened dialog has filled in; empty for none."""
            shown = self._digest_filled_in()
            return (self.data.get(SEEN) or json.dumps(shown)) if shown else ""

        def _digest_filled_in(self) -> dict[str, str]:
            return digest_shown(self, [name for name in self.fields if name in self.initial])

        def clean(self) -> Any:
            cleaned = super().clean()
            if self.data.get(SEEN):
                refuse_stale(self, self._digest_filled_in(), "dialog")
            return cleaned

        def render_before_template(self) -> str:
            page: Any = self.request.dialog_page
            obj = page.get_object(self.request, unquote(str(self.object_id)))
            tells = foresee if self.request.user.has_perm(SEES_REQUESTS) else None
            context = {
                "facts": [] if obj is None else page.facts_of(obj),
                "sentences": [] if obj is None or tells is None else tells(obj),
                "seen": self.seen,
            }
            above = super().render_before_template()
            return format_html("{}{}", above, render_to_string("admin/consequences.html", context))

    return Naming


@dataclass(frozen=True, slots=True)
class ProposedAction:
    """An action as a change set does it once it is approved; without a dialog one of a list."""

    method: Callable[..., Any]
    form: type[Any] | None
    permissions: tuple[str, ...]
    run_first: Callable[[Any, Any], Any] | None = None

    @property
    def is_detail(self) -> bool:
        return self.form is not None

    def prepare(self, request: HttpRequest, obj: Any, data: QueryDict) -> Any:
        """Does what must happen outside of the transaction; returns what the action needs of it."""
        return (
            None if self.run_first is None else self.run_first(obj, self._fill(request, obj, data))
        )

    def apply(
        self, page: Any, request: HttpRequest, obj: Any, data: QueryDict, prepared: Any
    ) -> str:
        """Does the action with the form as it was proposed; raises :class:`Conflict`."""
        if self.form is None:
            self.method(page, request, obj)
            return "It is done."
        form = self._fill(request, obj, data)
        form.prepared = prepared
        level, text = self.method(page, request, obj, form)
        if level >= messages.ERROR:
            raise Conflict(text)
        return str(text)

    def _fill(self, request: HttpRequest, obj: Any, data: QueryDict) -> Any:
        """Returns the dialog as it was proposed; raises :class:`Conflict` unless it is valid."""
        assert self.form is not None
        data["_form_submitted"] = "True"
        form = self.form(data=data, request=request, object_id=str(obj.pk))
        require_valid(form)
        return form


def _propose(
    page: Any, obj: Any, form: Any, four_eyes: FourEyes, kind: ChangeKind, operation: str
) -> Proposal:
    """Returns the proposal of an action; ``form`` is its dialog, or ``None`` for one of a list."""
    arguments, sealed = ({}, {}) if form is None else split_data(form)
    changes = (four_eyes.describe or describe_deletion)(obj, form)
    return page.make_proposal(
        obj,
        kind,
        operation,
        needs=four_eyes.needs,
        arguments=arguments,
        sealed=sealed,
        # What its method reads of the dialog is approved, too.
        changes=[*changes, *([] if form is None else describe_dialog(form))],
        outcome="delete" if four_eyes.describe is None else "update",
    )


def bulk_action(
    description: str,
    *,
    permission: str,
    foresee: Callable[[type[Model], Sequence[Any]], Sequence[str]] | None = None,
    four_eyes: FourEyes | None = None,
) -> Callable[[Callable[[Any, HttpRequest, Any], None]], Any]:
    """Makes a method an action over selected rows, confirmed on a page and reported row by row.

    The page asks by the method's docstring. The method runs once a row, in a transaction of its
    own: a refused row does not stop the others. ``foresee`` gets the model and the keys of the
    rows, and returns the consequences, for operators who may view requests. ``four_eyes`` says
    when the action is proposed to a second person instead, with a change set for each row.
    """

    def decorate(method: Callable[[Any, HttpRequest, Any], None]) -> Any:
        question = _read_question(method)
        action = _BulkAction(method, description, question, foresee, four_eyes)

        @admin.action(description=description, permissions=[permission])
        @wraps(method)
        def run(self: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
            return action.run(self, request, queryset)

        run.for_change_sets = ProposedAction(method, None, (permission,))  # type: ignore[attr-defined]
        return run

    return decorate


@dataclass(frozen=True, slots=True)
class _BulkAction:
    """Asks for a confirmation, then calls a method for each row.

    An action over all rows of a list does not send their keys through the page. The page carries a
    digest of the keys instead, and nothing is done when the list has other rows at confirmation.
    """

    method: Callable[[Any, HttpRequest, Any], None]
    description: str
    question: str
    foresee: Callable[[type[Model], Sequence[Any]], Sequence[str]] | None
    four_eyes: FourEyes | None

    def run(self, page: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        keys = list(queryset.values_list("pk", flat=True)[: MAX_ROWS + 1])
        if len(keys) > MAX_ROWS:
            text = f"At most {MAX_ROWS:,} rows at a time. Narrow the list. Nothing was changed."
            page.message_user(request, text, messages.ERROR)
            return None
        if request.POST.get("confirmed") != "yes":
            return self._ask(page, request, queryset, keys)
        if _is_across(request) and request.POST.get("digest") != _digest(keys):
            text = "The list has changed since you selected it. Nothing was changed; select again."
            page.message_user(request, text, messages.ERROR)
            return None
        if self.four_eyes is not None and self.four_eyes.find_demand(None) is not None:
            return self._propose_or_apply(page, request, queryset, keys, self.four_eyes)
        self._apply(page, request, _rows(queryset, keys), count=len(keys))
        return None

    def _propose_or_apply(
        self,
        page: Any,
        request: HttpRequest,
        queryset: QuerySet[Any],
        keys: list[Any],
        four_eyes: FourEyes,
    ) -> HttpResponse | None:
        """Proposes a change set for each row that needs a second person; does the others."""
        if len(keys) > MAX_PROPOSED:
            text = (
                f"Another operator must approve this, so at most {MAX_PROPOSED} rows at a time. "
                "Nothing was changed."
            )
            page.message_user(request, text, messages.ERROR)
            return None
        rows = list(_rows(queryset, keys))
        demands = [
            (row, four_eyes.find_demand(row) if page.may_touch(request, row) else None)
            for row in rows
        ]
        name = self.method.__name__
        waiting = [
            _propose(page, row, None, four_eyes, kind, name)
            for row, kind in demands
            if kind is not None
        ]
        answer: HttpResponse | None = None
        try:
            answer = page.propose(request, *waiting) if waiting else None
        except GatewayError as exc:
            page.message_user(request, exc.message, messages.ERROR)
            return None
        free = [row for row, kind in demands if kind is None]
        self._apply(page, request, iter(free), count=len(free))
        return answer

    def _ask(
        self, page: Any, request: HttpRequest, queryset: QuerySet[Any], keys: list[Any]
    ) -> TemplateResponse:
        is_across = _is_across(request)
        rows = list(queryset[:_NAMED] if is_across else queryset)
        name_tenants(rows)
        tells = self.foresee if request.user.has_perm(SEES_REQUESTS) else None
        context: dict[str, Any] = {
            "question": self.question,
            "rows": rows,
            "sentences": [] if tells is None else tells(page.model, keys),
            "demand": None if self.four_eyes is None else self.four_eyes.find_demand(None),
            "hidden": len(keys) - len(rows),
            "is_across": is_across,
            "digest": _digest(keys),
            "action": self.method.__name__,
            "checkbox_name": ACTION_CHECKBOX_NAME,
        }
        template = "admin/confirm_action.html"
        return render_page(page, request, template, self.description, **context)

    def _apply(self, page: Any, request: HttpRequest, rows: Iterator[Any], *, count: int) -> None:
        """Runs the action and reports it in one message, whose details name the rows."""
        done: list[str] = []
        refused: list[tuple[str, str]] = []
        for row in rows:
            try:
                page.require_touch(request, row)
                self.method(page, request, row)
            except GatewayError as exc:
                refused.append((str(row), exc.message))
            else:
                done.append(str(row))
        level = messages.SUCCESS if not refused else messages.WARNING if done else messages.ERROR
        page.message_user(request, _report(self.description, done, refused, count=count), level)


def _report(
    description: str, done: list[str], refused: list[tuple[str, str]], *, count: int
) -> str:
    """Returns the message after an action: a sentence, and details that name at most 200 rows.

    A row that has left the list since it was selected is neither done nor refused.
    """
    parts = [f"{len(done):,} done"]
    parts += [f"{len(refused):,} refused"] if refused else []
    gone = count - len(done) - len(refused)
    parts += [f"{gone:,} gone from the list"] if gone else []
    return render_to_string(
        "admin/bulk_result.html",
        {
            "summary": f"{description}: {', '.join(parts)}.",
            "done": done[:_NAMED],
            "done_more": max(len(done) - _NAMED, 0),
            "refused": refused[:_NAMED],
            "refused_more": max(len(refused) - _NAMED, 0),
        },
    )


def _is_across(request: HttpRequest) -> bool:
    """Returns whether the operator selected all rows of the list, on every page of it."""
    return request.POST.get("select_across") == "1"


def _digest(keys: Iterable[Any]) -> str:
    """Returns a digest of a set of keys that does not depend on their order."""
    return hashlib.sha256("\n".join(sorted(map(str, keys))).encode()).hexdigest()


def _rows(queryset: QuerySet[Any], keys: list[Any]) -> Iterator[Any]:
    """Yields the rows in the order of their keys; skips a row that has left the list."""
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        found = queryset.in_bulk(chunk)
        yield from (found[key] for key in chunk if key in found)
