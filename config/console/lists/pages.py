"""The pages of a list: older and newer rows, an honest count, and a limit of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from django.contrib.admin.options import IncorrectLookupParameters
from django.core.paginator import InvalidPage, Paginator
from django.db import OperationalError, connections, transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from psycopg.errors import QueryCanceled

from config.console.lists.keysets import InvalidPosition, Keyset
from config.console.lists.steps import STEPS, RowSearch, find_edge, read_time
from config.console.unfold import ChangeList

AFTER: Final = "after"
BEFORE: Final = "before"
"""The parameters of a page's address: the position that it begins after, or ends before."""
VIEW: Final = "view"
"""The parameter that names the saved view whose filters the address has."""
MAX_COUNT: Final = 2_000
_PAGE_MS: Final = 5_000
_COUNT_MS: Final = 1_000


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts at most 2,000 rows, because a full count of a table that grows takes seconds."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if isinstance(rows, QuerySet):
            return rows.order_by()[: MAX_COUNT + 1].count()
        return len(rows)


class TookTooLong(Exception):
    """PostgreSQL stopped a statement that took longer than its limit."""


@contextmanager
def limit_time(rows: QuerySet[Any], milliseconds: int) -> Iterator[Callable[[int], None]]:
    """Stops each statement on the rows' database after a time; raises :class:`TookTooLong`.

    Yields a function that sets another time for the statements that follow.
    """
    connection = connections[rows.db]
    is_inside = connection.in_atomic_block
    try:
        with transaction.atomic(using=rows.db), connection.cursor() as cursor:

            def set_limit(limit: int) -> None:
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(limit)])

            set_limit(milliseconds)
            yield set_limit
            if is_inside:
                cursor.execute("SET LOCAL statement_timeout TO DEFAULT")
    except OperationalError as exc:
        if isinstance(exc.__cause__, QueryCanceled):
            raise TookTooLong from None
        raise


