"""The pages build as a site, strictly, which needs no other server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from config.local.bootstrap import PROJECT

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
