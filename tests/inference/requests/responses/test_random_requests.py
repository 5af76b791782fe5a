"""Random requests of Responses: each one becomes a chat request, or is refused by name."""

from __future__ import annotations

import json
import random
import re
from typing import Any, Final

import pytest

from catalog.dialects.base import Operation
from config.api.errors import InvalidRequest
from inference.requests import parsing
from inference.requests.chat_replies import ReplyReasoning
from inference.requests.responses.events import ResponseEvents
from inference.requests.responses.reasoning import seal
from inference.requests.responses.reply import render_reply
from inference.requests.responses.request import to_chat
from tests.support.inference.messages import USAGE, call_piece, ended, event
from tests.support.inference.responses import events_of

# Values of the wrong type or size, in the place of any other value.
ODD: Final[list[Any]] = [
    None, True, False, 0, -1, 10**30, 1.5, "", "x", "\u0000", "é" * 300, [], {}, [None], {"a": {}},
]  # fmt: skip
KNOWN: Final = {
    "function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call",
    "tool_search_call",
}  # fmt: skip


class Maker:
    """Makes random requests; ``oddness`` is the share of values that are wrong."""

    def __init__(self, seed: int, oddness: float) -> None:
        self.random = random.Random(seed)
        self.oddness = oddness
        self.calls: list[tuple[str, str]] = []
        self.number = 0

    def value(self, *choices: Any) -> Any:
        odd = self.random.random() < self.oddness
        return self.random.choice(ODD if odd else choices)

    def some(self, members: dict[str, Any]) -> dict[str, Any]:
        """Returns the members, without some of them if requests may be wrong."""
        return {
            name: value
            for name, value in members.items()
            if self.random.random() >= self.oddness
        }  # fmt: skip

    def parts(self, *kinds: str) -> Any:
        made = [self.part(self.random.choice(kinds)) for _ in range(self.random.randint(0, 3))]
        return self.value("Hi", made, made)

    def part(self, kind: str) -> Any:
        data = "data:image/png;base64,aGk="
        members = {
            "input_text": {"text": self.value("Hi", "é")},
            "output_text": {"text": self.value("Yes"), "annotations": [], "logprobs": []},
            "refusal": {"refusal": self.value("No")},
            "input_image": {"image_url": self.value(data, {"url": data}), "detail": "auto"},
            "input_file": {"file_data": self.value(data), "filename": self.value("a.pdf")},
            "input_audio": {"input_audio": self.value({"data": "aGk=", "format": "mp3"})},
        }[kind]
        return self.value(self.some({"type": self.value(kind), **members}))

    def call(self) -> Any:
        self.number += 1
        name = f"c{self.number}"
        kind = self.random.choice(sorted(KNOWN))
        self.calls.append((kind, name))
        members: dict[str, Any] = {
            "function_call": {
                "name": self.value("f", "go"),
                "arguments": self.value("{}", '{"a": 1}', "["),
                "namespace": self.value(None, "maps"),
            },
            "custom_tool_call": {"name": "apply", "input": self.value("*** Begin")},
            "local_shell_call": {"action": self.value({"type": "exec", "command": ["ls"]})},
            "shell_call": {"action": self.value({"commands": ["ls"], "timeout_ms": None})},
            "apply_patch_call": {"operation": self.value({"type": "delete_file", "path": "a"})},
            "tool_search_call": {"arguments": self.value({"q": "x"}), "execution": "client"},
        }[kind]
        return self.some({"type": kind, "call_id": self.value(name), "id": None, **members})

    def output(self) -> Any:
        if not self.calls:
            return self.call()
        kind, name = self.calls.pop(self.random.randrange(len(self.calls)))
        if kind == "tool_search_call":
            return self.some({"type": "tool_search_output", "call_id": name, "tools": self.tools()})
        given = self.value("ok", [{"type": "input_text", "text": "ok"}])
        return self.some({"type": f"{kind}_output", "call_id": self.value(name), "output": given})

    def item(self) -> Any:
        detail = ReplyReasoning(type="reasoning.encrypted", data="c2Vj", format="x", index=0)
        image = {"type": "image_generation_call", "id": "ig", "result": self.value("aGk=")}
        match self.random.randrange(9):
            case 0 | 1:
                kinds = ("input_text", "input_image", "input_file", "input_audio")
                role = self.value("user", "system", "developer")
                made: Any = {"role": role, "content": self.parts(*kinds)}
            case 2:
                made = {
                    "type": "message",
                    "role": "assistant",
                    "content": self.parts("output_text", "refusal"),
                }
            case 3 | 4:
                return self.call()
            case 5 | 6:
                return self.output()
            case 7:
                sealed = self.value(seal([detail]), "gAAAA", None)
                made = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
            case _:
                made = self.random.choice([image, {"type": "web_search_call", "id": "ws"}])
        return self.value(self.some(made))

    def tools(self) -> Any:
        names = iter(range(1000))
        kinds: list[Any] = [
            {"type": "function", "name": "f", "parameters": self.value({"type": "object"})},
            {"type": "custom", "name": "apply", "format": self.value({"type": "text"})},
            {"type": "local_shell"},
            {"type": "web_search"},
            {"type": "mcp", "server_label": "x"},
            {"type": "namespace", "name": "maps", "tools": [{"type": "function", "name": "go"}]},
        ]
        chosen = self.random.sample(kinds, self.random.randint(0, 4))
        return self.value([self.value(self.some({**tool, "n": next(names)})) for tool in chosen])

    def request(self) -> dict[str, Any]:
        items = [self.item() for _ in range(self.random.randint(1, 12))]
        optional = {
            "tools": self.tools(),
            "tool_choice": self.value("auto", "none", {"type": "function", "name": "f"}),
            "text": self.value({"format": {"type": "json_object"}}, {"verbosity": "low"}),
            "reasoning": self.value({"effort": "low", "summary": "auto"}),
            "temperature": self.value(0.5),
            "max_output_tokens": self.value(50),
            "stop": self.value(["a"], "a"),
            "metadata": self.value({"a": "b"}),
            "include": self.value(["reasoning.encrypted_content"]),
            "store": self.value(False),
            "user": self.value("ada"),
            "prompt_cache_key": self.value("thread"),
            "truncation": self.value("disabled"),
            "unheard_of": self.value({"a": 1}),
            "stream": self.value(True, False),
            "provider": self.value({"sort": "price"}),
            "previous_response_id": self.value(None),
            "service_tier": self.value("auto", "flex"),
            "parallel_tool_calls": self.value(True),
            "top_logprobs": self.value(2),
            "cache_control": self.value({"type": "ephemeral"}),
            "plugins": self.value([{"id": "web", "enabled": False}]),
        }
        names = self.random.sample(sorted(optional), self.random.randint(0, 8))
        chosen = {name: optional[name] for name in names}
        return {"model": self.value("a/b"), "input": self.value("Hi", items, items), **chosen}


