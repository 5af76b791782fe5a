"""The pages build as a site, strictly, which needs no other server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from config.local.bootstrap import PROJECT

_LOADED = re.compile(r"<(?:script|img|link)[^>]* (?:src|href)=\"?(https?:)?//")


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    result = subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"),
            *("--config-file", PROJECT / ".ci" / "mkdocs.yml", "--site-dir", tmp_path),
        ],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if _LOADED.search(page.read_text())] == []
