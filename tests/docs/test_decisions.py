"""The records of decisions have a number each, are listed, and have the same three parts."""

from __future__ import annotations

import re

from config.local.bootstrap import PROJECT

FOLDER = PROJECT / "docs" / "decisions"


def test_every_record_is_listed_and_whole() -> None:
    records = sorted(FOLDER.glob("0*.md"))
    numbers = [record.name[:4] for record in records]
    assert len(set(numbers)) == len(numbers)
    listed = re.findall(r"^\* \[\d{4}\]\((.+)\) (.+)$", (FOLDER / "index.md").read_text(), re.M)
    titles = [record.read_text().partition("\n")[0] for record in records]
    assert [f"# {name[:4]} {title}" for name, title in listed] == titles
    for record in records:
        assert re.findall(r"^\*\*(\w+)\.\*\*", record.read_text(), re.MULTILINE) == [
            *("Context", "Decision", "Consequence")
        ]