@pytest.mark.parametrize("oddness", [0.0, 0.01, 0.1])
def test_every_request_is_translated_or_refused_by_name(oddness: float) -> None:
    accepted = refused = 0
    for seed in range(1_500):
        wanted = Maker(seed, oddness).request()
        try:
            found = to_chat(json.dumps(wanted).encode())
            parsing.parse(Operation.CHAT, found.chat, is_checked=True)
        except InvalidRequest as error:
            refused += 1
            # The names are those of fields of this request, not of the chat request.
            roots = {re.split(r"[.\[]", name)[0] for name in error.metadata["fields"]}
            assert roots
            assert roots <= {"model", "input", *wanted}, (seed, roots)
            continue
        accepted += 1
        check_messages(json.loads(found.chat)["messages"])
    assert accepted > 100
    assert refused > (0 if oddness else -1)


def check_messages(messages: list[Any]) -> None:
    """Asserts what chat requires: outputs directly follow their calls, if they have some."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] in waiting:
                waiting.remove(message["tool_call_id"])
            else:
                waiting = []
            continue
        waiting = [call["id"] for call in message.get("tool_calls", ())]
        assert message["content"] is not None or message["role"] == "assistant"


def test_random_streams_keep_the_order_of_events() -> None:
    asks = to_chat(
        json.dumps(
            {
                "model": "a/b",
                "input": "Hi",
                "tools": [{"type": "custom", "name": "apply"}, {"type": "local_shell"}],
            }
        ).encode()
    )
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    names = ["f", "apply", "local_shell"]
    for seed in range(300):
        chance = random.Random(seed)
        begun: set[int] = set()
        chat = b""
        for _ in range(chance.randint(0, 15)):
            number = chance.randrange(4)
            opening = {} if number in begun else {"id": f"c{number}", "name": chance.choice(names)}
            pieces: list[Any] = [
                event({"content": "a"}),
                event({"refusal": "b"}),
                event({"reasoning": "c"}),
                event({"images": [image]}),
                event({"reasoning_details": [{"type": "reasoning.encrypted", "data": "d"}]}),
                None,
                None,
            ]
            piece = chance.choice(pieces)
            if piece is None:
                begun.add(number)
                piece = call_piece(number, chance.choice(['{"a"', ":1}", ""]), **opening)
            chat += piece
        chat += ended(chance.choice(["stop", "length", "error", "tool_calls"]))
        events = ResponseEvents(asks.echo, asks.tools)
        sizes = iter(lambda chance=chance: chance.randint(1, 40), 0)
        out, at = b"", 0
        while at < len(chat):
            size = next(sizes)
            out += events.feed(chat[at : at + size])
            at += size
        events_of(out)


def test_random_replies_are_rendered() -> None:
    asks = to_chat(b'{"model":"a/b","input":"Hi","tools":[{"type":"custom","name":"apply"}]}')
    values: list[Any] = [None, "", "text", 5, [], {}, [{"type": "text", "text": "x"}], [5], [{}]]
    names = ["content", "refusal", "reasoning", "reasoning_details", "annotations", "images"]
    for seed in range(500):
        chance = random.Random(seed)
        message = {name: chance.choice(values) for name in names}
        choice = {"index": 0, "message": message, "logprobs": chance.choice(values)}
        body = json.dumps({"id": "gen-1", "choices": [choice], "usage": USAGE}).encode()
        response = json.loads(render_reply(body, asks.echo, asks.tools))
        assert response["status"] == "completed"
