"""The sweeper ends what it can, and leaves what is locked to its next run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db.models import QuerySet
from django.utils import timezone

from billing.models import Account, Excess, Meter, Transfer
from catalog.models import PriceVersion
from catalog.pricing import Billable, Price, Rule
from config.server.batching import waits as waits_module
from inference.models import Generation, Journal
from inference.settlement import sweeper
from inference.settlement.sweeper import sweep
from tests.support import factories
from tests.support.bulkheads.counters import sample
from tests.support.database.locks import locked
from tests.support.factories import Tenant
from tests.support.ledger import assert_in_order
from tests.support.machine.logs import own_lines

HOLD = 1_000_000
Find = Callable[[Any], QuerySet[Any]]


@pytest.fixture
def tenants(transactional_db: None) -> list[Tenant]:
    return [factories.make_tenant(name) for name in ("Acme", "Other", "Third")]


def abandon(tenant: Tenant, number: int) -> Generation:
    """Stores a generation with output, whose worker has been silent for longer than the lease."""
    row = factories.make_generation(tenant, id=f"gen-{number}", status="pending")
    Journal.objects.filter(generation=row).update(
        prompt_tokens=5, completion_tokens=7, beat_at=timezone.now() - timedelta(seconds=90)
    )
    factories.place_hold(row, HOLD)
    return row


def ended() -> list[str]:
    """Returns the ids of the generations that have ended, and were charged for their output."""
    found = Generation.objects.filter(status="failed", cost_nano=19_000, error_type="abandoned")
    return sorted(found.values_list("pk", flat=True))


@pytest.mark.parametrize(
    "find",
    [
        lambda owner: Account.objects.filter(organization=owner, kind="credits"),
        lambda owner: Account.objects.filter(organization=owner, kind="usage"),
        lambda owner: Meter.objects.filter(subject_id__in=owner.api_keys.values("pk")),
    ],
)
def test_a_locked_organization_does_not_keep_others_from_ending(
    tenants: list[Tenant], find: Find, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(6):
        abandon(tenants[number % 3], number)
    with locked(find(tenants[1].organization)):
        assert sweep() == 4
        assert ended() == ["gen-0", "gen-2", "gen-3", "gen-5"]
        assert sweep() == 0
        assert_in_order()
    told = f"for organization {tenants[1].organization.pk}", "for 3 organizations"
    assert any(text in line for text in told for line in own_lines(caplog))
    assert sweep() == 2
    assert ended() == [f"gen-{number}" for number in range(6)]
    assert_in_order()


@pytest.mark.parametrize(
    "find",
    [
        lambda pk: Generation.objects.filter(pk=pk),
        lambda pk: Journal.objects.filter(pk=pk),
        lambda pk: Transfer.objects.filter(reference=pk),
    ],
)
def test_a_locked_generation_does_not_keep_its_organization_s_others_from_ending(
    tenants: list[Tenant], find: Find
) -> None:
    for number in range(4):
        abandon(tenants[0], number)
    with locked(find("gen-1")):
        assert sweep() == 3
        assert ended() == ["gen-0", "gen-2", "gen-3"]
        assert_in_order()
    assert sweep() == 1
    assert_in_order()


def test_locked_generations_at_the_head_do_not_keep_the_rest_from_ending(
    tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "_BATCH", 2)
    for number in range(6):
        abandon(tenants[0 if number < 4 else 1], number)
    with locked(Account.objects.filter(organization=tenants[0].organization)):
        assert sweep() == 2
    assert ended() == ["gen-4", "gen-5"]


def test_what_is_behind_a_lock_is_tried_alone_after_all_others(
    tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[list[str]] = []
    end_alone = sweeper._end_alone

    def end_alone_and_note(abandoned: Any) -> int:
        tried.append(ended())
        return end_alone(abandoned)

    monkeypatch.setattr(sweeper, "_end_alone", end_alone_and_note)
    for number in range(6):
        abandon(tenants[number % 2], number)
    with locked(Account.objects.filter(organization=tenants[0].organization)):
        assert sweep() == 3
        assert tried == [["gen-1", "gen-3", "gen-5"]] * 3
        # The time for them is over before the first one.
        monkeypatch.setattr(sweeper, "_ALONE_SECONDS", -1.0)
        assert sweep() == 0
        assert len(tried) == 3
    assert sweep() == 3
    assert_in_order()


def test_a_slow_sweep_is_logged_and_counted(
    tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waits_module.waits, "slow_seconds", 0.0)
    monkeypatch.setattr(waits_module, "_LOG_SECONDS", 0.0)
    abandon(tenants[0], 0)
    names = "causeway_slow_statements_total", "causeway_statement_seconds_count"
    before = [sample(name, statement="sweep") for name in names]
    assert sweep() == 1
    assert [sample(name, statement="sweep") for name in names] == [each + 1 for each in before]
    [line] = [each.getMessage() for each in caplog.records if "sweep" in each.getMessage()]
    assert line.endswith(f" ms for organization {tenants[0].organization.pk}")


def test_a_worker_that_writes_to_its_journal_during_the_sweep_keeps_its_generation(
    tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    abandon(tenants[0], 0)
    find = sweeper._find_abandoned

    def find_then_beat(after: str) -> Any:
        found = find(after)
        Journal.objects.update(beat_at=timezone.now())
        return found

    monkeypatch.setattr(sweeper, "_find_abandoned", find_then_beat)
    assert sweep() == 0
    assert Generation.objects.get().status == "pending"


def abandon_with(owner: Tenant, operation: str, one: Rule, **journal: Any) -> Generation:
    """Ends an abandoned generation that is priced by one rule; returns it with its charge."""
    price = Price(Decimal(0), Decimal(0), rules=(one,))
    endpoint = factories.make_endpoint(
        factories.make_model(), factories.make_provider(), price=price
    )
    row = factories.make_generation(
        owner, status="pending", operation=operation, model_endpoint=endpoint
    )
    silent_since = timezone.now() - timedelta(seconds=90)
    Journal.objects.filter(generation=row).update(beat_at=silent_since, **journal)
    factories.place_hold(row, HOLD)
    assert sweep() == 1
    row.refresh_from_db()
    return row


def rule(billable: str, price: str, unit: str = "", variant: str = "") -> Rule:
    return Rule(Billable(billable), unit or billable, Decimal(price), variant)


@pytest.mark.parametrize(
    ("operation", "one", "tokens", "cost"),
    [
        # A second of speech has 20 tokens.
        ("audio/speech", rule("second", "0.0001"), 40, 200_000),
        ("audio/speech", rule("completion", "0.000012", "token", "audio"), 40, 40 * 12_000),
        ("images/generations", rule("image", "0.00004"), 2 * 1_290 + 100, 80_000),
        ("images/generations", rule("completion", "0.0000001", "token", "image"), 100, 10_000),
        # Nothing beyond the hold is claimed by an estimate.
        ("audio/speech", rule("second", "1"), 40, HOLD),
    ],
)
def test_delivered_units_are_charged(
    tenants: list[Tenant], operation: str, one: Rule, tokens: int, cost: int
) -> None:
    row = abandon_with(tenants[0], operation, one, completion_tokens=tokens)
    assert (row.cost_nano, row.is_estimated) == (cost, True)
    assert not Excess.objects.exists()
    assert_in_order()


@pytest.mark.parametrize(
    ("operation", "one", "units", "cost"),
    [
        ("audio/speech", rule("character", "0.000015"), {"characters": 7}, 7 * 15_000),
        # No more seconds than the text can take.
        ("audio/speech", rule("second", "0.0001"), {"milliseconds": 1_500}, 150_000),
        ("images/generations", rule("image", "0.00004"), {"output_images": 1}, 40_000),
        (
            "images/generations",
            rule("image", "0.00004", variant="1024x1024/high"),
            {"output_images": 2, "image_variant": "1024x1024/high"},
            80_000,
        ),
        ("audio/transcriptions", rule("second", "0.0001"), {"milliseconds": 3_000}, 300_000),
        ("rerank", rule("search", "0.0002"), {"searches": 3}, 600_000),
        ("chat/completions", rule("completion", "0.0000001", "token"), None, 2_680 * 100),
    ],
)
def test_what_the_request_says_of_its_usage_is_charged(
    tenants: list[Tenant], operation: str, one: Rule, units: dict[str, Any] | None, cost: int
) -> None:
    tokens = 2 * 1_290 + 100
    row = abandon_with(tenants[0], operation, one, completion_tokens=tokens, units=units)
    assert (row.cost_nano, row.is_estimated) == (cost, True)
    assert_in_order()


@pytest.mark.parametrize(
    ("one", "tokens", "units", "cost"),
    [
        (rule("completion", "0.0000001", "token", "audio"), 100, {"audio_output": 40}, 4_000),
        # Sound is a part of the output.
        (rule("completion", "0.0000001", "token", "audio"), 30, {"audio_output": 40}, 3_000),
        (rule("image", "0.00004"), 100, {"output_images": 2}, 80_000),
        # A picture needs no words beside it.
        (rule("image", "0.00004"), 0, {"output_images": 2}, 80_000),
    ],
)
def test_what_a_chat_has_spoken_and_drawn_is_charged(
    tenants: list[Tenant], one: Rule, tokens: int, units: dict[str, Any], cost: int
) -> None:
    row = abandon_with(tenants[0], "chat/completions", one, completion_tokens=tokens, units=units)
    assert (row.cost_nano, row.is_estimated) == (cost, True)
    assert_in_order()


def test_pictures_that_were_asked_for_and_not_drawn_are_free(tenants: list[Tenant]) -> None:
    units = {"output_images": 2}
    row = abandon_with(tenants[0], "images/generations", rule("image", "0.00004"), units=units)
    assert (row.cost_nano, row.units, row.is_estimated) == (0, None, False)
    assert_in_order()


def test_a_price_of_a_later_release_keeps_no_other_generation_from_ending(
    tenants: list[Tenant],
) -> None:
    later = abandon(tenants[0], 0)
    lines = [{"billable": "page", "unit": "page", "price": "1"}]
    price = PriceVersion.objects.create(
        subject_id=later.model_endpoint_id, prompt=0, completion=0, lines=lines
    )
    abandon(tenants[1], 1)
    Generation.objects.filter(pk=later.pk).update(price=price)
    assert sweep() == 1
    assert ended() == ["gen-1"]
    later.refresh_from_db()
    assert later.status == "pending"


def test_units_of_a_later_release_keep_no_other_generation_from_ending(
    tenants: list[Tenant],
) -> None:
    later = abandon(tenants[0], 0)
    Journal.objects.filter(pk=later.pk).update(units={"pages": 3}, completion_tokens=1)
    abandon(tenants[1], 1)
    assert sweep() == 1
    assert ended() == ["gen-1"]
    later.refresh_from_db()
    assert later.status == "pending"
