"""Finds any row of the console by what an operator has at hand: an ID, a hash, a name, an address.

The apps declare how each model is found; see :class:`config.apps.Finder`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import CharField, QuerySet, UUIDField, Value
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.urls import reverse

from config.api.text import NOT_STORABLE
from config.apps import ModelDeclaration, declarations
from config.console.lists.pages import limit_time
from config.console.navigation import list_pages

MAX_TERM: Final = 255
# Of each model.
_SHOWN: Final = 5
_SEARCH_MS: Final = 3_000


class Found(NamedTuple):
    """A page or a row, as the template of unfold shows it."""

    title: str
    description: str
    link: str
    icon: str


def find_anything(request: HttpRequest, term: str) -> list[Found]:
    """Returns the pages and the rows that a term finds, of those that the operator may see.

    Raises :class:`TookTooLong`.
    """
    term = term.strip()
    if not term or len(term) > MAX_TERM or NOT_STORABLE.search(term):
        return []
    return [*_find_pages(request, term), *_find_rows(request, term)]


def _find_pages(request: HttpRequest, term: str) -> Iterator[Found]:
    term = term.casefold()
    for page in list_pages(request):
        if any(term in word.casefold() for word in (page.title, *page.names)):
            yield Found(page.title.capitalize(), page.entry, page.link, page.icon)


def _find_rows(request: HttpRequest, term: str) -> Iterator[Found]:
    """Asks all tables in one statement, then reads the rows of each that has some."""
    declared = declarations()
    asked = {
        label: rows
        for label, page in _pages_of(request).items()
        for rows in _narrow(page, declared[label], term)
    }
    if not asked:
        return
    first, *others = (
        rows.order_by()
        .annotate(found_in=Value(label), found_key=Cast("pk", CharField()))
        .values_list("found_in", "found_key")[:_SHOWN]
        for label, rows in asked.items()
    )
    statement = first.union(*others, all=True) if others else first
    with limit_time(statement, _SEARCH_MS):
        found = list(statement)
    for label in dict.fromkeys(label for label, _ in found):
        page = _pages_of(request)[label]
        rows = page.model._default_manager.filter(
            pk__in=[key for name, key in found if name == label]
        )
        yield from _show(request, page, rows, declared[label].icon)


def _pages_of(request: HttpRequest) -> dict[str, Any]:
    """Returns the pages that the operator may see by the full label of their model."""
    return {
        model._meta.label_lower: page
        for model, page in admin.site._registry.items()
        if page.has_view_permission(request) and model._meta.label_lower in declarations()
    }


def _narrow(page: Any, declaration: ModelDeclaration, term: str) -> Iterator[QuerySet[Any]]:
    """Yields the rows of a model that a term names, or nothing if the term cannot name one."""
    rows: QuerySet[Any] = page.model._default_manager.all()
    key = _parse_uuid(term)
    if key is not None:
        if isinstance(page.opts.pk, UUIDField):
            yield rows.filter(pk=key)
        return
    conditions = [
        condition
        for finder in declaration.finders
        if (condition := finder.condition(term)) is not None
    ]
    if conditions:
        found = conditions[0]
        for condition in conditions[1:]:
            found |= condition
        yield rows.filter(found)


def _show(request: HttpRequest, page: Any, rows: QuerySet[Any], icon: str) -> Iterator[Found]:
    """Yields a link to each row with its kind and its organization."""
    related = page.list_select_related
    rows = rows.select_related(*related) if isinstance(related, list | tuple) else rows
    name = f"admin:{page.opts.app_label}_{page.opts.model_name}_change"
    for row in rows:
        owner = getattr(row, "organization", None)
        kind = str(page.opts.verbose_name)
        yield Found(
            title=str(row),
            description=f"{kind} of {owner}" if owner else kind,
            link=reverse(name, args=[quote(row.pk)]),
            icon=icon,
        )


def _parse_uuid(term: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(term)
    except ValueError:
        return None
