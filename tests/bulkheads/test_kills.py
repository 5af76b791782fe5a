"""A loaded worker is killed again and again, while another one goes on and a third takes its place.

``python -m tests.bench.kills --times 200`` is the long version.
"""

from __future__ import annotations

from tests.support import factories
from tests.support.bulkheads.kills import BEHAVIOUR, LEASE, LOADED, PRICES, StreamsUnderFire
from tests.support.bulkheads.leases import end_leases, sweep
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.processes import serve
from tests.support.suite.tiers import count_examples

KILLS = count_examples(8)
# The journal lags by one interval and the time of its statement on a busy machine.
UNBILLED_SECONDS = 1.0 + 1.5


def test_killed_workers_leave_no_hold_and_no_stream_unbilled(site: Site) -> None:
    site.publish(BEHAVIOUR, price=factories.make_price(*PRICES))
    with (
        serve("--workers", "2", HOLD_TIMEOUT=LEASE) as served,
        StreamsUnderFire(site, served) as fire,
    ):
        for _ in range(KILLS):
            fire.kill()
            assert_in_order()
        site.eventually(lambda: any(stream.is_whole for stream in fire.streams))
    end_leases(LEASE, site.eventually)
    sweep(LEASE)

    assert min(fire.hits) >= LOADED
    found = fire.examine()
    assert (found.open_holds, found.open_journals, found.charged_twice) == (0, 0, 0)
    assert found.wrong == []
    assert len(found.unbilled) >= sum(fire.hits)
    assert max(found.unbilled) <= UNBILLED_SECONDS
    assert_in_order()
