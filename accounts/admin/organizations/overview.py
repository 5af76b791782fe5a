"""The top of an organization's page: its credits, how long they last, and its first steps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from django.db.models import Exists, OuterRef, Subquery, Sum
from django.http import HttpRequest
from django.urls import reverse

from accounts.admin.organizations.limits import annotate_use, list_use
from accounts.models import ApiKey, ByokCredential, Member, Organization
from billing.models import Account, Meter
from config.clocks.clock import clock
from config.console.charts import Card
from config.console.formatting import nano_dollars, short_dollars
from config.console.navigation import bar_of
from inference.models import DailyUsage

_DAY: Final = timedelta(days=1)
_DAYS: Final = 7
_LOW_DAYS: Final = 7
_MOST_DAYS: Final = 999


class Step(NamedTuple):
    """A step of a new organization, with the address of the page that does it."""

    title: str
    is_done: bool
    url: str


def build_overview(request: HttpRequest, organization: Organization) -> dict[str, Any]:
    """Returns the tabs, the credits, the first steps and the limits of an organization."""
    state = _read_state(organization)
    shown: dict[str, Any] = {
        "tab_bar": bar_of(request, organization, Organization._meta.label_lower),
        "cards": [],
        "steps": _list_steps(request, state),
        "limits": list_use(state),
    }
    if request.user.has_perm("billing.view_account"):
        shown["cards"] = _make_cards(state)
    return shown


def _read_state(organization: Organization) -> Any:
    """Returns the organization with all that its page needs of it, in one query."""
    mine = {"organization": OuterRef("pk")}
    today = clock.now().date()
    funded = Account.objects.filter(**mine, kind=Account.Kind.CREDITS, posted_credits__gt=0)
    spent = DailyUsage.objects.filter(
        **mine, by_end_user=False, day_id__gte=today - _DAYS * _DAY, day_id__lt=today
    )
    sums = spent.order_by().values("organization").annotate(total=Sum("cost_nano"))
    return Organization.objects.annotate(
        has_member=Exists(Member.objects.filter(**mine, deleted_at=None)),
        has_credits=Exists(funded),
        has_credential=Exists(ByokCredential.objects.filter(**mine, disabled=False)),
        has_key=Exists(ApiKey.objects.filter(**mine, is_management=False, deleted_at=None)),
        has_request=Exists(Meter.objects.filter(**mine, requests__gt=0)),
        spent_lately=Subquery(sums.values("total")),
        **annotate_use(),
    ).get(pk=organization.pk)


def _make_cards(organization: Any) -> list[Card]:
    """Returns the credits of an organization that :func:`_read_state` has read."""
    accounts = {
        account.kind: account for account in Account.objects.for_organization(organization.pk)
    }
    if not accounts:
        return []
    paid = accounts[Account.Kind.CREDITS]
    # The balance of the write-offs is negative. Usage that was written off was not spent.
    written_off = -accounts[Account.Kind.WRITE_OFF].balance
    spent = accounts[Account.Kind.USAGE].balance - written_off
    burned = _find_burn_rate(organization)
    days = min(paid.available // burned, _MOST_DAYS) if burned else None
    return [
        Card("Balance", nano_dollars(paid.balance), "", "savings", "all credits minus spending"),
        Card("Available", nano_dollars(paid.available), "", "wallet", "for new requests"),
        Card(
            "Held", nano_dollars(paid.pending_debits), "", "hourglass_top", "for running requests"
        ),
        Card(
            "Spent",
            nano_dollars(spent),
            "",
            "payments",
            f"{nano_dollars(written_off)} more was written off" if written_off else "",
        ),
        Card(
            "Burn rate",
            f"{short_dollars(burned)} a day",
            "",
            "local_fire_department",
            f"the mean of the last {_DAYS} whole days",
            exact=f"{nano_dollars(burned)} a day",
        ),
        Card(
            "Days left",
            "no end" if days is None else f"{days:,}{'+' if days == _MOST_DAYS else ''}",
            "",
            "event_upcoming",
            "at this rate",
            is_alarming=days is not None and days < _LOW_DAYS,
        ),
    ]


def _find_burn_rate(organization: Any) -> int:
    """Returns the credits that were spent a day, in nano-USD, of the days of its existence."""
    days: int = (clock.now().date() - organization.created_at.date()).days
    return int(organization.spent_lately or 0) // min(max(days, 1), _DAYS)


def _list_steps(request: HttpRequest, organization: Any) -> list[Step]:
    """Returns the first steps and their states; none once a request was sent."""
    if organization.has_request:
        return []

    def to_add(model: str) -> str:
        if not request.user.has_perm(f"accounts.add_{model}"):
            return ""
        narrowed = urlencode({"organization__id__exact": str(organization.pk)})
        query = urlencode({"_changelist_filters": narrowed})
        return f"{reverse(f'admin:accounts_{model}_add')}?{query}"

    return [
        Step("Add a member", organization.has_member, to_add("member")),
        Step(
            "Grant credits, or store a credential of the organization",
            organization.has_credits or organization.has_credential,
            to_add("byokcredential"),
        ),
        Step("Create an API key", organization.has_key, to_add("apikey")),
        Step("Send the first request, with the samples that come with the key", False, ""),
    ]
