"""Recognises numbers of payment cards by issuer, length, grouping and check digit; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from accounts.patterns import compile_pattern
from inference.filters.recogniser import Recogniser, Span, is_alphanumeric, is_digit, is_letter

# Between groups stand a space, a period or one of the hyphens and dashes, or a line ends.
_BETWEEN: Final = r"[ .\x{A0}\x{2010}-\x{2015}\x{202F}-]"
_LINE: Final = r"\r?\n"
_GROUP: Final = re.compile(rb"[0-9]+")
# The first digits of an issuer's numbers, from and to, and how long they are.
_ISSUERS: Final[tuple[tuple[str, str, tuple[int, ...]], ...]] = (
    ("4", "4", (13, 16, 19)),  # Visa
    ("51", "55", (16,)),  # Mastercard
    ("2221", "2720", (16,)),
    ("34", "34", (15,)),  # American Express
    ("37", "37", (15,)),
    ("300", "305", (14, 16)),  # Diners Club
    ("3095", "3095", (14, 16)),
    ("36", "36", (14, 16)),
    ("38", "39", (14, 16)),
    ("6011", "6011", (16, 17, 18, 19)),  # Discover
    ("644", "659", (16, 17, 18, 19)),
    ("35", "35", (16, 17, 18, 19)),  # JCB
    ("2131", "2131", (15,)),
    ("1800", "1800", (15,)),
    ("62", "62", (16, 17, 18, 19)),  # UnionPay
    ("2200", "2204", (16, 17, 18, 19)),  # Mir
    ("60", "60", (16,)),  # RuPay, Hipercard
    ("81", "82", (16,)),
    ("508", "508", (16,)),
    ("5060", "5061", (16, 18, 19)),  # Verve
    ("9792", "9792", (16,)),  # Troy
    ("636", "636", (16, 17, 18, 19)),  # InterPayment
    *(
        (prefix, prefix, (12, 13, 14, 15, 16, 17, 18, 19))  # Maestro
        for prefix in (
            "0604", "5018", "5019", "5020", "5038", "5893", "6304", "6390", "6759", "6761", "6762",
            "6763",
        )
    ),
    ("56", "58", (12, 13, 14, 15, 16, 17, 18, 19)),
)  # fmt: skip
# The lengths of the groups in which numbers of a length are written.
_GROUPINGS: Final[tuple[tuple[int, ...], ...]] = (
    (4, 4, 4, 4, 3),
    (6, 13),
    (4, 4, 4, 4),
    (4, 6, 5),
    (4, 4, 4, 3),
    (4, 6, 4),
    (4, 4, 4, 2),
    (4, 3, 3, 3),
    (4, 4, 4, 1),
    (4, 4, 4),
)
_PLAIN: Final = range(12, 20)
# Twelve digits that begin so are often no card, nor are numbers of articles: a word has to name it.
_COMMON: Final = (b"56", b"57", b"58")
_NAMED: Final = re.compile(
    rb"(?i)(?:card|credit|debit|visa|maestro|\bcc|\bpan|karte|carte|tarjeta|cart[ao\xc3])"
    rb"[^0-9\n]{0,16}\Z"
)


def _make_table() -> dict[bytes, tuple[int, ...]]:
    table: dict[bytes, tuple[int, ...]] = {}
    for first, last, lengths in _ISSUERS:
        width = len(first)
        for number in range(int(first), int(last) + 1):
            key = b"%0*d" % (width, number)
            table[key] = (*table.get(key, ()), *lengths)
    return table


_LENGTHS: Final = _make_table()
_STARTS: Final = frozenset(
    b"%02d" % number
    for number in range(100)
    if any(key[:2] == (b"%02d" % number)[: len(key)] for key in _LENGTHS)
)


def _find_cards(text: bytes, start: int, end: int) -> Sequence[Span]:
    """Returns the cards in groups of digits; a group that a card leaves over makes it a list."""
    groups = [match.span() for match in _GROUP.finditer(text, start, end)]
    gaps = [text[a[1] : b[0]] for a, b in pairwise(groups)]
    found: list[Span] = []
    index = behind = 0
    while index < len(groups):
        first, stop = groups[index]
        if stop - first >= _PLAIN[0]:
            used = int(_is_plain(text, first, stop))
        # A list has the same separator before the first group.
        elif index in (0, behind) or gaps[index - 1 : index] != gaps[index : index + 1]:
            used = _count_groups(text, groups[index : index + 9], gaps[index : index + 9])
        else:
            used = 0
        if used:
            found.append((first, groups[index + used - 1][1]))
            behind = index + used
        index += used or 1
    return found


def _count_groups(text: bytes, groups: list[Span], gaps: list[bytes]) -> int:
    """Returns of how many of the first groups a card consists; 0 if there is none."""
    start = groups[0][0]
    if len(groups) < 3 or text[start : start + 2] not in _STARTS:
        return 0
    if is_alphanumeric(text, start - 1):
        return 0
    sizes = tuple(b - a for a, b in groups)
    for grouping in _GROUPINGS:
        count = len(grouping)
        if sizes[:count] != grouping or len(set(gaps[: count - 1])) > 1:
            continue
        digits = b"".join(text[a:b] for a, b in groups[:count])
        if _is_card(digits) and not is_alphanumeric(text, groups[count - 1][1]):
            # A date or the card's code may follow, and so may another card.
            is_end = count == len(groups) or gaps[count - 1] != gaps[0] or sizes[count] <= 3
            return count if is_end or _is_quartet(text, groups[count : count + 4]) else 0
    return 0


def _is_quartet(text: bytes, groups: list[Span]) -> bool:
    """Returns whether four groups of four digits are a card."""
    if len(groups) != 4 or any(b - a != 4 for a, b in groups):
        return False
    return _is_card(b"".join(text[a:b] for a, b in groups))


def _is_plain(text: bytes, start: int, end: int) -> bool:
    """Returns whether digits without a separator are a card, and no part of a name or fraction."""
    if end - start not in _PLAIN or is_alphanumeric(text, start - 1) or is_alphanumeric(text, end):
        return False
    if text[start - 1 : start] == b"." and not is_letter(text, start - 2):
        return False
    if text[end : end + 1] == b"." and is_digit(text, end + 1):
        return False
    digits = text[start:end]
    if not _is_card(digits):
        return False
    is_other = (len(digits) == 12 and digits[:2] in _COMMON) or (
        len(digits) == 13 and _is_article(digits)
    )
    return not is_other or _NAMED.search(text, max(start - 32, 0), start) is not None


def _is_card(digits: bytes) -> bool:
    return (
        any(len(digits) in _LENGTHS.get(digits[:width], ()) for width in (1, 2, 3, 4))
        and _sum_luhn(digits) % 10 == 0
    )


def _sum_luhn(digits: bytes) -> int:
    plain, doubled = digits[::-2], digits[-2::-2]
    return sum(plain) - 48 * len(plain) + sum(_DOUBLED[byte] for byte in doubled)


_DOUBLED: Final = {48 + digit: 2 * digit - 9 if digit > 4 else 2 * digit for digit in range(10)}


def _is_article(digits: bytes) -> bool:
    """Returns whether 13 digits have the check digit of an article number (EAN)."""
    return (sum(digits[::2]) + 3 * sum(digits[1::2]) - 48 * (7 + 18)) % 10 == 0


CARDS: Final = (
    Recogniser(
        compile_pattern(
            rf"[0-9]{{12,}}(?:{_BETWEEN}[0-9]{{3,}})*"
            rf"|[0-9]{{4,}}(?:{_BETWEEN}[0-9]{{3,}}){{2,}}(?:{_BETWEEN}[0-9]{{1,2}})?"
        ),
        _find_cards,
    ),
    Recogniser(compile_pattern(rf"[0-9]{{4}}(?:{_LINE}[0-9]{{3,6}}){{2,}}"), _find_cards),
)
