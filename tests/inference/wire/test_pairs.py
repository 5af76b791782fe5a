"""A conversation whose calls and results do not match, or that begins or ends with an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from catalog.capabilities import UNDESCRIBED, Capabilities, NativeFormat, ThinkingControl
from inference.requests.messages.native import parse_message
from inference.requests.responses.request import parse_response
from tests.support.inference import messages, responses
from tests.support.inference.dialects import LOOK, MISTRAL, body_of, call_of, native_body_of

# A conversation: the words of the user, the answer's text, calls by their ids, and results.
Item = tuple[str, str]
# What stands in a conversation, and the same in order.
ROWS: Final[dict[str, tuple[list[Item], list[Item]]]] = {
    "sound": (
        [("user", "Hi"), ("call", "a"), ("call", "b"), ("result", "a"), ("result", "b")],
        [("user", "Hi"), ("call", "a"), ("call", "b"), ("result", "a"), ("result", "b")],
    ),
    "a call without a result": (
        [("user", "Hi"), ("call", "a"), ("user", "Go on.")],
        [("user", "Hi"), ("call", "a"), ("lacking", "a"), ("user", "Go on.")],
    ),
    "one of two calls without a result": (
        [("user", "Hi"), ("call", "a"), ("call", "b"), ("result", "b"), ("user", "Go on.")],
        [("user", "Hi"), ("call", "a"), ("call", "b"), ("result", "b"), ("lacking", "a"),
         ("user", "Go on.")],
    ),
    "a call at the end": (
        [("user", "Hi"), ("call", "a")], [("user", "Hi"), ("call", "a"), ("lacking", "a")]
    ),
    "a result without its call": (
        [("user", "Hi"), ("result", "a"), ("answer", "Yes."), ("user", "Go on.")],
        [("user", "Hi"), ("stray", "a"), ("answer", "Yes."), ("user", "Go on.")],
    ),
    "a result at the beginning": (
        [("result", "a"), ("user", "Hi")], [("stray", "a"), ("user", "Hi")]
    ),
    "two results of a call": (
        [("user", "Hi"), ("call", "a"), ("result", "a"), ("result", "a")],
        [("user", "Hi"), ("call", "a"), ("result", "a"), ("stray", "a")],
    ),
    "words before a result": (
        [("user", "Hi"), ("call", "a"), ("user", "Wait."), ("result", "a")],
        [("user", "Hi"), ("call", "a"), ("result", "a"), ("user", "Wait.")],
    ),
    "a result after the next answer": (
        [("user", "Hi"), ("call", "a"), ("user", "So?"), ("answer", "Yes."), ("result", "a")],
        [("user", "Hi"), ("call", "a"), ("result", "a"), ("user", "So?"), ("answer", "Yes.")],
    ),
}  # fmt: skip


def in_chat(items: list[Item]) -> list[dict[str, Any]]:
    """Returns the messages of chat that a caller has; calls side by side are one answer."""
    found: list[dict[str, Any]] = []
    for kind, text in items:
        if kind == "call" and found and "tool_calls" in found[-1]:
            found[-1]["tool_calls"].append(call_of(text))
        elif kind == "call":
            found.append({"role": "assistant", "content": None, "tool_calls": [call_of(text)]})
        elif kind == "result":
            found.append({"role": "tool", "tool_call_id": text, "content": text})
        else:
            found.append({"role": "assistant" if kind == "answer" else kind, "content": text})
    return found


def in_messages(items: list[Item]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for kind, text in items:
        role = "assistant" if kind in ("call", "answer") else "user"
        block = messages.text(text)
        if kind == "call":
            block = {"type": "tool_use", "id": text, "name": "look", "input": {}}
        elif kind == "result":
            block = {"type": "tool_result", "tool_use_id": text, "content": text}
        # The face itself writes results before what the user says beside them.
        if found and (found[-1]["role"], found[-1]["content"][0]["type"]) == (role, block["type"]):
            found[-1]["content"].append(block)
        else:
            found.append({"role": role, "content": [block]})
    return found


def in_responses(items: list[Item]) -> list[dict[str, Any]]:
    made: dict[str, Callable[[str], dict[str, Any]]] = {
        "call": lambda name: {
            "type": "function_call", "call_id": name, "name": "look", "arguments": "{}"
        },
        "result": lambda name: {"type": "function_call_output", "call_id": name, "output": name},
        "answer": lambda text: {"role": "assistant", "content": text},
        "user": lambda text: {"role": "user", "content": text},
    }  # fmt: skip
    return [made[kind](text) for kind, text in items]


FACES: Final[dict[str, Callable[[list[Item]], list[dict[str, Any]]]]] = {
    "chat": in_chat,
    "messages": lambda items: messages.in_chat(messages=in_messages(items))["messages"],
    "responses": lambda items: responses.in_chat(in_responses(items))["messages"],
}
TARGETS: Final = {
    "openai": ("openai", UNDESCRIBED),
    "vertex": ("vertex", UNDESCRIBED),
    "mistral": ("openai", MISTRAL),
    "anthropic": ("anthropic", UNDESCRIBED),
    "bedrock": ("bedrock", UNDESCRIBED),
    "gemini": ("gemini", UNDESCRIBED),
}


def read(body: Any) -> list[Item]:
    """Returns the conversation that a target gets, whatever its format is."""
    found: list[Item] = []
    names: dict[str, str] = {}
    for turn in body.get("messages") or body["contents"]:
        found += _read_turn(turn, names)
    return found


def _read_turn(turn: Any, names: dict[str, str]) -> Iterator[Item]:
    role = "user" if turn["role"] in ("user", "tool") else "answer"
    parts = turn.get("parts") or turn["content"] or []
    if turn["role"] == "tool":
        yield told(names, turn["tool_call_id"], turn["content"])
        return
    for part in [{"text": parts}] if isinstance(parts, str) else parts:
        use = part.get("toolUse") or part.get("functionCall") or part
        result = part.get("toolResult") or part.get("functionResponse") or part
        if part.get("type") == "tool_use" or use is not part:
            name = use.get("toolUseId") or use["id"]
            names[name] = chr(ord("a") + len(names))
            yield ("call", names[name])
        elif part.get("type") == "tool_result" or result is not part:
            content = result.get("content") or result["response"]["result"]
            text = content if isinstance(content, str) else content[0]["text"]
            known = result.get("tool_use_id") or result.get("toolUseId") or result["id"]
            yield told(names, known, text)
        else:
            yield tell(role, part["text"])
    for call in turn.get("tool_calls") or ():
        names[call["id"]] = chr(ord("a") + len(names))
        yield ("call", names[call["id"]])


def told(names: dict[str, str], call_id: str, text: str) -> Item:
    if text == "There is no result.":
        return ("lacking", names[call_id])
    assert names[call_id] == text
    return ("result", text)


def tell(role: str, text: str) -> Item:
    head, _, rest = text.partition("\n")
    return ("stray", rest) if head == "[tool_result]" else (role, text)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("face", FACES)
def test_each_call_has_its_one_result_behind_it(face: str, target: str, row: str) -> None:
    given, ordered = ROWS[row]
    dialect, capabilities = TARGETS[target]
    sent = body_of(dialect, capabilities, messages=FACES[face](given), tools=[LOOK])
    added = {("user", "Begin."), ("user", "Continue where your last answer ends."),
             ("answer", "Noted.")}  # fmt: skip
    assert [item for item in read(sent) if item not in added] == ordered


@pytest.mark.parametrize("row", ROWS)
def test_claude_gets_results_behind_their_calls_in_its_own_format(row: str) -> None:
    given, ordered = ROWS[row]
    asked = messages.asked(
        messages=in_messages(given), tools=[{"name": "look", "input_schema": {}}]
    )
    request = parse_message(json.dumps(asked).encode())
    assert request.native is not None
    assert request.native.problem is None
    sent = native_body_of("anthropic", NativeFormat.ANTHROPIC, request)
    assert read(sent) == ordered
    if row == "sound":
        assert sent["messages"] == asked["messages"]


@pytest.mark.parametrize("row", ROWS)
def test_openai_gets_an_output_of_each_call_in_its_own_format(row: str) -> None:
    given, _ = ROWS[row]
    asked = responses.asked(in_responses(given))
    sent = native_body_of(
        "openai", NativeFormat.RESPONSES, parse_response(json.dumps(asked).encode())[0]
    )
    calls = [item["call_id"] for item in sent["input"] if item.get("type") == "function_call"]
    told = {
        item["call_id"]: item["output"]
        for item in sent["input"]
        if item.get("type") == "function_call_output"
    }
    have = {name for kind, name in given if kind == "result"}
    assert told == {name: name if name in have else "There is no result." for name in calls}
    strays = [item["content"][0]["text"].split("\n")[1] for item in sent["input"]
              if isinstance(item.get("content"), list)]  # fmt: skip
    assert strays == [name for kind, name in ROWS[row][1] if kind == "stray"]
    if row == "sound":
        assert sent["input"] == asked["input"]


@pytest.mark.parametrize("missing", [{}, {"tool_call_id": None}, {"tool_call_id": ""}])
def test_a_result_without_an_id_is_left_to_servers_that_know_its_place(
    missing: dict[str, Any],
) -> None:
    call = call_of("a", name="look")
    history = [
        {"role": "user", "content": "Hi", "tool_call_id": None, "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "look", "content": "a", **missing},
    ]
    sent = body_of("openai", messages=history, tools=[LOOK])
    if not missing:
        assert sent["messages"] == history
    assert [each["role"] for each in sent["messages"]] == ["user", "assistant", "tool"]
    for dialect, capabilities in TARGETS.values():
        if (dialect, capabilities) not in (TARGETS["openai"], TARGETS["vertex"]):
            found = read(body_of(dialect, capabilities, messages=history, tools=[LOOK]))
            assert found == [("user", "Hi"), ("call", "a"), ("result", "a")]


@pytest.mark.parametrize("missing", [{}, {"id": None}, {"id": 5}])
def test_a_call_without_an_id_is_left_to_servers_that_know_its_place(
    missing: dict[str, Any],
) -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}, **missing}
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "a"},
    ]
    assert body_of("openai", messages=history)["messages"] == history


HELLO: Final[list[Item]] = [("answer", "Hello."), ("user", "Hi")]
LAST: Final[list[Item]] = [("user", "Hi"), ("answer", "It is")]
GO_ON: Final = ("user", "Continue where your last answer ends.")
CLAUDE: Final = Capabilities(native_format=NativeFormat.ANTHROPIC)
OLDER: Final = Capabilities(native_format=NativeFormat.ANTHROPIC, thinking=ThinkingControl.BUDGET)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("dialect", "capabilities", "begins", "ends"),
    [
        ("openai", UNDESCRIBED, False, False),
        ("openai", MISTRAL, False, True),
        ("vertex", UNDESCRIBED, False, False),
        ("anthropic", UNDESCRIBED, True, False),
        ("anthropic", CLAUDE, True, True),
        ("anthropic", OLDER, True, False),
        ("bedrock", UNDESCRIBED, True, False),
        ("bedrock", CLAUDE, True, True),
        ("gemini", UNDESCRIBED, True, True),
    ],
)
def test_a_conversation_begins_and_ends_with_the_user_where_it_must(
    dialect: str, capabilities: Capabilities, face: str, *, begins: bool, ends: bool
) -> None:
    sent = read(body_of(dialect, capabilities, messages=FACES[face](HELLO)))
    assert sent == [("user", "Begin.")] * begins + HELLO
    sent = read(body_of(dialect, capabilities, messages=FACES[face](LAST)))
    assert sent == LAST + [GO_ON] * ends


def test_claude_continues_no_answer_within_a_schema() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    asked = {"messages": in_chat(LAST), "response_format": wanted}
    assert read(body_of("anthropic", OLDER, **asked)) == [*LAST, GO_ON]


@pytest.mark.parametrize("dialect", ["anthropic", "bedrock", "gemini"])
def test_a_system_text_alone_has_a_turn_of_the_user(dialect: str) -> None:
    sent = body_of(dialect, messages=[{"role": "system", "content": "Tell a joke."}])
    assert read(sent) == [("user", "Begin.")]


def test_mistral_gets_its_own_order_of_roles() -> None:
    system = {"role": "system", "content": "Be brief."}
    asked = [system, *in_chat([("user", "Hi"), ("call", "a"), ("result", "a")])]
    sent = body_of("openai", MISTRAL, messages=[*asked, {"role": "user", "content": "So?"}])
    assert [each["role"] for each in sent["messages"]] == [
        "system", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    sent = body_of("openai", MISTRAL, messages=[*in_chat(HELLO[:1]), system])
    assert sent["messages"] == [*in_chat(HELLO[:1]), {**system, "role": "user"}]
    calls = in_chat([("call", "abcdefghi"), ("result", "abcdefghi")])
    sent = body_of("openai", MISTRAL, messages=[system, *calls])
    assert sent["messages"] == [system, {"role": "user", "content": "Begin."}, *calls]
    developer = {"role": "developer", "content": "Be brief."}
    sent = body_of("openai", MISTRAL, messages=[developer, *in_chat(HELLO), *calls, developer])
    assert [each["role"] for each in sent["messages"]] == [
        "developer", "assistant", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    prefix = [*in_chat(LAST[:1]), {"role": "assistant", "content": "It is", "prefix": True}]
    assert body_of("openai", MISTRAL, messages=prefix)["messages"] == prefix


def test_mistral_gets_a_picture_of_a_result_behind_an_answer() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    calls = in_chat([("user", "Hi"), ("call", "abcdefghi"), ("result", "abcdefghi")])
    shown = [*calls[:2], {**calls[2], "content": [picture]}]
    told = [
        *calls[:2],
        {**calls[2], "content": "The result is attached to the next message."},
        {"role": "assistant", "content": "Noted."},
        {"role": "user", "content": [picture]},
    ]
    assert body_of("openai", MISTRAL, messages=shown)["messages"] == told
    for after in in_chat([("user", "So?")]), in_chat([("answer", "A cat."), ("user", "So?")]):
        sent = body_of("openai", MISTRAL, messages=[*shown, *after])
        assert sent["messages"] == [*told, *after]
