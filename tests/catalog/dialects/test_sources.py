"""The sources of an answer become annotations, and citations of the other interfaces."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from inference.requests.messages.reply import render_reply
from inference.requests.responses.reply import render_reply as render_response
from tests.support.dialects.reading import deltas_of, parse, parser_of, read
from tests.support.inference.messages import ended, event, raw, turned
from tests.support.inference.responses import events_of, translated, translator
from tests.support.inference.transcripts import feed_of
from tests.support.upstreams.recorded import CITED, EVENTS, MESSAGE

GROUNDED: Final[dict[str, Any]] = {
    "candidates": [
        {
            "content": {"role": "model", "parts": [{"text": "Zürich: rain. "}, {"text": "Wind."}]},
            "finishReason": "STOP",
            "groundingMetadata": {
                "groundingChunks": [
                    {"web": {"uri": "https://a.example", "title": "A"}},
                    {"web": {"uri": "https://b.example"}},
                    {"strange": 1},
                ],
                "groundingSupports": [
                    {
                        "segment": {"startIndex": 9, "endIndex": 14, "text": "rain."},
                        "groundingChunkIndices": [0, 2, 7, "x"],
                    },
                    {"segment": 5},
                ],
            },
        }
    ],
    "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4},
}


def cite(url: str, title: str, start: int, end: int, **content: str) -> dict[str, Any]:
    place = {"url": url, "title": title, "start_index": start, "end_index": end}
    return {"type": "url_citation", "url_citation": {**place, **content}}


FOUND: Final = {
    "anthropic": [
        cite("https://weather.example/zurich", "Zürich", 0, 9, content="Rain until noon.")
    ],
    # 9 bytes are 8 characters.
    "gemini": [cite("https://a.example", "A", 8, 13), cite("https://b.example", "", 0, 19)],
}
NO_CHUNKS: Final = {"groundingMetadata": {"groundingChunks": []}}


def say(text: str) -> dict[str, Any]:
    return {"parts": [{"text": text}]}


ANSWERS: Final[dict[str, Any]] = {"anthropic": MESSAGE, "gemini": GROUNDED}
STREAMS: Final[dict[str, list[Any]]] = {
    "anthropic": EVENTS,
    "gemini": [
        {"candidates": [{"content": say("Zürich: rain. "), **NO_CHUNKS}]},
        {**GROUNDED, "candidates": [{**GROUNDED["candidates"][0], "content": say("Wind.")}]},
    ],
}


def message_of(kind: str, answer: Any) -> Any:
    return parse(kind, answer).fields["choices"][0]["message"]


def grounded_by(metadata: Any) -> dict[str, Any]:
    candidate = {**GROUNDED["candidates"][0], "groundingMetadata": metadata}
    return {**GROUNDED, "candidates": [candidate]}


@pytest.mark.parametrize("kind", FOUND)
def test_sources_become_annotations(kind: str) -> None:
    assert message_of(kind, ANSWERS[kind])["annotations"] == FOUND[kind]


@pytest.mark.parametrize("kind", FOUND)
def test_sources_are_streamed_after_their_text(kind: str) -> None:
    deltas = deltas_of(read(kind, feed_of(kind, STREAMS[kind])))
    found = [each for delta in deltas for each in delta.get("annotations", ())]
    assert found == FOUND[kind]
    assert "".join(delta.get("content", "") for delta in deltas).endswith((".", "rains."))


@pytest.mark.parametrize("name", ["citationSources", "citations"])
def test_sources_of_what_gemini_recites_become_annotations(name: str) -> None:
    ended = {**GROUNDED["candidates"][0], "groundingMetadata": None}

    def recite(end: int, **members: Any) -> dict[str, Any]:
        code = {"startIndex": 9, "endIndex": end, "uri": "https://c.example", "license": "mit"}
        named = [code, {"endIndex": 3}, 5, {"endIndex": 99, "uri": "https://d.example"}]
        candidate = {**members, "citationMetadata": {name: named}}
        return {**GROUNDED, "candidates": [candidate]}

    found = [
        cite("https://c.example", "", 8, 13, license="mit"),
        cite("https://d.example", "", 0, 19),
    ]
    assert message_of("gemini", recite(14, **ended))["annotations"] == found
    first, last = say("Zürich: rain. "), {**ended, "content": say("Wind.")}
    for reason, expected in ((None, found), ("STOP", [8, 0])):
        events = [recite(11, content=first, finishReason=reason), recite(14, **last)]
        deltas = deltas_of(read("gemini", feed_of("gemini", events)))
        told = [each for delta in deltas for each in delta.get("annotations", ())]
        # A server that ends each event has named them all with the first.
        starts = [each["url_citation"]["start_index"] for each in told]
        assert (starts if reason else told) == expected


@pytest.mark.parametrize(
    "metadata",
    [
        5,
        {"groundingChunks": 5},
        {"groundingChunks": [5, {"web": 5}, {"web": {"uri": 5}}]},
        {"groundingChunks": [], "groundingSupports": [{"groundingChunkIndices": [0]}]},
        {"groundingSupports": [{"segment": {"startIndex": -1}, "groundingChunkIndices": 5}]},
    ],
)
def test_strange_sources_are_left_out(metadata: Any) -> None:
    assert "annotations" not in message_of("gemini", grounded_by(metadata))


def test_many_sources_are_cut_off() -> None:
    supports = [{"segment": {"endIndex": 5}, "groundingChunkIndices": [0] * 2_000}] * 2_000
    chunks = [{"web": {"uri": "https://a.example"}}]
    answer = grounded_by({"groundingChunks": chunks, "groundingSupports": supports})
    assert len(message_of("gemini", answer)["annotations"]) == 1_000


def test_a_stream_keeps_the_sources_of_anthropic_up_to_a_megabyte() -> None:
    parser = parser_of("anthropic")
    parser.feed(feed_of("anthropic", EVENTS[:1]))
    quoted = {"url": "https://a.example", "title": "A", "cited_text": "x" * 100_000}
    events = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a"}},
        *[
            {"type": "content_block_delta", "index": 0,
             "delta": {"type": "citations_delta", "citation": quoted}}
        ] * 20,
        {"type": "content_block_stop", "index": 0},
    ]  # fmt: skip
    deltas = deltas_of(parser.feed(feed_of("anthropic", events)))
    assert len([each for delta in deltas for each in delta.get("annotations", ())]) == 10


@pytest.mark.parametrize(("pieces", "sources"), [(4, 2), (5, 0)])
def test_a_text_of_gemini_that_is_not_kept_has_no_sources(pieces: int, sources: int) -> None:
    piece = {"candidates": [{"content": {"role": "model", "parts": [{"text": "x" * 1_000_000}]}}]}
    deltas = deltas_of(read("gemini", feed_of("gemini", [*[piece] * pieces, GROUNDED])))
    assert sum(len(delta.get("annotations", ())) for delta in deltas) == sources
    assert sum(len(delta.get("content") or "") for delta in deltas) > pieces * 1_000_000


@pytest.mark.parametrize("kind", FOUND)
def test_reasoning_that_nobody_counted_is_absent(kind: str) -> None:
    count = {
        "anthropic": ("usage", "output_tokens_details", {"thinking_tokens": 0}),
        "gemini": ("usageMetadata", "thoughtsTokenCount", 0),
    }
    member, name, zero = count[kind]
    usage = {key: value for key, value in ANSWERS[kind][member].items() if key != name}
    for told, expected in (({}, None), ({name: zero}, {"reasoning_tokens": 0})):
        answer = {**ANSWERS[kind], member: {**usage, **told}}
        reply = parse(kind, answer)
        fields = json.loads(bytes(reply.fields["usage"]))
        assert fields.get("completion_tokens_details") == expected


CITATION: Final = {
    "type": "web_search_result_location",
    "cited_text": "c",
    "url": "https://a.example",
    "title": "A",
    "encrypted_index": "causeway:",
}


def test_annotations_become_citations_of_a_message() -> None:
    source = cite("https://a.example", "A", 0, 2, content="c")
    message = {"role": "assistant", "content": "Hi", "annotations": [source, {"type": "x"}, 5]}
    reply = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    made = json.loads(render_reply(json.dumps(reply).encode()))
    assert made["content"] == [{"type": "text", "text": "Hi", "citations": [CITATION]}]


def test_streamed_annotations_become_citations() -> None:
    source = cite("https://a.example", "A", 0, 2, content="c")
    from_chat = [
        {"choices": [{"index": 0, "delta": delta}]}
        for delta in ({"content": "Hi"}, {"annotations": [source]})
    ]
    found = turned(*(b"data: " + json.dumps(each).encode() + b"\n\n" for each in from_chat))
    assert [event.get("delta") for event in found[2:]] == [
        {"type": "text_delta", "text": "Hi"},
        {"type": "citations_delta", "citation": CITATION},
    ]
    assert CITED["type"] == CITATION["type"]


A, B = "https://a.example", "https://b.example"
OWN: Final = {"annotations": [cite("https://own.example", "Own", 0, 2)]}
PAGES: Final = [{"url": A, "title": "A", "date": "2026-01-01"}, {"title": "C"}, 5]


@pytest.mark.parametrize(
    ("beside", "delta", "found"),
    [
        ({"citations": [A, 5, B], "search_results": PAGES}, {}, [(A, "A"), (B, "")]),
        ({"citations": [A]}, {}, [(A, "")]),
        ({"search_results": PAGES}, {}, [(A, "A")]),
        ({"citations": [A]}, OWN, [("https://own.example", "Own")]),
        ({"citations": [A] * 2_000}, {}, [(A, "")] * 1_000),
        ({"citations": None, "search_results": 5}, {}, []),
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_sources_beside_the_choices_reach_every_interface(
    beside: dict[str, Any], delta: dict[str, Any], found: list[tuple[str, str]], is_late: bool
) -> None:
    """Perplexity names them in each event, and xAI in the last one."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": "Hi", **delta}}
    whole = json.dumps({"choices": [choice], **beside}).encode()
    said: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}
    nothing: dict[str, Any] = {"citations": []}
    places = (nothing, beside) if is_late else (beside, nothing)
    chat = [raw({**said, **places[0]}), event(delta), ended(**places[1])]
    [block] = json.loads(render_reply(whole))["content"]
    given = [each.get("delta", {}) for each in turned(*chat)]
    for citations in (
        block.get("citations", []),
        [each["citation"] for each in given if each.get("type") == "citations_delta"],
    ):
        assert [(each["url"], each["title"]) for each in citations] == found
    asks = translated()
    made = json.loads(render_response(whole, asks.echo, asks.tools))
    last = events_of(b"".join(map(translator().feed, chat)))[-1]["response"]
    for response in (made, last):
        [part] = response["output"][0]["content"]
        assert [(each["url"], each["title"]) for each in part["annotations"]] == found
