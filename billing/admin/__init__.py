"""The console's pages for the ledger, excesses, top-ups, deposits and chains."""

from billing.admin.chains import ChainStateAdmin
from billing.admin.excesses import ExcessAdmin
from billing.admin.ledger import AccountAdmin, GrantRequestAdmin, TransferAdmin
from billing.admin.top_ups import DepositAdmin, TopUpAdmin
