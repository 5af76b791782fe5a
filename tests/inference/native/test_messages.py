"""Messages that pass to an upstream of Anthropic's format, and its answers, unchanged."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from catalog.pricing import Price
from catalog.tokens import Medium
from inference.models import Generation
from inference.requests.messages.native import parse_message
from tests.support import factories
from tests.support.database.snapshots import everything, unchanged
from tests.support.governance import filter_secret
from tests.support.inference.messages import (
    answered,
    asked,
    events_of,
    refusal,
    result,
    send,
    text,
    use,
)
from tests.support.inference.prices import read_pricing
from tests.support.inference.site import MESSAGES, OPERATOR_SECRET, Site
from tests.support.upstreams.recorded import (
    AGENT,
    BETAS,
    BLOCKS,
    COST,
    ENDED,
    EVENTS,
    FOUND_SECRET,
    MESSAGE,
    RATES,
    STARTED,
    USAGE,
)
from tests.support.upstreams.speaking import Upstream
from tests.support.upstreams.standing import make_maker

SEARCH: Final = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}


def publish(site: Site, maker: Upstream, price: Price | None = None) -> None:
    """Publishes the model at the maker with the operator's credential."""
    price = price or read_pricing(RATES)
    site.publish("claude-opus-5", provider=make_maker(maker), price=price)


@pytest.fixture
def claude(site: Site, maker: Upstream) -> Upstream:
    """The maker, at which the model is published."""
    publish(site, maker)
    return maker


def raw_members(body: bytes) -> dict[str, str]:
    """Returns the members of a JSON object as they are written."""
    decoder, text, found = json.JSONDecoder(), body.decode(), {}
    position = 1
    while text[position - 1] != "}":
        name, position = decoder.raw_decode(text, position)
        position = text.index(":", position) + 1
        while text[position] == " ":
            position += 1
        _, end = decoder.raw_decode(text, position)
        found[name] = text[position:end]
        position = end
        while text[position] in ", ":
            position += 1
        position += text[position] == "}"
    return found


def test_the_body_of_an_agent_arrives_as_it_was_sent(site: Site, claude: Upstream) -> None:
    raw = json.dumps(AGENT, ensure_ascii=False, separators=(", ", " : ")).encode()
    answer = site.post(
        None,
        path=f"{MESSAGES}?beta=true",
        data=raw,
        headers={
            "Content-Type": "application/json",
            "anthropic-version": "2026-10-21",
            "anthropic-beta": BETAS,
            "anthropic-workspace-id": "wrkspc_1",
        },
    )
    assert answer.status_code == 200, answer.text
    assert claude.server is not None
    [(head, body)] = claude.server.requests
    given, arrived = raw_members(raw), raw_members(body)
    assert list(arrived) == list(given)
    changed = {name for name in given if given[name] != arrived[name]}
    assert changed == {"model", "metadata"}
    assert arrived["model"] == '"claude-opus-5"'
    path, headers = claude.requested(head)
    assert path == "/v1/messages"
    assert (headers["anthropic-version"], headers["anthropic-beta"]) == ("2026-10-21", BETAS)
    # The account of whoever pays is not the caller's to choose.
    assert "anthropic-workspace-id" not in headers
    assert headers["x-api-key"] == OPERATOR_SECRET
    user = json.loads(arrived["metadata"])["user_id"]
    assert user
    assert "device_id" not in user


def test_a_field_without_a_value_is_not_sent(site: Site, claude: Upstream) -> None:
    body = asked(system=None, tools=None, thinking=None, temperature=None, stop_sequences=[])
    assert send(site, body).status_code == 200
    [(_, _, sent)] = claude.seen()
    assert {name for name, value in sent.items() if value is None} == set()
    assert sent["stop_sequences"] == []


def test_two_tenants_have_two_users_and_one_body(site: Site, claude: Upstream) -> None:
    other = factories.make_tenant("Other")
    for key in (site.tenant.api_key, other.api_key):
        assert send(site, AGENT, key=key).status_code == 200
    (_, _, first), (_, _, second) = claude.seen()
    assert first.pop("metadata") != second.pop("metadata")
    assert first == second


