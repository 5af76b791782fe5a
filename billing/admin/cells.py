"""How hashes, blocks and addresses of a chain show themselves."""

from __future__ import annotations

from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe

# Where people look at transactions of the chains that have a name.
_EXPLORERS: Final = {
    1: "https://etherscan.io", 137: "https://polygonscan.com", 8453: "https://basescan.org",
}  # fmt: skip


def explorer(chain_id: int, kind: str, text: str) -> str:
    """Shows a hash, block or address, linked to the chain's public explorer if it has one."""
    site = _EXPLORERS.get(chain_id)
    if site is None or not text:
        return wrapped(text)
    return format_html(
        '<a class="underline" href="{}/{}/{}" target="_blank" rel="noopener noreferrer">{}</a>',
        site,
        kind,
        text,
        wrapped(text),
    )


def wrapped(text: str) -> str:
    """Lets a long text of digits be broken on a narrow page, and copied whole."""
    parts = ((text[place : place + 8],) for place in range(0, len(text), 8))
    return format_html_join(mark_safe("<wbr>"), "{}", parts)


def short(text: str) -> str:
    """Returns what tells a hash or an address apart in a list."""
    return f"{text[:6]}…{text[-4:]}" if text else ""
