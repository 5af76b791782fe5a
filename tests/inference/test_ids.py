"""Ids of generations are in the order of time, and so are the bounds of any moments."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from billing.models.ledger import read_reference_bound, reference_bound
from config.clocks.clock import clock
from inference.ids import (
    SLACK,
    first_id,
    id_bound,
    last_id,
    new_generation_id,
    read_id_bound,
    second_bound,
)
from inference.models import Generation
from tests.support import factories
from tests.support.factories import Tenant

ROOT: Final = Path(__file__).resolve().parents[2]
APPS: Final = ("accounts", "billing", "catalog", "config", "endpoints", "endusers", "inference")
# The places that write the beginning of an id. A bound in any other one would be right for the
# moments of today alone.
WRITERS: Final = {"billing/models/ledger.py": 1, "inference/ids.py": 2}
WRITTEN: Final = re.compile(r"""["']gen-(?:[{%0-9]|["'] *[+%])""")

BEGIN: Final = datetime.min.replace(tzinfo=UTC)
END: Final = datetime.max.replace(tzinfo=UTC)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EAST: Final = timezone(timedelta(hours=14))
WEST: Final = timezone(timedelta(hours=-14))
ZONES: Final = st.sampled_from([UTC, EAST, WEST])
MOMENTS: Final = st.datetimes(timezones=ZONES)
# Those whose seconds have ten digits, with the margin before and after.
USUAL: Final = st.integers(1_000_003_600 * 10**6, 9_999_996_399 * 10**6).map(
    lambda microseconds: EPOCH + timedelta(microseconds=microseconds)
)


@pytest.mark.parametrize(
    ("moment", "bound", "first", "last"),
    [
        (BEGIN, "gen-0000000000", "gen-0000000000", "gen-0000000000"),
        (BEGIN.replace(tzinfo=EAST), "gen-0000000000", "gen-0000000000", "gen-0000000000"),
        (EPOCH, "gen-0000000000", "gen-0000000000", "gen-0000003600"),
        (datetime(2000, 1, 1, tzinfo=UTC), "gen-0946684800", "gen-0946681200", "gen-0946688400"),
        (
            datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC),
            "gen-1000000000", "gen-0999996400", "gen-1000003600",
        ),
        (
            datetime(2026, 11, 28, 23, 59, 59, 999_999, tzinfo=UTC),
            "gen-1795910399", "gen-1795906799", "gen-1795913999",
        ),
        (
            datetime(2286, 11, 20, 17, 46, 40, tzinfo=UTC),
            "gen-9999999999", "gen-9999996400", "gen-9999999999",
        ),
        (END, "gen-9999999999", "gen-9999999999", "gen-9999999999"),
        (END.replace(tzinfo=WEST), "gen-9999999999", "gen-9999999999", "gen-9999999999"),
    ],
)  # fmt: skip
def test_every_moment_has_bounds_of_ten_digits(
    moment: datetime, bound: str, first: str, last: str
) -> None:
    assert (id_bound(moment), first_id(moment), last_id(moment)) == (bound, first, last)


@given(MOMENTS, MOMENTS)
@example(datetime(2000, 1, 1, tzinfo=UTC), datetime(2026, 11, 28, tzinfo=UTC))
@example(datetime(2026, 11, 28, tzinfo=UTC), datetime(2300, 1, 1, tzinfo=UTC))
@example(BEGIN, END)
def test_bounds_are_in_the_order_of_time(one: datetime, other: datetime) -> None:
    earlier, later = sorted((one, other))
    for bound in (id_bound, first_id, last_id, reference_bound):
        assert bound(earlier) <= bound(later)
    assert first_id(earlier) <= id_bound(earlier) <= last_id(earlier)


@given(MOMENTS)
@example(BEGIN)
@example(END)
def test_transfers_have_the_bounds_of_their_generations(moment: datetime) -> None:
    """The partitions of both end together."""
    bound = id_bound(moment)
    assert reference_bound(moment) == bound
    assert read_reference_bound(bound) == read_id_bound(bound)


@given(USUAL)
def test_a_bound_is_read_as_its_second(moment: datetime) -> None:
    assert read_id_bound(id_bound(moment)) == moment.replace(microsecond=0)
    assert first_id(moment) == id_bound(moment - SLACK)
    assert last_id(moment) == id_bound(moment + SLACK)


@pytest.mark.parametrize("second", [0, 86_400, 999_999_999, 1_000_000_000, 1_795_910_399])
def test_an_id_lies_within_the_bounds_of_its_second(
    monkeypatch: pytest.MonkeyPatch, second: int
) -> None:
    """A host whose clock is wrong makes its ids in the order of that clock."""
    monkeypatch.setattr(clock, "_ahead", second + 0.5 - clock.time() + clock._ahead)
    made = new_generation_id()
    assert re.fullmatch(r"gen-[0-9]{10}-[0-9a-f]{20}", made)
    assert second_bound(second) < made < second_bound(second + 60)


@pytest.mark.parametrize(
    ("since", "until", "is_found"),
    [
        (BEGIN, END, True),
        (datetime(2000, 1, 1, tzinfo=UTC), datetime(2300, 1, 1, tzinfo=UTC), True),
        (BEGIN, datetime(2000, 1, 1, tzinfo=UTC), False),
        (datetime(2300, 1, 1, tzinfo=UTC), END, False),
        (datetime(2300, 1, 1, tzinfo=UTC), None, False),
        (BEGIN, None, True),
    ],
)
def test_generations_are_found_by_any_times(
    tenant: Tenant, since: datetime, until: datetime | None, is_found: bool
) -> None:
    row = factories.make_generation(tenant)
    found = Generation.objects.created(since, until).values_list("pk", flat=True)
    assert list(found) == [row.pk] * is_found


def test_no_other_module_writes_the_beginning_of_an_id() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): len(WRITTEN.findall(path.read_text()))
        for app in APPS
        for path in (ROOT / app).rglob("*.py")
    }
    assert {name: count for name, count in found.items() if count} == WRITERS
