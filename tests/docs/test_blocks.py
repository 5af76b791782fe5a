"""Which fenced blocks there are, and that each of them is executed or checked."""

from __future__ import annotations

import json

from catalog import imports
from catalog.models import ModelEndpoint
from config.local.bootstrap import PROJECT
from tests.support.markdown import PAGES, PYTHON, SHELL, Reader, name_of, read_blocks

# A page with commands or samples, and the module whose test executes them.
EXECUTED = {
    "CONTRIBUTING.md": "test_blocks",
    "README.md": "test_demo_pages",
    # By python -m tests.drills.restore, which takes minutes.
    "docs/backup.md": "__main__",
    "docs/aliases.md": "test_demo_pages",
    "docs/broadcast.md": "test_demo_pages",
    "docs/clients.md": "test_demo_pages",
    "docs/deploy/index.md": "test_production",
    "docs/events.md": "test_events_page",
    "docs/io-logging.md": "test_demo_pages",
    "docs/moving-in.md": "test_moving_page",
    "docs/rotation.md": "test_rotation",
    "docs/start/connect.md": "test_demo_pages",
    "docs/start/private-endpoints.md": "test_demo_pages",
    "docs/start/team.md": "test_demo_pages",
}
LANGUAGES = {SHELL, PYTHON, "json", "sql", "text"}


def test_every_page_with_commands_is_executed() -> None:
    pages = {name_of(page) for page in PAGES if read_blocks(page, SHELL, PYTHON)}
    assert pages == set(EXECUTED)


def test_every_block_says_what_it_is() -> None:
    blocks = [block for page in PAGES for block in read_blocks(page)]
    assert [str(block) for block in blocks if block.language not in LANGUAGES] == []


def test_the_catalogue_of_the_page_of_commands_can_be_imported(db: None) -> None:
    [block] = read_blocks(PROJECT / "docs" / "commands.md", "json")
    imports.apply(imports.parse(block.text.encode()))
    assert ModelEndpoint.objects.get().model.slug == "acme/falcon-9"


def test_json_blocks_are_json() -> None:
    for page in PAGES:
        for block in read_blocks(page, "json"):
            json.loads(block.text)


def test_the_commands_of_contributors_run() -> None:
    [block] = read_blocks(PROJECT / "CONTRIBUTING.md", SHELL)
    with Reader(changes={}) as reader:
        assert " passed, " in reader.run([block])[block.line]
