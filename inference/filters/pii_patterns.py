"""The patterns of the builtin content filters; pure.

A recogniser is an RE2 pattern and, where the pattern is too broad, a check of each match. RE2 has
no lookaround, so the check also reads the bytes beside the match.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from accounts.patterns import Pattern, compile_pattern

_DIGITS: Final = frozenset(b"0123456789")
_PERIOD: Final = ord(".")
_CARD_LENGTHS: Final = range(13, 20)


class Recogniser(NamedTuple):
    """A pattern, and a check that returns the real end of a match, or 0 to refuse the match."""

    pattern: Pattern
    check: Callable[[bytes, int, int], int] | None = None

    def find_spans(self, text: bytes) -> Iterator[tuple[int, int] | None]:
        """Yields the start and end of each match, and ``None`` for each refused match.

        The ``None`` lets the caller stop a search that takes too long.
        """
        position = 0
        # At the end of the text a search would match the empty text forever.
        while position < len(text) and (match := self.pattern.search(text, position)):
            start, end = match.span()
            if self.check is not None:
                end = self.check(text, start, end)
            if end > start:
                yield start, end
                position = end
            else:
                yield None
                position = start + 1


def _check_phone(text: bytes, start: int, end: int) -> int:
    count = sum(byte in _DIGITS for byte in text[start:end])
    return end if 8 <= count <= 15 and not _follows_digit(text, start) else 0


def _check_ssn(text: bytes, start: int, end: int) -> int:
    """Refuses numbers that the Social Security Administration never assigns."""
    area, group, serial = text[start : start + 3], text[start + 4 : start + 6], text[end - 4 : end]
    is_given = area not in (b"000", b"666") and area < b"900" and group != b"00"
    return end if is_given and serial != b"0000" else 0


def _check_card(text: bytes, start: int, end: int) -> int:
    """Returns the end of the longest number in the match with a valid Luhn check digit.

    A date or a code may follow the number, so a number ends only where no digit follows.
    """
    if _follows_digit(text, start):
        return 0
    places = [place for place in range(start, end) if text[place] in _DIGITS]
    for length in range(min(len(places), _CARD_LENGTHS[-1]), _CARD_LENGTHS[0] - 1, -1):
        stop = places[length - 1] + 1
        if not _precedes_digit(text, stop) and _is_luhn([text[at] - 48 for at in places[:length]]):
            return stop
    return 0


def _is_luhn(digits: list[int]) -> bool:
    doubled = [2 * digit - 9 if digit > 4 else 2 * digit for digit in digits[-2::-2]]
    return (sum(digits[::-2]) + sum(doubled)) % 10 == 0


def _check_ipv4(text: bytes, start: int, end: int) -> int:
    """Refuses a part of a longer sequence of numbers, such as a version."""
    is_part = start >= 2 and text[start - 1] == _PERIOD and text[start - 2] in _DIGITS
    goes_on = text[end : end + 1] == b"." and _precedes_digit(text, end + 1)
    return 0 if is_part or goes_on else end


def _check_ipv6(text: bytes, start: int, end: int) -> int:
    """Refuses invalid addresses, and matches without a digit, such as ``std::`` in a program."""
    before = text[start - 1 : start]
    if before == b":" or before.isalnum() or text[end : end + 1].isalnum():
        return 0
    found = text[start:end].rstrip(b".")
    if found.endswith(b":") and not found.endswith(b"::"):
        found = found[:-1]
    try:
        ipaddress.IPv6Address(found.decode())
    except ValueError:
        return 0
    return start + len(found) if any(byte in _DIGITS for byte in found) else 0


def _check_digit(text: bytes, start: int, end: int) -> int:
    """Refuses names without a digit: words are more common than random keys without one."""
    return end if any(byte in _DIGITS for byte in text[start:end]) else 0


def _follows_digit(text: bytes, start: int) -> bool:
    return start > 0 and text[start - 1] in _DIGITS


def _precedes_digit(text: bytes, end: int) -> bool:
    return end < len(text) and text[end] in _DIGITS


# Letters beyond ASCII: all characters except the spaces, punctuation and symbols of these blocks.
# Unicode's own character classes make a search many times slower.
_LETTERS: Final = (
    r"\x{C0}-\x{1FFF}\x{2070}-\x{2FFF}\x{3040}-\x{FEFE}\x{FF10}-\x{FF19}\x{FF21}-\x{FF3A}"
    r"\x{FF41}-\x{FF5A}\x{FF66}-\x{10FFFF}"
)
_OCTET: Final = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PRIVATE_KEY: Final = r"[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
_WORDS: Final = r"(?:\w+\s+){0,3}?"
_ORDERS: Final = r"(?:instruction|prompt|rule|direction|directive|guideline|context|message|polic)"

BUILTINS: Final[Mapping[str, tuple[Recogniser, ...]]] = {
    "email": (
        Recogniser(
            compile_pattern(
                rf"[0-9A-Za-z{_LETTERS}_%+'-]+(?:\.[0-9A-Za-z{_LETTERS}_%+'-]+)*"
                rf"@(?:[0-9A-Za-z{_LETTERS}](?:[0-9A-Za-z{_LETTERS}-]*[0-9A-Za-z{_LETTERS}])?\.)+"
                rf"[A-Za-z{_LETTERS}]{{2,}}"
            )
        ),
    ),
    "phone": (
        Recogniser(
            compile_pattern(r"\+[1-9][0-9]{0,2}(?:[ ./-]?\(?[0-9]{1,4}\)?){2,6}\b"), _check_phone
        ),
        # North American numbers; without separators only numbers that can be assigned.
        Recogniser(
            compile_pattern(
                r"(?:\([2-9][0-9]{2}\) ?|\b(?:1[ .-])?[2-9][0-9]{2}[ .-])[0-9]{3}[ .-]?[0-9]{4}\b"
                r"|\b1?[2-9][0-9]{2}[2-9][0-9]{6}\b"
            ),
            _check_phone,
        ),
    ),
    "ssn": (
        Recogniser(compile_pattern(r"\b[0-9]{3}(?:-[0-9]{2}-| [0-9]{2} )[0-9]{4}\b"), _check_ssn),
    ),
    "credit-card": (Recogniser(compile_pattern(r"[2-6](?:[ -]?[0-9]){12,18}"), _check_card),),
    "ip-address": (
        Recogniser(compile_pattern(rf"\b{_OCTET}(?:\.{_OCTET}){{3}}\b"), _check_ipv4),
        Recogniser(
            compile_pattern(
                rf"[0-9A-Fa-f]{{0,4}}(?::[0-9A-Fa-f]{{0,4}}){{2,8}}(?:(?:\.{_OCTET}){{3}})?"
            ),
            _check_ipv6,
        ),
    ),
    "secrets": (
        Recogniser(
            compile_pattern(
                r"\b(?:"
                r"[sm]k-cw-(?:[0-9a-z]{8}-)?[0-9A-Za-z]{49}"  # this gateway's own keys
                r"|(?:AKIA|ASIA)[0-9A-Z]{16}"
                r"|gh[oprsu]_[0-9A-Za-z]{36,}|github_pat_[0-9A-Za-z_]{22,}"
                r"|AIza[0-9A-Za-z_-]{35}|ya29\.[0-9A-Za-z_-]{20,}"
                r"|xox[abeoprs]-[0-9A-Za-z-]{10,}|xapp-[0-9]-[0-9A-Za-z-]{10,}"
                r"|eyJ[0-9A-Za-z_-]{8,}\.eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]*"  # a JWT
                r")"
            )
        ),
        Recogniser(compile_pattern(r"\bsk[-_][0-9A-Za-z_-]{20,}"), _check_digit),
        Recogniser(compile_pattern(r"(?i)aws_?secret(?:_?access)?_?key\W{1,8}[0-9a-z/+]{40}")),
        Recogniser(
            compile_pattern(rf"(?s)-----BEGIN {_PRIVATE_KEY}.*?(?:-----END {_PRIVATE_KEY}|\z)")
        ),
    ),
    "regex-prompt-injection": (
        Recogniser(
            compile_pattern(
                rf"(?i)\b(?:ignore|disregard|forget|override|bypass)\s+{_WORDS}"
                r"(?:previous|prior|above|earlier|preceding|existing|initial|original|system)\s+"
                rf"{_WORDS}{_ORDERS}\w*"
            )
        ),
        Recogniser(
            compile_pattern(
                rf"(?i)\b(?:reveal|show|print|repeat|output|leak|display|tell)\s+{_WORDS}your\s+"
                rf"{_WORDS}(?:system|hidden|initial|original|secret)\s+{_ORDERS}\w*"
            )
        ),
        Recogniser(
            compile_pattern(
                r"(?i)\bdo\s+anything\s+now\b"
                r"|\b(?:enable|enter|activate)\s+(?:developer|debug|god|jailbreak|dan)\s+mode\b"
                rf"|\byou\s+are\s+now\s+{_WORDS}(?:jailbroken|unrestricted|unfiltered|DAN)\b"
                rf"|\bpretend\s+{_WORDS}you\s+(?:have|are\s+under)\s+no\s+"
                r"(?:restriction|rule|limit|guideline|filter)\w*"
            )
        ),
        # The tokens with which chat templates begin and end a turn.
        Recogniser(
            compile_pattern(r"<\|(?:im_start|im_end|system|endoftext)\|>|\[/?INST\]|<</?SYS>>")
        ),
    ),
}
