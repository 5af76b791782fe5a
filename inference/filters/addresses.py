"""Recognises addresses of e-mail and of the internet protocol; pure."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import Final

from accounts.patterns import compile_pattern
from inference.filters.recogniser import NOTHING, Recogniser, Span, is_alphanumeric, is_letter

# Latin letters beyond ASCII stand beside those of ASCII in one word. Letters of other scripts do
# not: in a text without spaces the address begins where the script changes. Both are all characters
# but the spaces, punctuation and symbols of these blocks: Unicode's own classes are much slower.
_LATIN: Final = r"0-9A-Za-z\x{C0}-\x{24F}\x{1E00}-\x{1EFF}"
_OTHERS: Final = (
    r"\x{250}-\x{1DFF}\x{1F00}-\x{1FFF}\x{2070}-\x{2FFF}\x{3040}-\x{FEFE}\x{FF10}-\x{FF19}"
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{FF66}-\x{10FFFF}"
)
_WORD: Final = rf"{_LATIN}{_OTHERS}"
_DOMAIN: Final = (
    rf"@(?:[{_WORD}](?:[{_WORD}-]*[{_WORD}])?\.)+"
    rf"(?:xn--[0-9A-Za-z-]*[0-9A-Za-z]|[A-Za-z\x{{C0}}-\x{{24F}}]{{2,}}|[{_OTHERS}]{{2,}})"
)
# A quotation mark or an asterisk is part of a name only inside it.
_MAILBOX: Final = (
    rf"(?:[{_LATIN}_%+-](?:[{_LATIN}_%+'*&!#-]*[{_LATIN}_%+-])?"
    rf"(?:\.[{_LATIN}_%+'*-]+)*"
    rf"|[{_OTHERS}]+(?:\.[{_OTHERS}]+)*"
    r'|"[0-9A-Za-z][^\x00-\x1f"\\,:@]{0,62}[0-9A-Za-z]")'
)
# A picture for screens of that density, such as logo@2x.png.
_PICTURE: Final = re.compile(
    rb"(?i)@[1-9](?:\.[0-9])?x\.(?:png|jpe?g|webp|gif|svg|avif|heic|pdf)\Z"
)


def _find_email(text: bytes, start: int, end: int) -> Sequence[Span]:
    return NOTHING if _PICTURE.search(text, max(end - 12, start), end) else ((start, end),)


EMAILS: Final = (Recogniser(compile_pattern(_MAILBOX + _DOMAIN), _find_email),)

_OCTET: Final = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_NEAR: Final = 24
# What stands before a version: its name, an operator, or the product of a user agent.
_VERSION: Final = re.compile(
    rb"(?:(?:version|release|revision|build|firmware|sections?|chapter|figure|policy|oid)"
    rb"\W*(?:is|of)?|\b(?:ver|rev|rel|sec)\W*|\xc2\xa7 ?|(?:^|[\s\"'(;,])[a-z][\w.-]*/)"
    rb"[\"'v]*\Z|(?:[=<>~!]=|[\^~]) ?v?\Z"
)
# Versions and sections have small numbers, unlike nearly all addresses; something has to name one.
_SMALL: Final = 32
_USUAL: Final = re.compile(rb"10\.|1\.[01]\.[01]\.1|8\.8\.[48]\.[48]|9\.9\.9\.|4\.2\.2\.")
_NAMED: Final = re.compile(
    rb"(?:\b(?:ip|ips|ipv4|host|address|addr|server|from|dns|gateway|client|remote|peer|ping"
    rb"|ssh|via|route|inet|src|dst|source|dest|destination|node|proxy|bind|listen|network|subnet)"
    rb"\b[^\n]{0,12}|_ip\W{1,4})\Z"
)
_OPENING: Final = (b"@", b"/", b'"', b"'", b"`")
_PORT: Final = re.compile(rb":[0-9]{2}|/[0-9]")
_HINT: Final = re.compile(rb"[a-z=^~\xa7]")
# After it: the end of a name of a file or of a release. A second address may end a range.
_GOES_ON: Final = re.compile(rb"\.?[0-9A-Za-z_]|-(?![0-9]{1,3}(?:\.[0-9]{1,3}){3}\b)[0-9A-Za-z.]")
_RANGE: Final = re.compile(rb"\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}-\Z")
# Arcs of object identifiers, which are written like addresses.
_OBJECTS: Final = (b"1.3.6.1", b"2.5.4.", b"2.5.29.")
_SLICE: Final = re.compile(rb"[0-9]*::[0-9]*")
# The first bits of addresses in use.
_IN_USE: Final = tuple(
    (int(network.netmask), int(network.network_address))
    for text in ("2000::/3", "fc00::/7", "fe80::/10", "ff00::/8", "64:ff9b::/96", "::ffff:0:0/96")
    for network in (ipaddress.IPv6Network(text),)
)
_DIGIT: Final = re.compile(rb"[0-9]")
_MAPPED: Final = bytes(10) + b"\xff\xff"


def _find_ipv4(text: bytes, start: int, end: int) -> Sequence[Span]:
    found = text[start:end]
    if found.count(b".") != 3 or end - start > 15:
        return NOTHING
    octets = [int(part) for part in found.split(b".") if len(part) == 1 or part[:1] != b"0"]
    if len(octets) != 4 or max(octets) > 255 or not _identifies(octets):
        return NOTHING
    if found.startswith(_OBJECTS) or _GOES_ON.match(text, end):
        return NOTHING
    before = text[max(start - _NEAR, 0) : start].lower()
    if before.endswith(b"-") and is_alphanumeric(text, start - 2) and not _RANGE.search(before):
        return NOTHING
    is_part = before.endswith((b".", b"_")) and is_alphanumeric(text, start - 2)
    if is_part or is_letter(text, start - 1):
        return NOTHING
    if _HINT.search(before) and _VERSION.search(before):
        return NOTHING
    if max(octets) < _SMALL and not _is_named(text, start, end, before):
        return NOTHING
    return ((start, end),)


def _is_named(text: bytes, start: int, end: int, before: bytes) -> bool:
    is_all = start < _NEAR and not before.strip() and not text[end : end + 2].strip(b". \n")
    return (
        is_all
        or before.endswith(_OPENING)
        or _USUAL.match(text, start) is not None
        or _PORT.match(text, end) is not None
        or (_HINT.search(before) is not None and _NAMED.search(before) is not None)
    )


def _identifies(octets: list[int]) -> bool:
    """Returns whether it is no netmask, and neither loopback, unspecified, nor reserved."""
    return 0 < octets[0] < 240 and octets[0] != 127


def _find_ipv6(text: bytes, start: int, end: int) -> Sequence[Span]:
    # The longest address has 45 characters, and a period or colon may follow it.
    if end - start > 48 or is_alphanumeric(text, start - 1) or is_alphanumeric(text, end):
        return NOTHING
    if text[start - 1 : start] == b":":
        return NOTHING
    found = text[start:end].rstrip(b".")
    if found.endswith(b":") and not found.endswith(b"::"):
        found = found[:-1]
    groups = [group for group in found.split(b":") if group]
    is_long = len(groups) >= (4 if b"::" in found else 8) and max(map(len, groups)) > 2
    # Pairs are hardware addresses and fingerprints, words without a digit names of a program.
    if len(groups) < 2 and not found.startswith(b"f") and len(found) < 6:
        return NOTHING
    if not _DIGIT.search(found) or (not is_long and _is_slice(text, start, found)):
        return NOTHING
    try:
        address = socket.inet_pton(socket.AF_INET6, found.decode())
    except OSError:
        return NOTHING
    number = int.from_bytes(address)
    if not is_long and not any(number & mask == network for mask, network in _IN_USE):
        return NOTHING
    if address.startswith(_MAPPED) and not _identifies(list(address[12:])):
        return NOTHING
    return ((start, start + len(found)),)


def _is_slice(text: bytes, start: int, found: bytes) -> bool:
    """Returns whether it may be a slice of a program, such as ``names[1000::2]``."""
    if not _SLICE.fullmatch(found):
        return False
    is_index = text[start - 1 : start] in (b"[", b" ", b",") and (
        is_alphanumeric(text, start - 2) or text[start - 2 : start - 1] in (b"]", b")", b"_")
    )
    return is_index or len(found.partition(b":")[0]) < 4


IP_ADDRESSES: Final = (
    Recogniser(compile_pattern(r"[0-9]+(?:\.[0-9]+){3,}"), _find_ipv4),
    Recogniser(
        compile_pattern(
            r"[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:]*"
            rf"(?:(?:\.{_OCTET}){{3}})?"
        ),
        _find_ipv6,
    ),
)
