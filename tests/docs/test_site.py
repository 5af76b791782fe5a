"""The pages build as a site, strictly, which needs no other server, and stay short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from config.local.bootstrap import PROJECT

# What is added pays with what is taken away.
WORDS, WORDS_OF_A_PAGE, RECORDS = 45_000, 2_000, 35
_LOADED = re.compile(r"<(?:script|img|link)[^>]* (?:src|href)=\"?(https?:)?//")


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    # With --quiet nothing is a warning, so --strict would let everything pass.
    result = subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--strict"),
            *("--config-file", PROJECT / ".ci" / "mkdocs.yml", "--site-dir", tmp_path),
        ],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if _LOADED.search(page.read_text())] == []


def test_the_index_has_every_page() -> None:
    """It is where people begin, in a clone too."""
    index = (PROJECT / "docs" / "index.md").read_text()
    pages = {path.name for path in (PROJECT / "docs").glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"]({name})" not in index} == set()


def test_the_pages_are_short() -> None:
    docs = PROJECT / "docs"
    words = {page: len(page.read_text().split()) for page in docs.rglob("*.md")}
    assert {page.name for page, count in words.items() if count > WORDS_OF_A_PAGE} == set()
    beyond = {
        "words": sum(words.values()) - WORDS,
        "records": len([*(docs / "decisions").glob("0*.md")]) - RECORDS,
    }
    assert {name: count for name, count in beyond.items() if count > 0} == {}
