"""The filters of the list of generations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.db.models import QuerySet

from accounts.admin.forms import nano_of
from config.clocks.clock import clock
from config.console.lists.filters import (
    FilterForm,
    FormFilter,
    NumberFilterField,
    OptionField,
    TextField,
    UtcField,
)
from inference.ids import first_id, last_id
from inference.models import Generation, Journal

_SINCE: Final = {
    "hour": ("The last hour", timedelta(hours=1)),
    "day": ("The last 24 hours", timedelta(days=1)),
    "week": ("The last 7 days", timedelta(days=7)),
}
_YES_OR_NO: Final = (("1", "Yes"), ("0", "No"))
_YES_OR_NO_FIELDS: Final = {"is_byok__exact", "streamed__exact"}
_COSTS: Final = {"cost_nano__gte", "cost_nano__lte"}
_RANGES: Final = (
    ("created_at__gte", "created_at__lt"),
    ("cost_nano__gte", "cost_nano__lte"),
    ("latency_ms__gte", "latency_ms__lte"),
)
# Only times, organizations, keys and end users have an index.
WALKED: Final = frozenset(
    {
        "status__exact", "error_type__exact", "model__exact", "provider_name__exact",
        "cost_nano__gte", "cost_nano__lte", "latency_ms__gte", "latency_ms__lte",
        "is_byok__exact", "streamed__exact", "private_endpoint__id__exact",
        "model_endpoint__id__exact", "workspace__id__exact",
    }
)  # fmt: skip


class GenerationFilterForm(FilterForm):
    """Asks for the time, the route, the result and the numbers of generations.

    The names are those of links on other pages.
    """

    since = OptionField([(name, text) for name, (text, _) in _SINCE.items()], label="Time")
    created_at__gte = UtcField(label="From, UTC")
    created_at__lt = UtcField(label="To, UTC")
    status__exact = OptionField(Generation.Status.choices, label="Status")
    error_type__exact = TextField(label="Error type", help_text="Such as provider_unavailable.")
    model__exact = TextField(label="Model", help_text="The slug.")
    provider_name__exact = TextField(label="Provider", help_text="The name.")
    end_user__exact = TextField(label="End user")
    cost_nano__gte = NumberFilterField(label="Cost in USD, from", decimal_places=9)
    cost_nano__lte = NumberFilterField(label="Cost in USD, to", decimal_places=9)
    latency_ms__gte = NumberFilterField(label="First event in ms, from")
    latency_ms__lte = NumberFilterField(label="First event in ms, to")
    is_byok__exact = OptionField(_YES_OR_NO, label="BYOK")
    streamed__exact = OptionField(_YES_OR_NO, label="Streamed")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        for low, high in _RANGES:
            least, most = cleaned.get(low), cleaned.get(high)
            if least is not None and most is not None and least > most:
                self.add_error(high, "This is less than the beginning of the range.")
        return cleaned

    def narrow(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        given = {
            name: value for name, value in self.cleaned_data.items() if value not in (None, "")
        }
        if given.get("status__exact") == Generation.Status.PENDING:
            # No index has the status; the pending ones have journals.
            rows = rows.filter(pk__in=Journal.objects.values("pk"))
        for name in _YES_OR_NO_FIELDS & given.keys():
            given[name] = given[name] == "1"
        for name in _COSTS & given.keys():
            given[name] = nano_of(given[name])
        return _narrow_time(rows, given).filter(**given)


def _narrow_time(rows: QuerySet[Any], given: dict[str, Any]) -> QuerySet[Any]:
    """Narrows by the time in the ID, which names the partitions, beside the stamp."""
    since = given.pop("since", None)
    if since is not None:
        moment = clock.now() - _SINCE[since][1]
        given["created_at__gte"] = max(moment, given.get("created_at__gte", moment))
    if "created_at__gte" in given:
        rows = rows.filter(id__gte=first_id(given["created_at__gte"]))
    if "created_at__lt" in given:
        rows = rows.filter(id__lt=last_id(given["created_at__lt"]))
    return rows


class GenerationFilter(FormFilter):
    form_class = GenerationFilterForm
