"""Answers of the simulator, behaviour by behaviour."""

import asyncio
import base64
import gzip
import json
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest

from config.local.certificates import Certificates
from tests.support.simulator import behaviours
from tests.support.simulator.behaviours import BEHAVIOURS
from tests.support.simulator.server import Simulator
from tests.support.upstreams.simulated import CHAT, Answer, ask, asking, request_bytes, send

COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def normal(body: bytes) -> str:
    return re.sub(r'"created":\d{10}', '"created":0', re.sub(r"\d{24}", "ID", body.decode()))


def test_echo_repeats_the_last_user_message(simulator: Simulator) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": [{"type": "text", "text": "grüß  Gott"}]},
    ]
    answer = ask(simulator, "acme/model-1:free", messages=messages)
    assert (answer.status, answer.complete) == (200, True)
    assert normal(answer.body) == (
        '{"id":"chatcmpl-ID","object":"chat.completion","created":0,"model":"acme/model-1:free",'
        '"system_fingerprint":"fp_simulated","choices":[{"index":0,"message":'
        '{"role":"assistant","content":"You said: grüß Gott"},"logprobs":null,'
        '"finish_reason":"stop"}],"usage":{"prompt_tokens":6,"completion_tokens":4,'
        '"total_tokens":10}}'
    )


def test_echo_gives_each_answer_its_own_id(simulator: Simulator) -> None:
    ids = [ask(simulator, "sim-echo").json["id"] for _ in range(2)]
    assert ids == [f"chatcmpl-{1:024}", f"chatcmpl-{2:024}"]


@pytest.mark.parametrize("text", ["", "Hello!", "ping"])
def test_echo_answers_a_trivial_message_with_a_greeting(simulator: Simulator, text: str) -> None:
    messages = [{"role": "user", "content": text}]
    assert ask(simulator, "sim-echo", messages=messages).text == (
        "Hello from the simulated upstream. Ask me something and I will repeat it."
    )


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_echo_stops_at_the_limit(simulator: Simulator, name: str) -> None:
    more: dict[str, Any] = {name: 3}
    answer = ask(simulator, "sim-echo", **more)
    assert answer.text == "You said: say"
    assert answer.json["choices"][0]["finish_reason"] == "length"
    assert answer.json["usage"]["completion_tokens"] == 3


def test_echo_streams_words(simulator: Simulator) -> None:
    answer = ask(simulator, "sim-echo", stream=True)
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.deltas == _ECHO
    assert answer.events[-1] == "[DONE]"
    assert [event["choices"][0]["finish_reason"] for event in answer.events[:-1]] == [
        *[None] * 5, "stop",
    ]  # fmt: skip
    assert not any("usage" in event for event in answer.events)
    assert normal(answer.body).partition("\n\n")[0] == (
        'data: {"id":"chatcmpl-ID","object":"chat.completion.chunk","created":0,'
        '"model":"sim-echo","system_fingerprint":"fp_simulated","choices":[{"index":0,'
        '"delta":{"role":"assistant","content":""},"finish_reason":null}]}'
    )


def test_echo_streams_usage_when_asked(simulator: Simulator) -> None:
    options = {"include_usage": True}
    events = ask(simulator, "sim-echo", stream=True, stream_options=options).events
    assert [event["usage"] for event in events[:-2]] == [None] * 6
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == dict(zip(COUNTS, (2, 4, 6), strict=True))


def test_completions_answer_a_prompt(simulator: Simulator) -> None:
    for stream in (False, True):
        body = {"model": "m", "prompt": "say it", "stream": stream}
        answer = send(simulator, request_bytes(body, "/v1/completions"))
        if stream:
            texts = [event["choices"][0]["text"] for event in answer.events[:-1]]
            assert texts == ["You", " said:", " say", " it", ""]
        else:
            assert answer.json["object"] == "text_completion"
            assert answer.json["choices"] == [
                {"index": 0, "text": "You said: say it", "logprobs": None, "finish_reason": "stop"}
            ]


