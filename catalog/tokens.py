"""What bounds the tokens of a request at an endpoint, and what a tokenizer makes of a text; pure.

The bounds of endpoints that state none stand in ``data/tokens.json``, and so does the table of the
families of tokenizers, which :mod:`tests.bench.tokens` makes from published vocabularies.
"""

from __future__ import annotations

import re
from base64 import b64decode
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from math import ceil
from operator import mul
from typing import Any, Final, NamedTuple
from zlib import crc32, decompress

import msgspec
from msgspec.structs import replace

from catalog.abilities import MediaBound, Script, TokenBound

_IMAGE: Final = "image"
ASCII: Final = "ASCII"


class Medium(NamedTuple):
    """A medium of a prompt: a picture, a sound, a film or a file.

    ``units`` are the tiles of a picture, the seconds of a sound or film, or the pages of a file;
    ``None`` if they are not known. ``is_low`` says that a picture needs little detail.
    """

    modality: str
    units: int | None = None
    is_low: bool = False


class _Media(msgspec.Struct, frozen=True):
    image: int
    image_tile: int
    audio: int
    audio_least: int
    audio_second: int
    video: int
    video_second: int
    file: int
    page: int
    image_low: int | None = None

    def bound(self, medium: Medium) -> int:
        """Returns the most tokens of a medium."""
        if medium.modality == _IMAGE:
            if medium.is_low and self.image_low is not None:
                return self.image_low
            if medium.units is None:
                return self.image
            return min(self.image, (medium.units + 1) * self.image_tile)
        most, unit, least = {
            "audio": (self.audio, self.audio_second, self.audio_least),
            "video": (self.video, self.video_second, self.video_second),
        }.get(medium.modality, (self.file, self.page, self.page))
        return most if medium.units is None else max(medium.units * unit, least)


class TokenLimits(msgspec.Struct, frozen=True):
    """What bounds the tokens of a request at one endpoint.

    ``output`` is the most that one answer has if neither the request nor the endpoint bounds it,
    and ``thought`` the longest thought that stands beside this bound. ``prompt``, ``message`` and
    ``tool`` are added to each of these, ``tools`` to a request with any, ``input`` to each text of
    an embedding. ``tokens_per_byte`` is the most that the tokenizer makes of a byte. A prompt that
    grew by at most ``grown`` tokens is believed while the bounds of its request pay for it.
    """

    output: int
    grown: int
    tools: int
    input: int
    media: _Media
    prompt: int = 0
    message: int = 0
    tool: int = 0
    thought: int = 0
    tokens_per_byte: float = 1

    def bound_text(self, size: int, messages: int, tools: int) -> int:
        """Returns the most prompt tokens of a text, with what the provider adds."""
        tokens = size if self.tokens_per_byte == 1 else ceil(size * self.tokens_per_byte)
        return tokens + self.prompt + self.message * messages + self.tool * tools


_UNSTATED: Final = TokenBound()


@lru_cache(maxsize=1024)
def find_limits(stated: TokenBound) -> TokenLimits:
    """Returns the limits of an endpoint, one object for the same statement."""
    if stated == _UNSTATED:
        return UNSTATED_LIMITS
    own = _take_stated(stated, ("prompt", "message", "tool", "tokens_per_byte"))
    if stated.thoughts_beside:
        longest = stated.longest_thought
        own["thought"] = UNSTATED_LIMITS.output if longest is None else longest
    return replace(UNSTATED_LIMITS, media=_find_media(stated.media), **own)


def _take_stated(stated: TokenBound | MediaBound, names: Iterable[str]) -> dict[str, Any]:
    found = ((name, getattr(stated, name)) for name in names)
    return {name: value for name, value in found if value is not None}


def _find_media(stated: MediaBound) -> _Media:
    own = _take_stated(stated, stated.__struct_fields__)
    if stated.image_tile is not None and stated.image is None:
        # A picture fits into a square of 2,048 pixels, its shorter side into 768: eight tiles.
        own["image"] = 9 * stated.image_tile
    elif stated.image is not None and stated.image_tile is None:
        own["image_tile"] = stated.image
    if stated.audio_second is not None:
        own.setdefault("audio_least", stated.audio_second)
    return replace(UNSTATED_LIMITS.media, **own)


