"""Authority that is taken away: once the change is acknowledged, neither of two hosts acts on it.

``python -m tests.bench.authority`` takes two hundred rights of each kind away.
"""

from __future__ import annotations

import pytest

from tests.support.bulkheads.authority import Race, make_rights
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.suite.tiers import count_examples

EACH = count_examples(40)


@pytest.mark.parametrize("kind", ["revoke", "disable", "tighten", "spend"])
def test_no_host_serves_what_was_taken_away(site: Site, hosts: tuple[str, str], kind: str) -> None:
    rights = make_rights(site, kind, EACH)

    Race(hosts, rights).run()

    assert [right.unexpected() for right in rights] == [[]] * EACH
    assert sum(right.stale() for right in rights) == 0
    # Each right was served before, and refused by both hosts afterwards.
    assert min(right.served() for right in rights) > 0
    assert min(right.refused_by()[host] for right in rights for host in (0, 1)) >= 2
    if kind == "spend":
        assert {right.served() for right in rights} == {rights[0].answers}
    assert_in_order()
