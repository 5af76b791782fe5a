"""The README and the pages for users, executed against the demo that they start."""

from __future__ import annotations

import site
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.local.bootstrap import PROJECT
from tests.support.machine.ports import reserved_port
from tests.support.machine.waiting import wait_until
from tests.support.markdown import PYTHON, SHELL, Reader, name_of, read_blocks

pytestmark = pytest.mark.slow

README = PROJECT / "README.md"
PAGES = (
    README,
    *(
        PROJECT / "docs" / name
        for name in ("aliases.md", "broadcast.md", "clients.md", "io-logging.md")
    ),
)
START, SUITE = "python3 manage.py demo\n", "python3 manage.py test\n"


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    """A person who has started the demo as the README says, and opens a second terminal."""
    [start] = [block for block in read_blocks(README, SHELL) if block.text == START]
    # The SDKs are installed here already, so that `pip install` needs no package index.
    with (
        reserved_port() as port,
        Reader(
            changes={"8000": f"{port}", "manage.py demo": f"manage.py demo --port {port}"},
            PYTHONPATH=site.getsitepackages()[0],
        ) as reader,
        reader.shell([start]) as (process, output),
    ):

        def is_serving() -> bool:
            assert process.poll() is None, output.read_text()
            return "Serving until Ctrl-C." in output.read_text()

        wait_until(is_serving, seconds=120)
        yield reader


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_runs(reader: Reader, page: Path) -> None:
    blocks = [
        block for block in read_blocks(page, SHELL, PYTHON) if block.text not in (START, SUITE)
    ]
    outputs = reader.run(blocks)
    for block in blocks:
        output = outputs[block.line]
        assert '"error":{' not in output.replace(" ", ""), f"{block}:\n{output}"
        if "What is a causeway?" in block.text:
            assert "You" in output, f"{block}:\n{output}"
            assert "causeway?" in output, f"{block}:\n{output}"


def test_the_readme_starts_the_suite(reader: Reader) -> None:
    [suite] = [block for block in read_blocks(README, SHELL) if block.text == SUITE]
    # The suite has this test, so its command only collects here, and one file of it.
    reader.environment["PYTEST_ADDOPTS"] = "--collect-only -q tests/docs/test_links.py"
    assert " tests collected in " in reader.run([suite])[suite.line]


def test_the_readme_is_short() -> None:
    assert len(README.read_text().split()) <= 1_200