def test_the_answer_passes_with_our_id_model_and_cost(site: Site, claude: Upstream) -> None:
    answer = answered(site, asked(tools=[SEARCH]))
    row = site.settled()
    body = answer.json()
    usage = body["usage"]
    assert body == {
        **MESSAGE,
        "id": row.id,
        "model": site.model.slug,
        "provider": "Maker",
        "usage": {
            **USAGE,
            "cost": usage["cost"],
            "is_byok": False,
            "cost_details": usage["cost_details"],
        },
    }
    assert usage["cost"] == pytest.approx(COST, abs=1e-12)
    assert row.cost_nano == round(COST * 10**9)
    assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens) == (150, 40, 20)
    assert (row.finish_reason, row.native_finish_reason) == ("stop", "pause_turn")
    assert (row.upstream_id, row.upstream_model) == ("msg_1", "claude-opus-5")
    assert claude.seen()[0][2]["tools"] == [SEARCH]


def test_the_events_pass_with_our_id_model_and_cost(site: Site, claude: Upstream) -> None:
    answer = answered(site, asked(tools=[SEARCH], stream=True))
    row = site.settled()
    events = events_of(answer.content)
    started, ended = events[0], events[-2]
    assert started["message"] == {
        **STARTED["message"],
        "id": row.id,
        "model": site.model.slug,
        "provider": "Maker",
    }
    assert events[1:-2] == EVENTS[1:-2]
    assert {**ended, "usage": None} == {**ENDED[0], "usage": None}
    assert ended["usage"]["cost"] == pytest.approx(COST, abs=1e-12)
    assert ended["usage"]["server_tool_use"] == USAGE["server_tool_use"]
    assert events[-1] == {"type": "message_stop"}
    assert row.cost_nano == round(COST * 10**9)
    assert (row.finish_reason, row.native_finish_reason) == ("stop", "pause_turn")
    assert row.is_estimated is False


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tools": [{"type": "code_execution_20260120", "name": "c"}]}, "code_execution_20260120"),
        ({"tools": [{"type": "advisor_20260301", "name": "a"}]}, "advisor_20260301"),
        ({"tools": [{"type": "strange_2027", "name": "a"}]}, "strange_2027"),
        (
            {"mcp_servers": [{"type": "url", "url": "https://a.example", "name": "a"}]},
            "mcp_servers",
        ),
        ({"container": {"skills": [{"type": "custom", "skill_id": "s"}]}}, "container"),
        ({"container": "container_1"}, "container"),
        ({"fallbacks": [{"model": "claude-haiku-4-5"}]}, "fallbacks"),
        ({"speed": "fast"}, "speed"),
        ({"thread": {"id": "thread_1"}}, "thread"),
        ({"betas_of_next_year": {"a": [1.50]}}, "betas_of_next_year"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"service_tier": "priority"}, "service_tier"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "document", "source": {"type": "file", "file_id": "file_1"}}
                        ],
                    }
                ]
            },
            "file_id",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "document",
                                "source": {
                                    "type": "content",
                                    "content": [
                                        {
                                            "type": "image",
                                            "source": {"type": "file", "file_id": "file_1"},
                                        }
                                    ],
                                },
                            }
                        ],
                    }
                ]
            },
            "file_id",
        ),
    ],
)
def test_what_has_no_rate_is_refused_by_name_where_credits_pay(
    site: Site, claude: Upstream, fields: dict[str, Any], name: str
) -> None:
    with unchanged():
        error = refusal(site, asked(**fields))
    assert error["type"] == "invalid_request_error"
    assert error["message"] == (
        f"{name}: no endpoint of 'acme/falcon' can do it at a known price. Leave it out, or use a "
        "credential of your own."
    )
    assert claude.seen() == []
    # Whoever pays the provider decides.
    provider = site.model.endpoints.get().provider
    factories.make_credential(site.tenant, provider)
    assert send(site, asked(**fields)).status_code == 200
    [(_, _, body)] = claude.seen()
    assert {member: body[member] for member in fields} == fields


@pytest.mark.parametrize(
    "fields",
    [
        {"speed": "standard", "inference_geo": "global", "service_tier": "standard_only"},
        {"mcp_servers": [], "container": None, "fallbacks": []},
        {"diagnostics": {"previous_message_id": "msg_0"}, "output_config": {"task_budget": 5}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "updates"}},
        {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        {"tools": [{"type": "text_editor_20250728", "name": "e", "max_characters": 9}]},
        {"tools": [{"type": "memory_20250818", "name": "memory"}]},
        {"tools": [{"type": "computer_20251124", "name": "c", "display_width_px": 9}]},
        {"tools": [{"type": "web_fetch_20260209", "name": "web_fetch", "max_uses": 1}]},
        {"max_tokens": 0},
        {"stop_sequences": list("abcde")},
        {"prefill": "The best answer is ("},
    ],
    ids=str,
)
def test_what_costs_its_tokens_alone_passes(
    site: Site, claude: Upstream, fields: dict[str, Any]
) -> None:
    answered(site, asked(**fields))
    [(_, _, body)] = claude.seen()
    asked_for = {name: value for name, value in fields.items() if value not in (None, [])}
    assert {name: body[name] for name in asked_for} == asked_for


