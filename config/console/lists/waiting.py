"""What waits for an operator: bounded counts of rows by the apps' declarations, and alerts.

Everybody sees what they may decide themselves: not what they asked for, and nothing that another
role decides. See :class:`config.apps.Waiting`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.apps import apps
from django.core.cache import cache
from django.db.models import IntegerField, QuerySet, Value
from django.http import HttpRequest
from django.urls import reverse
from django.utils.module_loading import import_string

from config.apps import Alert, Waiting, declaring_apps

MOST: Final = 20
"""Of each kind, this many rows are counted."""
_COUNTED_SECONDS: Final = 30
# The pages of rows, which ask many queries of their own, show what was counted last.
_SHOWN_SECONDS: Final = 900


@dataclass(frozen=True, slots=True)
class Task:
    """Rows of one kind that wait: how many, such as ``3`` or ``20+``, and the list of them."""

    title: str
    count: str
    url: str
    icon: str


@dataclass(frozen=True, slots=True)
class Inbox:
    """What waits for an operator; ``badge`` is the number of rows as the sidebar shows it."""

    tasks: Sequence[Task]
    alerts: Sequence[Alert]
    badge: str


def read_inbox(request: HttpRequest) -> Inbox:
    """Returns what waits for the operator now, with one query for rows and those of the alerts."""
    tasks, badge = _read_tasks(request)
    return Inbox(tasks, list(_find_alerts(request)), badge)


def read_badge(request: HttpRequest) -> str:
    """Returns the number of rows that wait, empty for none.

    The first page, which lists them, counts them itself. On a list the number may be half a minute
    old, and on other pages it is the one that was counted last.
    """
    match = request.resolver_match
    name = (match.url_name if match else None) or ""
    if name != "index":
        found = cache.get(_cache_key(request))
        is_new = found is not None and found[1] > time.monotonic() - _COUNTED_SECONDS
        if is_new or not name.endswith("_changelist"):
            return "" if found is None else str(found[0])
    return _read_tasks(request)[1]


def _read_tasks(request: HttpRequest) -> tuple[list[Task], str]:
    """Counts once a request."""
    read: dict[str, Any] = request.__dict__
    if "tasks_waiting" not in read:
        read["tasks_waiting"] = found = _count_tasks(request)
        cache.set(_cache_key(request), (found[1], time.monotonic()), _SHOWN_SECONDS)
    return read["tasks_waiting"]


def _count_tasks(request: HttpRequest) -> tuple[list[Task], str]:
    declared = list(_list_permitted(request))
    if not declared:
        return [], ""
    asked = [
        _narrow(label, waiting, request.user)
        .order_by()
        .annotate(waiting_number=Value(number, IntegerField()))
        .values_list("waiting_number", flat=True)[: MOST + 1]
        for number, (label, _, waiting) in enumerate(declared)
    ]
    found = list(asked[0].union(*asked[1:], all=True) if len(asked) > 1 else asked[0])
    tasks = []
    for number, (label, icon, waiting) in enumerate(declared):
        if count := found.count(number):
            page = reverse(f"admin:{label.replace('.', '_')}_changelist")
            url = f"{page}?{urlencode(waiting.query)}"
            tasks.append(Task(waiting.title, _write(count), url, icon))
    total = sum(min(found.count(number), MOST) for number in range(len(declared)))
    is_more = any(found.count(number) > MOST for number in range(len(declared)))
    return tasks, f"{total}{'+' if is_more else ''}" if total else ""


def _list_permitted(request: HttpRequest) -> Iterator[tuple[str, str, Waiting]]:
    """Yields the label and the icon of each model with rows that the operator may decide."""
    for app in declaring_apps():
        for label, declaration in app.declarations():
            of_app, model = label.split(".")
            for waiting in declaration.waiting:
                if request.user.has_perm(waiting.permission) and request.user.has_perm(
                    f"{of_app}.view_{model}"
                ):
                    yield label, declaration.icon, waiting


def _narrow(label: str, waiting: Waiting, user: Any) -> QuerySet[Any]:
    rows: QuerySet[Any] = apps.get_model(label)._default_manager.filter(**waiting.where)
    if waiting.needs and not user.is_superuser:
        rows = rows.filter(**{f"{waiting.needs}__in": sorted(user.get_all_permissions())})
    if waiting.proposer:
        rows = rows.exclude(**{waiting.proposer: f"operator {user.get_username()}"})
    return rows


def _find_alerts(request: HttpRequest) -> Iterator[Alert]:
    for app in declaring_apps():
        for path in app.alerts:
            yield from (
                alert for alert in import_string(path)() if request.user.has_perm(alert.permission)
            )


def _write(count: int) -> str:
    return f"{MOST}+" if count > MOST else f"{count}"


def _cache_key(request: HttpRequest) -> str:
    return f"console:waiting:{request.user.pk}"
