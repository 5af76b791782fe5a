"""The recognisers of the builtin content filters; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from accounts.patterns import compile_pattern
from inference.filters.addresses import EMAILS, IP_ADDRESSES
from inference.filters.cards import CARDS
from inference.filters.credentials import CREDENTIALS
from inference.filters.phones import DEFAULT_REGIONS, recognise_phones
from inference.filters.recogniser import NOTHING, Recogniser, Span, is_digit


def _find_ssn(text: bytes, start: int, end: int) -> Sequence[Span]:
    """Refuses numbers that are never assigned, and a part of a longer number."""
    area, group, serial = re.findall(rb"[0-9]+", text[start:end])
    is_given = area not in (b"000", b"666") and area < b"900" and group != b"00"
    goes_on = text[end : end + 1] == b"-" and is_digit(text, end + 1)
    is_part = text[start - 1 : start] == b"-" and is_digit(text, start - 2)
    return (
        ((start, end),) if is_given and serial != b"0000" and not (goes_on or is_part) else NOTHING
    )


_ALL: Final = r"(?:(?:all|any|every|each|of|the|your|my|our|these|those|this|that)\s+){0,3}"
_EARLIER: Final = r"(?:previous|prior|above|earlier|preceding|foregoing|initial|original)"
_ORDERS: Final = r"(?:instruction|prompt|direction|directive|guideline|command|order)s?\b"
_HIDDEN: Final = (
    r"(?:(?:full|entire|exact|complete|whole|own)\s+)?"
    r"(?:system|hidden|initial|original|secret|internal)"
)

BUILTINS: Final[Mapping[str, tuple[Recogniser, ...]]] = {
    "email": EMAILS,
    "phone": recognise_phones(DEFAULT_REGIONS),
    "ssn": (
        Recogniser(
            compile_pattern(
                r"\b[0-9]{3}(?:-[0-9]{2}-| [0-9]{2} |\x{2011}[0-9]{2}\x{2011}|\x{A0}[0-9]{2}\x{A0})"
                r"[0-9]{4}\b"
            ),
            _find_ssn,
        ),
    ),
    "credit-card": CARDS,
    "ip-address": IP_ADDRESSES,
    "secrets": CREDENTIALS,
    "regex-prompt-injection": (
        Recogniser(
            compile_pattern(
                rf"(?i)\b(?:ignore|disregard|forget|override|bypass)\s+(?:about\s+)?{_ALL}"
                rf"(?:{_EARLIER}\s+(?:system\s+)?{_ORDERS}"
                rf"|(?:system\s+)?{_ORDERS}\s+(?:above|before\s+this|you\s+(?:were|have\s+been)\s+given)\b)"
                rf"|\b(?:ignore|disregard|forget)\s+{_ALL}{_EARLIER}\s+(?:rule|polic|message)\w*"
                rf"|\b(?:ignore|disregard|forget|override|bypass)\s+(?:all\s+(?:of\s+)?)?your\s+"
                rf"(?:\w+\s+)?(?:{_ORDERS}|rules\b|safety\b|training\b)"
            )
        ),
        Recogniser(
            compile_pattern(
                r"(?i)\b(?:reveal|show|print|repeat|output|leak|display|tell)\s+(?:me\s+)?"
                rf"(?:(?:all|the|of)\s+){{0,2}}your\s+{_HIDDEN}\s+(?:{_ORDERS}|messages?\b|rules?\b)"
            )
        ),
        Recogniser(
            compile_pattern(
                r"(?i)\bdo\s+anything\s+now\b"
                r"|\b(?:enable|enter|activate)\s+(?:jailbreak|dan)\s+mode\b"
                r"|\byou\s+are\s+now\s+(?:\w+\s+){0,3}?(?:jailbroken|unrestricted|unfiltered|DAN)\b"
                r"|\bpretend\s+(?:\w+\s+){0,3}?you\s+(?:have|are\s+under)\s+no\s+"
                r"(?:restriction|rule|limit|guideline|filter)\w*"
            )
        ),
        # The tokens with which chat templates begin and end a turn.
        Recogniser(
            compile_pattern(r"<\|(?:im_start|im_end|system|endoftext)\|>|\[/?INST\]|<</?SYS>>")
        ),
    ),
}


def recognisers_of(slug: str, regions: Sequence[str] | None) -> tuple[Recogniser, ...]:
    """Returns the recognisers of a builtin filter; none for a slug of another release.

    ``regions`` are those whose national telephone numbers the filter ``phone`` finds.
    """
    if slug == "phone" and regions is not None:
        return recognise_phones(tuple(regions))
    return BUILTINS.get(slug, ())
