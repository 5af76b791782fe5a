"""Tests how the non-OpenAI dialects translate single fields of a request."""

from __future__ import annotations

import json
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator

from catalog.abilities import DECLARABLE
from catalog.capabilities import UNDESCRIBED, Capabilities, NativeFormat
from catalog.dialects import unsent_parameters
from catalog.dialects.base import Operation, Untranslatable
from tests.support.dialects.reading import dialect_of
from tests.support.inference.dialects import ASK, CALLED, KINDS, MODELS, TOOL, body, body_of
from tests.support.inference.transcripts import TRANSCRIPTS


def content(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [part]}]


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def video(url: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


def audio(form: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": "AAAA", "format": form}}


def file(data: str) -> dict[str, Any]:
    return {"type": "file", "file": {"file_data": data}}


def turns_of(kind: str, made: Any) -> Any:
    return made["contents" if kind == "gemini" else "messages"]


def parts_of(kind: str, turn: Any) -> Any:
    return turn["parts" if kind == "gemini" else "content"]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": content(image("ftp://a.example/b"))},
        {"messages": content(image("data:image/png,x"))},
        {"messages": content({"type": "image_url", "image_url": 5})},
        {"messages": [{"role": "user", "content": "x"}] * 2 + ["x"]},
        {"messages": content({"type": "guess"})},
        {"messages": content({"type": "file", "file": {"file_id": "file-1"}})},
        {"messages": [{"role": "critic", "content": "hi"}]},
        {"messages": [{"role": "user", "content": {"text": "hi"}}]},
        {"tools": [{"type": "code_interpreter"}]},
        {"tools": [{"type": "web_search", "allowed_domains": 5}]},
        {"web_search_options": 5},
        {"image_config": {"style": "bold"}},
        {"functions": [{"name": "f"}]},
        {"response_format": {"type": "grammar", "grammar": 'root ::= "a"'}},
        {"response_format": {"type": "python"}},
        {"tools": [TOOL], "tool_choice": "some"},
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}},
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_build_refuses_fields_that_a_format_cannot_express(
    kind: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(Untranslatable):
        body(kind, **fields)


def test_gemini_gets_the_options_of_pictures() -> None:
    asked = {"aspect_ratio": "16:9", "image_size": "4K"}
    made = body("gemini", image_config=asked, is_byok=True)
    config = {"imageConfig": {"aspectRatio": "16:9", "imageSize": "4K"}}
    assert made["generationConfig"] == config
    # Without a rate of tokens, the price of a picture would not tell its size.
    with pytest.raises(Untranslatable, match=r"^image_config\.image_size: "):
        body("gemini", image_config=asked)
    body("gemini", image_config={"aspect_ratio": "16:9"})


@pytest.mark.parametrize(
    "fields",
    [
        {"web_search_options": None}, {"web_search_options": False}, {"image_config": {}},
        {"functions": []}, {"functions": None},
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_build_accepts_fields_that_ask_for_nothing(kind: str, fields: dict[str, Any]) -> None:
    assert fields.keys().isdisjoint(body(kind, **fields))


@pytest.mark.parametrize(
    ("kind", "part", "text"),
    [
        ("anthropic", audio("wav"), "Anthropic does not accept audio parts of type audio/wav."),
        ("anthropic", video("https://a.example/b.mp4"),
         "Anthropic does not accept URLs for video parts."),
        ("anthropic", file("data:text/csv;base64,YQ=="),
         "Anthropic does not accept file parts of type text/csv."),
        ("gemini", {"type": "image_url", "image_url": "data:;base64,AAAA"},
         "Gemini does not accept image parts of type unknown."),
        ("bedrock", image("https://a.example/b.png"),
         "Bedrock does not accept URLs for image parts."),
        ("bedrock", image("data:image/tiff;base64,AAAA"),
         "Bedrock does not accept image parts of type image/tiff."),
    ],
)  # fmt: skip
def test_build_names_a_content_part_that_it_refuses(
    kind: str, part: dict[str, Any], text: str
) -> None:
    with pytest.raises(Untranslatable) as error:
        body(kind, messages=content(part))
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("kind", "part", "expected"),
    [
        ("anthropic", image("https://a.example/b"),
         {"type": "image", "source": {"type": "url", "url": "https://a.example/b"}}),
        ("anthropic", file("https://a.example/b.pdf"),
         {"type": "document", "source": {"type": "url", "url": "https://a.example/b.pdf"}}),
        ("gemini", video("https://a.example/b.mp4?x=1"),
         {"fileData": {"mimeType": "video/mp4", "fileUri": "https://a.example/b.mp4?x=1"}}),
        ("gemini", audio("mp3"), {"inlineData": {"mimeType": "audio/mp3", "data": "AAAA"}}),
        ("bedrock", audio("wav"), {"audio": {"format": "wav", "source": {"bytes": "AAAA"}}}),
        ("bedrock", file("data:text/csv;charset=utf-8;base64,YQ=="),
         {"document": {"format": "csv", "name": "document", "source": {"bytes": "YQ=="}}}),
    ],
)  # fmt: skip
def test_build_translates_content_parts(
    kind: str, part: dict[str, Any], expected: dict[str, Any]
) -> None:
    made = body(kind, messages=content(part))
    [turn] = turns_of(kind, made)
    # Bedrock wants a text beside a document.
    name = [{"text": "document"}] if "document" in expected else []
    assert parts_of(kind, turn) == [expected, *name]


@pytest.mark.parametrize("kind", KINDS)
def test_dialects_serve_chats_and_gemini_serves_images(kind: str) -> None:
    images = {Operation.IMAGES} if kind == "gemini" else set()
    assert dialect_of(kind).operations == {Operation.CHAT} | images


@pytest.mark.parametrize("kind", KINDS)
def test_build_merges_consecutive_messages_of_one_role(kind: str) -> None:
    made = body(
        kind,
        messages=[
            {"role": "system", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "user", "content": ""},
            {"role": "user", "content": "c"},
            {"role": "developer", "content": "d"},
            {"role": "assistant", "content": "", "refusal": "No."},
            {"role": "assistant", "content": None},
            {"role": "user", "content": "e"},
        ],
    )
    text = {"type": "text"} if kind == "anthropic" else {}
    assert [list(turn.values()) for turn in turns_of(kind, made)] == [
        ["user", [{**text, "text": "b"}, {**text, "text": "c"}]],
        ["model" if kind == "gemini" else "assistant", [{**text, "text": "No."}]],
        ["user", [{**text, "text": "e"}]],
    ]
    system = made["systemInstruction"]["parts"] if kind == "gemini" else made["system"]
    assert system == [{**text, "text": "a"}, {**text, "text": "d"}]


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("kind", KINDS)
def test_media_among_instructions_are_shown_by_the_user(kind: str, role: str) -> None:
    """Responses allow them in every message, and the other formats in those of the user alone."""
    picture = image("data:image/png;base64,AAAA")
    told = {"role": role, "content": [{"type": "text", "text": "a"}, picture]}
    shown = body(kind, messages=[{"role": "user", "content": [picture]}])
    [block] = parts_of(kind, turns_of(kind, shown)[0])
    alone = body(kind, messages=[told])
    assert [list(turn.values()) for turn in turns_of(kind, alone)] == [["user", [block]]]
    result = {"role": "tool", "tool_call_id": "c1", "content": "1"}
    made = body(kind, messages=[told, *ASK, CALLED, told, result])
    first, _, last = (parts_of(kind, turn) for turn in turns_of(kind, made))
    text = {"type": "text"} if kind == "anthropic" else {}
    assert first == [block, {**text, "text": "hi"}]
    assert last[1:] == [block]
    system = made["systemInstruction"]["parts"] if kind == "gemini" else made["system"]
    assert system == [{**text, "text": "a"}] * 2


@pytest.mark.parametrize(
    "answer",
    [
        {"content": None, "audio": {"id": "audio_1", "transcript": "No."}},
        {"content": [{"type": "refusal", "refusal": "No."}]},
    ],
    ids=["spoken", "refused"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_words_of_an_answer_are_its_text(kind: str, answer: dict[str, Any]) -> None:
    made = body(kind, messages=[*ASK, {"role": "assistant", **answer}, *ASK])
    text = {"type": "text"} if kind == "anthropic" else {}
    assert parts_of(kind, turns_of(kind, made)[1]) == [{**text, "text": "No."}]


def test_build_translates_cache_control() -> None:
    mark = {"type": "ephemeral"}
    given: dict[str, Any] = {
        "messages": content({"type": "text", "text": "a", "cache_control": mark}),
        "tools": [{**TOOL, "cache_control": mark}],
        "cache_control": mark,
    }
    made = body("anthropic", **given)
    assert made["messages"][0]["content"] == [{"type": "text", "text": "a", "cache_control": mark}]
    schema = {"type": "object", "properties": {}}
    assert made["tools"] == [{"name": "look", "input_schema": schema, "cache_control": mark}]
    assert made["cache_control"] == mark
    point = {"cachePoint": {"type": "default"}}
    over_bedrock = body("bedrock", **given)
    assert over_bedrock["messages"][0]["content"] == [{"text": "a"}, point]
    assert over_bedrock["toolConfig"]["tools"][1] == point
    assert "cache_control" not in over_bedrock


@pytest.mark.parametrize(
    ("model", "is_marked"),
    [("us.anthropic.claude-opus-4-8-v1:0", True), (MODELS["bedrock"], False)],
)
def test_a_mark_of_the_whole_request_stands_behind_its_last_part(
    model: str, is_marked: bool
) -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    made = body("bedrock", model, cache_control=mark)
    point = {"cachePoint": {"type": "default", "ttl": "1h"}}
    assert made["messages"][0]["content"] == [{"text": "hi"}, *([point] if is_marked else [])]


@pytest.mark.parametrize(("lifetime", "kept"), [("1h", {"ttl": "1h"}), ("30m", {}), (None, {})])
def test_a_breakpoint_in_the_words_of_openai_is_a_mark(
    lifetime: str | None, kept: dict[str, str]
) -> None:
    end = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": lifetime}}
    said = content({"type": "text", "text": "a", **end})
    mark = {"type": "ephemeral", **kept}
    made = body("anthropic", messages=said)
    assert made["messages"][0]["content"] == [{"type": "text", "text": "a", "cache_control": mark}]
    point = {"cachePoint": {"type": "default", **kept}}
    assert body("bedrock", messages=said)["messages"][0]["content"] == [{"text": "a"}, point]


def test_build_moves_cache_control_of_a_tool_result_after_its_content() -> None:
    mark = {"type": "ephemeral"}
    said = [
        {"type": "text", "text": "rain"},
        {"type": "text", "text": "wind", "cache_control": mark},
        {"type": "text", "text": ""},
    ]
    given = [*ASK, CALLED, {"role": "tool", "tool_call_id": "c1", "content": said}]
    [result] = body("anthropic", messages=given)["messages"][2]["content"]
    assert result == {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [{"type": "text", "text": "rain"}, {"type": "text", "text": "wind"}],
        "cache_control": mark,
    }
    assert body("bedrock", messages=given)["messages"][2]["content"] == [
        {"toolResult": {"toolUseId": "c1", "content": [{"text": "rain"}, {"text": "wind"}]}},
        {"cachePoint": {"type": "default"}},
    ]


def test_build_keeps_a_cache_ttl_of_one_hour_only_for_own_credentials() -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    given: dict[str, Any] = {
        "messages": content({"type": "text", "text": "a", "cache_control": mark}),
        "tools": [{**TOOL, "cache_control": mark}],
        "cache_control": mark,
    }
    for is_byok, kept in ((True, mark), (False, {"type": "ephemeral"})):
        made = body("anthropic", keeps_lifetimes=is_byok, **given)
        assert made["messages"][0]["content"][0]["cache_control"] == kept
        assert made["tools"][0]["cache_control"] == made["cache_control"] == kept
        made = body("bedrock", keeps_lifetimes=is_byok, **given)
        point = {"cachePoint": {**kept, "type": "default"}}
        assert made["messages"][0]["content"][1] == made["toolConfig"]["tools"][1] == point


@pytest.mark.parametrize("form", [{"type": "json_object"}, {"type": "json_schema"}])
def test_build_requests_json_without_a_schema_in_the_system_prompt(form: dict[str, Any]) -> None:
    line = "Answer with one JSON object and nothing else: no text around it, no code fence."
    given: dict[str, Any] = {
        "messages": [{"role": "system", "content": "Be brief."}, *ASK],
        "response_format": form,
    }
    for kind in ("anthropic", "bedrock"):
        made = body(kind, **given)
        assert [part["text"] for part in made["system"]] == ["Be brief.", line]
        assert "outputConfig" not in made
        assert "output_config" not in made
    made = body("gemini", **given)
    assert made["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert made["generationConfig"] == {"responseMimeType": "application/json"}
    with_schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    assert "system" not in body("anthropic", response_format=with_schema)


def schema_of(kind: str, made: Any) -> Any:
    match kind:
        case "anthropic":
            return made["output_config"]["format"]["schema"]
        case "gemini":
            return made["generationConfig"]["responseJsonSchema"]
    return json.loads(made["outputConfig"]["textFormat"]["structure"]["jsonSchema"]["schema"])


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({}, "A city."),
        ({"description": "Its name."}, "A city.\n\nIts name."),
        ({"description": "A city. Its name."}, "A city. Its name."),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_description_of_an_answer_is_that_of_its_schema(
    kind: str, own: dict[str, Any], told: str
) -> None:
    """The other formats have no place for one beside the schema."""
    schema = {"type": "string", **own}

    def build(**members: Any) -> Any:
        wanted = {"name": "x", "schema": schema, **members}
        return body(kind, response_format={"type": "json_schema", "json_schema": wanted})

    assert schema_of(kind, build(description="A city.")) == {**schema, "description": told}
    assert schema_of(kind, build(description=None)) == schema
    if kind != "gemini":
        counts = {"type": "object", "additionalProperties": {"type": "integer"}}
        made = build(schema=counts, description="Counts of words.")
        assert made["system"][-1]["text"].endswith('"description":"Counts of words."}')


@pytest.mark.parametrize("blank", ["", " ", "\n\t ", "\u00a0"])
@pytest.mark.parametrize("kind", KINDS)
def test_build_drops_blank_text(kind: str, blank: str) -> None:
    given = [
        {"role": "system", "content": blank},
        {"role": "user", "content": [{"type": "text", "text": blank}]},
        {"role": "user", "content": " hi\n"},
        {"role": "assistant", "content": blank},
    ]
    made = body(kind, messages=given)
    [turn] = turns_of(kind, made)
    [part] = parts_of(kind, turn)
    assert part["text"] == " hi\n"
    assert not made.keys() & {"system", "systemInstruction"}


def reasoned(*details: dict[str, Any]) -> list[dict[str, Any]]:
    return [*ASK, {**CALLED, "reasoning_details": list(details)}]


def test_build_sends_reasoning_only_to_the_provider_that_signed_it() -> None:
    ours = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    given = reasoned(
        {**ours, "text": "one "},
        {**ours, "text": "two"},
        {**ours, "signature": "s1"},
        {**ours, "text": "unsigned", "index": 1},
        {"type": "reasoning.encrypted", "format": "anthropic-claude-v1", "data": "d1", "index": 2},
        {"type": "reasoning.encrypted", "format": "google-gemini-v1", "data": "g1", "id": "c1"},
    )
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    assert body("anthropic", messages=given)["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "one two", "signature": "s1"},
        {"type": "redacted_thinking", "data": "d1"},
        use,
    ]
    assert body("bedrock", messages=given)["messages"][1]["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "one two", "signature": "s1"}}},
        {"reasoningContent": {"redactedContent": "d1"}},
        {"toolUse": {"toolUseId": "c1", "name": "look", "input": {}}},
    ]
    call = {"id": "c1", "name": "look", "args": {}}
    [made] = body("gemini", messages=given)["contents"][1]["parts"]
    assert made == {"functionCall": call, "thoughtSignature": "g1"}


@pytest.mark.parametrize("given", [None, "", "anthropic-claude-v1" * 3])
def test_build_knows_a_signed_text_whose_format_was_lost_on_its_way(given: str | None) -> None:
    """Clients join the format of streamed pieces as if it were text, or leave it out."""
    detail = {"type": "reasoning.text", "text": "one", "signature": "s1", "format": given}
    thought = {"type": "thinking", "thinking": "one", "signature": "s1"}
    block = {"reasoningContent": {"reasoningText": {"text": "one", "signature": "s1"}}}
    others = [{**detail, "format": "xai-responses-v1"}, {**detail, "signature": None}]
    for kind, found in (("anthropic", thought), ("bedrock", block)):
        [made, _] = body(kind, messages=reasoned(detail))["messages"][1]["content"]
        assert made == found
        [call] = body(kind, messages=reasoned(*others))["messages"][1]["content"]
        assert call not in (thought, block)


def test_build_for_gemini_marks_a_call_without_a_signature() -> None:
    [made] = body("gemini", messages=[*ASK, CALLED])["contents"][1]["parts"]
    assert made["thoughtSignature"] == "skip_thought_signature_validator"


def test_build_for_gemini_sends_images_beside_the_tool_result() -> None:
    picture = image("data:image/png;base64,AAAA")
    answered = {"role": "tool", "tool_call_id": "c1", "content": [picture]}
    assert body("gemini", messages=[*ASK, CALLED, answered])["contents"][2]["parts"] == [
        {"functionResponse": {"id": "c1", "name": "look", "response": {"result": ""}}},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
    ]


SAMPLES: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.1, "top_a": 0.1, "seed": 7,
    "frequency_penalty": 1, "presence_penalty": 1, "repetition_penalty": 1.5, "max_tokens": 9,
    "max_completion_tokens": 9, "logit_bias": {"5": 1}, "logprobs": True, "top_logprobs": 2,
    "prediction": {"type": "content", "content": "x"}, "stop": ["x"], "tools": [TOOL],
    "response_format": {"type": "json_object"}, "tool_choice": "required", "verbosity": "low",
    "structured_outputs": {"type": "json_schema",
                           "json_schema": {"name": "x", "schema": {"type": "object"}}},
    "parallel_tool_calls": False, "reasoning": {"effort": "low"}, "reasoning_effort": "low",
    "web_search_options": {},
}  # fmt: skip
CLAUDE = Capabilities(native_format=NativeFormat.ANTHROPIC)
# Each format, with the one that Claude has at the same cloud.
FORMATS = [
    *((name, UNDESCRIBED) for name in (*KINDS, "openai", "azure", "vertex")),
    *((name, CLAUDE) for name in ("azure", "bedrock", "vertex")),
]


@pytest.mark.parametrize("parameter", DECLARABLE)
@pytest.mark.parametrize(("dialect", "capabilities"), FORMATS)
def test_a_parameter_changes_what_is_sent_unless_it_is_known_that_it_is_not(
    dialect: str, capabilities: Capabilities, parameter: str
) -> None:
    """So an endpoint lists nothing that its format drops."""
    needs_tools = parameter in ("tool_choice", "parallel_tool_calls")
    given: dict[str, Any] = {"tools": [TOOL]} if needs_tools else {}
    name = "response_format" if parameter == "structured_outputs" else parameter
    plain = body_of(dialect, capabilities, **given)
    try:
        made = body_of(dialect, capabilities, **given, **{name: SAMPLES[parameter]})
    except Untranslatable:
        made = plain
    unsent = unsent_parameters(dialect, capabilities)
    assert (made != plain) is (parameter not in unsent)


def test_build_for_gemini_sends_the_pictures_of_earlier_answers() -> None:
    answer = {"role": "assistant", "content": "Here."}
    shown = {**answer, "images": [image("data:image/png;base64,AAAA")]}
    assert body("gemini", messages=[*ASK, shown, *ASK])["contents"][1]["parts"] == [
        {"text": "Here."},
        {
            "inlineData": {"mimeType": "image/png", "data": "AAAA"},
            "thoughtSignature": "skip_thought_signature_validator",
        },
    ]


@pytest.mark.parametrize("name", [name for name in TRANSCRIPTS if name.startswith("bedrock/")])
def test_requests_to_bedrock_pass_the_validation_of_botocore(name: str) -> None:
    transcript = TRANSCRIPTS[name]
    service = botocore.session.get_session().get_service_model("bedrock-runtime")
    shape = service.operation_model("Converse").input_shape
    parameters = {"modelId": transcript["model"], **transcript["request"]["body"]}
    assert not ParamValidator().validate(parameters, shape).has_errors()
