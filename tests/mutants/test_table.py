"""The table of faults fits the tree: each fault has its line, and tests that exist."""

from __future__ import annotations

from collections import Counter

from tests.mutants import ROOT, read_mutants


def test_the_text_of_each_fault_stands_once_in_its_file() -> None:
    """Whoever moves or rewords a guarded line moves its fault with it."""
    wrong = []
    for each in read_mutants():
        text = (ROOT / each.file).read_text("utf-8")
        if text.count(each.old) != 1 or "\n" in each.old or each.new == each.old:
            wrong.append(each.name)
    assert wrong == []


def test_the_tests_of_each_fault_exist() -> None:
    named = {path.partition("::")[0] for each in read_mutants() for path in each.tests}
    assert {path for path in named if not (ROOT / path).exists()} == set()
    assert all(each.tests for each in read_mutants())


def test_each_fault_has_its_own_name() -> None:
    counts = Counter(each.name for each in read_mutants())
    assert [name for name, count in counts.items() if count > 1] == []