def test_embeddings_are_deterministic_in_both_encodings(simulator: Simulator) -> None:
    found = []
    for encoding in ("float", "base64"):
        body = {"model": "m", "input": ["a b", "c"], "dimensions": 3, "encoding_format": encoding}
        found.append(send(simulator, request_bytes(body, "/v1/embeddings")).json)
    assert found[0]["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert [item["index"] for item in found[0]["data"]] == [0, 1]
    floats, packed = ([item["embedding"] for item in answer["data"]] for answer in found)
    assert [len(vector) for vector in floats] == [3, 3]
    assert floats[0] != floats[1]
    assert packed == [base64.b64encode(struct.pack("<3f", *vector)).decode() for vector in floats]


def test_models_lists_the_behaviours(simulator: Simulator) -> None:
    answer = send(simulator, request_bytes({}, "/v1/models", method="GET"))
    assert [item["id"] for item in answer.json["data"]] == list(BEHAVIOURS)


@pytest.mark.parametrize(
    ("key", "path", "body", "status"),
    [
        ("bad-key", CHAT, asking("sim-echo"), 401),
        ("", CHAT, asking("sim-echo"), 401),
        ("key", "/v1/nothing", asking("sim-echo"), 404),
        ("key", CHAT, asking("sim-unheard-of"), 404),
        ("key", CHAT, {"messages": []}, 400),
        ("key", CHAT, {"model": "sim-echo"}, 400),
        ("key", CHAT, ["sim-echo"], 400),
        ("key", CHAT, asking("sim-slow:soon"), 400),
    ],
)
def test_refusals_have_the_shape_of_openai_errors(
    simulator: Simulator, key: str, path: str, body: Any, status: int
) -> None:
    answer = send(simulator, request_bytes(body, path, key))
    assert answer.status == status
    assert list(answer.json["error"]) == ["message", "type", "param", "code"]


def test_keys_and_the_status_of_the_model_list_can_be_set(certificates: Certificates) -> None:
    statuses = {}
    server = Simulator(certificates, keys={"bad-but-mine"}, models_status=503)
    with server.run_in_thread():
        for key in ("bad-but-mine", "key"):
            for method, path in (("GET", "/v1/models"), ("POST", CHAT)):
                request = request_bytes(asking("m"), path, key, method)
                statuses[key, method] = send(server, request).status
    assert statuses == {
        ("bad-but-mine", "GET"): 503,
        ("bad-but-mine", "POST"): 200,
        ("key", "GET"): 401,
        ("key", "POST"): 401,
    }


Check = Callable[[Answer], bool]


def ok(check: Check = lambda a: True) -> Check:
    return lambda a: (a.status, a.complete, a.ending) == (200, True, "closed") and check(a)


def usage_is(*counts: Any) -> Check:
    return ok(lambda a: list(a.json["usage"].values()) == list(counts))


def error_is(status: int, **members: Any) -> Check:
    return lambda a: a.status == status and members.items() <= a.json["error"].items()


def streams_like_echo(reshape: Callable[[bytes], bytes]) -> Check:
    """Returns a check that a stream equals the ordinary one after ``reshape``."""

    def check(answer: Answer) -> bool:
        body = reshape(answer.body)
        return ok(lambda a: a.deltas == _ECHO and a.events[-1] == "[DONE]")(
            Answer(b"", answer.ending, answer.status, answer.headers, body, answer.complete)
        )

    return check


_ECHO: list[Any] = [
    {"role": "assistant", "content": ""},
    *({"content": word} for word in ("You", " said:", " say", " it")),
    {},
]

TOOL = {"id": "call_0", "type": "function"}
ARGUMENTS = json.dumps({"city": "Zürich", "number": 0})

PLAIN: dict[str, Check] = {
    "sim-echo": ok(lambda a: a.text == "You said: say it"),
    "sim-chunks:3": ok(lambda a: a.text == " 0 1 2" and a.json["usage"]["total_tokens"] == 5),
    "sim-big:70000": ok(lambda a: a.text == "x" * 70000),
    "sim-mirror": ok(lambda a: json.loads(a.text)["body"] == asking("sim-mirror", stream=False)),
    "sim-tools": ok(lambda a: a.json["usage"]["total_tokens"] == 9 and a.json["choices"][0] == {
        "index": 0, "logprobs": None, "finish_reason": "tool_calls",
        "message": {"role": "assistant", "content": None, "tool_calls": [
            TOOL | {"function": {"name": "get_weather", "arguments": ARGUMENTS}}]}}),
    "sim-reasoning": ok(lambda a: a.json["choices"][0]["message"] == {
        "role": "assistant", "content": "You said: say it", "reasoning_content": "Let me think."}
        and a.json["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}),
    "sim-content-filter": ok(
        lambda a: a.json["choices"][0]["finish_reason"] == "content_filter"),
    "sim-extra": ok(lambda a: a.json["timings"]["predicted_ms"] == 2.5),
    "sim-cached:1": ok(
        lambda a: a.json["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}),
    "sim-tokens:7,8": usage_is(7, 8, 15),
    "sim-versioned": ok(lambda a: a.json["model"] == "sim-versioned-2026-01-01"),
    "sim-slow:0.01": ok(lambda a: a.text == "You said: say it"),
    "sim-flaky": error_is(503, type="overloaded_error"),
    "sim-limited:0": error_is(429),
    "sim-least:5000": ok(lambda a: a.text == "You said: say it"),
    "sim-exhausted:7": ok(
        lambda a: a.headers["x-ratelimit-remaining-requests"] == "0"
        and a.headers["x-ratelimit-reset-requests"] == "7s"),
    "sim-redirect": lambda a: (a.status, a.headers["location"]) == (302, "/v1/elsewhere"),
    "sim-redirect-307": lambda a: a.status == 307,
    "sim-status": error_is(500, type="server_error"),
    "sim-status-418": error_is(418),
    "sim-status-503:9": lambda a: (a.status, a.headers["retry-after"]) == (503, "9"),
    "sim-echo-key": error_is(401, message="Incorrect API key provided: Bearer key."),
    "sim-echo-key:200": error_is(200, message="Incorrect API key provided: Bearer key."),
    "sim-huge-error": lambda a: a.json["error"]["message"] == (
        "\x00\x1b[31m\r\n\u202e\x7f" + "A" * 1_000_000),
    "sim-error-number": error_is(429, code=429),
    "sim-firewall": lambda a: a.status == 403,
    "sim-strange-file": error_is(403, code="PERMISSION_DENIED"),
    "sim-named:418,teapot": error_is(418, code="teapot"),
    "sim-reported": error_is(200, type="overloaded_error"),
    "sim-wait:503,retry-after-ms=1500": lambda a: (
        (a.status, a.headers["retry-after-ms"]) == (503, "1500")),
    "sim-error-code": error_is(400, code="context_length_exceeded"),
    "sim-able": ok(lambda a: a.text == "say it"),
    "sim-strict": ok(lambda a: a.text == "say it"),
    "sim-strict:max_tokens": ok(lambda a: a.text == "say it"),
    "sim-too-long": error_is(400, message=(
        "This model's maximum context length is 8 tokens. However, your messages resulted in 9000 "
        "tokens.")),
    "sim-flagged": error_is(403, message="Your input was flagged by our moderation."),
    "sim-error-string": lambda a: (a.status, a.json) == (500, {"error": "the model crashed"}),
    "sim-error-text": lambda a: (a.status, a.body) == (500, b"Internal Server Error"),
    "sim-error-200": error_is(200, type="server_error"),
    "sim-wrong-model": ok(lambda a: a.json["model"] == "another-model"),
    "sim-wrong-shape": ok(lambda a: a.json == {"status": "ok", "items": [1, 2]}),
    "sim-html": ok(lambda a: a.headers["content-type"] == "text/html"),
    "sim-truncated": ok(lambda a: a.body.startswith(b'{"id":') and not a.body.endswith(b"}")),
    "sim-short-body": lambda a: (
        a.ending == "closed" and int(a.headers["content-length"]) == len(a.body) + 100),
    "sim-reset-body": lambda a: (
        a.ending == "cut" and int(a.headers["content-length"]) // 2 == len(a.body)),
    "sim-endless": lambda a: (a.status, a.ending, a.complete) == (200, "enough", False)
        and b'"content":"xxx' in a.body,
    "sim-gzip": ok(lambda a: a.headers["content-encoding"] == "gzip" and json.loads(
        gzip.decompress(a.body))["usage"]["total_tokens"] == 6),
    "sim-no-usage": ok(lambda a: "usage" not in a.json),
    "sim-null-usage": ok(lambda a: a.json["usage"] is None),
    "sim-usage-negative": usage_is(-1, -1, -1),
    "sim-usage-huge": usage_is(10**9, 10**9, 10**9),
    "sim-usage-float": usage_is(1.5, 1.5, 1.5),
    "sim-usage-string": usage_is("5", "5", "5"),
    "sim-usage-nan": ok(lambda a: b'"prompt_tokens":NaN' in a.body),
    "sim-usage-zero": usage_is(0, 0, 0),
    "sim-usage-null": usage_is(None, None, None),
    "sim-choices:3": ok(
        lambda a: [c["message"]["content"] for c in a.json["choices"]] == ["a"] * 3),
    "sim-connect-reset": lambda a: (a.raw, a.ending) == (b"", "cut"),
    "sim-connect-close": lambda a: (a.raw, a.ending) == (b"", "closed"),
    "sim-drip:0.001": ok(lambda a: a.text == "You said: say it"),
    "sim-drip-headers:0.0001": ok(lambda a: a.text == "You said: say it"),
}  # fmt: skip

STREAMED: dict[str, Check] = {
    "sim-echo": streams_like_echo(lambda b: b),
    "sim-chunks:200": ok(lambda a: [d["content"] for d in a.deltas[1:-1]] == [
        f" {number}" for number in range(200)]),
    "sim-tools": ok(lambda a: a.deltas[0] == {"role": "assistant", "content": None}
        and a.deltas[1] == {"tool_calls": [
            {"index": 0} | TOOL | {"function": {"name": "get_weather", "arguments": ""}}]}
        and "".join(d["tool_calls"][0]["function"]["arguments"]
                    for d in a.deltas[2:-1]) == ARGUMENTS),
    "sim-reasoning": ok(lambda a: a.deltas[1:4] == [
        {"reasoning_content": "Let me"}, {"reasoning_content": " think."}, {"content": "You"}]),
    "sim-null-content": ok(lambda a: a.deltas[0] == {"role": "assistant", "content": None}),
    "sim-extra": ok(lambda a: "timings" in a.events[0]),
    "sim-wrong-model": ok(lambda a: {e["model"] for e in a.events[:-1]} == {"another-model"}),
    "sim-slow:0.01,0.001": streams_like_echo(lambda b: b),
    "sim-drip:0.0001": streams_like_echo(lambda b: b),
    "sim-gzip": streams_like_echo(gzip.decompress),
    "sim-status-429": lambda a: (a.status, a.headers["retry-after"]) == (429, "1"),
    "sim-endless": lambda a: (a.ending, a.complete) == ("enough", False)
        and a.body.startswith(b"data: {"),
    "sim-no-done": streams_like_echo(lambda b: b + b"data: [DONE]\n\n"),
    "sim-cut-event": ok(lambda a: a.body.count(b"data: ") == 3 and a.body[-1:] != b"\n"),
    "sim-cut-character": ok(lambda a: a.body.endswith(b'"content":"Z\xc3')),
    "sim-bad-json": ok(lambda a: a.body.split(b"\n\n")[2] == b'data: {"id": oops'),
    "sim-bad-shape": ok(lambda a: a.events[2] == [1, 2]),
    "sim-big-event": ok(lambda a: a.deltas[1] == {"content": "x" * 2 * 1024 * 1024}),
    "sim-choices:3": ok(lambda a: b'"delta"' in a.body and len(
        json.loads(a.body.removeprefix(b"data: "))["choices"]) == 3),
    "sim-calls:4": ok(lambda a: [len(d.get("tool_calls", ())) for d in a.deltas] == [2, 1, 1, 0]),
    "sim-burst:30": ok(lambda a: [d.get("content") for d in a.deltas] == ["a"] * 30 + [None]),
    "sim-choice-index:4": ok(lambda a: {
        c["index"] for e in a.events[:-1] for c in e["choices"]} == {4}),
    "sim-only-comments": ok(lambda a: a.body == b": still here\n\n" * 3),
    "sim-comments": streams_like_echo(lambda b: b.replace(b": still here\n\n", b"")),
    "sim-cr": streams_like_echo(lambda b: b.replace(b"\r", b"\n")),
    "sim-lf": streams_like_echo(lambda b: b),
    "sim-crlf": streams_like_echo(lambda b: b.replace(b"\r\n", b"\n")),
    "sim-no-space": streams_like_echo(lambda b: b.replace(b"data:{", b"data: {").replace(
        b"data:[", b"data: [")),
    "sim-multi-line": streams_like_echo(lambda b: b.replace(b"\ndata: ", b"\n").replace(
        b"\n\n", b"\n\ndata: ").removesuffix(b"data: ")),
    "sim-bom": streams_like_echo(lambda b: b.removeprefix(b"\xef\xbb\xbf")),
    "sim-usage-twice": ok(lambda a: [e["usage"]["total_tokens"] for e in a.events[:-1]
                                     if e["usage"]] == [6, 12]),
    "sim-usage-with-choices": ok(lambda a: (
        a.events[-2]["choices"][0]["finish_reason"], a.events[-2]["usage"]["total_tokens"]
    ) == ("stop", 6)),
    "sim-after-done": ok(lambda a: a.events[-2] == "[DONE]" and a.deltas[-1] == {
        "content": " late"}),
    "sim-error-stream": ok(lambda a: len(a.deltas) == 2 and list(a.events[2]) == ["error"]),
    "sim-error-first": ok(lambda a: [list(event) for event in a.events] == [["error"]]),
    "sim-empty-stream": ok(lambda a: a.body == b""),
    "sim-reset-stream": lambda a: (a.ending, a.complete, len(a.events)) == ("cut", False, 2),
    "sim-close-stream": lambda a: (a.ending, a.complete, len(a.events)) == ("closed", False, 2),
}  # fmt: skip

SILENT: dict[str, Check] = {
    "sim-stall": lambda a: a.raw == b"",
    "sim-stall-stream": lambda a: len(a.events) == 1 and not a.complete,
    "sim-hanging:9": lambda a: b'"content":"xxxxxxxxx' in a.body and not a.complete,
    "sim-linger": lambda a: a.events[-1] == "[DONE]" and not a.complete,
    "sim-gated": lambda a: len(a.events) == 1 and not a.complete,
    "sim-held": lambda a: a.raw == b"",
    "sim-held-status": lambda a: a.raw == b"",
    "sim-drip:60": lambda a: len(a.body) == 1,
    "sim-drip-headers:60": lambda a: a.raw == b"H",
}


@pytest.mark.parametrize("model", PLAIN)
def test_a_behaviour_gives_its_plain_answer(simulator: Simulator, model: str) -> None:
    answer = ask(simulator, model)
    assert PLAIN[model](answer), answer


@pytest.mark.parametrize("model", STREAMED)
def test_a_behaviour_gives_its_stream(simulator: Simulator, model: str) -> None:
    answer = ask(simulator, model, stream=True)
    assert STREAMED[model](answer), answer


@pytest.mark.parametrize("model", SILENT)
def test_a_silent_behaviour_stops_answering(simulator: Simulator, model: str) -> None:
    answer = ask(simulator, model, stream=True, timeout=1)
    assert answer.ending == "silence"
    assert SILENT[model](answer), answer


def test_every_behaviour_is_tested() -> None:
    names = {behaviours.find_behaviour(model)[0] for model in (*PLAIN, *STREAMED, *SILENT)}
    assert names == set(BEHAVIOURS)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("gpt-5", ("sim-echo", "")),
        ("acme/sim-slow?0.5,0.1", ("sim-slow", "0.5,0.1")),
        ("sim-drip:a/b", ("sim-drip", "a/b")),
        ("sim-status-429:7", ("sim-status", "429,7")),
        ("sim-redirect-308", ("sim-redirect", "308,")),
        ("sim-unheard-of", ("sim-unheard-of", "")),
    ],
)
def test_find_behaviour_reads_prefix_and_option(model: str, found: tuple[str, str]) -> None:
    assert behaviours.find_behaviour(model) == found


async def _read_all(server: Simulator, model: str) -> bytes:
    assert server.certificates
    reader, writer = await asyncio.open_connection(
        server.host, server.port, ssl=server.certificates.client_context()
    )
    writer.write(request_bytes(asking(model, stream=True)))
    try:
        return await reader.read()
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("model", ["sim-connect-reset", "sim-reset-body", "sim-reset-stream"])
def test_a_reset_behaviour_resets_the_tcp_connection(simulator: Simulator, model: str) -> None:
    """Uses asyncio: Python's blocking TLS sockets do not tell a reset from any other cut."""
    with pytest.raises(ConnectionResetError):
        asyncio.run(_read_all(simulator, model))


def test_flaky_behaviour_recovers(simulator: Simulator) -> None:
    statuses = [ask(simulator, "sim-flaky:2").status for _ in range(4)]
    assert statuses == [503, 503, 200, 200]


def test_limited_behaviour_refuses_after_its_limit(simulator: Simulator) -> None:
    statuses = [ask(simulator, "sim-limited:2").status for _ in range(4)]
    assert statuses == [200, 200, 429, 429]
