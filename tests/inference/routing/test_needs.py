"""Endpoints are left out for what a request needs, by what the catalogue knows about them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from catalog.abilities import UNSET_SETTINGS, EndpointSettings, change
from catalog.dialects.base import Operation
from config.api.errors import GatewayError, InvalidRequest
from inference.requests import parsing
from inference.routing.needs import NoEndpoint, PromptTooLong
from inference.routing.routes import Route
from tests.support import factories
from tests.support.database.snapshots import unchanged
from tests.support.inference.routes import route, select
from tests.support.inference.site import Site

IMAGE = {"type": "image_url", "image_url": {"url": "https://pictures.example/cat.png"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
FILM = {"type": "video_url", "video_url": {"url": "https://films.example/cat.mp4"}}
PAPER = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:;base64,JVBERg=="}}
WORDS = {"type": "text", "text": "What is this?"}
TEXT = frozenset(("text",))


def parse(
    content: Any = "x", operation: Operation = Operation.CHAT, **fields: Any
) -> parsing.InferenceRequest:
    prompts = {
        Operation.CHAT: {"messages": [{"role": "user", "content": content}]},
        Operation.TEXT: {"prompt": content},
        Operation.EMBEDDINGS: {"input": content},
    }
    body = {"model": "a/b", **prompts[operation], **fields}
    return parsing.parse(operation, json.dumps(body).encode())


def refuse(request: parsing.InferenceRequest, *routes: Route) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        select(request, *routes)
    return caught.value


@pytest.mark.parametrize(
    ("part", "modality"),
    [
        (IMAGE, "image"),
        (SOUND, "audio"),
        (FILM, "video"),
        (PAPER, "file"),
        ({"type": "input_video", "input_video": {"data": "AAAA"}}, "video"),
        ({"type": "input_file", "input_file": {"data": "AAAA"}}, "file"),
    ],
)
@pytest.mark.parametrize("operation", [Operation.CHAT, Operation.EMBEDDINGS])
def test_an_endpoint_must_take_the_media_of_the_prompt(
    part: Any, modality: str, operation: Operation
) -> None:
    content = [WORDS, part] if operation is Operation.CHAT else [{"content": [WORDS, part]}]
    request = parse(content, operation)
    assert request.inputs == {modality}
    able = route("able", inputs=TEXT | {modality})
    unable = route("unable", inputs=TEXT)
    unknown = route("unknown")
    found = select(request, able, unable, unknown)
    assert {each.route.facts.provider_slug for each in found.candidates} == {"able", "unknown"}
    assert [each.reasons for each in found.excluded] == [["input_modalities"]]
    error = refuse(request, unable)
    assert isinstance(error, NoEndpoint)
    assert error.status == 404
    assert error.message == (
        f"No endpoints found that support {modality} input. No endpoint of 'a/b' may serve this "
        "request: change it, or name another model."
    )
    assert error.metadata["needs"]["input_modalities"] == [modality]
    assert error.metadata["excluded"][0]["excluded_by"] == ["input_modalities"]


@pytest.mark.parametrize("content", ["x", [WORDS], [{"text": "no type"}], [{"type": "unheard-of"}]])
def test_text_and_unknown_parts_need_nothing(content: Any) -> None:
    request = parse(content)
    assert request.inputs == frozenset()
    assert len(select(request, route("one", inputs=TEXT)).candidates) == 1


def test_media_in_the_result_of_a_tool_count() -> None:
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "tool", "tool_call_id": "1", "content": [WORDS, IMAGE]},
    ]
    assert parse(messages=messages).inputs == {"image"}


@pytest.mark.parametrize(
    ("modalities", "outputs", "admitted"),
    [
        (["text"], {"text"}, True),
        (["image", "text"], {"text", "image"}, True),
        (["image", "text"], {"image"}, False),
        (["image"], {"text"}, False),
        (["audio"], {"text", "image"}, False),
        (["audio"], set(), True),
        ([], {"image"}, True),
        (None, {"image"}, True),
    ],
)
def test_an_endpoint_must_produce_all_modalities_of_the_request(
    modalities: list[str] | None, outputs: set[str], admitted: bool
) -> None:
    request = parse(modalities=modalities)
    able = route("one", outputs=frozenset(outputs))
    if admitted:
        assert len(select(request, able).candidates) == 1
        return
    error = refuse(request, able)
    assert error.metadata["excluded"][0]["excluded_by"] == ["output_modalities"]
    missing = sorted(set(modalities or ()) - outputs)
    expected = " or ".join(f"{name} output" for name in missing)
    assert error.message.startswith(f"No endpoints found that support {expected}. ")


@pytest.mark.parametrize("value", ["text", [1], [""], ["x" * 33], ["text"] * 17, {}])
def test_modalities_must_be_a_short_list_of_words(value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(modalities=value)
    assert next(iter(caught.value.metadata["fields"])).startswith("modalities")


@pytest.mark.parametrize(("asked", "admitted"), [(15, True), (16, True), (17, False)])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_endpoint_must_allow_the_output_bound(name: str, asked: int, admitted: bool) -> None:
    request = parse(**{name: asked})
    limited = route("one", max_completion_tokens=16)
    if admitted:
        assert len(select(request, limited).candidates) == 1
        return
    assert len(select(request, limited, route("two")).candidates) == 1
    error = refuse(request, limited, route("three", max_completion_tokens=8))
    assert error.status == 404
    assert error.message.startswith(
        "No endpoints found that support max_tokens of 17 (at most 16)."
    )
    assert {each["excluded_by"][0] for each in error.metadata["excluded"]} == {
        "max_completion_tokens"
    }


@pytest.mark.parametrize(("characters", "admitted"), [(5999, True), (6005, True), (6006, False)])
def test_a_prompt_that_surely_exceeds_the_context_is_refused(
    characters: int, admitted: bool
) -> None:
    request = parse("x" * characters)
    short = route("one", context_length=1000)
    if admitted:
        assert len(select(request, short).candidates) == 1
        return
    error = refuse(request, short, route("two", context_length=900))
    assert isinstance(error, PromptTooLong)
    assert error.status == 400
    assert error.error_type == "context_length_exceeded"
    assert error.message == (
        "The prompt has more than 1,001 tokens, and the maximum context length of 'a/b' is 1,000 "
        "tokens. Send a shorter prompt, or name a model with a longer context."
    )
    assert len(select(request, short, route("two", context_length=1001)).candidates) == 1
    assert len(select(request, short, route("two")).candidates) == 1


PROSE = "The gateway holds the worst case of a request before anything is sent upstream. "
CODE = "        if not entry.is_valid():\n            return None\n"


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        # What o200k, the tokenizer with the longest tokens, makes of it at most.
        (PROSE * 1000, 16_000),
        (CODE * 1000, 15_000),
        ("गेटवे अनुरोध भेजने से पहले सबसे खराब स्थिति रखता है। " * 1000, 14_000),
        ("网关在发送任何内容之前会保留请求的最坏情况。" * 1000, 13_000),
        (" " * 100_000, 1),
        ([IMAGE] * 100, 8_500),
    ],
)
def test_the_estimate_is_below_the_tokens_of_an_honest_prompt(content: Any, tokens: int) -> None:
    for is_ascii in (True, False):
        messages = [{"role": "user", "content": content}]
        body = json.dumps({"model": "a/b", "messages": messages}, ensure_ascii=is_ascii)
        assert parsing.parse(Operation.CHAT, body.encode()).least_tokens <= tokens


def test_a_large_prompt_is_measured_while_it_is_parsed() -> None:
    request = parse("x" * 60_000)
    assert request.text_tokens == request.least_tokens == 60_000 // 6
    assert parse("x" * 600).text_tokens is None


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("x" * 600, 100),
        (["x" * 600, "y" * 1200], 200),
        ([7] * 300, 300),
        ([[7] * 300, [7] * 20], 300),
        ([], 0),
    ],
)
def test_the_longest_of_several_prompts_counts(prompt: Any, tokens: int) -> None:
    assert parse(prompt, Operation.TEXT).least_tokens == tokens


def test_tools_and_tool_calls_count_and_embeddings_do_not() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "x" * 600}}
    tool = {"type": "function", "function": {"name": "f", "description": "y" * 600}}
    bare = parse().least_tokens
    called = parse(messages=[{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert called.least_tokens >= 100
    assert parse(tools=[tool]).least_tokens >= bare + 100
    assert parse("x" * 60_000, Operation.EMBEDDINGS).least_tokens == 0


def test_a_private_endpoint_is_judged_by_its_model_alike() -> None:
    own = route("own", private=True, inputs=TEXT, context_length=1000)
    assert refuse(parse([IMAGE]), own).metadata["excluded"][0]["excluded_by"] == [
        "input_modalities"
    ]
    assert isinstance(refuse(parse("x" * 9000), own), PromptTooLong)


def test_the_error_counts_only_endpoints_that_would_do_otherwise() -> None:
    dear = route("dear", context_length=10_000, quantization="int4")
    short = route("short", context_length=100, quantization="fp8")
    request = parse("x" * 90_000, provider={"quantizations": ["fp8"]})
    error = refuse(request, dear, short)
    assert isinstance(error, PromptTooLong)
    assert "length of 'a/b' is 100 tokens" in error.message
    assert isinstance(refuse(request, dear), NoEndpoint)


def able(**members: Any) -> EndpointSettings:
    return change(UNSET_SETTINGS, {}, members)


INLINE = {"type": "image_url", "image_url": {"detail": "low", "url": "data:image/png;base64,AA"}}
LINKED_PAPER = {"type": "file", "file": {"file_data": "https://papers.example/a.pdf"}}


@pytest.mark.parametrize(
    ("part", "form"),
    [
        (IMAGE, "image_urls"),
        (INLINE, "base64_images"),
        (PAPER, "base64_files"),
        (LINKED_PAPER, "file_urls"),
        (SOUND, "audio"),
    ],
)
def test_an_endpoint_may_state_which_forms_of_input_it_takes(
    part: dict[str, Any], form: str
) -> None:
    request = parse([WORDS, part])
    assert request.forms == {form}
    others = {"audio", "base64_files", "base64_images", "file_urls", "image_urls"} - {form}
    unable = route("own", private=True, abilities=able(inputs={form: False}))
    able_route = route("own", private=True, abilities=able(inputs=dict.fromkeys(others, False)))
    selection = select(request, unable, able_route)
    assert [candidate.route for candidate in selection.candidates] == [able_route]
    assert [(each.route, each.reasons) for each in selection.excluded] == [(unable, ["inputs"])]
    refused = refuse(request, unable)
    assert refused.message.startswith(f"No endpoints found that support media as {form}.")
    assert select(parse("words"), unable).candidates


@pytest.mark.parametrize(
    ("abilities", "asked", "unasked", "reason"),
    [
        ({"excluded_parameters": ["seed"]}, {"seed": 1}, {"seed": None}, "excluded_parameters"),
        ({"reasoning": {"supported": False}}, {"reasoning": {"effort": "low"}}, {}, "reasoning"),
        ({"reasoning": {"supported": False}}, {"reasoning_effort": "low"}, {}, "reasoning"),
        *(
            (
                {"tool_choice": {name: False}},
                {"tool_choice": choice},
                {"tool_choice": other},
                "tool_choice",
            )
            for name, choice, other in (
                ("auto", "auto", "none"),
                ("none", "none", "auto"),
                ("required", "required", "auto"),
                ("function", {"type": "function", "function": {"name": "f"}}, "required"),
            )
        ),
        ({"max_prompt_tokens": 20}, {"metadata": {"long": "x"}}, {}, "max_prompt_tokens"),
    ],
)
def test_an_endpoint_may_state_what_it_cannot_do(
    abilities: dict[str, Any], asked: dict[str, Any], unasked: dict[str, Any], reason: str
) -> None:
    unable = route("own", private=True, abilities=able(**abilities))
    text = "word " * 200 if reason == "max_prompt_tokens" else "x"
    refused = refuse(parse(text, **asked), unable)
    [excluded] = refused.metadata["excluded"]
    assert excluded["excluded_by"] == [reason]
    assert isinstance(refused, NoEndpoint)
    assert select(parse("x", **unasked), unable).candidates
    assert select(parse(text, **asked), unable, route("own", private=True)).candidates


def test_a_refused_need_changes_nothing_and_asks_nobody(site: Site) -> None:
    site.publish(context_length=8)
    reader = factories.make_model("acme/reader")
    site.publish(model=reader)
    with unchanged():
        too_long = site.chat("word " * 60)
        assert too_long.status_code == 400
        assert too_long.json()["error"]["metadata"]["error_type"] == "context_length_exceeded"
        picture = site.post({**site.chat_body([WORDS, IMAGE]), "model": reader.slug})
    assert picture.status_code == 404
    error = picture.json()["error"]
    assert error["message"].startswith("No endpoints found that support image input.")
    assert error["metadata"]["needs"] == {
        "input_modalities": ["image"],
        "output_modalities": [],
        "least_prompt_tokens": 1,
        "max_tokens": None,
    }
    site.assert_nothing_happened()


def test_the_next_model_serves_what_the_first_cannot(site: Site) -> None:
    site.publish()
    reader = factories.make_model("acme/reader")
    site.publish(model=reader)
    body = site.chat_body([WORDS, IMAGE], model=reader.slug, models=[site.model.slug])
    answer = site.post(body, headers={"X-OpenRouter-Metadata": "enabled"})
    assert answer.status_code == 200
    [stage] = answer.json()["openrouter_metadata"]["pipeline"]
    assert stage == {
        "type": "routing",
        "name": "selection",
        "summary": "The candidates were selected; 1 endpoints were excluded.",
        "data": {
            "excluded": [
                {
                    "provider": "Acme AI",
                    "private": False,
                    "model": "acme/reader",
                    "excluded_by": ["input_modalities"],
                }
            ]
        },
    }
