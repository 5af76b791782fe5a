"""Each ending of an answer is settled once, with its status and exact charge."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pytest

from billing import ledger, reviews
from billing.models import Account, Excess, NotChargeable, Transfer
from catalog.dialects.base import Operation
from config.credentials import Secret
from inference.faces import translations
from inference.models import Generation
from inference.requests import parsing
from tests.support import factories
from tests.support.inference.endings import (
    CREDITS,
    Ending,
    assert_ended,
    connected,
    hang_up,
    notice,
    read_until,
    wanted,
)
from tests.support.inference.site import MESSAGES, Site, content_of, events_of
from tests.support.ledger import assert_in_order
from tests.support.processes import serve


def test_a_complete_answer_is_completed(site: Site) -> None:
    site.publish("sim-echo")
    answer = site.post(wanted(site))
    *_, usage, done = events_of(answer.text)
    assert (usage["usage"]["cost"], done) == (0.00001, "[DONE]")
    assert_ended(site, Ending("completed", (2, 4), False))


@pytest.mark.parametrize(
    ("behaviour", "ending"),
    [
        # Estimated at 4 bytes per token: "one two" with its role, and the delivered text.
        ("sim-error-stream", Ending("failed", None, False, "provider_overloaded")),
        ("sim-reset-stream", Ending("failed", (6, 1), True, "provider_unavailable")),
        ("sim-cut-event", Ending("failed", (6, 1), True, "provider_unavailable")),
        ("sim-bad-json", Ending("failed", None, False, "provider_unavailable")),
        ("sim-close-stream", Ending("failed", (6, 1), True, "provider_unavailable")),
        ("sim-connect-reset", Ending("failed", None, False, "provider_unavailable")),
        ("sim-error-first", Ending("failed", None, False, "rate_limit_exceeded")),
        ("sim-status:500", Ending("failed", None, False, "provider_unavailable")),
    ],
)
def test_an_upstream_that_breaks_off_fails_the_generation(
    site: Site, behaviour: str, ending: Ending
) -> None:
    site.publish(behaviour)
    answer = site.post(wanted(site))
    if ending.usage is None:
        statuses = {"provider_overloaded": 503, "rate_limit_exceeded": 429}
        assert answer.status_code == statuses.get(str(ending.error_type), 502)
    else:
        last = events_of(answer.text)[-1]
        assert last["choices"][0]["finish_reason"] == "error"
        assert last["error"]["code"] == 502
    assert_ended(site, ending)


def test_a_whole_answer_that_its_interface_cannot_have_is_paid(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translations, "_CONVERTED_BYTES", 10)
    site.publish("sim-echo")
    answer = site.post(wanted(site, stream=False), path=MESSAGES)
    assert (answer.status_code, answer.headers["X-Should-Retry"]) == (502, "false")
    assert "It is charged." in answer.json()["error"]["message"]
    row = site.settled()
    assert (row.status, row.error_type) == ("failed", "provider_unavailable")
    assert (row.prompt_tokens, row.completion_tokens, row.cost_nano) == (2, 4, 10_000)
    assert Transfer.objects.get(reference=row.pk).posted_nano == 10_000
    assert_in_order()


@pytest.mark.parametrize("behaviour", ["sim-held", "sim-gated"])
def test_a_caller_that_leaves_pays_what_the_upstream_reports_soon(
    site: Site, behaviour: str
) -> None:
    site.publish(behaviour)
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
    site.publish("sim-held")
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
    site.publish("sim-endless")
    with connected(site, stream=is_stream) as line:
        if is_stream:
            read_until(line, b"200 OK")
        site.eventually(lambda: len(site.dialled()) == 1)
        hang_up(line)
    row = site.settled()
    assert (row.status, row.prompt_tokens, row.is_estimated) == ("cancelled", 6, True)
    assert_in_order()


@pytest.mark.parametrize("behaviour", ["sim-stall", "sim-drip-headers:0.1", "sim-slow:0.5,9"])
def test_a_caller_that_leaves_before_the_head_pays_for_the_prompt(
    site: Site, behaviour: str
) -> None:
    site.publish(behaviour)
    with connected(site) as line:
        site.eventually(lambda: len(site.dialled()) == 1)
        hang_up(line)
    assert_ended(site, Ending("cancelled", (6, 0), True))


def test_a_caller_that_leaves_a_fallback_pays_for_the_candidate_that_was_asked(site: Site) -> None:
    site.publish("sim-status:503")
    site.publish(
        "sim-stall",
        provider=site.another_provider("second"),
        price=factories.make_price("0.000003", "0.000004"),
    )
    with connected(site, provider={"order": ["acme", "second"]}) as line:
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
        site.publish(provider=provider)
        with connected(site) as line:
            accepted, _ = silent.accept()
            with accepted:
                hang_up(line)
                assert_ended(site, Ending("cancelled", None, False))


def test_a_caller_that_leaves_after_the_first_event_pays_for_the_prompt(site: Site) -> None:
    site.publish("sim-gated")
    with connected(site) as line:
        read_until(line, b'"role"')
        hang_up(line)
    # The first event has no text, but the upstream has accepted the prompt.
    assert_ended(site, Ending("cancelled", (6, 0), True))


def test_a_caller_that_leaves_midway_pays_for_the_delivered_part(site: Site) -> None:
    site.publish("sim-gated")
    with connected(site) as line:
        read_until(line, b'"role"')
        site.upstream.release(2)
        read_until(line, b" said:")
        hang_up(line)
    # "You said:" is 9 bytes, which are 3 tokens.
    assert_ended(site, Ending("cancelled", (6, 3), True))


def test_a_caller_that_leaves_after_the_last_byte_has_a_completed_generation(site: Site) -> None:
    site.publish("sim-echo")
    with connected(site) as line:
        read_until(line, b"data: [DONE]\n\n")
        hang_up(line)
    assert_ended(site, Ending("completed", (2, 4), False))


def test_a_stream_that_outlasts_its_deadline_fails_and_is_charged(
    site: Site, settings: Any
) -> None:
    settings.HOLD_TIMEOUT = 3
    site.publish("sim-gated")
    site.upstream.release(2)
    answer = site.post(wanted(site))
    events = events_of(answer.text)
    assert (events[-1]["error"]["code"], content_of(events[:-1])) == (504, "You said:")
    assert_ended(site, Ending("failed", (6, 3), True, "timeout"))


def test_a_stopping_worker_completes_its_streams(site: Site) -> None:
    site.publish("sim-gated")
    with serve() as served:
        site.server = served.address
        with site.post(wanted(site), stream=True) as answer:
            chunks = answer.iter_content(None)
            text = next(chunks)
            stopped: list[tuple[int, str]] = []
            stopper = threading.Thread(target=lambda: stopped.append(served.stop()))
            stopper.start()
            time.sleep(0.3)
            site.upstream.release(20)
            text += b"".join(chunks)
        stopper.join(60)
        assert stopped[0][0] == 0, stopped[0][1]
    assert content_of(events_of(text.decode())) == "You said: one two"
    assert_ended(site, Ending("completed", (2, 4), False))


def test_a_claim_beyond_what_was_allowed_is_charged_up_to_it_and_reviewed(site: Site) -> None:
    site.publish("sim-tokens:1000,500")
    answer = site.post(wanted(site))
    *_, event, _ = events_of(answer.text)
    row = site.settled()
    bound = row.hold_nano // 1000 - 200
    assert (row.cost_nano, row.upstream_cost_nano) == (row.hold_nano, row.hold_nano)
    assert (row.prompt_tokens, row.completion_tokens) == (bound, 100)
    counts = {"prompt_tokens": bound, "completion_tokens": 100, "total_tokens": bound + 100}
    assert {name: event["usage"][name] for name in counts} == counts
    assert event["usage"]["cost"] == row.cost_nano / 10**9
    [transfer] = Transfer.objects.filter(reference=row.pk)
    assert (transfer.kind, transfer.posted_nano) == ("usage", row.hold_nano)
    excess = Excess.objects.get()
    assert (excess.reference, excess.organization_id) == (row.pk, row.organization_id)
    assert (excess.amount_nano, excess.status) == (2_000_000 - row.hold_nano, "under_review")
    assert excess.upstream_nano == excess.amount_nano
    assert (excess.claimed_prompt_tokens, excess.claimed_completion_tokens) == (1000, 500)
    assert (excess.allowed_prompt_tokens, excess.allowed_completion_tokens) == (bound, 100)
    assert excess.endpoint_id == row.model_endpoint_id
    account = Account.objects.get(organization=row.organization, kind="credits")
    assert account.available == CREDITS - row.hold_nano
    assert_in_order()


@pytest.mark.parametrize("is_charged", [True, False])
def test_an_operator_charges_an_excess_or_writes_it_off(site: Site, is_charged: bool) -> None:
    site.publish("sim-tokens:1000,500")
    assert site.post(wanted(site)).status_code == 200
    row = site.settled()
    excess = Excess.objects.get()
    rest = 2_000_000 - row.hold_nano
    (reviews.charge if is_charged else reviews.write_off)(excess, by="ann", note="seen")
    kinds = {t.kind: t.posted_nano for t in Transfer.objects.filter(reference=row.pk)}
    assert kinds == {"usage": row.hold_nano, "excess" if is_charged else "write_off": rest}
    accounts = {a.kind: a for a in Account.objects.filter(organization=row.organization)}
    assert accounts["credits"].available == CREDITS - (2_000_000 if is_charged else row.hold_nano)
    assert accounts["write_off"].balance == (0 if is_charged else -rest)
    assert accounts["usage"].balance == 2_000_000
    assert_in_order()


def test_a_balance_as_small_as_the_hold_is_never_overdrawn_by_a_claim(site: Site) -> None:
    site.publish("sim-tokens:1000,500")
    row = spend_beyond(site)
    excess = Excess.objects.get()
    account = Account.objects.get(organization=row.organization, kind="credits")
    assert account.available == 7
    with pytest.raises(NotChargeable, match="less available"):
        reviews.charge(excess, by="ann")
    excess.refresh_from_db()
    assert (excess.status, excess.decided_by) == ("under_review", "")
    assert [t.kind for t in Transfer.objects.filter(reference=row.pk)] == ["usage"]
    assert_in_order()


def spend_beyond(site: Site) -> Generation:
    """Sends a request whose tenant has credits for its hold and 7 nano-USD."""
    body = wanted(site)
    bound = parsing.parse(Operation.CHAT, json.dumps(body).encode()).prompt_bound
    poor = factories.make_tenant("Poor", credits_usd=0)
    ledger.grant(poor.organization.pk, 1000 * bound + 2000 * 100 + 7, actor="test")
    assert site.post(body, key=poor.api_key).status_code == 200
    return site.settled()
