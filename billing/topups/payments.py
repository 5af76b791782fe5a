"""The shapes that a reader of a chain returns: its position, blocks, and their payments."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Cursor:
    """Names the last block whose payments were read."""

    number: int
    hash: str


@dataclass(frozen=True, slots=True)
class ChainBlock:
    """Describes a block of the chain."""

    number: int
    hash: str
    mined_at: datetime


@dataclass(frozen=True, slots=True)
class ChainPayment:
    """Describes one confirmed payment, unique by chain, transaction and ordinal.

    The ordinal is the position of the log in its transaction's receipt, from 0: unlike the log's
    index in the block it survives a reorganization. Addresses are checksummed, hashes lowercase.
    """

    chain_id: int
    tx_hash: str
    ordinal: int
    block_number: int
    block_hash: str
    mined_at: datetime
    token: str
    sender: str
    recipient: str
    units: int


@dataclass(frozen=True, slots=True)
class UnconfirmedPayment:
    """Describes a payment in a block that may still be replaced; nothing is credited for it."""

    tx_hash: str
    block_number: int
    token: str
    sender: str
    recipient: str
    units: int
