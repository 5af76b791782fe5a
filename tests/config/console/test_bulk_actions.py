"""Each action over selected rows, by each role and from each state: what it changes and whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final, NamedTuple

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.db import transaction
from django.test import Client
from django.utils import timezone

from accounts.models import ApiKey
from billing import reviews
from billing.models import Account
from billing.topups import matching
from catalog.models import CatalogProposal
from config.apps import Role
from config.changes.kinds import ChangeKind
from config.changes.proposals import propose
from tests.support.console import count_written, listing, parse_report
from tests.support.ledger import differences
from tests.support.operators.four_eyes import sign_in


class Noun(NamedTuple):
    """How a test reads the state of a row, and how the row of ``world`` gets into each of them."""

    read: Callable[[Any], str]
    reach: dict[str, Callable[[Any], Any]]


class Bulk(NamedTuple):
    """The roles that may do an action, and the state after it by the state before it.

    Every other state refuses the row. ``pays`` is what the organization pays, in nano-USD.
    """

    roles: frozenset[Role]
    arrows: dict[str, str]
    pays: int = 0


def _nothing(row: Any) -> None:
    """The row of ``world`` is in this state already."""


def _store(**columns: Any) -> Callable[[Any], Any]:
    return lambda row: type(row)._base_manager.filter(pk=row.pk).update(**columns)


def _state_of_key(key: ApiKey) -> str:
    if key.deleted_at is not None:
        return "revoked"
    return "paused" if key.disabled else "enabled"


def _state_of_endpoint(endpoint: Any) -> str:
    return "deleted" if endpoint.deleted_at is not None else str(endpoint.status)


def _status(row: Any) -> str:
    return str(row.status)


def _activate_and_disable(endpoint: Any) -> None:
    endpoint.activate()
    endpoint.disable()


ADMINISTRATORS: Final = frozenset({Role.ADMINISTRATOR})
CARE: Final = ADMINISTRATORS | {Role.SUPPORT}
MONEY: Final = ADMINISTRATORS | {Role.FINANCE}
LISTED: Final = Noun(
    lambda row: "listed" if row.is_listed else "delisted",
    {"listed": _nothing, "delisted": lambda row: row.delist()},
)
NOUNS: Final = {
    "accounts.apikey": Noun(
        _state_of_key, {"enabled": _nothing, "paused": lambda row: row.pause()}
    ),
    "accounts.delivery": Noun(
        _status,
        {
            "pending": _nothing,
            "failed": _store(status="failed"),
            "delivered": _store(status="delivered", delivered_at=timezone.now()),
            "disabled": lambda row: row.subscription.disable(),
        },
    ),
    "billing.excess": Noun(
        _status,
        {
            "under_review": _nothing,
            "charged": lambda row: reviews.charge(row, by="ann"),
            "written_off": lambda row: reviews.write_off(row, by="ann"),
        },
    ),
    "billing.deposit": Noun(
        _status,
        {
            "under": _nothing,
            "dismissed": lambda row: matching.dismiss(row, by="ann", note="paid back"),
        },
    ),
    "catalog.provider": LISTED,
    "catalog.languagemodel": LISTED,
    "catalog.modelendpoint": LISTED,
    "catalog.catalogproposal": Noun(
        _status,
        {
            "waiting": _nothing,
            "approved": lambda row: row.approve(by="ann"),
            "refused": lambda row: row.refuse(by="ann"),
        },
    ),
    "config.changeset": Noun(
        _status,
        {
            "proposed": _nothing,
            "rejected": lambda row: row.reject(by="operator bob"),
            "withdrawn": lambda row: row.withdraw(by="operator ann"),
        },
    ),
    "config.signinlimit": Noun(
        lambda row: "locked" if row.failures else "open",
        {
            "open": _store(failures=0),
            "locked": _store(failures=99, resets_at=timezone.now() + timedelta(hours=1)),
        },
    ),
    "endpoints.privateendpoint": Noun(
        _state_of_endpoint,
        {
            "draft": _nothing,
            "active": lambda row: row.activate(),
            "disabled": _activate_and_disable,
        },
    ),
    "endusers.enduser": Noun(
        lambda row: "active" if row.is_active else "inactive",
        {"active": _nothing, "inactive": lambda row: row.deactivate()},
    ),
}
OFF: Final = Bulk(ADMINISTRATORS, {"listed": "delisted", "delisted": "delisted"})
ON: Final = Bulk(ADMINISTRATORS, {"listed": "listed", "delisted": "listed"})
BULK: Final = {
    ("accounts.apikey", "pause_selected"): Bulk(CARE, {"enabled": "paused", "paused": "paused"}),
    ("accounts.apikey", "resume_selected"): Bulk(CARE, {"enabled": "enabled", "paused": "enabled"}),
    ("accounts.apikey", "revoke_selected"): Bulk(CARE, {"enabled": "revoked", "paused": "revoked"}),
    ("accounts.delivery", "redeliver_selected"): Bulk(
        CARE, {"pending": "pending", "failed": "pending", "delivered": "pending"}
    ),
    ("billing.excess", "charge_selected"): Bulk(MONEY, {"under_review": "charged"}, pays=5),
    ("billing.excess", "write_off_selected"): Bulk(MONEY, {"under_review": "written_off"}),
    ("billing.deposit", "dismiss_selected"): Bulk(MONEY, {"under": "dismissed"}),
    ("catalog.provider", "delist_selected"): OFF,
    ("catalog.provider", "relist_selected"): ON,
    ("catalog.languagemodel", "delist_selected"): OFF,
    ("catalog.languagemodel", "relist_selected"): ON,
    ("catalog.modelendpoint", "delist_selected"): OFF,
    ("catalog.modelendpoint", "relist_selected"): ON,
    ("catalog.catalogproposal", "approve_selected"): Bulk(MONEY, {"waiting": "approved"}),
    ("catalog.catalogproposal", "refuse_selected"): Bulk(MONEY, {"waiting": "refused"}),
    ("config.changeset", "approve_selected"): Bulk(MONEY, {"proposed": "applied"}),
    ("config.changeset", "reject_selected"): Bulk(MONEY, {"proposed": "rejected"}),
    ("config.signinlimit", "lift_locks"): Bulk(ADMINISTRATORS, {"locked": "open"}),
    ("endpoints.privateendpoint", "activate_selected"): Bulk(CARE, {"draft": "active"}),
    ("endpoints.privateendpoint", "disable_selected"): Bulk(CARE, {"active": "disabled"}),
    ("endpoints.privateendpoint", "enable_selected"): Bulk(CARE, {"disabled": "active"}),
    ("endpoints.privateendpoint", "remove_selected"): Bulk(
        CARE, {"draft": "deleted", "active": "deleted", "disabled": "deleted"}
    ),
    ("endusers.enduser", "activate_selected"): Bulk(
        CARE, {"active": "active", "inactive": "active"}
    ),
    ("endusers.enduser", "deactivate_selected"): Bulk(
        CARE, {"active": "inactive", "inactive": "inactive"}
    ),
}
# Django's own action; every page has it, and almost none lets anybody use it.
DELETE: Final = "delete_selected"
DELETABLE: Final = {"auth.user", "auth.group"}


@pytest.fixture
def rows(world: dict[str, Any]) -> dict[str, Any]:
    """Returns the rows of ``world``, with a change set that somebody may approve."""
    User.objects.create_superuser("ann")
    proposal: CatalogProposal = world["catalog.catalogproposal"]
    wanted = admin.site._registry[CatalogProposal].make_proposal(  # type: ignore[attr-defined]
        proposal, ChangeKind.PRICES, "refuse_selected", needs="catalog.change_modelendpoint"
    )
    made = propose(wanted, by="operator ann", reason="A test.")
    return {**world, "config.changeset": made}


def _list_actions() -> Iterator[tuple[str, str]]:
    for model, page in admin.site._registry.items():
        for _, name, _ in page._get_base_actions():  # type: ignore[attr-defined]
            if name != DELETE:
                yield model._meta.label_lower, name


def _read_credits() -> int:
    accounts = Account.objects.filter(kind="credits")
    return sum(each.posted_credits - each.posted_debits for each in accounts)


def _is_done(client: Client, row: Any, action: tuple[str, str], state: str) -> bool:
    """Does an action with a row in a state, and returns whether that did what the table says."""
    bulk = BULK[action]
    written, funds, contradictions = count_written(), _read_credits(), differences()
    [message] = get_messages(_post(client, row, action[1]).wsgi_request)
    summary, *_ = parse_report(str(message))
    if state not in bulk.arrows:
        return summary.endswith(": 0 done, 1 refused.") and count_written() == written
    return (
        summary.endswith(": 1 done.")
        and NOUNS[action[0]].read(_read(row)) == bulk.arrows[state]
        and funds - _read_credits() == bulk.pays
        and differences() == contradictions
    )


def _is_refused(client: Client, row: Any, name: str) -> bool:
    """Does an action without its permission; returns whether it was refused as a whole."""
    written = count_written()
    answer = _post(client, row, name)
    # A page whose actions are all forbidden shows its list again.
    return answer.status_code in (200, 302, 403) and count_written() == written


def _post(client: Client, row: Any, name: str) -> Any:
    client.cookies.pop("messages", None)
    form = {"action": name, "_selected_action": str(row.pk), "confirmed": "yes", "post": "yes"}
    return client.post(listing(type(row)), form)


def _read(row: Any) -> Any:
    return type(row)._base_manager.get(pk=row.pk)


def test_the_table_has_every_action_over_rows_and_every_state_it_starts_from() -> None:
    assert set(_list_actions()) == BULK.keys()
    for (label, name), bulk in BULK.items():
        assert bulk.arrows.keys() <= NOUNS[label].reach.keys(), name


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("role", list(Role))
def test_an_action_over_rows_by_role_and_state(role: Role, request: pytest.FixtureRequest) -> None:
    # Only who was there before a change set was proposed may decide about it.
    client = sign_in(f"of {role}", role)
    rows = request.getfixturevalue("rows")
    wrong = []
    for action, bulk in BULK.items():
        states = NOUNS[action[0]].reach.items()
        # Who lacks the permission of an action is refused before it reads a row.
        for state, reach in states if role in bulk.roles else [*states][:1]:
            row = _read(rows[action[0]])
            with transaction.atomic():
                reach(row)
                if role in bulk.roles:
                    is_right = _is_done(client, row, action, state)
                else:
                    is_right = _is_refused(client, row, action[1])
                if not is_right:
                    wrong.append((action, state))
                transaction.set_rollback(True)
    assert wrong == []


@pytest.mark.parametrize("role", list(Role))
def test_only_administrators_delete_rows_and_only_operators(
    world: dict[str, Any], role: Role
) -> None:
    client = sign_in(f"of {role}", role)
    for label, row in world.items():
        if label not in DELETABLE or role != Role.ADMINISTRATOR:
            assert _is_refused(client, row, DELETE), label
            continue
        with transaction.atomic():
            _post(client, row, DELETE)
            assert not type(row)._base_manager.filter(pk=row.pk).exists()
            transaction.set_rollback(True)
