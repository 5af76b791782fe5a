"""The pages that watch the traffic: the health of providers and endpoints, and errors by type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from catalog.models import ModelEndpoint
from config.clocks.writing import write_time
from config.console.formatting import render_page
from config.console.navigation import build_menu_bar
from endpoints.models import PrivateEndpoint
from inference.reports.usage.sums import PERIODS
from inference.watch.board import Level, Row, read_board
from inference.watch.errors import ErrorReport, read_errors

_LEVELS: Final = {Level.BAD: "danger", Level.POOR: "warning", Level.GOOD: "success"}
_WORDS: Final = {Level.BAD: "bad", Level.POOR: "poor", Level.GOOD: "good"}
_PERMISSIONS: Final = (
    "inference.view_generation", "endpoints.view_privateendpoint", "catalog.view_provider",
)  # fmt: skip
# What operators do about a private endpoint in a state, by the names of its actions.
_ACTIONS: Final = {
    PrivateEndpoint.Status.DRAFT: ("validate", "Validate"),
    PrivateEndpoint.Status.ACTIVE: ("disable", "Disable"),
    PrivateEndpoint.Status.DISABLED: ("enable", "Enable"),
}
_COLUMNS: Final = {ModelEndpoint: "model_endpoint", PrivateEndpoint: "private_endpoint"}


def show_health(page: Any, request: HttpRequest) -> HttpResponse:
    """Shows the health of providers and endpoints, the worst first."""
    if not request.user.has_perms(_PERMISSIONS):
        raise PermissionDenied
    board = read_board()
    return render_page(
        page,
        request,
        "admin/inference/health.html",
        "Health",
        opts=None,
        tab_bar=build_menu_bar(request),
        board=board,
        is_cut_at=write_time(board.begin) if board.is_cut else "",
        providers=[_describe(request, row) for row in board.providers],
        endpoints=[_describe(request, row) for row in board.endpoints],
    )


def show_errors(page: Any, request: HttpRequest) -> HttpResponse:
    """Shows the errors of a period by provider and type, the most frequent first."""
    if not request.user.has_perm(_PERMISSIONS[0]):
        raise PermissionDenied
    period = PERIODS.get(request.GET.get("period", ""), PERIODS["24h"])
    report = read_errors(period)
    return render_page(
        page,
        request,
        "admin/inference/errors.html",
        "Errors",
        opts=None,
        tab_bar=build_menu_bar(request),
        report=report,
        cut_at="" if report.cut_at is None else write_time(report.cut_at),
        ranges=[(one.title, f"?period={one.name}", one is period) for one in PERIODS.values()],
        rows=list(_link_errors(report, period.began_at(report.read_at), period.name)),
    )


def _describe(request: HttpRequest, row: Row) -> dict[str, Any]:
    """Returns a row as the template shows it, with its links and what the operator may do."""
    traffic = row.traffic
    return {
        "row": row,
        "variant": _LEVELS[row.level],
        "word": _WORDS[row.level],
        "url": _find_page(row.subject),
        "percent": f"{traffic.failed_percent:.1f}%" if traffic.attempts else "",
        "is_alarming": traffic.level is Level.BAD,
        "states": [(text, level is not Level.GOOD) for level, text in row.states],
        "failed_at": "" if traffic.failed_at is None else write_time(traffic.failed_at),
        "generations": _link_generations(row),
        "action": _find_action(request, row.subject),
    }


def _find_page(subject: Any) -> str:
    if subject is None:
        return ""
    name = f"admin:{subject._meta.app_label}_{subject._meta.model_name}_change"
    return reverse(name, args=[subject.pk])


def _find_action(request: HttpRequest, subject: Any) -> tuple[str, str] | None:
    """Returns the address and the title of the dialog of a private endpoint's action."""
    if not isinstance(subject, PrivateEndpoint):
        return None
    if not request.user.has_perm("endpoints.change_privateendpoint"):
        return None
    name, title = _ACTIONS[PrivateEndpoint.Status(subject.status)]
    return reverse(f"admin:endpoints_privateendpoint_{name}", args=[subject.pk]), title


def _link_generations(row: Row) -> str:
    """Returns the address of the generations of a row."""
    query = {"since": "hour"}
    if isinstance(row.subject, ModelEndpoint | PrivateEndpoint):
        query[f"{_COLUMNS[type(row.subject)]}__id__exact"] = str(row.subject.pk)
        if isinstance(row.subject, PrivateEndpoint):
            query["organization__id__exact"] = str(row.subject.organization_id)
    else:
        query["provider_name__exact"] = row.name
    return _link(query)


def _link_errors(
    report: ErrorReport, begin: datetime, period: str
) -> Iterator[tuple[Any, str, str]]:
    """Yields each row with the time of its last error, and the address of its generations."""
    for row in report.rows:
        query = {
            "provider_name__exact": row.provider,
            "error_type__exact": row.error_type,
            "created_at__gte": f"{begin.astimezone(UTC):%Y-%m-%d %H:%M:%S}+00:00",
        }
        if period != "30d":
            # No index has these columns; this filter states a range of ids.
            query["since"] = "day" if period == "24h" else "week"
        yield row, write_time(row.last_at), _link(query)


def _link(query: Mapping[str, str]) -> str:
    return f"{reverse('admin:inference_generation_changelist')}?{urlencode(query)}"