@pytest.mark.parametrize(
    ("given", "sent", "left_out"),
    [
        ("effort-2025-11-24, strange-2027-01-01", "effort-2025-11-24", "strange-2027-01-01"),
        (
            "mcp-client-2026-09-15,skills-2025-10-02",
            None,
            "mcp-client-2026-09-15, skills-2025-10-02",
        ),
        ("claude-code-20250219,effort-2027-12-31", "claude-code-20250219,effort-2027-12-31", None),
    ],
)
def test_the_operators_credential_asks_for_the_betas_of_a_list(
    site: Site, claude: Upstream, given: str, sent: str | None, left_out: str | None
) -> None:
    answer = send(site, asked(), anthropic_beta=given)
    assert (answer.status_code, answer.headers.get("X-Left-Out")) == (200, left_out)
    # A credential of the organization sends all of them.
    factories.make_credential(site.tenant, site.model.endpoints.get().provider)
    answer = send(site, asked(), anthropic_beta=given)
    assert (answer.status_code, answer.headers.get("X-Left-Out")) == (200, None)
    assert [head.get("anthropic-beta") for _, head, _ in claude.seen()] == [sent, given]


@pytest.mark.parametrize(
    "fields",
    [
        {"system": [{"type": "text", "text": f"x-anthropic-billing-header: {'x' * 9_000}"}]},
        {"context_management": {"edits": [{"instructions": "x" * 9_000}]}},
    ],
    ids=["attribution", "instructions"],
)
def test_the_hold_covers_text_that_only_the_native_body_has(fields: dict[str, Any]) -> None:
    request = parse_message(json.dumps(asked(**fields)).encode())
    assert request.native is not None
    assert min(request.prompt_bound, request.text.size) > 9_000


ENCODED: Final = {"type": "base64", "media_type": "image/png", "data": "A" * 20_000}
PICTURE: Final = {"type": "image", "source": ENCODED}
PDF: Final = {"type": "document", "source": {**ENCODED, "media_type": "application/pdf"}}
PAGES: Final = {"type": "document", "title": "t", "source": {"type": "content", "content": []}}
SEARCHED: Final = {
    "type": "web_search_tool_result",
    "tool_use_id": "s",
    "content": [{"type": "web_search_result", "url": "u", "encrypted_content": "x" * 9_000}],
}


def pages(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {**PAGES, "source": {"type": "content", "content": [*blocks]}}


def fetched(document: dict[str, Any]) -> dict[str, Any]:
    page = {"type": "web_fetch_result", "url": "u", "content": document}
    return {"type": "web_fetch_tool_result", "tool_use_id": "s", "content": page}


def turns(said: list[Any], told: list[Any]) -> dict[str, Any]:
    """Returns a body with an earlier answer, and what the user says to it."""
    roles = {"assistant": said, "user": [*told, text("?")]}
    return asked(messages=[{"role": role, "content": content} for role, content in roles.items()])


@pytest.mark.parametrize(
    ("said", "told", "media"),
    [
        ([], [pages(PICTURE, text("x" * 9_000), PICTURE)], ["image", "image"]),
        ([use("a")], [result("a", [pages(PICTURE), PICTURE])], ["image", "image"]),
        ([], [{**pages(text("x" * 9_000)), "citations": {"enabled": True}}], []),
        ([], [PICTURE, PDF, SEARCHED], ["image", "file"]),
        ([], [{**PDF, "title": "x" * 1_500}], ["file"]),
        ([SEARCHED], [], []),
        ([text("a", citations=[{"cited_text": "x" * 9_000}])], [], []),
        ([{**use("a"), "caller": {"type": "x" * 9_000}}], [result("a")], []),
    ],
    ids=["pages", "pages of a tool", "text", "all", "title", "search", "citations", "caller"],
)
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 0}], ids=["both", "native"])
def test_the_hold_covers_blocks_that_chat_does_not_know(
    said: list[Any], told: list[Any], media: list[str], fields: dict[str, Any]
) -> None:
    body = json.dumps({**turns(said, told), **fields}, separators=(",", ":")).encode()
    request = parse_message(body)
    assert request.native is not None
    assert (request.native.problem is None) is not bool(fields)
    # A source has 20,000 bytes of media, and at most 100 around them.
    text_bytes = len(request.native.fields["messages"]) - len(media) * 20_100
    assert text_bytes <= request.prompt_bound < text_bytes + 800
    assert [medium.modality for medium in request.media] == media
    assert request.images == media.count("image")
    assert request.inputs == set(media)
    assert request.forms == {f"base64_{modality}s" for modality in media}
    # By its size a request is built on the event loop or in a thread.
    assert request.size == len(body)


