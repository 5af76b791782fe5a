"""Decorators for actions that change state. They ask for confirmation and run on POST only.

An action of unfold runs on GET unless it opens a dialog, so pages use these decorators instead. A
refusal by the model becomes an error message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeAlias

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.template.response import TemplateResponse

from config.api.errors import GatewayError
from config.console.unfold import ActionVariant, Dialog, unfold_action

MAX_ROWS: Final = 10_000
# An action reads this many rows at a time.
_CHUNK: Final = 500
# A page or a session names at most this many rows one by one.
_NAMED: Final = 200

Message: TypeAlias = tuple[int, str]
"""The level of a message, as Django numbers it, and its text."""


def transition(
    *,
    description: str,
    question: str,
    submit: str,
    permission: str,
    icon: str,
    danger: bool = False,
    form: type[Any] | None = None,
    foresee: Callable[[str], Sequence[str]] | None = None,
) -> Callable[[Callable[[Any, HttpRequest, Any, Any], Message]], Any]:
    """Makes a method an action of the detail page that asks in a dialog and runs by POST.

    The method gets the request, the object and the dialog's form. A GatewayError that the model
    raises is shown as an error message. ``foresee`` returns the consequences for the object with an
    id, as sentences, which the dialog shows.
    """
    dialog_form = form if foresee is None else _foresee_in(form or Dialog, foresee)

    def decorate(method: Callable[[Any, HttpRequest, Any, Any], Message]) -> Any:
        @unfold_action(
            description=description,
            permissions=[permission],
            icon=icon,
            url_path=method.__name__.replace("_", "-"),
            variant=ActionVariant.DANGER if danger else ActionVariant.DEFAULT,
            dialog={
                "title": description,
                "description": question,
                "form_class": dialog_form,
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
                level, text = method(self, request, obj, form)
            except GatewayError as exc:
                level, text = messages.ERROR, exc.message
            self.message_user(request, text, level)
            return self.redirect(request, self.url_of(request, obj))

        return run

    return decorate


def _foresee_in(form: type[Any], foresee: Callable[[str], Sequence[str]]) -> type[Any]:
    """Returns the form of a dialog that shows consequences above its fields."""

    class Foreseeing(form):  # type: ignore[misc]
        def render_before_template(self) -> str:
            context = {"sentences": foresee(unquote(str(self.object_id)))}
            return render_to_string("admin/consequences.html", context)

    return Foreseeing


def bulk_action(
    *, description: str, question: str, permission: str
) -> Callable[[Callable[[Any, HttpRequest, Any], None]], Any]:
    """Makes a method an action over selected rows, confirmed on a page and reported row by row.

    The method runs once a row, in a transaction of its own: a refused row does not stop the others.
    """

    def decorate(method: Callable[[Any, HttpRequest, Any], None]) -> Any:
        action = _BulkAction(method, description, question)

        @admin.action(description=description, permissions=[permission])
        @wraps(method)
        def run(
            self: Any, request: HttpRequest, queryset: QuerySet[Any]
        ) -> TemplateResponse | None:
            return action.run(self, request, queryset)

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

    def run(
        self, page: Any, request: HttpRequest, queryset: QuerySet[Any]
    ) -> TemplateResponse | None:
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
        self._apply(page, request, _rows(queryset, keys), count=len(keys))
        return None

    def _ask(
        self, page: Any, request: HttpRequest, queryset: QuerySet[Any], keys: list[Any]
    ) -> TemplateResponse:
        is_across = _is_across(request)
        rows = list(queryset[:_NAMED] if is_across else queryset)
        context = {
            **page.admin_site.each_context(request),
            "title": self.description,
            "question": self.question,
            "rows": rows,
            "hidden": len(keys) - len(rows),
            "is_across": is_across,
            "digest": _digest(keys),
            "action": self.method.__name__,
            "checkbox_name": ACTION_CHECKBOX_NAME,
            "opts": page.opts,
            "media": page.media,
        }
        request.current_app = page.admin_site.name
        return TemplateResponse(request, "admin/confirm_action.html", context)

    def _apply(self, page: Any, request: HttpRequest, rows: Iterator[Any], *, count: int) -> None:
        done = 0
        for place, row in enumerate(rows):
            try:
                self.method(page, request, row)
            except GatewayError as exc:
                level, text = messages.ERROR, f"{row}: {exc.message}"
            else:
                done += 1
                level, text = messages.SUCCESS, f"{row}: done."
            if place < _NAMED:
                page.message_user(request, text, level)
        if count > _NAMED:
            text = f"{count:,} rows: {done:,} done, {count - done:,} refused."
            page.message_user(request, text)


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
