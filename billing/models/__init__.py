"""Money: the ledger, and top-ups and deposits on chains."""

from billing.models.excesses import Excess, NotChargeable
from billing.models.folds import Archived, Fold, MeterOpening, Opening
from billing.models.ledger import (
    Account,
    GrantRequest,
    Meter,
    NotIndependent,
    SameOperator,
    Transfer,
)
from billing.topups.models.chain_states import ChainState, chain_name
from billing.topups.models.deposits import Deposit
from billing.topups.models.top_ups import ChainNotOffered, TooManyTopUps, TopUp, TopUpNotFound
from billing.topups.models.units import UnitsField
