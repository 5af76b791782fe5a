"""Parses the operator's chains, tokens and recipients of payments; pure.

Addresses are always stored in their checksummed form (EIP-55), so that they can be compared as
strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from billing.topups.keccak import keccak_256
from config.egress.addresses import ANYWHERE, EgressPolicy, InvalidURL, parse_target

# The operator chooses the node, so its URL may have any scheme and address.
Confirmations = Literal["finalized", "safe"] | int

MAX_CHAIN_ID = 2**63 - 1
MAX_CONFIRMATIONS = 100_000
_NAMES = {1: "Ethereum", 137: "Polygon", 8453: "Base"}

_ADDRESS = re.compile(r"0x[0-9A-Fa-f]{40}")
_CHAIN_ID = re.compile(r"[1-9][0-9]{0,18}")
_COUNT = re.compile(r"0|[1-9][0-9]{0,5}")
_SYMBOL = re.compile(r"[A-Za-z0-9.$₮]{1,16}")


def checksum_address(address: bytes) -> str:
    """Returns the EIP-55 text of the 20 bytes of an address."""
    text = address.hex()
    digest = keccak_256(text.encode()).hex()
    return "0x" + "".join(
        letter.upper() if int(nibble, 16) >= 8 else letter
        for letter, nibble in zip(text, digest, strict=False)
    )


def parse_address(text: str) -> str:
    """Returns the checksummed form of an EVM address that a person typed. Raises `ValueError`.

    An address in a single case has no checksum; one in mixed case must satisfy it.
    """
    if not _ADDRESS.fullmatch(text):
        raise ValueError("an address must be 0x and 40 hexadecimal digits")
    digits = text[2:]
    address = checksum_address(bytes.fromhex(digits))
    if digits not in (digits.lower(), digits.upper()) and text != address:
        raise ValueError("the checksum of the address is wrong")
    return address


@dataclass(frozen=True, slots=True)
class Token:
    """An ERC-20 contract; one whole token is worth one US dollar."""

    contract: str
    decimals: int
    symbol: str

    def __str__(self) -> str:
        """Returns what was checked of the contract: ``0x8335…2913:6``."""
        return f"{self.contract}:{self.decimals}"

    @property
    def units_per_micro(self) -> int:
        """Returns the base units of 10⁻⁶ token; whole, because decimals are at least 6."""
        return 10 ** (self.decimals - 6)

    def units_of(self, usd_cents: int) -> int:
        """Returns an amount in cents as base units."""
        return usd_cents * 10_000 * self.units_per_micro

    def nano_usd_of(self, units: int) -> int:
        """Returns base units as nano-USD; a unit smaller than 10⁻⁹ USD is rounded down."""
        units_per_usd: int = 10**self.decimals
        return units * 10**9 // units_per_usd


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain that accepts payments; the node's URL may contain a secret.

    `former` holds the tokens and recipients of earlier configurations that may still be paid.
    """

    chain_id: int
    rpc_url: str = field(repr=False)
    token: Token
    recipient: str
    confirmations: Confirmations = "finalized"
    former: tuple[tuple[Token, str], ...] = field(default=(), repr=False)

    @property
    def tokens(self) -> dict[str, Token]:
        """Returns the accepted tokens by contract."""
        former = {token.contract: token for token, _ in self.former}
        return {**former, self.token.contract: self.token}

    @property
    def recipients(self) -> list[str]:
        """Returns the addresses that receive payments."""
        return list(dict.fromkeys([self.recipient, *(recipient for _, recipient in self.former)]))

    @property
    def name(self) -> str:
        return _NAMES.get(self.chain_id, f"Chain {self.chain_id}")


