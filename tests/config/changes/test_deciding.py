"""Four eyes: a price that one operator proposes happens when another one approves it, once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from threading import Barrier
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import InternalError, connection, transaction
from django.db.utils import IntegrityError
from django.test import Client
from django.urls import reverse

from accounts.webhooks.models import Delivery, Subscription
from catalog.models import ModelEndpoint, PriceVersion
from catalog.pricing import Price
from config.apps import Role
from config.audit import context as audit
from config.audit.entries import AuditEntry
from config.changes.kinds import ChangeKind
from config.changes.models import ChangeRule, ChangeSet, expire_due
from config.clocks.clock import clock
from config.events.outbox import Event
from tests.support import factories
from tests.support.console import SUBMIT, fingerprint, listing, messages_of, page
from tests.support.database import snapshots
from tests.support.operators import four_eyes
from tests.support.operators.four_eyes import WHY, approve, decide, demand, proposed, sign_in

NEW = {
    "rates-prompt": "1.5", "rates-completion": "2", "rates-image": "0", "rates-request": "0",
    "rules-TOTAL_FORMS": "0", "rules-INITIAL_FORMS": "0",
}  # fmt: skip
MADE = "One of the two accounts was created by the other"


@pytest.fixture
def endpoint(db: None) -> ModelEndpoint:
    return factories.make_endpoint(factories.make_model(), factories.make_provider())


@pytest.fixture
def ann(endpoint: ModelEndpoint) -> Client:
    demand(ChangeKind.PRICES)
    return sign_in("ann")


@pytest.fixture
def bob(ann: Client) -> Client:
    return sign_in("bob")


def save(client: Client, endpoint: ModelEndpoint, **fields: str) -> Any:
    """Previews a price of $1.5 per million and presses the button below the preview."""
    path = page(endpoint, "edit_price")
    shown = client.post(path, {**NEW, "preview": "1"})
    given = {name: str(shown.context[name]) for name in ("seen", "basis")}
    return client.post(path, {**NEW, **given, **fields, "save": "1"}, follow=True)


def propose(client: Client, endpoint: ModelEndpoint) -> ChangeSet:
    save(client, endpoint, **WHY)
    return proposed()


def price_of(endpoint: ModelEndpoint) -> Price:
    return ModelEndpoint.objects.select_related("price").get(pk=endpoint.pk).price.price


def test_a_price_is_proposed_and_changes_when_another_operator_approves(
    ann: Client, bob: Client, endpoint: ModelEndpoint
) -> None:
    with snapshots.unchanged():
        answer = save(ann, endpoint, **WHY)
        made = proposed()
        assert messages_of(answer) == [
            f"Proposed as {made}. Nothing was changed: another operator must approve it."
        ]
    event = Event.objects.get(kind="change.waiting")
    assert event.organization_id is None
    assert event.data == {
        "number": made.pk,
        "subject": made.subject,
        "proposed_by": "operator ann",
        "reason": "The provider asked for it.",
    }
    shown = bob.get(page(made)).content.decode()
    for text in ("$1 per million", "$1.5 per million", "+50 %", "The provider asked for it."):
        assert text in shown

    assert decide(bob, made) == "The new price is saved."
    assert price_of(endpoint).prompt == Decimal("0.0000015")
    assert (made.status, made.decided_by) == ("applied", "operator bob")
    entry = AuditEntry.objects.get(kind="catalog.priceversion")
    assert (entry.actor, entry.action) == ("operator bob", f"{made}, proposed by operator ann")
    told = AuditEntry.objects.filter(kind="config.changeset").order_by("id")
    assert [(each.actor, each.change) for each in told] == [
        ("operator ann", "created"),
        ("operator bob", "changed"),
    ]


def test_a_price_without_a_reason_is_not_proposed(ann: Client, endpoint: ModelEndpoint) -> None:
    before = fingerprint()
    answer = save(ann, endpoint)
    assert "Say why in the field Reason" in answer.content.decode()
    assert answer.context["demand"] == ChangeKind.PRICES
    assert fingerprint() == before


def test_nobody_approves_an_own_change_set(ann: Client, endpoint: ModelEndpoint) -> None:
    made = propose(ann, endpoint)
    other_tab = Client()
    other_tab.force_login(User.objects.get(username="ann"))
    with snapshots.unchanged():
        for browser in (ann, other_tab):
            assert decide(browser, made).startswith("Another operator than the one who proposed")
        assert made.status == "proposed"


def test_a_superuser_needs_a_second_person_too(operator: Client, endpoint: ModelEndpoint) -> None:
    demand(ChangeKind.PRICES)
    made = propose(operator, endpoint)
    assert decide(operator, made).startswith("Another operator")
    assert PriceVersion.objects.count() == 1


def test_a_replayed_approval_changes_nothing(
    ann: Client, bob: Client, endpoint: ModelEndpoint
) -> None:
    made = propose(ann, endpoint)
    decide(bob, made)
    before = fingerprint()
    assert decide(bob, made) == "The change set is applied already. Nothing was changed."
    assert fingerprint() == before
    assert PriceVersion.objects.count() == 2


def test_an_approval_takes_no_arguments(ann: Client, bob: Client, endpoint: ModelEndpoint) -> None:
    made = propose(ann, endpoint)
    decide(bob, made, arguments='{"price": {"prompt": "9"}}', **{"rates-prompt": "9"})
    assert price_of(endpoint).prompt == Decimal("0.0000015")


@pytest.mark.parametrize("column", ["arguments", "state", "changes", "needs", "proposed_by"])
def test_a_stored_change_set_stays_as_it_was_proposed(
    ann: Client, endpoint: ModelEndpoint, column: str
) -> None:
    made = propose(ann, endpoint)
    value: Any = {"price": {}} if column in ("arguments", "state", "changes") else "else"
    with pytest.raises((InternalError, IntegrityError)), transaction.atomic():
        ChangeSet.objects.filter(pk=made.pk).update(**{column: value})
    with pytest.raises((InternalError, IntegrityError)), transaction.atomic():
        made.delete()


def test_the_database_refuses_an_application_by_the_proposer(
    ann: Client, endpoint: ModelEndpoint
) -> None:
    made = propose(ann, endpoint)
    with pytest.raises(IntegrityError, match="change_set_needs_two"), transaction.atomic():
        ChangeSet.objects.filter(pk=made.pk).update(
            status="applied", decided_by=made.proposed_by, decided_at=clock.now()
        )


def test_a_price_that_has_changed_since_closes_the_change_set(
    ann: Client, bob: Client, endpoint: ModelEndpoint
) -> None:
    made = propose(ann, endpoint)
    endpoint.reprice(Price(prompt=Decimal("0.000003"), completion=Decimal("0.000002")))
    before = snapshots.everything()
    text = decide(bob, made)
    assert text == ("Changed since it was proposed: price. Nothing was changed. Propose it again.")
    assert (made.status, made.outcome) == ("outdated", text)
    assert snapshots.everything() == before


def test_an_operator_without_the_permission_cannot_approve(
    ann: Client, endpoint: ModelEndpoint
) -> None:
    made = propose(ann, endpoint)
    before = fingerprint()
    for role in (Role.SUPPORT, Role.READ_ONLY):
        with transaction.atomic():
            browser = sign_in(f"one of {role}", role)
            assert browser.post(page(made, "approve"), SUBMIT).status_code == 403
            transaction.set_rollback(True)
    assert fingerprint() == before


def test_an_operator_who_lost_the_permission_cannot_approve(
    ann: Client, bob: Client, endpoint: ModelEndpoint
) -> None:
    made = propose(ann, endpoint)
    shown = bob.get(page(made, "approve"))
    assert shown.status_code == 200
    User.objects.get(username="bob").groups.set([Group.objects.get(name=Role.SUPPORT)])
    before = fingerprint()
    assert bob.post(page(made, "approve"), SUBMIT).status_code == 403
    assert fingerprint() == before


def test_an_account_made_by_the_proposer_cannot_approve(
    ann: Client, endpoint: ModelEndpoint
) -> None:
    with audit.acting_as("operator ann", "test"):
        puppet = sign_in("puppet")
    made = propose(ann, endpoint)
    with snapshots.unchanged():
        assert decide(puppet, made).startswith(MADE)
        assert made.status == "proposed"


def test_an_account_made_after_the_proposal_cannot_approve(
    ann: Client, endpoint: ModelEndpoint
) -> None:
    made = propose(ann, endpoint)
    late = sign_in("late")
    # The accounts of one test begin within its transaction, at one time of the database.
    User.objects.filter(username="late").update(date_joined=made.proposed_at)
    assert decide(late, made).startswith("Your account was created or enabled after")
    assert made.status == "proposed"


@pytest.mark.parametrize(
    "leave",
    [
        lambda user: User.objects.filter(pk=user.pk).update(is_active=False),
        lambda user: user.groups.set([Group.objects.get(name=Role.READ_ONLY)]),
        lambda user: user.delete(),
    ],
    ids=["deactivated", "another role", "deleted"],
)
def test_what_an_operator_proposed_who_may_no_longer_do_it_is_not_applied(
    ann: Client, bob: Client, endpoint: ModelEndpoint, leave: Callable[[User], Any]
) -> None:
    made = propose(ann, endpoint)
    leave(User.objects.get(username="ann"))
    with snapshots.unchanged():
        assert decide(bob, made).startswith("The operator who proposed this is no longer active")
        assert made.status == "proposed"
    assert decide(bob, made, "reject") == "It is rejected. Nothing was changed."


def test_only_the_proposer_withdraws(ann: Client, bob: Client, endpoint: ModelEndpoint) -> None:
    made = propose(ann, endpoint)
    with snapshots.unchanged():
        assert decide(bob, made, "withdraw").startswith("Only the operator who proposed this")
        assert decide(ann, made, "withdraw") == "It is withdrawn. Nothing was changed."
        assert decide(bob, made).startswith("The change set is withdrawn already")


def test_a_rejection_says_why(ann: Client, bob: Client, endpoint: ModelEndpoint) -> None:
    made = propose(ann, endpoint)
    decide(bob, made, "reject", note="Too dear.")
    assert (made.status, made.outcome, made.decided_by) == ("rejected", "Too dear.", "operator bob")
    assert "Too dear." in ann.get(page(made)).content.decode()


def test_a_change_set_expires(
    ann: Client, bob: Client, endpoint: ModelEndpoint, settings: Any
) -> None:
    made = propose(ann, endpoint)
    assert expire_due() == 0
    settings.CHANGE_SET_DAYS = 0
    with snapshots.unchanged():
        with transaction.atomic():
            assert decide(bob, made).startswith("The change set has expired")
            assert made.status == "expired"
            transaction.set_rollback(True)
        assert expire_due() == 1
        assert expire_due() == 0
        made.refresh_from_db()
        assert made.status == "expired"


def test_selected_change_sets_are_approved_one_by_one(
    ann: Client, bob: Client, endpoint: ModelEndpoint
) -> None:
    first, second = propose(ann, endpoint), None
    save(ann, endpoint, **WHY)
    second = ChangeSet.objects.exclude(pk=first.pk).get()
    chosen = {
        "action": "approve_selected",
        "confirmed": "yes",
        "_selected_action": [first.pk, second.pk],
    }
    answer = bob.post(reverse("admin:config_changeset_changelist"), chosen, follow=True)
    found = {change_set.status for change_set in ChangeSet.objects.all()}
    # Both propose the same price of the same state: the second finds another state.
    assert found == {"applied", "outdated"}
    [summary] = messages_of(answer)
    assert "1 done, 1 refused" in summary
    assert PriceVersion.objects.count() == 2


def test_a_rule_is_switched_off_by_two(ann: Client, bob: Client) -> None:
    rule = ChangeRule.objects.get(kind=ChangeKind.PRICES)
    four_eyes.press(ann, rule, "relax", **WHY)
    rule.refresh_from_db()
    assert rule.is_required
    made, text = approve(ann)
    assert text.startswith("Another operator")
    assert decide(bob, made) == "Prices: one operator may make changes alone."
    rule.refresh_from_db()
    assert not rule.is_required


def test_a_rule_is_switched_on_by_one(ann: Client) -> None:
    rule, _ = ChangeRule.objects.get_or_create(kind=ChangeKind.DELETIONS)
    four_eyes.press(ann, rule, "require")
    rule.refresh_from_db()
    assert rule.is_required
    assert not ChangeSet.objects.exists()


def test_a_role_sees_only_change_sets_of_its_pages(ann: Client, endpoint: ModelEndpoint) -> None:
    rule = ChangeRule.objects.get(kind=ChangeKind.PRICES)
    four_eyes.press(ann, rule, "relax", **WHY)
    made = proposed()
    reader = sign_in("reader", Role.READ_ONLY)
    assert reader.get(page(made)).status_code == 302
    assert str(made.pk) in ann.get(page(made)).content.decode()


def test_a_role_sees_no_trace_of_change_sets_of_other_pages(
    ann: Client, endpoint: ModelEndpoint
) -> None:
    price = propose(ann, endpoint)
    four_eyes.press(ann, ChangeRule.objects.get(kind=ChangeKind.PRICES), "relax", **WHY)
    relaxing = ChangeSet.objects.exclude(pk=price.pk).get()
    receiver, _ = Subscription.objects.create_subscription(
        organization=None, form="webhook", url="https://example.com/x"
    )
    events = {each.data["number"]: each for each in Event.objects.filter(kind="change.waiting")}
    traces: list[dict[int, Any]] = [
        events,
        {
            number: Delivery.objects.create(subscription=receiver, event=event)
            for number, event in events.items()
        },
        {
            number: AuditEntry.objects.get(kind="config.changeset", object_id=str(number))
            for number in events
        },
        {
            relaxing.pk: AuditEntry.objects.create(
                actor="x", action="x", kind="config.changerule", object_id="prices", after={}
            )
        },
    ]
    reader = sign_in("reader", Role.READ_ONLY)
    for client, seen in ((ann, {price.pk, relaxing.pk}), (reader, {price.pk})):
        for rows in traces:
            listed = client.get(listing(type(rows[relaxing.pk]))).context["cl"].result_list
            keys = {each.pk for each in listed}
            expected = seen & rows.keys()
            assert {number for number, row in rows.items() if row.pk in keys} == expected
            opened = {n for n, row in rows.items() if client.get(page(row)).status_code == 200}
            assert opened == expected


@pytest.mark.django_db(transaction=True)
def test_two_approvals_at_once_apply_a_change_set_once() -> None:
    demand(ChangeKind.PRICES)
    ann = sign_in("ann")
    browsers = [sign_in(f"approver {number}") for number in range(4)]
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    made = propose(ann, endpoint)
    start = Barrier(len(browsers))

    def press(browser: Client) -> int:
        try:
            start.wait(30)
            return browser.post(page(made, "approve"), SUBMIT).status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(len(browsers)) as pool:
        assert set(pool.map(press, browsers)) == {302}
    assert PriceVersion.objects.count() == 2
    decisions = AuditEntry.objects.filter(kind="config.changeset", before__isnull=False)
    assert [each.after["status"] for each in decisions] == ["applied"]
