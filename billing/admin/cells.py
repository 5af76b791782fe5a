"""Formats hashes, blocks and addresses of a chain."""

from __future__ import annotations

from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe

# Public block explorers by chain ID.
_EXPLORERS: Final = {
    1: "https://etherscan.io", 137: "https://polygonscan.com", 8453: "https://basescan.org",
}  # fmt: skip


def link_to_explorer(chain_id: int, kind: str, text: str) -> str:
    """Renders a hash, block or address, linked to the chain's public explorer if it has one."""
    site = _EXPLORERS.get(chain_id)
    if site is None or not text:
        return breakable(text)
    return format_html(
        '<a class="underline" href="{}/{}/{}" target="_blank" rel="noopener noreferrer">{}</a>',
        site,
        kind,
        text,
        breakable(text),
    )


def breakable(text: str) -> str:
    """Renders a long hash that wraps on a narrow page; a copied hash has no line breaks."""
    parts = ((text[place : place + 8],) for place in range(0, len(text), 8))
    return format_html_join(mark_safe("<wbr>"), "{}", parts)


def abbreviate(text: str) -> str:
    """Returns the first six and last four characters of a hash or address."""
    return f"{text[:6]}…{text[-4:]}" if text else ""
