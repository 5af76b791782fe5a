#!/usr/bin/env bash
# openai SDK: the arguments of a streamed call are "done" before they have come
#
# Software: openai 3.57.0 (PyPI), client.chat.completions.stream()
# Guess:    `tool_calls.function.arguments.done` comes once for each call, with all its arguments:
#           each piece has the index of its call, so pieces of two calls may alternate.
# Seen:     When pieces alternate it comes as soon as a piece of the other call does, with what is
#           there by then, an empty text, and not again when the call is whole. The completion at
#           the end has both calls right. One call after the other, the events are right too.
# Matters:  A program that runs tools at this event runs them with nothing, and never with the
#           rest. A gateway that passes on parallel calls should not let their pieces alternate.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check openai==3.57.0
"$folder/venv/bin/python" - <<'PYTHON'
import http.server
import json
import threading
from typing import Any

import openai

MIXED = [(0, ""), (1, ""), (0, '{"a"'), (1, '{"b"'), (0, ": 1}"), (1, ": 2}")]


class Upstream(http.server.BaseHTTPRequestHandler):
    pieces: list[tuple[int, str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
        for index, arguments in self.pieces:
            call: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
            if not arguments:
                call |= {"id": f"call_{index}", "type": "function"}
                call["function"]["name"] = ("first", "second")[index]
            deltas.append({"tool_calls": [call]})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta in [*deltas, {}]:
            choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "tool_calls"}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                     "choices": [choice]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: Any) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
tools: Any = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
              for name in ("first", "second")]
question: Any = [{"role": "user", "content": "Both, please."}]
WHOLE = [("first", '{"a": 1}'), ("second", '{"b": 2}')]


def read(pieces: list[tuple[int, str]]) -> list[tuple[str, str]]:
    Upstream.pieces = pieces
    done = []
    with client.chat.completions.stream(model="m", messages=question, tools=tools) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.done":
                done.append((event.name, event.arguments))
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls or ()] == WHOLE
    return done


after, mixed = read(sorted(MIXED, key=lambda piece: piece[0])), read(MIXED)
print("one after the other:", after, "mixed:", mixed)
assert after == WHOLE and mixed == [("first", ""), ("second", "")]
PYTHON
