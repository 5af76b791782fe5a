"""The operator's pages for the ledger, top-ups, deposits and the chains that they are read from."""

from billing.admin.chains import ChainStateAdmin
from billing.admin.ledger import AccountAdmin, GrantRequestAdmin, TransferAdmin
from billing.admin.top_ups import DepositAdmin, TopUpAdmin

__all__ = [
    "AccountAdmin",
    "ChainStateAdmin",
    "DepositAdmin",
    "GrantRequestAdmin",
    "TopUpAdmin",
    "TransferAdmin",
]
