"""The rate limits on the pages of organizations, workspaces, keys and end users."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import ValidationError
from django.db.models import Q
from django.http import HttpRequest

from accounts.models import LIMIT_NAMES, MOST_RATE, Ceilings, LimitOwner, Organization, RateLimit
from billing.budgets import MeterReading
from billing.models import Meter
from billing.rate_limits import Rate, describe_use
from catalog.models import LanguageModel
from config.clocks.clock import clock
from config.console.actions import Message, transition
from config.console.formatting import render_table
from config.console.unfold import Dialog, TextWidget, display


def _rate_field(label: str) -> forms.IntegerField:
    return forms.IntegerField(
        label=label, required=False, min_value=1, max_value=MOST_RATE, widget=TextWidget()
    )


class RateLimitDialog(Dialog):
    """Asks for the limits of all models together, or of one."""

    model = forms.CharField(
        required=False,
        max_length=255,
        widget=TextWidget(),
        help_text="The slug of a model. Leave it empty to limit all models together.",
    )
    requests_per_minute = _rate_field("Requests a minute")
    tokens_per_minute = _rate_field("Tokens a minute")
    requests_per_day = _rate_field("Requests a day")
    concurrent_requests = _rate_field("Requests at once")

    def clean_model(self) -> str | None:
        slug: str = self.cleaned_data["model"]
        if slug and not self._knows(slug):
            raise ValidationError("No model has this slug.")
        return slug or None

    def _knows(self, slug: str) -> bool:
        """Returns whether requests can name a model so; a limit may outlive its own model."""
        request: Any = self.request
        row = request.dialog_page.get_object(request, unquote(self.object_id))
        if row is None:
            return True  # the action refuses it
        owner = owner_of(row)
        if RateLimit.objects.of(owner).filter(model=slug).exists():
            return True
        visible = LanguageModel.objects.visible_to(owner.organization_id)
        return bool(visible.filter(Q(slug=slug) | Q(canonical_slug=slug)).exists())


class CeilingDialog(RateLimitDialog):
    """Asks for the highest limits of a key, workspace or end user."""

    replaces_lower = forms.BooleanField(
        required=False,
        label="Replace lower limits",
        help_text="Management keys may have set limits that are lower than these. They stay, "
        "unless you tick this.",
    )


@display(description="Rate limits")
def current_limits(page: Any, obj: Any) -> str:
    """Shows each limit of an object and how much of it is used."""
    rows = list(RateLimit.objects.of(owner_of(obj)))
    subjects = [row.subject_id for row in rows]
    columns = Meter.objects.filter(pk__in=subjects).values_list(*MeterReading._fields)
    meters = {row[0]: MeterReading(*row) for row in columns}
    now = clock.now()
    table = [
        (
            row.model or "all together",
            "; ".join(
                describe_use(rate, limit, meters[row.subject_id], now)
                + _describe_ceiling(row, rate)
                for rate in Rate
                if (limit := getattr(row, rate)) is not None and row.subject_id in meters
            ),
        )
        for row in sorted(rows, key=lambda row: row.model or "")
    ]
    return render_table(("Models", "Used"), table, empty="There is no limit.")


@transition(
    description="Rate limits",
    question="Sets the highest limits of all models together, or of the model that you name. "
    "Management keys can set lower ones, and none that is higher. An empty field allows any. "
    "The limits hold from the next request on, and the lowest of organization, workspace, key "
    "and end user rules.",
    submit="Set the limits",
    permission="change",
    icon="speed",
    form=CeilingDialog,
)
def limit_rates(page: Any, request: HttpRequest, obj: Any, form: Any) -> Message:
    """Sets the highest limits of a part of an organization.

    The row has ``edit``, which raises the error of a key or workspace that was deleted.
    """
    data = form.cleaned_data
    ceilings = Ceilings(
        {name: data[name] for name in LIMIT_NAMES},
        model=data["model"],
        replaces_lower=data["replaces_lower"],
    )
    is_changed = obj.edit(rate_limits=ceilings)
    row = RateLimit.objects.of(owner_of(obj)).filter(model=data["model"]).first()
    lower = {} if row is None else {name: row.lower_limit(name) for name in LIMIT_NAMES}
    stays = [
        f"{RateLimitDialog.base_fields[name].label}: {limit:,}"
        for name, limit in lower.items()
        if limit is not None
    ]
    return tell_change(obj, is_changed=is_changed, stays=", ".join(stays))


def tell_change(obj: Any, *, is_changed: bool, stays: str = "") -> Message:
    """Returns the message after a change; ``stays`` names the lower limits of management keys."""
    if is_changed:
        level, text = messages.SUCCESS, f"The rate limits of {obj} are changed."
    else:
        level, text = messages.INFO, f"The rate limits of {obj} were like this already."
    if stays:
        text += f" Lower limits stay ({stays})."
    return level, text


def _describe_ceiling(row: RateLimit, rate: Rate) -> str:
    ceiling = getattr(row, f"{rate}_ceiling")
    return "" if ceiling is None else f", at most {ceiling:,}"


def owner_of(obj: Any) -> LimitOwner:
    """Returns whose limits those of an object are."""
    if isinstance(obj, Organization):
        return LimitOwner(obj.pk)
    return obj.limit_owner
