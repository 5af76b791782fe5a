"""Faults of upstreams: the answer to the caller, the other provider, and the stored generations.

One table has the faults. Each is met by the three faces of chat, plain and streamed: first where
another provider is healthy, then where all providers have the fault.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from django.conf import LazySettings

from billing.models import Excess
from config.egress.rules import TimeLimits
from config.local.certificates import ensure_certificates
from endpoints.models import PrivateEndpoint
from inference.models import Generation
from tests.support import factories
from tests.support.inference.faces import FACES, Face, Told
from tests.support.inference.site import OPERATOR_SECRET, Site, content_of, error_of, events_of
from tests.support.ledger import assert_in_order
from tests.support.simulator.server import Simulator

NO_ANSWER = "The upstream provider did not answer in time."
NOT_VALID = "The upstream provider's answer is not valid: "
UNREACHABLE = "The upstream could not be reached."
NO_HTTP = "The upstream's answer is invalid."
COMPRESSED = "The upstream's answer is compressed, although an uncompressed one was asked for."
UNKNOWN_MODEL = (
    "The provider does not know the model of its endpoint. Try again later, or let the request "
    "fall back to other providers."
)
RATE_LIMITED = "The upstream provider refused the request for its rate."
OVERLOADED = "The upstream provider is overloaded."
BROKEN_OFF = "The upstream closed the connection before its answer was complete."


@dataclass(frozen=True)
class Failed:
    """An error answer; nothing was delivered and nothing is charged."""

    status: int
    error_type: str
    message: str
    kind: str = "status"

    @property
    def falls_back(self) -> bool:
        """Whether another provider of the same model is tried."""
        return self.status not in (400, 413)


@dataclass(frozen=True)
class Served:
    """A served answer; without ``usage`` the tokens are estimated."""

    usage: tuple[int, int] | None = (2, 4)
    finish_reason: str = "stop"


@dataclass(frozen=True)
class Broken:
    """A stream that began and ended in an error event; the delivered part is charged."""

    code: int
    error_type: str
    message: str
    content: str
    usage: tuple[int, int] | None
    is_estimated: bool = True
    kind: str = "protocol"


def failed(message: str, kind: str = "protocol") -> Failed:
    return Failed(502, "provider_unavailable", message, kind)


def invalid(text: str) -> Failed:
    return failed(NOT_VALID + text)


def broken(
    message: str,
    content: str = "You",
    usage: tuple[int, int] | None = (6, 1),
    kind: str = "protocol",
) -> Broken:
    return Broken(502, "provider_unavailable", message, content, usage, kind=kind)


SERVER_ERROR = "The server had an error."
NO_OBJECT = "The answer is not a JSON object."
BAD_EVENT = "An event of the stream is not a JSON object."
NO_EVENTS = "The stream ended without its end mark."
CUT = "The stream was cut off inside an event."
OK, ESTIMATED = Served(), Served(usage=None)
TIMED_OUT = Failed(504, "timeout", NO_ANSWER, "timeout")
NO_ACCESS = failed(
    "The provider refused the gateway's own credential, which only its operator can change. Try "
    "again later, or let the request fall back to other providers.",
    "credential",
)


def refused(status: int, message: str = SERVER_ERROR) -> Failed:
    match status:
        case 408 | 504 | 524:
            return Failed(504, "timeout", message)
        case 413:
            return Failed(413, "payload_too_large", message)
        case 429:
            return Failed(429, "rate_limit_exceeded", RATE_LIMITED)
        case 503 | 529:
            return Failed(status, "provider_overloaded", OVERLOADED)
        case 401 | 402 | 403:
            return NO_ACCESS
        case 404:
            return Failed(503, "provider_unavailable", UNKNOWN_MODEL, "unknown_model")
        case _:
            if status >= 500:
                return failed(message, "status")
            return Failed(400, "invalid_request", message)


OWN_WORDS = "The provider's own words."


def reported(status: int, error_type: str, message: str) -> Failed:
    return Failed(status, error_type, message, "reported")


# Events in the same read as a fault are not relayed, so such a stream is an error answer.
FAULTS: list[tuple[str, Failed | Served, Failed | Served | Broken]] = [
    *(
        (f"sim-status:{status}", refused(status, message), refused(status, message))
        for status, message in (
            (400, "The request is not valid."),
            (401, "Incorrect API key provided."),
            (402, SERVER_ERROR),
            (403, "This key may not use this model."),
            (404, "The model does not exist."),
            (405, SERVER_ERROR),
            (408, "The request took too long."),
            (409, "The resource was changed meanwhile."),
            (413, SERVER_ERROR),
            (422, "The request cannot be processed."),
            (429, RATE_LIMITED),
            (499, SERVER_ERROR),
            (500, SERVER_ERROR),
            (502, SERVER_ERROR),
            (503, OVERLOADED),
            (504, SERVER_ERROR),
            (524, SERVER_ERROR),
            (529, OVERLOADED),
            (599, SERVER_ERROR),
        )
    ),
    *(
        (f"sim-redirect:{status}", *[failed("The upstream answered with a redirect.")] * 2)
        for status in (301, 302, 303, 307, 308)
    ),
    ("sim-status:204", failed(NO_HTTP), failed(NO_HTTP)),
    ("sim-error-number", *[refused(429)] * 2),
    ("sim-error-code", *[Failed(400, "context_length_exceeded", "The request is not valid.")] * 2),
    ("sim-error-string", *[failed("the model crashed", "status")] * 2),
    ("sim-error-text", *[failed("Internal Server Error", "status")] * 2),
    ("sim-error-200", *[reported(503, "provider_overloaded", OVERLOADED)] * 2),
    ("sim-wrong-model", OK, OK),
    ("sim-wrong-shape", *[invalid("The answer has no choices.")] * 2),
    ("sim-html", invalid(NO_OBJECT), invalid(NO_EVENTS)),
    ("sim-truncated", invalid(NO_OBJECT), broken(NOT_VALID + CUT, "You said:", (6, 3))),
    ("sim-gzip", *[failed(COMPRESSED)] * 2),
    ("sim-short-body", failed(BROKEN_OFF, "reset"), OK),
    (
        "sim-reset-body",
        failed(BROKEN_OFF, "reset"),
        broken(BROKEN_OFF, "You said:", (6, 3), "reset"),
    ),
    ("sim-no-usage", ESTIMATED, ESTIMATED),
    ("sim-null-usage", ESTIMATED, ESTIMATED),
    *(
        (f"sim-usage-{kind}", ESTIMATED, ESTIMATED)
        for kind in ("negative", "float", "nan", "null", "zero")
    ),
    ("sim-usage-string", *[Served((5, 5))] * 2),
    ("sim-content-filter", *[Served(finish_reason="content_filter")] * 2),
    ("sim-connect-reset", *[failed(UNREACHABLE, "reset")] * 2),
    ("sim-connect-close", *[failed(UNREACHABLE, "reset")] * 2),
    ("sim-stall", TIMED_OUT, TIMED_OUT),
    ("sim-drip-headers:0.01", TIMED_OUT, TIMED_OUT),
    ("sim-no-done", OK, OK),
    ("sim-cut-event", OK, broken(NOT_VALID + CUT)),
    ("sim-cut-character", OK, broken(NOT_VALID + CUT, "", None)),
    ("sim-bad-json", OK, invalid(BAD_EVENT)),
    ("sim-bad-shape", OK, invalid(BAD_EVENT)),
    ("sim-only-comments", OK, invalid(NO_EVENTS)),
    ("sim-empty-stream", OK, invalid(NO_EVENTS)),
    *(
        (f"sim-{kind}", OK, OK)
        for kind in ("comments", "cr", "lf", "crlf", "no-space", "multi-line", "bom")
    ),
    ("sim-usage-twice", OK, OK),
    ("sim-usage-with-choices", OK, OK),
    ("sim-null-content", OK, OK),
    ("sim-after-done", OK, OK),
    ("sim-error-stream", OK, reported(503, "provider_overloaded", OVERLOADED)),
    ("sim-error-first", OK, reported(429, "rate_limit_exceeded", RATE_LIMITED)),
    *(
        (f"sim-reported:{name}", *[reported(status, error_type, message)] * 2)
        for name, status, error_type, message in (
            ("overloaded_error", 529, "provider_overloaded", OVERLOADED),
            ("rate_limit_error", 429, "rate_limit_exceeded", RATE_LIMITED),
            ("RESOURCE_EXHAUSTED", 429, "rate_limit_exceeded", RATE_LIMITED),
            ("throttlingException", 429, "rate_limit_exceeded", RATE_LIMITED),
            ("UNAVAILABLE", 503, "provider_overloaded", OVERLOADED),
            ("DEADLINE_EXCEEDED", 504, "timeout", OWN_WORDS),
            ("api_error", 502, "provider_unavailable", OWN_WORDS),
        )
    ),
    ("sim-reported:insufficient_quota", *[NO_ACCESS] * 2),
    ("sim-named:429,insufficient_quota", *[NO_ACCESS] * 2),
    ("sim-named:400,API_KEY_INVALID", *[NO_ACCESS] * 2),
    ("sim-reset-stream", OK, broken(BROKEN_OFF, kind="reset")),
    ("sim-stall-stream", OK, Broken(504, "timeout", NO_ANSWER, "", None, kind="timeout")),
]


# These never end. All others may take as long as a busy machine needs.
STALLING = ("sim-stall", "sim-drip-headers:0.01", "sim-stall-stream")


def publish(site: Site, behaviour: str, **fields: Any) -> None:
    # A plain answer is bounded by the time in all.
    if behaviour in STALLING[:2]:
        fields |= {"first_event_timeout": 1, "total_timeout": 1}
    site.publish(behaviour, **fields)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("behaviour", ["sim-usage-huge", f"sim-tokens:{10**17},{10**18}"])
def test_a_usage_beyond_what_was_allowed_is_believed_up_to_the_hold(
    site: Site, behaviour: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    publish(site, behaviour)
    answer = site.chat("one two", stream=stream, max_tokens=16)
    assert answer.status_code == 200
    shown = events_of(answer.text)[-2]["usage"] if stream else answer.json()["usage"]
    row = site.settled()
    bound = (row.hold_nano - 16 * 2000) // 1000
    counts = {
        "prompt_tokens": bound, "completion_tokens": 16, "total_tokens": bound + 16,
        "cost": row.hold_nano / 10**9,
    }  # fmt: skip
    assert {name: shown[name] for name in counts} == counts
    assert (row.prompt_tokens, row.completion_tokens, len(row.attempts)) == (bound, 16, 1)
    assert_row(row, (bound, 16), is_estimated=False, status="completed", hold_nano=row.cost_nano)
    excess = Excess.objects.get()
    assert (excess.reference, excess.status) == (row.pk, "under_review")
    assert excess.claimed_completion_tokens == (10**9 if "huge" in behaviour else 10**15)
    assert excess.amount_nano > 10**12
    assert f"the endpoint {row.model_endpoint_id} claimed" in caplog.text
    assert_in_order()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
@pytest.mark.parametrize(("behaviour", "plain", "streamed"), FAULTS)
def test_a_fault_determines_answer_stored_row_and_charge(
    site: Site,
    behaviour: str,
    plain: Failed | Served,
    streamed: Failed | Served | Broken,
    face: Face,
    stream: bool,
    settings: LazySettings,
) -> None:
    if behaviour == STALLING[2]:
        # Its streams alone have a silence after the first event.
        settings.UPSTREAM_IDLE_TIMEOUT = 0.3
    expected = streamed if stream else plain
    backup = site.another_provider("backup")
    faulty = factories.make_model("acme/eagle")
    for model, second in ((site.model, "sim-echo"), (faulty, behaviour)):
        publish(site, behaviour, model=model)
        publish(site, second, model=model, provider=backup)
    order = {"provider": {"order": ["acme", "backup"]}}
    for model in (site.model, faulty):
        answer = face.ask(site, "one two", stream=stream, model=model.slug, **order)
        assert OPERATOR_SECRET not in answer.text + str(answer.headers)
        row = settled(site, answer)
        told = face.read(answer, stream=stream)
        falls_back = isinstance(expected, Failed) and expected.falls_back
        assert len(row.attempts) == (2 if falls_back else 1)
        if falls_back and model is site.model:
            assert row.attempts[0]["kind"] == expected.kind
            assert_served(row, answer, told, Served())
            assert row.provider_name == "Backup"
        elif isinstance(expected, Failed):
            assert_failed(row, answer, told, expected)
        elif isinstance(expected, Served):
            assert_served(row, answer, told, expected, is_chat=face.name == "chat")
        else:
            assert_broken(row, answer, told, expected, is_chat=face.name == "chat")
    assert_in_order()


def settled(site: Site, answer: requests.Response) -> Generation:
    generations = Generation.objects.filter(pk=answer.headers["X-Generation-Id"])
    site.eventually(lambda: not generations.filter(status="pending").exists())
    return generations.get()


def assert_row(row: Generation, usage: tuple[int, int] | None, **expected: Any) -> None:
    """Asserts the stored row; its cost is that of its usage."""
    if usage is None:
        cost, expected = 0, {**expected, "prompt_tokens": None, "completion_tokens": None}
    else:
        prompt, completion = row.prompt_tokens or 0, row.completion_tokens or 0
        cost = prompt * 1000 + completion * 2000
    expected |= {"cost_nano": cost, "upstream_cost_nano": cost}
    assert {name: getattr(row, name) for name in expected} == expected


def check_error(told: Told, expected: Failed | Broken) -> dict[str, Any]:
    """Returns the error that was told, which has the expected type, message and kind."""
    assert told.error is not None
    for name in ("error_type", "message", "kind"):
        assert told.error[name] == getattr(expected, name)
    return told.error


def assert_failed(row: Generation, answer: requests.Response, told: Told, expected: Failed) -> None:
    assert answer.status_code == expected.status
    error = check_error(told, expected)
    number = len(row.attempts)
    assert error["provider_name"] == ("Acme AI", "Backup")[number - 1]
    assert (error["attempt"], error["candidates"]) == (number, 2)
    assert ("upstream_status" in error) is (expected.kind in ("status", "unknown_model"))
    assert "provider_code" not in error or expected.kind != "credential"
    if expected.falls_back:
        assert [one["kind"] for one in row.attempts] == [expected.kind] * 2
    assert_row(row, None, is_estimated=False, status="failed", error_type=expected.error_type)


def assert_served(
    row: Generation,
    answer: requests.Response,
    told: Told,
    expected: Served,
    *,
    is_chat: bool = False,
) -> None:
    assert (answer.status_code, told.error) == (200, None)
    assert told.text == "You said: one two"
    assert told.usage == {"prompt": row.prompt_tokens, "completion": row.completion_tokens}
    # 40 bytes of messages and 17 bytes of answer, at 4 bytes per token.
    usage = expected.usage or ((6, 5) if is_chat else None)
    if usage is not None:
        assert (row.prompt_tokens, row.completion_tokens) == usage
    assert_row(
        row,
        (0, 0),
        is_estimated=expected.usage is None,
        status="completed",
        error_type=None,
        finish_reason=expected.finish_reason,
    )


def assert_broken(
    row: Generation, answer: requests.Response, told: Told, expected: Broken, *, is_chat: bool
) -> None:
    assert (answer.status_code, told.text) == (200, expected.content)
    error = check_error(told, expected)
    assert (error["provider_name"], error["attempt"]) == ("Acme AI", 1)
    assert row.attempts[0]["kind"] == expected.kind
    if is_chat:
        last = events_of(answer.text)[-1]
        assert last["error"]["code"] == expected.code
        assert last["choices"] == [{"index": 0, "finish_reason": "error", "delta": {"content": ""}}]
        assert last["id"] == row.pk
        if expected.usage is not None:
            assert (row.prompt_tokens, row.completion_tokens) == expected.usage
    assert_row(
        row,
        expected.usage,
        is_estimated=expected.is_estimated and expected.usage is not None,
        status="failed",
        error_type=expected.error_type,
        finish_reason="error",
    )


def test_a_stream_that_closes_early_is_an_error(site: Site) -> None:
    publish(site, "sim-close-stream")
    answer = site.chat(stream=True)
    # The close may arrive before the preceding events are read; then none was relayed.
    if answer.status_code == 200:
        assert events_of(answer.text)[-1]["error"]["message"] == BROKEN_OFF
    else:
        assert answer.json()["error"]["message"] == BROKEN_OFF
    assert site.settled().status == "failed"


def test_an_answer_beyond_the_size_limit_is_a_bad_gateway(site: Site) -> None:
    publish(site, "sim-endless")
    assert error_of(site.chat(), 502)["message"] == "The upstream's answer is too large."
    assert site.settled().cost_nano == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_slow_answer_ends_at_the_time_limit_of_a_generation(
    site: Site, settings: LazySettings, stream: bool
) -> None:
    settings.HOLD_TIMEOUT = 2
    publish(site, "sim-slow:0,1" if stream else "sim-drip:0.01")
    answer = site.chat("one two three four", stream=stream)
    error = events_of(answer.text)[-1]["error"] if stream else answer.json()["error"]
    assert (error["code"], error["message"]) == (504, NO_ANSWER)
    row = site.settled()
    assert (row.status, row.error_type) == ("failed", "timeout")
    assert row.duration_ms is not None
    assert row.duration_ms < 30_000


def assert_unavailable(answer: requests.Response) -> None:
    assert answer.status_code == 502
    assert answer.json()["error"]["metadata"]["error_type"] == "provider_unavailable"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["expired", "self-signed", "wrong-host"])
def test_an_upstream_with_an_invalid_certificate_receives_no_request(
    site: Site, fault: Any, stream: bool
) -> None:
    directory = Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls"
    with Simulator(ensure_certificates(directory, fault)).run_in_thread() as liar:
        site.move(liar.base_url)
        site.publish()
        assert_unavailable(site.chat(stream=stream))
        assert (liar.connections, liar.requests) == (1, [])
    assert site.settled().status == "failed"


@pytest.mark.parametrize(
    "base_url",
    [
        "https://127.0.0.1:1/v1",
        "https://no-such-name.invalid/v1",
        "https://10.1.2.3/v1",
        "https://169.254.169.254/v1",
        "https://[::ffff:127.0.0.1]:8443/v1",
        "not a url",
        "https://[::1",
    ],
)
def test_an_unreachable_or_forbidden_address_is_a_bad_gateway(site: Site, base_url: str) -> None:
    site.move(base_url)
    site.publish()
    assert_unavailable(site.chat())
    row = site.settled()
    assert (row.status, row.cost_nano) == ("failed", 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 500])
def test_an_error_that_echoes_the_credential_is_masked(
    site: Site, status: int, stream: bool
) -> None:
    site.publish(f"sim-echo-key:{status}")
    answer = site.chat(stream=stream)
    assert answer.json()["error"]["message"] == "Incorrect API key provided: Bearer ********."
    assert OPERATOR_SECRET not in answer.text + str(site.settled().attempts)


def test_an_error_inside_a_200_that_echoes_the_credential_is_masked(site: Site) -> None:
    site.own("sim-echo-key:200")
    answer = site.chat()
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "Incorrect API key provided: Bearer ********."


def test_a_huge_error_message_is_cut_and_stripped_of_control_characters(site: Site) -> None:
    site.publish("sim-huge-error")
    message = site.chat().json()["error"]["message"]
    assert message == "[31m " + "A" * 507


def test_the_retry_after_of_an_upstream_is_passed_on(site: Site) -> None:
    site.publish("sim-status:429,7")
    answer = site.chat()
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "7")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        ("sim-status:401", 401),
        ("sim-status:429", 429),
        ("sim-status:503", 503),
        ("sim-connect-reset", 502),
        ("sim-stall", 504),
        ("sim-redirect:302", 502),
        ("sim-wrong-shape", 502),
    ],
)
def test_a_failing_private_endpoint_falls_back_to_a_public_one(
    site: Site, behaviour: str, status: int, stream: bool
) -> None:
    site.allow_fallback()
    limits = TimeLimits(total=1) if behaviour == "sim-stall" else TimeLimits()
    private = site.own(behaviour, price=factories.make_price("5", "5"), time_limits=limits)
    public = site.publish(provider=site.another_provider("backup"))
    answer = site.chat("one two", stream=stream)
    assert answer.status_code == 200
    usage = events_of(answer.text)[-2] if stream else answer.json()
    assert usage["provider"] == "Backup"
    assert (usage["usage"]["cost"], usage["usage"]["is_byok"]) == (0.00001, False)
    row = site.settled()
    assert (row.model_endpoint, row.private_endpoint) == (public, None)
    assert (row.price_id, row.cost_nano, row.is_byok) == (public.price_id, 10_000, False)
    assert row.provider_name == "Backup"
    assert [(each["provider"], each["status"], each["endpoint_id"]) for each in row.attempts] == [
        ("Acme AI", status, str(private.pk)),
        ("Backup", 200, str(public.pk)),
    ]


def own_before_backup(site: Site, behaviour: str, backup: str = "sim-echo") -> PrivateEndpoint:
    """Makes a private endpoint, and a public one to which its requests may fall back."""
    site.allow_fallback()
    private = site.own(behaviour)
    site.publish(backup, provider=site.another_provider("backup"))
    return private


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("behaviour", ["sim-status:400", "sim-status:422", "sim-status:413"])
def test_an_error_of_the_request_does_not_fall_back(
    site: Site, behaviour: str, stream: bool
) -> None:
    private = own_before_backup(site, behaviour)
    assert site.chat(stream=stream).status_code in (400, 413)
    row = site.settled()
    assert row.private_endpoint == private
    assert len(row.attempts) == len(site.dialled()) == 1


def test_fallback_can_be_forbidden(site: Site) -> None:
    own_before_backup(site, "sim-status:503")
    assert site.chat(provider={"allow_fallbacks": False}).status_code == 503
    assert len(site.dialled()) == len(site.settled().attempts) == 1


def test_a_stream_does_not_fall_back_after_the_first_event(site: Site) -> None:
    own_before_backup(site, "sim-reset-stream")
    answer = site.chat(stream=True)
    assert answer.status_code == 200
    assert events_of(answer.text)[-1]["error"]["code"] == 502
    assert len(site.dialled()) == len(site.settled().attempts) == 1


def test_a_fault_in_the_first_bytes_falls_back_and_relays_none_of_them(site: Site) -> None:
    own_before_backup(site, "sim-error-stream")
    events = events_of(site.chat("one two", stream=True).text)
    assert content_of(events) == "You said: one two"
    assert len(site.settled().attempts) == 2


def test_the_last_error_is_returned_if_all_candidates_fail(site: Site) -> None:
    own_before_backup(site, "sim-status:503", "sim-status:429")
    answer = site.chat()
    assert answer.status_code == 429
    assert answer.headers["X-Generation-Id"] == site.settled().id
    assert [each["status"] for each in site.settled().attempts] == [503, 429]
    assert Generation.objects.count() == 1