# The scripts of characters beyond ASCII, by their first code point. What modern texts seldom have
# stands apart, because tokenizers have no tokens for it.
_SCRIPTS: Final = (
    (0x80, "Symbols, rare"), (0xA0, "Symbols"), (0xC0, "Latin"), (0x180, "Latin, rare"),
    (0x370, "Greek"), (0x400, "Cyrillic"), (0x460, "Cyrillic, rare"), (0x530, "Armenian"),
    (0x590, "Hebrew"), (0x600, "Arabic"), (0x700, "Syriac"), (0x750, "Arabic, rare"),
    (0x780, "Thaana"), (0x7C0, "NKo"), (0x800, "Other"), (0x8A0, "Arabic, rare"),
    (0x900, "Devanagari"), (0x980, "Bengali"), (0xA00, "Gurmukhi"), (0xA80, "Gujarati"),
    (0xB00, "Oriya"), (0xB80, "Tamil"), (0xC00, "Telugu"), (0xC80, "Kannada"),
    (0xD00, "Malayalam"), (0xD80, "Sinhala"), (0xE00, "Thai"), (0xE80, "Lao"), (0xF00, "Tibetan"),
    (0x1000, "Myanmar"), (0x10A0, "Georgian"), (0x1100, "Hangul, rare"), (0x1200, "Ethiopic"),
    (0x13A0, "Cherokee"), (0x1400, "Other"), (0x1780, "Khmer"), (0x1800, "Mongolian"),
    (0x18B0, "Other"), (0x1C50, "Santali"), (0x1C80, "Other"), (0x1C90, "Georgian, rare"),
    (0x1CC0, "Other"), (0x1E00, "Latin, with marks"), (0x1F00, "Greek, rare"), (0x2000, "Symbols"),
    (0x2070, "Symbols, rare"), (0x2C00, "Other"), (0x2C60, "Latin, rare"), (0x2C80, "Other"),
    (0x2D00, "Georgian, rare"), (0x2D30, "Tifinagh"), (0x2D80, "Ethiopic"),
    (0x2DE0, "Cyrillic, rare"), (0x2E00, "Symbols, rare"), (0x2E80, "Han, rare"),
    (0x3000, "Symbols"), (0x3040, "Kana"), (0x3100, "Han, rare"), (0x3130, "Hangul, rare"),
    (0x3190, "Han, rare"), (0x31F0, "Kana, rare"), (0x3200, "Han, rare"), (0x4E00, "Han"),
    (0xA000, "Yi"), (0xA4D0, "Other"), (0xA500, "Vai"), (0xA640, "Cyrillic, rare"),
    (0xA6A0, "Other"), (0xA720, "Latin, rare"), (0xA800, "Other"), (0xAB30, "Latin, rare"),
    (0xAB70, "Cherokee"), (0xABC0, "Other"), (0xAC00, "Hangul"), (0xD800, "Other"),
    (0xF900, "Han, rare"), (0xFB00, "Other"), (0xFB50, "Arabic, rare"), (0xFE00, "Symbols, rare"),
    (0xFE70, "Arabic, rare"), (0xFF00, "Symbols"), (0xFF61, "Kana, rare"),
    (0xFFA0, "Hangul, rare"), (0xFFE0, "Symbols"), (0x10000, "Other"), (0x1F000, "Emoji"),
    (0x1FB00, "Other"), (0x20000, "Han, rare"), (0x323B0, "Other"),
)  # fmt: skip
_FIRST: Final = [first for first, _ in _SCRIPTS]
#: The bytes of a letter of each script without marks.
UNMARKED: Final = {"Cyrillic": 2, "Greek": 2, "Armenian": 2, "Georgian": 3}
# The kinds of bytes, a bit for each: lower and upper letters, digits, signs, spaces, other blanks,
# and bytes beyond ASCII.
_LOWER, _UPPER, _DIGIT, _SIGN, _SPACE, _BLANK, _BEYOND = (1 << place for place in range(7))
_KINDS: Final = (_LOWER, _UPPER, _DIGIT, _SIGN, _SPACE, _BLANK)


