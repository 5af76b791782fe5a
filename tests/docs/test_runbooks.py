"""Every alert has its section in the runbooks, and every section its four answers."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from config.local.bootstrap import PROJECT

PAGE: Final = PROJECT / "docs" / "runbooks.md"
RULES: Final = PROJECT / "docs" / "deploy" / "observability" / "alerts.yml"
ANSWERS: Final = ["Look:", "Do:", "Do not"]


def read_sections() -> dict[str, str]:
    """Returns the text of each section by its title."""
    parts = re.split(r"^### (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def read_alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_every_alert_has_a_section_and_every_section_of_an_alert_an_alert() -> None:
    alerts = {rule["alert"] for rule in read_alerts()}
    assert {title for title in read_sections() if " " not in title} == alerts


def test_every_alert_names_its_section() -> None:
    for rule in read_alerts():
        link = rule["annotations"]["runbook_url"]
        assert link.endswith(f"runbooks.md#{rule['alert'].lower()}")


def test_every_section_has_its_answers() -> None:
    for title, text in read_sections().items():
        answers = re.findall(r"^\* \*\*(Look:|Do:|Do not)\*\* (.+)$", text, re.MULTILINE)
        assert [name for name, _ in answers] == ANSWERS, title
        said = [text.strip().partition("\n")[0], *(each for _, each in answers)]
        assert all(len(each.split()) > 2 for each in said), title
