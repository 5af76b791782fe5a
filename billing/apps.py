from typing import ClassVar

from config.apps import INTERNAL, TRANSACTION, CausewayApp, ModelDeclaration, Role, Section, Tab


class BillingConfig(CausewayApp):
    default = True
    name = "billing"
    verbose_name = "Billing"
    section = Section("Money", position=5)
    collectors = (
        "billing.metrics.TopUpCollector",
        "billing.open_transactions.OpenTransactionCollector",
    )
    models_declared: ClassVar = {
        "account": ModelDeclaration("account_balance"),
        "transfer": ModelDeclaration(
            "receipt_long", permissions={Role.FINANCE: ("add",)}, tab=Tab("Ledger", 10)
        ),
        "grantrequest": ModelDeclaration("approval_delegation", tab=Tab("Grants", 11)),
        "excess": ModelDeclaration(
            "gavel",
            permissions={Role.FINANCE: ("change",)},
            title_columns=("reference",),
            tab=Tab("Excesses", 13),
        ),
        "topup": ModelDeclaration("add_card", tab=Tab("Top-ups", 12), finders=(TRANSACTION,)),
        "deposit": ModelDeclaration(
            "savings", permissions={Role.FINANCE: ("change",)}, finders=(TRANSACTION,)
        ),
        "chainstate": ModelDeclaration("link", permissions={Role.FINANCE: ("change",)}),
        "meter": INTERNAL,
        "fold": INTERNAL,
        "opening": INTERNAL,
        "meteropening": INTERNAL,
    }