def test_a_model_without_media_goes_on_after_a_fetched_page() -> None:
    request = parse_message(json.dumps(turns([fetched(PDF), fetched(pages(PICTURE))], [])).encode())
    assert request.native is not None
    assert (request.images, request.inputs, request.forms) == (0, set(), set())
    # What the provider makes of it is held.
    assert request.media == (Medium("file"), Medium("file"))
    assert request.prompt_bound < 1_000
    assert request.least_tokens < 100


def test_contents_of_any_depth_are_measured() -> None:
    block: dict[str, Any] = pages(PICTURE)
    for _ in range(20):
        block = result("a", [block])
    request = parse_message(json.dumps({**turns([], [block]), "max_tokens": 0}).encode())
    assert (request.media, request.prompt_bound > 20_000) == ((), True)


def test_the_type_behind_the_text_of_a_document_is_read() -> None:
    source = {"data": "x" * 9_000, "media_type": "text/plain", "type": "text"}
    document = {"type": "document", "context": "c", "source": source}
    request = parse_message(json.dumps(asked([document])).encode())
    assert (request.media, request.prompt_bound > 9_000) == ((), True)


def test_a_lifetime_that_chat_does_not_show_is_known() -> None:
    call = {**use("a"), "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    request = parse_message(json.dumps(turns([call], [result("a")])).encode())
    assert b"ttl" not in bytes(request.fields["messages"])
    assert request.has_long_cache


@pytest.mark.parametrize(("max_uses", "counted"), [(3, 3), (1_000, 1_000), (1_001, 1_000)])
def test_the_hold_covers_every_search_that_the_caller_allows(max_uses: int, counted: int) -> None:
    body = asked(tools=[{**SEARCH, "max_uses": max_uses}])
    assert parse_message(json.dumps(body).encode()).allowed.searches == counted


def test_a_search_without_a_rate_is_refused(site: Site, maker: Upstream) -> None:
    publish(site, maker, read_pricing({}))
    error = refusal(site, asked(tools=[SEARCH]))
    assert error["message"].startswith("web_search_20250305: no endpoint")


@pytest.mark.parametrize("name", ['"ttl"', r'"\u0074tl"'], ids=["plain", "escaped"])
def test_a_lifetime_of_an_hour_needs_a_rate_of_its_own(
    site: Site, maker: Upstream, name: str
) -> None:
    rates = {name: rate for name, rate in RATES.items() if name != "input_cache_write_1h"}
    publish(site, maker, read_pricing(rates))
    body = json.dumps(AGENT).replace('"ttl"', name)
    headers = {"Content-Type": "application/json"}
    answer = site.post(None, path=MESSAGES, data=body, headers=headers)
    assert answer.headers["X-Left-Out"] == "cache_control.ttl"
    assert maker.seen()[0][2]["system"][1]["cache_control"] == {"type": "ephemeral"}


def test_a_lifetime_of_an_hour_passes_with_a_rate(site: Site, claude: Upstream) -> None:
    answer = send(site, AGENT)
    assert "X-Left-Out" not in answer.headers
    assert claude.seen()[0][2]["system"] == AGENT["system"]


def test_an_upstream_of_another_format_is_not_asked_for_what_chat_lacks(
    site: Site, maker: Upstream
) -> None:
    site.publish()
    before = everything()
    error = refusal(site, asked(tools=[SEARCH]))
    assert error["message"] == "tools[0].type: Only tools that the caller runs, of type 'custom'."
    assert error["details"]["excluded"][0]["excluded_by"] == ["native_format"]
    assert (everything(), site.dialled()) == (before, [])
    publish(site, maker)
    answer = answered(site, asked(tools=[SEARCH]))
    assert answer.json()["provider"] == "Maker"
    assert site.dialled() == []


def test_another_format_answers_after_a_failure_what_chat_can_say(
    site: Site, claude: Upstream
) -> None:
    site.publish(price=factories.make_price("0.1", "0.1"))
    claude.status = "503 Busy"
    answer = answered(
        site, {**AGENT, "tools": [], "stream": False, "max_tokens": 50}, anthropic_beta=BETAS
    )
    assert answer.json()["content"][0]["text"].endswith(" Hi")
    [request] = site.dialled()
    # Other models would read Claude Code's line for Anthropic as a prompt.
    assert [part["text"] for part in request.body["messages"][0]["content"]] == [
        "You are Claude Code."
    ]
    assert "anthropic-beta" not in request.headers


def test_an_error_of_the_upstream_keeps_its_words(site: Site, claude: Upstream) -> None:
    words = (
        "messages.1.content.0: Invalid `signature` in `thinking` block: adaptive thinking is not "
        f"supported on this model (key {OPERATOR_SECRET})"
    )
    claude.status = "400 Bad Request"
    claude.answer = {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": words},
        "request_id": "req_1",
    }
    error = refusal(site, AGENT)
    assert error["type"] == "invalid_request_error"
    assert error["message"] == words.replace(OPERATOR_SECRET, "********")


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (None, "context-1m-2025-08-07"),
        ("effort-2025-11-24, pdfs", "effort-2025-11-24, pdfs,context-1m-2025-08-07"),
        ("pdfs, context-1m-2025-08-07", "pdfs, context-1m-2025-08-07"),
    ],
)
def test_a_name_for_a_million_tokens_adds_the_beta(
    site: Site, claude: Upstream, given: str | None, sent: str
) -> None:
    headers = {} if given is None else {"anthropic_beta": given}
    for name, beta in (("acme/falcon[1m]", sent), ("acme/falcon", given)):
        assert send(site, {**asked(), "model": name}, **headers).status_code == 200
        assert claude.seen()[-1][1].get("anthropic-beta") == beta


