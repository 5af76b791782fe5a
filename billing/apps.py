from typing import Any, ClassVar, Final

from django.core import checks
from django.utils.module_loading import import_string

from config.apps import (
    INTERNAL,
    TRANSACTION,
    CausewayApp,
    MenuEntry,
    MenuPage,
    ModelDeclaration,
    Role,
    Tab,
    Waiting,
)
from config.events.kinds import EventKind

# The statuses of a deposit that waits; the models cannot be imported here.
_IN_REVIEW = ("unmatched", "under", "over", "late")
_TOP_UP: Final = {
    "id": "0192f0c1-8f6e-4b1e-9f43-3a1d0e9b7a11",
    "amount_usd": "25",
    "chain_id": 8453,
    "tx_hash": "0x9f2c5a1be0d37f44c6a8e1d25b7f3c9047ad61e8b2f5c03d9e7a4b16c8d0f2e3",
}
_KEY: Final = {
    "hash": "5d41402abc4b2a76b9719d911017c5925d41402abc4b2a76b9719d911017c592",
    "name": "Production",
    "label": "sk-cw-7f3a1Kd…9aQ",
    "limit_usd": "100",
    "spent_usd": "82.5",
    "percent": 80,
    "resets_at": "2026-12-01T00:00:00Z",
}


def check_tokens(**options: Any) -> list[checks.CheckMessage]:
    """Loads the client of the nodes when `check --deploy` asks, and not with every command."""
    return import_string("billing.checks.check_tokens")(**options)


def check_left_chains(**options: Any) -> list[checks.CheckMessage]:
    return import_string("billing.checks.check_left_chains")(**options)


class BillingConfig(CausewayApp):
    default = True
    name = "billing"
    verbose_name = "Billing"
    menu = (
        MenuEntry(
            "Money",
            "account_balance",
            8,
            (
                MenuPage("Accounts", "billing.account"),
                MenuPage("Ledger", "billing.transfer"),
                MenuPage("Grants", "billing.grantrequest"),
                MenuPage("Top-ups", "billing.topup"),
                MenuPage("Deposits", "billing.deposit"),
                MenuPage("Under review", "billing.excess"),
                MenuPage("Chains", "billing.chainstate"),
            ),
        ),
    )
    collectors = (
        "billing.metrics.TopUpCollector",
        "billing.open_transactions.OpenTransactionCollector",
    )
    events: ClassVar = (
        EventKind(
            "top_up.credited",
            "A payment is credited.",
            "A payment of ${amount_usd} was credited.",
            _TOP_UP,
        ),
        EventKind(
            "top_up.in_review",
            "A payment differs from its top-up; an operator decides about it.",
            "A payment of ${amount_usd} differs from its top-up and waits for an operator.",
            {**_TOP_UP, "finding": "under"},
        ),
        EventKind(
            "deposit.in_review",
            "A payment was not credited; an operator decides about it.",
            "A payment of ${amount_usd} on chain {chain_id} waits for an operator: {finding}.",
            {**_TOP_UP, "finding": "unmatched"},
            for_operators=True,
        ),
        EventKind(
            "grant.waiting",
            "A grant needs the approval of a second operator.",
            "A grant of ${amount_usd} to {organization}, requested by {requested_by}, waits for a "
            "second operator.",
            {"organization": "Acme", "amount_usd": "5000", "requested_by": "operator ann"},
            for_operators=True,
        ),
        EventKind(
            "balance.low",
            "A balance is below the operator's limit, or lasts for less than three days.",
            "{organization} has ${available_usd} left: {days_left} days at the present rate.",
            {
                "organization": "Acme",
                "available_usd": "4.2",
                "threshold_usd": "5",
                "daily_usd": "1.4",
                "days_left": 3,
            },
        ),
        EventKind(
            "budget.used",
            "A budget reaches 50, 80, 95 or 100 %.",
            "{percent} % of a budget of ${limit_usd} is used: {scope} {name}.",
            {
                "scope": "workspace",
                "id": "0192f0c1-8f6e-4b1e-9f43-3a1d0e9b7a12",
                "name": "Default",
                "interval": "monthly",
                "limit_usd": "100",
                "spent_usd": "82.5",
                "percent": 80,
                "resets_at": "2026-12-01T00:00:00Z",
            },
        ),
        EventKind(
            "key.limit_near",
            "A key has used 80 % of its limit.",
            "The key {name} has used {percent} % of its limit.",
            _KEY,
        ),
        EventKind(
            "key.limit_reached",
            "A key has used all of its limit.",
            "The key {name} has used its limit of ${limit_usd}; its requests are refused.",
            {**_KEY, "spent_usd": "100.1", "percent": 100},
        ),
    )
    models_declared: ClassVar = {
        "account": ModelDeclaration("account_balance", words=("balances", "credits")),
        "transfer": ModelDeclaration(
            "receipt_long",
            words=("costs", "ledger"),
            permissions={Role.FINANCE: ("add",)},
            tab=Tab("Ledger", 8),
        ),
        "grantrequest": ModelDeclaration(
            "approval_delegation",
            tab=Tab("Grants", 11),
            waiting=(
                Waiting(
                    "Grants to approve",
                    "billing.add_transfer",
                    {"status": "requested"},
                    {"status__exact": "requested"},
                    proposer="requested_by",
                ),
            ),
        ),
        "excess": ModelDeclaration(
            "gavel",
            permissions={Role.FINANCE: ("change",)},
            title_columns=("reference",),
            tab=Tab("Under review", 13),
            waiting=(
                Waiting(
                    "Excesses in review",
                    "billing.change_excess",
                    {"status": "under_review", "amount_nano__gt": 0},
                    {"status__exact": "under_review", "amount": "some"},
                ),
            ),
        ),
        "topup": ModelDeclaration("add_card", tab=Tab("Top-ups", 12), finders=(TRANSACTION,)),
        "deposit": ModelDeclaration(
            "savings",
            permissions={Role.FINANCE: ("change",)},
            finders=(TRANSACTION,),
            waiting=(
                Waiting(
                    "Deposits in review",
                    "billing.change_deposit",
                    {"status__in": _IN_REVIEW},
                    {"status__in": ",".join(_IN_REVIEW)},
                ),
            ),
        ),
        "chainstate": ModelDeclaration("link", permissions={Role.FINANCE: ("change",)}),
        "meter": INTERNAL,
        "fold": INTERNAL,
        "opening": INTERNAL,
        "meteropening": INTERNAL,
    }

    def ready(self) -> None:
        for check in (check_tokens, check_left_chains):
            checks.register(check, checks.Tags.security, deploy=True)
