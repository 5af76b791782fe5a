"""The records of decisions are numbered without gaps, listed, and have the same three parts."""

from __future__ import annotations

import re

from config.local.bootstrap import PROJECT

FOLDER = PROJECT / "docs" / "decisions"


def test_every_record_is_listed_and_whole() -> None:
    records = sorted(FOLDER.glob("0*.md"))
    assert [record.name[:4] for record in records] == [
        f"{n:04}" for n in range(1, len(records) + 1)
    ]
    listed = re.findall(
        r"^\| \[\d{4}\]\((.+)\) \| (.+) \|$", (FOLDER / "index.md").read_text(), re.M
    )
    titles = [record.read_text().partition("\n")[0] for record in records]
    assert [f"# {name[:4]} {title}" for name, title in listed] == titles
    for record in records:
        assert re.findall(r"^\*\*(\w+)\.\*\*", record.read_text(), re.MULTILINE) == [
            *("Context", "Decision", "Consequence")
        ]