def test_a_header_of_another_script_is_refused(site: Site, claude: Upstream) -> None:
    headers = {"anthropic-beta": b"a\xe9"}
    refused = site.post(asked(), path=MESSAGES, headers=headers)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("anthropic-beta: ")
    assert claude.seen() == []


def lie(site: Site, maker: Upstream, *events: dict[str, Any]) -> tuple[list[Any], Generation]:
    # The answer has begun when the caller gets the first piece of what is read.
    first, *rest = events
    maker.events = [first, {"type": "ping", "padding": "x" * 20_000}, *rest]
    answer = answered(site, asked(stream=True))
    return events_of(answer.content), site.settled()


WRONG_INDEX: Final = {
    "type": "content_block_delta",
    "index": 7,
    "delta": {"type": "input_json_delta", "partial_json": "{"},
}
LATE: Final = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ((STARTED, *BLOCKS, WRONG_INDEX, *ENDED), "has not begun"),
        ((STARTED, STARTED), "one message"),
        ((STARTED, *BLOCKS, LATE, *ENDED), "is overloaded"),
        ((STARTED, *BLOCKS[:9]), "end mark"),
        ((STARTED, {**BLOCKS[0], "content_block": 5}), "malformed"),
        ((STARTED, {"type": "ping", "padding": "x" * 34_000_000}), "too large"),
    ],
    ids=["index", "again", "error", "cut", "type", "huge"],
)
def test_a_stream_that_breaks_its_format_ends_in_an_error(
    site: Site, claude: Upstream, events: tuple[dict[str, Any], ...], message: str
) -> None:
    found, row = lie(site, claude, *events)
    assert found[-1]["type"] == "error"
    assert message in found[-1]["error"]["message"]
    assert "message_stop" not in [event["type"] for event in found]
    assert row.status == Generation.Status.FAILED


def test_a_whole_stream_without_its_end_mark_gets_one(site: Site, claude: Upstream) -> None:
    found, row = lie(site, claude, STARTED, *BLOCKS, ENDED[0])
    assert [event["type"] for event in found[-2:]] == ["message_delta", "message_stop"]
    assert row.status == Generation.Status.COMPLETED


def test_a_usage_that_shrinks_costs_what_was_used(site: Site, claude: Upstream) -> None:
    shrunk = {**ENDED[0], "usage": {"input_tokens": 1, "output_tokens": 1}}
    found, row = lie(site, claude, STARTED, *BLOCKS, ENDED[0], shrunk, ENDED[1])
    assert [event["type"] for event in found].count("message_delta") == 2
    # The counts of the last event are those of the answer, for the caller and for the ledger.
    assert found[-2]["usage"]["cost"] == row.cost_nano / 10**9


