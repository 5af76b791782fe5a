"""The live page: the requests of this moment, with the filters of the list of generations."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from django.contrib.admin.options import IncorrectLookupParameters
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.urls import reverse

from config.clocks.clock import clock
from config.console.formatting import nano_dollars
from config.console.lists.pages import AFTER, ConsoleChangeList
from config.database.replica.pages import read_position
from config.database.replica.reading import answer
from inference.admin.columns import STATES
from inference.watch.tail import Tail, read_tail

_RUNNING: Final = "running"
_NAME: Final = "admin:inference_generation_live"
# An operator may ask a worker this often in ten seconds, over all pages that are open.
MOST_QUESTIONS: Final = 50
_WINDOW_SECONDS: Final = 10


class LiveList(ConsoleChangeList):
    """The filters of the list, whose rows are asked for one after the other."""

    @property
    def export_url(self) -> str:
        return f"../export-csv/{self.get_query_string()}"

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> Any:
        self.params.pop(_RUNNING, None)
        self.filter_params.pop(_RUNNING, None)
        return super().get_queryset(request, exclude_parameters)

    def get_results(self, request: HttpRequest) -> None:
        """Reads nothing."""
        self.keyset, self.links, self.count_text = None, {}, ""
        self.paginator = self.model_admin.get_paginator(
            request, self.queryset.none(), self.list_per_page
        )
        self.result_list = []
        self.result_count = self.full_result_count = 0
        self.show_full_result_count = self.can_show_all = False
        self.show_admin_actions = self.multi_page = False


def show_live(page: Any, request: HttpRequest) -> HttpResponse:
    """Shows the page, which asks for its rows itself."""
    if not page.has_view_permission(request):
        raise PermissionDenied
    request.list_class = LiveList  # type: ignore[attr-defined]
    query = request.GET.urlencode()
    context = {
        "title": "Live requests",
        "rows_url": f"{reverse(f'{_NAME}_rows')}?{query}",
        "list_url": f"{reverse('admin:inference_generation_changelist')}?{query}",
    }
    response: Any = page.changelist_view(request, context)
    if getattr(response, "context_data", None) is not None:
        response.template_name = "admin/inference/live.html"
        # The header shows the title of this page, and no actions of the list.
        response.context_data |= {"opts": None, "actions_list": []}
    return response


def answer_rows(page: Any, request: HttpRequest) -> HttpResponse:
    """Answers what is new, as rows of the page's table; 304 if nothing is."""
    if not page.has_view_permission(request):
        raise PermissionDenied
    if _asks_too_often(request):
        text = "You have too many live pages open. This one asks again in ten seconds."
        return JsonResponse(
            {"notice": text}, status=429, headers={"Retry-After": str(_WINDOW_SECONDS)}
        )
    request.list_class = LiveList  # type: ignore[attr-defined]
    try:
        changes = page.get_changelist_instance(request)
    except IncorrectLookupParameters:
        text = "The list has no such filter. Open the page again and choose others."
        return JsonResponse({"notice": text}, status=400)
    if changes.has_wrong_filter:
        text = "A filter has an error, which stands at its field."
        return JsonResponse({"notice": text}, status=400)
    running = request.GET.get(_RUNNING, "").split(",")
    cursor = request.GET.get(AFTER, "")
    rows = changes.queryset.select_related("organization").defer("attempts", "trace", "units")
    tail = answer(lambda: read_tail(rows, cursor, running), after=read_position(request))
    return _respond(request, tail)


def _respond(request: HttpRequest, tail: Tail) -> HttpResponse:
    tag = f'"{hashlib.sha256(tail.tag.encode()).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Causeway-Cursor": tail.cursor}
    if request.headers.get("If-None-Match") == tag:
        return HttpResponse(status=304, headers=headers)
    notice = (
        "The filter reads too much at once. Choose a narrower one." if tail.took_too_long else ""
    )
    rows = [(row, STATES[row.status], nano_dollars(row.cost_nano)) for row in tail.rows]
    body = {
        "rows": render_to_string("admin/inference/live_rows.html", {"rows": rows}),
        "is_cut": tail.is_cut,
        "has_gap": tail.has_gap,
        "notice": notice,
    }
    return JsonResponse(body, headers=headers)


def _asks_too_often(request: HttpRequest) -> bool:
    """Counts a question of the operator; returns whether there were too many in this worker.

    The count need not be exact: another thread, or a cache that drops it, may lose a question.
    """
    window = int(clock.time()) // _WINDOW_SECONDS
    key = f"console:live:{request.user.pk}:{window}"
    asked = cache.get(key, 0) + 1
    cache.set(key, asked, 2 * _WINDOW_SECONDS)
    return bool(asked > MOST_QUESTIONS)