def _find_kind(byte: int) -> int:
    if byte >= 0x80:
        return _BEYOND
    char = chr(byte)
    if char.isalpha():
        return _LOWER if char.islower() else _UPPER
    if char.isdigit():
        return _DIGIT
    if char == " ":
        return _SPACE
    return _BLANK if byte < 0x20 else _SIGN


_KIND_OF: Final = bytes(map(_find_kind, range(256)))
# What is counted of ASCII: the bytes and the runs of each kind, and digits behind a space.
FEATURES: Final = (
    "lower", "lower_run", "upper", "upper_run", "digit", "digit_run", "sign", "sign_run",
    "space", "space_run", "blank", "blank_run", "spaced_digit",
)  # fmt: skip
_PIECE_CHARACTERS: Final = 64 * 1024


@lru_cache(maxsize=8192)
def find_script(char: str) -> str:
    """Returns the script of a character beyond ASCII."""
    return _SCRIPTS[bisect_right(_FIRST, ord(char)) - 1][1]


@lru_cache(maxsize=8192)
def _describe(char: str) -> tuple[str, int]:
    """Returns the script and the bytes of a character."""
    return find_script(char), len(char.encode("utf-8", "surrogatepass"))


def _count_characters(text: str) -> dict[str, int]:
    """Returns how often each character stands in a text.

    An alphabet is counted letter by letter, which takes a third of the time of ``Counter``.
    """
    counts: dict[str, int] = {}
    if len(set(text[:_SAMPLE])) > _FEW:
        return Counter(text)
    while text and len(counts) < _ALPHABET:
        rest = text.replace(text[0], "")
        counts[text[0]] = len(text) - len(rest)
        text = rest
    return counts | Counter(text) if text else counts


