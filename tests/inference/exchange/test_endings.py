"""Each ending of an answer is settled once, with its status and exact charge."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pytest
import requests

from billing import ledger
from billing.models import Account, Transfer
from catalog.dialects.base import Operation
from config.credentials import Secret
from inference.models import Generation
from inference.requests import parsing
from tests.support import factories
from tests.support.inference.endings import (
    CREDITS,
    Ending,
    assert_ended,
    connected,
    hang_up,
    read_until,
    wanted,
)
from tests.support.inference.site import CHAT, Site, content_of, events_of
from tests.support.ledger import assert_in_order
from tests.support.processes import serve


def notice(site: Site) -> None:
    """Waits for a turn of the service's event loop, which sees every connection that was closed."""
    assert requests.get(f"{site.server}/healthz", timeout=20).status_code == 200


def publish(site: Site, behaviour: str) -> None:
    site.publish(behaviour, price=factories.make_price("0.000001", "0.000002"))


def test_a_complete_answer_is_completed(site: Site) -> None:
    publish(site, "sim-echo")
    answer = site.post(wanted(site))
    *_, usage, done = events_of(answer.text)
    assert (usage["usage"]["cost"], done) == (0.00001, "[DONE]")
    assert_ended(site, Ending("completed", (2, 4), False))


@pytest.mark.parametrize(
    ("behaviour", "ending"),
    [
        # Estimated at 4 bytes per token: "one two" with its role, and the delivered text.
        ("sim-error-stream", Ending("failed", None, False, "provider_unavailable")),
        ("sim-reset-stream", Ending("failed", (6, 1), True, "provider_unavailable")),
        ("sim-cut-event", Ending("failed", (6, 1), True, "provider_unavailable")),
        ("sim-bad-json", Ending("failed", None, False, "provider_unavailable")),
        ("sim-no-done", Ending("failed", (2, 4), False, "provider_unavailable")),
        ("sim-close-stream", Ending("failed", (6, 1), True, "provider_unavailable")),
        ("sim-connect-reset", Ending("failed", None, False, "provider_unavailable")),
        ("sim-error-first", Ending("failed", None, False, "provider_unavailable")),
        ("sim-status:500", Ending("failed", None, False, "provider_unavailable")),
    ],
)
def test_an_upstream_that_breaks_off_fails_the_generation(
    site: Site, behaviour: str, ending: Ending
) -> None:
    publish(site, behaviour)
    answer = site.post(wanted(site))
    if ending.usage is None:
        assert answer.status_code == 502
    else:
        last = events_of(answer.text)[-1]
        assert last["choices"][0]["finish_reason"] == "error"
        assert last["error"]["code"] == 502
    assert_ended(site, ending)


def test_a_caller_that_leaves_before_the_first_byte_pays_for_the_prompt(site: Site) -> None:
    publish(site, "sim-stall")
    with connected(site) as line:
        site.eventually(lambda: len(site.dialled()) == 1)
        hang_up(line)
    assert_ended(site, Ending("cancelled", (6, 0), True))


@pytest.mark.parametrize("behaviour", ["sim-held", "sim-gated"])
def test_a_caller_that_leaves_pays_what_the_upstream_reports_soon(
    site: Site, behaviour: str
) -> None:
    publish(site, behaviour)
    with connected(site) as line:
        site.eventually(lambda: len(site.dialled()) == 1)
        if behaviour == "sim-gated":
            read_until(line, b'"role"')
        hang_up(line)
    notice(site)
    site.upstream.release(20)
    # Two prompt tokens and four completion tokens, as for a caller who stays.
    assert_ended(site, Ending("cancelled", (2, 4), False))


def test_a_caller_that_leaves_a_plain_request_pays_what_the_upstream_reports_soon(
    site: Site,
) -> None:
    publish(site, "sim-held")
    with connected(site, stream=False) as line:
        site.eventually(lambda: len(site.dialled()) == 1)
        hang_up(line)
    notice(site)
    site.upstream.release(1)
    assert_ended(site, Ending("cancelled", (2, 4), False), stream=False)


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_caller_that_leaves_an_upstream_without_usage_pays_for_the_prompt(
    site: Site, is_stream: bool
) -> None:
    publish(site, "sim-endless")
    with connected(site, stream=is_stream) as line:
        if is_stream:
            read_until(line, b"200 OK")
        site.eventually(lambda: len(site.dialled()) == 1)
        hang_up(line)
    row = site.settled()
    assert (row.status, row.prompt_tokens, row.is_estimated) == ("cancelled", 6, True)
    assert_in_order()


@pytest.mark.parametrize("behaviour", ["sim-drip-headers:0.1", "sim-slow:0.5,9"])
def test_a_caller_that_leaves_before_the_head_pays_for_the_prompt(
    site: Site, behaviour: str
) -> None:
    publish(site, behaviour)
    with connected(site) as line:
        site.eventually(lambda: len(site.dialled()) == 1)
        hang_up(line)
    assert_ended(site, Ending("cancelled", (6, 0), True))


