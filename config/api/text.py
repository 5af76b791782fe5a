"""The characters and spellings that the API accepts and writes in texts; pure, for all rooms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, Final
from urllib.parse import unquote_to_bytes
from uuid import UUID

# C0, DEL and C1 controls; lone surrogates, which UTF-8 and PostgreSQL cannot carry.
CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# The same in a pattern of ECMA-262, but for surrogates, which no UTF-8 has.
CONTROLS: Final = r"\u0000-\u001f\u007f-\u009f"
# White space, and characters of no width.
INVISIBLE: Final = re.compile(
    r"[\s\u00ad\u115f\u1160\u180e\u200b-\u200f\u2060-\u2064\u2800\u3164\ufeff\uffa0]+"
)
# PostgreSQL cannot store these characters in a text.
NOT_STORABLE: Final = re.compile(r"[\x00\ud800-\udfff]")
# A header of an answer is not longer: many clients and proxies bound all of them by 8 KiB.
_MAX_HEADER: Final = 2_048
_MAX_NAME: Final = 128
_NOT_IN_HEADER: Final = re.compile(r"[^ -~]")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def parse_uuid(text: str) -> UUID | None:
    """Returns the UUID that a text spells in the usual way, ``None`` for any other text."""
    return UUID(text) if _UUID.fullmatch(text) else None


def spell_ids(texts: Iterable[str]) -> list[str]:
    """Returns the UUIDs of a list as they are compared: in small letters."""
    return [str(parse_uuid(text) or text) for text in texts]


def plain_digits(value: Decimal) -> str:
    """Returns plain decimal digits: ``0.0000005``, not ``5E-7``; ``1.5`` for ``1.50``."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def iter_texts(value: Any) -> Iterator[str]:
    """Yields the strings of a JSON value, including the names of members."""
    rest = [value]
    while rest:
        match rest.pop():
            case str() as text:
                yield text
            case dict() as members:
                rest += [*members, *members.values()]
            case list() | tuple() as items:
                rest += items


def is_utf8_path(raw_path: bytes) -> bool:
    """Returns whether the percent-decoded octets of a request path are UTF-8."""
    try:
        unquote_to_bytes(raw_path).decode()
    except UnicodeDecodeError:
        return False
    return True


def write_header(text: str) -> bytes:
    """Returns a text as the value of a header of an answer.

    This and :func:`write_list` alone put into a header what a caller or a provider wrote: a line
    break would end it. What is not visible ASCII becomes a question mark, and a long text is cut.
    """
    return _NOT_IN_HEADER.sub("?", text[:_MAX_HEADER]).encode("ascii")


def write_list(names: Iterable[str]) -> bytes:
    """Returns names as the value of a header, with commas between them.

    A comma in a name becomes a question mark, and a long name is cut. The list ends before the
    first name that has no room any more.
    """
    value = ""
    for each in names:
        name = _NOT_IN_HEADER.sub("?", each[:_MAX_NAME]).replace(",", "?")
        longer = f"{value}, {name}" if value else name
        if len(longer) > _MAX_HEADER:
            break
        value = longer
    return value.encode("ascii")
