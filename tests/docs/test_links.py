"""What the documentation names exists: files, folders, pages and sections of pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from config.local.bootstrap import PROJECT
from tests.support.markdown import PAGES, name_of

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
# A name is a path when it begins with a folder of the project, or is a file with such an ending.
_FOLDERS = "accounts|billing|catalog|config|docs|endpoints|endusers|inference|tests|\\.ci"
_PATH = re.compile(rf"(?:{_FOLDERS})/[\w./*-]*|[\w.-]+\.(?:py|md|toml|lock|yml)|Containerfile")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_path_exists(page: Path) -> None:
    named = [name for name in _CODE.findall(page.read_text()) if _PATH.fullmatch(name)]
    missing = [
        name
        for name in named
        if not any(PROJECT.glob(name.rstrip("/"))) and not (page.parent / name).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in _LINK.findall(page.read_text()):
        path, _, section = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (section and section not in _sections(found)):
            broken.append(target)
    assert broken == []


def _sections(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads}
