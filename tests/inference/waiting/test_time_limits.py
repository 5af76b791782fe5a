"""The limits of time of a call, by their names, of the operator and of one endpoint."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import LazySettings

from catalog import imports
from catalog.models import ModelEndpoint
from config.bulk.problems import ImportRefused
from config.egress.rules import TimeLimits
from tests.support import factories
from tests.support.inference.site import Site, content_of, events_of

NO_ANSWER = "The upstream provider did not answer in time."
# Each stands for a pause of the upstream that is longer than a limit of one second.
SLOW_FIRST = "sim-slow:2,0"
SLOW_LATER = "sim-slow:0,2"


def publish(site: Site, behaviour: str, **limits: int) -> ModelEndpoint:
    return site.publish(behaviour, **{f"{name}_timeout": value for name, value in limits.items()})


def outcome(site: Site, **fields: Any) -> tuple[int, str | None]:
    """Returns the status of an answer, and its error, which a stream may tell later."""
    answer = site.chat("one", **fields)
    if answer.status_code != 200:
        return answer.status_code, answer.json()["error"]["message"]
    if not fields.get("stream"):
        return 200, None
    last = events_of(answer.text)[-1]
    return 200, None if last == "[DONE]" else last["error"]["message"]


@pytest.mark.parametrize(
    ("behaviour", "limits", "stream", "expected"),
    [
        (SLOW_FIRST, {"headers": 1}, True, (504, NO_ANSWER)),
        (SLOW_FIRST, {"first_event": 1}, True, (504, NO_ANSWER)),
        (SLOW_FIRST, {"total": 1}, True, (504, NO_ANSWER)),
        (SLOW_FIRST, {"idle": 1}, True, (200, None)),
        (SLOW_LATER, {"idle": 1}, True, (200, NO_ANSWER)),
        (SLOW_LATER, {"total": 2}, True, (200, NO_ANSWER)),
        (SLOW_FIRST, {"headers": 1, "first_event": 1, "idle": 1}, False, (200, None)),
        (SLOW_FIRST, {"total": 1}, False, (504, NO_ANSWER)),
    ],
)
def test_each_limit_of_an_endpoint_ends_what_its_name_says(
    site: Site,
    behaviour: str,
    limits: dict[str, int],
    stream: bool,
    expected: tuple[int, str | None],
) -> None:
    publish(site, behaviour, **limits)
    assert outcome(site, stream=stream) == expected
    site.settled()


@pytest.mark.parametrize(
    ("setting", "stream", "expected"),
    [
        ("UPSTREAM_HEADERS_TIMEOUT", True, (504, NO_ANSWER)),
        ("UPSTREAM_FIRST_EVENT_TIMEOUT", True, (504, NO_ANSWER)),
        ("UPSTREAM_IDLE_TIMEOUT", True, (200, None)),
        ("HOLD_TIMEOUT", False, (504, NO_ANSWER)),
        ("UPSTREAM_FIRST_EVENT_TIMEOUT", False, (200, None)),
    ],
)
def test_no_endpoint_waits_longer_than_the_operator_allows(
    site: Site, settings: LazySettings, setting: str, stream: bool, expected: Any
) -> None:
    setattr(settings, setting, 1)
    publish(site, SLOW_FIRST, headers=500, first_event=500, idle=500, total=500)
    assert outcome(site, stream=stream) == expected


def test_a_limit_before_the_first_event_moves_on_to_the_next_candidate(site: Site) -> None:
    publish(site, "sim-stall", total=1)
    price = factories.make_price("0.1", "0.1")
    site.publish(provider=site.another_provider("second"), price=price)
    assert outcome(site) == (200, None)
    assert [attempt.get("error_type") for attempt in site.settled().attempts] == ["timeout", None]


def test_no_candidate_is_tried_after_the_time_in_all(site: Site, settings: LazySettings) -> None:
    settings.HOLD_TIMEOUT = 1
    first = publish(site, "sim-stall")
    dear = factories.make_price("0.1", "0.1")
    site.publish(provider=site.another_provider("second"), price=dear)
    assert outcome(site) == (504, NO_ANSWER)
    generation = site.settled()
    assert [attempt["endpoint_id"] for attempt in generation.attempts] == [str(first.pk)]
    assert (generation.model_endpoint, generation.price) == (first, first.price)
    assert (generation.status, generation.cost_nano) == ("failed", 0)
    assert [request.body["model"] for request in site.dialled()] == ["sim-stall"]


def test_a_changed_limit_holds_on_the_next_request(site: Site) -> None:
    site.allow_fallback()
    public = publish(site, SLOW_FIRST, total=1)
    assert outcome(site) == (504, NO_ANSWER)
    public.total_timeout = None
    public.save_fields("total_timeout")
    assert outcome(site) == (200, None)
    own = site.own(SLOW_FIRST)
    assert outcome(site) == (200, None)
    own.limit_time(TimeLimits(first_event=1))
    public.is_listed = False
    public.save_fields("is_listed")
    assert outcome(site, stream=True) == (504, NO_ANSWER)
    own.limit_time(TimeLimits())
    assert content_of(events_of(site.chat("one", stream=True).text)) == "You said: one"


def test_the_catalogue_file_carries_the_limits(site: Site) -> None:
    publish(site, "sim-echo", connect=2, idle=30)
    data, _ = imports.export()
    assert b'"timeouts": {' in data
    assert imports.apply(imports.parse(data)).unchanged["endpoints"] == 1
    without = data.replace(b'"timeouts"', b'"unknown"')
    with pytest.raises(ImportRefused):
        imports.parse(without)
    changed = data.replace(b'"idle": 30', b'"total": 60')
    assert imports.apply(imports.parse(changed)).updated["endpoints"] == 1
    assert ModelEndpoint.objects.get().time_limits == TimeLimits(connect=2, total=60)
    for value, count in (("0", 0), ("86401", 0), ("86400", 1), ("1", 1)):
        text = data.replace(b'"idle": 30', b'"idle": ' + value.encode())
        if count:
            assert imports.apply(imports.parse(text)).updated["endpoints"] == 1
        else:
            with pytest.raises(ImportRefused):
                imports.parse(text)