class ConsoleChangeList(ChangeList):
    """One page of a list, found by the last row of the page before it.

    A list that is sorted by a column of another table, or by one that may be null, has numbered
    pages instead, which end after 2,000 rows. ``count_text`` says how many rows there are, such as
    ``17`` or ``2,000+``. ``is_cut`` says that PostgreSQL stopped looking after five seconds. Then
    there are no rows; if it stopped counting after a second, there are.

    With a filter that no index helps with, a page reads a part of the list. ``is_part`` says that
    there is more, ``searched_to`` the time of the last row that was looked at, and ``goes_back``
    whether it is the oldest one.
    """

    model_admin: Any
    keyset: Keyset | None
    count_text: str
    is_cut = False
    is_part = False
    searched_to: datetime | None = None
    goes_back = True
    wide: QuerySet[Any] | None = None
    search: RowSearch | None = None
    links: dict[str, str]

    @property
    def export_url(self) -> str:
        """Returns the address of all rows of this list as CSV."""
        return f"export-csv/{self.get_query_string()}"

    @property
    def has_wrong_filter(self) -> bool:
        """Returns whether a form of the filters has an error; its field says which."""
        forms = [getattr(each, "form", None) for each in self.filter_specs]
        return any(form.errors for form in forms if form is not None)

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> QuerySet[Any]:
        # Links, filters and searches begin at the first page.
        for name in (AFTER, BEFORE, VIEW):
            self.params.pop(name, None)
            self.filter_params.pop(name, None)
        self.wide = None
        if self.model_admin.has_walked_filter(self.filter_params):
            given, walked = self.filter_params, self.model_admin.walked_lookups
            self.filter_params = {name: given[name] for name in given if name not in walked}
            self.wide = super().get_queryset(request, exclude_parameters)
            self.filter_params = given
        return super().get_queryset(request, exclude_parameters)

    def get_results(self, request: HttpRequest) -> None:
        ordering = self.queryset.query.order_by
        self.keyset = Keyset.of(self.model, ordering)
        self.paginator = self.model_admin.get_paginator(request, self.queryset, self.list_per_page)
        rows: list[Any] = []
        count, has_more = 0, True
        self.links = {}
        if self.keyset is None or self.queryset.query.is_empty():
            self.wide = None
        try:
            with limit_time(self.queryset, _PAGE_MS) as set_limit:
                rows, self.links = self._read_page(request)
                if self.keyset is None or (self.links and not self.is_part):
                    set_limit(_COUNT_MS)
                    count, has_more = self._count(request)
                else:
                    has_more = self.is_part
        except TookTooLong:
            if not rows and self.search is not None and self.search.edge is not None:
                rows, self.links = self._cut(self.search.found, self.search)
            self.is_cut = not (rows or self.is_part)
        count = max(count, len(rows))
        self.count_text = _describe(count, has_more)
        # Nobody can select all rows of a list whose rows nobody has counted.
        counted = len(rows) if has_more or count > MAX_COUNT else count
        self.result_count = self.full_result_count = counted
        self.model_admin.read_columns(request, rows)
        self.result_list = rows
        self.show_full_result_count = self.can_show_all = False
        self.show_admin_actions = True
        self.multi_page = self.keyset is None and self.result_count > self.list_per_page

    def _read_page(self, request: HttpRequest) -> tuple[list[Any], dict[str, str]]:
        """Returns the rows of the page, and the addresses of the pages around it by their names."""
        if self.keyset is None:
            try:
                return list(self.paginator.page(self.page_num).object_list), {}
            except InvalidPage:
                raise IncorrectLookupParameters from None
        position, backwards = request.GET.get(AFTER, ""), False
        if BEFORE in request.GET:
            position, backwards = request.GET[BEFORE], True
        self.search = RowSearch(
            self.keyset, self.wide, self.queryset, position, backwards, self.list_per_page + 1
        )
        try:
            self.search.run()
        except InvalidPosition:
            raise IncorrectLookupParameters from None
        return self._cut(self.search.found, self.search)

    def _cut(self, found: list[Any], search: RowSearch) -> tuple[list[Any], dict[str, str]]:
        """Returns the rows of the page of those found, and the addresses of the pages around it."""
        position, backwards = search.position, search.backwards
        has_more = len(found) > self.list_per_page
        del found[self.list_per_page :]
        if backwards:
            found.reverse()
        begins = not (has_more if backwards else position)
        ends = not (position if backwards else has_more)
        links = self._link(found, begins=begins, ends=ends)
        if search.edge is not None:
            self.is_part, self.goes_back = True, not backwards
            self.searched_to = read_time(search.keyset, self.queryset, search.edge)
            if position:
                links["first"] = self.get_query_string()
            name, parameter = ("previous", BEFORE) if backwards else ("next", AFTER)
            links[name] = self.get_query_string({parameter: search.edge})
        return found, links

    def _count(self, request: HttpRequest) -> tuple[int, bool]:
        """Returns the number of rows, at most 2,001, and whether there may be more."""
        if self.keyset is None or self.wide is None:
            return int(self.paginator.count), False
        edge = find_edge(self.keyset, self.wide, "", STEPS[0], backwards=False)
        if edge is None:
            return int(self.paginator.count), False
        first = self.keyset.until(self.queryset, edge, backwards=False)
        return int(self.model_admin.get_paginator(request, first, self.list_per_page).count), True

    def _link(self, rows: list[Any], *, begins: bool, ends: bool) -> dict[str, str]:
        """Returns the addresses of the first, the previous and the next page that there are."""
        links = {}
        assert self.keyset is not None
        if rows and not begins:
            links["first"] = self.get_query_string()
            links["previous"] = self.get_query_string({BEFORE: self.keyset.position_of(rows[0])})
        if rows and not ends:
            links["next"] = self.get_query_string({AFTER: self.keyset.position_of(rows[-1])})
        return links


def _describe(count: int, is_cut: bool) -> str:
    """Returns a count as text, with ``+`` where there are more rows, or may be."""
    return f"{min(count, MAX_COUNT):,}{'+' if is_cut or count > MAX_COUNT else ''}"
