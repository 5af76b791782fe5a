"""The page of clients has the table that the tests run, with the versions of the lock files."""

from __future__ import annotations

from tests.contract.clients.table import ROWS, read_page, render


def test_the_page_has_the_table() -> None:
    assert read_page()[1] == render(), "run `python -m tests.contract.clients`"


def test_every_row_has_its_own_name() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)
