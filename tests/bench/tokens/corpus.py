"""A corpus from packages: translations in about 100 languages, code, and data of several kinds.

The languages come from Django's translations, and from babel's names of CLDR where there are none.
"""

from __future__ import annotations

import base64
import json
import random
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from catalog.tokens import find_script

_CHARACTERS = 3_000
_SAMPLES = 6
_CLDR = (
    "nqo", "ti", "am", "dv", "syr", "chr", "vai", "zgh", "bo", "dz", "lo", "si", "or", "as", "sat",
    "ii", "my", "km", "lrc", "yi", "mn", "gu", "pa", "ka", "hy", "te", "kn", "ml", "th", "he",
    "ff_Adlm", "ccp",
)  # fmt: skip

_BETWEEN = ("", " ", "  ", ". ", "x", " x", "(", "-", "7", "\n", "\t")
# What people send most.
_EMOJI = "😀😂🥳🚀🔥👍🎉📈🙏😢🤔💡🌍🍕🏆📅🔒💯👀🎁"


class Sample(NamedTuple):
    """A text, and the script or the kind of data that it stands for."""

    group: str
    text: str


def iter_samples(seed: int = 1) -> Iterator[Sample]:
    chance = random.Random(seed)
    yield from _iter_languages(chance)
    yield from _iter_names()
    yield from _iter_code(chance)
    yield from _iter_data(chance)


def iter_characters() -> Iterator[str]:
    """Yields every assigned character beyond ASCII."""
    for code in range(0x80, 0x323B0):
        if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs"):
            yield chr(code)


def iter_blocks(seed: int = 1) -> Iterator[Sample]:
    """Yields texts of characters of one script in no sensible order, as bounds must hold them.

    Some repeat one to three characters, with something in ASCII between them.
    """
    chance = random.Random(seed)
    scripts: dict[str, list[str]] = {}
    for char in iter_characters():
        if unicodedata.category(char)[0] in "LMNPS":
            scripts.setdefault(find_script(char), []).append(char)
    for script, chars in scripts.items():
        for _ in range(40):
            yield Sample(script, "".join(chance.choices(chars, k=60)))
        for start in chance.sample(
            range(max(len(chars) - 24, 1)), min(60, max(len(chars) - 24, 1))
        ):
            yield Sample(script, "".join(chars[start : start + 24]))
        for _ in range(40):
            few = "".join(chance.choices(chars, k=chance.choice((1, 2, 3)))) * 12
            yield Sample(script, chance.choice(_BETWEEN).join(few))


def _iter_languages(chance: random.Random) -> Iterator[Sample]:
    import django

    root = Path(django.__file__).parent
    found: dict[str, list[str]] = {}
    for path in sorted(root.glob("**/locale/*/LC_MESSAGES/django.po")):
        found.setdefault(path.parent.parent.name, []).extend(_read_po(path))
    for texts in found.values():
        chance.shuffle(texts)
        whole = "\n".join(texts)
        size = min(_CHARACTERS, len(whole) // _SAMPLES or len(whole))
        for start in range(0, max(len(whole) - size, 1), max(size, 1)):
            piece = whole[start : start + size]
            if len(piece) > 200:
                yield Sample(find_main_script(piece), piece)
            if start > size * _SAMPLES:
                break


def _read_po(path: Path) -> list[str]:
    texts, current = [], None
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("msgstr"):
            current = line.partition('"')[2][:-1]
        elif current is not None and line.startswith('"'):
            current += line[1:-1]
        elif current is not None:
            texts.append(current.replace("\\n", "\n").replace('\\"', '"'))
            current = None
    return [text for text in texts if text and "Content-Type" not in text]


def _iter_names() -> Iterator[Sample]:
    try:
        from babel import Locale, UnknownLocaleError
    except ImportError:
        return
    for code in _CLDR:
        try:
            locale = Locale.parse(code)
        except UnknownLocaleError:
            continue
        names = [*locale.languages.values(), *locale.territories.values()]
        text = ", ".join(name for name in names if not name.isascii())
        if len(text) > 300:
            yield Sample(find_main_script(text), text[:_CHARACTERS])


def find_main_script(text: str) -> str:
    """Returns the script of most letters; Latin if most are ASCII."""
    counts = Counter(find_script(each) for each in text if each > "\x7f" and each.isalpha())
    letters = sum(each.isalpha() and each < "\x80" for each in text)
    if (
        not counts
        or (top := counts.most_common(1)[0])[1] < letters
        or top[0].startswith(("Symbols", "Latin"))
    ):
        return "Latin"
    if counts.get("Kana"):
        return "Kana"
    return top[0]


def _iter_code(chance: random.Random) -> Iterator[Sample]:
    library = Path(json.__file__).parents[1]
    paths = sorted(library.glob("*.py"))
    for path in chance.sample(paths, 24):
        text = path.read_text(encoding="utf-8", errors="replace")[2_000 : 2_000 + _CHARACTERS]
        if len(text) > 1_000:
            yield Sample("code", text)
            yield Sample("code with tabs", text.replace("    ", "\t"))
    headers = Path(sys.base_prefix, "include", f"python3.{sys.version_info[1]}")
    for path in sorted(headers.glob("*.h"))[:12]:
        yield Sample("code", path.read_text(encoding="utf-8")[:_CHARACTERS])


def _iter_data(chance: random.Random) -> Iterator[Sample]:
    schema = json.loads(Path("tests/contract/openapi.json").read_text())
    pieces = chance.sample(list(schema["components"]["schemas"].values()), 40)
    for start in range(0, 40, 8):
        few = pieces[start : start + 8]
        yield Sample("JSON", json.dumps(few)[:_CHARACTERS])
        yield Sample("JSON", json.dumps(few, indent=2)[:_CHARACTERS])
    for _ in range(6):
        yield Sample("Emoji", "".join(chance.choices(_EMOJI, k=200)))
        rows = [
            {"id": chance.randrange(10**6), "ok": True, "score": round(chance.random(), 3)}
            for _ in range(60)
        ]
        yield Sample("JSON", json.dumps(rows))
        data = chance.randbytes(2_000)
        yield Sample("base64", base64.b64encode(data).decode())
        yield Sample("hex", data[:1_500].hex())
        yield Sample("digits", "".join(chance.choices("0123456789", k=2_000)))
        for mark, group in ((" ", "grid"), (",", "list"), (", ", "list of JSON")):
            numbers = chance.choices("0123456789", k=1_000)
            yield Sample(group, f"[{mark.join(numbers)}]" if mark != " " else mark.join(numbers))
        values = [f"{chance.random() * 1000:.2f}" for _ in range(300)]
        yield Sample("CSV", "\n".join(",".join(values[at : at + 6]) for at in range(0, 300, 6)))
        log = (
            f"2026-11-{chance.randrange(1, 30):02} 12:{chance.randrange(60):02}:07,"
            f"{chance.randrange(1000):03} INFO worker-{chance.randrange(99)} took "
            f"{chance.randrange(5000)} ms\n"
            for _ in range(50)
        )
        yield Sample("log", "".join(log))