def test_counts_that_the_end_repeats_as_zero_are_those_of_the_beginning(
    site: Site, claude: Upstream
) -> None:
    begun = {"input_tokens": 30, "cache_read_input_tokens": 20, "output_tokens": 0}
    started = {**STARTED, "message": {**STARTED["message"], "usage": begun}}
    zeros = {"input_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    ended = {**ENDED[0], "usage": {**zeros, "output_tokens": 4}}
    found, row = lie(site, claude, started, *BLOCKS, ended, ENDED[1])
    told = {name: found[-2]["usage"][name] for name in ended["usage"]}
    assert told == {**zeros, **begun, "output_tokens": 4}
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (50, 20, 4)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_compaction_of_the_prompt_costs_its_tokens(
    site: Site, claude: Upstream, is_stream: bool
) -> None:
    usage = {
        "input_tokens": 30,
        "output_tokens": 5,
        "iterations": [
            {"type": "compaction", "input_tokens": 180, "output_tokens": 20},
            {"type": "message", "input_tokens": 30, "output_tokens": 5},
        ],
    }
    message = {**MESSAGE, "usage": usage}
    started = {"input_tokens": 30, "output_tokens": 1}
    claude.answer = message
    claude.events = [
        {**STARTED, "message": {**message, "content": [], "usage": started}},
        *BLOCKS,
        {**ENDED[0], "usage": usage},
        ENDED[1],
    ]
    edits = {"edits": [{"type": "compact_20260112"}]}
    body = asked("x" * 300, context_management=edits, stream=is_stream)
    answered(site, body, anthropic_beta="compact-2026-01-12")
    row = site.settled()
    assert (row.prompt_tokens, row.completion_tokens) == (210, 25)


def test_a_claim_beyond_what_was_allowed_is_not_told_as_a_count(
    site: Site, claude: Upstream
) -> None:
    claim = {"input_tokens": 10**9, "output_tokens": 10**9}
    started = {**STARTED, "message": {**STARTED["message"], "usage": claim}}
    found, row = lie(site, claude, started, *BLOCKS, {**ENDED[0], "usage": claim}, ENDED[1])
    usage = found[-2]["usage"]
    assert usage["output_tokens"] == row.completion_tokens == 50
    assert usage["input_tokens"] == row.prompt_tokens < 10**6
    assert found[0]["message"]["usage"]["input_tokens"] < 10**6


def test_a_stream_without_its_last_usage_still_ends(site: Site, claude: Upstream) -> None:
    found, row = lie(site, claude, STARTED, *BLOCKS, ENDED[1])
    assert [event["type"] for event in found[-2:]] == ["message_delta", "message_stop"]
    assert found[-2]["usage"]["output_tokens"] == row.completion_tokens
    assert row.is_estimated is True


def test_what_a_filter_redacts_is_redacted_in_the_native_body(site: Site, claude: Upstream) -> None:
    filter_secret(site.tenant.workspace, "redact")
    answered(site, asked([FOUND_SECRET], system="keep SECRET"))
    [(_, _, body)] = claude.seen()
    [sent] = body["messages"][0]["content"]
    content = [{"type": "text", "text": "the [S]"}]
    assert sent == {**FOUND_SECRET, "title": "about [S]", "content": content}
    assert body["system"] == "keep [S]"
    assert body["max_tokens"] == 50


def test_what_a_filter_blocks_reaches_no_upstream(site: Site, claude: Upstream) -> None:
    filter_secret(site.tenant.workspace, "block")
    cited = {"type": "text", "text": "a", "citations": [{"cited_text": "SECRET"}], "x": 1}
    refusal(site, asked([cited]), 403)
    answered(site, asked(), anthropic_beta="SECRET")
    assert [head.get("anthropic-beta") for _, head, _ in claude.seen()] == [None]


def test_a_match_that_only_the_native_body_has_is_left_out_with_it(
    site: Site, claude: Upstream
) -> None:
    filter_secret(site.tenant.workspace, "block")
    earlier = {"type": "text", "text": "a", "citations": [{"cited_text": "SECRET"}]}
    turns = [{"role": "assistant", "content": [earlier]}, {"role": "user", "content": "b"}]
    assert send(site, asked(messages=turns)).status_code == 200
    [(_, _, body)] = claude.seen()
    assert "SECRET" not in json.dumps(body)
