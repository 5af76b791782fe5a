from typing import ClassVar

from config.apps import INTERNAL, CausewayApp, ModelDeclaration, Role, Section


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
        "transfer": ModelDeclaration("receipt_long", permissions={Role.FINANCE: ("add",)}),
        "grantrequest": ModelDeclaration("approval_delegation"),
        "excess": ModelDeclaration(
            "gavel", permissions={Role.FINANCE: ("change",)}, title_columns=("reference",)
        ),
        "topup": ModelDeclaration("add_card"),
        "deposit": ModelDeclaration("savings", permissions={Role.FINANCE: ("change",)}),
        "chainstate": ModelDeclaration("link", permissions={Role.FINANCE: ("change",)}),
        "meter": INTERNAL,
        "fold": INTERNAL,
        "opening": INTERNAL,
        "meteropening": INTERNAL,
    }
