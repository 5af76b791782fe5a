"""Recognises telephone numbers by the numbering plans of ``phonenumbers``; pure.

International numbers are found anywhere. A number in national notation is found for the regions of
the guardrail: grouped as its region groups it, or beside a word that names it. The library's own
search takes seconds for a megabyte, so its plans are compiled here into patterns.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import phonenumbers
from phonenumbers.data import _ALT_NUMBER_FORMATS
from phonenumbers.phonemetadata import PhoneMetadata

from accounts.patterns import InvalidPattern, Pattern, compile_pattern
from inference.filters.recogniser import (
    NOTHING,
    Recogniser,
    Span,
    is_alphanumeric,
    is_digit,
    is_letter,
)

DEFAULT_REGIONS: Final = ("US",)
# Area code of examples and films; no plan assigns it.
_FICTION: Final = "555"
# What stands between groups of digits, for RE2 and for Python's patterns of bytes.
_GAP: Final = r"[ ./()\x{A0}\x{2010}-\x{2015}\x{202F}-]"
_BYTES_GAP: Final = rb"(?:[ ./()-]|\xc2\xa0|\xe2\x80[\x90-\x95\xaf])"
_DIGITS: Final = b"0123456789"
_NOT_DIGITS: Final = bytes(set(range(256)).difference(_DIGITS))
_GROUPS: Final = re.compile(rb"[0-9]+")
_DATE: Final = re.compile(
    rb"(?:19|20)[0-9]{2}[-./ ][01]?[0-9][-./ ][0-3]?[0-9]"
    rb"|[0-3]?[0-9][-./ ][01]?[0-9][-./ ](?:19|20)[0-9]{2}"
)
_EXTENSION: Final = re.compile(rb"(?i) ?(?:x|ext\.?|extension|#) ?[0-9]{1,6}\b")
# What an extension begins with.
_EXTENDING: Final = (b"x", b"X", b"e", b"E", b"#")
_KINDS: Final = (
    "fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost", "personal_number", "voip",
    "pager", "uan", "voicemail",
)  # fmt: skip
# What names a number, in languages of the world.
_WORDS: Final = (
    r"(?:\b|_)(?:t[eé]l|tlf|mob|cell?|ph|fon|hp|wa|sms|gsm|fax)(?:\b|_)"
    r"|(?:phone|t[eé]l[eé](?:ph|f)[oó]+n|\bfone|puhelin|tele?pon)"
    r"|mobile?|m[oó]vil|cell(?:phone|ular)|celular|whats ?app|viber|hotline|handy|portable"
    r"|rufnummer|msisdn|\bcontact (?:number|no)\b|kom[oó]rk[ai]|\bmy (?:new )?number\b"
    r"|\b(?:call|dial|ring|reach|text|contact)(?: (?:me|us|him|her|them|back))?\b"
    r"|rufen sie|appelez|ll[aá]ma(?:me|nos)|chiama(?:mi)?"
    r"|телефон|\bтел|моб|τηλ|κινητό|טלפון|נייד|هاتف|جوال|موبايل|تلفن|موبایل|फ़ोन|फोन|मोबाइल|ফোন"
    r"|மொபைல்|โทร|มือถือ|điện thoại|sđt|電話|电话|手机|手機|携帯|전화|휴대폰|핸드폰|연락처"
)
# Words that end like one of those.
_OTHER_WORDS: Final = re.compile(rb"(?i)(?:head|micro|ear|mega|gramo|saxo|xylo|\bi)\Z")
# Words that say something else too: a number beside them has to be assigned.
_WEAK_WORDS: Final = re.compile(
    rb"_?(?:call|dial|ring|reach|text|contact(?! n)|mob\b|cell?\b|ph\b|wa\b|hp\b|handy"
    rb"|portable|sms|gsm)"
)
# What may stand between the word and the number, and between the number and the word.
_AFTER: Final = re.compile(
    rb"(?i)(?=[^0-9]{0,127}+[0-9])(?!_?ids?\b)[a-z\x80-\xff]{0,16}"
    rb"(?:[^0-9A-Za-z+(\n\]}]{0,6}(?=[a-z\xd0])"
    rb"(?:numbers?|num|nos?|nr|nummern?|n\S{1,2}mero|num\S{1,2}ro|is|at|on|under|us|me|to|home|work"
    rb"|office|ist|lautet|unter|est|es|au|al|\xd0\xbd\xd0\xbe\xd0\xbc\S+)\b){0,3}"
    rb"[^0-9A-Za-z+(\n\]}]{0,24}(\+?\(?[0-9](?:[0-9]|" + _BYTES_GAP + rb"{1,3}+[0-9]){4,16}+)"
)
_BETWEEN: Final = b" ,(/:-"
# The same backwards: a search for the number's start would try each place before the word.
_BEFORE: Final = re.compile(
    rb"[%b]{1,3}([0-9](?:(?:[ ./()-]|\xa0\xc2|[\x90-\x95\xaf]\x80\xe2){0,3}[0-9]){5,16}\(?\+?)"
    % _BETWEEN
)
_LONGEST: Final = 64
# A shorter number is none in any notation, and patterns match no longer one.
_LEAST_DIGITS: Final = 5
_MOST_DIGITS: Final = 17
_WITH_PLUS: Final = range(7, 16)
_WITH_ZEROS: Final = range(9, 18)
_NAMED: Final = range(7, _MOST_DIGITS + 1)


def _read_region(name: str) -> Any:
    return PhoneMetadata.metadata_for_region(name)


class _Proof(IntEnum):
    """How sure a number has to be: assigned to a kind, of a form that exists, or of a length."""

    KIND = 0
    FORM = 1
    LENGTH = 2


class _Plan:
    """The numbers of one region, or of all that share a calling code."""

    def __init__(self, regions: Iterable[Any]) -> None:
        self._regions = tuple(regions)
        kinds = [getattr(region, name) for region in self._regions for name in _KINDS]
        general = [region.general_desc for region in self._regions]
        patterns = {kind.national_number_pattern for kind in kinds if kind is not None} - {None}
        self._is_of_kind = _compile("|".join(sorted(patterns))).fullmatch
        self._has_form = _compile(
            "|".join(each.national_number_pattern for each in general)
        ).fullmatch
        self._lengths = {length for each in general for length in each.possible_length}
        self._local = {length for each in general for length in each.possible_length_local_only}
        #: How many digits a number has in national notation.
        self.written = frozenset(self._local.union(*map(self._measure_written, self._regions)))
        self._is_fictional = any(region.country_code == 1 for region in self._regions)

    def _measure_written(self, region: Any) -> Iterable[int]:
        prefix = region.national_prefix_for_parsing or ""
        if prefix and not prefix.isdigit():
            return range(_LEAST_DIGITS, _MOST_DIGITS + 1)
        return self._lengths | {length + len(prefix) for length in self._lengths}

    def has(self, number: str, proof: _Proof) -> bool:
        if len(number) not in self._lengths:
            return False
        if proof is _Proof.LENGTH:
            return True
        if proof is _Proof.FORM and self._has_form(number) is not None:
            return True
        if self._is_fictional and len(number) == 10 and number[:3] == _FICTION:
            return True
        return self._is_of_kind(number) is not None

    def has_national(self, digits: str, proof: _Proof) -> bool:
        """Returns whether digits are a number with or without its national prefix."""
        if proof is _Proof.LENGTH and len(digits) in self._local:
            return True
        for region in self._regions:
            for number in _strip_prefix(region, digits):
                if self.has(number, proof):
                    return True
        return False


def _strip_prefix(region: Any, digits: str) -> Iterator[str]:
    yield digits
    prefix = region.national_prefix_for_parsing
    match = _compile(prefix).match(digits) if prefix else None
    if match is None:
        return
    rule = region.national_prefix_transform_rule
    if rule and match.lastindex and match[match.lastindex]:
        yield match.expand(rule) + digits[match.end() :]
    elif match.end():
        yield digits[match.end() :]


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@lru_cache(maxsize=1110)
def _find_plan(code: str) -> _Plan | None:
    """Returns the plan of a calling code; ``None`` for digits that are none."""
    names = phonenumbers.COUNTRY_CODE_TO_REGION_CODE.get(int(code))
    if names is None:
        return None
    if names == ("001",):
        return _Plan([PhoneMetadata.metadata_for_nongeo_region(int(code))])
    return _Plan(map(_read_region, names))


@lru_cache(maxsize=256)
def _plan_of_region(name: str) -> _Plan:
    return _Plan([_read_region(name)])


def _is_international(digits: str, proof: _Proof) -> bool:
    """Returns whether digits are a calling code and a number of it."""
    for length in (1, 2, 3):
        plan, number = _find_plan(digits[:length]), digits[length:]
        if plan is not None:
            # A prefix for calls inside of the country stands in parentheses, as in +49 (0)30.
            return plan.has(number, proof) or (number[0] == "0" and plan.has(number[1:], proof))
    return False


def _find_ends(
    text: bytes, start: int, end: int, lengths: Container[int]
) -> Iterator[tuple[int, str]]:
    """Yields where a number of one of the lengths may end, the last place first, and its digits.

    Its last group of digits ends at ``end``.
    """
    found = text[start:end]
    digits = found.translate(None, _NOT_DIGITS).decode()
    while len(digits) >= _LEAST_DIGITS:
        if len(digits) in lengths:
            stop = start + len(found)
            after = text[stop : stop + 2]
            is_fraction = after[:1] == b"." and after[1:].isdigit()
            extension = _EXTENSION.match(text, stop) if after.lstrip()[:1] in _EXTENDING else None
            if not is_fraction and (extension or not after[:1].isalnum()):
                yield extension.end() if extension else stop, digits
        rest = found.rstrip(_DIGITS)
        digits = digits[: len(rest) - len(found)]
        found = rest.rstrip(_NOT_DIGITS)


def _find_international(text: bytes, start: int, end: int) -> Sequence[Span]:
    before = text[start - 1 : start]
    is_plus = text[start : start + 1] == b"+"
    if is_alphanumeric(text, start - 1) or before in (b"+", b")", b"]", b"_"):
        return NOTHING
    if not is_plus and before in (b".", b",", b"-", b":", b"/", b"#"):
        return NOTHING
    for stop, digits in _find_ends(text, start, end, _WITH_PLUS if is_plus else _WITH_ZEROS):
        number = digits if is_plus else digits[2:]
        if number[0] == "0":
            continue
        # Digits alone have to be sure: numbers of articles, padded with zeros, are as long.
        is_plain = not is_plus and text[start:stop].isdigit()
        if is_plain and _is_article(digits):
            continue
        if _is_international(number, _Proof.KIND if is_plain else _Proof.FORM):
            # The code may stand in parentheses, as in (+49) 30.
            is_open = before == b"(" and b"(" not in text[start:stop].partition(b")")[0]
            return ((start - (is_open and b")" in text[start:stop]), stop),)
    return NOTHING


def _is_article(digits: str) -> bool:
    """Returns whether 13 or 14 digits have the check digit of an article number (GTIN)."""
    odd, even = map(int, digits[-2::-2]), map(int, digits[-1::-2])
    return len(digits) in (13, 14) and (3 * sum(odd) + sum(even)) % 10 == 0


class _National:
    """Finds the numbers of some regions in national notation."""

    def __init__(self, regions: tuple[str, ...]) -> None:
        self._plans = [_plan_of_region(name) for name in regions]
        self._written = frozenset().union(*(plan.written for plan in self._plans))

    def _has(self, digits: str, proof: _Proof) -> bool:
        return any(plan.has_national(digits, proof) for plan in self._plans)

    def find_grouped(self, text: bytes, start: int, end: int) -> Sequence[Span]:
        """Returns a number that is grouped as its region does it; a list of numbers goes on."""
        if text[start : start + 1] == b"(" and b")" not in text[start:end]:
            start += 1
        found = text[start:end]
        digits = found.translate(None, _NOT_DIGITS).decode()
        is_decimal = len(found) == len(digits) + 1 and b"." in found
        if is_decimal or _DATE.fullmatch(found) or _goes_on(text, start, end, found):
            return NOTHING
        if not self._has(digits, _Proof.KIND):
            return NOTHING
        extension = _EXTENSION.match(text, end)
        return ((start, extension.end() if extension else end),)

    def find_named(self, text: bytes, start: int, end: int) -> Sequence[Span]:
        """Returns the numbers beside a word that names them."""
        after = _AFTER.match(text, end, end + 2 * _LONGEST)
        found = self._find_number(text, *after.span(1), start) if after is not None else NOTHING
        if found or not text[max(start - 4, 0) : start].rstrip(_BETWEEN)[-1:].isdigit():
            return found
        before = _BEFORE.match(text[max(start - _LONGEST, 0) : start][::-1])
        if before is None:
            return NOTHING
        return self._find_number(text, start - before.end(1), start - before.start(1), start)

    def _find_number(self, text: bytes, start: int, end: int, word: int) -> Sequence[Span]:
        if is_letter(text, word - 1) and _OTHER_WORDS.search(text, max(word - 5, 0), word):
            return NOTHING
        before = text[max(start - 2, 0) : start]
        if before[-1:].isalnum() or (before[-1:] in (b".", b"-", b"_") and before[:1].isalnum()):
            return NOTHING
        if text[start : start + 1] == b"(" and b")" not in text[start:end]:
            start += 1
        is_plus = text[start : start + 1] == b"+"
        for stop, digits in _find_ends(text, start, end, _NAMED if is_plus else self._written):
            is_weak = _WEAK_WORDS.match(text[word : word + 16].lower())
            proof = _Proof.KIND if is_weak else _Proof.LENGTH
            if len(digits) < stop - start and _DATE.fullmatch(text, start, stop):
                continue
            if _is_international(digits, proof) if is_plus else self._has(digits, proof):
                return ((start, stop),)
        return NOTHING


def _goes_on(text: bytes, start: int, end: int, found: bytes) -> bool:
    """Returns whether a match is a part of a longer number or of a list."""
    if is_alphanumeric(text, start - 1) or text[start - 1 : start] in (b"+", b"_", b"$"):
        return True
    if text[end : end + 1] == b"_" or (
        is_alphanumeric(text, end) and not _EXTENSION.match(text, end)
    ):
        return True
    follows, precedes = is_digit(text, end + 1), is_digit(text, start - 2)
    if not follows and not precedes:
        return False
    gaps = {gap[-1:] for gap in _GROUPS.split(found)} - {b"", b"(", b")"} | {b"-", b"."}
    return (follows and text[end : end + 1] in gaps) or (
        precedes and text[start - 1 : start] in gaps
    )


def _read_templates(name: str) -> Iterator[tuple[str, str]]:
    """Yields the pattern of the groups of each format of a region, and how they are written."""
    region = _read_region(name)
    # The regions of a calling code have the formats of its first.
    first = phonenumbers.COUNTRY_CODE_TO_REGION_CODE[region.country_code][0]
    forms = _read_region(first).number_format
    usual = next((form.national_prefix_formatting_rule for form in forms), None)
    for form in (*forms, *_ALT_NUMBER_FORMATS.get(region.country_code, ())):
        rule = form.national_prefix_formatting_rule or (usual if form not in forms else None)
        if rule:
            # The rule is written for the first group that is written, which may be the second.
            first_group = re.search(r"\\[1-9]", form.format)
            if first_group is not None:
                begun = rule.replace(r"\1", first_group[0])
                yield form.pattern, form.format.replace(first_group[0], begun, 1)
        if not rule or form.national_prefix_optional_when_formatting:
            yield form.pattern, form.format
            if region.national_prefix:
                yield form.pattern, f"{region.national_prefix} {form.format}"


def _compile_grouped(regions: tuple[str, ...]) -> str:
    """Returns a pattern of all formats of some regions, the longest first."""
    shapes = set()
    for pattern, written in {pair for name in regions for pair in _read_templates(name)}:
        groups = re.findall(r"\(([^()]*)\)", pattern)
        shape = re.sub(r"[^0-9\\]+", "~", written.strip("() "))
        for number, group in enumerate(groups, 1):
            shape = shape.replace(rf"\{number}", group.replace(r"\d", "[0-9]"))
        if "~" in shape:
            shapes.add(shape)
    ordered = sorted(shapes, key=lambda shape: (-shape.count("~"), -_count_digits(shape), shape))
    return rf"\(?\b(?:{'|'.join(ordered)})".replace("~", rf"{_GAP}{{1,3}}")


def _count_digits(shape: str) -> int:
    """Returns how many digits a shape matches at most."""
    plain = re.sub(r"\[[^]]*\]", "0", shape)
    return sum(int(most or 1) for most in re.findall(r"[0-9](?:\{(?:[0-9]+,)?([0-9]+)\})?", plain))


def _compile_plans(regions: tuple[str, ...]) -> list[Pattern]:
    """Compiles the plans of regions: into one pattern, or more where that is too large."""
    try:
        return [compile_pattern(_compile_grouped(regions))]
    except InvalidPattern:
        if len(regions) == 1:
            raise
    half = len(regions) // 2
    return [*_compile_plans(regions[:half]), *_compile_plans(regions[half:])]


@lru_cache(maxsize=64)
def recognise_phones(regions: tuple[str, ...]) -> tuple[Recogniser, ...]:
    """Returns the recognisers of a guardrail with these regions."""
    national = _National(regions)
    return (
        Recogniser(
            compile_pattern(rf"(?:\+ ?|\b00[ .-]?)\(?[1-9](?:{_GAP}{{0,3}}[0-9]){{5,16}}"),
            _find_international,
        ),
        *(Recogniser(each, national.find_grouped) for each in _compile_plans(regions)),
        Recogniser(compile_pattern(rf"(?i){_WORDS}"), national.find_named),
    )
