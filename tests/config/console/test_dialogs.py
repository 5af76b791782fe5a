"""Each dangerous action of the console changes what it says, and its dialog what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pytest
from django.test import Client

from config.apps import Role
from endusers.models import EndUser
from tests.support.console import fingerprint, listing, messages_of, page, read_facts
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import press, sign_in


class Step(NamedTuple):
    """A dangerous action, the roles that may do it, what it says, and what it leaves of its row.

    ``left`` are values of the row's columns; ``None`` means that the row is deleted.
    """

    label: str
    verb: str
    roles: frozenset[Role]
    says: str
    left: dict[str, Any] | None
    fields: Mapping[str, str] = {}


ADMINISTRATORS: Final = frozenset({Role.ADMINISTRATOR})
CARE: Final = ADMINISTRATORS | {Role.SUPPORT}
MONEY: Final = ADMINISTRATORS | {Role.FINANCE}
NOTE: Final = {"note": "A test."}
DELISTED: Final = {"is_listed": False}
OUT: Final = " is out of the catalogue."
NO_TEXT: Final = "No text was stored. What still waits is not stored any more."
STEPS: Final = (
    Step("accounts.guardrail", "remove", CARE, "Strict is deleted.", None),
    Step("accounts.preset", "remove", CARE, "The preset is deleted.", None),
    Step("catalog.modelalias", "remove", CARE, "a is deleted.", None),
    Step(
        "accounts.subscription", "disable", CARE, "The subscription is disabled.",
        {"disabled": True},
    ),
    Step("accounts.subscription", "remove", CARE, "The subscription is deleted.", None),
    Step("accounts.broadcastdestination", "remove", ADMINISTRATORS, "Traces is deleted.", None),
    Step("accounts.byokcredential", "remove", ADMINISTRATORS, " is deleted.",
         {"is_present": False}),
    Step("accounts.apikey", "revoke", CARE, "The key is revoked.", {"disabled": True}),
    Step("endpoints.privateendpoint", "remove", CARE, " is deleted.", {"is_present": False}),
    Step("billing.excess", "write_off", MONEY, " written off.", {"status": "written_off"}, NOTE),
    Step("billing.grantrequest", "decline", MONEY, "The grant is declined.",
         {"status": "declined"}),
    Step("billing.deposit", "dismiss", MONEY, "The deposit is dismissed.",
         {"status": "dismissed"}, NOTE),
    Step("catalog.catalogproposal", "refuse", MONEY,
         "The proposal is refused. Nothing was changed.", {"status": "refused"}),
    Step("config.changeset", "reject", MONEY, "It is rejected. Nothing was changed.",
         {"status": "rejected"}),
    Step("catalog.modelendpoint", "delist", ADMINISTRATORS, OUT, DELISTED),
    Step("catalog.provider", "delist", ADMINISTRATORS, OUT, DELISTED),
    Step("catalog.languagemodel", "delist", ADMINISTRATORS, OUT, DELISTED),
    Step("otp_totp.totpdevice", "remove", ADMINISTRATORS,
         "The second factor of somebody is removed.", None),
    Step("inference.generation", "delete_text", ADMINISTRATORS, NO_TEXT, {"status": "completed"}),
    Step("accounts.organization", "delete_texts", ADMINISTRATORS, NO_TEXT,
         {"is_suspended": False}),
    Step("accounts.organization", "suspend", ADMINISTRATORS, "Acme is suspended.",
         {"is_suspended": True}, {"reason": "The invoice is not paid."}),
)  # fmt: skip


def test_dialogs_of_money_show_the_amount(operator: Client, world: dict[str, Any]) -> None:
    for label, verb in (
        ("billing.excess", "write_off"),
        ("billing.grantrequest", "approve"),
        ("billing.deposit", "dismiss"),
        ("inference.generation", "refund"),
    ):
        facts = read_facts(operator.get(page(world[label], verb)).content.decode())
        assert facts["Amount"].startswith("$"), label


def test_confirmation_of_several_rows_names_their_organization(
    operator: Client, tenant: Tenant
) -> None:
    user = EndUser.objects.register(organization_id=tenant.organization.pk, user="customer-1")
    chosen = {"action": "deactivate_selected", "_selected_action": str(user.pk)}
    text = operator.post(listing(EndUser), chosen).content.decode()
    assert "customer-1 of Acme" in text


@pytest.mark.parametrize("role", list(Role))
def test_dangerous_action_by_each_role(world: dict[str, Any], role: Role) -> None:
    client = sign_in(f"of {role}", role)
    for step in STEPS:
        row = world[step.label]
        before = fingerprint()
        answer = press(client, row, step.verb, **step.fields)
        if role not in step.roles:
            assert (answer.status_code, fingerprint() == before) == (403, True), step
            assert f"Your roles: {role}." in answer.content.decode()
            continue
        [message] = messages_of(answer)
        assert message.endswith(step.says), message
        left = type(row)._base_manager.filter(pk=row.pk).first()
        if step.left is None or left is None:
            assert (step.left, left) == (None, None), step
            continue
        is_present = getattr(left, "deleted_at", None) is None
        found = {**vars(left), "is_present": is_present}
        found["is_suspended"] = getattr(left, "is_suspended", None)
        assert {name: found[name] for name in step.left} == step.left, step


def test_only_a_dangerous_dialog_has_a_red_button(operator: Client, world: dict[str, Any]) -> None:
    provider = world["catalog.provider"]
    reds = [
        operator.get(page(provider, verb)).content.decode().count("bg-red-600 border-transparent")
        for verb in ("delist", "relist")
    ]
    assert reds == [1, 0]