def parse_chains(
    *, rpc_urls: str, tokens: str, recipients: str, confirmations: str
) -> dict[int, Chain]:
    """Parses the four comma-separated lists of `CHAIN_ID=…`; `rpc_urls` defines the chains.

    Raises `ValueError` with the name of the variable, and never with a URL.
    """
    urls = dict(_parse_items("CHAIN_RPC_URLS", rpc_urls))
    contracts = _parse_known_chains("CHAIN_TOKENS", tokens, urls)
    owners = _parse_known_chains("TOP_UP_RECIPIENTS", recipients, urls)
    depths = _parse_known_chains("CHAIN_CONFIRMATIONS", confirmations, urls)
    chains = {}
    for chain_id, url in urls.items():
        for name, given in (("CHAIN_TOKENS", contracts), ("TOP_UP_RECIPIENTS", owners)):
            if chain_id not in given:
                raise ValueError(
                    f"{name} has no value for chain {chain_id} of CHAIN_RPC_URLS; add one"
                )
        _check_url(chain_id, url)
        token = _parse_token(chain_id, contracts[chain_id])
        recipient = _parse_nonzero_address("TOP_UP_RECIPIENTS", chain_id, owners[chain_id])
        if recipient == token.contract:
            raise ValueError(
                f"TOP_UP_RECIPIENTS: the recipient of chain {chain_id} is the token's contract, "
                "where payments are lost"
            )
        depth = _parse_depth(chain_id, depths.get(chain_id, "finalized"))
        chains[chain_id] = Chain(chain_id, url, token, recipient, depth)
    return chains


def _parse_items(name: str, text: str) -> Iterator[tuple[int, str]]:
    seen = set()
    for item in text.split(",") if text.strip() else ():
        number, _, value = item.strip().partition("=")
        if not value or not _CHAIN_ID.fullmatch(number) or int(number) > MAX_CHAIN_ID:
            raise ValueError(
                f"{name} must be a comma list of CHAIN_ID=value, where CHAIN_ID is a number"
            )
        if number in seen:
            raise ValueError(f"{name} names chain {number} twice; name it once")
        seen.add(number)
        yield int(number), value


def _parse_known_chains(name: str, text: str, listed: Mapping[int, str]) -> dict[int, str]:
    found = dict(_parse_items(name, text))
    for chain_id in found:
        if chain_id not in listed:
            raise ValueError(
                f"{name} names chain {chain_id}, but CHAIN_RPC_URLS does not; add the chain there"
            )
    return found


def _check_url(chain_id: int, url: str) -> None:
    try:
        parse_target(url, policy=EgressPolicy(allowed_networks=ANYWHERE))
    except InvalidURL as exc:
        raise ValueError(f"CHAIN_RPC_URLS: chain {chain_id}: {exc}") from None


def _parse_nonzero_address(name: str, chain_id: int, text: str) -> str:
    try:
        address = parse_address(text)
    except ValueError as exc:
        raise ValueError(f"{name}: chain {chain_id}: {exc}") from None
    if not int(address, 16):
        raise ValueError(f"{name}: chain {chain_id}: the address must not be the zero address")
    return address


def _parse_token(chain_id: int, text: str) -> Token:
    parts = text.split(":")
    if len(parts) != 3 or not _COUNT.fullmatch(parts[1]) or not _SYMBOL.fullmatch(parts[2]):
        raise ValueError(f"CHAIN_TOKENS: chain {chain_id}: expected CONTRACT:DECIMALS:SYMBOL")
    contract, decimals, symbol = parts
    # The digits below the cents identify a payment, so the token needs such digits.
    if not 6 <= int(decimals) <= 36:
        raise ValueError(f"CHAIN_TOKENS: chain {chain_id}: the decimals must be from 6 to 36")
    return Token(_parse_nonzero_address("CHAIN_TOKENS", chain_id, contract), int(decimals), symbol)


def _parse_depth(chain_id: int, text: str) -> Confirmations:
    if text == "finalized":
        return "finalized"
    if text == "safe":
        return "safe"
    if not _COUNT.fullmatch(text) or not 1 <= int(text) <= MAX_CONFIRMATIONS:
        raise ValueError(
            f"CHAIN_CONFIRMATIONS: chain {chain_id}: expected finalized, safe or a number from 1 "
            f"to {MAX_CONFIRMATIONS}"
        )
    return int(text)
