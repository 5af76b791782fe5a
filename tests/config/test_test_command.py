"""``manage.py test`` passes its arguments to pytest and adds the number of workers.

The tests write bytecode, whatever the environment says, so that their processes start quickly.
"""

from __future__ import annotations

import os
import sys

import pytest

from config.management.commands.test import PARALLEL, add_workers


@pytest.mark.parametrize(
    "arguments", [[], ["tests/billing"], ["-x", "-k", "no:xdist"], ["--collect-only"], ["-p", "x"]]
)
def test_add_workers_adds_the_default_number(arguments: list[str]) -> None:
    assert add_workers(arguments) == [*PARALLEL, *arguments]


@pytest.mark.parametrize(
    "arguments",
    [
        ["-n", "0"],
        ["-n4", "tests/billing"],
        ["--numprocesses=3"],
        ["-p", "no:xdist"],
        ["-x", "-pno:xdist"],
        ["--pdb"],
        ["--trace", "tests/billing"],
    ],
)
def test_add_workers_keeps_arguments_that_exclude_the_default(arguments: list[str]) -> None:
    assert add_workers(arguments) == arguments


def test_tests_and_their_processes_write_bytecode() -> None:
    assert sys.dont_write_bytecode is False
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
