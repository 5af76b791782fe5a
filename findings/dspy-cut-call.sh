#!/usr/bin/env bash
# DSPy: a tool call that was cut off comes back whole, with an argument that nobody wrote
#
# Software: dspy 3.4.1 (PyPI), LM with an OpenAI-compatible server
# Guess:    Arguments that end in the middle of a text, with finish_reason "length", are an error,
#           or are handed on as they are.
# Seen:     The call has one argument, `partial_json`, whose value is the broken text, and its
#           arguments are valid JSON. A tool that takes further arguments (**rest) runs with it, and
#           with its defaults for all others. Arguments [1] become {"value": [1]}.
# Matters:  A check whether arguments parse, or retries when they do not, never fires: a token limit
#           makes a call with the defaults.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check dspy==3.4.1
export DSPY_CACHEDIR="$folder/cache" LITELLM_LOCAL_MODEL_COST_MAP=True
"$folder/venv/bin/python" - <<'PYTHON'
import http.server
import json
import threading
from typing import Any

import dspy


class Upstream(http.server.BaseHTTPRequestHandler):
    arguments, reason = "", ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        function = {"name": "search", "arguments": self.arguments}
        call = {"id": "call_1", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": self.reason}
        usage = {"prompt_tokens": 9, "completion_tokens": 16, "total_tokens": 25}
        body = json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m",
                           "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
ran = []


def search(folder: str = "/", **rest: Any) -> str:
    """Searches a folder."""
    ran.append((folder, rest))
    return "done"


ask_for = dspy.Signature(
    {"tools": (list[dspy.Tool], dspy.InputField()), "calls": (dspy.ToolCalls, dspy.OutputField())}
)


def ask(arguments: str, reason: str) -> Any:
    Upstream.arguments, Upstream.reason = arguments, reason
    model = dspy.LM("openai/m", api_base=f"http://127.0.0.1:{server.server_port}/v1",
                    api_key="none", cache=False, num_retries=0)
    adapter = dspy.ChatAdapter(use_native_function_calling=True)
    with dspy.context(lm=model, adapter=adapter):
        (call,) = dspy.Predict(ask_for)(tools=[dspy.Tool(search)]).calls.tool_calls
    call.execute([dspy.Tool(search)])
    return call.args


CUT = '{"folder": "/home/a", "name": "inv'
found = ask(CUT, "length")
print("sent", CUT, "read", found, "ran", ran)
assert found == {"partial_json": CUT}
assert ran == [("/", {"partial_json": CUT})]
assert ask("[1]", "tool_calls") == {"value": [1]}
PYTHON