def test_a_caller_that_leaves_a_fallback_pays_for_the_candidate_that_was_asked(
    site: Site,
) -> None:
    site.publish("sim-status:503", price=factories.make_price("0.000001", "0.000002"))
    site.publish(
        "sim-stall",
        provider=site.another_provider("second"),
        price=factories.make_price("0.000003", "0.000004"),
    )
    with connected(site) as line:
        site.eventually(lambda: len(site.dialled()) == 2)
        hang_up(line)
    row = site.settled()
    assert (row.status, row.cost_nano, row.prompt_tokens) == ("cancelled", 6 * 3000, 6)
    assert row.provider_name == "Second"
    assert_in_order()


def test_a_caller_that_leaves_an_unreachable_upstream_pays_nothing(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:
        # The connection is accepted by the kernel; the handshake of TLS is never answered.
        provider = factories.make_provider(
            "silent", base_url=f"https://localhost:{silent.getsockname()[1]}/v1"
        )
        provider.set_credential(Secret("operator-credential-silent"))
        price = factories.make_price("0.000001", "0.000002")
        site.publish("sim-echo", provider=provider, price=price)
        with connected(site) as line:
            accepted, _ = silent.accept()
            with accepted:
                hang_up(line)
                assert_ended(site, Ending("cancelled", None, False))


def test_a_caller_that_leaves_after_the_first_event_pays_for_the_prompt(site: Site) -> None:
    publish(site, "sim-gated")
    with connected(site) as line:
        read_until(line, b'"role"')
        hang_up(line)
    # The first event has no text, but the upstream has accepted the prompt.
    assert_ended(site, Ending("cancelled", (6, 0), True))


def test_a_caller_that_leaves_midway_pays_for_the_delivered_part(site: Site) -> None:
    publish(site, "sim-gated")
    with connected(site) as line:
        read_until(line, b'"role"')
        site.upstream.release(2)
        read_until(line, b" said:")
        hang_up(line)
    # "You said:" is 9 bytes, which are 3 tokens.
    assert_ended(site, Ending("cancelled", (6, 3), True))


def test_a_caller_that_leaves_after_the_last_byte_has_a_completed_generation(site: Site) -> None:
    publish(site, "sim-echo")
    with connected(site) as line:
        read_until(line, b"data: [DONE]\n\n")
        hang_up(line)
    assert_ended(site, Ending("completed", (2, 4), False))


def test_a_stream_that_outlasts_its_deadline_fails_and_is_charged(
    site: Site, settings: Any
) -> None:
    settings.HOLD_TIMEOUT = 1
    publish(site, "sim-slow:0,0.4")
    answer = site.post(wanted(site))
    events = events_of(answer.text)
    assert (events[-1]["error"]["code"], content_of(events[:-1])) == (504, "You said:")
    assert_ended(site, Ending("failed", (6, 3), True, "timeout"))


def test_a_stopping_worker_completes_its_streams(site: Site) -> None:
    publish(site, "sim-gated")
    with serve() as served:
        site.server = served.address
        with requests.post(
            f"{served.address}{CHAT}",
            json=wanted(site),
            headers={"Authorization": f"Bearer {site.tenant.api_key}"},
            stream=True,
            timeout=30,
        ) as answer:
            chunks = answer.iter_content(None)
            text = next(chunks)
            stopped: list[tuple[int, str]] = []
            stopper = threading.Thread(target=lambda: stopped.append(served.stop()))
            stopper.start()
            time.sleep(0.3)
            site.upstream.release(20)
            text += b"".join(chunks)
        stopper.join(20)
        assert stopped[0][0] == 0, stopped[0][1]
    assert content_of(events_of(text.decode())) == "You said: one two"
    assert_ended(site, Ending("completed", (2, 4), False))


def test_a_cost_beyond_the_hold_is_posted_as_excess(site: Site) -> None:
    publish(site, "sim-tokens:1000,500")
    assert site.post(wanted(site)).status_code == 200
    row = site.settled()
    assert row.cost_nano == 2_000_000 > row.hold_nano
    kinds = {t.kind: t.posted_nano for t in Transfer.objects.filter(reference=row.pk)}
    assert kinds == {"usage": row.hold_nano, "excess": 2_000_000 - row.hold_nano}
    account = Account.objects.get(organization=row.organization, kind="credits")
    assert account.available == CREDITS - 2_000_000
    assert_in_order()


def test_a_cost_beyond_all_credits_is_recorded_as_a_write_off(site: Site) -> None:
    publish(site, "sim-tokens:1000,500")
    row = spend_beyond(site)
    kinds = {t.kind: t.posted_nano for t in Transfer.objects.filter(reference=row.pk)}
    assert kinds == {
        "usage": row.hold_nano,
        "excess": 7,
        "write_off": 2_000_000 - row.hold_nano - 7,
    }
    accounts = {a.kind: a for a in Account.objects.filter(organization=row.organization)}
    assert accounts["credits"].available == 0
    assert accounts["write_off"].balance == -(2_000_000 - row.hold_nano - 7)
    assert accounts["usage"].balance == 2_000_000
    assert_in_order()


def spend_beyond(site: Site) -> Generation:
    """Sends a request that costs more than the tenant's credits: its hold and 7 nano-USD."""
    body = wanted(site)
    bound = parsing.parse(Operation.CHAT, json.dumps(body).encode()).prompt_bound
    poor = factories.make_tenant("Poor", credits_usd=0)
    ledger.grant(poor.organization.pk, 1000 * bound + 2000 * 100 + 7, actor="test")
    assert site.post(body, key=poor.api_key).status_code == 200
    return site.settled()
