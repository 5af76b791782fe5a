"""The backtest of a form: what its limits would have done to the requests of the last days."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.html import format_html

from accounts.models import ApiKey, Guardrail
from config.console.actions import SEES_REQUESTS
from config.console.formatting import render_table
from inference.reports.backtest import DAYS, REASONS, Outcome, backtest

# Keys that the result names one by one.
_NAMED: Final = 20


class BacktestWidget(forms.Widget):
    """A button that sends the form to ``url``, with a place for the answer."""

    template_name = "admin/accounts/guardrail/backtest.html"
    url = ""

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        context = super().get_context(name, value, attrs)
        context["widget"] |= {"url": self.url, "days": DAYS}
        return context

    def id_for_label(self, id_: str, index: str | int | None = None) -> str:
        return ""


class ShownField(forms.Field):
    """Shows a widget beside the others; has no value."""

    def __init__(self, label: str, widget: forms.Widget) -> None:
        super().__init__(required=False, disabled=True, label=label, widget=widget)


def answer_backtest(request: HttpRequest, form: Any, stored: Guardrail | None) -> HttpResponse:
    """Answers with the backtest of a bound form; nothing is stored.

    Raises :class:`PermissionDenied` for an operator who may not view requests.
    """
    if not request.user.has_perm(SEES_REQUESTS):
        raise PermissionDenied
    if not form.is_valid():
        labels = {
            name: form.fields[name].label or name for name in form.errors if name in form.fields
        }
        problems = [
            f"{labels.get(name, 'Form')}: {text}"
            for name, texts in form.errors.items()
            for text in texts
        ]
        return render(request, "admin/accounts/guardrail/tested.html", {"problems": problems})
    changes = form.changes
    if stored is None:
        workspace = changes.pop("workspace")
        organization_id = workspace.organization_id
        stored = Guardrail(organization_id=organization_id, workspace=workspace)
    found = backtest(stored.propose(**changes))
    context = {
        "found": found,
        "days": DAYS,
        "total": f"{found.total:,}",
        "refused": f"{found.refused:,}",
        "moved": f"{found.outcomes[Outcome.MOVED]:,}",
        "unknown": f"{found.outcomes[Outcome.UNKNOWN]:,}",
        **render_refusals(found.reasons, found.keys, found.since),
    }
    return render(request, "admin/accounts/guardrail/tested.html", context)


def render_refusals(
    reasons: Mapping[str, int], keys: Mapping[UUID, int], since: datetime | None = None
) -> dict[str, str]:
    """Renders why requests were refused, and the keys with the most, with links to generations.

    ``since`` is when the first of these generations began.
    """
    most = Counter(keys).most_common(_NAMED)
    named = ApiKey.objects.in_bulk([key_id for key_id, _ in most])
    url = reverse("admin:inference_generation_changelist")
    begin = {} if since is None else {"created_at__gte": since.strftime("%Y-%m-%d %H:%M:%S+00:00")}
    rows: list[tuple[Any, ...]] = []
    for key_id, count in most:
        key = named.get(key_id)
        query = urlencode({"api_key__id__exact": str(key_id), **begin})
        link = format_html('<a class="text-link" href="{}?{}">its generations</a>', url, query)
        rows.append((key.name if key else key_id, key.label if key else "", f"{count:,}", link))
    if len(keys) > _NAMED:
        rest = sum(keys.values()) - sum(count for _, count in most)
        rows.append((f"{len(keys) - _NAMED:,} more keys", "", f"{rest:,}", ""))
    counts = ((REASONS.get(each, each), f"{n:,}") for each, n in Counter(reasons).most_common())
    return {
        "reasons": render_table(("Reason", "Requests"), counts),
        "keys": render_table(("Key", "Label", "Requests", "See"), rows),
    }
