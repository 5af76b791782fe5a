"""Checks of `check --deploy`: the chains' tokens, and chains that left the settings too early."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from django.core.checks import WARNING, CheckMessage, Error, Info
from django.db import DatabaseError

from billing.models import TopUp
from billing.topups.node import Node, TokenRefused
from billing.topups.rpc import ChainError

_SECONDS: Final = 5.0


def check_tokens(**options: Any) -> list[CheckMessage]:
    """Asks every chain's node for the decimals of its token; a node may be out of reach here."""
    found: list[CheckMessage] = []
    for chain in settings.CHAINS.values():
        try:
            symbol = Node(chain, settings.EGRESS_POLICY, timeout=_SECONDS).check_token(chain.token)
        except TokenRefused as exc:
            found.append(Error(str(exc), hint="Correct CHAIN_TOKENS.", id="billing.E001"))
            continue
        except ChainError as exc:
            message = f"The token of {chain.name} could not be checked. {exc}"
            found.append(Info(message, id="billing.I001"))
            continue
        if symbol not in ("", chain.token.symbol):
            message = f"{chain.name}: the token calls itself {symbol}, not {chain.token.symbol}."
            found.append(Info(message, id="billing.I002"))
    return found


def check_left_chains(**options: Any) -> list[CheckMessage]:
    """Names chains with top-ups that nobody reads; finds none while the database is away."""
    try:
        warnings = TopUp.objects.warn_of_left_chains()
    except DatabaseError:
        return []
    return [CheckMessage(WARNING, warning, id="billing.W001") for warning in warnings]