class TextCounts:
    """What a text has: the bytes and runs of each kind in ASCII, and the bytes of each script.

    ``chars`` counts its characters beyond ASCII; before ``spaced`` letters of these and before
    ``parted`` others stands a space, and ``edges`` of their runs begin without one. ``tokens`` is
    what is no text. ``more`` keeps what families have made of them.
    """

    __slots__ = (
        "chars", "edges", "features", "more", "parted", "scripts", "size", "spaced", "tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.features = [0] * len(FEATURES)
        self.scripts: dict[str, int] = {}
        self.chars: dict[str, int] = {}
        self.spaced = 0
        self.parted = 0
        self.edges = 0
        self.size = 0
        self.tokens = 0
        self.more: dict[str, int] = {}

    def add(self, text: str, times: int = 1) -> None:
        """Counts a text; runs end where it ends. ``times`` says how often a model reads it."""
        self.more.clear()
        if times != 1:
            once = TextCounts()
            once.add(text)
            self.features = [
                mine + times * more for mine, more in zip(self.features, once.features, strict=True)
            ]
            for mine, more in ((self.scripts, once.scripts), (self.chars, once.chars)):
                for name, size in more.items():
                    mine[name] = mine.get(name, 0) + times * size
            self.size += times * once.size
            self.spaced += times * once.spaced
            self.parted += times * once.parted
            self.edges += times * once.edges
            return
        for start in range(0, len(text), _PIECE_CHARACTERS):
            piece = text[start : start + _PIECE_CHARACTERS]
            data = piece.encode("utf-8", "surrogatepass")
            self.size += len(data)
            self._count_kinds(data)
            if len(data) > len(piece):
                self._count_scripts(piece, data)

    @property
    def main_script(self) -> str | None:
        """The script of more than half of the bytes; ``None`` if there is none."""
        rest = self.size
        for script, size in self.scripts.items():
            if 2 * size > self.size:
                return script
            rest -= size
        return ASCII if 2 * rest > self.size else None

    def count_borders(self) -> int:
        """Returns how often letters of a script without marks stand behind others, at most."""
        chars = sum(self.chars.values())
        borders = 0
        for script, size in UNMARKED.items():
            own = self.scripts.get(script, 0) // size
            borders += min(own, chars - own)
        return borders

    def _count_kinds(self, data: bytes) -> None:
        kinds = data.translate(_KIND_OF)
        bits = int.from_bytes(kinds, "big")
        # Of each byte the bit of its kind, unless the byte before has it too.
        begins = (bits & ~(bits >> 8)).to_bytes(len(kinds), "big")
        features = self.features
        for place, kind in enumerate(_KINDS):
            features[2 * place] += kinds.count(kind)
            features[2 * place + 1] += begins.count(kind)
        if not data.isascii():
            # A letter with an accent is a part of its word.
            features[1] -= kinds.count(bytes((_BEYOND, _LOWER)))
            spaced = kinds.count(bytes((_SPACE, _BEYOND)))
            self.spaced += spaced
            self.edges += begins.count(_BEYOND) - spaced
        features[-1] += kinds.count(bytes((_SPACE, _DIGIT)))

    def _count_scripts(self, piece: str, data: bytes) -> None:
        scripts, chars = self.scripts, self.chars
        beyond = data.translate(None, _ASCII_BYTES).decode("utf-8", "surrogatepass")
        for char, count in _count_characters(beyond).items():
            chars[char] = chars.get(char, 0) + count
            script, size = _describe(char)
            scripts[script] = scripts.get(script, 0) + count * size
        parted = len(_PARTED_SIGN.findall(piece)) if self.spaced else 0
        self.parted += parted
        self.spaced -= parted


# The characters of a page of the table of characters, the first beyond it, and the mark of those
# that take a space before them into their token.
_PAGE: Final = 256
_BEYOND_PAGES: Final = 0x32400
_JOINS: Final = 0x80
_SLACK: Final = 50
_MIXED: Final = 8
_CAPITALS, _DIGITS = FEATURES.index("upper_run"), FEATURES.index("digit_run")
# The tokens of a character behind a space beyond its own, if it is no letter.
_PARTED: Final = 2
_PARTED_SIGN: Final = re.compile(r" (?=[^\w\x00-\x7f])")
_ASCII_BYTES: Final = bytes(range(0x80))
# The most letters of an alphabet. It is known by how few stand among the first characters.
_ALPHABET: Final = 128
_SAMPLE: Final = 64
_FEW: Final = 42
_pages: Final[dict[bytes, bytes]] = {}


@lru_cache(maxsize=64)
def read_characters(table: str) -> tuple[bytes, ...]:
    """Returns the pages of a table of characters; equal pages of all tables are one object.

    Each character has a byte: the most tokens that it has, 0 if nobody knows, and :data:`_JOINS`.
    """
    data = decompress(b64decode(table)) if table else b""
    pages = (data[start : start + _PAGE] for start in range(0, len(data), _PAGE))
    return tuple(_pages.setdefault(page, page) for page in pages)


class TokenizerFamily(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the tokenizers of one family make of text.

    ``tokenizer`` is its name in the catalogue, and ``models`` are the beginnings of the slugs that
    have it; without any, it is that of all other models with this name. ``features`` has the tokens
    of each of :data:`FEATURES`, ``scripts`` those of a byte of common texts, ``unlisted`` of other
    scripts, and ``prose`` of Latin prose. ``characters`` has the most tokens of each character; see
    :func:`read_characters`. Each run of these behind ASCII has ``edge`` more. ``mark`` differs if
    the weights do.
    """

    family: str
    tokenizer: str
    source: str
    models: tuple[str, ...]
    features: tuple[float, ...]
    prose: float
    scripts: dict[str, float]
    unlisted: float
    characters: str = ""
    edge: int = 0
    mark: str = ""

    def estimate(self, counts: TextCounts) -> int:
        """Estimates the tokens of a text."""
        tokens: float = sum(map(mul, self.features, counts.features))
        for script, size in counts.scripts.items():
            tokens += size * self.scripts.get(script, self.unlisted)
        return ceil(round(tokens, 6)) + counts.tokens

    def estimate_answer(self, size: int, counts: TextCounts) -> int:
        """Estimates the tokens of an answer of ``size`` bytes to a text, in its script."""
        script, rate = counts.main_script, self.prose
        if script is not None and script not in _PROSE:
            rate = self.scripts.get(script, self.unlisted)
        return ceil(round(size * rate, 6))

    def bound_more(self, counts: TextCounts) -> int:
        """Returns how many tokens more than its bytes a text has at most; mostly less than 0.

        The characters have at most their tokens, and one in fifty more, because a token may begin
        within a character, as it does more often where scripts alternate. A space counts if it may
        stand before a letter that does not join it; other characters behind a space may be parted.
        """
        if (known := counts.more.get(self.characters)) is not None:
            return known
        if not (pages := read_characters(self.characters)):
            return 0
        tokens = apart = capitals = 0
        for char, count in counts.chars.items():
            code = ord(char)
            entry = pages[code >> 8][code & 0xFF] if code < _BEYOND_PAGES else 0
            tokens += count * (entry & ~_JOINS or len(char.encode("utf-8", "surrogatepass")))
            if entry < _JOINS and char.isalnum():
                apart += count
            if char.isupper():
                capitals += count
        size = sum(counts.scripts.values())
        mixed = size - max(counts.scripts.values(), default=0)
        more = tokens + -(-tokens // _SLACK) + -(-mixed // _MIXED) - size
        if self.edge:
            more += self.edge * (
                counts.edges + counts.count_borders() + capitals
                + min(counts.spaced, counts.features[_DIGITS]) + 2 * counts.features[_CAPITALS]
            )  # fmt: skip
        more += _PARTED * counts.parted
        more -= max(counts.spaced - apart, 0)
        counts.more[self.characters] = more
        return more


# To texts in these, answers are prose.
_PROSE: Final = frozenset((ASCII, "Symbols", "Symbols, rare", "Emoji", "Other"))


class _Table(msgspec.Struct):
    unstated: TokenLimits
    unknown: TokenizerFamily
    families: list[TokenizerFamily]


def load_table(text: bytes) -> _Table:
    """Returns the table of a file; raises ``msgspec.ValidationError``."""
    table = msgspec.json.decode(text, type=_Table)
    return _Table(table.unstated, _mark(table.unknown), [_mark(each) for each in table.families])


def _mark(family: TokenizerFamily) -> TokenizerFamily:
    weights = msgspec.json.encode((family.features, family.scripts, family.unlisted))
    return replace(family, mark=f"{crc32(weights):08x}")


_TABLE: Final = load_table(files("catalog").joinpath("data", "tokens.json").read_bytes())
UNSTATED_LIMITS: Final = _TABLE.unstated
UNKNOWN_FAMILY: Final = _TABLE.unknown


def correct_family(family: TokenizerFamily, factors: Mapping[Script, float]) -> TokenizerFamily:
    """Returns a family whose estimates of some scripts are multiplied; the bounds stay."""
    return _correct(family.family, tuple(sorted(factors.items()))) if factors else family


@lru_cache(maxsize=1024)
def _correct(name: str, factors: tuple[tuple[str, float], ...]) -> TokenizerFamily:
    family = next((each for each in _TABLE.families if each.family == name), UNKNOWN_FAMILY)
    scripts = dict(family.scripts)
    for script, factor in factors:
        scripts[script] = scripts.get(script, family.unlisted) * factor
    ascii_factor = dict(factors).get(ASCII, 1)
    return _mark(
        replace(
            family,
            features=tuple(weight * ascii_factor for weight in family.features),
            prose=family.prose * ascii_factor,
            scripts=scripts,
        )
    )


def find_family(tokenizer: str | None, slug: str) -> TokenizerFamily:
    """Returns the family of a model: one that names its slug, else that of its tokenizer."""
    named = [each for each in _TABLE.families if each.tokenizer == tokenizer]
    for each in named:
        if slug.startswith(each.models or ("\0",)):
            return each
    return next((each for each in named if not each.models), UNKNOWN_FAMILY)
