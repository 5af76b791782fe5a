"""Money: the ledger's rows, and what is asked for and paid on chains."""

from billing.models.ledger import Account, GrantRequest, Meter, SameOperator, Transfer
from billing.topups.models.deposits import ChainState, Deposit, UnitsField, chain_name
from billing.topups.models.top_ups import (
    ChainNotOffered,
    IdempotencyKeyReused,
    TooManyTopUps,
    TopUp,
)

__all__ = [
    "Account",
    "ChainNotOffered",
    "ChainState",
    "Deposit",
    "GrantRequest",
    "IdempotencyKeyReused",
    "Meter",
    "SameOperator",
    "TooManyTopUps",
    "TopUp",
    "Transfer",
    "UnitsField",
    "chain_name",
]
